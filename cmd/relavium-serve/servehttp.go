package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// httpFlags are the flags of serve --transport http.
type httpFlags struct {
	listen   string
	insecure bool
	origins  []string
	hosts    []string
}

func (h *httpFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&h.listen, "listen", "", "address of --transport http (default 127.0.0.1:7411)")
	f.BoolVar(&h.insecure, "insecure-no-auth", false, "let anybody who reaches an address that is not loopback call")
	f.StringArrayVar(&h.origins, "allow-origin", nil, "let pages of this origin call, scheme://host[:port] (repeatable)")
	f.StringArrayVar(&h.hosts, "allow-host", nil, "answer to this name in Host, besides loopback names (repeatable)")
}

// given is the first of the flags that was given, or "".
func (h *httpFlags) given(cmd *cobra.Command) string {
	for _, name := range []string{"listen", "insecure-no-auth", "allow-origin", "allow-host"} {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

// listenHTTP opens the address to serve on. The caller closes it.
func (a *app) listenHTTP(ctx context.Context, at *site, flags *httpFlags) (net.Listener, publish.HTTPOptions, error) {
	var opt publish.HTTPOptions
	address, from := *at.Serve.Listen, "[serve] listen"
	if flags.listen != "" {
		address, from = flags.listen, "--listen"
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, opt, invalid("", "%s: expected HOST:PORT, such as 127.0.0.1:7411", from)
	}
	opt.Origins = slices.Concat(at.Serve.AllowOrigins, flags.origins)
	for _, origin := range opt.Origins {
		if u, err := url.Parse(origin); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || strings.Contains(u.Host, "*") {
			return nil, opt, invalid("", "--allow-origin, [serve] allow_origins: expected scheme://host[:port], such as https://app.example")
		}
	}
	opt.Hosts = slices.Concat(at.Serve.AllowHosts, flags.hosts)
	if ip, err := netip.ParseAddr(host); host != "" && (err != nil || !ip.IsUnspecified()) {
		opt.Hosts = append(opt.Hosts, host)
	}
	opt.SessionIdle = atLeast(at.Serve.SessionIdle.value(30 * time.Minute))
	if !loopbackHost(host) && !flags.insecure {
		return nil, opt, openToAll(from)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, opt, fmt.Errorf("listen: %w", err)
	}
	if bound, ok := l.Addr().(*net.TCPAddr); !flags.insecure && (!ok || !bound.IP.IsLoopback()) {
		_ = l.Close()
		return nil, opt, openToAll(from)
	}
	return l, opt, nil
}

func openToAll(from string) error {
	return invalid("listen on 127.0.0.1 or [::1], or say --insecure-no-auth if whoever reaches the address may call",
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

// serveHTTP answers on l until ctx ends. The console is beside the endpoint where
// only this machine reaches it.
func (a *app) serveHTTP(ctx context.Context, at *site, eng *engine.Engine, server *publish.Server, l net.Listener, opt publish.HTTPOptions) error {
	base := "http://" + l.Addr().String()
	at.log.InfoContext(ctx, "listening", "url", base+"/mcp")
	if bound, ok := l.Addr().(*net.TCPAddr); ok && bound.IP.IsLoopback() {
		page, err := a.consoleOf(at, eng, consolePrefix, opt.Hosts...)
		if err != nil {
			return err
		}
		opt.Console = page
		at.log.InfoContext(ctx, "console is listening", "url", base+consolePrefix)
		sayToken(ctx, at)
		at.log.WarnContext(ctx, "without authentication every user of this machine may call")
	} else {
		at.log.WarnContext(ctx, "without authentication everybody who reaches this address may call", "hosts", strings.Join(opt.Hosts, ", "))
	}
	return server.ServeHTTPOn(ctx, l, opt)
}
