package expr

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"modernc.org/quickjs"
)

// A Sandbox evaluates expressions and bounds how many run at once. One serves the
// whole process; it is safe for concurrent use. Whoever made it closes it.
type Sandbox struct {
	slots   chan struct{}
	spares  chan *machine // made and not used yet
	timeout time.Duration
	scripts func() (scripts, error)
	renewal sync.WaitGroup // machines that are freed and made anew

	mu       sync.Mutex
	compiled map[string][]byte
	size     int
}

// New returns a Sandbox that runs at most concurrency evaluations at once, each
// with up to 32 MiB; others wait. 0 means 2.
func New(concurrency int) *Sandbox {
	if concurrency <= 0 {
		concurrency = 2
	}
	s := &Sandbox{
		slots:    make(chan struct{}, concurrency),
		spares:   make(chan *machine, concurrency),
		timeout:  evalTimeout,
		scripts:  sync.OnceValues(compileScripts),
		compiled: make(map[string][]byte),
	}
	return s
}

// Close frees what the sandbox holds ready. No evaluation may be under way or begin
// any more; calling it again does nothing.
func (s *Sandbox) Close() {
	s.renewal.Wait()
	for {
		select {
		case m := <-s.spares:
			m.close() //nolint:errcheck,gosec // it frees memory and has nobody to tell
		default:
			return
		}
	}
}

// evaluate runs the expression in a machine of its own. The slot is held until the
// machine's memory is free, which the caller does not wait for.
func (s *Sandbox) evaluate(ctx context.Context, source string, scope Scope, mode int) (tag byte, value json.RawMessage, err error) {
	if ctx.Err() != nil {
		return 0, nil, context.Cause(ctx)
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, nil, context.Cause(ctx)
	}
	m, err := s.machine()
	if err != nil {
		<-s.slots
		return 0, nil, err
	}
	tag, value, err = s.run(ctx, m, source, scope, mode)
	s.renewal.Go(func() { s.renew(m) })
	if ctx.Err() != nil {
		// A cancel is told before a timeout, and before a value that came too late.
		return 0, nil, context.Cause(ctx)
	}
	return tag, value, err
}

// machine is a spare one, or a new one.
func (s *Sandbox) machine() (*machine, error) {
	select {
	case m := <-s.spares:
		return m, nil
	default:
	}
	code, err := s.scripts()
	if err != nil {
		return nil, err
	}
	return newMachine(code)
}

// renew frees a used machine, and then its slot, and makes a spare one.
func (s *Sandbox) renew(used *machine) {
	used.close() //nolint:errcheck,gosec // it frees memory and has nobody to tell
	<-s.slots
	if len(s.spares) == cap(s.spares) {
		return
	}
	code, err := s.scripts()
	if err != nil {
		return
	}
	m, err := newMachine(code)
	if err != nil {
		return // whoever needs one tries again and is told
	}
	select {
	case s.spares <- m:
	default:
		m.close() //nolint:errcheck,gosec // as above
	}
}

// run evaluates in m, which is used up. Panics of the transpiled engine, memory
// faults among them, become a runtime error: no expression may end the process.
func (s *Sandbox) run(ctx context.Context, m *machine, source string, scope Scope, mode int) (tag byte, value json.RawMessage, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			tag, value, err = 0, nil, &Error{ReasonRuntime}
		}
	}()
	defer m.end()
	defer interruptOn(ctx, m)()

	code, err := s.code(m.vm, source)
	if err != nil {
		return 0, nil, err
	}
	if err := m.bind(s, scope); err != nil {
		return 0, nil, err
	}
	expression, err := m.vm.EvalBytecodeValue(code)
	if err != nil {
		return 0, nil, &Error{ReasonRuntime}
	}
	defer expression.Free()

	if err := m.vm.SetEvalTimeout(s.timeout); err != nil {
		return 0, nil, err
	}
	start := time.Now()
	clock := time.AfterFunc(s.timeout+grace, m.starve)
	answer, err := m.run.Call(quickjs.UndefinedValue, expression, mode)
	clock.Stop()
	over := time.Since(start) >= s.timeout
	if late := m.end(); err != nil || late {
		return 0, nil, &Error{thrown(err, late || over)}
	}
	tag, value, err = m.read(answer, source)
	if e, ok := errors.AsType[*Error](err); ok && over && !e.final() {
		// The interrupt came while a generator was being closed, which
		// makes an exception of it that the prelude sees.
		return 0, nil, &Error{ReasonTimeout}
	}
	return tag, value, err
}

// interruptOn stops the machine when ctx ends. The returned func ends the watch.
func interruptOn(ctx context.Context, m *machine) func() {
	done, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		// An interrupt asked for between two calls into the machine is
		// forgotten, so it is asked for until the evaluation has ended.
		ask := time.NewTicker(5 * time.Millisecond)
		defer ask.Stop()
		for {
			m.interrupt()
			select {
			case <-done:
				return
			case <-ask.C:
			}
		}
	})
	return func() {
		close(done)
		if !stop() {
			<-ended
		}
	}
}

// thrown is the reason of what came out of the machine past the prelude's own
// catch: an interrupt, or memory that ran out even there. late is whether the time
// is over; an interrupt is a timeout only then.
func thrown(err error, late bool) string {
	js, ok := errors.AsType[*quickjs.Error](err)
	switch {
	case late && (!ok || js.Message == "interrupted" || js.Name == "InternalError" || js.Name == ""):
		return ReasonTimeout
	case ok && js.Message == "stack overflow":
		return ReasonStack
	case ok && (js.Message == "out of memory" || js.Name == ""):
		return ReasonMemory
	default:
		return ReasonRuntime
	}
}
