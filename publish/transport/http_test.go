package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
)

// page is a client of an HTTP that runs in the test.
type page struct {
	t      *testing.T
	url    string
	client *http.Client
	stop   context.CancelFunc
	done   chan error
}

func listen(t *testing.T, h *HTTP) *page {
	t.Helper()
	h.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	if h.Resume == nil {
		h.Resume = func(context.Context, *Request, string, int64) Reply { return Reply{} }
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &page{
		t: t, url: "http://" + l.Addr().String() + "/mcp", stop: stop, done: make(chan error, 1),
		client: &http.Client{Transport: &http.Transport{}},
	}
	go func() { p.done <- h.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-p.done:
			if err != nil {
				t.Errorf("Serve = %v, want nil", err)
			}
		case <-time.After(patience):
			t.Errorf("Serve still runs after %v", patience)
		}
		p.client.CloseIdleConnections()
	})
	return p
}

// A response is what the server says; the test closes its body.
type response struct {
	status int
	header http.Header
	body   *bufio.Reader
}

// post sends a body.
func (p *page) post(body, session string) response {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set(mcp.HeaderSessionID, session)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		p.t.Fatalf("POST %.80s: %v", body, err)
	}
	p.t.Cleanup(func() { cancel(); resp.Body.Close() })
	return response{resp.StatusCode, resp.Header, bufio.NewReader(resp.Body)}
}

func (p *page) status(body, session string) int { return p.post(body, session).status }

// through is status as soon as there is room.
func (p *page) through(body, session string) int { return p.admitted(body, session).status }

// admitted is post that waits for the request before to be through: it counts until
// its handler has returned, a little after its answer came.
func (p *page) admitted(body, session string) response {
	p.t.Helper()
	for late := time.Now().Add(patience); ; {
		resp := p.post(body, session)
		if resp.status != http.StatusServiceUnavailable || time.Now().After(late) {
			return resp
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // see above
	}
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`

// session initializes.
func (p *page) session() string {
	p.t.Helper()
	resp := p.admitted(hello, "")
	id := resp.header.Get(mcp.HeaderSessionID)
	if resp.status != http.StatusOK || id == "" {
		p.t.Fatalf("initialize = %d, session %q", resp.status, id)
	}
	return id
}

// talk answers like echo, settles initialize, and waits for its end in "wait".
func talk(ctx context.Context, req *Request) Reply {
	switch req.Method {
	case "initialize":
		req.Session.Settle("2025-11-25", mcp.Implementation{Name: "probe"}, mcp.ClientCapabilities{})
	case "wait":
		if err := req.Notify("notifications/waiting", json.RawMessage(`{}`)); err != nil {
			return Reply{Error: &Error{Code: CodeInternal, Message: err.Error()}}
		}
		<-ctx.Done()
		return Reply{Result: json.RawMessage(`"stopped"`)}
	}
	return echo(ctx, req)
}

// event reads up to the next message of a stream.
func event(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("stream: %v", err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && data != "\n" {
			return strings.TrimSuffix(data, "\n")
		}
	}
}

// A question goes out on the stream of the call that asks, and the answer comes
// in as a request of its own; another session cannot give it.
func TestAskOverHTTP(t *testing.T) {
	t.Parallel()
	takeBack := make(chan struct{})
	outcomes := make(chan error, 2)
	p := listen(t, &HTTP{Answer: func(ctx context.Context, req *Request) Reply {
		if req.Method != "ask" {
			return talk(ctx, req)
		}
		a, err := req.Ask(ctx, "s-1", "elicitation/create", json.RawMessage(`{"message":"?"}`))
		if err != nil || a.Refused || a.Sent.IsZero() || a.Received.Before(a.Sent) {
			return Reply{Error: &Error{Code: CodeInternal, Message: fmt.Sprint(a, err)}}
		}
		actx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		go func() { // outlives the call
			_, err := req.Ask(actx, "s-2", "elicitation/create", json.RawMessage(`{}`))
			outcomes <- err
		}()
		go func() {
			<-takeBack
			cancel(errors.New("answered elsewhere"))
		}()
		return Reply{Result: a.Result}
	}})
	session, other := p.session(), p.session()
	get, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	get.Header.Set(mcp.HeaderSessionID, session)
	standing, err := p.client.Do(get)
	if err != nil {
		t.Fatal(err)
	}
	defer standing.Body.Close()
	aside := bufio.NewReader(standing.Body)
	if _, err := aside.ReadString('\n'); err != nil { // it is there
		t.Fatal(err)
	}

	stream := p.post(`{"jsonrpc":"2.0","id":5,"method":"ask"}`, session).body
	if got, want := event(t, stream), `{"jsonrpc":"2.0","id":"s-1","method":"elicitation/create","params":{"message":"?"}}`; got != want {
		t.Fatalf("question = %s, want %s", got, want)
	}
	if got := p.status(`{"jsonrpc":"2.0","id":"s-1","result":{"action":"evil"}}`, other); got != http.StatusAccepted {
		t.Errorf("an answer of another session = %d, want 202", got)
	}
	if got := p.status(`{"jsonrpc":"2.0","id":"s-1","result":{"action":"accept"}}`, session); got != http.StatusAccepted {
		t.Errorf("the answer = %d, want 202", got)
	}
	var rest []string
	for range 2 { // the second question may come before or after the end of the call
		line, err := stream.ReadString('\n')
		for err == nil && !strings.HasPrefix(line, "data: ") {
			line, err = stream.ReadString('\n')
		}
		if err != nil {
			break
		}
		rest = append(rest, strings.TrimSpace(line))
	}
	if !strings.Contains(strings.Join(rest, "\n"), `data: {"jsonrpc":"2.0","id":5,"result":{"action":"accept"}}`) {
		t.Errorf("after the answer the stream had %q, want the result", rest)
	}
	if len(rest) == 1 {
		if got := event(t, aside); !strings.Contains(got, `"id":"s-2"`) {
			t.Errorf("the standing stream had %s, want the question that is left", got)
		}
	}
	close(takeBack)
	if got := event(t, aside); !strings.Contains(got, "notifications/cancelled") || !strings.Contains(got, `"requestId":"s-2"`) {
		t.Errorf("the standing stream had %s, want that the question is taken back", got)
	}
	if err := <-outcomes; err == nil || err.Error() != "answered elsewhere" {
		t.Errorf("Ask = %v, want its cause", err)
	}
}

// A call that is made again while its cancel is heeded begins when what that did is done:
// it comes by a request of its own, and may be here sooner.
func TestCallAfterCancel(t *testing.T) {
	t.Parallel()
	cancelled, release := make(chan struct{}), make(chan struct{})
	var left atomic.Bool
	p := listen(t, &HTTP{Answer: func(ctx context.Context, req *Request) Reply {
		switch {
		case req.Method != "tools/call":
			return talk(ctx, req)
		case string(req.ID) == "1":
			talk(ctx, &Request{Method: "wait", Session: req.Session, Notify: req.Notify})
			close(cancelled)
			<-release
			left.Store(true)
			return Reply{}
		}
		return Reply{Result: json.RawMessage(fmt.Sprint(left.Load()))}
	}})
	session := p.session()
	event(t, p.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`, session).body)
	cancel := make(chan struct{})
	go func() {
		defer close(cancel)
		if got := p.status(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, session); got != http.StatusAccepted {
			t.Errorf("a cancel = %d, want 202", got)
		}
	}()
	<-cancelled
	time.AfterFunc(200*time.Millisecond, func() { close(release) })
	line, err := p.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x"}}`, session).body.ReadString('\n')
	if want := `{"jsonrpc":"2.0","id":2,"result":true}`; err != nil || strings.TrimSpace(line) != want {
		t.Errorf("the call again = %s, %v, want %s: the one that was cancelled is done", line, err, want)
	}
	<-cancel
}

// A client that takes one body cannot be asked, and says so to nobody.
func TestNoAskWithoutStream(t *testing.T) {
	t.Parallel()
	p := listen(t, &HTTP{Answer: func(ctx context.Context, req *Request) Reply {
		if req.Method == "may" {
			return Reply{Result: json.RawMessage(fmt.Sprintf(`[%t,%t]`, req.Ask != nil, req.OneBody))}
		}
		return talk(ctx, req)
	}})
	session := p.session()
	for accept, want := range map[string]string{"application/json": "[false,true]", "application/json, text/event-stream": "[true,false]"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"may"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		req.Header.Set(mcp.HeaderSessionID, session)
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("Accept %s: may ask, one body = %s, %v, want %s", accept, b, err, want)
		}
	}
}

// What a client may hold of the server is bounded: sessions, requests, bodies.
func TestHTTPLimits(t *testing.T) {
	t.Parallel()
	p := listen(t, &HTTP{Answer: talk, MaxSessions: 2, MaxRequests: 3, MaxHeld: 4 << 10, MaxBody: 3 << 10, Hold: 10 * time.Millisecond})
	const list = `{"jsonrpc":"2.0","id":1,"method":"list"}`
	first, second := p.session(), p.session()
	if got := p.through(list, first); got != http.StatusOK { // second is idle longest now
		t.Fatalf("list = %d, want 200", got)
	}
	third := p.session()
	if got := []int{p.through(list, first), p.through(list, second), p.through(list, third)}; !cmp.Equal(got, []int{200, 404, 200}) {
		t.Errorf("after a session too many: %v, want that the one which was idle longest is gone", got)
	}
	wait := func(session string) { // a call whose stream is open
		t.Helper()
		event(t, p.admitted(`{"jsonrpc":"2.0","id":1,"method":"wait"}`, session).body)
	}
	wait(first)
	wait(third)
	if resp := p.post(hello, ""); resp.header.Get(mcp.HeaderSessionID) != "" {
		t.Error("a session was made although none could go")
	}
	big := strings.Replace(list, "list", strings.Repeat("x", 2<<10), 1)
	if got := p.admitted(big, first).status; got != http.StatusOK {
		t.Errorf("a body of 2 KiB = %d, want 200", got)
	}
	wait(first)
	if got := p.status(list, first); got != http.StatusServiceUnavailable {
		t.Errorf("a fourth request at once = %d, want 503", got)
	}
	resp, err := p.client.Get(strings.Replace(p.url, "/mcp", "/healthz", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("healthz of a busy server = %d, want 200", resp.StatusCode)
	}
}

// A server without room for another body says so before it reads it.
func TestHTTPHeldBodies(t *testing.T) {
	t.Parallel()
	p := listen(t, &HTTP{Answer: talk, MaxHeld: 4 << 10, MaxBody: 3 << 10, Hold: 10 * time.Millisecond})
	session := p.session()
	waiting := `{"jsonrpc":"2.0","id":1,"method":"wait","params":{"x":"` + strings.Repeat("x", 2<<10) + `"}}`
	event(t, p.post(waiting, session).body)
	if got := p.status(waiting, session); got != http.StatusServiceUnavailable {
		t.Errorf("a body beyond what all may hold = %d, want 503", got)
	}
	if got := p.status(`{"jsonrpc":"2.0","id":2,"method":"list"}`, session); got != http.StatusOK {
		t.Errorf("a small body beside = %d, want 200", got)
	}
}

// DELETE ends what waits in the session, without an answer.
func TestHTTPDelete(t *testing.T) {
	t.Parallel()
	causes := make(chan error, 1)
	p := listen(t, &HTTP{Answer: func(ctx context.Context, req *Request) Reply {
		reply := talk(ctx, req)
		if req.Method == "wait" {
			causes <- context.Cause(ctx)
		}
		return reply
	}})
	session := p.session()
	stream := p.post(`{"jsonrpc":"2.0","id":1,"method":"wait"}`, session).body
	event(t, stream)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(mcp.HeaderSessionID, session)
	resp, err := p.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := <-causes; !errors.Is(err, ErrClosed) {
		t.Errorf("a call of a deleted session ended by %v, want ErrClosed", err)
	}
	rest, err := io.ReadAll(stream)
	if err != nil || strings.Contains(string(rest), "result") {
		t.Errorf("rest of its stream = %q, %v, want nothing", rest, err)
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]forms{
		"":                                       {json: true, any: true},
		"*/*":                                    {json: true, any: true},
		"application/json":                       {json: true},
		"application/*;q=0.3":                    {json: true},
		"text/event-stream":                      {events: true},
		"text/*, application/json;q=0":           {events: true},
		"Text/Event-Stream , application/json":   {json: true, events: true},
		"text/html":                              {},
		"application/json;q=0.0, image/png;q=1":  {},
		"application/jsonl, application/xml":     {},
		";;;, application/json":                  {json: true},
		"text/event-stream;q=0, */*":             {json: true, any: true},
		"application/json;charset=utf-8;q=bogus": {json: true},
	} {
		got, ok := accepted(http.Header{"Accept": {in}})
		if got != want || ok != (want != forms{}) {
			t.Errorf("accepted(%q) = %+v, %t, want %+v", in, got, ok, want)
		}
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"run.7": "run 7  true", "run.7.a.b.c": "run 7 .a.b.c true", "run.7.": "run 7 . true", "a.b.0": " 0  false", "run.": " 0  false",
		".7": " 0  false", "run": " 0  false", "": " 0  false", "run.99999999999999999999": " 0  false", "run.-1": " 0  false",
	} {
		at, ok := place(in)
		if got := fmt.Sprint(at.run, " ", at.n, " ", at.mark, " ", ok); got != want {
			t.Errorf("place(%q) = %s, want %s", in, got, want)
		}
	}
}

// TestHTTPAllow: what a route does not answer names every method that it does.
func TestHTTPAllow(t *testing.T) {
	t.Parallel()
	p := listen(t, &HTTP{})
	for path, want := range map[string]string{"": "GET, POST, DELETE", "/": "GET, POST, DELETE", "/../healthz": "GET, HEAD"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, p.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if path == "/../healthz" {
			req.URL.Path = "/healthz"
		}
		resp, err := p.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get("Allow"); resp.StatusCode != http.StatusMethodNotAllowed || got != want {
			t.Errorf("PUT %s = %d, Allow %q, want 405, %q", req.URL.Path, resp.StatusCode, got, want)
		}
	}
}
