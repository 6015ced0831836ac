package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// reach finds the discovered tool that an mcp_call names; from here on the call is
// a call of that tool. ok is false if it is refused.
func (c *toolCall) reach(args json.RawMessage) (e *entry, inner json.RawMessage, ok bool) {
	var server, tool string
	inner = json.RawMessage(`{}`)
	err := c.arguments(args, func(m workflows.Member) error {
		switch m.Key {
		case "server":
			return text(m, &server)
		case "tool":
			return text(m, &tool)
		case "arguments":
			inner = m.Value
			return nil
		default:
			return argumentError("there is no argument " + strconv.Quote(clip(m.Key, 64)))
		}
	})
	if err != nil {
		c.refuse(workflows.ToolIncorrect, "bad_arguments", err.Error())
		return nil, nil, false
	}
	if server == "" || tool == "" {
		c.refuse(workflows.ToolIncorrect, "bad_arguments", "server and tool are required")
		return nil, nil, false
	}
	e = c.l.grant.tools[c.l.grant.ofServers[[2]string{server, tool}]]
	if e == nil {
		c.refuse(workflows.ToolDenied, "not_granted", "the node grants no such tool of such a server")
		return nil, nil, false
	}
	return e, inner, true
}

// checkCallee reads the arguments of invoke_agent.
func (c *toolCall) checkCallee(args json.RawMessage) {
	var node string
	err := c.arguments(args, func(m workflows.Member) error {
		switch m.Key {
		case "node":
			return text(m, &node)
		case "input":
			return text(m, &c.input)
		default:
			return argumentError("there is no argument " + strconv.Quote(clip(m.Key, 64)))
		}
	})
	switch {
	case err != nil:
		c.refuse(workflows.ToolIncorrect, "bad_arguments", err.Error())
	case strings.TrimSpace(c.input) == "":
		c.refuse(workflows.ToolIncorrect, "bad_arguments", "input is required")
	case !slices.Contains(c.l.grant.callees, node):
		c.refuse(workflows.ToolIncorrect, "no_such_agent", "want one of these nodes: "+strings.Join(c.l.grant.callees, ", "))
	default:
		c.callee, _ = c.l.d.call.Workflow.Node(node)
	}
}

// arguments reads the members of an argument object.
func (c *toolCall) arguments(args json.RawMessage, each func(workflows.Member) error) error {
	members, err := workflows.Members(args)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := each(m); err != nil {
			return err
		}
	}
	return nil
}

func text(m workflows.Member, into *string) error {
	if json.Unmarshal(m.Value, into) != nil {
		return argumentError(m.Key + " must be a string")
	}
	return nil
}

// invoke runs the callee: its own agent and tools, narrowed by this node; the same
// budget, slot and deadline; effects below this call's place.
func (c *toolCall) invoke(ctx context.Context) (engine.EffectResult, error) {
	d := c.l.d
	if d.callees >= maxCallees {
		return c.failed(ctx, &workflows.ToolError{
			Fault: workflows.ToolIncorrect, Reason: "too_many_agents", Message: fmt.Sprintf("no more than %d agents may be asked", maxCallees),
		})
	}
	before, used := d.callees, d.used()
	d.callees++
	out, err := c.converse(ctx)
	if err != nil {
		_, failed := errors.AsType[*engine.RunError](err)
		if _, model := errors.AsType[*ModelError](err); ctx.Err() != nil || !failed && !model {
			return engine.EffectResult{}, err // no outcome
		}
		return engine.EffectResult{Said: []engine.Event{c.ended(false, "the agent failed")}}, err
	}
	kept := c.result(ctx, out.text)
	kept.Callees = d.callees - before
	now := d.used()
	kept.Used = engine.Tokens{Input: now.Input - used.Input, Output: now.Output - used.Output}
	return c.kept(kept, out.text)
}

// converse is the callee's own loop.
func (c *toolCall) converse(ctx context.Context) (answer, error) {
	spec, _ := c.callee.Spec.(workflows.AgentNode)
	agent, ok := c.l.d.call.Workflow.Agent(spec.AgentRef)
	if !ok {
		return answer{}, &engine.RunError{Code: engine.CodeValidation, Message: fmt.Sprintf("no agent %q", spec.AgentRef)}
	}
	path := strconv.Itoa(c.n)
	if c.l.path != "" {
		path = c.l.path + "/" + path
	}
	callee := &loop{d: c.l.d, node: c.callee, spec: spec, agent: agent, path: path, above: append(slices.Clip(c.l.above), c.callee.ID)}
	if err := callee.prepare(c.l.grant.narrowing); err != nil {
		return answer{}, err
	}
	return callee.run(ctx, c.input)
}

// used is what the dispatch used so far.
func (d *dispatch) used() engine.Tokens {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tokens
}
