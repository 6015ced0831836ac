package transport

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
)

// Bounds of an HTTP whose fields are zero.
const (
	DefaultMaxBody       = 4 << 20
	DefaultMaxSessions   = 4096
	DefaultMaxRequests   = 8192
	DefaultSessionIdle   = 30 * time.Minute
	DefaultSessionAge    = 7 * 24 * time.Hour
	DefaultHeartbeat     = 15 * time.Second
	DefaultHold          = 500 * time.Millisecond
	DefaultHeaderTimeout = 10 * time.Second
	DefaultBodyTimeout   = 30 * time.Second

	maxHeader    = 64 << 10
	idleTimeout  = 2 * time.Minute  // of a connection between requests
	plainTimeout = 10 * time.Second // to write an answer outside the endpoint
	stallTimeout = 2 * time.Second  // for a client that does not read while the server stops
)

// A ResumeFunc answers a request again that waited for a run and whose answer did
// not reach the client, which was told of event n. Of its params only the name and
// the progress token are left, if they are known.
type ResumeFunc func(ctx context.Context, req *Request, run string, n int64) Reply

// HTTP serves Streamable HTTP at /mcp: 2026-07-28 without state, and sessions
// for the revisions before it. At /ws it serves WebSocket connections if it is
// to. Answer, Resume and Logger are required.
type HTTP struct {
	Answer AnswerFunc
	Resume ResumeFunc
	// Waiting reports whether a run waits for a person, which keeps the session
	// of its call alive; nil means that none does.
	Waiting func(ctx context.Context, run string) bool
	// Ready is what /readyz asks; nil means always.
	Ready     func(ctx context.Context) error
	Principal string // of everybody, where Admit is nil
	Logger    *slog.Logger
	// Shared makes sessions good in every process that has the same; nil means that
	// each process has its own.
	Shared *Shared
	// Notices are what sessions hear; nil means that there are none.
	Notices *Notices
	// WebSocket serves /ws, with the same checks and bounds: the subprotocol is mcp
	// and every message is one text frame. NoMCP leaves /mcp out.
	WebSocket bool
	NoMCP     bool
	// Admit tells who sends a request to the endpoint, by its header alone, or
	// refuses it. Nil admits everybody as Principal. It is called after the checks
	// of Host and Origin, before anything of the body is read.
	Admit func(r *http.Request) (Caller, *Refusal)
	// Permit is asked about each request before anything of its answer is written;
	// nil permits all.
	Permit func(req *Request) *Error
	// Metadata answers below /.well-known/oauth-protected-resource; nil means that
	// nothing does.
	Metadata http.Handler
	// Console answers at /console and below; nil means that nothing does. It
	// bounds the writing of its answers by itself.
	Console http.Handler

	// Hosts are allowed in Host besides loopback names: a name with any port, or
	// name:port. Origins are allowed in Origin besides loopback ones, and are
	// those that CORS lets read answers: scheme://host[:port].
	Hosts   []string
	Origins []string

	MaxBody     int // bytes of one body; 0 means DefaultMaxBody
	MaxRequests int // at once, open streams included; 0 means DefaultMaxRequests
	MaxHeld     int // bytes of their bodies; 0 means DefaultMaxHeld
	MaxSessions int // 0 means DefaultMaxSessions

	SessionIdle   time.Duration // from the end of a session's last call; 0 means DefaultSessionIdle
	SessionAge    time.Duration // of a shared session at most; 0 means DefaultSessionAge
	Heartbeat     time.Duration // between signs of life on an open stream; 0 means DefaultHeartbeat
	Hold          time.Duration // how long an answer may stay one JSON body; 0 means DefaultHold
	HeaderTimeout time.Duration // 0 means DefaultHeaderTimeout
	BodyTimeout   time.Duration // 0 means DefaultBodyTimeout
	StopGrace     time.Duration // how long calls may answer after ctx ended; 0 means DefaultStopGrace

	expiryGrace time.Duration // of a WebSocket connection; 0 means expiryGrace
	pongTimeout time.Duration // of a WebSocket connection; 0 means pongTimeout
}

// Serve answers what l accepts until ctx ends, and closes l. Then nothing more
// is accepted, requests are ended with ErrStopping and may answer for
// StopGrace, streams end, and Serve returns nil. Another end is an error.
func (h *HTTP) Serve(ctx context.Context, l net.Listener) error {
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(ErrStopping)
	e := &endpoint{
		http:     h,
		guard:    newGuard(h.Hosts, h.Origins),
		sessions: map[string]*httpSession{},
		shares:   map[string]*share{},
		drained:  make(chan struct{}),
		posted:   map[string]time.Time{},
	}
	srv := &http.Server{
		Handler:           e.routes(),
		ReadHeaderTimeout: cmp.Or(h.HeaderTimeout, DefaultHeaderTimeout),
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(h.Logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { e.reap(base) })
	background.Go(func() { e.hearOthers(base) })
	served := make(chan error, 1)
	background.Go(func() { served <- srv.Serve(l) })
	select {
	case err := <-served:
		e.stop()
		end(ErrStopping)
		_ = srv.Close()
		e.sockets.Wait()
		e.endSessions()
		return err
	case <-ctx.Done():
	}
	e.stop()
	grace := cmp.Or(h.StopGrace, DefaultStopGrace)
	gctx, done := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer done()
	shut := make(chan struct{})
	background.Go(func() {
		defer close(shut)
		_ = srv.Shutdown(gctx)
	})
	end(ErrStopping)
	within(grace, e.drained, shut)
	within(leaveGrace, shut, nil) // connections close once their answer is out
	e.sockets.Wait()              // each has bounds of its own
	_ = srv.Close()               // those that never asked anything
	e.endSessions()
	done()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// endpoint is the state of one Serve.
type endpoint struct {
	http  *HTTP
	guard *guard

	sockets  sync.WaitGroup // WebSocket connections
	heeding  sync.WaitGroup // cancels that other processes wrote
	mu       sync.Mutex
	sessions map[string]*httpSession
	running  int                  // requests
	held     int                  // bytes of their bodies
	shares   map[string]*share    // of both, by principal
	posted   map[string]time.Time // cancels of requests that were heard, or written here
	stopped  bool
	drained  chan struct{} // closed when stopped and nothing runs
}

// routes are all there is. The endpoint answers with and without the slash at
// its end: a redirect would lose bodies and headers (report P08).
func (e *endpoint) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(e.guard.wrap)
	for _, path := range []string{"/mcp", "/mcp/"} {
		if e.http.NoMCP {
			break
		}
		r.Post(path, e.counted(e.admitted(e.post)))
		r.Get(path, e.counted(e.admitted(e.get)))
		r.Delete(path, e.counted(e.admitted(e.delete)))
	}
	if e.http.WebSocket {
		r.Get("/ws", e.counted(e.admitted(e.websocket)))
	}
	if e.http.Metadata != nil {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r.Method(method, metadataPath, plain(e.http.Metadata.ServeHTTP))
			r.Method(method, metadataPath+"/*", plain(e.http.Metadata.ServeHTTP))
		}
	}
	if e.http.Console != nil {
		page := e.counted(e.http.Console.ServeHTTP)
		r.Handle("/console", page)
		r.Handle("/console/*", page)
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		r.Method(method, "/healthz", plain(func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") }))
		r.Method(method, "/readyz", plain(e.ready))
	}
	r.MethodNotAllowed(plain(func(w http.ResponseWriter, r *http.Request) {
		// Every method that the route has (RFC 9110 15.5.6); the router tells one of them.
		allow := "GET, HEAD"
		switch strings.TrimSuffix(r.URL.Path, "/") {
		case "/mcp":
			allow = "GET, POST, DELETE"
		case "/ws":
			allow = "GET"
		}
		w.Header().Set("Allow", allow)
		say(w, http.StatusMethodNotAllowed, "method not allowed")
	}))
	r.NotFound(plain(func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusNotFound, "not found") }))
	return r
}

// plain gives a route the write deadline that the endpoint must not have.
func plain(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(plainTimeout))
		next(w, r)
	}
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n"))
}

func (e *endpoint) ready(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	stopped := e.stopped
	e.mu.Unlock()
	if stopped {
		say(w, http.StatusServiceUnavailable, "stopping")
		return
	}
	if e.http.Ready != nil {
		if err := e.http.Ready(r.Context()); err != nil {
			e.http.Logger.WarnContext(r.Context(), "not ready", "error", err)
			say(w, http.StatusServiceUnavailable, "not ready")
			return
		}
	}
	say(w, http.StatusOK, "ready")
}

// counted bounds the requests at once and lets Serve wait for them.
func (e *endpoint) counted(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		full := e.stopped || e.running >= cmp.Or(e.http.MaxRequests, DefaultMaxRequests)
		if !full {
			e.running++
		}
		e.mu.Unlock()
		if full {
			w.Header().Set("Retry-After", "1")
			failed(w, http.StatusServiceUnavailable, nil, &Error{Code: CodeInternal, Message: "the server is stopping or has too many requests"})
			return
		}
		defer func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.running--
			e.settle()
		}()
		// A client that takes nothing must not keep the server from stopping.
		base := r.Context()
		stop := context.AfterFunc(base, func() {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(stallTimeout))
		})
		defer stop()
		next(w, r)
	}
}

func (e *endpoint) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	e.settle()
}

// settle tells Serve when nothing runs any more; e.mu is held.
func (e *endpoint) settle() {
	if !e.stopped || e.running > 0 {
		return
	}
	select {
	case <-e.drained:
	default:
		close(e.drained)
	}
}
