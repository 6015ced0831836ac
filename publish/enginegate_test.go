package publish_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish"
)

// lostCommand is an agent that runs one command whose first sending is lost: it is
// sent, and what came of it is not known.
type lostCommand struct{ sent atomic.Int32 }

func (l *lostCommand) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	command := engine.Effect{Kind: engine.EffectTool, Name: "run_command", Request: json.RawMessage(`{}`), Shown: json.RawMessage(`{"command":"make"}`)}
	perform := func(context.Context, string) (engine.EffectResult, error) {
		if l.sent.Add(1) == 1 {
			return engine.EffectResult{}, errors.New("lost")
		}
		return engine.EffectResult{Value: json.RawMessage(`"made"`)}, nil
	}
	out, err := call.Do(ctx, command, perform)
	if err != nil && !errors.Is(err, engine.ErrSkipped) && !errors.Is(err, engine.ErrParked) {
		out, err = call.Do(ctx, command, perform) // as a process after it would find it
	}
	if errors.Is(err, engine.ErrSkipped) {
		return engine.AgentResult{Output: json.RawMessage(`"skipped"`)}, nil
	}
	return engine.AgentResult{Output: out.Value}, err
}

// costly is an agent that makes one model call of 100 micro-cents.
type costly struct{}

func (costly) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	out, err := call.Do(ctx, engine.Effect{Kind: engine.EffectTurn, Name: "m-1", Request: json.RawMessage(`{}`), Repeatable: true, Estimate: 100},
		func(context.Context, string) (engine.EffectResult, error) {
			return engine.EffectResult{Value: json.RawMessage(`"said"`), Cost: 100}, nil
		})
	return engine.AgentResult{Output: out.Value}, err
}

// single is a workflow of one agent.
func single(tb testing.TB, rest string) publish.Workflow {
	tb.Helper()
	return parse(tb, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: dig
  description: digs
  trigger: { type: mcp_call }
%s  agents: [{ id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.' }]
  nodes:
    - { id: start, type: input }
    - { id: work, type: agent, agent_ref: wader, prompt_template: 'dig' }
    - { id: result, type: output }
  edges:
    - { from: start, to: work }
    - { from: work, to: result }
`, rest))
}

func withAgent(tb testing.TB, a engine.AgentRunner) func(*publish.Options) {
	tb.Helper()
	return func(o *publish.Options) {
		anyTime(o)
		o.Engine = openEngine(tb, filepath.Join(tb.TempDir(), "agents.db"), func(eo *engine.Options) { eo.Agent = a })
	}
}

func TestOutcomeUnknownIsAskedOfTheCaller(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{"repeat": `{"result":"made"}`, "skip": `{"result":"skipped"}`, "fail": ""} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			w := single(t, "")
			w.Gates = map[string]gates.Name{"work": {Key: "renamed", Field: "renamed"}} // names an authored gate has, not this one
			s, _, _ := newServer(t, withAgent(t, &lostCommand{}), w)
			c := connect(t, s)
			r, m := c.round("1", "relavium_dig", `,"arguments":{}`)
			if len(r.InputRequests) != 1 {
				t.Fatalf("result = %s, want one question", m.raw)
			}
			for key, q := range r.InputRequests {
				if !strings.HasPrefix(key, "work_outcome_unknown_") {
					t.Errorf("key = %q", key)
				}
				for _, part := range []string{"run_command", `{"command":"make"}`, "repeat", "skip", "fail"} {
					if !strings.Contains(q.Params.Message, part) {
						t.Errorf("question %q says nothing of %q", q.Params.Message, part)
					}
				}
				if !strings.Contains(string(q.Params.RequestedSchema), `"enum":["repeat","skip","fail"]`) {
					t.Errorf("schema = %s", q.Params.RequestedSchema)
				}
				r, m = c.round("2", "relavium_dig", `,"arguments":{}`+retry(r, fmt.Sprintf(`{%q:{"action":"accept","content":{"value":%q}}}`, key, answer)))
			}
			if got := string(r.StructuredContent); got != want || r.IsError != (want == "") {
				t.Errorf("result = %s, want %s", m.raw, want)
			}
		})
	}
}

func TestBudgetGateIsAskedOfLocalAlone(t *testing.T) {
	t.Parallel()
	w := single(t, "  budget: { max_cost_microcents: 50, on_exceed: pause_for_approval }\n")
	s, _, _ := newServer(t, withAgent(t, costly{}), w)
	c := connect(t, s)
	r, m := c.round("1", "relavium_dig", `,"arguments":{}`)
	if len(r.InputRequests) != 1 {
		t.Fatalf("result = %s, want one question", m.raw)
	}
	for key := range r.InputRequests {
		r, m = c.round("2", "relavium_dig", `,"arguments":{}`+retry(r, fmt.Sprintf(`{%q:%s}`, key, approve)))
	}
	if got, want := string(r.StructuredContent), `{"result":"said"}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
}
