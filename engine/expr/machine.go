package expr

import (
	_ "embed"
	"fmt"
	"sync"
	"time"

	"modernc.org/quickjs"
)

// Bounds of one evaluation.
const (
	evalTimeout    = 1000 * time.Millisecond
	grace          = 20 * time.Millisecond // for the engine's own interrupt to come first
	preludeTimeout = 2 * time.Second
	memoryLimit    = 32 << 20 // bytes
	stackLimit     = 1000     // nested calls, not bytes
	maxSource      = 32 << 10 // bytes; the parser looks ahead at every bracket
	maxScope       = 8 << 20  // bytes of JSON that one evaluation reads
	maxDepth       = 64       // levels of a value, in scope and result
	maxResult      = 1 << 20  // bytes
	maxCompiled    = 4 << 20  // bytes of compiled expressions kept
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

// close frees the machine. It must not run at the same time as an evaluation.
func (m *machine) close() error {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
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
// in ten thousand steps, and a step may be a builtin that takes milliseconds. With no
// room for a call or an allocation each of them fails at once, so those steps are
// cheap. The two limits are words that the engine only reads.
func (m *machine) starve() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		m.late = true
		m.vm.SetMaxStackSize(1)
		m.vm.SetMemoryLimit(1)
	}
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
