package engine

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/relavium/relavium-serve/engine/durable"
)

// How often the janitor does what.
const (
	lookEvery     = 250 * time.Millisecond // what other processes wrote; nothing polls faster
	beginEvery    = time.Second
	orphanEvery   = time.Second
	deadEvery     = 5 * time.Second
	sweepEvery    = 30 * time.Second
	sweepAge      = 30 * time.Second
	retainEvery   = 10 * time.Minute
	complainEvery = 30 * time.Second
	startGrace    = 2 * time.Second // a run this young is about to be begun by whoever made it
	lookAtOnce    = 500
	expireAtOnce  = 100
)

// tend is the janitor's memory; only its goroutine touches it.
type tend struct {
	version                     int64
	event                       int64     // events up to this row id were handed out
	decided                     int64     // decisions up to this time were handed out
	due                         time.Time // the next expiry or deadline; zero means none known
	begin                       time.Time
	orphans, dead, sweep, clear time.Time
}

// janitor sees to everything that no call waits for: what other processes wrote,
// expiries, orphans, the runs of dead executors, retention.
func (e *Engine) janitor() {
	ctx := e.base
	t := &tend{version: -1, dead: e.now()} // Open has just seen to the dead
	if err := e.file.Read.QueryRowContext(ctx, `select coalesce(max(id), 0) from events`).Scan(&t.event); err != nil {
		e.complain("look", err)
	}
	t.decided = e.now().Add(-time.Minute).UnixMilli()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		e.round(ctx, t)
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			t.version = -1
		case <-tick.C:
		}
	}
}

// complain logs what the janitor could not do; of one part once in a while only,
// however often it fails.
func (e *Engine) complain(what string, err error) {
	if err == nil || e.base.Err() != nil {
		return
	}
	now := e.now()
	e.mu.Lock()
	quiet := now.Sub(e.complained[what]) < complainEvery
	if !quiet {
		e.complained[what] = now
	}
	e.mu.Unlock()
	if quiet {
		return
	}
	e.log.LogAttrs(e.base, slog.LevelWarn, "janitor", slog.String("part", what), errAttr(err))
}

func (e *Engine) round(ctx context.Context, t *tend) {
	now := e.now()
	v, err := e.file.Version(ctx)
	e.complain("version", err)
	changed := err == nil && v != t.version
	e.complain("claims", e.storeClaims(ctx))
	if changed {
		t.version = v
		e.complain("events", e.follow(ctx, t))
		e.complain("due", e.nextDue(ctx, t))
	}
	if e.executor == nil {
		return
	}
	if changed {
		e.complain("decisions", e.hearDecisions(ctx, t))
	}
	if changed || now.Sub(t.begin) >= beginEvery {
		// Not only on a change: a run whose maker died is left alone while it is young,
		// and a cancel may have come in before its run could hear.
		t.begin = now
		e.complain("cancels", e.hearCancels(ctx))
		e.complain("begin", e.beginRuns(ctx))
	}
	if !t.due.IsZero() && !now.Before(t.due) {
		e.complain("expiries", e.expire(ctx, now))
		e.complain("due", e.nextDue(ctx, t))
	}
	every(&t.orphans, now, orphanEvery, func(since time.Duration) {
		e.dropFresh(now)
		e.complain("orphans", e.endOrphans(ctx, since))
	})
	every(&t.dead, now, deadEvery, func(time.Duration) { e.complain("takeover", e.takeOver(ctx)) })
	every(&t.sweep, now, sweepEvery, func(time.Duration) { e.complain("sweep", e.sweep(ctx)) })
	every(&t.clear, now, retainEvery, func(time.Duration) { e.complain("retention", e.retain(ctx)) })
}

// every calls f if interval has passed since last, with the time that passed.
func every(last *time.Time, now time.Time, interval time.Duration, f func(since time.Duration)) {
	if !last.IsZero() && now.Sub(*last) < interval {
		return
	}
	since := time.Duration(0)
	if !last.IsZero() {
		since = now.Sub(*last)
	}
	*last = now
	f(since)
}

// follow hands events that other processes stored to the attached calls here.
func (e *Engine) follow(ctx context.Context, t *tend) error {
	var newest int64
	if err := e.file.Read.QueryRowContext(ctx, `select coalesce(max(id), 0) from events`).Scan(&newest); err != nil {
		return err
	}
	if newest < t.event {
		t.event = 0 // retention deleted the newest rows; their ids come again
	}
	for {
		n, err := e.followSome(ctx, t)
		if err != nil || n < lookAtOnce {
			return err
		}
	}
}

func (e *Engine) followSome(ctx context.Context, t *tend) (int, error) {
	rows, err := e.file.Read.QueryContext(ctx, `select id, run, json from events where id>? order by id limit ?`, t.event, lookAtOnce)
	if err != nil {
		return 0, err
	}
	defer func() { _ = rows.Close() }()
	count := 0
	for rows.Next() {
		var run, raw string
		if err := rows.Scan(&t.event, &run, &raw); err != nil {
			return count, err
		}
		count++
		e.mu.Lock()
		s := e.streams[run]
		e.mu.Unlock()
		if s == nil {
			continue
		}
		events, err := getEvents(run, raw)
		if err != nil {
			return count, err
		}
		s.mu.Lock()
		for _, ev := range events {
			if next := s.next(); !s.live && ev.N >= next {
				if ev.N > next { // others were handed out before the stream was made
					s.base, s.events = ev.N, nil
				}
				s.append(ev)
			}
		}
		s.mu.Unlock()
	}
	return count, rows.Err()
}

// nextDue finds when the next gate expires or run deadline passes.
func (e *Engine) nextDue(ctx context.Context, t *tend) error {
	var gate, run sql.NullInt64
	err := e.file.Read.QueryRowContext(ctx, `select
		(select min(expires) from gates where decision is null and expires is not null),
		(select min(deadline) from runs where deadline is not null and ended is null)`).Scan(&gate, &run)
	t.due = stamp(gate)
	if d := stamp(run); !d.IsZero() && (t.due.IsZero() || d.Before(t.due)) {
		t.due = d
	}
	return err
}

// list is a set of strings as an argument for json_each.
func list(values []string) string {
	raw, err := encode(values)
	if err != nil || values == nil {
		return "[]"
	}
	return string(raw)
}

// hearDecisions hands decisions that other processes wrote to the runs here.
func (e *Engine) hearDecisions(ctx context.Context, t *tend) error {
	rows, err := e.file.Read.QueryContext(ctx, `select `+gateColumns+` from gates g join runs r on r.id=g.run
		where g.decided is not null and g.decided>=? order by g.decided`, t.decided)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		g, err := scanGate(rows)
		if err != nil {
			return err
		}
		if x := e.live(g.Run); x != nil {
			x.hear(g)
		}
	}
	// Clocks of processes differ a little, and a commit comes after its time: look back some.
	t.decided = e.now().Add(-10 * time.Second).UnixMilli()
	return rows.Err()
}

func (e *Engine) hearCancels(ctx context.Context) error {
	rows, err := e.file.Read.QueryContext(ctx, `select id from runs indexed by runs_cancel where cancel_by is not null and ended is null`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if x := e.live(id); x != nil {
			x.cancel(errCancelled)
		}
	}
	return rows.Err()
}

// beginRuns starts segments that the store says are next and that no process
// began: after a decision by a process that executes nothing, or a crash between
// two writes. A segment that two processes begin runs in one of them.
func (e *Engine) beginRuns(ctx context.Context) error {
	refs, err := e.toBegin(ctx)
	for _, r := range refs {
		e.begin(ctx, r.Run, r.K)
	}
	return err
}

func (e *Engine) toBegin(ctx context.Context) ([]durable.Ref, error) {
	rows, err := e.file.Read.QueryContext(ctx, `select r.id, r.seg from runs r indexed by runs_open where r.ended is null and r.state='running'
		and r.project in (select value from json_each(?)) and (r.seg>0 or r.created<?)
		and not exists(select 1 from workflow_status w where w.workflow_uuid=r.id||'#'||r.seg) limit ?`,
		list(e.mine()), e.now().Add(-startGrace).UnixMilli(), lookAtOnce)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var refs []durable.Ref
	for rows.Next() {
		var r durable.Ref
		if err := rows.Scan(&r.Run, &r.K); err != nil {
			return nil, err
		}
		refs = append(refs, r)
	}
	return refs, rows.Err()
}

// expire applies what fell due: run deadlines first, then gates.
func (e *Engine) expire(ctx context.Context, now time.Time) error {
	// A run that runs here sees its deadline by itself; one that waits gets a segment that sees it.
	if err := e.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update runs set state='running', seg=seg+1 where deadline is not null and ended is null and deadline<=?2
			and state='waiting' and project in (select value from json_each(?1))`, list(e.mine()), now.UnixMilli())
		return err
	}); err != nil {
		return err
	}
	gates, err := e.expired(ctx, now)
	if err != nil {
		return err
	}
	var errs []error
	for _, g := range gates {
		d := Decision{Decision: Rejected, By: ViaTimeout, Via: ViaTimeout}
		if g.TimeoutAction == "approve" {
			d.Decision = Approved
		}
		decided, next, err := e.decide(ctx, g.ID, d, g.Expires)
		if _, late := errors.AsType[*DecidedError](err); err != nil && !late {
			errs = append(errs, err)
			continue
		}
		e.decided(ctx, decided, next)
	}
	e.look()
	return errors.Join(errs...)
}

func (e *Engine) expired(ctx context.Context, now time.Time) ([]Gate, error) {
	rows, err := e.file.Read.QueryContext(ctx, `select `+gateColumns+` from gates g join runs r on r.id=g.run
		where g.decision is null and g.expires<=? and r.project in (select value from json_each(?)) and r.ended is null
		and (r.deadline is null or r.deadline>g.expires) limit ?`, now.UnixMilli(), list(e.mine()), expireAtOnce)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var gates []Gate
	for rows.Next() {
		g, err := scanGate(rows)
		if err != nil {
			return nil, err
		}
		gates = append(gates, g)
	}
	return gates, rows.Err()
}

// endOrphans counts the time that runs without a caller execute, and ends those
// whose grace is over. Waiting for a person does not count.
func (e *Engine) endOrphans(ctx context.Context, since time.Duration) error {
	e.mu.Lock()
	var runs []*execution
	for id, x := range e.executions {
		if e.calls[id] == 0 {
			runs = append(runs, x)
		}
	}
	e.mu.Unlock()
	for _, x := range runs {
		if x.row.source == "cli" {
			continue
		}
		var detached sql.NullInt64
		var reason sql.NullString
		var kept bool
		if err := e.file.Read.QueryRowContext(ctx, `select detached, detach_reason, kept from runs where id=?`, x.row.id).Scan(&detached, &reason, &kept); err != nil {
			return err
		}
		if !detached.Valid || kept {
			x.orphaned = 0
			continue
		}
		grace := e.opt.OrphanGrace
		if reason.String == DetachClose {
			grace = e.opt.CloseGrace
		}
		if x.alone(since) > grace {
			if err := e.Cancel(ctx, x.row.id, "orphan", "nobody waited for the run any more ("+reason.String+")"); err != nil {
				return err
			}
		}
	}
	return nil
}
