package engine

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"
)

// Run returns one run with its node states. p "" means any principal; the run of
// another one is ErrRunNotFound.
func (e *Engine) Run(ctx context.Context, id string, p Principal) (*Run, error) {
	r, err := e.row(ctx, id)
	if err != nil {
		return nil, err
	}
	if p != "" && r.principal != p {
		return nil, ErrRunNotFound
	}
	out := []Run{r.public()}
	if err := e.markParked(ctx, out); err != nil {
		return nil, err
	}
	nodes, err := e.nodes(ctx, r)
	if err != nil {
		return nil, err
	}
	out[0].Nodes = nodes
	return &out[0], nil
}

// Output returns the settled output of one node; p "" means any principal. A node
// without one, or of another principal's run, is ErrRunNotFound.
func (e *Engine) Output(ctx context.Context, run, node string, p Principal) (json.RawMessage, error) {
	r, err := e.Run(ctx, run, p)
	if err != nil {
		return nil, err
	}
	for i := range r.Nodes {
		if r.Nodes[i].ID == node && r.Nodes[i].Output != nil {
			return r.Nodes[i].Output, nil
		}
	}
	return nil, ErrRunNotFound
}

// nodes folds the run's events into the states of its nodes, authored order; none
// where this process cannot read the run's definition.
func (e *Engine) nodes(ctx context.Context, r *row) ([]NodeState, error) {
	wf, err := e.definition(ctx, r.digest)
	if err != nil {
		// A newer process wrote it: the run can be shown and cancelled all the same.
		e.log.LogAttrs(ctx, slog.LevelWarn, "a definition cannot be read here", runAttr(r.id), errAttr(err))
		return nil, nil
	}
	events, err := e.Events(ctx, r.id, 0)
	if err != nil {
		return nil, err
	}
	events = append(events, e.unstored(r.id, int64(len(events)))...)
	at := make(map[string]int, len(wf.Nodes))
	out := make([]NodeState, len(wf.Nodes))
	for i := range wf.Nodes {
		out[i] = NodeState{ID: wf.Nodes[i].ID, Type: wf.Nodes[i].Type(), State: "pending"}
		at[wf.Nodes[i].ID] = i
	}
	for i := range events {
		ev := &events[i]
		n, ok := at[ev.Node]
		if !ok {
			continue
		}
		switch ev.Type {
		case NodeStarted:
			out[n].State = "running"
		case GatePaused:
			out[n].State = "waiting"
		case GateResumed:
			out[n].State = "running"
		case NodeCompleted:
			out[n].State, out[n].Output = "completed", ev.Output
		case NodeFailed:
			out[n].State, out[n].Reason = "failed", string(ev.Error.Code)
		case NodeSkipped:
			out[n].State, out[n].Reason = "skipped", ev.Reason
		}
	}
	return out, nil
}

// unstored returns the events of a run that this process has delivered and not
// stored yet.
func (e *Engine) unstored(run string, from int64) []Event {
	e.mu.Lock()
	s := e.streams[run]
	e.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	skip := max(0, from-s.base)
	if skip >= int64(len(s.events)) {
		return nil
	}
	return append([]Event(nil), s.events[skip:]...)
}

// alone adds to the time that the run has executed without a caller. A segment
// ends where only people can go on, so an execution never waits for them alone.
func (x *execution) alone(since time.Duration) time.Duration {
	x.orphaned += since
	return x.orphaned
}
