package expr

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"modernc.org/quickjs"
)

// Bounds of one evaluation.
const (
	evalTimeout    = 1000 * time.Millisecond
	preludeTimeout = 2 * time.Second
	memoryLimit    = 32 << 20 // bytes
	stackLimit     = 1000     // nested calls, not bytes
	maxSource      = 64 << 10 // bytes; the parser looks ahead at every bracket
	maxScope       = 8 << 20  // bytes of JSON that one evaluation reads
	maxDepth       = 64       // levels of a value, in scope and result
	maxResult      = 1 << 20  // bytes
	maxCompiled    = 4 << 20  // bytes of compiled expressions kept
)

//go:embed prelude.js
var preludeSource string

// A Sandbox evaluates expressions and bounds how many run at once. One serves the
// whole process; it is safe for concurrent use and needs no closing.
type Sandbox struct {
	slots   chan struct{}
	timeout time.Duration
	// The prelude without and with branches, compiled at the first use.
	prelude, mergePrelude func() ([]byte, error)

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
	return &Sandbox{
		slots:   make(chan struct{}, concurrency),
		timeout: evalTimeout,
		prelude: sync.OnceValues(func() ([]byte, error) { return compilePrelude(preludeSource) }),
		mergePrelude: sync.OnceValues(func() ([]byte, error) {
			return compilePrelude(strings.Replace(preludeSource, "/*, branches*/", ", branches", 1))
		}),
		compiled: make(map[string][]byte),
	}
}

func compilePrelude(source string) ([]byte, error) {
	vm, err := newVM()
	if err != nil {
		return nil, err
	}
	code, err := vm.Compile(source, quickjs.EvalGlobal)
	if closing := vm.Close(); err == nil {
		err = closing
	}
	return code, err
}

func newVM() (*quickjs.VM, error) {
	vm, err := quickjs.NewVM()
	if err != nil {
		return nil, fmt.Errorf("expr: %w", err)
	}
	vm.SetMemoryLimit(memoryLimit)
	vm.SetMaxStackSize(stackLimit)
	return vm, nil
}

// Tags of an answer; prelude.js writes them.
const (
	tagValue = 'v'
	tagTrue  = 't'
	tagFalse = 'f'
)

// reason is the reason that a tag stands for.
func reason(tag byte) string {
	switch tag {
	case 'n':
		return ReasonNonSerializable
	case 'y':
		return ReasonResultType
	case 'k':
		return ReasonStack
	case 'm':
		return ReasonMemory
	default:
		return ReasonRuntime
	}
}

func (s *Sandbox) evaluate(ctx context.Context, source string, scope Scope, mode int) (tag byte, value json.RawMessage, err error) {
	if ctx.Err() != nil {
		return 0, nil, context.Cause(ctx)
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, nil, context.Cause(ctx)
	}
	defer func() { <-s.slots }()

	tag, value, err = s.run(ctx, source, scope, mode)
	if ctx.Err() != nil {
		// A cancel is told before a timeout, and before a value that came too late.
		return 0, nil, context.Cause(ctx)
	}
	return tag, value, err
}

// run evaluates in a machine of its own. Panics of the transpiled engine, memory
// faults among them, become a runtime error: no expression may end the process.
func (s *Sandbox) run(ctx context.Context, source string, scope Scope, mode int) (tag byte, value json.RawMessage, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			tag, value, err = 0, nil, &Error{ReasonRuntime}
		}
	}()
	vm, err := newVM()
	if err != nil {
		return 0, nil, err
	}
	defer func() {
		if closing := vm.Close(); err == nil {
			err = closing
		}
	}()
	defer interruptOn(ctx, vm)()

	code, err := s.code(vm, source)
	if err != nil {
		return 0, nil, err
	}
	m, err := s.bind(vm, source, scope)
	if err != nil {
		return 0, nil, err
	}
	defer m.out.Free()
	expression, err := vm.EvalBytecodeValue(code)
	if err != nil {
		return 0, nil, &Error{ReasonRuntime}
	}
	defer expression.Free()

	if err := vm.SetEvalTimeout(s.timeout); err != nil {
		return 0, nil, fmt.Errorf("expr: %w", err)
	}
	start := time.Now()
	answer, err := m.out.Call(quickjs.UndefinedValue, expression, mode)
	if err != nil {
		return 0, nil, &Error{thrown(err, time.Since(start) >= s.timeout)}
	}
	return m.read(answer)
}

// interruptOn stops the machine when ctx ends. The returned func ends the watch.
func interruptOn(ctx context.Context, vm *quickjs.VM) func() {
	done, ended := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		// An interrupt asked for between two calls into the machine is
		// forgotten, so it is asked for until the evaluation has ended.
		ask := time.NewTicker(5 * time.Millisecond)
		defer ask.Stop()
		for {
			vm.Interrupt()
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
// limit has passed; only both together are a timeout.
func thrown(err error, late bool) string {
	js, ok := errors.AsType[*quickjs.Error](err)
	switch {
	case ok && js.Message == "interrupted" && late:
		return ReasonTimeout
	case ok && js.Message == "stack overflow":
		return ReasonStack
	case ok && (js.Message == "out of memory" || js.Name == ""):
		return ReasonMemory
	default:
		return ReasonRuntime
	}
}
