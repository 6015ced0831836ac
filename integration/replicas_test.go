package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A roundRobin is a proxy that sends one request to one replica and the next to the
// other, whatever session it is of.
type roundRobin struct {
	to []*url.URL

	mu    sync.Mutex
	next  int
	calls []int // the replicas that got a tools/call, in order
	sent  map[int]int
}

// balance starts a proxy in front of servers and returns its endpoint.
func balance(t *testing.T, servers ...*httpServer) (*roundRobin, string) {
	t.Helper()
	rr := &roundRobin{sent: map[int]int{}}
	for _, s := range servers {
		u, err := url.Parse(s.url)
		if err != nil {
			t.Fatal(err)
		}
		rr.to = append(rr.to, &url.URL{Scheme: u.Scheme, Host: u.Host})
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(rr.to[0]) // the transport chooses
			r.Out.Host = ""
		},
		Transport:     rr,
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	t.Cleanup(proxy.Close)
	return rr, proxy.URL + "/mcp"
}

// RoundTrip sends the request to the next replica, or to another if that is gone.
func (rr *roundRobin) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil { // it may have to be sent twice
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
	}
	var last error
	for range rr.to {
		rr.mu.Lock()
		at := rr.next % len(rr.to)
		rr.next++
		rr.mu.Unlock()
		out := req.Clone(req.Context())
		out.URL.Host, out.Body = rr.to[at].Host, io.NopCloser(bytes.NewReader(body))
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(out)
		if err != nil {
			last = err
			continue
		}
		rr.mu.Lock()
		rr.sent[at]++
		if bytes.Contains(body, []byte(`"tools/call"`)) {
			rr.calls = append(rr.calls, at)
		}
		rr.mu.Unlock()
		return resp, nil
	}
	return nil, last
}

// both reports how many requests each replica answered.
func (rr *roundRobin) both(t *testing.T) {
	t.Helper()
	rr.mu.Lock()
	defer rr.mu.Unlock()
	for at := range rr.to {
		if rr.sent[at] < 2 {
			t.Errorf("replica %d answered %d requests of %v, want several", at, rr.sent[at], rr.sent)
		}
	}
}

// TestTypeScriptSDK1Replicas has the client of revision 2025-11-25 behind a proxy
// that knows no sessions: gates by elicitation, and the whole scenario.
func TestTypeScriptSDK1Replicas(t *testing.T) {
	t.Parallel()
	t.Run("gates", func(t *testing.T) {
		t.Parallel()
		p := install(t, anyAnswer).project(t, "project", testdata(t, "three-gates"))
		rr, at := balance(t, p.serveHTTP(t, "--publish", "@mcp_call"), p.serveHTTP(t, "--publish", "@mcp_call"))
		checkGates(t, startGates(t, p, "1", "--http", at), "local")
		rr.both(t)
	})
	t.Run("scenario", func(t *testing.T) {
		t.Parallel()
		p, node := scenarioProject(t), clientRuntime(t)
		rr, at := balance(t, p.serveHTTP(t, "--publish", "@mcp_call"), p.serveHTTP(t, "--publish", "@mcp_call"))
		checkScenario(t, p, startSteps(t, p, []string{node, script(t, "sdk1.mjs"), "--http", at}), "2025-11-25", "cancelled")
		rr.both(t)
	})
}

func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("clients", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTypeScriptSDK1ReplicaKilled kills the replica that answers a call while its
// person thinks: the client's own means bring it to the other one, where the answer
// counts and the result comes.
func TestTypeScriptSDK1ReplicaKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a process is killed as on Unix")
	}
	p := install(t, anyAnswer).project(t, "project", testdata(t, "deploy"))
	checkClientOfKilled(t, p, p.serveHTTP(t, "--publish", "@mcp_call"), p.serveHTTP(t, "--publish", "@mcp_call"))
}

func checkClientOfKilled(t *testing.T, p project, servers ...*httpServer) {
	t.Helper()
	node := clientRuntime(t)
	rr, at := balance(t, servers...)
	steps := startSteps(t, p, []string{node, script(t, "replicas.mjs"), at, "3000"})
	steps.next("asked", &struct{}{})
	rr.mu.Lock()
	answering := rr.calls[0]
	rr.mu.Unlock()
	servers[answering].end(os.Kill)
	var got struct {
		toolResult

		Progress []float64 `json:"progress"`
	}
	steps.next("answered", &got)
	checkStructured(t, &got.toolResult, map[string]any{"result": map[string]any{"version": "1.4.2", "decision": "approved", "steps": 2.0}})
	if !slices.IsSortedFunc(got.Progress, func(a, b float64) int {
		if a < b {
			return -1
		}
		return 1 // equal is not sorted: progress grows
	}) || len(got.Progress) < 2 {
		t.Errorf("progress = %v, want it to grow", got.Progress)
	}
	steps.end()
}

// A raw session is a client of revision 2025-11-25 in as many words as it takes.
type rawSession struct {
	t      *testing.T
	client *http.Client
	id     string
}

// A rawAnswer is a response whose body the test closes.
type rawAnswer struct {
	status  int
	session string
	body    *bufio.Reader
}

// do makes one request at one replica.
func (s *rawSession) do(at *httpServer, method, body string, header ...string) rawAnswer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	req, err := http.NewRequestWithContext(ctx, method, at.url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2025-11-25")
	if s.id != "" {
		req.Header.Set("Mcp-Session-Id", s.id)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { cancel(); resp.Body.Close() })
	return rawAnswer{resp.StatusCode, resp.Header.Get("Mcp-Session-Id"), bufio.NewReader(resp.Body)}
}

func (s *rawSession) status(at *httpServer, method, body string) int {
	s.t.Helper()
	return s.do(at, method, body).status
}

// openRaw initializes at a replica.
func openRaw(t *testing.T, at *httpServer) *rawSession {
	t.Helper()
	s := &rawSession{t: t, client: plainClient(t, nil)}
	resp := s.do(at, http.MethodPost, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"probe","version":"0"}}}`)
	if s.id = resp.session; s.id == "" {
		t.Fatalf("initialize = %d, want a session", resp.status)
	}
	return s
}

// A rawStream is what comes on one stream, and the last event id.
type rawStream struct {
	t    *testing.T
	r    *bufio.Reader
	last string
}

func (s *rawSession) call(at *httpServer, rest string) *rawStream {
	s.t.Helper()
	resp := s.do(at, http.MethodPost, `{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{"name":"relavium_deploy","arguments":{"version":"1.4.2"}`+rest+`}}`)
	return &rawStream{t: s.t, r: resp.body}
}

// message is the next one that holds a text; ok is false at the end of the stream.
func (s *rawStream) message(holds string) (message, bool) {
	s.t.Helper()
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			return message{}, false
		}
		line = strings.TrimSuffix(line, "\n")
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			s.last = id
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || !strings.Contains(data, holds) {
			continue
		}
		var m message
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			s.t.Fatalf("%s: %v", data, err)
		}
		return m, true
	}
}

func (s *rawStream) want(holds string) message {
	s.t.Helper()
	m, ok := s.message(holds)
	if !ok {
		s.t.Fatalf("the stream ended without %s", holds)
	}
	return m
}

const approved = `{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"decision":"approve"}}}`

// TestSessionOverReplicas has one session at two processes: what one asks is answered through
// the other, and what is ended at one is over at the other.
func TestSessionOverReplicas(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "deploy"))
	checkSession(t, p.serveHTTP(t, "--publish", "@mcp_call"), p.serveHTTP(t, "--publish", "@mcp_call"))
}

func checkSession(t *testing.T, a, b *httpServer) {
	t.Helper()
	s := openRaw(t, a)
	stream := s.call(a, "")
	question := stream.want("elicitation/create")
	if got := s.status(b, http.MethodPost, fmt.Sprintf(approved, question.ID)); got != http.StatusAccepted {
		t.Errorf("the answer at the other replica = %d, want 202", got)
	}
	if m := stream.want(`"result"`); !strings.Contains(string(m.Result), `"decision":"approved"`) || string(m.ID) != `"c1"` {
		t.Errorf("the call is answered by %s for %s", m.Result, m.ID)
	}

	waiting := s.call(a, `,"_meta":{"relavium/idempotencyKey":"k"}`)
	waiting.want("elicitation/create")
	standing := &rawStream{t: t, r: s.do(a, http.MethodGet, "").body}
	began := time.Now()
	if got := s.status(b, http.MethodDelete, ""); got != http.StatusOK {
		t.Errorf("DELETE = %d, want 200", got)
	}
	for name, stream := range map[string]*rawStream{"call": waiting, "stream": standing} {
		if m, ok := stream.message("{"); ok {
			t.Errorf("%s of the ended session has %s, want its end", name, m.Method)
		}
	}
	t.Logf("streams at the other replica ended %v after DELETE", time.Since(began))
	for _, at := range []*httpServer{a, b} {
		if got := s.status(at, http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); got != http.StatusNotFound {
			t.Errorf("a request of the ended session = %d, want 404", got)
		}
	}
}

// TestSessionReplicaKilled kills the process that answers a call, by SIGKILL: at the other
// the client is asked the same again, and has its result.
func TestSessionReplicaKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a process is killed as on Unix")
	}
	p := install(t, anyAnswer).project(t, "project", testdata(t, "deploy"))
	checkSessionOfKilled(t, p.serveHTTP(t, "--publish", "@mcp_call"), p.serveHTTP(t, "--publish", "@mcp_call"))
}

func checkSessionOfKilled(t *testing.T, a, b *httpServer) {
	t.Helper()
	s := openRaw(t, a)
	stream := s.call(a, `,"_meta":{"progressToken":"p"}`)
	question := stream.want("elicitation/create")
	a.end(os.Kill)
	back := &rawStream{t: t, r: s.do(b, http.MethodGet, "", "Last-Event-ID", stream.last).body}
	again := back.want("elicitation/create")
	if !bytes.Equal(again.ID, question.ID) || !bytes.Equal(again.Params, question.Params) {
		t.Errorf("asked again: %s %s, want the same question %s %s", again.ID, again.Params, question.ID, question.Params)
	}
	if got := s.status(b, http.MethodPost, fmt.Sprintf(approved, question.ID)); got != http.StatusAccepted {
		t.Errorf("the answer = %d, want 202", got)
	}
	if m := back.want(`"result"`); !strings.Contains(string(m.Result), `"decision":"approved"`) || string(m.ID) != `"c1"` {
		t.Errorf("the call is answered by %s for %s", m.Result, m.ID)
	}
}
