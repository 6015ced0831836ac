package egress

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// maxLocationBytes bounds what is shown of a redirect.
const maxLocationBytes = 256

// guard is the RoundTripper around a pinned transport: it checks the request, gives
// it a deadline, refuses redirects and bounds the body.
type guard struct {
	next      *http.Transport
	check     func(*http.Request) (*http.Request, error) // may return another request
	limit     int64
	timeout   time.Duration
	redirects bool // are returned
}

// RoundTrip sends one request.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	report := reportOf(r.Context())
	resp, err := g.roundTrip(r.Context(), r, report)
	if err != nil {
		report(err)
	}
	return resp, err
}

func (g *guard) roundTrip(ctx context.Context, r *http.Request, report func(error)) (*http.Response, error) {
	checked, err := g.checkRequest(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes it, on errors too
		}
		return nil, &unsentError{err}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := func() { cancel(context.Canceled) }
	stop := func() bool { return true }
	if _, has := ctx.Deadline(); !has {
		stop = time.AfterFunc(g.timeout, func() { cancel(timeoutError(g.timeout)) }).Stop
		end = func() { stop(); cancel(context.Canceled) }
	}
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	resp, err := g.next.RoundTrip(checked.WithContext(ctx))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		end()
		if !connected.Load() {
			err = &unsentError{err}
		}
		return nil, err
	}
	if resp.StatusCode/100 == 3 && !g.redirects {
		defer end()
		_ = resp.Body.Close()
		return nil, &RedirectError{Status: resp.StatusCode, Location: location(resp)}
	}
	if rw, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		stop()
		resp.Body = &upgradedBody{rw, end}
		return resp, nil
	}
	return g.bound(ctx, resp, stop, end, report)
}

// bound puts the bounded body in place of the response's own.
func (g *guard) bound(ctx context.Context, resp *http.Response, stop func() bool, end func(), report func(error)) (*http.Response, error) {
	limit := g.limit
	if resp.StatusCode >= 400 {
		limit = min(limit, errorMessage)
	}
	events := isEventStream(resp)
	switch {
	case events:
		stop()
		resp.ContentLength = -1 // line ends may shrink
		resp.Header.Del("Content-Length")
	case resp.ContentLength > limit && resp.Request.Method != http.MethodHead:
		defer end()
		_ = resp.Body.Close()
		return nil, &TooLargeError{Limit: limit}
	}
	resp.Body = &boundedBody{
		body: resp.Body, limit: limit, events: events,
		ctx: func() error { return context.Cause(ctx) }, end: end, report: report,
	}
	return resp, nil
}

// checkRequest refuses what would make a request reach, or name, something else than
// its URL's origin.
func (g *guard) checkRequest(r *http.Request) (*http.Request, error) {
	refuse := func(reason Reason, rule string) (*http.Request, error) {
		return nil, &DeniedError{Reason: reason, Rule: rule}
	}
	switch {
	case r.URL == nil:
		return refuse(ReasonURL, "a request without a URL")
	case r.URL.Opaque != "" || r.Method == http.MethodConnect:
		return refuse(ReasonOrigin, "a request target that is not a path")
	case r.URL.User != nil:
		return refuse(ReasonUserinfo, "credentials in a URL")
	case r.Host != "" && r.Host != r.URL.Host:
		return refuse(ReasonOrigin, "a Host other than the URL's")
	}
	return g.check(r)
}

// CloseIdleConnections closes what no request holds. Without it here the client's
// method of that name would do nothing.
func (g *guard) CloseIdleConnections() { g.next.CloseIdleConnections() }

// location returns where a redirect leads, fit to be shown.
func location(resp *http.Response) string {
	u, err := resp.Location()
	if err != nil {
		return ""
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	s := shown.String()
	if len(s) > maxLocationBytes {
		s = strings.ToValidUTF8(s[:maxLocationBytes], "")
	}
	return s
}
