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

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// phase is where a run's sessions are in their life. It only goes forward, but for
// parked, from which a run may go on.
type phase int

const (
	connecting phase = iota
	open
	parked
	closing
)

// run is the sessions of one run.
type run struct {
	Run
	host *Host

	mu       sync.Mutex
	phase    phase
	conns    []*connection
	tables   map[string]*table                     // by agent
	inflight map[*context.CancelCauseFunc]struct{} // calls
	calls    sync.WaitGroup
	stop     context.CancelCauseFunc // ends the connects
	keep     *time.Timer             // closes a parked run
	budget   func() time.Duration
	opened   chan struct{} // closed when open has returned, in either way
	closed   chan struct{} // the one close has returned
	failure  error         // of it
}

func newRun(h *Host, r Run) *run {
	return &run{
		Run: r, host: h, inflight: make(map[*context.CancelCauseFunc]struct{}), opened: make(chan struct{}), closed: make(chan struct{}),
	}
}

// errSibling is the cause of the connects that another one's failure ends.
var errSibling = errors.New("another server of the run failed to connect")

// errNoTime says that nothing was left of the budget when a connection was to be closed.
var errNoTime = errors.New("no time is left for closing it")

// open connects everything, or fails with the first failure.
func (r *run) open(ctx context.Context) error {
	all, uses, err := r.host.servers(used(r.Workflow), r.Root)
	if err != nil {
		return err
	}
	if err := r.host.approve(ctx, all); err != nil {
		return r.cancelledOr(ctx, err)
	}
	joint, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if !r.beginConnects(fail) {
		return closedFault()
	}
	ends := make(chan error, len(all)) // nobody waits for the last ones
	conns := make([]*connection, len(all))
	for i, d := range all {
		c := &connection{declared: d, up: make(chan struct{}), done: make(chan struct{})}
		conns[i] = c
		c.settled = r.host.owe()
		go func() {
			err := r.bring(joint, c)
			if c.session == nil {
				c.settled() // nothing of it is left; else its close says so
			}
			close(c.up)
			ends <- err
		}()
	}
	var first error
	for range all {
		if err := <-ends; err != nil {
			first = err
			break
		}
	}
	if first != nil {
		fail(errSibling)
		r.tearDown(ctx, conns)
		return first
	}
	return r.settle(ctx, conns, uses)
}

// beginConnects lets a close end the connects, unless it was first.
func (r *run) beginConnects(stop context.CancelCauseFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = stop
	return r.phase == connecting
}

func (r *run) cancelledOr(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*workflows.ToolError](err); ok {
		return err
	}
	f := &workflows.ToolError{Fault: workflows.ToolCancelled, Reason: ReasonCancelled, Message: "the start was cancelled", Err: err}
	if !cancelled(ctx) {
		f.Fault, f.Reason, f.Message = workflows.ToolUnavailable, ReasonDeadline, "the time of the call ended before its servers were approved"
	}
	return f
}

// bring connects one server unless it is in trouble.
func (r *run) bring(ctx context.Context, c *connection) error {
	attempt, refused := r.host.starts.enter(c.key())
	if refused != nil {
		return refused
	}
	c.attempt = attempt
	err := c.connect(ctx, r)
	if err == nil {
		attempt.ended(nil, true)
		return nil
	}
	fault, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		fault = startFault(ctx, c.name, c.declared, err, c.started)
	}
	if fault.Reason == ReasonDied {
		fault.Message += c.exit(ctx)
	}
	attempt.ended(fault, counts(fault))
	if c.proc != nil && fault.Fault != workflows.ToolCancelled {
		r.host.opt.Log.WarnContext(ctx, "mcp server did not come up", "run", r.ID, "server", c.name,
			"reason", fault.Reason, "stderr", quoted(c.proc.Stderr()))
	}
	return r.host.scrubbed(fault)
}

// counts tells whether a failure says something about the server.
func counts(f *workflows.ToolError) bool {
	if f == nil {
		return false
	}
	switch f.Reason {
	case ReasonConsent, ReasonPin, ReasonSecret, ReasonCancelled, ReasonFull, ReasonDeclaration, ReasonDeadline, ReasonClosed,
		ReasonBackoff:
		return false
	}
	return f.Fault != workflows.ToolCancelled
}

// settle makes the run callable, unless it was closed meanwhile.
func (r *run) settle(ctx context.Context, conns []*connection, uses map[string][]*declared) error {
	tables := make(map[string]*table, len(uses))
	byDeclared := make(map[*declared]*connection, len(conns))
	for _, c := range conns {
		byDeclared[c.declared] = c
	}
	for _, agent := range used(r.Workflow) {
		tables[agent.ID] = newTable(agent, uses[agent.ID], byDeclared)
	}
	r.mu.Lock()
	r.conns = conns
	late := r.phase == closing
	if !late {
		r.phase, r.tables = open, tables
	}
	r.mu.Unlock()
	if late {
		r.tearDown(ctx, conns)
		return closedFault()
	}
	for _, c := range conns {
		r.log(ctx, c)
	}
	for _, agent := range slices.Sorted(maps.Keys(tables)) {
		r.logTable(ctx, agent, tables[agent])
	}
	return nil
}

// logTable says which tools an agent does not get although their server offers them, or
// does although it does not: a name that is taken, and a list of its own.
func (r *run) logTable(ctx context.Context, agent string, t *table) {
	for _, server := range slices.Sorted(maps.Keys(t.dropped)) {
		for _, d := range t.dropped[server] {
			level := slog.LevelWarn
			if d.Reason == DropAllowlist {
				level = slog.LevelDebug // its author knows
			}
			r.host.opt.Log.Log(ctx, level, "mcp tool dropped", "run", r.ID, "server", server, "agent", agent,
				"tool", text.Escape(d.Name, maxNamed), "reason", d.Reason, "detail", text.Escape(d.Detail, maxNamed))
		}
	}
}

func (r *run) log(ctx context.Context, c *connection) {
	r.host.opt.Log.InfoContext(ctx, "mcp server connected", "run", r.ID, "server", c.name,
		"revision", c.session.version, "tools", len(c.found.Tools), "dropped", len(c.found.Dropped),
		"start", c.took.Start, "handshake", c.took.Handshake, "discovery", c.took.Discovery)
	for _, d := range c.found.Dropped {
		r.host.opt.Log.WarnContext(ctx, "mcp tool dropped", "run", r.ID, "server", c.name,
			"tool", d.Name, "reason", d.Reason, "detail", d.Detail)
	}
	for _, note := range c.found.Notes {
		r.host.opt.Log.WarnContext(ctx, "mcp discovery", "run", r.ID, "server", c.name, "note", note)
	}
}

// admits is asked right before a fork: who asked, and the run, must still want it.
func (r *run) admits(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == closing {
		return errClosed
	}
	return nil
}

// retire ends a connection's first attempt, so that it can make another one.
func (r *run) retire(ctx context.Context, c *connection) {
	old := &connection{declared: c.declared, session: c.session, proc: c.proc, done: make(chan struct{}), settled: r.host.owe()}
	c.session, c.proc = nil, nil
	old.end(ctx)
}

// tearDown closes connections behind the caller's back: each is closed once its own
// connect has ended, as far as the budget goes.
func (r *run) tearDown(ctx context.Context, conns []*connection) {
	for _, c := range conns {
		done := r.host.owe()
		go func() {
			defer done()
			if <-c.up; c.session == nil {
				return
			}
			_ = r.closeOne(context.WithoutCancel(ctx), c) // it was reported
		}()
	}
}

// remaining is what is left of the time for closing.
func (r *run) remaining() time.Duration {
	if r.Closing != nil {
		return r.Closing()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.budget == nil {
		until := time.Now().Add(defaultClose)
		r.budget = func() time.Duration { return time.Until(until) }
	}
	return r.budget()
}

// closeOne closes one connection and waits for its end, as long as the budget lasts. A
// failure is reported once, at once.
func (r *run) closeOne(ctx context.Context, c *connection) error {
	left := r.remaining()
	var err error
	if left <= 0 {
		err = errNoTime
	} else {
		ctx, stop := context.WithTimeout(ctx, left)
		defer stop()
		c.end(ctx)
		select {
		case <-c.done:
			err = c.failure
		case <-ctx.Done():
			err = errOwed
		}
	}
	if err != nil {
		err = r.reportClose(ctx, c, err)
	}
	return err
}

// errReport is all that is said when a report of a failed close fails itself.
var errReport = errors.New("internal error while a failed close was reported")

func (r *run) reportClose(ctx context.Context, c *connection, cause error) (err error) {
	if r.Report == nil {
		r.host.opt.Log.LogAttrs(ctx, slog.LevelWarn, "mcp server not closed", slog.String("run", r.ID),
			slog.String("server", c.name), slog.Any("err", cause))
		return fmt.Errorf("server %q: %w", c.name, cause)
	}
	defer func() {
		if recover() != nil {
			err = errReport
		}
	}()
	r.Report(c.name, cause)
	return fmt.Errorf("server %q: %w", c.name, cause)
}

// close cancels the calls, waits for them, closes the sessions and waits for their
// children and raw work, as long as ctx and the budget last. Every close is the same
// one.
func (r *run) close(ctx context.Context) error {
	r.begin(ctx, func(phase) bool { return true })
	select {
	case <-r.closed:
		return r.failure
	case <-ctx.Done():
		return errors.Join(errOwed, context.Cause(ctx))
	}
}

// begin begins the one close, if the run is in a phase that from allows, and reports
// whether it is under way.
func (r *run) begin(ctx context.Context, from func(phase) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == closing {
		return true
	}
	if !from(r.phase) {
		return false
	}
	r.phase = closing
	if r.keep != nil {
		r.keep.Stop()
	}
	if r.stop != nil {
		r.stop(errClosed)
	}
	for cancel := range r.inflight {
		(*cancel)(errClosed)
	}
	conns := r.conns
	go func() {
		defer close(r.closed)
		r.calls.Wait()
		errs := make([]error, len(conns))
		var wg sync.WaitGroup
		for i, c := range conns {
			wg.Go(func() { errs[i] = r.closeOne(context.WithoutCancel(ctx), c) })
		}
		wg.Wait()
		r.failure = errors.Join(errs...)
	}()
	return true
}

// enter begins a call, unless the run is not open. leave ends it.
func (r *run) enter(ctx context.Context) (within context.Context, leave func(), ok bool) {
	within, cancel := context.WithCancelCause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != open {
		cancel(errClosed)
		return within, func() {}, false
	}
	r.calls.Add(1)
	r.inflight[&cancel] = struct{}{}
	return within, func() {
		r.mu.Lock()
		delete(r.inflight, &cancel)
		r.mu.Unlock()
		cancel(nil)
		r.calls.Done()
	}, true
}

// table returns the tools of an agent, or nil if the run is not open.
func (r *run) table(agent string) *table {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != open {
		return nil
	}
	return r.tables[agent]
}
