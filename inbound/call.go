package inbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/workflows"
)

// Tools lists the tools that the agent's servers offer in this run, in the order of the
// agent's declarations and of each server's list. It is empty when the run is not open.
func (h *Host) Tools(runID string, agent *workflows.Agent) []workflows.Tool {
	t := h.table(runID, agent.ID)
	if t == nil {
		return nil
	}
	return slices.Clone(t.list)
}

// Resolve returns the ID of the tool that a server of the agent, by its id or ref,
// offers under its own name.
func (h *Host) Resolve(runID string, agent *workflows.Agent, server, name string) (id string, ok bool) {
	t := h.table(runID, agent.ID)
	if t == nil {
		return "", false
	}
	found, ok := t.byName[server+"\x00"+name]
	if !ok {
		return "", false
	}
	return found.ID, true
}

func (h *Host) table(runID, agent string) *table {
	r := h.lookup(runID)
	if r == nil {
		return nil
	}
	return r.table(agent)
}

// Check decides whether a call may be made: the tool is there and the arguments fit its
// schema.
func (h *Host) Check(_ context.Context, call *workflows.ToolCall) (workflows.Admission, error) {
	at, fault := h.find(call)
	if fault != nil {
		return workflows.Admission{}, fault
	}
	if fault := at.check(call.Arguments); fault != nil {
		return workflows.Admission{}, fault
	}
	return workflows.Admission{
		Repeatable: slices.Contains(h.opt.Repeatable, at.ID),
		Shown:      h.shown(call.Arguments),
	}, nil
}

// shown is what people see of the arguments.
func (h *Host) shown(args json.RawMessage) json.RawMessage {
	if h.opt.Scrub == nil || len(args) == 0 {
		return args
	}
	s := h.opt.Scrub(string(args))
	if !json.Valid([]byte(s)) {
		quoted, err := json.Marshal(s)
		if err != nil {
			return nil
		}
		return quoted
	}
	return json.RawMessage(s)
}

// find looks the tool up, by its exact name.
func (h *Host) find(call *workflows.ToolCall) (*tool, *workflows.ToolError) {
	t := h.table(call.Run, call.Agent.ID)
	if t == nil {
		return nil, &workflows.ToolError{
			Fault: workflows.ToolUnavailable, Reason: ReasonClosed, Tool: call.Tool, Message: "the run has no open servers",
		}
	}
	at, ok := t.byID[call.Tool]
	if !ok {
		return nil, &workflows.ToolError{
			Fault: workflows.ToolIncorrect, Reason: ReasonUnknownTool, Tool: cut(call.Tool, 128), Message: "there is no such tool",
		}
	}
	return at, nil
}

// check validates arguments. What it says of them is where and what, never a value.
func (t *tool) check(args json.RawMessage) *workflows.ToolError {
	if err := t.Schema.Validate(t.arguments(args)); err != nil {
		return &workflows.ToolError{
			Fault: workflows.ToolIncorrect, Reason: ReasonArguments, Server: t.server, Tool: t.Name,
			Message: cut(quoted(err.Error()), maxServerText), Err: err,
		}
	}
	return nil
}

// arguments are the bytes that are validated and sent: none is an empty object.
func (t *tool) arguments(args json.RawMessage) json.RawMessage {
	if len(bytes.TrimSpace(args)) == 0 {
		return json.RawMessage("{}")
	}
	return args
}

// Call makes a call of a tool, after validating its arguments, and returns its text. It
// returns when ctx ends, and after 60 s at the latest; the server is told of that. A
// cancellation by the caller is told apart from a deadline, whichever came first.
func (h *Host) Call(ctx context.Context, call *workflows.ToolCall) (workflows.ToolResult, error) {
	since := time.Now()
	at, fault := h.find(call)
	if fault != nil {
		return workflows.ToolResult{}, fault
	}
	if fault := at.check(call.Arguments); fault != nil {
		return workflows.ToolResult{}, fault
	}
	r := h.lookup(call.Run)
	if r == nil {
		return workflows.ToolResult{}, callFault(ctx, at, outcome{}, errClosed, since)
	}
	within, leave, ok := r.enter(ctx)
	if !ok {
		return workflows.ToolResult{}, callFault(ctx, at, outcome{}, errClosed, since)
	}
	defer leave()
	limited, stop := context.WithTimeoutCause(within, callLimit, errCallDeadline)
	defer stop()
	out, err := at.call(limited, call)
	if err != nil {
		if errors.Is(context.Cause(within), errClosed) && ctx.Err() == nil {
			return workflows.ToolResult{}, &workflows.ToolError{
				Fault: workflows.ToolCancelled, Reason: ReasonClosed, Server: at.server, Tool: at.Name,
				Message: "the run's sessions were closed", Elapsed: time.Since(since), Err: err,
			}
		}
		return workflows.ToolResult{}, h.scrubbed(callFault(ctx, at, out, err, since))
	}
	text, isError, err := resultText(out.result)
	if err != nil {
		return workflows.ToolResult{}, resultFault(at, err, since)
	}
	if h.opt.Scrub != nil {
		text = h.opt.Scrub(text)
	}
	return workflows.ToolResult{Text: text, IsError: isError}, nil
}

// scrubbed takes secrets out of what an error says.
func (h *Host) scrubbed(f *workflows.ToolError) *workflows.ToolError {
	if h.opt.Scrub != nil {
		f.Message = h.opt.Scrub(f.Message)
	}
	return f
}

// call sends the request. The arguments go out as they are.
func (t *tool) call(ctx context.Context, call *workflows.ToolCall) (outcome, error) {
	name, err := marshal(t.Name)
	if err != nil {
		return outcome{}, err
	}
	args := t.arguments(call.Arguments)
	params := map[string]json.RawMessage{"name": name, "arguments": args}
	var header map[string]string
	if _, overHTTP := t.conn.session.wire.(*httpWire); overHTTP && t.conn.session.modern {
		raw, err := marshal(map[string]json.RawMessage{"arguments": args})
		if err != nil {
			return outcome{}, err
		}
		header = mcp.GenerateParamHeaders(&mcp.Tool{Name: t.Name, RawInputSchema: t.InputSchema}, raw)
	}
	return t.conn.session.request(ctx, string(mcp.MethodToolsCall), params, header)
}

// resultFault is why a response is no result.
func resultFault(at *tool, err error, since time.Time) *workflows.ToolError {
	f := &workflows.ToolError{
		Fault: workflows.ToolFailed, Reason: ReasonResult, Server: at.server, Tool: at.Name,
		Message: err.Error(), Elapsed: time.Since(since), Err: err,
	}
	switch {
	case errors.Is(err, errTooLarge):
		f.Reason = ReasonTooLarge
	case errors.Is(err, errInput):
		f.Reason = ReasonInput
	}
	return f
}

// pin checks what a server offers against what was seen of it before.
func (h *Host) pin(ctx context.Context, c *connection) error {
	if h.opt.Pin == nil {
		return nil
	}
	err := h.opt.Pin(ctx, c.identity(), &c.found)
	if err == nil {
		return nil
	}
	if fault, ok := errors.AsType[*workflows.ToolError](err); ok {
		return fault
	}
	return &workflows.ToolError{
		Fault: workflows.ToolDenied, Reason: ReasonPin, Server: c.name,
		Message: cut(quoted(err.Error()), maxServerText), Elapsed: time.Since(c.started), Err: err,
	}
}
