package engine

import (
	"context"
	"database/sql"
	"slices"
	"sync"
)

// A recorder is the one producer of a run's events while a segment runs here. It
// numbers them, hands them to the stream, and stores them by the rule of
// engine.md 2.6: those of effects and gates before they are delivered; those of
// pure nodes at once, stored with the next stored one.
type recorder struct {
	e      *Engine
	run    string
	seg    int
	epoch  int64
	stream *stream
	of     Observed // without the event

	mu       sync.Mutex
	unstored []Event
}

// tell delivers events that are stored later, and returns how many are not stored.
func (r *recorder) tell(events ...Event) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream.mu.Lock()
	defer r.stream.mu.Unlock()
	r.number(events, r.stream.next())
	r.unstored = append(r.unstored, events...)
	r.stream.append(events...)
	r.observe(events)
	return len(r.unstored)
}

func (r *recorder) observe(events []Event) {
	if r.e.opt.Observe == nil {
		return
	}
	for i := range events {
		o := r.of
		o.Event = &events[i]
		r.e.opt.Observe(o)
	}
}

// record stores events, and with them what waits, then delivers them. also runs
// in the same transaction. A run that was taken over yields errTaken.
func (r *recorder) record(ctx context.Context, also func(tx *sql.Tx) error, events ...Event) error {
	return r.commit(ctx, func(tx *sql.Tx, last int64) (sql.Result, error) {
		return tx.ExecContext(ctx, `update runs set last_event=? where id=? and seg=? and epoch=? and ended is null`, last, r.run, r.seg, r.epoch)
	}, also, events...)
}

// commit is record with an update of the run's row that the caller makes: it must
// change exactly one row, that of this run in this segment and epoch, and set
// last_event.
func (r *recorder) commit(ctx context.Context, row func(tx *sql.Tx, last int64) (sql.Result, error), also func(tx *sql.Tx) error, events ...Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream.mu.Lock()
	next := r.stream.next()
	r.stream.mu.Unlock()
	r.number(events, next)
	all := slices.Concat(r.unstored, events)
	again := false
	err := r.e.update(ctx, r.run, func(tx *sql.Tx) error {
		if again {
			if kept, err := r.kept(ctx, tx, all); err != nil || kept {
				return err
			}
		}
		again = true
		if also != nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		res, err := row(tx, next+int64(len(events))-1)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return taken(err)
		}
		return putEvents(ctx, tx, all)
	})
	if err != nil {
		return err
	}
	r.unstored = nil
	r.stream.mu.Lock()
	defer r.stream.mu.Unlock()
	r.stream.append(events...)
	r.stream.shorten()
	r.observe(events)
	return nil
}

// kept reports whether the store has these events from a try before, whose commit it
// made and did not say so: nobody else writes events in this epoch.
func (r *recorder) kept(ctx context.Context, tx *sql.Tx, events []Event) (bool, error) {
	if len(events) == 0 {
		return false, nil
	}
	var kept bool
	err := tx.QueryRowContext(ctx, `select exists(select 1 from events e join runs r on r.id=e.run
		where e.run=? and e.n=? and e.count=? and r.epoch=?)`, r.run, events[0].N, len(events), r.epoch).Scan(&kept)
	return kept, err
}

func (r *recorder) number(events []Event, next int64) {
	for i := range events {
		ev := &events[i]
		ev.Run, ev.N = r.run, next+int64(i)
		if ev.Time.IsZero() {
			ev.Time = r.e.now().UTC()
		}
	}
}
