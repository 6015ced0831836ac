package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/workflows"
)

// A slot is the place of one agent node among the recorded effects of a segment.
// Every unsettled agent node has one, taken in topological order before anything
// runs, so that each execution of the segment numbers its effects alike.
type slot struct {
	orders  chan order
	entered chan struct{} // closed when the step runs: nothing was recorded of it
	told    bool
	open    bool // its result has not come
	result  *effect
}

// order tells a slot what to do, once.
type order struct {
	skip   bool // the node is skipped
	leave  bool // the node is left for a later segment
	call   *AgentCall
	stored <-chan error // tells when the call may begin; nil means at once
	span   trace.Span   // of the node; may be nil
}

// effect is what is recorded of an agent node.
type effect struct {
	State   string          `json:"s"` // done, failed, skipped, left, parked
	Output  json.RawMessage `json:"out,omitempty"`
	Error   *RunError       `json:"err,omitempty"`
	Attempt int             `json:"n,omitempty"`
	Tokens  Tokens          `json:"tok,omitzero"`
	TookMS  int64           `json:"ms,omitempty"`
}

func (s *slot) send(o order) {
	if s.told {
		return
	}
	s.told = true
	s.orders <- o // the one order of its life: there is room
}

// claimSlots takes the places of the effects. It runs in the loop's goroutine.
func (x *execution) claimSlots(ctx context.Context) error {
	for _, id := range x.order {
		v := x.nodes[id]
		if _, ok := v.node.Spec.(workflows.AgentNode); !ok || v.settled() {
			continue
		}
		s := &slot{orders: make(chan order, 1), entered: make(chan struct{}), open: true}
		v.slot = s
		recorded, err := x.seg.Go(id, func(ctx context.Context) (string, error) { return x.effect(ctx, id, v.node, s) })
		if err != nil {
			return fmt.Errorf("step of node %s: %w", id, err)
		}
		if x.seg.Again {
			// Whether it is recorded decides what is said next: know it first.
			select {
			case step := <-recorded:
				if err := x.recorded(ctx, id, step.Result, step.Err); err != nil {
					return err
				}
				continue
			case <-s.entered:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		x.work.Go(func() {
			select {
			case step := <-recorded:
				x.report(func(ctx context.Context) error { return x.recorded(ctx, id, step.Result, step.Err) })
			case <-x.over:
			}
		})
	}
	return nil
}

func (x *execution) slotsOpen() bool {
	for _, v := range x.nodes {
		if v.slot != nil && v.slot.open {
			return true
		}
	}
	return false
}

// startAgent renders the prompt and lets the node's effect begin, unless it is
// recorded already.
func (x *execution) startAgent(ctx context.Context, id string, v *vertex, spec workflows.AgentNode) {
	x.agents++
	x.busy++
	if !x.seen[NodeStarted+" "+id] && (v.slot.result == nil || v.slot.result.State != "left") {
		x.store(nil, Event{Type: NodeStarted, Node: id, NodeType: v.node.Type()})
	}
	if v.slot.result != nil {
		x.settleAgent(id, v)
		return
	}
	agent, ok := x.wf.Agent(spec.AgentRef)
	if !ok {
		x.refuseAgent(id, v, &RunError{Code: CodeValidation, Message: fmt.Sprintf("no agent %q", spec.AgentRef), Node: id})
		return
	}
	prompt, stored, failure := x.prompt(ctx, id, spec)
	if failure == nil && strings.TrimSpace(prompt) == "" {
		failure = &RunError{Code: CodeValidation, Message: "the prompt is empty", Node: id}
	}
	if failure != nil {
		x.refuseAgent(id, v, failure)
		return
	}
	call := &AgentCall{
		Run: x.row.id, Project: Project{Key: x.row.project, Root: x.row.root}, Principal: x.row.principal,
		Workflow: x.wf, Node: v.node, Agent: agent, Prompt: prompt, Approvals: x.approvals(id),
	}
	v.slot.send(order{call: call, stored: stored, span: v.span})
}

// refuseAgent fails an agent node before its effect began.
func (x *execution) refuseAgent(id string, v *vertex, err *RunError) {
	v.slot.result = &effect{State: "failed", Error: err}
	v.slot.send(order{leave: true})
	x.settleAgent(id, v)
}

// effect is the body of the step: all attempts of one agent node. What it returns
// is recorded; an error leaves the segment to a later process.
func (x *execution) effect(ctx context.Context, id string, node *workflows.Node, s *slot) (string, error) {
	close(s.entered)
	var o order
	select {
	case o = <-s.orders:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-x.over:
		return "", errTaken // the execution starts over or is another process's; this is not recorded
	}
	out := effect{}
	switch {
	case o.skip:
		out.State = "skipped"
	case o.leave:
		out.State = "left"
	default:
		if o.stored != nil {
			select {
			case err := <-o.stored:
				if err != nil {
					return "", err
				}
			case <-x.over:
				return "", errTaken
			}
		}
		var err error
		if out, err = x.attempts(inSpan(ctx, o.span), id, node, *o.call); err != nil {
			return "", err
		}
	}
	raw, err := encode(out)
	return string(raw), err
}

func (x *execution) attempts(ctx context.Context, id string, node *workflows.Node, call AgentCall) (effect, error) {
	retry := node.Retry
	if retry == nil {
		retry = call.Agent.Retry
	}
	run, cancel := context.WithCancelCause(ctx) // ends with the run too, not only with the process
	defer cancel(nil)
	defer x.atEnd(func() { cancel(errFailed) })()
	began := x.e.now()
	d, err := x.entered(ctx, id)
	if err != nil {
		return effect{}, err
	}
	call.Emit = func(ev Event) {
		ev.Node = id
		x.tell(ev)
	}
	for ; ; d = d.next() {
		call.Attempt = d.n
		call.Key = fmt.Sprintf("%s/%s/%d", x.row.id, id, d.n)
		call.Do = d.do
		if run.Err() != nil {
			return effect{State: "failed", Attempt: d.n, Error: x.stopped(id)}, nil
		}
		result, err := x.runAgent(run, call)
		if ctx.Err() != nil {
			return effect{}, context.Cause(ctx) // the process ends: not an outcome
		}
		if d.isBroken() {
			<-x.over // the loop hears of it too
		}
		if x.isOver() {
			return effect{}, errTaken
		}
		out := effect{State: "done", Output: result.Output, Attempt: d.n, Tokens: result.Tokens, TookMS: x.e.now().Sub(began).Milliseconds()}
		if err == nil {
			err = x.acceptOutput(id, result.Output)
		}
		if err == nil {
			return out, nil
		}
		failure, ok := errors.AsType[*RunError](err)
		switch {
		case run.Err() != nil:
			failure = x.stopped(id)
		case errors.Is(err, ErrParked):
			return effect{State: "parked"}, nil
		case !ok:
			failure = x.e.internal(ctx, x.row.id, id, err)
		default:
			own := *failure // the runner may keep it
			failure = &own
		}
		failure.Node = id
		out.State, out.Output, out.Error = "failed", nil, failure
		delay, again := retryAfter(retry, failure, d.n)
		if !again {
			return out, nil
		}
		if bar := d.bar(); bar != "" {
			failure.Message += "; not tried again, because " + bar + " was called, which may not be repeated"
			return out, nil
		}
		x.tellStored(Event{Type: NodeRetrying, Node: id, Attempt: d.n, Error: failure, DelayMS: new(delay.Milliseconds())})
		if pause(run, delay) != nil {
			if ctx.Err() != nil {
				return effect{}, context.Cause(ctx)
			}
			out.Error = x.stopped(id)
			return out, nil
		}
		x.tellStored(Event{Type: NodeStarted, Node: id, NodeType: node.Type(), Attempt: d.n + 1})
	}
}

// isOver reports whether the loop takes in nothing more.
func (x *execution) isOver() bool {
	select {
	case <-x.over:
		return true
	default:
		return false
	}
}

// atEnd calls f when the run's own life ends, unless stop is called before.
func (x *execution) atEnd(f func()) (stop func() bool) { return context.AfterFunc(x.ctx, f) }

// runAgent calls the agent room; a panic there is an internal error of the node.
func (x *execution) runAgent(ctx context.Context, call AgentCall) (result AgentResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return x.e.opt.Agent.RunAgent(ctx, call)
}

func (x *execution) acceptOutput(id string, out json.RawMessage) error {
	if len(out) > maxOutput {
		return &RunError{Code: CodeValidation, Message: "the output is larger than 4 MiB"}
	}
	return x.checkOutput(id, out)
}

// recorded takes in what the step recorded, now or in an earlier process.
func (x *execution) recorded(ctx context.Context, id, raw string, err error) error {
	v := x.nodes[id]
	v.slot.open = false
	out := new(effect)
	if err == nil {
		err = json.Unmarshal([]byte(raw), out)
	}
	if err != nil {
		// The step could not be recorded, or its record cannot be read.
		out = &effect{State: "failed", Error: x.e.internal(ctx, x.row.id, id, err)}
	}
	if v.slot.result == nil {
		v.slot.result = out
	}
	if v.state == "running" {
		x.settleAgent(id, v)
		return nil
	}
	x.partial = x.partial || out.State == "left" && !v.settled()
	return nil
}

// settleAgent says how an agent node ended; what was said before is not said again.
func (x *execution) settleAgent(id string, v *vertex) {
	x.agents--
	x.busy--
	out := v.slot.result
	switch out.State {
	case "done":
		v.state, v.output, v.tokens = "completed", out.Output, &out.Tokens
		x.count(v.tokens)
		if !x.seen[NodeCompleted+" "+id] {
			x.store(nil, Event{
				Type: NodeCompleted, Node: id, Output: out.Output, Tokens: &out.Tokens, DurationMS: new(out.TookMS),
				Attempt: later(out.Attempt), CumulativeCost: new(x.cost),
			})
		}
		x.leave(id)
	case "left", "skipped":
		// Left by an execution of this segment that saw its gate open still.
		v.state = "left"
		x.partial = true
	case "parked":
		x.parked(id, v)
	default:
		v.state, v.reason = "failed", string(out.Error.Code)
		if !x.seen[NodeFailed+" "+id] {
			x.store(nil, Event{Type: NodeFailed, Node: id, Error: out.Error, Attempt: later(out.Attempt), CumulativeCost: new(x.cost)})
		}
		x.fail(out.Error)
	}
}
