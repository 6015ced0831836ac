package publish

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/access"
	"github.com/relavium/relavium-serve/publish/transport"
)

// HTTPOptions are what serving over HTTP needs besides Options. The zero value
// allows loopback names only and has the bounds of transport.HTTP.
type HTTPOptions struct {
	Hosts         []string      // see transport.HTTP
	Origins       []string      // see transport.HTTP
	MaxSessions   int           // see transport.HTTP
	SessionIdle   time.Duration // see transport.HTTP
	SessionAge    time.Duration // see transport.HTTP
	Hold          time.Duration // see transport.HTTP
	HeaderTimeout time.Duration // see transport.HTTP
	BodyTimeout   time.Duration // see transport.HTTP
	Console       http.Handler  // see transport.HTTP
	WebSocket     bool          // see transport.HTTP
	NoMCP         bool          // see transport.HTTP

	// Access tells who calls; nil means that everybody is the principal local.
	Access *access.Access
}

// ServeHTTPOn answers what l accepts as Streamable HTTP, and as WebSocket
// connections, until ctx ends; see transport.HTTP.Serve. It closes l.
func (s *Server) ServeHTTPOn(ctx context.Context, l net.Listener, opt HTTPOptions) error {
	h := transport.HTTP{
		Answer:        s.Answer,
		Resume:        s.Resume,
		Waiting:       s.waits,
		Shared:        s.shared(),
		Ready:         s.ready,
		Principal:     string(engine.Local),
		Logger:        s.log,
		Notices:       &s.notices,
		Hosts:         opt.Hosts,
		Origins:       opt.Origins,
		MaxSessions:   opt.MaxSessions,
		SessionIdle:   opt.SessionIdle,
		SessionAge:    opt.SessionAge,
		Heartbeat:     s.opt.Heartbeat,
		Hold:          opt.Hold,
		HeaderTimeout: opt.HeaderTimeout,
		BodyTimeout:   opt.BodyTimeout,
		StopGrace:     s.opt.StopGrace,
		Console:       opt.Console,
		WebSocket:     opt.WebSocket,
		NoMCP:         opt.NoMCP,
	}
	if a := opt.Access; a != nil {
		h.Admit, h.Permit, h.Metadata = admit(a), s.permit(a), a.Metadata()
	}
	err := h.Serve(ctx, l)
	wctx, done := context.WithTimeout(context.WithoutCancel(ctx), askedGrace)
	defer done()
	s.ladder.Wait(wctx)
	return err
}

// Resume answers a tools/call again that waited for a run and whose answer did
// not reach a client that was told of event n; it is a transport.ResumeFunc. A call that was cancelled
// since ends by the cause of ctx like any other.
func (s *Server) Resume(ctx context.Context, req *transport.Request, run string, n int64) (reply transport.Reply) {
	defer func() {
		if p := recover(); p != nil {
			reply = transport.Reply{Error: s.internalFault(req.Method, slog.Any("panic", p), slog.String("stack", string(debug.Stack())))}
		}
	}()
	x := &exchange{request: req, caller: callerOf(req), table: s.table.Load()}
	result := s.resumed(ctx, x, run, n)
	body, err := encode(result)
	if err != nil {
		return transport.Reply{Error: s.internalFault(req.Method, slog.Any("error", err))}
	}
	return x.carried(ctx, body)
}

func (s *Server) resumed(ctx context.Context, x *exchange, run string, n int64) any {
	sctx, done := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer done()
	r, bad := s.ownRun(sctx, x, run)
	if bad != nil {
		return bad
	}
	w := &wait{
		server: s, x: x, workflow: x.table.published(r.Project, r.Workflow), run: run, late: true,
		progress: newProgress(x, len(r.Nodes)),
	}
	w.progress.resume(n, r.Created, s.opt.Heartbeat)
	if err := w.attach(sctx); err != nil {
		return s.unexpected("attach to a run", run, err)
	}
	done()
	result, _ := w.result(ctx)
	return result
}

// waits reports whether the run waits for a person.
func (s *Server) waits(ctx context.Context, run string) bool {
	open, err := s.engine.Gates(ctx, engine.GateFilter{Run: run, Open: true, Limit: 1})
	return err == nil && len(open) > 0
}

// ready reports whether the run store answers and runs can be taken.
func (s *Server) ready(ctx context.Context) error {
	if err := s.engine.Ready(); err != nil {
		return err
	}
	rctx, done := context.WithTimeout(ctx, storeTimeout)
	defer done()
	_, err := s.engine.Runs(rctx, engine.RunFilter{Limit: 1})
	return err
}
