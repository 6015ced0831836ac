package transport

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// subprotocol is what a client has to offer (RFC 6455 1.9).
	subprotocol = "mcp"

	// pongTimeout is how long a client that is there may take to answer a ping.
	pongTimeout = 20 * time.Second

	// closeGrace is how long a connection may take to close in good order.
	closeGrace = 500 * time.Millisecond

	// readStep is how many bytes of a message are made room for at first.
	readStep = 4 << 10
)

var (
	// errBinary is the end of a connection on which something else than text came.
	errBinary = errors.New("transport: a message is text")
	// errCrowded is the end of a connection for whose message there is no room.
	errCrowded = errors.New("transport: too many messages in flight")
	// errLate is the end of a connection on which a message began and did not
	// arrive.
	errLate = errors.New("transport: a message did not arrive")
)

// websocket serves one client over a WebSocket connection: as over stdio, one
// message in each text frame, until either side closes. A connection that drops
// ends nothing but the waiting of its calls.
func (e *endpoint) websocket(w http.ResponseWriter, r *http.Request, by *Caller) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(plainTimeout)) // taking the connection over ends it
	upgrade := strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
	if upgrade && !offered(r.Header) {
		say(w, http.StatusBadRequest, `bad request: the subprotocol is "`+subprotocol+`", and Sec-WebSocket-Protocol does not offer it`)
		return
	}
	if !e.opened() {
		say(w, http.StatusServiceUnavailable, "stopping")
		return
	}
	defer e.sockets.Done()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:       []string{subprotocol},
		InsecureSkipVerify: true, // of Origin: every request's was verified before
	})
	if err != nil {
		return // it was answered
	}
	var pinging sync.WaitGroup
	defer pinging.Wait()
	ctx, done := context.WithCancel(context.WithoutCancel(r.Context()))
	defer done()
	s := &socket{endpoint: e, ws: ws, by: by, ctx: ctx}
	ws.SetReadLimit(int64(cmp.Or(e.http.MaxBody, DefaultMaxBody)))
	pinging.Go(func() { s.ping(ctx, cmp.Or(e.http.Heartbeat, DefaultHeartbeat)) })

	c := newConn(e.http.Answer, by, e.http.Logger)
	c.permit = e.http.Permit
	c.notices = e.http.Notices
	c.maxInFlight, c.maxHeld = DefaultMaxInFlight, cmp.Or(e.http.MaxHeld, DefaultMaxHeld)
	c.stopGrace = cmp.Or(e.http.StopGrace, DefaultStopGrace)
	c.expiryGrace = cmp.Or(e.http.expiryGrace, expiryGrace)
	c.read, c.write = s.read, s.write
	c.enter, c.leave = s.enter, s.leave
	code, reason := closing(c.serve(r.Context()))

	// What is still under way on the connection must not keep it from closing.
	_ = control.SetReadDeadline(time.Now().Add(closeGrace))
	_ = control.SetWriteDeadline(time.Now().Add(closeGrace))
	_ = ws.Close(code, reason)
}

// opened counts a connection that Serve waits for; false while it stops.
func (e *endpoint) opened() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.sockets.Add(1)
	}
	return !e.stopped
}

// offered reports whether the client speaks the protocol.
func offered(h http.Header) bool {
	for part := range strings.SplitSeq(strings.Join(h.Values("Sec-WebSocket-Protocol"), ","), ",") {
		if strings.TrimSpace(part) == subprotocol {
			return true
		}
	}
	return false
}

// closing is how the end of a connection is said to the client.
func closing(why error) (code websocket.StatusCode, reason string) {
	switch {
	case errors.Is(why, ErrStopping):
		return websocket.StatusGoingAway, "the server is stopping"
	case errors.Is(why, errRevoked):
		return websocket.StatusPolicyViolation, "the token is revoked"
	case errors.Is(why, errExpired):
		return websocket.StatusPolicyViolation, "the token has expired"
	case errors.Is(why, errBinary):
		return websocket.StatusUnsupportedData, "a message is text"
	case errors.Is(why, websocket.ErrMessageTooBig): // said already
		return websocket.StatusMessageTooBig, "message too long"
	case errors.Is(why, errLate):
		return websocket.StatusPolicyViolation, "the message did not arrive"
	case errors.Is(why, errCrowded):
		return websocket.StatusTryAgainLater, "too many messages in flight"
	}
	return websocket.StatusNormalClosure, ""
}

// A socket is one WebSocket connection.
type socket struct {
	endpoint *endpoint
	ws       *websocket.Conn
	by       *Caller
	ctx      context.Context //nolint:containedctx // of the connection, which its request's does not bound
}

// ping finds out whether the client is there. One that is not, or takes nothing
// of what it is sent, has dropped.
func (s *socket) ping(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		pctx, done := context.WithTimeout(ctx, cmp.Or(s.endpoint.http.pongTimeout, pongTimeout))
		err := s.ws.Ping(pctx)
		done()
		if err != nil {
			_ = s.ws.CloseNow()
			return
		}
	}
}

// read reads a bounded message, which has to arrive within a bounded time once
// it began, and makes room for it among those of all connections.
func (s *socket) read() incoming {
	ctx, end := context.WithCancel(s.ctx)
	defer end()
	kind, r, err := s.ws.Reader(ctx)
	switch {
	case err != nil:
		return incoming{err: dropped(err)}
	case kind != websocket.MessageText:
		return incoming{err: errBinary}
	}
	late := time.AfterFunc(cmp.Or(s.endpoint.http.BodyTimeout, DefaultBodyTimeout), end)
	defer late.Stop()
	held := 0
	free := func() { s.endpoint.letGo(s.by.Principal, held) }
	var line []byte
	for {
		if len(line) == held {
			more := max(held, readStep)
			if !s.endpoint.hold(s.by.Principal, more) {
				free()
				return incoming{err: errCrowded}
			}
			held += more
			line = slices.Grow(line, more)
		}
		n, err := r.Read(line[len(line):held])
		line = line[:len(line)+n]
		switch {
		case errors.Is(err, io.EOF):
			// A call may keep its message for days.
			line = bytes.Clone(line)
			s.endpoint.letGo(s.by.Principal, held-len(line))
			held = len(line)
			return incoming{line: line, free: free}
		case ctx.Err() != nil && s.ctx.Err() == nil:
			free()
			return incoming{err: errLate}
		case err != nil:
			free()
			return incoming{err: dropped(err)}
		}
	}
}

// dropped is the error of a read as the connection's end: io.EOF unless the
// client sent what it must not.
func dropped(err error) error {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return err
	}
	return io.EOF
}

func (s *socket) write(line []byte) error {
	return s.ws.Write(s.ctx, websocket.MessageText, bytes.TrimSpace(line))
}

// enter counts a request on the connection like one by POST.
func (s *socket) enter() bool {
	if s.endpoint.http.Admit != nil && !s.endpoint.enter(s.by.Principal) {
		return false
	}
	e := s.endpoint
	e.mu.Lock()
	full := e.running >= cmp.Or(e.http.MaxRequests, DefaultMaxRequests)
	if !full {
		e.running++
	}
	e.mu.Unlock()
	if full {
		s.unshare()
	}
	return !full
}

func (s *socket) leave() {
	e := s.endpoint
	e.mu.Lock()
	e.running--
	e.settle()
	e.mu.Unlock()
	s.unshare()
}

func (s *socket) unshare() {
	if s.endpoint.http.Admit != nil {
		s.endpoint.leave(s.by.Principal)
	}
}
