package engine

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
)

// A run's holder names the executors of the processes whose calls wait for it,
// usually one, separated by commas. It is what tells, over processes, whether a
// call that ends was the last one, and whose calls a dead process held.

// me is how this process is named as a holder; a process that only looks has none.
func (e *Engine) me() string {
	x := e.executor.Load()
	if x == nil {
		return ""
	}
	return x.ID()
}

// hold adds this process to the holders of a run that a call attaches to.
func (e *Engine) hold(ctx context.Context, r *row) error {
	me := e.me()
	known := r.detached.IsZero() && r.detachReason != DetachAsked && slices.Contains(holders(r.holder), me)
	if me == "" || r.source == "cli" || known {
		return nil
	}
	return e.writeRun(ctx, r.id, `update runs set detached=null, detach_reason=case when detach_reason='handover' then detach_reason end,
		holder=case when detached is not null or holder is null then ?1 when instr(holder, ?1)>0 then holder else holder||','||?1 end
		where id=?2 and claimed is null`, me, r.id)
}

func holders(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// letGo takes a process off the holders of a run. Where no living process is left it
// reports true, having called last, which may be nil, in the same transaction.
func (e *Engine) letGo(ctx context.Context, run, who string, last func(tx *sql.Tx) error) (bool, error) {
	alone := false
	err := e.update(ctx, run, func(tx *sql.Tx) error {
		var held sql.NullString
		err := tx.QueryRowContext(ctx, `select holder from runs where id=?`, run).Scan(&held)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrRunNotFound
		}
		if err != nil {
			return err
		}
		var rest []string
		for _, id := range holders(held.String) {
			if id == who {
				continue
			}
			alive, err := e.store.Alive(ctx, tx, id)
			if err != nil {
				return err
			}
			if alive {
				rest = append(rest, id)
			}
		}
		alone = len(rest) == 0
		if !alone {
			_, err := tx.ExecContext(ctx, `update runs set holder=? where id=?`, strings.Join(rest, ","), run)
			return err
		}
		if last != nil {
			return last(tx)
		}
		return nil
	})
	return alone, err
}

// heldBy lists the runs whose calls the executor's process held and whose callers
// may come again: those that have not ended, and those that completed lately with
// nobody known to have heard.
func (e *Engine) heldBy(ctx context.Context, executor string) (ids []string, foreign bool, err error) {
	const held = ` and claimed is null and instr(coalesce(holder, ''), ?1)>0 and detached is null and coalesce(detach_reason, '') not in ('handover', 'asked')`
	rows, err := e.store.Read.QueryContext(ctx, `select id, project from runs indexed by runs_open where ended is null`+held+`
		union all select id, project from runs indexed by runs_ended where ended>?2 and state='completed'`+held,
		executor, e.now().Add(-e.opt.JoinWindow).UnixMilli())
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = rows.Close() }()
	mine := e.mine()
	for rows.Next() {
		var id, project string
		if err := rows.Scan(&id, &project); err != nil {
			return nil, false, err
		}
		if slices.Contains(mine, project) {
			ids = append(ids, id)
		} else {
			foreign = true
		}
	}
	return ids, foreign, rows.Err()
}

// dropHeldBy says of the calls that the dead executor's process held that they are
// dropped: their runs become orphans, and retries may join them. It reports whether
// runs of other projects are left, which a process of theirs has to see to.
func (e *Engine) dropHeldBy(ctx context.Context, executor string) (bool, error) {
	ids, foreign, err := e.heldBy(ctx, executor)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, id := range ids {
		_, err := e.letGo(ctx, id, executor, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `update runs set detached=?, detach_reason=? where id=? and detached is null`,
				e.now().UnixMilli(), DetachDrop, id)
			return err
		})
		errs = append(errs, err)
	}
	return foreign, errors.Join(errs...)
}
