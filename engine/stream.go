package engine

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// encode writes a value as one line of JSON. Unlike json.Marshal it leaves the
// text of values as it was: <, > and & are not escaped.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// A stream is the tail of a run's events as this process knows it. What came
// before base is in the store, complete.
type stream struct {
	run string

	mu      sync.Mutex
	base    int64 // number of events[0]
	events  []Event
	changed chan struct{} // closed when something was appended
	waiters int           // attachments
	live    bool          // a segment here produces; nobody else appends then
}

func newStream(run string, base int64) *stream {
	return &stream{run: run, base: base, changed: make(chan struct{})}
}

func (s *stream) next() int64 { return s.base + int64(len(s.events)) }

// append adds events that follow on; s.mu is held.
func (s *stream) append(events ...Event) {
	s.events = append(s.events, events...)
	close(s.changed)
	s.changed = make(chan struct{})
}

// restart lets the stream begin anew at a number before which all is stored; s.mu is held.
func (s *stream) restart(base int64) {
	s.base, s.events = base, nil
	close(s.changed)
	s.changed = make(chan struct{})
}

// trim forgets events that are all in the store; s.mu is held.
func (s *stream) trim() {
	s.base, s.events = s.next(), nil
}

// shorten forgets the oldest of events that are all in the store, where there are
// many: a model may stream for hours. Who has not read them reads the store. s.mu is held.
func (s *stream) shorten() {
	if over := len(s.events) - maxStream; over > 0 {
		over += maxStream / 2
		s.base += int64(over)
		s.events = append([]Event(nil), s.events[over:]...)
	}
}

// maxStream bounds the stored events of a run that are kept in memory.
const maxStream = 2048

// stream returns the run's stream, made if there is none, and holds it until release.
func (e *Engine) stream(run string, next int64) *stream {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.streams[run]
	if s == nil {
		s = newStream(run, next)
		e.streams[run] = s
	}
	s.mu.Lock()
	s.waiters++
	s.mu.Unlock()
	return s
}

func (e *Engine) release(s *stream) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiters--
	if s.waiters == 0 {
		delete(e.streams, s.run)
	}
}

// An Attachment is one waiting call. Its methods may be called from several
// goroutines; Detach and Cancel are safe to repeat.
type Attachment struct {
	e   *Engine
	run string
	s   *stream

	mu     sync.Mutex
	pos    int64   // number of the next event to hand out
	stored []Event // read from the store, before the stream's base
	kept   int64   // number after the last of those: what is stored does not come again
	ended  bool

	over sync.Once // Detach, Cancel or Close
	left sync.Once
	rest int // calls that waited still when this one left
}

// Attach makes the caller a waiter of the run, which ends its life as an orphan.
// Another principal's run is ErrRunNotFound. The caller ends the attachment by
// Detach, Cancel or Close, or by reading to the terminal event.
func (e *Engine) Attach(ctx context.Context, run string, p Principal) (*Attachment, error) {
	if s := e.first(run, p); s != nil {
		e.attached(run, +1)
		return &Attachment{e: e, run: run, s: s}, nil
	}
	r, err := e.row(ctx, run)
	if err != nil {
		return nil, err
	}
	if p != "" && r.principal != p {
		return nil, ErrRunNotFound
	}
	s := e.stream(run, r.lastEvent+1)
	e.attached(run, +1)
	if err := e.catchUp(ctx, s); err != nil {
		e.attached(run, -1)
		e.release(s)
		return nil, err
	}
	if err := e.hold(ctx, r); err != nil {
		e.attached(run, -1)
		e.release(s)
		return nil, err
	}
	return &Attachment{e: e, run: run, s: s}, nil
}

// catchUp moves a stream past what was stored before it was made known: of those
// events the janitor told nobody.
func (e *Engine) catchUp(ctx context.Context, s *stream) error {
	var last int64
	if err := e.store.Read.QueryRowContext(ctx, `select last_event from runs where id=?`, s.run).Scan(&last); err != nil {
		return fmt.Errorf("run store: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live && s.next() <= last {
		s.restart(last + 1)
	}
	return nil
}

// Next returns the run's events in order, from the first, live ones as they
// happen, and io.EOF after the terminal one. ctx bounds the wait only.
func (a *Attachment) Next(ctx context.Context) (Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		if a.ended {
			return Event{}, io.EOF
		}
		if len(a.stored) > 0 {
			ev := a.stored[0]
			a.stored = a.stored[1:]
			a.kept = ev.N + 1
			return a.hand(ev), nil
		}
		a.s.mu.Lock()
		base, changed := a.s.base, a.s.changed
		// After a crash numbers that were only delivered come again. The stream of a run that
		// runs elsewhere may be behind the store.
		a.pos = max(min(a.pos, a.s.next()), a.kept)
		if i := a.pos - base; i >= 0 && i < int64(len(a.s.events)) {
			ev := a.s.events[i]
			a.s.mu.Unlock()
			return a.hand(ev), nil
		}
		a.s.mu.Unlock()
		if a.pos < base {
			stored, err := a.e.Events(ctx, a.run, a.pos)
			if err != nil {
				return Event{}, err
			}
			if len(stored) > 0 {
				a.stored = stored
				continue
			}
			a.pos = base // nothing there: numbers that were delivered only
			continue
		}
		select {
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-a.e.closing:
			return Event{}, ErrClosed
		case <-changed:
		}
	}
}

func (a *Attachment) hand(ev Event) Event {
	a.pos = ev.N + 1
	if ev.Terminal() {
		a.ended = true
		a.leave()
	}
	return ev
}

// Detach leaves the run to go on. By DetachClock, DetachClose and DetachDrop it becomes
// an orphan if nobody else waits, which after DetachHandOver and DetachAsked it never
// is. After the terminal event it says that the result did not reach the caller, so
// that a retry may join, but never one that was handed over.
func (a *Attachment) Detach(ctx context.Context, reason string) error {
	var err error
	a.over.Do(func() {
		left := a.leave()
		switch {
		case reason == DetachHandOver || reason == DetachAsked:
			err = a.e.writeRun(ctx, a.run, `update runs set kept=1, detached=null,
				detach_reason=case when detach_reason='handover' then 'handover' else ?1 end where id=?2 and ended is null`, reason, a.run)
		case left == 0 && reason == DetachClose && a.e.opt.CloseGrace < 0:
			var alone bool
			if alone, err = a.e.letGo(ctx, a.run, a.e.me(), nil); err == nil && alone {
				err = a.e.Cancel(ctx, a.run, "close", ViaMCP, "its caller closed the stream")
			}
		case left == 0:
			_, err = a.e.letGo(ctx, a.run, a.e.me(), func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `update runs set detached=?, detach_reason=? where id=? and claimed is null and coalesce(detach_reason, '')<>'handover'`,
					a.e.now().UnixMilli(), reason, a.run)
				return err
			})
		}
	})
	return err
}

// Close ends an attachment that only looked on; nothing is recorded. It is safe
// after Detach and Cancel, and does nothing after the terminal event was read.
func (a *Attachment) Close() { a.over.Do(func() { a.leave() }) }

// Cancel ends the wait, and the run too unless another call is attached to it;
// it reports whether the run was cancelled.
func (a *Attachment) Cancel(ctx context.Context, by, reason string) (bool, error) {
	cancelled := false
	var err error
	a.over.Do(func() {
		if a.leave() > 0 {
			return
		}
		if cancelled, err = a.e.letGo(ctx, a.run, a.e.me(), nil); err == nil && cancelled {
			err = a.e.Cancel(ctx, a.run, by, ViaMCP, reason)
		}
	})
	return cancelled, err
}

// leave gives up the place among the run's waiters, once, and returns how many
// calls of this process still wait.
func (a *Attachment) leave() int {
	a.left.Do(func() {
		a.rest = a.e.attached(a.run, -1)
		a.e.release(a.s)
	})
	return a.rest
}

// attached counts the calls of this process that wait for the run.
func (e *Engine) attached(run string, by int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls[run] += by
	n := e.calls[run]
	if n <= 0 {
		delete(e.calls, run)
	}
	return n
}
