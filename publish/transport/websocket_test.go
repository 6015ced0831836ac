package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// socketPeer is the client's end of a WebSocket connection.
type socketPeer struct {
	t  *testing.T
	ws *websocket.Conn
}

func (p *page) dial(header ...string) *socketPeer {
	p.t.Helper()
	ws, resp, err := p.tryDial("mcp", header...) //nolint:bodyclose // websocket.Dial closes it
	if err != nil {
		p.t.Fatalf("dial: %v (%v)", err, resp)
	}
	p.t.Cleanup(func() { _ = ws.CloseNow() })
	return &socketPeer{p.t, ws}
}

func (p *page) tryDial(protocol string, header ...string) (*websocket.Conn, *http.Response, error) {
	p.t.Helper()
	ctx, done := context.WithTimeout(p.t.Context(), patience)
	defer done()
	opt := &websocket.DialOptions{HTTPClient: p.client, HTTPHeader: http.Header{}}
	if protocol != "" {
		opt.Subprotocols = []string{protocol}
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			opt.Host = header[i+1]
		}
		opt.HTTPHeader.Add(header[i], header[i+1])
	}
	ws, resp, err := websocket.Dial(ctx, strings.TrimSuffix(p.url, "/mcp")+"/ws", opt)
	if err == nil {
		ws.SetReadLimit(16 << 20)
	}
	return ws, resp, err
}

func (s *socketPeer) send(messages ...string) {
	s.t.Helper()
	for _, m := range messages {
		if err := s.ws.Write(s.t.Context(), websocket.MessageText, []byte(m)); err != nil {
			s.t.Fatalf("send %.80s: %v", m, err)
		}
	}
}

func (s *socketPeer) read() (string, error) {
	ctx, done := context.WithTimeout(s.t.Context(), patience)
	defer done()
	kind, b, err := s.ws.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = fmt.Errorf("a frame of kind %v", kind)
	}
	return string(b), err
}

func (s *socketPeer) receive() string {
	s.t.Helper()
	m, err := s.read()
	if err != nil {
		s.t.Fatalf("receive: %v", err)
	}
	return m
}

// closed reads until the server closes and wants that code.
func (s *socketPeer) closed(want websocket.StatusCode) {
	s.t.Helper()
	for {
		m, err := s.read()
		if err == nil {
			s.t.Logf("before the close: %.200s", m)
			continue
		}
		if got := websocket.CloseStatus(err); got != want {
			s.t.Errorf("closed with %d (%v), want %d", got, err, want)
		}
		return
	}
}

func (s *socketPeer) exchange(message, want string) {
	s.t.Helper()
	s.send(message)
	if got := s.receive(); got != want {
		s.t.Errorf("%.200s: got %.300s, want %.300s", message, got, want)
	}
}

// A connection carries what stdio does, a message a frame.
func TestWebSocketMessages(t *testing.T) {
	t.Parallel()
	s := listen(t, &HTTP{Answer: talk, WebSocket: true}).dial()
	if got := s.ws.Subprotocol(); got != "mcp" {
		t.Errorf("subprotocol = %q, want mcp", got)
	}
	s.exchange(`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, `{"jsonrpc":"2.0","id":9007199254740993,"result":"ping"}`)
	s.exchange("{\"jsonrpc\":\"2.0\",\n\"id\":\"a\",\"method\":\"echo\",\"params\":{\"n\":1e2}}\n", `{"jsonrpc":"2.0","id":"a","result":{"n":1e2}}`)
	s.exchange(`{"jsonrpc":"2.0","id":null,"method":"echo"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: an id is a string or an integer"}}`)
	s.exchange(`[{"jsonrpc":"2.0","id":1,"method":"echo"}]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: a message is one JSON object"}}`)
	s.exchange(`{"jsonrpc":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: not a JSON text in UTF-8"}}`)
	s.send(`{"jsonrpc":"2.0","id":1,"method":"wait"}`)
	if got, want := s.receive(), `{"jsonrpc":"2.0","method":"notifications/waiting","params":{}}`; got != want {
		t.Errorf("wait: got %s, want %s", got, want)
	}
	s.exchange(`{"jsonrpc":"2.0","id":1,"method":"echo"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: the id of a request in flight is used again"}}`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	s.exchange(`{"jsonrpc":"2.0","id":2,"method":"ping"}`, `{"jsonrpc":"2.0","id":2,"result":"ping"}`) // nothing came for 1
	if err := s.ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("Close = %v, want nil", err)
	}
}

// Who may not connect learns it by the status of the handshake.
func TestWebSocketRefused(t *testing.T) {
	t.Parallel()
	p := listen(t, &HTTP{Answer: talk, WebSocket: true, NoMCP: true, Hosts: []string{"flows.example"}, Origins: []string{"https://app.example"}, Admit: func(r *http.Request) (Caller, *Refusal) {
		if r.Header.Get("Authorization") == "" {
			return Caller{}, &Refusal{Status: http.StatusUnauthorized, Challenge: "Bearer", Text: "who"}
		}
		return Caller{Principal: "a"}, nil
	}})
	token := []string{"Authorization", "Bearer x"}
	tests := []struct {
		name     string
		protocol string
		header   []string
		want     int
	}{
		{"with a token", "mcp", token, http.StatusSwitchingProtocols},
		{"a page of this machine", "mcp", append(token, "Origin", "http://localhost:3000"), http.StatusSwitchingProtocols},
		{"a page that is listed", "mcp", append(token, "Origin", "https://app.example"), http.StatusSwitchingProtocols},
		{"a name that is listed", "mcp", append(token, "Host", "flows.example"), http.StatusSwitchingProtocols},
		{"without a token", "mcp", nil, http.StatusUnauthorized},
		{"a page of somebody else", "mcp", append(token, "Origin", "https://evil.example"), http.StatusForbidden},
		{"a sandboxed page", "mcp", append(token, "Origin", "null"), http.StatusForbidden},
		{"another name", "mcp", append(token, "Host", "evil.example"), http.StatusForbidden},
		{"no subprotocol", "", token, http.StatusBadRequest},
		{"another subprotocol", "mcp2", token, http.StatusBadRequest},
	}
	for _, tt := range tests {
		ws, resp, err := p.tryDial(tt.protocol, tt.header...) //nolint:bodyclose // websocket.Dial closes it
		if err == nil {
			_ = ws.CloseNow()
		}
		if resp == nil || resp.StatusCode != tt.want {
			t.Errorf("%s: %v (%v), want status %d", tt.name, resp, err, tt.want)
		}
	}
	for method, want := range map[string]int{http.MethodGet: http.StatusUpgradeRequired, http.MethodPost: http.StatusMethodNotAllowed} {
		req, err := http.NewRequestWithContext(t.Context(), method, strings.TrimSuffix(p.url, "/mcp")+"/ws", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer x")
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without an upgrade = %d, want %d", method, resp.StatusCode, want)
		}
	}
	if got := p.post(hello, "").status; got != http.StatusNotFound {
		t.Errorf("POST /mcp = %d, want 404 since it is left out", got)
	}
}

// A message may have the size of a body; a longer one, and one that is not text,
// end the connection.
func TestWebSocketBounds(t *testing.T) {
	t.Parallel()
	message := func(size int) string {
		m := `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"s":""}}`
		return strings.Replace(m, `""`, `"`+strings.Repeat("x", size-len(m))+`"`, 1)
	}
	t.Run("as it is", func(t *testing.T) {
		t.Parallel()
		p := listen(t, &HTTP{Answer: talk, WebSocket: true})
		s := p.dial()
		s.send(message(DefaultMaxBody))
		if got := s.receive(); len(got) < DefaultMaxBody-32 {
			t.Errorf("a message of 4 MiB: got %.100s", got)
		}
		s.send(message(DefaultMaxBody + 1))
		s.closed(websocket.StatusMessageTooBig)
		p.dial().exchange(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":"ping"}`)
	})
	t.Run("binary", func(t *testing.T) {
		t.Parallel()
		s := listen(t, &HTTP{Answer: talk, WebSocket: true}).dial()
		if err := s.ws.Write(t.Context(), websocket.MessageBinary, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
		s.closed(websocket.StatusUnsupportedData)
	})
	t.Run("held", func(t *testing.T) {
		t.Parallel()
		p := listen(t, &HTTP{Answer: talk, WebSocket: true, MaxHeld: 64 << 10})
		s := p.dial()
		for range 50 { // what was answered is held no more
			s.send(message(20 << 10))
			s.receive()
		}
		wait := strings.Replace(message(20<<10), "echo", "wait", 1)
		for i := range 2 {
			s.send(strings.Replace(wait, `"id":1`, fmt.Sprintf(`"id":%d`, i+2), 1))
			s.receive()
		}
		s.send(strings.Replace(wait, `"id":1`, `"id":9`, 1))
		s.closed(websocket.StatusTryAgainLater)
		p.dial().exchange(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":"ping"}`)
	})
	t.Run("requests", func(t *testing.T) {
		t.Parallel()
		s := listen(t, &HTTP{Answer: talk, WebSocket: true, MaxRequests: 3}).dial() // the connection is one
		for i := range 2 {
			s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"wait"}`, i+2))
			s.receive()
		}
		s.exchange(`{"jsonrpc":"2.0","id":9,"method":"wait"}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32603,"message":"too many requests in flight"}}`)
		s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		for { // its place is free as soon as it has ended
			s.send(`{"jsonrpc":"2.0","id":10,"method":"wait"}`)
			if strings.Contains(s.receive(), "notifications/waiting") {
				return
			}
		}
	})
}

// A message that does not arrive, and a client that does not answer, end the
// connection and with it the waiting of its calls.
func TestWebSocketStalls(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":1,"method":"wait"}`
	tests := []struct {
		name string
		http HTTP
		then func(net.Conn)
	}{
		{"half a message", HTTP{BodyTimeout: time.Second}, func(c net.Conn) {
			_, _ = c.Write([]byte{0x01, 0x84, 0, 0, 0, 0, '{', '"'}) // a text frame that is not the last, half of it
		}},
		{"no pong", HTTP{Heartbeat: 2 * time.Second, pongTimeout: 50 * time.Millisecond}, func(net.Conn) {}},
		{"gone", HTTP{}, func(c net.Conn) { _ = c.Close() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			causes := make(chan error, 1)
			lost := make(chan struct{}, 1)
			h := tt.http
			h.WebSocket = true
			h.Answer = func(ctx context.Context, req *Request) Reply {
				reply := talk(ctx, req)
				causes <- context.Cause(ctx)
				reply.Lost = func() { lost <- struct{}{} }
				return reply
			}
			p := listen(t, &h)
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(p.url, "http://"), "/mcp"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mcp\r\n\r\n")
			_, _ = c.Write(append([]byte{0x81, 0x80 | byte(len(call)), 0, 0, 0, 0}, call...))
			var got bytes.Buffer
			b := make([]byte, 1<<10)
			for !bytes.Contains(got.Bytes(), []byte("notifications/waiting")) {
				n, err := c.Read(b)
				if err != nil {
					t.Fatalf("read: %v after %q", err, got.String())
				}
				got.Write(b[:n])
			}
			tt.then(c)
			select {
			case cause := <-causes:
				if !errors.Is(cause, ErrClosed) {
					t.Errorf("the call's cause = %v, want %v", cause, ErrClosed)
				}
			case <-time.After(patience):
				t.Fatal("the call still waits")
			}
			<-lost
		})
	}
}

// The client is asked on the connection, also after the call was answered.
func TestWebSocketAsk(t *testing.T) {
	t.Parallel()
	answers := make(chan Answer, 1)
	s := listen(t, &HTTP{WebSocket: true, Answer: func(ctx context.Context, req *Request) Reply {
		if req.Method != "ask" {
			return talk(ctx, req)
		}
		go func() {
			a, err := req.Ask(context.WithoutCancel(ctx), "q1", "elicitation/create", json.RawMessage(`{"message":"?"}`))
			if err != nil {
				t.Errorf("Ask = %v", err)
			}
			answers <- a
		}()
		return Reply{Result: json.RawMessage(`{}`)}
	}}).dial()
	s.send(`{"jsonrpc":"2.0","id":1,"method":"ask"}`)
	seen := map[string]bool{s.receive(): true, s.receive(): true}
	if !seen[`{"jsonrpc":"2.0","id":1,"result":{}}`] || !seen[`{"jsonrpc":"2.0","id":"q1","method":"elicitation/create","params":{"message":"?"}}`] {
		t.Errorf("got %v, want the result and the question", seen)
	}
	s.send(`{"jsonrpc":"2.0","id":"q1","result":{"action":"accept"}}`)
	if a := <-answers; string(a.Result) != `{"action":"accept"}` || a.Refused {
		t.Errorf("the answer is %+v", a)
	}
}

// A server that stops answers what waits, and says that it goes.
func TestWebSocketStop(t *testing.T) {
	t.Parallel()
	p := listen(t, &HTTP{Answer: talk, WebSocket: true})
	s, idle := p.dial(), p.dial()
	s.send(`{"jsonrpc":"2.0","id":1,"method":"wait"}`)
	s.receive()
	p.stop()
	if got, want := s.receive(), `{"jsonrpc":"2.0","id":1,"result":"stopped"}`; got != want {
		t.Errorf("at the stop: got %s, want %s", got, want)
	}
	s.closed(websocket.StatusGoingAway)
	idle.closed(websocket.StatusGoingAway)
}

// Admission ends: at once when it is taken back, and when it expires as soon as
// the calls that were admitted are done, which they have a bounded time for.
func TestWebSocketAdmissionEnds(t *testing.T) {
	t.Parallel()
	const refused = `{"jsonrpc":"2.0","id":2,"error":{"code":-32600,"message":"invalid request: the token has expired; connect again with a new one"}}`
	type world struct {
		*socketPeer
		revoke func()
		causes chan error
		finish chan struct{}
	}
	start := func(t *testing.T, expires time.Duration, grace time.Duration) world {
		t.Helper()
		w := world{causes: make(chan error, 1), finish: make(chan struct{})}
		var end atomic.Pointer[func()]
		h := &HTTP{WebSocket: true, expiryGrace: grace}
		h.Answer = func(ctx context.Context, req *Request) Reply {
			if req.Method != "work" {
				return talk(ctx, req)
			}
			_ = req.Notify("notifications/waiting", json.RawMessage(`{}`))
			select {
			case <-ctx.Done():
				w.causes <- context.Cause(ctx)
			case <-w.finish:
			}
			return Reply{Result: json.RawMessage(`"done"`)}
		}
		h.Admit = func(*http.Request) (Caller, *Refusal) {
			c := Caller{Principal: "a", Watch: func(e func()) func() bool {
				end.Store(&e)
				return func() bool { return true }
			}}
			if expires > 0 {
				c.Expires = time.Now().Add(expires)
			}
			return c, nil
		}
		w.socketPeer = listen(t, h).dial()
		w.revoke = func() { (*end.Load())() }
		return w
	}
	work := func(w world) {
		t.Helper()
		w.send(`{"jsonrpc":"2.0","id":1,"method":"work"}`)
		w.receive()
	}
	t.Run("revoked", func(t *testing.T) {
		t.Parallel()
		w := start(t, 0, 0)
		work(w)
		w.revoke()
		w.closed(websocket.StatusPolicyViolation)
		if cause := <-w.causes; !errors.Is(cause, ErrClosed) {
			t.Errorf("the call's cause = %v, want %v", cause, ErrClosed)
		}
	})
	t.Run("expired idle", func(t *testing.T) {
		t.Parallel()
		start(t, 50*time.Millisecond, time.Hour).closed(websocket.StatusPolicyViolation)
	})
	t.Run("expired in a call", func(t *testing.T) {
		t.Parallel()
		w := start(t, 2*time.Second, time.Hour)
		work(w)
		for { // refused as soon as the token has expired
			w.send(`{"jsonrpc":"2.0","id":2,"method":"other"}`)
			if w.receive() == refused {
				break
			}
		}
		close(w.finish)
		if got, want := w.receive(), `{"jsonrpc":"2.0","id":1,"result":"done"}`; got != want {
			t.Errorf("the call that was admitted: got %s, want %s", got, want)
		}
		w.closed(websocket.StatusPolicyViolation)
	})
	t.Run("expired, and the call goes on", func(t *testing.T) {
		t.Parallel()
		w := start(t, 2*time.Second, 50*time.Millisecond)
		work(w)
		w.closed(websocket.StatusPolicyViolation)
		if cause := <-w.causes; !errors.Is(cause, ErrClosed) {
			t.Errorf("the call's cause = %v, want %v", cause, ErrClosed)
		}
	})
}

// What a caller's token does not allow is not answered.
func TestWebSocketPermit(t *testing.T) {
	t.Parallel()
	s := listen(t, &HTTP{
		Answer: talk, WebSocket: true,
		Admit: func(*http.Request) (Caller, *Refusal) { return Caller{Principal: "a", Grant: "few"}, nil },
		Permit: func(req *Request) *Error {
			if req.Grant != "few" || req.Method != "echo" {
				return nil
			}
			return &Error{Code: -32001, Message: "forbidden"}
		},
	}).dial()
	s.exchange(`{"jsonrpc":"2.0","id":1,"method":"echo"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"forbidden"}}`)
	s.exchange(`{"jsonrpc":"2.0","id":2,"method":"other"}`, `{"jsonrpc":"2.0","id":2,"result":"other"}`)
}
