package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// close ends the segment in one transaction: the run ends, waits for people, or
// goes on in the next segment.
func (x *execution) close(ctx context.Context) (again bool, err error) {
	open := x.openGates()
	now := x.e.now()
	staged, err := x.settle(ctx)
	if err = errors.Join(err, x.preferCancel(ctx)); err != nil {
		return false, err
	}
	state, events, outcome := x.outcome(ctx, now, open)
	var next State
	err = x.rec.commit(ctx, func(tx *sql.Tx, last int64) (sql.Result, error) {
		next = state
		if state == Waiting {
			decided, err := anyDecided(ctx, tx, open)
			if err != nil {
				return nil, err
			}
			cancelled, err := x.isCancelled(ctx, tx)
			if err != nil {
				return nil, err
			}
			if decided || cancelled || len(open) == 0 { // a cancel that nobody here heard ends the next segment
				next = Running
			}
		}
		return x.end(ctx, tx, next, outcome, now, last)
	}, func(tx *sql.Tx) error { return staged.apply(ctx, tx) }, append(staged.events, events...)...)
	staged.done(err)
	if err != nil {
		return false, err
	}
	x.traceClosed(next, outcome.failure)
	x.e.trim(x.rec.stream)
	if x.terminal = next.Terminal(); x.terminal {
		x.e.ended(x.row.id)
	}
	return next == Running, nil
}

// preferCancel lets a cancel win over a failure that raced with it.
func (x *execution) preferCancel(ctx context.Context) error {
	if x.failure == nil {
		return nil
	}
	var err error
	x.cancelled, err = x.isCancelled(ctx, x.e.store.Read)
	return err
}

// isCancelled reports whether somebody asked for the end of the run.
func (x *execution) isCancelled(ctx context.Context, q querier) (bool, error) {
	var by sql.NullString
	err := q.QueryRowContext(ctx, `select cancel_by from runs where id=?`, x.row.id).Scan(&by)
	return by.Valid, err
}

// why tells what ended the run's context, if anything did.
func (x *execution) why() error { return context.Cause(x.ctx) }

// outcome is what is stored of a run that ended.
type outcome struct {
	failure *RunError
	outputs json.RawMessage
}

// outcome decides how the segment ends, and what is said of it.
func (x *execution) outcome(ctx context.Context, now time.Time, open []string) (State, []Event, outcome) {
	cause := x.why()
	spent := new(x.cost)
	switch {
	case x.cancelled, errors.Is(cause, errCancelled):
		failure := &RunError{Code: CodeCancelled, Message: "the run was cancelled"}
		return Cancelled, []Event{{Type: RunCancelled, CumulativeCost: spent}}, outcome{failure: failure}
	case errors.Is(cause, errDeadline):
		elapsed, limit := now.Sub(x.row.created).Milliseconds(), x.wf.Timeout.Milliseconds()
		failure := &RunError{Code: CodeRunTimeout, Message: "the run did not end within its timeout_ms"}
		return Failed, []Event{
			{Type: RunTimeout, ElapsedMS: &elapsed, TimeoutMS: &limit},
			{Type: RunFailed, Error: failure, PartialOutputs: x.partialOutputs(), CumulativeCost: spent},
		}, outcome{failure: failure}
	case x.failure != nil:
		return Failed, []Event{{Type: RunFailed, Error: x.failure, PartialOutputs: x.partialOutputs(), CumulativeCost: spent}}, outcome{failure: x.failure}
	case len(open) > 0:
		slices.Sort(open)
		return Waiting, []Event{{Type: RunPaused, PendingGates: len(open), GateIDs: open}}, outcome{}
	case x.partial:
		return Waiting, nil, outcome{} // effects that an execution before left: on to the next segment
	case x.pending():
		failure := x.e.internal(ctx, x.row.id, "", errors.New("nodes are left that nothing can settle"))
		return Failed, []Event{{Type: RunFailed, Error: failure, PartialOutputs: x.partialOutputs(), CumulativeCost: spent}}, outcome{failure: failure}
	}
	outputs := x.outputs()
	return Completed, []Event{{
		Type: RunCompleted, Outputs: outputs, TotalTokens: &x.tokens, TotalCost: spent, DurationMS: new(now.Sub(x.row.created).Milliseconds()),
	}}, outcome{outputs: outputs}
}

func (x *execution) outputs() json.RawMessage {
	var members []workflows.Member
	for i := range x.wf.Nodes {
		n := &x.wf.Nodes[i]
		if _, ok := n.Spec.(workflows.OutputNode); ok && x.nodes[n.ID].state == "completed" {
			members = append(members, workflows.Member{Key: n.ID, Value: x.nodes[n.ID].output})
		}
	}
	return workflows.Object(members)
}

func (x *execution) partialOutputs() json.RawMessage {
	var members []workflows.Member
	for i := range x.wf.Nodes {
		if v := x.nodes[x.wf.Nodes[i].ID]; v != nil && v.state == "completed" {
			members = append(members, workflows.Member{Key: v.node.ID, Value: v.output})
		}
	}
	return workflows.Object(members)
}

// end writes the run's row for the end of the segment.
func (x *execution) end(ctx context.Context, tx *sql.Tx, state State, o outcome, now time.Time, last int64) (sql.Result, error) {
	var rest []settled
	for _, id := range x.order {
		if v := x.nodes[id]; v.settled() {
			rest = append(rest, settled{Node: id, State: v.state, Output: v.output, Selected: v.selected, Reason: v.reason, Tokens: v.tokens})
		}
	}
	seg := x.row.seg
	var failure, outputs, ended any
	if state == Running {
		seg++
	}
	if state.Terminal() {
		ended = now.UnixMilli()
		rest = nil // the events have it; nothing goes on from here
	}
	if rest == nil {
		rest = []settled{}
	}
	raw, err := encode(rest)
	if err != nil {
		return nil, err
	}
	if o.failure != nil {
		f, err := encode(o.failure)
		if err != nil {
			return nil, err
		}
		failure = string(f)
	}
	if o.outputs != nil {
		outputs = string(o.outputs)
	}
	if state.Terminal() {
		if err := putAudit(ctx, tx, x.row.audited(now, AuditRunEnded, "", string(state))); err != nil {
			return nil, err
		}
	}
	return tx.ExecContext(ctx, `update runs set state=?, seg=?, settled=?, error=?, outputs=?, ended=?, last_event=?
		where id=? and seg=? and epoch=? and ended is null`,
		string(state), seg, string(raw), failure, outputs, ended, last, x.row.id, x.row.seg, x.row.epoch)
}

// anyDecided reports whether one of the gates got its answer meanwhile.
func anyDecided(ctx context.Context, tx *sql.Tx, gates []string) (bool, error) {
	if len(gates) == 0 {
		return false, nil
	}
	var n int
	err := tx.QueryRowContext(ctx, `select count(*) from gates where decision is not null and id in (select value from json_each(?))`,
		list(gates)).Scan(&n)
	return n > 0, err
}

// trim lets the stream forget what is stored, once its segment has closed.
func (e *Engine) trim(s *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next()-s.base > tail {
		s.trim()
	}
}

// tail is how many stored events a stream keeps for readers that are about to come.
const tail = 32

// Cancel asks for the end of a run; by, the channel via and reason are recorded. A run that has
// ended is left alone. It returns before the run has drained.
func (e *Engine) Cancel(ctx context.Context, run, by, via, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	over := false
	err := e.update(ctx, run, func(tx *sql.Tx) error {
		over = false
		r, err := scanRun(tx.QueryRowContext(ctx, `select `+runColumns+` from runs where id=?`, run))
		if errors.Is(err, sql.ErrNoRows) {
			return ErrRunNotFound
		}
		if err != nil || r.state.Terminal() || r.cancelBy != "" {
			return err
		}
		if _, err := tx.ExecContext(ctx, `update runs set cancel_by=?, cancel_reason=? where id=?`, by, reason, run); err != nil {
			return err
		}
		asked := r.audited(e.now(), AuditRunCancel, via, "")
		asked.Principal = Principal(by)
		if err := putAudit(ctx, tx, asked); err != nil {
			return err
		}
		if r.state == Waiting || r.state == Blocked {
			over = true
			return e.endWaiting(ctx, tx, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if over {
		e.ended(run)
	}
	if x := e.live(run); x != nil {
		x.cancel(errCancelled)
	}
	e.look()
	return nil
}

// endWaiting ends a run that nobody executes as cancelled: its events have no
// other producer.
func (e *Engine) endWaiting(ctx context.Context, tx *sql.Tx, r *row) error {
	now := e.now()
	failure, err := encode(&RunError{Code: CodeCancelled, Message: "the run was cancelled"})
	if err != nil {
		return err
	}
	ev := Event{Type: RunCancelled, Run: r.id, N: r.lastEvent + 1, Time: now.UTC(), CumulativeCost: &r.cost}
	if err := putEvents(ctx, tx, []Event{ev}); err != nil {
		return err
	}
	if err := putAudit(ctx, tx, r.audited(now, AuditRunEnded, "", string(Cancelled))); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `update runs set state='cancelled', error=?, ended=?, last_event=? where id=?`,
		string(failure), now.UnixMilli(), ev.N, r.id)
	return err
}

// Claim records that the terminal result reached its caller, so that no later
// call joins the run. It is stored within a quarter of a second.
func (e *Engine) Claim(_ context.Context, run string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.claims = append(e.claims, run)
	return nil
}

// Disclaim takes back the Claim of a completed run whose caller says that it had given
// up, by its clock, before it could read the result: a retry may join.
func (e *Engine) Disclaim(ctx context.Context, run string) error {
	e.claiming.Lock() // or a claim on its way to the store would come behind
	defer e.claiming.Unlock()
	e.mu.Lock()
	e.claims = slices.DeleteFunc(e.claims, func(claimed string) bool { return claimed == run })
	e.mu.Unlock()
	return e.writeRun(ctx, run, `update runs set claimed=null, detached=?, detach_reason=?
		where id=? and state='completed' and coalesce(detach_reason, '')<>'handover'`, e.now().UnixMilli(), DetachClock, run)
}

func (e *Engine) storeClaims(ctx context.Context) error {
	e.claiming.Lock()
	defer e.claiming.Unlock()
	e.mu.Lock()
	claims := e.claims
	e.claims = nil
	e.mu.Unlock()
	if len(claims) == 0 {
		return nil
	}
	now := e.now().UnixMilli()
	err := e.update(ctx, "", func(tx *sql.Tx) error {
		for _, run := range claims {
			if _, err := tx.ExecContext(ctx, `update runs set claimed=? where id=?`, now, run); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil { // the next round tries again
		e.mu.Lock()
		e.claims = append(claims, e.claims...)
		e.mu.Unlock()
	}
	return err
}
