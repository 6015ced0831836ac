package engine

import (
	"context"
	"database/sql"
	"sync"
	"time"
)

// What the loop says goes out in the order in which it is said. Events of effects
// and gates are stored first, by a writer beside the loop, all that gathered while it
// wrote in one transaction; effects do not wait for it, since they are recorded by
// themselves. Events of pure nodes go out at once while nothing waits to be stored.

// maxUnstored bounds the events of one run that are delivered and not stored.
const maxUnstored = 1024

// stage is what has been said and is to be stored.
type stage struct {
	events  []Event
	also    []func(ctx context.Context, tx *sql.Tx) error
	must    bool         // something of it has to be stored first
	waiters []chan error // told what became of it; each has room
}

func (s *stage) add(more stage) {
	s.events = append(s.events, more.events...)
	s.also = append(s.also, more.also...)
	s.must = s.must || more.must
	s.waiters = append(s.waiters, more.waiters...)
}

func (s *stage) empty() bool { return len(s.events) == 0 && len(s.also) == 0 }

// done tells whoever waits that the stage is stored, or why it is not.
func (s *stage) done(err error) {
	for _, w := range s.waiters {
		w <- err
	}
}

func (s *stage) apply(ctx context.Context, tx *sql.Tx) error {
	for _, f := range s.also {
		if err := f(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// writer is the part of the stage that the loop and the writing goroutine share.
type writer struct {
	mu      sync.Mutex
	queued  stage
	writing bool
	idle    chan struct{} // closed when writing ends
	hurry   chan struct{} // closed when the segment closes, with what is queued
	kick    chan struct{} // an effect waits for what is queued
	err     error
}

// gather is how long the writer waits for more to store while effects are under way
// and none of them waits for it: each transaction costs them a turn.
const gather = 2 * time.Millisecond

// gathers waits, and reports false if the segment closes meanwhile.
func (w *writer) gathers() bool {
	t := time.NewTimer(gather)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.kick:
		return true
	case <-w.hurry:
		return false
	}
}

func (w *writer) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.writing
}

// say tells events of pure nodes: at once, or after what is to be stored first.
// Only the loop's goroutine calls it.
func (x *execution) say(events ...Event) {
	if x.staged.empty() && !x.writer.busy() {
		x.staged.must = x.rec.tell(events...) >= maxUnstored || x.staged.must
		return
	}
	x.staged.events = append(x.staged.events, events...)
}

// sayOnce says what becomes of a pure node, unless an execution of this segment
// before said it: the node is computed again and yields the same.
func (x *execution) sayOnce(ev Event) {
	if !x.seen[ev.Type+" "+ev.Node] {
		x.say(ev)
	}
}

// store has events stored before they are delivered; also, which may be nil, runs
// in the same transaction. Only the loop's goroutine calls it.
func (x *execution) store(also func(ctx context.Context, tx *sql.Tx) error, events ...Event) {
	x.staged.must = true
	x.staged.events = append(x.staged.events, events...)
	if also != nil {
		x.staged.also = append(x.staged.also, also)
	}
}

// keep is store for an effect that goes on when it is stored: the channel tells.
func (x *execution) keep(also func(ctx context.Context, tx *sql.Tx) error, events ...Event) <-chan error {
	x.store(also, events...)
	stored := make(chan error, 1)
	x.staged.waiters = append(x.staged.waiters, stored)
	return stored
}

// tell has the loop say an event; node goroutines call it.
func (x *execution) tell(ev Event) {
	x.report(func(context.Context) error {
		x.say(ev)
		return nil
	})
}

// tellStored has the loop say an event that is stored first.
func (x *execution) tellStored(ev Event) {
	x.report(func(context.Context) error {
		x.store(nil, ev)
		return nil
	})
}

// take empties the stage.
func (x *execution) take() stage {
	s := x.staged
	x.staged = stage{}
	return s
}

// flush hands what was said to the writer.
func (x *execution) flush(ctx context.Context) {
	if x.staged.empty() && !x.staged.must {
		return
	}
	w := &x.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	s := x.take()
	urgent := len(s.waiters) > 0
	if w.err != nil {
		s.done(w.err)
		return
	}
	if !s.must && !w.writing {
		x.rec.tell(s.events...)
		return
	}
	w.queued.add(s)
	if urgent {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
	if !w.writing {
		w.writing, w.idle = true, make(chan struct{})
		wait := x.agents > 0
		x.work.Go(func() { x.write(ctx, wait) })
	}
}

// write stores and delivers until nothing is queued, or the segment closes.
func (x *execution) write(ctx context.Context, wait bool) {
	w := &x.writer
	for {
		w.mu.Lock()
		urgent := len(w.queued.waiters) > 0
		w.mu.Unlock()
		more := urgent || !wait || w.gathers()
		w.mu.Lock()
		s := w.queued
		if s.empty() && !s.must || !more {
			w.writing = false
			close(w.idle)
			w.mu.Unlock()
			return
		}
		w.queued = stage{}
		w.mu.Unlock()
		if !s.must {
			x.rec.tell(s.events...)
			continue
		}
		err := x.rec.record(ctx, func(tx *sql.Tx) error { return s.apply(ctx, tx) }, s.events...)
		s.done(err)
		if err == nil {
			continue
		}
		w.mu.Lock()
		w.err, w.writing = err, false
		w.queued.done(err)
		w.queued = stage{}
		close(w.idle)
		w.mu.Unlock()
		x.report(func(context.Context) error { return err })
		return
	}
}

// settle ends the writer and returns what it left to be stored, with what the loop
// has said since.
func (x *execution) settle(ctx context.Context) (stage, error) {
	w := &x.writer
	close(w.hurry)
	w.mu.Lock()
	idle, writing := w.idle, w.writing
	w.mu.Unlock()
	if writing {
		select {
		case <-idle:
		case <-ctx.Done():
			return stage{}, context.Cause(ctx)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	left := w.queued
	w.queued = stage{}
	left.add(x.take())
	return left, w.err
}
