package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// TableOptions bound what a [Table] holds.
type TableOptions struct {
	// Children is how many servers may live at once, for all owners; 0 means 64.
	Children int
	// PerOwner is how many of them may be of one owner; 0 means 16.
	PerOwner int
	// Ladder is how processes end unless their Spec says otherwise; a step of 0 means
	// the default: 3 s, 3 s, 2 s.
	Ladder Ladder
}

// A Table starts processes and lists each from before its fork until it was waited for.
// It is safe for concurrent use.
type Table struct {
	children, perOwner int
	ladder             Ladder

	mu     sync.Mutex
	closed bool
	alive  map[*Process]struct{} // what was forked
	taken  int                   // places of servers
	owners map[string]int        // places by owner
	queue  []*place              // who waits for one, in order
	idle   chan struct{}         // closed when the table is closed and nothing lives
}

// NewTable returns an empty table.
func NewTable(o TableOptions) *Table {
	if o.Children <= 0 {
		o.Children = 64
	}
	if o.PerOwner <= 0 {
		o.PerOwner = 16
	}
	return &Table{
		children: o.Children,
		perOwner: o.PerOwner,
		ladder:   o.Ladder.or(Ladder{Stdin: 3 * time.Second, Term: 3 * time.Second, Kill: 2 * time.Second}),
		alive:    map[*Process]struct{}{},
		owners:   map[string]int{},
		idle:     make(chan struct{}),
	}
}

// ErrTableClosed says that nothing is started any more.
var ErrTableClosed = errors.New("no process is started any more")

// A FullError says that a start waited for a place among the living children, as long as
// its context let it.
type FullError struct {
	// Limit is how many may live, and Owner is set if it is the owner's limit.
	Limit int
	Owner bool
	// Err is the cause of the context's end.
	Err error
}

func (e *FullError) Error() string {
	if e.Owner {
		return fmt.Sprintf("max_children: %d of this principal are running", e.Limit)
	}
	return fmt.Sprintf("max_children: %d are running", e.Limit)
}

// Unwrap returns the cause of the context's end.
func (e *FullError) Unwrap() error { return e.Err }

// Start starts a server and returns when its program has been executed. ctx bounds the
// wait for a place, the fork and the execution, not the life of the process: that ends by
// [Process.Close], or by itself. When ctx ends after the fork, Start returns at once; the
// process is killed and stays listed until it was waited for. An error is a *StartError
// or, when there was no place, a *FullError.
func (t *Table) Start(ctx context.Context, spec Spec) (*Process, error) {
	defer spec.Env.clear()
	if err := spec.check(); err != nil {
		return nil, err
	}
	seat, err := t.admit(ctx, spec.Owner)
	if err != nil {
		if full, ok := errors.AsType[*FullError](err); ok {
			return nil, full
		}
		return nil, spec.refused("", err)
	}
	log := spec.logger()
	last := &tail{limit: maxTailBytes}
	var stderr io.WriteCloser = &sink{kept: last, logged: newLineLog(log.With("program", filepath.Base(spec.Path)))}
	if spec.Scrub != nil {
		stderr = spec.Scrub(stderr)
	}
	return t.start(ctx, &spec, log, streams{tail: last, stderr: stderr}, func() { t.leave(seat) })
}

// streams are where the program's output goes.
type streams struct {
	tail   *tail          // what Stderr returns
	stderr io.WriteCloser // takes all of stderr
	stdout io.Writer      // takes all of stdout; nil leaves it to the caller
}

// start forks and waits for the execution. vacate gives up what was taken for the
// process, once.
func (t *Table) start(ctx context.Context, spec *Spec, log *slog.Logger, out streams, vacate func()) (*Process, error) {
	fail := func(err error) (*Process, error) {
		vacate()
		_ = out.stderr.Close()
		return nil, err
	}
	if spec.Recheck != nil {
		if err := spec.Recheck(); err != nil {
			return fail(spec.refused("", err))
		}
	}
	if ctx.Err() != nil {
		return fail(spec.refused("", context.Cause(ctx)))
	}
	p := &Process{
		program: filepath.Base(spec.Path), label: spec.Label, owner: spec.Owner, began: time.Now(),
		ladder: spec.Ladder.or(t.ladder), log: log, tail: out.tail,
		forked: make(chan struct{}), drained: make(chan struct{}), read: make(chan struct{}), done: make(chan struct{}), closed: make(chan struct{}), gaveUp: make(chan struct{}),
	}
	hasten := make(chan struct{})
	p.hasten, p.hurry = hasten, sync.OnceFunc(func() { close(hasten) })

	var theirs [3]*os.File
	if err := p.pipes(&theirs); err != nil {
		return fail(spec.refused("", err))
	}
	err := t.list(p)
	if err == nil {
		p.tree, err = fork(spec, theirs)
	}
	close(p.forked)
	closeAll(theirs[:])
	if err != nil {
		_, err = fail(spec.refused("", err)) // a closed table has no place taken
		t.unlist(p)
		close(p.read) // for a close of the table in between
		close(p.done)
		closeAll([]*os.File{p.stdin, p.stdout, p.stderr})
		return nil, err
	}
	go p.drain(out.stderr)
	go p.keep(out.stdout)
	go p.watch(func() { vacate(); t.unlist(p) })

	p.pid, err = p.tree.ready(ctx, spec, p.ladder.Term)
	if err != nil {
		// The process is still owed: its end is the table's.
		p.Kill()
		_ = p.stdout.Close()
		if ctx.Err() == nil {
			p.waitFor(p.ladder.Kill)
		}
		refused := spec.refused("", err)
		_, said := errors.AsType[syscall.Errno](err)
		refused.Begun = !said && !errors.Is(err, ErrNoSupervisor)
		return nil, refused
	}
	return p, nil
}

// pipes makes the three streams: our ends in p, the others in theirs.
func (p *Process) pipes(theirs *[3]*os.File) (err error) {
	var made []*os.File
	pipe := func() (r, w *os.File) {
		if err != nil {
			return nil, nil
		}
		if r, w, err = os.Pipe(); err == nil {
			made = append(made, r, w)
		}
		return r, w
	}
	theirs[0], p.stdin = pipe()
	p.stdout, theirs[1] = pipe()
	p.stderr, theirs[2] = pipe()
	if err != nil {
		closeAll(made)
	}
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (s *Spec) logger() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

func (t *Table) list(p *Process) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrTableClosed
	}
	t.alive[p] = struct{}{}
	return nil
}

func (t *Table) unlist(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.alive, p)
	t.settle()
}

// settle lets those know who wait for the last process of a closed table.
func (t *Table) settle() {
	if !t.closed || len(t.alive) > 0 {
		return
	}
	select {
	case <-t.idle:
	default:
		close(t.idle)
	}
}

// A Living is one process that has not been waited for.
type Living struct {
	Program, Label, Owner string
	Began                 time.Time
}

// Living lists the processes that have not been waited for, oldest first.
func (t *Table) Living() []Living {
	t.mu.Lock()
	defer t.mu.Unlock()
	living := make([]Living, 0, len(t.alive))
	for p := range t.alive {
		living = append(living, Living{Program: p.program, Label: p.label, Owner: p.owner, Began: p.began})
	}
	slices.SortFunc(living, func(a, b Living) int { return a.Began.Compare(b.Began) })
	return living
}

// CloseLabel closes the processes that have the label, all at once, and waits for them as
// Process.Close does.
func (t *Table) CloseLabel(ctx context.Context, label string) error {
	return t.end(ctx, func(p *Process) bool { return p.label == label })
}

// Close refuses further starts, closes all processes at once and waits until each was
// waited for, also those whose start failed. It may be called again.
func (t *Table) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	for _, seat := range t.queue {
		close(seat.refused)
	}
	t.queue = nil
	t.settle()
	t.mu.Unlock()
	if err := t.end(ctx, func(*Process) bool { return true }); err != nil {
		return err
	}
	select {
	case <-t.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *Table) end(ctx context.Context, which func(*Process) bool) error {
	t.mu.Lock()
	var ending []*Process
	for p := range t.alive {
		if which(p) {
			ending = append(ending, p)
		}
	}
	t.mu.Unlock()
	errs := make([]error, len(ending))
	var wg sync.WaitGroup
	for i, p := range ending {
		wg.Go(func() { errs[i] = p.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
