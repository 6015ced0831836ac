package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// A toolCall is one call that a model listed, on its way through format 6.2. It has
// its place whatever becomes of it.
type toolCall struct {
	l       *loop
	call    *replyCall
	n       int
	model   string // that asked for it
	attempt int

	id        string // of the tool that is reached; as the model wrote it until it is known
	server    string
	entry     *entry
	ask       workflows.ToolCall
	callee    *workflows.Node // of invoke_agent
	input     string
	admission workflows.Admission
	shown     json.RawMessage
	refused   *workflows.ToolError // why it is not made

	done bool
	out  outcome
	err  error
}

// errNotBegun marks calls that were left when a sibling failed or parked.
var errNotBegun = errors.New("agent: call not begun")

// outcomeUnknown is what a model is told of a call that a person decided to skip.
const outcomeUnknown = "The outcome of this call is unknown: it was under way when the program ended, and a person decided not to repeat it. It may have had its effect or not."

// callAll makes the calls of one turn and returns their results in listed order.
func (l *loop) callAll(ctx context.Context, r *reply, listed []*replyCall) (Message, error) {
	first := l.take(len(listed))
	calls := make([]*toolCall, len(listed))
	for i, c := range listed {
		calls[i] = &toolCall{l: l, call: c, n: first + i, model: r.Model, attempt: later(r.Attempt), id: c.Name}
	}
	var work sync.WaitGroup
	slots := make(chan struct{}, maxAtOnce)
	for i, c := range calls {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			c.check(ctx, i)
		})
	}
	work.Wait()
	// What is refused for good ends the node before anything of this turn is sent,
	// unless it was done before it was refused.
	for _, c := range calls {
		if c.err == nil && c.refused != nil && c.refused.Fault != workflows.ToolIncorrect {
			c.make(ctx)
		}
		if c.err != nil {
			return Message{}, c.err
		}
	}
	var stop atomic.Bool
	left := func(c *toolCall) bool {
		if stop.Load() || ctx.Err() != nil {
			c.err = errNotBegun
		}
		return c.err != nil
	}
	begin := func(c *toolCall) {
		if c.make(ctx); c.err != nil {
			stop.Store(true)
		}
	}
	var callees []*toolCall
	for _, c := range calls {
		switch {
		case c.done:
		case c.callee != nil:
			callees = append(callees, c)
		default:
			slots <- struct{}{}
			if left(c) {
				<-slots
				continue
			}
			work.Go(func() {
				defer func() { <-slots }()
				begin(c)
			})
		}
	}
	// Callees share the one slot of their node: one at a time, as listed.
	for _, c := range callees {
		if !left(c) {
			begin(c)
		}
	}
	work.Wait()
	return l.results(ctx, calls)
}

// results gathers what the calls led to, or why the loop ends: by a failure first,
// the earliest listed, then by a call that waits for a person.
func (l *loop) results(ctx context.Context, calls []*toolCall) (Message, error) {
	var failed, held error
	incorrect := ""
	m := Message{Role: ToolRole}
	for _, c := range calls {
		switch {
		case errors.Is(c.err, errNotBegun):
		case errors.Is(c.err, engine.ErrParked):
			held = engine.ErrParked
		case c.err != nil && failed == nil:
			failed = c.err
		}
		if c.out.Incorrect {
			incorrect = c.id
		}
		m.Parts = append(m.Parts, Part{Result: &Result{ID: c.call.ID, Name: portable(c.call.Name), Text: c.out.Text, IsError: c.out.IsError}})
	}
	switch {
	case failed != nil:
		return Message{}, failed
	case held != nil:
		return Message{}, held
	case ctx.Err() != nil:
		return Message{}, context.Cause(ctx)
	}
	if incorrect == "" {
		return m, nil
	}
	if l.corrections++; l.corrections > maxCorrections {
		return Message{}, &engine.RunError{
			Code: engine.CodeToolFailed, Retryable: true,
			Message: l.d.safe(fmt.Sprintf("the agent was told %d times to correct its tool calls and made another that fails: tool %q", maxCorrections, incorrect)),
		}
	}
	return m, nil
}

// recovered turns a panic of a host into the call's failure.
func (c *toolCall) recovered() {
	if p := recover(); p != nil {
		c.err = fmt.Errorf("agent: tool %s: panic: %v", c.id, p)
	}
}

// check finds the tool and decides whether the call is made: exact look-up, grant,
// arguments, policy. It does nothing else.
func (c *toolCall) check(ctx context.Context, i int) {
	defer c.recovered()
	c.entry = &entry{tool: workflows.Tool{ID: c.call.Name, Name: c.call.Name}}
	args, err := c.call.object()
	if err != nil {
		c.shown = c.l.d.input(json.RawMessage(c.call.Arguments))
	} else {
		c.shown = c.l.d.input(args)
	}
	e, ok := c.l.grant.tools[c.call.Name]
	switch {
	case i >= maxCalls:
		c.refuse(workflows.ToolIncorrect, "too_many_calls", fmt.Sprintf("more than %d calls in one turn: make fewer", maxCalls))
		return
	case !ok && c.l.grant.known[c.call.Name]:
		c.refuse(workflows.ToolDenied, "not_granted", "the node does not grant it")
		return
	case !ok:
		c.refuse(workflows.ToolIncorrect, "unknown_tool", "there is no such tool")
		return
	}
	c.entry = e
	if err != nil {
		c.refuse(workflows.ToolIncorrect, "bad_arguments", "the arguments are no JSON object: "+err.Error())
		return
	}
	switch e.delegate {
	case invokeAgent:
		c.checkCallee(args)
		return
	case mcpCall:
		if e, args, ok = c.reach(args); !ok {
			return
		}
	}
	c.entry, c.id, c.server = e, e.tool.ID, e.tool.Server
	d := c.l.d
	c.ask = workflows.ToolCall{
		Run: d.call.Run, Node: d.call.Node.ID, Principal: string(d.call.Principal), Root: d.call.Project.Root,
		Workflow: d.call.Workflow, Agent: c.l.agent, Tool: c.id, Arguments: args,
	}
	ask := c.ask
	if c.admission, err = e.host.Check(ctx, &ask); err != nil {
		c.admission = workflows.Admission{}
		c.refuseBy(err)
		return
	}
	if c.admission.Shown != nil {
		c.shown = d.input(c.admission.Shown)
	}
	if c.admission.Approval && len(d.call.Approvals) == 0 {
		c.refuseUnapproved()
	}
}

func (c *toolCall) refuse(fault workflows.ToolFault, reason, message string) {
	c.refused = &workflows.ToolError{Fault: fault, Reason: reason, Message: message, Server: c.server, Tool: c.id}
}

func (c *toolCall) refuseUnapproved() {
	c.refuse(workflows.ToolDenied, "gate_required", "it needs the approval of a person at a gate before this node, one for each call")
}

// refuseBy takes in what a host refused with.
func (c *toolCall) refuseBy(err error) {
	t, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		c.err = fmt.Errorf("agent: tool %s: %w", c.id, err)
		return
	}
	c.refused = c.name(t)
}

// name fills in which tool it was.
func (c *toolCall) name(t *workflows.ToolError) *workflows.ToolError {
	named := *t
	if named.Tool == "" {
		named.Tool, named.Server = c.id, c.server
	}
	return &named
}

// make makes the call an effect, with the first approval that is not used up where
// it needs one.
func (c *toolCall) make(ctx context.Context) {
	defer c.recovered()
	c.done = true
	// What the model asked for decides, not what it was found to mean.
	request, err := encode(struct {
		Tool      string `json:"tool"`
		Arguments string `json:"arguments"`
	}{c.call.Name, c.call.Arguments})
	if err != nil {
		c.err = fmt.Errorf("agent: call: %w", err)
		return
	}
	approvals := []string{""}
	if c.refused == nil && c.admission.Approval {
		approvals = c.l.d.call.Approvals
	}
	for {
		for _, gate := range approvals {
			res, err := c.l.d.call.Do(ctx, engine.Effect{
				Path: c.l.path, N: c.n, Kind: engine.EffectTool, Name: c.id, Server: c.server, Request: request,
				Repeatable: c.refused != nil || c.callee != nil || c.admission.Repeatable && !c.admission.Approval,
				Shown:      c.shown, Hints: c.entry.tool.Hints, Approval: gate,
				Said: []engine.Event{c.called()},
			}, func(ctx context.Context, key string) (engine.EffectResult, error) { return c.perform(ctx, key, gate) })
			if !errors.Is(err, engine.ErrApprovalUsed) {
				c.settle(res, err)
				return
			}
		}
		if c.refused != nil {
			c.err = fmt.Errorf("agent: tool %s: %w", c.id, engine.ErrApprovalUsed) // it asked for none
			return
		}
		c.refuseUnapproved()
		approvals = []string{""}
	}
}

// settle takes in what Do returned.
func (c *toolCall) settle(res engine.EffectResult, err error) {
	switch {
	case errors.Is(err, engine.ErrSkipped):
		c.out = outcome{Text: outcomeUnknown, IsError: true}
		return
	case err != nil:
		c.err = err
		if failure, ok := errors.AsType[*engine.RunError](err); ok {
			c.err = failure
		}
		return
	}
	if err := json.Unmarshal(res.Value, &c.out); err != nil {
		c.err = fmt.Errorf("agent: recorded tool result: %w", err)
		return
	}
	if c.out.Failure != nil {
		c.err = c.out.Failure
		return
	}
	if res.Replayed && c.out.Callees > 0 {
		c.l.d.callees += c.out.Callees
		c.l.d.count(c.out.Used)
	}
}

// perform sends the call, or says why it is not sent.
func (c *toolCall) perform(ctx context.Context, key, gate string) (engine.EffectResult, error) {
	c.traceBegun(ctx)
	if c.refused != nil {
		return c.failed(ctx, c.refused)
	}
	if c.callee != nil {
		return c.invoke(ctx)
	}
	ask := c.ask
	ask.Key, ask.Approval = key, gate
	res, err := c.entry.host.Call(ctx, &ask)
	if err != nil {
		return c.failed(ctx, err)
	}
	traceResult(ctx, res)
	out := c.result(ctx, res.Text)
	// An MCP server reports wrong arguments so; a built-in tool reports what it found.
	out.IsError, out.Incorrect = res.IsError, res.IsError && c.entry.tool.Server != ""
	return c.kept(out, res.Text)
}

// failed is what a call comes to that was refused or failed: told to the model where
// it may correct it, else the end of the node. That is kept like a result, unless
// the call did not leave or may be repeated.
func (c *toolCall) failed(ctx context.Context, err error) (engine.EffectResult, error) {
	if ctx.Err() != nil {
		return engine.EffectResult{}, err
	}
	t, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		return engine.EffectResult{}, fmt.Errorf("agent: tool %s: %w", c.id, err)
	}
	t = c.name(t)
	traceFault(ctx, t)
	said := describe(t)
	if t.Err != nil {
		c.l.d.log.LogAttrs(ctx, slog.LevelWarn, "tool call failed", slog.String("tool", c.id), slog.String("error", c.l.d.safe(said+": "+t.Err.Error())))
	}
	if t.Fault == workflows.ToolIncorrect {
		out := c.result(ctx, said)
		out.IsError, out.Incorrect = true, true
		return c.kept(out, said)
	}
	failure := c.l.d.toolFailure(t)
	if failure.Retryable {
		return engine.EffectResult{Said: []engine.Event{c.ended(false, said)}}, fmt.Errorf("%w: %w", engine.ErrUnsent, failure)
	}
	return c.kept(outcome{IsError: true, Failure: failure}, said)
}

// kept is an outcome as the engine keeps it, with the event that tells of it.
func (c *toolCall) kept(out outcome, summary string) (engine.EffectResult, error) {
	value, err := encode(out)
	if err != nil {
		return engine.EffectResult{}, fmt.Errorf("agent: tool result: %w", err)
	}
	return engine.EffectResult{Value: value, Said: []engine.Event{c.ended(!out.IsError, summary)}}, nil
}
