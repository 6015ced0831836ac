package inbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/workflows"
)

// A httpServer serves a server over Streamable HTTP.
type httpServer struct {
	*server
	json    bool   // answers with one JSON body, not with events
	session string // that it gives at initialize, or ""
	// before may answer a request in its own way, and says whether it did.
	before func(w http.ResponseWriter, r *http.Request, body []byte) bool

	mu       sync.Mutex
	requests []*http.Request // without bodies
}

func (h *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	h.requests = append(h.requests, r)
	h.mu.Unlock()
	if r.Method != http.MethodPost {
		h.note(r.Method)
	}
	if h.before != nil && h.before(w, r, body) {
		return
	}
	switch r.Method {
	case http.MethodDelete:
		return
	case http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	m, err := parseMessage(body)
	if err != nil {
		h.note("bad " + string(body))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if m.id == nil || m.method == "" {
		(&serving{server: h.server, out: io.Discard}).handle(m)
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if m.method == "initialize" && h.session != "" {
		w.Header().Set(headerSession, h.session)
	}
	replied := make(chan struct{})
	conn := &serving{server: h.server, out: events{w}}
	if h.json {
		conn.out = w
		w.Header().Set("Content-Type", "application/json")
	} else {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	conn.sent = func(line string) {
		if !strings.Contains(line, `"method"`) {
			close(replied)
		}
	}
	conn.handle(m)
	select {
	case <-replied:
	case <-r.Context().Done():
		h.note("gone " + m.method)
	}
}

// events writes each line as an event.
type events struct{ w http.ResponseWriter }

func (e events) Write(p []byte) (int, error) {
	_, err := fmt.Fprintf(e.w, "data: %s\n\n", strings.TrimSuffix(string(p), "\n"))
	_ = http.NewResponseController(e.w).Flush()
	return len(p), err
}

// header returns the values of a header in the requests whose body had the method.
func (h *httpServer) seen() []*http.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*http.Request(nil), h.requests...)
}

// listen serves it on this machine and returns how agents declare it.
func (h *httpServer) listen(t *testing.T) workflows.ServerRef {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	return workflows.ServerRef{ID: "s", Transport: "http", URL: web.URL + "/mcp", AllowLocalEndpoint: true}
}

// eras are servers of both eras of the protocol, with both forms of a response.
func eras() map[string]*httpServer {
	return map[string]*httpServer{
		"old events": {server: newServer(), session: "session-1"},
		"old JSON":   {server: newServer(), session: "session-1", json: true},
		"new events": {server: newModern()},
		"new JSON":   {server: newModern(), json: true},
	}
}

func newModern() *server {
	s := newServer()
	s.modern = true
	return s
}

func TestHTTPSession(t *testing.T) {
	for name, h := range eras() {
		t.Run(name, func(t *testing.T) {
			w, f := newWorld(t, nil, nil), flow(h.listen(t))
			w.mustOpen(t, f)
			for i := range 3 {
				text := fmt.Sprintf("<&%d>\u2028", i)
				if got, err := w.say(t.Context(), f, "s", text); err != nil || got.Text != text {
					t.Errorf("Call() = %v, %v, want %q", got, err, text)
				}
			}
			w.shutdown(t)
			deletes, wantDeletes := h.count(http.MethodDelete), 1
			if h.modern {
				wantDeletes = 0
			}
			if deletes != wantDeletes || h.count("initialize") > 1 || h.count("tools/call") != 3 {
				t.Errorf("the server got %q, want %d DELETE", h.log(), wantDeletes)
			}
			for i, r := range h.seen() {
				version, session := r.Header.Get("Mcp-Protocol-Version"), r.Header.Get("Mcp-Session-Id")
				switch {
				case h.modern && (version != "2026-07-28" || session != "" || r.Header.Get("Mcp-Method") == ""):
					t.Errorf("request %d: version %q, session %q, method %q", i, version, session, r.Header.Get("Mcp-Method"))
				case !h.modern && i >= 2 && (version != "2025-11-25" || session != "session-1"):
					t.Errorf("request %d: version %q, session %q", i, version, session)
				}
			}
		})
	}
}

func TestHTTPParamHeaders(t *testing.T) {
	h := &httpServer{server: newServer()}
	h.modern = true
	h.pages = []string{`{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string","x-mcp-header":"Text"}}}},` +
		`{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}}]}`}
	w, f := newWorld(t, nil, nil), flow(h.listen(t))
	w.mustOpen(t, f)
	if _, err := w.say(t.Context(), f, "s", "owls"); err != nil {
		t.Fatal(err)
	}
	if tools := w.Tools("r", &f.Agents[0]); len(tools) != 1 {
		t.Errorf("%d tools, want the one whose headers can be sent", len(tools))
	}
	w.shutdown(t)
	requests := h.seen()
	if got := requests[len(requests)-1].Header.Get("Mcp-Param-Text"); got != "owls" {
		t.Errorf("Mcp-Param-Text = %q, want owls", got)
	}
}

// A cancel reaches the server: by a notice before 2026-07-28, by the end of the exchange
// from then on.
func TestHTTPCancel(t *testing.T) {
	for name, h := range eras() {
		t.Run(name, func(t *testing.T) {
			h.answer = hangs
			w, f := newWorld(t, nil, nil), flow(h.listen(t))
			w.mustOpen(t, f)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				h.wait(t, "tools/call", 1)
				cancel()
			}()
			_, err := w.say(ctx, f, "s", "hang")
			wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
			h.wait(t, "gone", 1)
			want := 1
			if h.modern {
				want = 0
			}
			if n := h.count("notifications/cancelled"); n != want {
				t.Errorf("%d notices, want %d; the server got %q", n, want, h.log())
			}
			if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
				t.Errorf("the next call = %v, %v, want go", got, err)
			}
			w.shutdown(t)
		})
	}
}

// An over-bound response fails its call in fixed words; one at the bound does not; the
// session lives.
func TestHTTPTooLarge(t *testing.T) {
	const bound = 4 << 20
	for name, h := range eras() {
		t.Run(name, func(t *testing.T) {
			size := 0
			h.answer = func(c *serving, m message) bool {
				if m.method != "tools/call" || textOf(member(member(m.params, "arguments"), "text")) == "go" {
					return false
				}
				frame := `{"jsonrpc":"2.0","id":` + string(m.id) + `,"result":{"content":[],"x":"` + `"}}`
				n := size - len(frame) - 1 // and the line's end
				if !h.json {
					n -= len("data: ")
				}
				c.reply(m.id, `{"content":[],"x":"`+strings.Repeat("x", n)+`"}`)
				return true
			}
			w, f := newWorld(t, nil, nil), flow(h.listen(t))
			w.mustOpen(t, f)
			size = bound
			if _, err := w.say(t.Context(), f, "s", "at the bound"); err != nil {
				t.Errorf("Call() at the bound = %v", err)
			}
			size = bound + 1
			_, err := w.say(t.Context(), f, "s", "one over")
			if fault := wantFault(t, err, workflows.ToolFailed, ReasonTooLarge, false); fault.Message != "a message is over the bound" {
				t.Errorf("message = %q, want fixed words", fault.Message)
			}
			if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
				t.Errorf("the next call = %v, %v, want go", got, err)
			}
			w.shutdown(t)
		})
	}
}

func TestHTTPRedirects(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	for status, to := range map[int]string{
		307: other.URL + "/", 302: "https://public.example/mcp", 308: "/mcp/", 301: "//" + strings.TrimPrefix(other.URL, "http://"), 303: "http://localhost:6379/",
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			h := &httpServer{server: newServer()}
			h.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.Header().Set("Location", to)
				w.WriteHeader(status)
				return true
			}
			w := newWorld(t, nil, nil)
			f := wantFault(t, w.open(t, flow(h.listen(t))), workflows.ToolUnavailable, ReasonRedirect, false)
			if !strings.Contains(f.Message, fmt.Sprint(status)) || !strings.Contains(f.Message, "declare the final URL") {
				t.Errorf("message = %q, want the redirect and the remedy", f.Message)
			}
			if n := len(h.seen()); n != 1 {
				t.Errorf("the server got %d requests, want 1", n)
			}
			w.shutdown(t)
		})
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("the other server got %d requests, want none", n)
	}
}

func TestHTTPStatus(t *testing.T) {
	tests := []struct {
		status   int
		body     string
		reason   string
		requests int
	}{
		{401, "", ReasonUnauthorized, 1},
		{403, "", ReasonUnauthorized, 1},
		{500, strings.Repeat("<secret> ", 6000), ReasonHandshake, 2},
		{404, "no", ReasonHandshake, 2},
		{502, "", ReasonHandshake, 2},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.status), func(t *testing.T) {
			h := &httpServer{server: newServer()}
			h.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="http://169.254.169.254/x"`)
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
				return true
			}
			w := newWorld(t, nil, nil)
			f := wantFault(t, w.open(t, flow(h.listen(t))), workflows.ToolUnavailable, test.reason, false)
			if !strings.Contains(f.Message, fmt.Sprint(test.status)) || f.Server != "s" {
				t.Errorf("error = %v, want the server and its status", f)
			}
			if n := len(h.seen()); n != test.requests {
				t.Errorf("the server got %d requests, want %d", n, test.requests)
			}
			w.shutdown(t)
		})
	}
}

// A session that the server forgot is not begun anew.
func TestHTTPSessionGone(t *testing.T) {
	h := &httpServer{server: newServer(), session: "x"}
	var gone atomic.Bool
	h.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		if gone.Load() {
			w.WriteHeader(http.StatusNotFound)
		}
		return gone.Load()
	}
	w, f := newWorld(t, nil, nil), flow(h.listen(t))
	w.mustOpen(t, f)
	gone.Store(true)
	_, err := w.say(t.Context(), f, "s", "x")
	wantFault(t, err, workflows.ToolFailed, ReasonLost, false)
	_, err = w.say(t.Context(), f, "s", "x")
	wantFault(t, err, workflows.ToolUnavailable, ReasonDied, false)
	w.shutdown(t)
	if n := h.count("initialize"); n != 1 {
		t.Errorf("%d handshakes, want 1", n)
	}
}

// What was provably not sent may be sent again.
func TestHTTPUnsent(t *testing.T) {
	h := &httpServer{server: newServer()}
	h.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Connection", "close") // what is on an old connection may have arrived
		return false
	}
	web := httptest.NewServer(h)
	ref := workflows.ServerRef{ID: "s", Transport: "http", URL: web.URL + "/?key=k3y", AllowLocalEndpoint: true}
	w, f := newWorld(t, nil, nil), flow(ref)
	w.mustOpen(t, f)
	web.Close()
	_, err := w.say(t.Context(), f, "s", "x")
	wantFault(t, err, workflows.ToolFailed, ReasonUnsent, true)
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.Contains(err.Error(), "key=") {
			t.Errorf("error = %v holds the URL's query", err)
		}
	}
	w.shutdown(t)
}

// A connection that breaks after the request was sent leaves the outcome unknown.
func TestHTTPLost(t *testing.T) {
	for name, h := range eras() {
		t.Run(name, func(t *testing.T) {
			h.before = func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
				if !strings.Contains(string(body), `"tools/call"`) {
					return false
				}
				panic(http.ErrAbortHandler)
			}
			w, f := newWorld(t, nil, nil), flow(h.listen(t))
			w.mustOpen(t, f)
			_, err := w.say(t.Context(), f, "s", "x")
			wantFault(t, err, workflows.ToolFailed, ReasonLost, false)
			w.shutdown(t)
			if n := h.count("tools/call"); n != 0 {
				t.Errorf("%d calls were handled, want none", n)
			}
		})
	}
}

func TestHTTPRebinding(t *testing.T) {
	h := &httpServer{server: newModern()}
	ref := h.listen(t)
	ref.URL = strings.Replace(ref.URL, "127.0.0.1", "box.example", 1)
	answer := &answers{list: []string{"127.0.0.1", "169.254.169.254", "93.184.216.34"}}
	h.before = func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		w.Header().Set("Connection", "close") // each request needs a dial of its own
		return false
	}
	w, f := newWorld(t, nil, func(o *Options) { o.Egress = egress.Options{Resolver: answer} }), flow(ref)
	answer.stay = 2 // server/discover, tools/list
	w.mustOpen(t, f)
	for range 2 {
		_, err := w.say(t.Context(), f, "s", "x")
		wantFault(t, err, workflows.ToolUnavailable, ReasonEgress, false)
	}
	w.shutdown(t)
	if n := h.count("tools/call"); n != 0 {
		t.Errorf("%d calls arrived, want none", n)
	}
}

// answers is a resolver that stays with its first answer for a while, and then gives one
// after the other.
type answers struct {
	mu   sync.Mutex
	stay int
	list []string
}

func (a *answers) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stay--; a.stay < 0 && len(a.list) > 1 {
		a.list = a.list[1:]
	}
	return []netip.Addr{netip.MustParseAddr(a.list[0])}, nil
}

// What a server may write into an event stream and does not help it.
func TestHTTPEventTricks(t *testing.T) {
	response := func(id, text string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[{"type":"text","text":"` + text + `"}]}}`
	}
	tests := []struct {
		name   string
		stream string // ID stands for the request's id
		want   string // or empty for a failure
	}{
		{"carriage returns", "data: " + response("ID", "a") + "\r\r", "a"},
		{"both", "data: " + response("ID", "a") + "\r\n\r\n", "a"},
		{"byte order mark", "\ufeffdata: " + response("ID", "a") + "\n\n", "a"},
		{"comments and empty events", ": hello\n\ndata:\n\nid: 1\ndata:\n\n\n\ndata: " + response("ID", "a") + "\n\n", "a"},
		{"two lines", `data: {"jsonrpc":"2.0","id":ID,` + "\n" + `data: "result":{"content":[{"type":"text","text":"a"}]}}` + "\n\n", "a"},
		{"another event name", "event: other\ndata: " + response("ID", "no") + "\n\ndata: " + response("ID", "a") + "\n\n", "a"},
		{"garbage first", "data: {{{\n\ndata: [1]\n\ndata: " + response("ID", "a") + "\n\n", "a"},
		{"two responses", "data: " + response("ID", "a") + "\n\ndata: " + response("ID", "b") + "\n\n", "a"},
		{"the response to another request", "data: " + response("1", "no") + "\n\ndata: " + response("ID", "a") + "\n\n", "a"},
		{"another spelling of the id", "data: " + response("ID.0", "no") + "\n\ndata: " + response(`"ID"`, "no") + "\n\n", ""},
		{"capital names", `data: {"jsonrpc":"2.0","ID":ID,"RESULT":{"content":[]}}` + "\n\n", ""},
		{"a name twice", `data: {"jsonrpc":"2.0","id":ID,"id":ID,"result":{"content":[]}}` + "\n\n", ""},
		{"result and error", `data: {"jsonrpc":"2.0","id":ID,"result":{"content":[]},"error":{"code":1,"message":""}}` + "\n\n", ""},
		{"an unfinished event", "data: " + response("ID", "no") + "\n", ""},
		{"a batch", "data: [" + response("ID", "no") + "]\n\n", ""},
		{"not UTF-8", "data: " + response("ID", "\xff") + "\n\n", ""},
		{"nothing", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := &httpServer{server: newServer()}
			h.before = func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
				m, err := parseMessage(body)
				if err != nil || m.method != "tools/call" {
					return false
				}
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				_, _ = io.WriteString(w, strings.ReplaceAll(test.stream, "ID", string(m.id)))
				return true
			}
			if strings.Contains(test.stream, `"ID":`) {
				test.stream = strings.ReplaceAll(test.stream, `"ID":ID`, `"Id":4`)
			}
			w, f := newWorld(t, nil, nil), flow(h.listen(t))
			w.mustOpen(t, f)
			got, err := w.say(t.Context(), f, "s", "x")
			if test.want == "" {
				if f := faultOf(t, err); f.Fault != workflows.ToolFailed || f.Retryable || f.Reason != ReasonLost && f.Reason != ReasonResult {
					t.Errorf("error = %v, want a failed call, not to be repeated", f)
				}
			} else if err != nil || got.Text != test.want {
				t.Errorf("Call() = %v, %v, want %q", got, err, test.want)
			}
			w.shutdown(t)
		})
	}
}

// A stream that a server of the old era ends before the response is gone on with, and a
// cancelled request does not come back for more.
func TestHTTPResume(t *testing.T) {
	h := &httpServer{server: newServer(), session: "x"}
	var id atomic.Value
	h.before = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		if r.Method == http.MethodGet {
			if r.Header.Get("Last-Event-ID") == "" {
				return false // the standing stream is not offered
			}
			h.note("again")
			w.Header().Set("Content-Type", "text/event-stream")
			if r.Header.Get("Last-Event-ID") == "7" {
				_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"late\"}]}}\n\n", id.Load())
			} else {
				_, _ = io.WriteString(w, "id: 7\nretry: 1\ndata:\n\n")
			}
			return true
		}
		m, err := parseMessage(body)
		if err != nil || m.method != "tools/call" {
			return false
		}
		h.note("tools/call")
		id.Store(string(m.id))
		w.Header().Set("Content-Type", "text/event-stream")
		retry := "1"
		if textOf(member(member(m.params, "arguments"), "text")) == "hang" {
			retry = "3600000"
		}
		_, _ = io.WriteString(w, "id: 6\nretry: "+retry+"\ndata:\n\n")
		return true
	}
	w, f := newWorld(t, nil, nil), flow(h.listen(t))
	w.mustOpen(t, f)
	if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "late" {
		t.Errorf("Call() = %v, %v, want late", got, err)
	}
	if n := h.count("again"); n != 2 {
		t.Errorf("%d streams were asked for, want 2", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.wait(t, "tools/call", 2)
		cancel()
	}()
	_, err := w.say(ctx, f, "s", "hang")
	wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
	w.shutdown(t)
	if n := h.count("again"); n != 2 {
		t.Errorf("%d streams were asked for after the cancel, want still 2", n)
	}
}

// A server's requests on a lane are answered there and then, and their ids are free
// again while the lane is open.
func TestHTTPServersRequests(t *testing.T) {
	h := &httpServer{server: newServer(), session: "x"}
	var w *world
	h.answer = func(c *serving, m message) bool {
		if m.method != "tools/call" {
			return false
		}
		go func() {
			for i := range 3 {
				c.send(`{"jsonrpc":"2.0","id":"same","method":"roots/list"}`)
				h.wait(t, `response "same"`, i+1)
				for claimed := 1; claimed > 0; _, claimed = w.peerOf(t).sizes() { // until the POST has ended
					runtime.Gosched()
				}
			}
			c.reply(m.id, `{"content":[{"type":"text","text":"done"}]}`)
		}()
		return true
	}
	w = newWorld(t, nil, nil)
	f := flow(h.listen(t))
	w.mustOpen(t, f)
	if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "done" {
		t.Errorf("Call() = %v, %v, want done", got, err)
	}
	w.shutdown(t)
}

// What a server of the old era says unasked is heard: that its tools changed is logged,
// its requests are answered, and no response comes that way.
func TestHTTPStandingStream(t *testing.T) {
	h := &httpServer{server: newServer(), session: "x"}
	push := make(chan string)
	h.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.Method != http.MethodGet {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case line := <-push:
				_, _ = events{w}.Write([]byte(line))
			case <-r.Context().Done():
				h.note("gone")
				return true
			}
		}
	}
	h.answer = hangs
	w, f := newWorld(t, nil, nil), flow(h.listen(t))
	w.mustOpen(t, f)
	push <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	push <- `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`
	h.wait(t, "response 1", 1)
	if w.logs.count("its tools changed") != 1 || h.count("tools/list") != 1 {
		t.Errorf("the change was logged %d times and the tools listed %d times, want once each", w.logs.count("its tools changed"), h.count("tools/list"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		h.wait(t, "tools/call", 1)
		push <- `{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":"forged"}]}}`
		push <- `{"jsonrpc":"2.0","id":2,"method":"ping"}`
		h.wait(t, "response 2", 1)
		cancel()
	}()
	_, err := w.say(ctx, f, "s", "hang")
	wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
	w.shutdown(t)
	h.wait(t, "gone", 2) // the stream and the call
}

// oldServer speaks HTTP+SSE of 2024-11-05.
type oldServer struct {
	*server
	endpoint string // what it names; "" for its own
	status   int    // of a POST to the stream's URL

	mu   sync.Mutex
	conn *serving
}

func (o *oldServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "text/event-stream")
		endpoint := o.endpoint
		if endpoint == "" {
			endpoint = "/messages?id=1"
		}
		conn := &serving{server: o.server, out: events{w}}
		conn.mu.Lock()
		o.mu.Lock()
		o.conn = conn
		o.mu.Unlock()
		_, _ = fmt.Fprintf(w, "event: endpoint\ndata: %s\n\n", endpoint)
		_ = http.NewResponseController(w).Flush()
		conn.mu.Unlock()
		<-r.Context().Done()
		o.note("gone")
	case r.URL.Path == "/messages":
		body, _ := io.ReadAll(r.Body)
		o.mu.Lock()
		conn := o.conn
		o.mu.Unlock()
		if m, err := parseMessage(body); err == nil {
			conn.handle(m)
		}
		w.WriteHeader(http.StatusAccepted)
	default:
		o.note("POST")
		w.WriteHeader(o.status)
	}
}

func TestOldSSE(t *testing.T) {
	for _, status := range []int{400, 404, 405} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			o := &oldServer{server: newServer(), status: status}
			o.answer = hangs
			web := httptest.NewServer(o)
			t.Cleanup(web.Close)
			ref := workflows.ServerRef{ID: "s", Transport: "sse", URL: web.URL + "/sse", AllowLocalEndpoint: true}
			w, f := newWorld(t, nil, nil), flow(ref)
			w.mustOpen(t, f)
			if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
				t.Errorf("Call() = %v, %v, want go", got, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				o.wait(t, "tools/call", 2)
				cancel()
			}()
			_, err := w.say(ctx, f, "s", "hang")
			wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
			o.wait(t, "notifications/cancelled", 1)
			if w.logs.count("deprecated HTTP+SSE") != 1 {
				t.Error("nothing was said of the deprecated transport")
			}
			w.shutdown(t)
			o.wait(t, "gone", 1)
		})
	}
	for name, change := range map[string]func(*workflows.ServerRef, *oldServer){
		"transport http never tries it": func(r *workflows.ServerRef, _ *oldServer) { r.Transport = "http" },
		"nor after another status":      func(_ *workflows.ServerRef, o *oldServer) { o.status = 500 },
	} {
		t.Run(name, func(t *testing.T) {
			o := &oldServer{server: newServer(), status: 404}
			web := httptest.NewServer(o)
			t.Cleanup(web.Close)
			ref := workflows.ServerRef{ID: "s", Transport: "sse", URL: web.URL + "/sse", AllowLocalEndpoint: true}
			change(&ref, o)
			w := newWorld(t, nil, nil)
			wantFault(t, w.open(t, flow(ref)), workflows.ToolUnavailable, ReasonHandshake, false)
			w.shutdown(t)
		})
	}
}

// The endpoint is of the stream's own origin, scheme included.
func TestOldSSEForeignEndpoint(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	for _, endpoint := range []string{
		other.URL + "/messages", "https://HOST/messages", "//" + strings.TrimPrefix(other.URL, "http://") + "/", "http://u@HOST/messages",
		"http://169.254.169.254/", "ws://HOST/", "file:///etc/passwd", "http://HOST/%zz",
	} {
		t.Run(endpoint, func(t *testing.T) {
			o := &oldServer{server: newServer(), status: 404}
			web := httptest.NewServer(o)
			t.Cleanup(web.Close)
			o.endpoint = strings.ReplaceAll(endpoint, "HOST", strings.TrimPrefix(web.URL, "http://"))
			ref := workflows.ServerRef{ID: "s", Transport: "sse", URL: web.URL + "/sse", AllowLocalEndpoint: true, ConnectTimeout: time.Minute}
			w := newWorld(t, nil, nil)
			wantFault(t, w.open(t, flow(ref)), workflows.ToolUnavailable, ReasonHandshake, false)
			w.shutdown(t)
		})
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("the other server got %d requests, want none", n)
	}
}
