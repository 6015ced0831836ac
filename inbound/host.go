package inbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	defaultKeepParked = 5 * time.Minute
	maxParked         = 32 // children of parked runs in the process
	defaultClose      = 10 * time.Second
)

// Options are what a host works with. Children, Home and Log are required.
type Options struct {
	// Name and Version are what servers are told of this client.
	Name, Version string
	// Home is the absolute path of the home folder.
	Home string
	// Registrations are the servers that agents may name by ref.
	Registrations []Registration
	// Children starts programs. Whoever made the table closes it, after the host.
	Children *child.Table
	// Environ is this process's environment, as os.Environ gives it.
	Environ []string
	// Pass names proxy and CA variables that children may have.
	Pass []string
	// Getenv looks a variable of this process up; PATH decides what a command names.
	Getenv func(name string) string
	// Granted returns nil if a person of this machine has consented to the program with
	// that digest. It is asked anew for every run and once more before each fork. Nil
	// grants nothing.
	Granted func(ctx context.Context, digest string) error
	// Allowed are digests that are allowed in this process (--allow-mcp-stdio).
	Allowed []string
	// Ask asks a person for a program that is not granted, and records the answer where
	// Granted finds it. Nil asks nobody. It is called one at a time for a run.
	Ask func(ctx context.Context, u Unapproved) error
	// Secret returns the value of a secret of the servers' space. Its result is cleared
	// after use.
	Secret func(ctx context.Context, name string) ([]byte, error)
	// Pin checks what a server offers against what was seen before, and may take tools
	// away from found. Its error refuses the start: a *workflows.ToolError, or one that
	// is reported as a changed definition. Nil checks nothing.
	Pin func(ctx context.Context, server Identity, found *Discovered) error
	// Scrub takes secrets out of a text that leaves. Nil changes nothing.
	Scrub func(text string) string
	// Started is told of each program that was started, before anything is said to it.
	// Nil tells nobody.
	Started func(ctx context.Context, s Started)
	// Child is what the start of every program is made from: Scrub and Ladder are of use.
	Child child.Spec
	// Egress narrows the network clients.
	Egress egress.Options
	// Repeatable are tools, as agents call them, that may be called twice.
	Repeatable []string
	// KeepParked is how long a parked run keeps its connections; 0 means 5 minutes.
	KeepParked time.Duration
	// Log takes what is worth an operator's eye.
	Log *slog.Logger
	// Now is the clock of backoff; nil means time.Now.
	Now func() time.Time
}

// A Started is a program that was started for a run.
type Started struct {
	Run, Principal string
	Server         string // its id or ref
	Digest         string // what was consented to
}

// An Identity is what a server is known by beyond one run.
type Identity struct {
	Server    string // its id or ref
	Transport string
	Digest    string // of a program; empty for a network server
	URL       string // exact; empty for a program
}

// A Host has the sessions of all runs of this process, and their tools. It is safe for
// concurrent use.
type Host struct {
	opt        Options
	client     mcp.Implementation
	starts     *starts
	admissions *admissions
	wires      func(d *declared, to *peer) (wire, error) // tests only: instead of a start or a dial

	mu         sync.Mutex
	registered map[string]Registration
	runs       map[string]*run
	parked     []*run // oldest first
	closed     bool
	owed       int           // closes that are under way
	idle       chan struct{} // closed when the host is closed and owes nothing
	isIdle     bool
}

// New returns a host without sessions.
func New(opt Options) (*Host, error) {
	switch {
	case opt.Children == nil:
		return nil, errors.New("inbound: Options.Children is required")
	case opt.Home == "":
		return nil, errors.New("inbound: Options.Home is required")
	case opt.Log == nil:
		return nil, errors.New("inbound: Options.Log is required")
	}
	if opt.KeepParked == 0 {
		opt.KeepParked = defaultKeepParked
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Getenv == nil {
		opt.Getenv = func(string) string { return "" }
	}
	h := &Host{
		opt:    opt,
		client: mcp.Implementation{Name: opt.Name, Version: opt.Version},
		starts: newStarts(opt.Now), admissions: newAdmissions(), runs: make(map[string]*run), idle: make(chan struct{}),
	}
	if err := h.Register(opt.Registrations); err != nil {
		return nil, err
	}
	return h, nil
}

// Register puts other registrations in place of Options.Registrations. Connections
// that there are stay as they are; runs that connect from now on use the new ones. The
// error names a server that is registered twice; then nothing changes.
func (h *Host) Register(list []Registration) error {
	registered := make(map[string]Registration, len(list))
	for _, r := range list {
		if _, twice := registered[r.Name]; twice {
			return fmt.Errorf("inbound: server %q is registered twice", r.Name)
		}
		registered[r.Name] = r
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.registered = registered
	return nil
}

func (h *Host) registration(name string) (Registration, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.registered[name]
	return r, ok
}

// A Run is what servers are connected for.
type Run struct {
	ID        string
	Workflow  *workflows.Workflow
	Principal string // who the children count for
	Root      string // absolute real path of the project root
	Depth     int    // of runs that called one another before it
	// Closing is what is left of the invocation's time for closing; it is asked before
	// each close. Nil means 10 s from the first close on.
	Closing func() time.Duration
	// Report is told of each connection that could not be closed as it should, once. Nil
	// leaves it to the log.
	Report func(server string, cause error)
}

// Open connects every server that the run's agents declare, lists their tools, and
// keeps the sessions until Close. All connect at once, and one that fails fails them
// all: Open returns at the first failure, while what did come up is closed behind it.
// A run that is open keeps what it has; one that was parked goes on with its
// connections if they still live, else they are made anew. The error is a
// *workflows.ToolError; one for want of consent has an *UnapprovedError in its tree.
//
// Whoever opens a run that is being opened waits for that, and tries for itself if it
// failed.
func (h *Host) Open(ctx context.Context, r Run) error {
	for {
		made, busy, err := h.reserve(ctx, r)
		switch {
		case err != nil:
			return err
		case made != nil:
			defer close(made.opened)
			if err := made.open(ctx); err != nil {
				h.forget(made)
				return err
			}
			return nil
		case busy == nil:
			return nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return startFault(ctx, "", nil, context.Cause(ctx), time.Now())
		}
	}
}

// CheckRun is for a run that is not yet: it resolves what its agents declare and asks for
// consent as Open does, but starts nothing.
func (h *Host) CheckRun(ctx context.Context, w *workflows.Workflow, root string) error {
	all, _, err := h.servers(used(w), root)
	if err != nil {
		return err
	}
	return h.approve(ctx, all)
}

// reserve makes the place of a run, unless it is open. If it is being opened busy is
// closed when that has ended.
func (h *Host) reserve(ctx context.Context, r Run) (made *run, busy <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, closedFault()
	}
	if have, ok := h.runs[r.ID]; ok {
		if have.resume() {
			h.parked = without(h.parked, have)
			return nil, nil, nil
		}
		if !have.begin(ctx, func(p phase) bool { return p == parked }) {
			return nil, have.opened, nil
		}
		h.parked = without(h.parked, have)
	}
	made = newRun(h, r)
	h.runs[r.ID] = made
	return made, nil, nil
}

func closedFault() *workflows.ToolError {
	return &workflows.ToolError{Fault: workflows.ToolUnavailable, Reason: ReasonClosed, Message: "the host is closed"}
}

// forget takes a run out of the table.
func (h *Host) forget(r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs[r.ID] == r {
		delete(h.runs, r.ID)
	}
	h.parked = without(h.parked, r)
}

func without(list []*run, r *run) []*run {
	kept := list[:0]
	for _, other := range list {
		if other != r {
			kept = append(kept, other)
		}
	}
	return kept
}

func (h *Host) lookup(id string) *run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[id]
}

// Close ends the sessions of one run: calls under way are cancelled first, then the
// connections and children are closed and waited for, at most as long as ctx and the
// run's budget allow. Closing twice is one close; a run without sessions is none.
func (h *Host) Close(ctx context.Context, runID string) error {
	r := h.lookup(runID)
	if r == nil {
		return nil
	}
	err := r.close(ctx)
	h.forget(r)
	return err
}

// CloseRuns ends the sessions of all runs, also of parked ones, as Close does those of
// one. Runs that are opened from now on have sessions of their own.
func (h *Host) CloseRuns(ctx context.Context) error {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.runs))
	clear(h.runs)
	h.parked = nil
	h.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		wg.Go(func() { errs[i] = r.close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Shutdown refuses further runs, closes all sessions and waits until everything that
// was begun has ended, or ctx has.
func (h *Host) Shutdown(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	all := make([]*run, 0, len(h.runs))
	for _, r := range h.runs {
		all = append(all, r)
	}
	h.settleIdle()
	h.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		wg.Go(func() {
			errs[i] = r.close(ctx)
			h.forget(r)
		})
	}
	wg.Wait()
	select {
	case <-h.idle:
	case <-ctx.Done():
		errs = append(errs, errOwed)
	}
	return errors.Join(errs...)
}

// owe takes on one piece of work that Shutdown waits for; done says that it has ended.
func (h *Host) owe() (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.owed++
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.owed--
		h.settleIdle()
	})
}

func (h *Host) settleIdle() {
	if h.closed && h.owed == 0 && !h.isIdle {
		h.isIdle = true
		close(h.idle)
	}
}
