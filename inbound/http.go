package inbound

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/egress"
)

const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "MCP-Protocol-Version"

	// drainLimit is how long an answered exchange may take to end by itself, so that its
	// connection can be used again.
	drainLimit = time.Second
	// deleteLimit bounds the end of a session at the server.
	deleteLimit = 5 * time.Second

	minReconnect     = 50 * time.Millisecond
	defaultReconnect = time.Second
	maxReconnect     = 30 * time.Second
	maxReconnects    = 64 // of one exchange
)

// A statusError is an HTTP status that answers no request.
type statusError struct {
	status int
	text   string // what the server said, as sent, cut
}

func (e *statusError) Error() string { return "the server answered with " + http.StatusText(e.status) }

// errSessionGone says that the server does not know the session any more.
var errSessionGone = errors.New("the server has ended the session")

// httpWire speaks Streamable HTTP: each message is a POST of its own, and each request a
// lane. It holds no connection open between them.
type httpWire struct {
	client *http.Client
	url    string
	to     sink

	mu      sync.Mutex
	version string // as the handshake settled on, or tries
	session string
	closed  bool
}

func newHTTPWire(target *egress.Target, opt egress.Options, to sink) *httpWire {
	return &httpWire{client: egress.Client(target, opt), url: target.URL().String(), to: to}
}

// setVersion sets the revision that every request from now on names.
func (h *httpWire) setVersion(version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version = version
}

func (h *httpWire) state() (version, session string, closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version, h.session, h.closed
}

// cancelByEnd is true from 2026-07-28 on: before it "Disconnection SHOULD NOT be
// interpreted as the client cancelling its request".
func (h *httpWire) cancelByEnd() bool {
	version, _, _ := h.state()
	return mcp.IsModernProtocol(version)
}

func (h *httpWire) send(ctx context.Context, out *outgoing) error {
	resp, err := h.exchange(ctx, out)
	if err != nil {
		return err
	}
	defer closeBody(resp)
	out.status.Store(int32(resp.StatusCode)) //nolint:gosec // three digits
	if resp.StatusCode/100 != 2 {
		return h.refused(resp, out)
	}
	if out.method == string(mcp.MethodInitialize) {
		h.adopt(resp.Header.Get(headerSession))
	}
	if out.id == 0 {
		return nil
	}
	switch mediaType(resp) {
	case "application/json":
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if !h.to.deliver(out.id, raw) {
			return errBadReply
		}
		return nil
	case "text/event-stream":
		return h.follow(ctx, resp, out)
	}
	return errNoReply
}

// exchange posts a message. The caller closes the body.
func (h *httpWire) exchange(ctx context.Context, out *outgoing) (*http.Response, error) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { out.begun.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(out.body))
	if err != nil {
		return nil, err
	}
	if err := h.address(req); err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	version, _, _ := h.state()
	for name, value := range mcp.StandardHeaders(version, mcp.MCPMethod(out.method), out.params) {
		req.Header.Set(name, value)
	}
	for name, value := range out.header {
		req.Header.Set(name, value)
	}
	return do(h.client, req)
}

// do sends a request. Its error holds nothing of the URL but what egress shows.
func do(client *http.Client, req *http.Request) (*http.Response, error) {
	resp, err := client.Do(req)
	if whole, ok := errors.AsType[*url.Error](err); ok {
		return nil, whole.Err
	}
	return resp, err
}

// address sets what every request of the session says of it.
func (h *httpWire) address(req *http.Request) error {
	version, session, closed := h.state()
	if closed {
		return errClosed
	}
	if version != "" {
		req.Header.Set(headerVersion, version)
	}
	if session != "" && !mcp.IsModernProtocol(version) {
		req.Header.Set(headerSession, session)
	}
	return nil
}

// adopt takes the session id that a server gave with the result of initialize: "MUST
// only contain visible ASCII characters (ranging from 0x21 to 0x7E)" (Transports).
func (h *httpWire) adopt(id string) {
	if len(id) > 1024 || strings.IndexFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) >= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session = id
}

// refused is what becomes of a status that is no success. A JSON-RPC error in the body
// is the response all the same.
func (h *httpWire) refused(resp *http.Response, out *outgoing) error {
	raw, err := io.ReadAll(resp.Body)
	if err != nil && egress.ReasonOf(err) == "" && len(raw) == 0 {
		return &statusError{status: resp.StatusCode}
	}
	_, session, _ := h.state()
	if resp.StatusCode == http.StatusNotFound && session != "" && out.method != string(mcp.MethodInitialize) {
		// "When a client receives HTTP 404 in response to a request containing an
		// Mcp-Session-Id, it MUST start a new session": a run has one only.
		h.to.lost(errSessionGone)
		return errSessionGone
	}
	if out.id != 0 && err == nil && resp.StatusCode != http.StatusUnauthorized {
		if m, bad := parseMessage(raw); bad == nil && m.fault != nil && h.to.deliver(out.id, raw) {
			return nil
		}
	}
	return &statusError{status: resp.StatusCode, text: string(raw[:min(len(raw), maxServerText)])}
}

// follow reads the event stream of a request up to its response, and goes on with it
// where the server ends it early.
func (h *httpWire) follow(ctx context.Context, resp *http.Response, out *outgoing) error {
	var at cursor
	for n := 0; ; n++ {
		answered, err := h.readLane(resp, out, &at)
		if answered || err != nil {
			return err
		}
		if at.id == "" || h.cancelByEnd() || n == maxReconnects {
			return errNoReply
		}
		// "the client SHOULD be able to resume" (2025-11-25, Resumability): a server may end
		// a stream on purpose and be asked again.
		next, err := h.resume(ctx, &at)
		if err != nil {
			return err
		}
		defer closeBody(next) // at most maxReconnects
		resp = next
	}
}

// readLane reads one stream of a request. After the response it reads on for a moment,
// so that the connection can be used again.
func (h *httpWire) readLane(resp *http.Response, out *outgoing, at *cursor) (answered bool, err error) {
	var drain *time.Timer
	err = readEvents(resp.Body, at, func(e event) bool {
		if answered || e.name != "message" {
			return true
		}
		if answered = h.to.deliver(out.id, e.data); answered {
			drain = time.AfterFunc(drainLimit, func() { closeBody(resp) })
		}
		return true
	})
	if drain != nil {
		drain.Stop()
	}
	if answered {
		return true, nil
	}
	return false, err
}

func (h *httpWire) resume(ctx context.Context, at *cursor) (*http.Response, error) {
	delay := defaultReconnect
	if at.retry > 0 {
		delay = min(max(at.retry, minReconnect), maxReconnect)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url, nil)
	if err != nil {
		return nil, err
	}
	if err := h.address(req); err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", at.id)
	resp, err := do(h.client, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || mediaType(resp) != "text/event-stream" {
		closeBody(resp)
		return nil, errNoReply
	}
	return resp, nil
}

// close ends the session at the server, if it has one, and all idle connections.
func (h *httpWire) close(ctx context.Context) error {
	version, session, closed := h.state()
	if closed {
		return nil
	}
	var err error
	if session != "" && !mcp.IsModernProtocol(version) {
		err = h.delete(ctx)
	}
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.client.CloseIdleConnections()
	return err
}

func (h *httpWire) delete(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, deleteLimit)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, h.url, nil)
	if err != nil {
		return err
	}
	if err := h.address(req); err != nil {
		return err
	}
	resp, err := do(h.client, req)
	if err != nil {
		return err
	}
	closeBody(resp)
	return nil // "The server MAY respond with HTTP 405": either way it was told
}

func mediaType(resp *http.Response) string {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return media
}

func closeBody(resp *http.Response) { _ = resp.Body.Close() }
