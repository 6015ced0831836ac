package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// A loop is one conversation: of the node's agent, or of a callee of invoke_agent.
// One goroutine runs it; its tool calls have their own.
type loop struct {
	d      *dispatch
	node   *workflows.Node
	spec   workflows.AgentNode
	agent  *workflows.Agent
	path   string   // of its effects: "", then "3", "3/1" for callees
	above  []string // the nodes on the way here, this one last
	system string
	schema json.RawMessage // nil for text
	grant  *grant
	chain  []candidate
	talk   *transcript
	ids    map[string]bool // of tool calls

	next        int // place of the next effect
	turns       int
	corrections int
}

// loop makes the conversation of the dispatched node.
func (d *dispatch) loop(node *workflows.Node, spec workflows.AgentNode, agent *workflows.Agent) (*loop, error) {
	l := &loop{d: d, node: node, spec: spec, agent: agent, above: []string{node.ID}}
	return l, l.prepare(nil)
}

// prepare fills in what follows from node and agent; narrowing holds the tools that
// the callers' nodes leave.
func (l *loop) prepare(narrowing [][]string) (err error) {
	l.system = l.agent.SystemPrompt
	switch {
	case l.spec.SystemPromptAppend == "":
	case l.system == "":
		l.system = l.spec.SystemPromptAppend
	default:
		l.system += "\n\n" + l.spec.SystemPromptAppend
	}
	l.schema = l.d.call.Workflow.OutputSchema(l.node.ID)
	l.chain = l.chainOf()
	l.talk = newTranscript(l.system)
	l.ids = map[string]bool{}
	l.grant, err = l.newGrant(narrowing)
	return err
}

// take claims n places for effects and returns the first.
func (l *loop) take(n int) int {
	first := l.next
	l.next += n
	return first
}

// run converses until the model answers without a tool call.
func (l *loop) run(ctx context.Context, prompt string) (answer, error) {
	l.warnMissing(ctx)
	if err := l.talk.add(Message{Role: User, Parts: []Part{{Text: prompt}}}); err != nil {
		return answer{}, err
	}
	repaired := false
	for {
		r, err := l.turn(ctx)
		if err != nil {
			return answer{}, err
		}
		calls, err := l.toolCalls(r)
		if err != nil {
			return answer{}, err
		}
		if len(calls) > 0 {
			results, err := l.callAll(ctx, r, calls)
			if err != nil {
				return answer{}, err
			}
			if err := errors.Join(l.talk.add(r.message()), l.talk.add(results)); err != nil {
				return answer{}, err
			}
			continue
		}
		out, err := l.accept(r.text())
		problem, ok := errors.AsType[replyError](err)
		switch {
		case !ok:
			return out, err
		case repaired:
			return answer{}, &engine.RunError{
				Code: engine.CodeValidation, Message: "the reply does not keep to the output_schema: " + string(problem),
			}
		}
		repaired = true
		if err := errors.Join(l.talk.add(r.message()), l.talk.add(repair(problem))); err != nil {
			return answer{}, err
		}
	}
}

// toolCalls are the calls that a turn ends with; none means that it is the answer.
func (l *loop) toolCalls(r *reply) ([]*replyCall, error) {
	calls := r.calls()
	switch r.Stop {
	case StopEnd, StopToolUse:
	case StopFilter:
		return nil, &engine.RunError{Code: engine.CodeContentFilter, Message: fmt.Sprintf("%s %s: the provider's content filter ended the reply", r.Provider, r.Model)}
	case StopLength:
		if len(calls) > 0 {
			return nil, &engine.RunError{Code: engine.CodeValidation, Message: "max_tokens cut the reply off in a tool call: raise max_tokens"}
		}
	default:
		return nil, fmt.Errorf("agent: turn of %s %s ended by %q", r.Provider, r.Model, r.Stop)
	}
	if i := slices.IndexFunc(calls, func(c *replyCall) bool { return c.Executed }); i >= 0 {
		return nil, l.d.toolFailure(&workflows.ToolError{
			Fault: workflows.ToolDenied, Reason: "provider_executed", Tool: calls[i].Name, Message: "the provider ran the call by itself",
		})
	}
	return calls, nil
}
