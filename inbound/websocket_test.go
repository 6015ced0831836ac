package inbound

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/relavium/relavium-serve/workflows"
)

// socketServer serves a server over a websocket.
type socketServer struct{ *server }

func (s *socketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(-1)
	to := &serving{server: s.server, out: frames(func(p []byte) error { //nolint:contextcheck // a writer is given no context
		return conn.Write(context.WithoutCancel(r.Context()), websocket.MessageText, p)
	})}
	for {
		_, raw, err := conn.Read(r.Context())
		if err != nil {
			s.note("gone")
			return
		}
		if m, err := parseMessage(raw); err == nil {
			to.handle(m)
		}
	}
}

// frames writes each line as a message.
type frames func(p []byte) error

func (f frames) Write(p []byte) (int, error) {
	return len(p), f(bytes.TrimSuffix(p, []byte("\n")))
}

func TestWebsocket(t *testing.T) {
	for _, modern := range []bool{false, true} {
		s := &socketServer{newServer()}
		s.modern = modern
		size := maxLine
		s.answer = func(c *serving, m message) bool {
			if m.method != "tools/call" {
				return false
			}
			head, tail := `{"jsonrpc":"2.0","result":{"content":[],"x":"`, `"},"id":`+string(m.id)+`}`
			switch textOf(member(member(m.params, "arguments"), "text")) {
			case "bound":
			case "over":
				size = maxLine + 1
			case "far over":
				size = 2 * maxLine
			default:
				return hangs(c, m)
			}
			c.send("%s", head+strings.Repeat("x", size-len(head)-len(tail))+tail)
			return true
		}
		web := httptest.NewServer(s)
		t.Cleanup(web.Close)
		url := "ws" + strings.TrimPrefix(web.URL, "http") + "/ws"
		f := flow(workflows.ServerRef{ID: "s", Transport: "websocket", URL: url, AllowLocalEndpoint: true})
		w := newWorld(t, nil, nil)
		w.mustOpen(t, f)
		if _, err := w.say(t.Context(), f, "s", "bound"); err != nil {
			t.Errorf("Call() at the bound = %v", err)
		}
		for _, text := range []string{"over", "far over"} {
			var err error
			grown := heapGrowth(t, func() { _, err = w.say(t.Context(), f, "s", text) })
			wantFault(t, err, workflows.ToolFailed, ReasonTooLarge, false)
			t.Logf("%s: heap growth %d MiB, the server's own included", text, grown)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			s.wait(t, "tools/call", 4)
			cancel()
		}()
		_, err := w.say(ctx, f, "s", "hang")
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		s.wait(t, "notifications/cancelled", 1)
		if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
			t.Errorf("Call() = %v, %v, want go", got, err)
		}
		w.shutdown(t)
		s.wait(t, "gone", 1)
	}
}

// A websocket of another machine is refused with the transport that serves instead, and
// one that answers otherwise than by an upgrade is a typed failure.
func TestWebsocketRefused(t *testing.T) {
	h := &httpServer{server: newServer()}
	ref := h.listen(t)
	local := "ws" + strings.TrimPrefix(ref.URL, "http")
	for url, want := range map[string]struct {
		local  bool
		reason string
		says   string
	}{
		"wss://public.example/ws": {false, ReasonEgress, "use transport http"},
		local:                     {true, ReasonHandshake, "HTTP 4"},
		"ws://127.0.0.1:1/ws":     {true, ReasonDial, ""},
	} {
		w := newWorld(t, nil, nil)
		err := w.open(t, flow(workflows.ServerRef{ID: "s", Transport: "websocket", URL: url, AllowLocalEndpoint: want.local}))
		if f := wantFault(t, err, workflows.ToolUnavailable, want.reason, false); !strings.Contains(f.Message, want.says) {
			t.Errorf("%s: message = %q, want %q in it", url, f.Message, want.says)
		}
		w.shutdown(t)
	}
}
