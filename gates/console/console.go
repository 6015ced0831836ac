package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/relavium/relavium-serve/engine"
)

// Bounds of what comes from outside.
const (
	maxForm     = 2 << 20 // bytes of a posted form: 256 KiB of value and 64 KiB of comment, escaped
	maxHeader   = 64 << 10
	maxStreams  = 128              // pages that keep themselves current, at once
	pageTimeout = 10 * time.Second // to read the store for one page and to write it
	idleTimeout = 2 * time.Minute
	stopTimeout = 2 * time.Second
)

// Login tells who a secret belongs to that a person typed on the login page, or
// that a request brings as its bearer token.
type Login interface {
	// Admit returns whom the secret belongs to, or false. It compares in
	// constant time; the console bounds how often it is asked.
	Admit(ctx context.Context, secret string) (*Visitor, bool)
}

// Seals encrypt for a purpose, and decrypt what they encrypted for it here or where the
// same keys are.
type Seals interface {
	SealAs(purpose string, plain []byte) string
	OpenAs(purpose, sealed string) ([]byte, error)
}

// Options configure New. Engine, Login and Logger are required.
type Options struct {
	Engine *engine.Engine
	Login  Login
	Logger *slog.Logger

	// Prefix is the path below which the console is served, such as "/console";
	// "" means the root.
	Prefix string
	// Hosts are allowed in Host besides loopback names: a name with any port, or
	// name:port.
	Hosts []string
	// Secure says that browsers come over TLS even where this process does not
	// see it, as behind a proxy.
	Secure bool
	// Refused says why gates of the run are not decided by the principal through
	// the console; nil, or a nil function, allows it. The text is shown.
	Refused func(ctx context.Context, run *engine.Run, by engine.Principal) error

	// Seals are the keys that replicas share: a login holds on each of them then. Nil
	// keeps logins in memory, for this process.
	Seals Seals

	Now  func() time.Time // nil means time.Now
	Poll time.Duration    // how often an open page looks for news; 0 means 700 ms
}

// A Console is the http.Handler of all pages. It is safe for concurrent use and
// needs no closing: what it has open ends with the requests.
type Console struct {
	opt      Options
	log      *slog.Logger
	assets   *assets
	sessions *sessions
	tries    *tries
	streams  chan struct{}
	routes   http.Handler
}

// New makes a console.
func New(opt Options) (*Console, error) {
	switch {
	case opt.Engine == nil:
		return nil, errors.New("console: Options.Engine is required")
	case opt.Login == nil:
		return nil, errors.New("console: Options.Login is required")
	case opt.Logger == nil:
		return nil, errors.New("console: Options.Logger is required")
	case opt.Prefix != "" && (opt.Prefix[0] != '/' || strings.HasSuffix(opt.Prefix, "/")):
		return nil, fmt.Errorf("console: Options.Prefix is %q, want a path that begins and does not end with a slash", opt.Prefix)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Poll <= 0 {
		opt.Poll = 700 * time.Millisecond
	}
	if opt.Refused == nil {
		opt.Refused = func(context.Context, *engine.Run, engine.Principal) error { return nil }
	}
	pages, err := loadAssets(opt.Prefix)
	if err != nil {
		return nil, err
	}
	c := &Console{
		opt: opt, log: opt.Logger, assets: pages,
		sessions: newSessions(opt.Now), tries: &tries{now: opt.Now},
		streams: make(chan struct{}, maxStreams),
	}
	c.sessions.seals = opt.Seals
	c.routes = c.router()
	return c, nil
}

// ServeHTTP answers one request.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// Another chi router may have looked at the path already; this one starts anew.
	r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, (*chi.Context)(nil)))
	c.routes.ServeHTTP(w, r)
}

func (c *Console) router() http.Handler {
	pages := chi.NewRouter()
	pages.Get("/assets/{name}", c.asset)
	pages.Get("/login", c.loginPage)
	pages.Post("/login", c.login)
	pages.Group(func(r chi.Router) {
		r.Get("/", c.known(c.inbox))
		r.Get("/live", c.known(c.inboxLive))
		r.Get("/gates/{gate}", c.known(c.gatePage))
		r.Get("/gates/{gate}/live", c.known(c.gateLive))
		r.Post("/gates/{gate}", c.known(c.decide))
		r.Get("/runs", c.known(c.runs))
		r.Get("/runs/live", c.known(c.runsLive))
		r.Get("/runs/{run}", c.known(c.runPage))
		r.Get("/runs/{run}/live", c.known(c.runLive))
		r.Get("/runs/{run}/outputs/{node}", c.known(c.output))
		r.Get("/runs/{run}/cancel", c.known(c.cancelPage))
		r.Post("/runs/{run}/cancel", c.known(c.cancel))
		r.Post("/logout", c.known(c.logout))
	})
	pages.NotFound(c.notFound)
	pages.MethodNotAllowed(c.notAllowed)

	root := chi.NewRouter()
	root.Use(c.guard)
	root.NotFound(c.notFound)
	root.MethodNotAllowed(c.notAllowed)
	if c.opt.Prefix == "" {
		root.Mount("/", pages)
		return root
	}
	root.Mount(c.opt.Prefix, pages)
	return root
}

// guard sets what every answer carries and refuses requests for another host,
// which a page reaches by rebinding its own name to this machine, and changes
// that are not asked for from this very origin.
func (c *Console) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(pageTimeout))
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "+
			"form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin") // no-referrer would make a form's Origin "null"
		h.Set("Cache-Control", "no-store")
		switch {
		case !c.host(r.Host):
			c.fail(w, r, http.StatusForbidden, "This name is not the console's", "Open it by the address that the terminal shows.")
		case r.Method != http.MethodGet && r.Method != http.MethodHead && !ownOrigin(r):
			c.fail(w, r, http.StatusForbidden, "This did not come from the console", "Open the page in the console and send its form.")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// host reports whether the console may be reached by this name.
func (c *Console) host(value string) bool {
	name := value
	if host, port, err := net.SplitHostPort(value); err == nil {
		if strings.ContainsFunc(port, func(r rune) bool { return r < '0' || r > '9' }) {
			return false
		}
		name = host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if name == "localhost" {
		return true
	}
	if a, err := netip.ParseAddr(name); err == nil && a.Zone() == "" && a.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(c.opt.Hosts, func(h string) bool { return strings.EqualFold(h, name) || strings.EqualFold(h, value) })
}

// ownOrigin reports whether the browser says that the request comes from a page
// of this origin. A request without Origin needs the browser's own word.
func ownOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	switch len(origins) {
	case 0:
		return r.Header.Get("Sec-Fetch-Site") == "same-origin"
	case 1:
		return strings.EqualFold(origins[0], "http://"+r.Host) || strings.EqualFold(origins[0], "https://"+r.Host)
	}
	return false
}

// Serve answers what l accepts until ctx ends, and closes l. Requests under way
// may then finish within 2 s.
func (c *Console) Serve(ctx context.Context, l net.Listener) error {
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	srv := &http.Server{
		Handler:           c,
		ReadHeaderTimeout: pageTimeout,
		ReadTimeout:       pageTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("console: %w", err)
	case <-ctx.Done():
	}
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer done()
	end() // open pages
	_ = srv.Shutdown(stop)
	_ = srv.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("console: %w", err)
	}
	return nil
}
