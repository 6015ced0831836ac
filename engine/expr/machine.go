package expr

import (
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"modernc.org/libquickjs"
	"modernc.org/quickjs"
)

// Bounds of one evaluation.
const (
	evalTimeout    = 1000 * time.Millisecond
	grace          = 20 * time.Millisecond // for the engine's own interrupt to come first
	preludeTimeout = 10 * time.Second      // of our own scripts, on a machine however busy
	memoryLimit    = 32 << 20              // bytes
	stackLimit     = 1000                  // nested calls, not bytes
	maxSource      = 32 << 10              // bytes; the parser looks ahead at every bracket
	maxScope       = 8 << 20               // bytes of JSON that one evaluation reads
	maxDepth       = 64                    // levels of a value, in scope and result
	maxResult      = 1 << 20               // bytes
	maxCompiled    = 4 << 20               // bytes of compiled expressions kept
)

//go:embed prelude.js
var prelude string

// The scripts that declare what an expression sees, as constants that are no
// properties of the global object.
const (
	declare      = `const {inputs, ctx, run} = __scope();`
	declareMerge = `const {inputs, ctx, run, branches} = __scope();`
)

// scripts is the compiled text of the above. The code holds no state.
type scripts struct{ prelude, declare, declareMerge []byte }

func compileScripts() (scripts, error) {
	vm, err := newVM()
	if err != nil {
		return scripts{}, err
	}
	var s scripts
	for _, c := range []struct {
		to   *[]byte
		text string
	}{{&s.prelude, prelude}, {&s.declare, declare}, {&s.declareMerge, declareMerge}} {
		if *c.to, err = vm.Compile(c.text, quickjs.EvalGlobal); err != nil {
			break
		}
	}
	return s, join(err, vm.Close())
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

// A machine evaluates one expression and is closed. It is made before its scope
// is known, so that a spare one can wait.
type machine struct {
	vm  *quickjs.VM
	run quickjs.Value // of the prelude: runs an expression, gives its answer

	scope   Scope
	eager   []byte // the answer to askScope
	size    int    // bytes handed over
	pending bool   // an output was handed over and is not parsed yet
	refused bool   // an output was not handed over

	mu    sync.Mutex
	ended bool // nothing may touch vm from outside
	late  bool // the time is over
}

func newMachine(code scripts) (*machine, error) {
	vm, err := newVM()
	if err != nil {
		return nil, err
	}
	m := &machine{vm: vm}
	if err = vm.RegisterHostFunc("__host", m.host); err == nil {
		if err = vm.SetEvalTimeout(preludeTimeout); err == nil {
			m.run, err = vm.EvalBytecodeValue(code.prelude)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("expr: prelude: %w", join(err, vm.Close()))
	}
	return m, nil
}

var errBroken = errors.New("expr: the machine is broken")

// close frees the machine, or leaves its memory if an evaluation broke it. It must
// not run at the same time as an evaluation.
func (m *machine) close() (err error) {
	m.end()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = errBroken
		}
	}()
	m.run.Free()
	return m.vm.Close()
}

// interrupt asks the machine to stop at its next look.
func (m *machine) interrupt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.vm.Interrupt()
	}
}

// starve ends an evaluation whose time is over. The engine looks at the clock once
// in ten thousand steps, and a step may be a builtin that takes milliseconds or a
// comparison of long strings. With no room for a call or an allocation those fail at
// once, and with its counter at the end the engine looks at the next step. The words
// written are ones that the engine reads at any time.
func (m *machine) starve() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.late = true
		m.vm.SetMaxStackSize(1)
		m.vm.SetMemoryLimit(1)
		if c := counter(m.vm); c != nil {
			atomic.StoreInt32(c, 0)
		}
	}
}

// counter is the engine's count of steps until it looks at the clock. The library
// does not offer it, so its address is read from the library's own field; nil if
// there is no such field any more, which a test reports.
func counter(vm *quickjs.VM) *int32 {
	field := reflect.ValueOf(vm).Elem().FieldByName("cContext")
	if field.Kind() != reflect.Uintptr {
		return nil
	}
	address := uintptr(field.Uint())
	if address == 0 {
		return nil
	}
	c := *(**libquickjs.TJSContext)(unsafe.Pointer(&address)) //nolint:gosec // the context is not in Go's memory, and lives while ended is false
	return &c.Finterrupt_counter
}

// end keeps the watchers away from vm and reports whether the time was over.
func (m *machine) end() (late bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	return m.late
}

// join is the first of the errors.
func join(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
