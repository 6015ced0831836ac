package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Bounds are what a command gets and how far it may go.
type Bounds struct {
	// Stdin is what the command reads; then its input ends.
	Stdin []byte
	// Timeout is how long it may run; 0 means 60 s.
	Timeout time.Duration
	// Stdout and Stderr are how many bytes are kept of each; 0 means 1 MiB.
	Stdout, Stderr int
}

// An Output is what a command wrote, as it wrote it: secrets, terminal controls and all.
type Output struct {
	// Head is the beginning, Tail the end. All of a short output is in Head.
	Head, Tail []byte
	// Omitted is how many bytes between them were not kept.
	Omitted int64
}

// A Result is what became of a command.
type Result struct {
	Exit           Exit
	Stdout, Stderr Output
	Duration       time.Duration
}

// A TimeoutError says that a command was ended because it ran too long.
type TimeoutError struct {
	Program string
	After   time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%q ran longer than %s", e.Program, e.After)
}

// Timeout reports true: it is what net.Error has for this.
func (e *TimeoutError) Timeout() bool { return true }

// Run starts a command, waits for it and returns what it wrote. It takes no place among
// the children. When the command ends, what it left running is killed.
//
// When the command runs longer than it may, its group is asked to end, and all of it is
// killed after the ladder's second step; Run returns once that is done, with the result
// and a *TimeoutError. When ctx ends the same is done, but Run returns at once, with what
// was written so far and ctx's cause; the end is the table's. Any other error comes
// without a result: a *StartError, or an *AliveError for what could not be killed. A
// command that the table ended comes back with a result and ErrTableClosed.
func (t *Table) Run(ctx context.Context, spec Spec, bounds Bounds) (*Result, error) {
	if bounds.Timeout <= 0 {
		bounds.Timeout = time.Minute
	}
	limited, cancel := context.WithTimeoutCause(ctx, bounds.Timeout, &TimeoutError{Program: filepath.Base(spec.Path), After: bounds.Timeout})
	defer cancel()
	return t.run(ctx, limited, &spec, bounds)
}

// run is Run with the context that ends when the command has run too long.
func (t *Table) run(ctx, limited context.Context, spec *Spec, bounds Bounds) (*Result, error) {
	defer spec.Env.clear()
	if err := spec.check(); err != nil {
		return nil, err
	}
	stdout, stderr := newHeadTail(bounds.Stdout), newHeadTail(bounds.Stderr)
	began := time.Now()
	p, err := t.start(limited, spec, spec.logger(), streams{tail: &tail{}, stdout: stdout, stderr: stderr}, func() {})
	if err != nil {
		return nil, err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = p.stdin.Write(bounds.Stdin)
		_ = p.stdin.Close()
	}()
	result := func(exit Exit) *Result {
		return &Result{Exit: exit, Stdout: stdout.output(), Stderr: stderr.output(), Duration: time.Since(began)}
	}
	err = nil
	select {
	case <-p.done:
	case <-limited.Done():
		err = context.Cause(limited)
		p.interrupt()
	}
	if alive, ok := errors.AsType[*AliveError](p.Close(ctx)); ok {
		return nil, alive
	}
	select {
	case <-p.closed:
		<-written
		if err == nil && p.exit.By != RungNone {
			err = ErrTableClosed // or its label was: nobody else ends a command
		}
		return result(p.exit), err
	default: // ctx ended
		return result(Exit{Code: -1, By: RungTerm}), context.Cause(ctx)
	}
}

// A headTail keeps the beginning and the end of what is written to it.
type headTail struct {
	mu    sync.Mutex
	half  int
	head  []byte
	tail  tail
	total int64
}

func newHeadTail(limit int) *headTail {
	if limit <= 0 {
		limit = 1 << 20
	}
	return &headTail{half: (limit + 1) / 2, tail: tail{limit: limit / 2}}
}

func (h *headTail) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(p)
	h.total += int64(n)
	if room := h.half - len(h.head); room > 0 {
		taken := min(room, len(p))
		h.head = append(h.head, p[:taken]...)
		p = p[taken:]
	}
	_, _ = h.tail.Write(p)
	return n, nil
}

// Close does nothing.
func (h *headTail) Close() error { return nil }

func (h *headTail) output() Output {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.tail.bytes()
	out := Output{Head: bytes.Clone(h.head), Tail: end, Omitted: h.total - int64(len(h.head)+len(end))}
	if out.Omitted == 0 {
		out.Head, out.Tail = append(out.Head, end...), nil
	}
	return out
}
