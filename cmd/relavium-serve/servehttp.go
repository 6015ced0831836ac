package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
)

const (
	authNone  = "none"
	authToken = string(access.ModeToken)
	authOAuth = string(access.ModeOAuth)
)

// httpFlags are the flags of serve --transport http and websocket.
type httpFlags struct {
	mcp         bool // /mcp is served
	websocket   bool // /ws is served
	listen      string
	insecure    bool
	origins     []string
	hosts       []string
	auth        string
	tlsCert     string
	tlsKey      string
	behindProxy bool
	publicURL   string
}

func (h *httpFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.listen, "listen", "", "address of --transport http and websocket (default 127.0.0.1:7411)")
	f.StringVar(&h.auth, "auth", authNone, "how callers show who they are: none, token (see token create) or oauth (see [auth])")
	f.BoolVar(&h.insecure, "insecure-no-auth", false, "let anybody who reaches an address that is not loopback call")
	f.StringVar(&h.tlsCert, "tls-cert", "", "serve TLS with this certificate, a PEM file")
	f.StringVar(&h.tlsKey, "tls-key", "", "the key of --tls-cert, a PEM file")
	f.BoolVar(&h.behindProxy, "behind-proxy", false, "a proxy in front ends TLS and writes X-Forwarded-For")
	f.StringVar(&h.publicURL, "public-url", "", "the URL by which clients reach the server, without /mcp")
	f.StringArrayVar(&h.origins, "allow-origin", nil, "let pages of this origin call, scheme://host[:port] (repeatable)")
	f.StringArrayVar(&h.hosts, "allow-host", nil, "answer to this name in Host, besides loopback names (repeatable)")
}

// given is the first of the flags that was given, or "".
func (h *httpFlags) given(cmd *cobra.Command) string {
	for _, name := range []string{"listen", "insecure-no-auth", "tls-cert", "tls-key", "behind-proxy", "public-url", "allow-origin", "allow-host"} {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	if h.auth != authNone {
		return "auth"
	}
	return ""
}

// An entrance is how the server is reached and by whom. The zero value is that of
// stdio.
type entrance struct {
	address string
	from    string // flag or key that has the address
	host    string // of the address
	auth    string // none, token or oauth; "" over stdio
	public  *url.URL
	origins []string
	hosts   []string

	who         *access.Access // knows the callers, and whom the console lets in
	tls         *tls.Config
	behindProxy bool
	insecure    bool
	mcp         bool // /mcp is served
	websocket   bool // /ws is served
}

// strangers reports whether callers may be others than the person whose process
// this is.
func (e *entrance) strangers() bool {
	return e.known() || e.auth != "" && (e.behindProxy || !loopbackHost(e.host))
}

// known reports whether callers have to show who they are.
func (e *entrance) known() bool { return e.auth == authToken || e.auth == authOAuth }

// entrance reads flags and keys and refuses what would let in whom it must not.
func (at *site) entrance(flags *httpFlags) (*entrance, error) {
	e := &entrance{
		address: *at.Serve.Listen, from: "[serve] listen", auth: flags.auth, insecure: flags.insecure,
		mcp: flags.mcp, websocket: flags.websocket,
		behindProxy: flags.behindProxy || at.Serve.BehindProxy != nil && *at.Serve.BehindProxy,
		origins:     slices.Concat(at.Serve.AllowOrigins, flags.origins),
		hosts:       slices.Concat(at.Serve.AllowHosts, flags.hosts),
	}
	if flags.listen != "" {
		e.address, e.from = flags.listen, "--listen"
	}
	var err error
	if e.host, _, err = net.SplitHostPort(e.address); err != nil {
		return nil, invalid("", "%s: expected HOST:PORT, such as 127.0.0.1:7411", e.from)
	}
	switch e.auth {
	case authNone, authToken, authOAuth:
	default:
		return nil, invalid("", "--auth: expected none, token or oauth")
	}
	for _, origin := range e.origins {
		if u, err := url.Parse(origin); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || strings.Contains(u.Host, "*") {
			return nil, invalid("", "--allow-origin, [serve] allow_origins: expected scheme://host[:port], such as https://app.example")
		}
	}
	if err := at.publicURL(e, flags.publicURL); err != nil {
		return nil, err
	}
	if err := at.certificate(e, flags); err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(e.host); e.host != "" && (err != nil || !ip.IsUnspecified()) {
		e.hosts = append(e.hosts, e.host)
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	e.who, err = at.access(e)
	return e, err
}

// publicURL sets the URL by which clients know the server, whose host is then
// allowed.
func (at *site) publicURL(e *entrance, flag string) error {
	raw, from := flag, "--public-url"
	if raw == "" && at.Serve.PublicURL != nil {
		raw, from = *at.Serve.PublicURL, "[serve] public_url"
	}
	if raw == "" {
		return nil
	}
	u, err := url.Parse(strings.TrimSuffix(raw, "/"))
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || strings.ContainsAny(raw, "?#"):
		return invalid("", "%s: expected the URL by which clients reach the server, such as https://flows.example", from)
	case u.Scheme == "http" && !loopbackHost(u.Hostname()):
		return invalid("", "%s: expected an https URL; http is for loopback alone", from)
	}
	e.public = u
	e.hosts = append(e.hosts, u.Host)
	if u.Port() == "" {
		e.hosts = append(e.hosts, u.Hostname())
	}
	e.origins = append(e.origins, u.Scheme+"://"+u.Host)
	return nil
}

// certificate loads what TLS is served with, if it is. Paths in config.toml are
// relative to the home.
func (at *site) certificate(e *entrance, flags *httpFlags) error {
	file := func(flag string, key *string) string {
		switch {
		case flag != "" && filepath.IsAbs(flag):
			return flag
		case flag != "":
			return filepath.Join(at.cwd, flag)
		case key == nil || *key == "":
			return ""
		case filepath.IsAbs(*key):
			return *key
		}
		return filepath.Join(at.home, *key)
	}
	cert, key := file(flags.tlsCert, at.Serve.TLSCert), file(flags.tlsKey, at.Serve.TLSKey)
	switch {
	case cert == "" && key == "":
		return nil
	case cert == "" || key == "":
		return invalid("give --tls-cert and --tls-key both", "TLS needs a certificate and its key")
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return invalid("", "--tls-cert, --tls-key: not a certificate in PEM with its key")
	}
	e.tls = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	return nil
}

// check refuses an entrance through which anybody could call, or tokens would go
// in clear.
func (e *entrance) check() error {
	switch {
	case e.insecure && e.known():
		return invalid("leave one of them out", "--insecure-no-auth and --auth %s contradict each other", e.auth)
	case e.auth == authOAuth && e.public == nil:
		return invalid("set --public-url or [serve] public_url", "--auth oauth: the URL by which clients know the server is not set, and tokens must name it")
	case e.websocket && e.insecure && (e.behindProxy || !loopbackHost(e.host)):
		return invalid("add --auth token or --auth oauth, or leave --transport websocket out",
			"--transport websocket: without authentication only this machine may connect")
	case e.insecure:
		return nil
	case e.behindProxy && !e.known():
		return invalid("add --auth token or --auth oauth, or say --insecure-no-auth if whoever reaches the proxy may call",
			"--behind-proxy: whoever the proxy lets through could call, and there is no authentication")
	case loopbackHost(e.host):
		return nil
	case !e.known():
		return openToAll(e.from)
	case e.tls == nil && !e.behindProxy:
		return invalid("add --tls-cert and --tls-key, or --behind-proxy where a proxy in front ends TLS",
			"%s: the address is not loopback, and tokens would go over the network in clear", e.from)
	}
	return nil
}

func openToAll(from string) error {
	return invalid("listen on 127.0.0.1 or [::1], add --auth token or --auth oauth, or say --insecure-no-auth if whoever reaches the address may call",
		"%s: the address is not loopback and there is no authentication", from)
}

// loopbackHost reports whether only this machine reaches the host.
func loopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// listenHTTP opens the address to serve on. The caller closes it.
func (at *site) listenHTTP(ctx context.Context, e *entrance) (net.Listener, publish.HTTPOptions, error) {
	opt := publish.HTTPOptions{
		Hosts: e.hosts, Origins: e.origins, SessionIdle: atLeast(at.Serve.SessionIdle.value(30 * time.Minute)),
		WebSocket: e.websocket, NoMCP: !e.mcp,
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", e.address)
	if err != nil {
		return nil, opt, fmt.Errorf("listen: %w", err)
	}
	if !loopbackListener(l) && loopbackHost(e.host) { // a name that resolves to something else
		_ = l.Close()
		return nil, opt, openToAll(e.from)
	}
	if e.tls != nil {
		l = tls.NewListener(l, e.tls)
	}
	return l, opt, nil
}

func loopbackListener(l net.Listener) bool {
	bound, ok := l.Addr().(*net.TCPAddr)
	return ok && bound.IP.IsLoopback()
}

// base is the URL of what l serves, for people on this machine.
func (e *entrance) base(l net.Listener) string {
	if e.tls != nil {
		return "https://" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

// serveHTTP answers on l until ctx ends, with the console beside the endpoint
// where only this machine reaches it or callers have to show who they are.
func (a *app) serveHTTP(ctx context.Context, at *site, e *entrance, eng *engine.Engine, server *publish.Server, l net.Listener, opt publish.HTTPOptions) error {
	// Callers are known for as long as their calls are answered: when the server
	// stops, too.
	actx, end := context.WithCancel(context.WithoutCancel(ctx))
	var current sync.WaitGroup
	defer current.Wait()
	defer end()
	ready := make(chan struct{})
	current.Go(func() { e.who.Run(actx, func() { close(ready) }) })
	if e.known() {
		opt.Access = e.who
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	base, onLoopback := e.base(l), loopbackListener(l)
	if e.mcp {
		at.log.InfoContext(ctx, "listening", "url", base+"/mcp", "auth", e.auth)
	}
	if e.websocket {
		at.log.InfoContext(ctx, "listening", "url", "ws"+strings.TrimPrefix(base, "http")+"/ws", "auth", e.auth)
	}
	if onLoopback || e.known() {
		page, err := a.consoleOf(ctx, at, eng, at.doors(e.who, onLoopback), e, consolePrefix)
		if err != nil {
			return err
		}
		opt.Console = page
		at.log.InfoContext(ctx, "console is listening", "url", base+consolePrefix)
		if onLoopback {
			sayToken(ctx, at)
		}
	}
	at.sayWhoMayCall(ctx, e, opt.Hosts, onLoopback)
	return server.ServeHTTPOn(ctx, l, opt)
}

// sayWhoMayCall tells of what an operator should know who did not mean it.
func (at *site) sayWhoMayCall(ctx context.Context, e *entrance, hosts []string, onLoopback bool) {
	switch {
	case !e.known() && onLoopback:
		at.log.WarnContext(ctx, "without authentication every user of this machine may call")
	case !e.known():
		at.log.WarnContext(ctx, "without authentication everybody who reaches this address may call", "hosts", strings.Join(hosts, ", "))
	case !onLoopback && len(hosts) == 0:
		at.log.WarnContext(ctx, "only loopback names are answered: name the host by which clients reach the server with --public-url or --allow-host")
	}
	if e.auth != authToken {
		return
	}
	tokens, err := at.tokens().Tokens(ctx)
	if err == nil && !slices.ContainsFunc(tokens, func(t access.Token) bool { return t.Live(time.Now()) }) {
		at.log.WarnContext(ctx, "there is no token, so nobody may call: make one with relavium-serve token create")
	}
}
