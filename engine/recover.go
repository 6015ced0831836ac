package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/relavium/relavium-serve/engine/durable"
)

// takeOver continues the runs of executors that died, where they belong to a
// project of this process; the others are left to a process of theirs.
func (e *Engine) takeOver(ctx context.Context) error {
	me := e.executor.Load()
	if me == nil {
		return nil // it only looks, or is cut off
	}
	dead, err := e.store.DeadExecutors(ctx, me.ID(), e.now())
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dead {
		done, err := e.takeFrom(ctx, me, d)
		if err == nil && done {
			errs = append(errs, me.Forget(d.ID), d.Done())
			continue
		}
		errs = append(errs, err, d.Release())
	}
	return errors.Join(append(errs, e.unblock(ctx))...)
}

// takeFrom reports whether nothing of the executor is left.
func (e *Engine) takeFrom(ctx context.Context, me *durable.Executor, d *durable.Dead) (bool, error) {
	left, err := me.Left(ctx, d.ID)
	if err != nil {
		return false, err
	}
	foreign, err := e.dropHeldBy(ctx, d.ID)
	if err != nil {
		return false, err
	}
	all := !foreign
	var resume []durable.Ref
	for _, l := range left {
		r, err := e.row(ctx, l.Run)
		switch {
		case errors.Is(err, ErrRunNotFound):
			err = me.Abandon([]durable.Ref{l.Ref})
		case err != nil:
		case !slices.Contains(e.mine(), r.project):
			all = false
		case l.ABI != durable.ABI:
			all = false
			if r.state != Blocked && !r.state.Terminal() {
				err = e.block(ctx, r, fmt.Sprintf("engine version %s began it, this is %s", l.ABI, durable.ABI), r.seg, errors.New("other engine version"))
			}
		case r.state.Terminal() || r.seg != l.K:
			err = me.Abandon([]durable.Ref{l.Ref})
		default:
			if lacks := e.lacks(ctx, r); len(lacks) > 0 {
				all = false
				if d.For > e.opt.blockedAfter && r.state == Running {
					err = e.block(ctx, r, lacking(lacks), r.seg, errors.New("no replica takes it over"))
				}
			} else if err = e.raise(ctx, r.id); err == nil {
				resume = append(resume, l.Ref)
			}
		}
		if err != nil {
			return false, err
		}
	}
	if len(resume) > 0 {
		e.log.LogAttrs(ctx, slog.LevelInfo, "runs taken over", slog.Int("count", len(resume)), slog.String("from", d.ID))
	}
	return all, me.Resume(resume)
}

// block marks a run that this version cannot continue; it stays answerable at its
// gates. It goes on, in a segment of its own, in a process that can.
func (e *Engine) block(ctx context.Context, r *row, reason string, next int, cause error) error {
	e.log.LogAttrs(ctx, slog.LevelError, "run is blocked", runAttr(r.id), slog.String("reason", reason), errAttr(cause))
	raw, err := encode(&RunError{Code: CodeInternal, Message: reason})
	if err != nil {
		return err
	}
	return e.update(ctx, r.id, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update runs set state='blocked', error=?, seg=? where id=? and ended is null`, string(raw), next, r.id)
		return err
	})
}

// unblock lets runs go on that a process before could not read: those whose next
// segment nobody began.
func (e *Engine) unblock(ctx context.Context) error {
	ids, err := e.strings(ctx, `select r.id from runs r indexed by runs_open where r.ended is null and r.state='blocked' and r.project in (select value from json_each(?))
		and not exists(select 1 from workflow_status w where w.workflow_uuid=r.id||'#'||r.seg)`, list(e.mine()))
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		r, err := e.row(ctx, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if _, err := e.definition(ctx, r.digest); err != nil || len(e.lacks(ctx, r)) > 0 {
			continue // still blocked, for the reason that it shows
		}
		errs = append(errs, e.write(ctx, `update runs set state='running', error=null where id=? and state='blocked'`, id))
	}
	return errors.Join(errs...)
}

// failStuck ends runs whose segment DBOS gave up, which only faults of ours or a
// segment recovered ten thousand times bring about.
func (e *Engine) failStuck(ctx context.Context) error {
	ids, err := e.strings(ctx, `select r.id from runs r indexed by runs_open join workflow_status w on w.workflow_uuid=r.id||'#'||r.seg
		where r.ended is null and r.state='running' and r.project in (select value from json_each(?)) and w.status not in ('PENDING','ENQUEUED','DELAYED')`, list(e.mine()))
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if e.live(id) == nil {
			errs = append(errs, e.failBroken(ctx, id, errors.New("its segment was given up")))
		}
	}
	return errors.Join(errs...)
}

// failBroken ends a run as failed internal, outside any segment.
func (e *Engine) failBroken(ctx context.Context, run string, cause error) error {
	failure := e.internal(ctx, run, "", cause)
	raw, err := encode(failure)
	if err != nil {
		return err
	}
	now := e.now()
	err = e.update(ctx, run, func(tx *sql.Tx) error {
		r, err := scanRun(tx.QueryRowContext(ctx, `select `+runColumns+` from runs where id=? and ended is null`, run))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		ev := Event{Type: RunFailed, Run: run, N: r.lastEvent + 1, Time: now.UTC(), Error: failure, PartialOutputs: []byte("{}"), CumulativeCost: &r.cost}
		if err := putEvents(ctx, tx, []Event{ev}); err != nil {
			return err
		}
		if err := putAudit(ctx, tx, r.audited(now, AuditRunEnded, "", string(Failed))); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `update runs set state='failed', error=?, ended=?, last_event=? where id=?`, string(raw), now.UnixMilli(), ev.N, run)
		return err
	})
	if err == nil {
		e.ended(run)
	}
	e.look()
	return err
}

// strings reads one text column.
func (e *Engine) strings(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := e.store.Read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// raise moves the run's epoch on: what the execution before still tries to write
// is refused. A blocked run that fits again goes on.
func (e *Engine) raise(ctx context.Context, run string) error {
	return e.update(ctx, run, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update runs set epoch=epoch+1, state=case state when 'blocked' then 'running' else state end,
			error=case state when 'blocked' then null else error end where id=? and ended is null`, run)
		return err
	})
}

// sweep continues segments of this executor that run nowhere, which nothing but a
// fault of ours leaves behind.
func (e *Engine) sweep(ctx context.Context) error {
	if err := e.failStuck(ctx); err != nil {
		return err
	}
	me, err := e.executes()
	if err != nil {
		return err
	}
	left, err := me.Left(ctx, me.ID())
	if err != nil {
		return err
	}
	var resume []durable.Ref
	for _, l := range left {
		if !me.Live(l.Ref) && l.Age > sweepAge {
			resume = append(resume, l.Ref)
		}
	}
	if len(resume) > 0 {
		e.log.LogAttrs(ctx, slog.LevelWarn, "segments swept up", slog.Int("count", len(resume)))
	}
	return me.Resume(resume)
}

// batch bounds what one transaction of retention deletes.
const batch = 500

// retain deletes runs that ended long ago, then what DBOS keeps of them, then
// definitions that no run names, and frees old idempotency keys.
func (e *Engine) retain(ctx context.Context) error {
	me, err := e.executes()
	if err != nil {
		return err
	}
	now := e.now()
	if err := e.write(ctx, `update runs set idem_key=null where idem_key is not null and created<?`, now.Add(-keyLife).UnixMilli()); err != nil {
		return err
	}
	for {
		refs, err := e.deleteRuns(ctx, now.Add(-e.opt.Keep).UnixMilli())
		if err != nil {
			return err
		}
		if len(refs) == 0 {
			break
		}
		if err := me.Delete(refs); err != nil {
			return err
		}
	}
	err = e.write(ctx, `delete from audit where at<?`, now.Add(-keepAudit).UnixMilli())
	if err != nil && !durable.Denied(err) { // where the log is append-only, its owner shortens it
		return err
	}
	err = e.write(ctx, `delete from definitions where digest not in (select digest from runs)`)
	if durable.Named(err) {
		return nil // by a run that was just made; the next time
	}
	return err
}

func (e *Engine) deleteRuns(ctx context.Context, before int64) ([]durable.Ref, error) {
	var refs []durable.Ref
	err := e.update(ctx, "", func(tx *sql.Tx) error {
		var runs []string
		var err error
		if runs, refs, err = oldRuns(ctx, tx, before); err != nil || len(runs) == 0 {
			return err
		}
		for _, query := range []string{
			`delete from events where run in (select value from json_each(?))`,
			`delete from gates where run in (select value from json_each(?))`,
			`delete from effects where run in (select value from json_each(?))`,
			`delete from runs where id in (select value from json_each(?))`,
		} {
			if _, err := tx.ExecContext(ctx, query, list(runs)); err != nil {
				return err
			}
		}
		return nil
	})
	return refs, err
}

func oldRuns(ctx context.Context, tx *sql.Tx, before int64) (runs []string, refs []durable.Ref, err error) {
	rows, err := tx.QueryContext(ctx, `select id, seg from runs where ended is not null and ended<? limit ?`, before, batch)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var seg int
		if err := rows.Scan(&id, &seg); err != nil {
			return nil, nil, err
		}
		runs = append(runs, id)
		for k := range seg + 1 {
			refs = append(refs, durable.Ref{Run: id, K: k})
		}
	}
	return runs, refs, rows.Err()
}
