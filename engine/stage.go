package engine

import (
	"context"
	"database/sql"
)

// What the loop says in one round is stored in one transaction: the events of
// effects and gates before anybody hears of them, those of pure nodes that came
// between in their place. Only the loop's goroutine touches the stage.

// stage is what the loop has said and not stored yet.
type stage struct {
	events []Event
	also   []func(ctx context.Context, tx *sql.Tx) error
	then   []func()
}

// say tells events of pure nodes: at once, or after what is to be stored first.
func (x *execution) say(events ...Event) {
	if len(x.staged.events) == 0 {
		x.rec.tell(events...)
		return
	}
	x.staged.events = append(x.staged.events, events...)
}

// tell has the loop say an event; node goroutines call it.
func (x *execution) tell(ev Event) {
	x.report(func(context.Context) error {
		x.say(ev)
		return nil
	})
}

// store has events stored before they are delivered; also, which may be nil, runs
// in the same transaction.
func (x *execution) store(also func(ctx context.Context, tx *sql.Tx) error, events ...Event) {
	x.staged.events = append(x.staged.events, events...)
	if also != nil {
		x.staged.also = append(x.staged.also, also)
	}
}

// then calls f once all that was said is out.
func (x *execution) then(f func()) {
	if len(x.staged.events) == 0 {
		f()
		return
	}
	x.staged.then = append(x.staged.then, f)
}

// take empties the stage.
func (x *execution) take() stage {
	s := x.staged
	x.staged = stage{}
	return s
}

func (s *stage) apply(ctx context.Context, tx *sql.Tx) error {
	for _, f := range s.also {
		if err := f(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) finish() {
	for _, f := range s.then {
		f()
	}
}

// flush stores and delivers what was said.
func (x *execution) flush(ctx context.Context) error {
	if len(x.staged.events) == 0 {
		return nil
	}
	s := x.take()
	if err := x.rec.record(ctx, func(tx *sql.Tx) error { return s.apply(ctx, tx) }, s.events...); err != nil {
		return err
	}
	s.finish()
	return nil
}
