package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

const (
	defaultMessage  = 4 << 20  // bytes of one message of a declared server
	openMessage     = 1 << 20  // bytes of one body of an open client
	errorMessage    = 64 << 10 // bytes of the body of a status from 400 on: it is read to be shown, not to be obeyed
	maxHeaderBytes  = 64 << 10
	defaultConnect  = 30 * time.Second
	defaultDeadline = 60 * time.Second
	handshakeLimit  = 10 * time.Second
	idleLimit       = 90 * time.Second
	connsPerHost    = 256
	pingAfter       = 30 * time.Second // of silence on an HTTP/2 connection
	pingLimit       = 15 * time.Second
)

// Options narrow or tune a client. The zero value is the strict default.
type Options struct {
	// MaxMessage bounds one message in bytes: an event of an event stream, else the
	// whole body. Zero is 4 MiB for [Client] and 1 MiB for [OpenClient].
	MaxMessage int64
	// ConnectTimeout bounds the lookup and all attempts to connect. Zero is 30 s.
	ConnectTimeout time.Duration
	// Timeout is the deadline of a request whose context has none, up to the end of
	// its body, or of its header if it is answered with an event stream, which then
	// lasts as long as the context. Zero is 60 s.
	Timeout time.Duration
	// ReturnRedirects makes a 3xx a response like any other. It is never followed.
	ReturnRedirects bool
	// Resolver looks names up. Nil is the system's.
	Resolver Resolver
	// RootCAs are the authorities a server's certificate must come from. Nil is the
	// system's. There is no way to leave the check out.
	RootCAs *x509.CertPool
	// Proxy, from [ParseProxy], is asked by CONNECT for every target that is not local.
	// Names are resolved and addresses checked here all the same: the proxy is given
	// the address. Nil is none; the environment is never asked for one.
	Proxy *Target
	// Control is asked before each socket connects, after the policy; its error
	// refuses the attempt. Nil allows what the policy does.
	Control func(ctx context.Context, addr netip.AddrPort) error

	connect func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) // tests only
}

// Client returns a client that reaches the one origin of t and no other: scheme, host
// and port as declared. It is safe for concurrent use. Its CloseIdleConnections ends
// the connections that no request holds; nothing else needs closing. A request's error
// wraps one of this package's types when the policy, a redirect or a bound ended it;
// the *url.Error around it has the whole URL in its text.
func Client(t *Target, opt Options) *http.Client {
	opt.setDefaults(defaultMessage)
	d := opt.dialer()
	tr := opt.transport(func(ctx context.Context, _, address string) (net.Conn, error) {
		if address != t.HostPort() {
			return nil, t.deny(ReasonOrigin, "not the declared host and port")
		}
		return d.dial(ctx, t)
	})
	if t.websocket { // an upgrade is HTTP/1.1's
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetHTTP1(true)
	}
	return opt.client(tr, func(r *http.Request) (*http.Request, error) {
		if r.URL.Scheme != t.scheme || r.URL.Host != t.url.Host {
			return nil, t.deny(ReasonOrigin, "a request to another origin than the declared one")
		}
		return r, nil
	})
}

// OpenClient returns a client for URLs that are not declared one by one: discovery of
// authorization servers, their keys, and the http_request tool once its own list has
// let a host through. It reaches any public host over https, with the checks of
// [ParseTarget] on every request, and nothing local.
func OpenClient(opt Options) *http.Client {
	opt.setDefaults(openMessage)
	d := opt.dialer()
	tr := opt.transport(func(ctx context.Context, _, address string) (net.Conn, error) {
		t, err := parse("https://"+address, reachPublic)
		if err != nil {
			return nil, err
		}
		return d.dial(ctx, t)
	})
	return opt.client(tr, func(r *http.Request) (*http.Request, error) {
		switch {
		case r.URL.Fragment != "":
			return nil, &DeniedError{Reason: ReasonFragment, Rule: "a fragment in a URL"}
		case strings.ContainsAny(r.URL.Host, "/?#@"):
			return nil, &DeniedError{Reason: ReasonHostname, Rule: "not a host name (RFC 1123, UTS 46)"}
		}
		t, err := parse(r.URL.Scheme+"://"+r.URL.Host, reachPublic)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.URL.Host, r.Host = t.url.Host, ""
		return r, nil
	})
}

func (o *Options) setDefaults(message int64) {
	if o.MaxMessage <= 0 {
		o.MaxMessage = message
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = defaultConnect
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultDeadline
	}
	if o.Resolver == nil {
		o.Resolver = &net.Resolver{}
	}
}

func (o *Options) dialer() *dialer {
	return &dialer{
		resolver: o.Resolver, timeout: o.ConnectTimeout, control: o.Control, connect: o.connect,
		proxy: o.Proxy, roots: o.RootCAs,
	}
}

func (o *Options) transport(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		Proxy:       nil, // HTTP_PROXY, HTTPS_PROXY and ALL_PROXY are not read; Options.Proxy is below the dial
		DialContext: dial,
		// ServerName stays empty: net/http then sends and verifies the host of the URL.
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs},
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // the bound counts the bytes that a reader sees
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSHandshakeTimeout:    handshakeLimit,
		IdleConnTimeout:        idleLimit,
		MaxConnsPerHost:        connsPerHost,
		MaxIdleConnsPerHost:    connsPerHost / 4,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingLimit},
	}
}

func (o *Options) client(tr *http.Transport, check func(*http.Request) (*http.Request, error)) *http.Client {
	return &http.Client{
		Transport: &guard{next: tr, check: check, limit: o.MaxMessage, timeout: o.Timeout, redirects: o.ReturnRedirects},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

// timeoutError is the cause of a request that ended at Options.Timeout.
func timeoutError(after time.Duration) error {
	return fmt.Errorf("egress: no complete answer within %v: %w", after, context.DeadlineExceeded)
}
