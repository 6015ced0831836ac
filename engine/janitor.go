package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	all                         bool                      // look at everything, whatever is known to have changed
	heard                       []string                  // runs that were written to, for the next round
	unfit                       map[durable.Ref]time.Time // segments that wait for another replica, since when
	due                         time.Time                 // the next expiry or deadline; zero means none known
	begin                       time.Time
	orphans, dead, sweep, clear time.Time
}

// janitor sees to everything that no call waits for: what other processes wrote,
// expiries, orphans, the runs of dead executors, retention.
func (e *Engine) janitor() {
	ctx := e.base
	t := &tend{dead: e.now()} // Open has just seen to the dead
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		e.round(ctx, t)
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			t.all = true
		case <-e.store.Arrived():
			e.hark(ctx, t)
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
	news, err := e.store.News(ctx)
	e.complain("version", err)
	if t.all {
		news.Any, news.All = true, true
	}
	news.Any, news.Runs = news.Any || len(t.heard) > 0, append(news.Runs, t.heard...)
	t.all, t.heard = err != nil, nil
	e.complain("claims", e.storeClaims(ctx))
	if news.Any {
		e.complain("events", e.follow(ctx, news))
		e.complain("due", e.nextDue(ctx, t))
	}
	if e.executor.Load() == nil {
		return
	}
	if news.Any {
		e.complain("decisions", e.hearDecisions(ctx, news))
	}
	if news.Any || now.Sub(t.begin) >= beginEvery {
		// Not only on a change: a run whose maker died is left alone while it is young,
		// and a cancel may have come in before its run could hear.
		t.begin = now
		e.complain("cancels", e.hearCancels(ctx))
		e.complain("begin", e.beginRuns(ctx, t))
	}
	if !t.due.IsZero() && !now.Before(t.due) {
		e.complain("expiries", e.expire(ctx, now))
		e.complain("due", e.nextDue(ctx, t))
	}
	every(&t.orphans, now, orphanEvery, func(since time.Duration) {
		e.dropFresh(now)
		e.complain("orphans", e.endOrphans(ctx, since))
	})
	every(&t.dead, now, e.deadEvery(), func(time.Duration) { e.complain("takeover", e.takeOver(ctx)) })
	every(&t.sweep, now, sweepEvery, func(time.Duration) { e.complain("sweep", e.sweep(ctx)) })
	every(&t.clear, now, retainEvery, func(time.Duration) { e.complain("retention", e.retain(ctx)) })
}

// deadEvery is how often is looked for dead executors: with leases more often, since
// their end is late already.
func (e *Engine) deadEvery() time.Duration {
	if e.store.Shared() {
		return min(time.Second, e.store.Lease()/3)
	}
	return deadEvery
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

// hark sees to what other replicas wrote of runs that are attached to or run here,
// at once; the rest waits for the next round.
func (e *Engine) hark(ctx context.Context, t *tend) {
	news, err := e.store.News(ctx)
	if err != nil || !news.Any {
		e.complain("version", err)
		return
	}
	t.all = t.all || news.All
	t.heard = append(t.heard, news.Runs...)
	if len(t.heard) > lookAtOnce {
		t.all, t.heard = true, nil
	}
	e.complain("events", e.follow(ctx, news))
	if e.executor.Load() != nil {
		e.complain("decisions", e.hearDecisions(ctx, news))
		e.complain("cancels", e.hearCancels(ctx))
	}
}

// about picks those of ids that the news is about.
func about(news durable.News, ids []string) []string {
	if news.All {
		return ids
	}
	return slices.DeleteFunc(ids, func(id string) bool { return !slices.Contains(news.Runs, id) })
}

// followed are the runs that run elsewhere and whose events somebody waits for here.
func (e *Engine) followed() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []string
	for id, s := range e.streams {
		s.mu.Lock()
		if !s.live {
			ids = append(ids, id)
		}
		s.mu.Unlock()
	}
	return ids
}

// follow hands events that other processes stored to the attached calls here.
func (e *Engine) follow(ctx context.Context, news durable.News) error {
	for ids := range slices.Chunk(about(news, e.followed()), lookAtOnce) {
		if err := e.followSome(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) followSome(ctx context.Context, ids []string) error {
	places := make([]string, 0, len(ids))
	streams := make(map[string]*stream, len(ids))
	e.mu.Lock()
	for _, id := range ids {
		if s := e.streams[id]; s != nil {
			streams[id] = s
		}
	}
	e.mu.Unlock()
	for id, s := range streams {
		s.mu.Lock()
		places = append(places, fmt.Sprintf("%020d%s", s.next(), id)) // the number has a fixed width
		s.mu.Unlock()
	}
	if len(places) == 0 {
		return nil
	}
	rows, err := e.store.Read.QueryContext(ctx, `select e.run, e.json from (select value from json_each(?)) f cross join events e
		where e.run=substr(f.value, 21) and e.n+e.count>cast(substr(f.value, 1, 20) as bigint) order by e.run, e.n`, list(places))
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var run, raw string
		if err := rows.Scan(&run, &raw); err != nil {
			return err
		}
		events, err := getEvents(run, raw)
		if err != nil {
			return err
		}
		s := streams[run]
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
	return rows.Err()
}

// nextDue finds when the next gate expires or run deadline passes.
func (e *Engine) nextDue(ctx context.Context, t *tend) error {
	var gate, run sql.NullInt64
	err := e.store.Read.QueryRowContext(ctx, `select
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
func (e *Engine) hearDecisions(ctx context.Context, news durable.News) error {
	ids := about(news, e.asking())
	if len(ids) == 0 {
		return nil
	}
	rows, err := e.store.Read.QueryContext(ctx, `select `+gateColumns+` from gates g join runs r on r.id=g.run
		where g.run in (select value from json_each(?)) and g.decided is not null order by g.decided`, list(ids))
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
	return rows.Err()
}

// asking are the runs that run here and have a gate open.
func (e *Engine) asking() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []string
	for id, x := range e.executions {
		x.mu.Lock()
		if len(x.waiting) > 0 {
			ids = append(ids, id)
		}
		x.mu.Unlock()
	}
	return ids
}

func (e *Engine) hearCancels(ctx context.Context) error {
	rows, err := e.store.Read.QueryContext(ctx, `select id from runs indexed by runs_cancel where cancel_by is not null and ended is null`)
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
func (e *Engine) beginRuns(ctx context.Context, t *tend) error {
	refs, err := e.toBegin(ctx)
	if err != nil {
		return err
	}
	unfit := make(map[durable.Ref]time.Time)
	var errs []error
	for _, ref := range refs {
		if !e.store.Shared() {
			e.begin(ctx, ref.Run, ref.K)
			continue
		}
		r, err := e.row(ctx, ref.Run)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lacks := e.lacks(ctx, r)
		if len(lacks) == 0 {
			e.begin(ctx, ref.Run, ref.K)
			continue
		}
		since, known := t.unfit[ref]
		if !known {
			since = e.now()
		}
		unfit[ref] = since
		if e.now().Sub(since) > e.store.Lease()+e.opt.blockedAfter {
			errs = append(errs, e.block(ctx, r, lacking(lacks), r.seg, errors.New("no replica begins it")))
		}
	}
	t.unfit = unfit
	return errors.Join(errs...)
}

func (e *Engine) toBegin(ctx context.Context) ([]durable.Ref, error) {
	rows, err := e.store.Read.QueryContext(ctx, `select r.id, r.seg from runs r indexed by runs_open where r.ended is null and r.state='running'
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
	if err := e.update(ctx, "", func(tx *sql.Tx) error {
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
	rows, err := e.store.Read.QueryContext(ctx, `select `+gateColumns+` from gates g join runs r on r.id=g.run
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
		if err := e.store.Read.QueryRowContext(ctx, `select detached, detach_reason, kept from runs where id=?`, x.row.id).Scan(&detached, &reason, &kept); err != nil {
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
			if err := e.Cancel(ctx, x.row.id, "orphan", ViaTimeout, "nobody waited for the run any more ("+reason.String+")"); err != nil {
				return err
			}
		}
	}
	return nil
}
