package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish/transport"
)

// clockReason is how clients that gave up by their own clock say so; their
// libraries send it without anybody having asked for a cancel.
const clockReason = `(?i)timed? ?out|-32001`

// humanGate is the notification of a gate that waits for a person.
const humanGate = "notifications/relavium/human_gate"

// A wait is one call that is attached to a run.
type wait struct {
	server     *Server
	x          *exchange
	workflow   *Workflow // nil when it is not published
	run        string
	joined     bool // the call joined the run of another
	late       bool // it attached to a run under way
	attachment *engine.Attachment
	progress   *progress
	limit      time.Time // when to give the call back; zero means never
	begun      func()    // to call once the run is heard of; may be nil

	call    *gates.Call
	request string       // the RequestDigest of the call, for its state
	state   *gates.State // that a retry brought, until it was looked at

	waiting map[string]string // open gates, by id, and the line that tells of each
}

func (w *wait) attach(ctx context.Context) error {
	a, err := w.server.engine.Attach(ctx, w.run, w.x.caller.principal)
	if err != nil {
		return err
	}
	w.attachment = a
	w.call = w.server.ladder.Begin(w.x.client(), w.server.policy(w.workflow), w.run, w.progress.send)
	return nil
}

// result waits for the end of the run and returns what is to be answered. over
// reports that the limit came first: the run goes on without the call.
func (w *wait) result(ctx context.Context) (result *mcp.CallToolResult, over bool) {
	settled := false
	defer func() {
		if !settled { // a panic
			w.detach(ctx, engine.DetachDrop)
		}
		if over {
			w.call.HandOver(ctx)
		}
		w.call.End()
		w.progress.end()
	}()
	w.waiting = map[string]string{}
	w.track(0)
	w.answer(ctx)
	for {
		ev, err := w.next(ctx)
		if err == nil {
			w.track(ev.N)
			if w.begun != nil {
				w.begun()
				w.begun = nil
			}
		}
		switch {
		case err == nil && ev.Terminal():
			settled = true
			w.claim(ctx)
			return w.server.ended(ctx, w.x, w.run, &ev, w.joined), false
		case err == nil:
			w.event(ctx, &ev)
		case ctx.Err() != nil:
			settled = true
			return w.interrupted(ctx), false
		case !errors.Is(err, context.DeadlineExceeded):
			settled = true
			w.detach(ctx, engine.DetachDrop)
			return w.server.unexpected("wait for a run", w.run, err), false
		case !w.limit.IsZero() && !time.Now().Before(w.limit):
			settled = true
			w.detach(ctx, engine.DetachHandOver)
			return nil, true
		case w.asks():
			if result, over = w.question(ctx); result != nil || over {
				settled = true
				if over {
					w.detach(ctx, engine.DetachHandOver)
				} else {
					w.detach(ctx, engine.DetachAsked) // a person has it
				}
				return result, over
			}
		default:
			w.progress.beat(w.waitingLine())
		}
	}
}

// next returns the run's next event, or context.DeadlineExceeded when a
// heartbeat or the limit is due.
func (w *wait) next(ctx context.Context) (engine.Event, error) {
	var due time.Time
	if w.progress.token != nil {
		due = w.progress.since().Add(w.server.opt.Heartbeat)
	}
	for _, other := range []time.Time{w.limit, w.call.Due()} {
		if !other.IsZero() && (due.IsZero() || other.Before(due)) {
			due = other
		}
	}
	if due.IsZero() {
		return w.attachment.Next(ctx)
	}
	nctx, done := context.WithDeadline(ctx, due)
	defer done()
	ev, err := w.attachment.Next(nctx)
	if err != nil && ctx.Err() == nil && nctx.Err() != nil {
		err = context.DeadlineExceeded
	}
	return ev, err
}

// asks reports whether the call is to return with its question now.
func (w *wait) asks() bool {
	due := w.call.Due()
	return !due.IsZero() && !time.Now().Before(due)
}

// interrupted leaves the run as the cause of the request's end wants it.
func (w *wait) interrupted(ctx context.Context) *mcp.CallToolResult {
	reason, cancelled := w.left(ctx)
	if cancelled {
		cctx, done := detached(ctx)
		defer done()
		if _, err := w.attachment.Cancel(cctx, string(w.x.caller.principal), "cancelled by the client"); err != nil {
			w.server.log.WarnContext(ctx, "cancel a run", slog.String("run", w.run), slog.Any("error", err))
		}
		return stopping(w.run) // not written
	}
	if errors.Is(context.Cause(ctx), transport.ErrClosed) {
		w.call.Leave()
	}
	w.detach(ctx, reason)
	return stopping(w.run)
}

// left tells how the caller went: it wants the run cancelled, or left it for a reason.
func (w *wait) left(ctx context.Context) (reason string, cancelled bool) {
	cause := context.Cause(ctx)
	c, cancelled := errors.AsType[*transport.CancelledError](cause)
	switch {
	case cancelled && w.server.clock.MatchString(c.Reason):
		return engine.DetachClock, false
	case errors.Is(cause, transport.ErrStreamClosed):
		return engine.DetachClose, false
	}
	return engine.DetachDrop, cancelled
}

// claim makes the exchange tell the engine what became of the result: once it
// reached the client nobody needs to join the run any more, and if it did not a
// retry may, as after one that passed the client's word that its clock ran out.
func (w *wait) claim(ctx context.Context) {
	c := &claim{server: w.server, run: w.run}
	w.x.delivered = func() { c.delivered(ctx) }
	w.x.lost = func(ctx context.Context) {
		if reason, cancelled := w.left(ctx); !cancelled { // else it is what the caller wanted to end
			w.detach(ctx, reason)
		}
	}
	w.x.unread = c.unread
}

// A claim is the result of a run on its way to the client. Transports keep it for a
// while, so it holds nothing of the call.
type claim struct {
	server *Server
	run    string

	mu    sync.Mutex
	given bool // the client had given up before
}

// delivered notes that the result reached the client.
func (c *claim) delivered(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.given {
		return
	}
	cctx, done := detached(ctx)
	defer done()
	if err := c.server.engine.Claim(cctx, c.run); err != nil {
		c.server.log.WarnContext(ctx, "claim a result", slog.String("run", c.run), slog.Any("error", err))
	}
}

// unread notes that the client had given up, for a reason, before it read the result.
// A person's cancel comes too late and has no effect.
func (c *claim) unread(ctx context.Context, reason string) {
	if !c.server.clock.MatchString(reason) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given = true
	cctx, done := detached(ctx)
	defer done()
	if err := c.server.engine.Disclaim(cctx, c.run); err != nil {
		c.server.log.WarnContext(ctx, "take back the claim of a result", slog.String("run", c.run), slog.Any("error", err))
	}
}

// track tells the transport how far the caller hears of the run.
func (w *wait) track(n int64) {
	if w.x.request.Track != nil {
		w.x.request.Track(w.run, n)
	}
}

func (w *wait) detach(ctx context.Context, reason string) {
	dctx, done := detached(ctx)
	defer done()
	if err := w.attachment.Detach(dctx, reason); err != nil {
		w.server.log.WarnContext(ctx, "detach from a run", slog.String("run", w.run), slog.Any("error", err))
	}
}

// event tells the caller what happened.
func (w *wait) event(ctx context.Context, ev *engine.Event) {
	switch ev.Type {
	case engine.GatePaused, engine.BudgetPaused:
		w.gateOpened(ctx, ev)
	case engine.GateResumed:
		delete(w.waiting, ev.Gate)
	}
	w.progress.event(ev)
	w.call.Event(ctx, ev)
}

// gateOpened tells the caller of a gate that waits. A call that attached to a
// run under way hears of past gates too; those are not told.
func (w *wait) gateOpened(ctx context.Context, ev *engine.Event) {
	if w.late && !w.open(ctx, ev.Gate) {
		return
	}
	where := w.where(ev)
	note := struct {
		Run      string `json:"runId"`
		Gate     string `json:"gateId"`
		Type     string `json:"gateType"`
		Message  string `json:"message"`
		Assignee string `json:"assignee,omitempty"`
		Expires  string `json:"expiresAt,omitempty"`
		Where    string `json:"where"`
	}{w.run, ev.Gate, ev.GateType, ev.Message, ev.Assignee, "", where}
	if ev.Expires != nil {
		note.Expires = rfc3339(*ev.Expires)
	}
	w.x.notify(humanGate, note)
	line := gateLine(ev.Node, ev.Message, where)
	w.waiting[ev.Gate] = line
	w.progress.send(line)
}

// gateLine tells people of a gate that waits for one of them.
func gateLine(node, message, where string) string {
	return fmt.Sprintf("waiting for a person at gate %s: %s (%s)", node, oneLine(message, 200), where)
}

// open reports whether a gate still waits.
func (w *wait) open(ctx context.Context, gate string) bool {
	g, err := w.server.engine.Gate(ctx, gate)
	if err != nil {
		if ctx.Err() == nil {
			w.server.log.WarnContext(ctx, "read a gate", slog.String("run", w.run), slog.Any("error", err))
		}
		return false
	}
	return g.Decision == "" && (g.Expires.IsZero() || g.Expires.After(time.Now()))
}

// where says how a person may answer the gate: on the console's page if one
// runs, else by a command. It holds nothing that a model could answer with: the
// page wants a login, the command asks a person at a terminal.
func (w *wait) where(ev *engine.Event) string {
	accepted := w.server.accepts(w.workflow)
	if slices.Contains(accepted, AcceptConsole) && w.server.opt.Page != nil {
		if page := w.server.opt.Page(ev.Gate); page != "" {
			return page
		}
	}
	switch cli := slices.Contains(accepted, AcceptCLI) || slices.Contains(accepted, AcceptCLINonInteractive); {
	case cli && ev.GateType == "input":
		return "relavium-serve gate answer " + w.run + " --value TEXT"
	case cli:
		return "relavium-serve gate approve " + w.run
	case slices.Contains(accepted, AcceptConsole):
		return "relavium-serve console"
	}
	return "in the client that called"
}

func (w *wait) waitingLine() string {
	ids := make([]string, 0, len(w.waiting))
	for id := range w.waiting {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return ""
	}
	return w.waiting[slices.Min(ids)]
}
