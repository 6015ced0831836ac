package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/workflows"
)

// Why a run's own context ends.
var (
	errCancelled = errors.New("engine: run cancelled")
	errDeadline  = errors.New("engine: run deadline passed")
	errFailed    = errors.New("engine: run failed")
)

// An execution is one segment of a run in this process: it walks the graph from
// what is settled to the end of the run or to where only people can go on. Its
// loop goroutine alone touches the maps; nodes report through inbox.
type execution struct {
	e   *Engine
	seg *durable.Segment
	row *row
	wf  *workflows.Workflow
	rec *recorder

	ctx    context.Context //nolint:containedctx // the run's life, which no caller's ctx bounds
	cancel context.CancelCauseFunc
	inbox  chan func(ctx context.Context) error
	work   sync.WaitGroup
	over   chan struct{} // closed when the loop takes in nothing more

	nodes     map[string]*vertex
	order     []string // topological
	busy      int      // nodes and edges that will report by themselves
	ready     []string // to be dispatched, in topological order
	agents    int      // agent nodes that run now
	failure   *RunError
	partial   bool // some effect was left for the next segment
	cancelled bool
	terminal  bool // this segment ended the run
	seen      map[string]bool

	mu      sync.Mutex
	waiting map[string]string // gate id → node, open gates of this segment
	heard   []Gate            // decided meanwhile, for the loop
	bell    chan struct{}     // rung when heard grows

	gates  map[string]Gate   // authored ones that are known, by node
	asked  map[string][]Gate // those that the engine opened, by node, oldest first
	staged stage
	writer writer

	tokens   Tokens
	cost     int64 // what the run has cost, micro-cents
	reserved int64 // what calls under way may cost at most
	warned   bool  // that the budget is passed; true also where nobody looked yet

	span     trace.Span    // of this execution; nil where nothing is traced
	orphaned time.Duration // the janitor's: executed without a caller
}

// vertex is where one node stands in this segment.
type vertex struct {
	node     *workflows.Node
	state    string // "", ready, running, waiting, completed, failed, skipped
	output   json.RawMessage
	selected []string
	reason   string
	tokens   *Tokens         // agent nodes
	missing  int             // dependencies that have not settled
	dead     map[string]bool // sources whose conditional edge to here is falsy
	slot     *slot           // agent nodes
	span     trace.Span      // nil where it is not traced, or over
}

func (v *vertex) settled() bool {
	return v.state == "completed" || v.state == "failed" || v.state == "skipped"
}

// segment is the function that the durable executor runs.
func (e *Engine) segment(seg *durable.Segment) (err error) {
	ctx := seg.Context()
	defer func() {
		if p := recover(); p != nil {
			err = e.failBroken(ctx, seg.Run, fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	again, err := e.runSegment(ctx, seg)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && again:
		e.begin(ctx, seg.Run, seg.K+1)
	case err != nil && !errors.Is(err, errTaken):
		return e.startOver(ctx, seg, err) // nothing was begun yet
	}
	return nil
}

// retryAfterFault is how long a segment rests that the store failed.
const retryAfterFault = time.Second

// startOver has this segment executed anew, from what is recorded, after the store
// failed it: an execution cannot be repeated in place, its effects have taken their
// numbers. What this one still tries to record is refused from here on. It returns
// nil once that is arranged, or the context's cause.
func (e *Engine) startOver(ctx context.Context, seg *durable.Segment, cause error) error {
	for {
		e.log.LogAttrs(ctx, slog.LevelError, "segment starts over", runAttr(seg.Run), slog.Int("segment", seg.K), errAttr(cause))
		if err := pause(ctx, retryAfterFault); err != nil {
			return err
		}
		err := e.raise(ctx, seg.Run)
		if err == nil {
			err = e.resume(seg.Ref)
		}
		if err == nil {
			return nil
		}
		cause = err
	}
}

func (e *Engine) runSegment(ctx context.Context, seg *durable.Segment) (again bool, err error) {
	r, err := e.begun(ctx, seg)
	if errors.Is(err, ErrRunNotFound) {
		return false, nil // deleted by retention
	}
	if err != nil {
		return false, err
	}
	if r.state.Terminal() || r.seg != seg.K || r.state == Waiting {
		return false, nil // this segment closed before the process that ran it could say so
	}
	wf, err := e.definition(ctx, r.digest)
	if err != nil {
		return false, e.block(ctx, r, "its definition cannot be read by this version", r.seg+1, err)
	}
	x := &execution{
		e: e, seg: seg, row: r, wf: wf,
		inbox:   make(chan func(context.Context) error),
		nodes:   make(map[string]*vertex, len(wf.Nodes)),
		order:   wf.Topological(),
		over:    make(chan struct{}),
		seen:    make(map[string]bool),
		waiting: make(map[string]string),
		gates:   make(map[string]Gate),
		bell:    make(chan struct{}, 1),
		writer:  writer{hurry: make(chan struct{}), kick: make(chan struct{}, 1)},
		asked:   make(map[string][]Gate),
	}
	ctx, endSpan := x.traceRun(ctx)
	defer endSpan()
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	defer x.cancel(nil)
	x.open()
	defer x.release()
	leave := func() {}
	defer func() { leave() }() // after what runs here has ended
	defer x.work.Wait()
	defer close(x.over)
	defer x.cancel(errShutdown)
	defer x.watch()()
	if err = x.restore(ctx); err == nil {
		leave, err = x.attend(ctx)
	}
	if err == nil {
		err = x.loop(ctx)
	}
	if err == nil {
		again, err = x.close(ctx)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errTaken) {
		// Before the steps are let go: nothing of this execution may be recorded now.
		err = e.startOver(ctx, seg, err)
	}
	return again, err
}

// watch ends the run's context at its deadline, at once where it passed or where
// a cancel was asked for before this execution began. The caller calls stop.
func (x *execution) watch() (stop func()) {
	if x.row.cancelBy != "" {
		x.cancel(errCancelled)
	}
	if x.row.deadline.IsZero() {
		return func() {}
	}
	left := x.row.deadline.Sub(x.e.now())
	if left <= 0 {
		x.cancel(errDeadline)
		return func() {}
	}
	t := time.AfterFunc(left, func() { x.cancel(errDeadline) })
	return func() { t.Stop() }
}

// open makes this execution the run's producer of events.
func (x *execution) open() {
	s := x.e.stream(x.row.id, x.row.lastEvent+1)
	x.rec = &recorder{
		e: x.e, run: x.row.id, seg: x.row.seg, epoch: x.row.epoch, stream: s,
		of: Observed{Run: x.row.id, Workflow: x.row.workflow, Source: x.row.source, Principal: x.row.principal},
	}
	s.mu.Lock()
	s.live = true
	if s.next() != x.row.lastEvent+1 {
		// Another process stored events that this stream has not seen.
		s.restart(x.row.lastEvent + 1)
	}
	s.mu.Unlock()
	x.e.mu.Lock()
	x.e.executions[x.row.id] = x
	x.e.mu.Unlock()
}

func (x *execution) release() {
	x.e.mu.Lock()
	if x.e.executions[x.row.id] == x {
		delete(x.e.executions, x.row.id)
	}
	x.e.mu.Unlock()
	x.rec.stream.mu.Lock()
	x.rec.stream.live = false
	x.rec.stream.mu.Unlock()
	x.e.release(x.rec.stream)
}

// restore sets the graph to what earlier segments settled, and claims the place
// of every effect that may still happen.
func (x *execution) restore(ctx context.Context) error {
	x.cost = x.row.cost
	if err := x.chargeReserved(ctx); err != nil {
		return err
	}
	if err := x.recall(ctx); err != nil {
		return err
	}
	if x.row.lastEvent < 0 {
		x.say(Event{
			Type: RunStarted, WorkflowID: x.e.workflowID(x.row), Inputs: x.row.inputs, ExecutionMode: "local", Time: x.row.created.UTC(),
		})
	}
	for _, id := range x.order {
		n, _ := x.wf.Node(id)
		x.nodes[id] = &vertex{node: n, missing: len(sources(x.wf.In(id)))}
	}
	for _, s := range x.row.settled {
		v := x.nodes[s.Node]
		if v == nil {
			return fmt.Errorf("run %s: settled node %q is not in its definition", x.row.id, s.Node)
		}
		v.state, v.output, v.selected, v.reason, v.tokens = s.State, s.Output, s.Selected, s.Reason, s.Tokens
		x.count(s.Tokens)
	}
	if err := x.claimSlots(ctx); err != nil {
		return err
	}
	for _, id := range x.order {
		if x.nodes[id].missing == 0 && !x.nodes[id].settled() {
			x.arrive(id)
		}
	}
	for _, s := range x.row.settled {
		x.leave(s.Node)
	}
	return nil
}

// recall reads what executions before this one left: gates, and, where one of this
// very segment was cut short, what it has said.
func (x *execution) recall(ctx context.Context) error {
	if x.row.seg == 0 && !x.seg.Again {
		return nil
	}
	gates, err := x.e.Gates(ctx, GateFilter{Run: x.row.id, Limit: maxGates})
	if err != nil {
		return err
	}
	for _, g := range gates {
		if g.Reason == "" {
			x.gates[g.Node] = g
			continue
		}
		x.asked[g.Node] = append(x.asked[g.Node], g)
		x.seen[NodeStarted+" "+g.Node] = true
	}
	if !x.seg.Again {
		return nil
	}
	events, err := x.e.Events(ctx, x.row.id, 0)
	if err != nil {
		return err
	}
	for i := range events {
		x.note(&events[i])
	}
	return nil
}

func (x *execution) count(t *Tokens) {
	if t != nil {
		x.tokens.Input += t.Input
		x.tokens.Output += t.Output
	}
}

// note remembers what must not be said twice.
func (x *execution) note(ev *Event) {
	switch ev.Type {
	case NodeStarted, NodeCompleted, NodeFailed, NodeSkipped:
		x.seen[ev.Type+" "+ev.Node] = true
	case GateResumed, GatePaused:
		x.seen[ev.Type+" "+ev.Gate] = true
	}
}

// recorded reports whether the node's events are stored before delivery.
func recorded(n *workflows.Node) bool {
	switch n.Spec.(type) {
	case workflows.AgentNode, workflows.GateNode:
		return true
	default:
		return false
	}
}

func sources(edges []workflows.Edge) map[string]bool {
	out := make(map[string]bool, len(edges))
	for i := range edges {
		out[edges[i].From] = true
	}
	return out
}

// loop dispatches what is ready and takes in what reports, until nothing more
// happens by itself: the run has ended, or only gates are left. It fails when ctx
// (the process) ends.
func (x *execution) loop(ctx context.Context) error {
	done := x.ctx.Done()
	for {
		if err := x.dispatch(ctx); err != nil {
			return err
		}
		select { // what has reported by now is stored together
		case f := <-x.inbox:
			if err := f(ctx); err != nil {
				return err
			}
			continue
		default:
		}
		if x.busy == 0 && len(x.ready) == 0 {
			return x.drain(ctx)
		}
		if more, err := x.wait(ctx); more || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		x.flush(ctx)
		select {
		case f := <-x.inbox:
			if err := f(ctx); err != nil {
				return err
			}
		case <-x.bell:
			x.settleHeard()
		case <-done:
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			done = nil // the nodes report by themselves now
			x.ready = nil
		}
	}
}

// pending reports whether something has not settled.
func (x *execution) pending() bool {
	return slices.ContainsFunc(x.order, func(id string) bool { return !x.nodes[id].settled() })
}

// ended reports why nothing more may start, if so.
func (x *execution) ended() bool { return x.failure != nil || x.ctx.Err() != nil }

// report hands f to the loop; it is called from node goroutines.
func (x *execution) report(f func(ctx context.Context) error) {
	select {
	case x.inbox <- f:
	case <-x.over:
	}
}

// spawn runs f beside the loop and then, in the loop, what f returns.
func (x *execution) spawn(f func() func()) {
	x.busy++
	x.work.Go(func() {
		after := x.guard(f)
		x.report(func(context.Context) error {
			x.busy--
			after()
			return nil
		})
	})
}

// linger is how long what was said may wait for more before it is stored, while
// expressions are evaluated and nothing else depends on it.
const linger = 2 * time.Millisecond

// wait gives expressions a moment to report, so that what they say is stored
// together with what waits already. It reports whether one did.
func (x *execution) wait(ctx context.Context) (bool, error) {
	if x.staged.empty() || x.agents > 0 {
		return false, nil
	}
	t := time.NewTimer(linger)
	defer t.Stop()
	select {
	case f := <-x.inbox:
		return true, f(ctx)
	case <-t.C:
		return false, nil
	}
}

// guard turns a panic into an internal failure of the run.
func (x *execution) guard(f func() func()) (after func()) {
	defer func() {
		if p := recover(); p != nil {
			id := uuid.NewString()
			x.e.log.LogAttrs(x.ctx, slog.LevelError, "panic in a node", runAttr(x.row.id), slog.String("correlation", id),
				slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			after = func() {
				x.fail(&RunError{Code: CodeInternal, Message: "internal error", CorrelationID: id})
			}
		}
	}()
	return f()
}

// fail ends the run for a reason of its own; the first one counts.
func (x *execution) fail(err *RunError) {
	if x.failure == nil || x.failure.Code == CodeCancelled && err.Code != CodeCancelled {
		x.failure = err
	}
	x.traceFailed(err)
	x.ready = nil
	x.cancel(errFailed)
}

// arrive is called when every dependency of a node has settled.
func (x *execution) arrive(id string) {
	v := x.nodes[id]
	if v.state != "" {
		return
	}
	v.state = "ready"
	at, _ := slices.BinarySearchFunc(x.ready, id, func(a, b string) int {
		return slices.Index(x.order, a) - slices.Index(x.order, b)
	})
	x.ready = slices.Insert(x.ready, at, id)
}

// leave is called once a node has settled: its dependents may arrive.
func (x *execution) leave(id string) {
	x.traceSettled(id)
	v := x.nodes[id]
	conditions := slices.ContainsFunc(x.wf.Out(id), func(e workflows.Edge) bool { return e.Condition != "" })
	if !conditions || v.state != "completed" || x.ended() {
		x.pass(id)
		return
	}
	scope := x.scope(append(slices.Clone(x.wf.Ancestors(id)), id))
	x.spawn(func() func() {
		dead := make(map[string]bool)
		for _, edge := range x.wf.Out(id) {
			if edge.Condition == "" {
				continue
			}
			live, err := x.e.sandbox.Truthy(x.ctx, edge.Condition, scope)
			if err != nil {
				return func() { x.fail(x.sandboxError(id, err)) }
			}
			if !live {
				dead[edge.To] = true
			}
		}
		return func() {
			for to := range dead {
				if x.nodes[to].dead == nil {
					x.nodes[to].dead = make(map[string]bool)
				}
				x.nodes[to].dead[id] = true
			}
			x.pass(id)
		}
	})
}

func (x *execution) pass(id string) {
	told := make(map[string]bool)
	for _, edge := range x.wf.Out(id) {
		if told[edge.To] {
			continue
		}
		told[edge.To] = true
		to := x.nodes[edge.To]
		to.missing--
		if to.missing == 0 && !to.settled() {
			x.arrive(edge.To)
		}
	}
}

// alive decides whether a node whose dependencies settled runs (format 1.14).
func (x *execution) alive(id string) (bool, string) {
	routing, live, routedAway, data := false, false, false, false
	for _, edge := range x.wf.In(id) {
		from := x.nodes[edge.From]
		if edge.Data {
			data = data || from.state == "completed"
			continue
		}
		routing = true
		switch {
		case from.state != "completed":
		case edge.Routed && !slices.Contains(from.selected, id):
			routedAway = true
		case from.dead[id], x.nodes[id].dead[edge.From]:
		default:
			live = true
		}
	}
	switch {
	case live, len(x.wf.In(id)) == 0, !routing && data:
		return true, ""
	case routedAway:
		return false, "branch_not_taken"
	default:
		return false, "upstream_unreachable"
	}
}

// feeders lists the sources of the node's live routing edges, authored order.
func (x *execution) feeders(id string) []string {
	var out []string
	for _, edge := range x.wf.In(id) {
		from := x.nodes[edge.From]
		if edge.Data || from.state != "completed" || x.nodes[id].dead[edge.From] ||
			edge.Routed && !slices.Contains(from.selected, id) || slices.Contains(out, edge.From) {
			continue
		}
		out = append(out, edge.From)
	}
	return out
}

// dispatch starts everything that is ready.
func (x *execution) dispatch(ctx context.Context) error {
	var held []string // agent nodes over max_parallel
	for len(x.ready) > 0 && !x.ended() {
		id := x.ready[0]
		x.ready = x.ready[1:]
		v := x.nodes[id]
		if ok, reason := x.alive(id); !ok {
			x.skip(id, reason)
			continue
		}
		if _, ok := v.node.Spec.(workflows.AgentNode); ok && x.wf.MaxParallel > 0 && x.agents >= x.wf.MaxParallel {
			held = append(held, id)
			continue
		}
		v.state = "running"
		if err := x.start(ctx, id, v); err != nil {
			return err
		}
	}
	if x.ended() {
		x.ready = nil
		return nil
	}
	for _, id := range held {
		x.nodes[id].state = ""
		x.arrive(id)
	}
	return x.held(held)
}

// held leaves waiting agents in ready without spinning: loop must wait for a report.
func (x *execution) held(ids []string) error {
	if len(ids) > 0 && x.busy == 0 {
		return fmt.Errorf("run %s: %d agent nodes are held and none runs", x.row.id, len(ids))
	}
	return nil
}

func (x *execution) skip(id, reason string) {
	v := x.nodes[id]
	v.state, v.reason = "skipped", reason
	x.sayOnce(Event{Type: NodeSkipped, Node: id, Reason: reason})
	if v.slot != nil {
		v.slot.send(order{skip: true})
	}
	x.leave(id)
}

// complete settles a pure node.
func (x *execution) complete(id string, output json.RawMessage, selected []string, took time.Duration, attempt int) {
	v := x.nodes[id]
	if len(output) > maxOutput {
		x.failNode(id, &RunError{Code: CodeValidation, Message: "the output is larger than 4 MiB"}, attempt)
		return
	}
	v.state, v.output, v.selected = "completed", output, selected
	x.sayOnce(Event{
		Type: NodeCompleted, Node: id, Output: output, Selected: selected, DurationMS: new(took.Milliseconds()),
		Tokens: &Tokens{}, Attempt: later(attempt),
	})
	x.leave(id)
}

// failNode fails a pure node, and the run with it.
func (x *execution) failNode(id string, err *RunError, attempt int) {
	v := x.nodes[id]
	err.Node = id
	v.state, v.reason = "failed", string(err.Code)
	x.sayOnce(Event{Type: NodeFailed, Node: id, Error: err, Attempt: later(attempt)})
	x.fail(err)
}

// later is an attempt number as events carry it: absent for the first.
func later(attempt int) int {
	if attempt <= 1 {
		return 0
	}
	return attempt
}

// drain waits, once nothing starts any more, for what still reports: sibling
// nodes that were told to stop, and effects that were left for the next segment.
func (x *execution) drain(ctx context.Context) error {
	for _, id := range x.order {
		if v := x.nodes[id]; v.slot != nil && !v.slot.told {
			v.slot.send(order{leave: true})
		}
	}
	for x.busy > 0 || x.slotsOpen() {
		x.flush(ctx) // an effect may wait until it is stored
		select {
		case f := <-x.inbox:
			if err := f(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// workflowID is the surrogate that events carry: UUIDv5 of project key and workflow id.
func (e *Engine) workflowID(r *row) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(r.project+"/"+r.workflow)).String()
}

func runAttr(id string) slog.Attr { return slog.String("run", id) }
