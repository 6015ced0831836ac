package publish_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/integration/issuer"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
)

const resource = "https://flows.example/mcp"

// A lobby is where the callers of a test server are told apart.
type lobby struct {
	tb     testing.TB
	access *access.Access
	store  access.Store
	issuer *issuer.Issuer // nil where tokens are static
	log    *logged
}

func openLobby(tb testing.TB, mode access.Mode) *lobby {
	tb.Helper()
	l := &lobby{tb: tb, store: &access.File{Home: private(tb)}, log: &logged{}}
	opt := access.Options{Mode: mode, Logger: slog.New(slog.NewTextHandler(l.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Tokens: l.store, BehindProxy: true}
	if mode == access.ModeOAuth {
		l.issuer = issuer.Start(tb)
		opt.Resource, opt.Issuer, opt.AllowLocal = resource, l.issuer.URL, true
	}
	var err error
	if l.access, err = access.New(opt); err != nil {
		tb.Fatal(err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(tb.Context()))
	ready := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { l.access.Run(ctx, func() { close(ready) }) })
	tb.Cleanup(func() {
		end()
		running.Wait()
	})
	<-ready
	return l
}

// token makes a static token, and waits until the server knows it.
func (l *lobby) token(name string, scopes ...string) (secret string, made access.Token) {
	l.tb.Helper()
	made, secret, err := access.Create(l.tb.Context(), l.store, name, scopes, time.Time{}, time.Now())
	if err != nil {
		l.tb.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		if i, err := l.access.Static(l.tb.Context(), secret); err == nil && i != nil {
			return secret, made
		}
		select {
		case <-tick.C:
		case <-deadline:
			l.tb.Fatal("the server does not learn of a token")
		}
	}
}

// jwt is a sound token of the issuer.
func (l *lobby) jwt(subject, scope string, shape issuer.Shape) string {
	l.tb.Helper()
	return l.issuer.Token(l.tb, l.issuer.Claims(resource, subject, scope), shape)
}

func (l *lobby) options() publish.HTTPOptions { return publish.HTTPOptions{Access: l.access} }

// call calls a workflow as a client of 2026-07-28.
func (s *site) call(tool, rest string) answer {
	s.tb.Helper()
	return s.modern("1", "tools/call", tool, fmt.Sprintf(`"name":%q%s`, tool, rest))
}

// tools are the names that tools/list shows.
func (s *site) tools() []string {
	s.tb.Helper()
	a := s.modern("1", "tools/list", "", "")
	var list struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(a.response().Result, &list); a.status != http.StatusOK || err != nil {
		s.tb.Fatalf("tools/list = %d %s", a.status, a.body)
	}
	names := []string{}
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// fetch makes one request of any path.
func (s *site) fetch(method, path, body string, header ...string) answer {
	s.tb.Helper()
	req, err := http.NewRequestWithContext(s.tb.Context(), method, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		s.tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", both)
	if s.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+s.bearer)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer resp.Body.Close()
	a, err := read(resp)
	if err != nil {
		s.tb.Fatal(err)
	}
	return a
}

// Report P08: both spellings answer at once to the holder of a token, behind a
// proxy that ends TLS too, and challenge whoever has none (A01). Nothing of a
// token is in the log.
func TestBothSpellings(t *testing.T) {
	t.Parallel()
	s, _, log := newServer(t, nil, shaped(t, "echo", "", "1"))
	l := openLobby(t, access.ModeOAuth)
	at := listen(t, s, l.options())
	good, bad := l.jwt("ann", "relavium:run", issuer.Shape{}), l.jwt("ann", "relavium:run", issuer.Shape{Alg: "HS256"})
	for _, path := range []string{"/mcp", "/mcp/"} {
		for _, proxy := range [][]string{nil, {"X-Forwarded-Proto", "https", "X-Forwarded-For", "203.0.113.9", "X-Forwarded-Host", "flows.example"}} {
			header := append(modernHeader("tools/call", "relavium_echo"), proxy...)
			body := modernBody("1", "tools/call", `"name":"relavium_echo"`)
			if a := at.as(good).fetch(http.MethodPost, path, body, header...); a.status != http.StatusOK || !strings.Contains(a.body, `{"result":1}`) {
				t.Errorf("POST %s %v = %d %s, want the result", path, proxy, a.status, a.body)
			}
			for _, token := range []string{"", bad} {
				a := at.as(token).fetch(http.MethodPost, path, body, header...)
				if a.status != http.StatusUnauthorized || !strings.Contains(a.header.Get("WWW-Authenticate"), `resource_metadata="https://flows.example/`) {
					t.Errorf("POST %s %v without a good token = %d %v, want 401 with a challenge", path, proxy, a.status, a.header)
				}
			}
		}
	}
	for _, text := range []string{log.String(), l.log.String()} {
		for _, token := range []string{good, bad} {
			for part := range strings.SplitSeq(token, ".") {
				if strings.Contains(text, part) {
					t.Errorf("the log has a part of a token:\n%s", text)
				}
			}
		}
	}
	if !strings.Contains(l.log.String(), "a caller is not admitted") {
		t.Errorf("the log says nothing of who was not admitted:\n%s", l.log.String())
	}
}

// The token matrix, with reports A01 and A04: eleven kinds of credentials and a revoked one, by routes.
func TestTokenMatrix(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, shaped(t, "echo", "", "1"), shaped(t, "other", "", "2"))
	l := openLobby(t, access.ModeOAuth)
	at := listen(t, s, l.options())
	claims := func(name string, value any) issuer.Shape {
		return issuer.Shape{Claims: map[string]any{name: value}}
	}
	kinds := map[string]string{
		"malformed":                 "abc.def",
		"expired":                   l.jwt("ann", "relavium:run", claims("exp", time.Now().Add(-time.Hour).Unix())),
		"not yet valid":             l.jwt("ann", "relavium:run", claims("nbf", time.Now().Add(time.Hour).Unix())),
		"wrong issuer":              l.jwt("ann", "relavium:run", claims("iss", "https://id.example")),
		"wrong audience":            l.jwt("ann", "relavium:run", claims("aud", "https://flows.example")),
		"alg none":                  l.jwt("ann", "relavium:run", issuer.Shape{Alg: "none"}),
		"HS256 with the public key": l.jwt("ann", "relavium:run", issuer.Shape{Alg: "HS256"}),
		"unknown kid":               l.jwt("ann", "relavium:run", issuer.Shape{Kid: new("nobody")}),
		"ID token":                  l.jwt("ann", "relavium:run", issuer.Shape{Typ: new("JWT")}),
	}
	// A static token that was good is nothing here, revoked or not.
	static, made := l.token("ci", "relavium:run")
	kinds["static"] = static
	if _, err := access.Revoke(t.Context(), l.store, made.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	kinds["revoked"] = static
	routes := []struct {
		method, path, body string
		header             []string
	}{
		{http.MethodPost, "/mcp", toolCall("1", "relavium_echo", ""), []string{"MCP-Protocol-Version", "2025-11-25", "Mcp-Session-Id", "x"}},
		{http.MethodPost, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, nil},
		{http.MethodPost, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"0"}}}`, nil},
		{http.MethodPost, "/mcp/", modernBody("1", "tools/call", `"name":"relavium_echo"`), modernHeader("tools/call", "relavium_echo")},
		{http.MethodPost, "/mcp", modernBody("1", "tools/list", ""), modernHeader("tools/list", "")},
		{http.MethodPost, "/mcp", "not json", nil},
		{http.MethodGet, "/mcp", "", []string{"Mcp-Session-Id", "x"}},
		{http.MethodGet, "/mcp/", "", []string{"Mcp-Session-Id", "x", "Last-Event-ID", "run.1"}},
		{http.MethodDelete, "/mcp", "", []string{"Mcp-Session-Id", "x"}},
	}
	for _, route := range routes {
		for kind, token := range kinds {
			a := at.as(token).fetch(route.method, route.path, route.body, route.header...)
			challenge := a.header.Get("WWW-Authenticate")
			if a.status != http.StatusUnauthorized || !strings.HasPrefix(challenge, "Bearer ") || !strings.Contains(challenge, `error="invalid_token"`) ||
				!strings.Contains(challenge, `resource_metadata="https://flows.example/.well-known/oauth-protected-resource/mcp"`) || !strings.Contains(challenge, `scope="relavium:run"`) {
				t.Errorf("%s %s with a token that is %s = %d %q, want 401 with a challenge", route.method, route.path, kind, a.status, challenge)
			}
		}
		a := at.fetch(route.method, route.path, route.body, route.header...)
		if challenge := a.header.Get("WWW-Authenticate"); a.status != http.StatusUnauthorized || !strings.Contains(challenge, "resource_metadata=") || strings.Contains(challenge, "error") {
			t.Errorf("%s %s with no token = %d %q, want 401 with a challenge", route.method, route.path, a.status, challenge)
		}
	}
	// Valid without the scope: everything that needs none is there.
	short := at.as(l.jwt("ann", "relavium:run:other", issuer.Shape{}))
	if got, want := short.tools(), []string{"relavium_echo", "relavium_other"}; !slices.Equal(got[:2], want) || len(got) != 6 {
		t.Errorf("tools/list without the scope = %q, want %q and the run tools", got, want)
	}
	c := short.initialize("2025-11-25")
	for _, a := range []answer{
		short.call("relavium_echo", ""), c.post(toolCall("1", "relavium_echo", "")), c.post(toolCall("2", "relavium_echo", `,"arguments":{"no":1}`)),
	} {
		challenge := a.header.Get("WWW-Authenticate")
		if a.status != http.StatusForbidden || !strings.Contains(challenge, `error="insufficient_scope"`) || !strings.Contains(challenge, `scope="relavium:run:echo"`) ||
			a.response().Error == nil || string(a.response().ID) == "null" {
			t.Errorf("a call without the scope = %d %q %s, want 403 that names it", a.status, challenge, a.body)
		}
	}
	if a := short.call("relavium_other", ""); a.status != http.StatusOK || !strings.Contains(a.body, `{"result":2}`) {
		t.Errorf("a call with its scope = %d %s", a.status, a.body)
	}
	if a := short.call("relavium_nowhere", ""); a.status == http.StatusForbidden {
		t.Errorf("a call of nothing = %d, want the usual fault", a.status)
	}
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(runs) != 1 || string(runs[0].Principal) != "oauth:"+l.issuer.URL+"#ann" {
		t.Errorf("runs = %+v, %v; want the one that was allowed, of ann", runs, err)
	}
	// What is public stays so.
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ready", "/.well-known/oauth-protected-resource": `"resource":"` + resource + `"`, "/.well-known/oauth-protected-resource/mcp": l.issuer.URL,
	} {
		if a := at.fetch(http.MethodGet, path, ""); a.status != http.StatusOK || !strings.Contains(a.body, want) {
			t.Errorf("GET %s = %d %q, want 200 with %q", path, a.status, a.body, want)
		}
	}
}

// Host and Origin are looked at before the token, whatever that is.
func TestAccessHostAndOrigin(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	l := openLobby(t, access.ModeToken)
	opt := l.options()
	opt.Hosts, opt.Origins = []string{"flows.example"}, []string{"https://app.example"}
	at := listen(t, s, opt)
	good, _ := l.token("ci", "relavium:run")
	for _, c := range []struct {
		host, origin string
		admitted     bool
	}{
		{at.addr, "", true},
		{"flows.example", "", true},
		{"flows.example", "https://app.example", true},
		{"flows.example", "http://localhost:3000", true},
		{"evil.example", "", false},
		{"evil.example", "https://app.example", false},
		{"flows.example", "https://evil.example", false},
		{"flows.example", "null", false},
		{at.addr, "https://flows.example.evil.example", false},
	} {
		for token, want := range map[string]int{good: http.StatusOK, "bad": http.StatusUnauthorized, "": http.StatusUnauthorized} {
			if !c.admitted {
				want = http.StatusForbidden
			}
			header := append(modernHeader("tools/list", ""), "Host", c.host)
			if c.origin != "" {
				header = append(header, "Origin", c.origin)
			}
			if a := at.as(token).fetch(http.MethodPost, "/mcp", modernBody("1", "tools/list", ""), header...); a.status != want {
				t.Errorf("Host %q, Origin %q, token %q = %d, want %d", c.host, c.origin, token, a.status, want)
			}
		}
	}
	// A page may see why it was refused.
	a := at.fetch(http.MethodPost, "/mcp", "{}", "Origin", "https://app.example")
	if a.status != http.StatusUnauthorized || a.header.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "WWW-Authenticate") {
		t.Errorf("401 to a page = %d %v", a.status, a.header)
	}
	if a := at.fetch(http.MethodOptions, "/mcp", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST"); a.status != http.StatusNoContent {
		t.Errorf("a preflight without a token = %d, want 204", a.status)
	}
}

// A flood of keys that there are not asks the issuer once.
func TestKeyFlood(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	l := openLobby(t, access.ModeOAuth)
	at := listen(t, s, l.options())
	before := l.issuer.Fetches()
	var flood sync.WaitGroup
	for range 8 {
		flood.Go(func() {
			for range scaled(25, 250) {
				token := l.jwt("ann", "relavium:run", issuer.Shape{Kid: new(rand.Text())})
				if a := at.as(token).fetch(http.MethodPost, "/mcp", "{}"); a.status != http.StatusUnauthorized {
					t.Errorf("an unknown key = %d, want 401", a.status)
				}
			}
		})
	}
	flood.Wait()
	if got := l.issuer.Fetches() - before; got > 1 {
		t.Errorf("the keys were fetched %d times, want at most once", got)
	}
	if a := at.as(l.jwt("ann", "relavium:run", issuer.Shape{})).call("relavium_echo", ""); a.status != http.StatusOK {
		t.Errorf("a sound token after the flood = %d, want 200", a.status)
	}
}

// A body is not read for a caller that is not known, and has its bound for one
// that is.
func TestAccessBodies(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	l := openLobby(t, access.ModeToken)
	at := listen(t, s, l.options())
	good, _ := l.token("ci", "relavium:run")
	for token, want := range map[string]int{"bad": http.StatusUnauthorized, "": http.StatusUnauthorized, good: http.StatusRequestEntityTooLarge} {
		for _, length := range []int64{64 << 20, -1} {
			taken := &counted{r: io.LimitReader(rand.Reader, 64<<20)}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.url(), taken)
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = length
			req.Header.Set("Content-Type", "application/json")
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := at.client.Do(req)
			if err != nil {
				t.Logf("a body of 64 MiB: %v", err) // cut off while it was being written
			} else {
				resp.Body.Close()
				if resp.StatusCode != want {
					t.Errorf("a body of 64 MiB with token %.4q = %d, want %d", token, resp.StatusCode, want)
				}
			}
			if n := taken.n(); n > 32<<20 {
				t.Errorf("a body of 64 MiB with token %.4q: %d bytes were taken", token, n)
			}
		}
	}
}

type counted struct {
	r io.Reader

	mu   sync.Mutex
	read int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += n
	return n, err
}

func (c *counted) n() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read
}

// A static token lists what it allows; the rest does not exist for it.
func TestStaticScopes(t *testing.T) {
	t.Parallel()
	hidden := shaped(t, "hidden", "", "3")
	hidden.VisibleTo = []string{"ops"}
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"), shaped(t, "other", "", "2"), hidden)
	l := openLobby(t, access.ModeToken)
	at := listen(t, s, l.options())
	companions := []string{"relavium_run_cancel", "relavium_run_list", "relavium_run_status", "relavium_run_wait"}
	for name, c := range map[string]struct {
		scopes []string
		want   []string
	}{
		"all":  {[]string{"relavium:run"}, slices.Concat([]string{"relavium_echo", "relavium_other"}, companions)},
		"one":  {[]string{"relavium:run:echo"}, slices.Concat([]string{"relavium_echo"}, companions)},
		"ops":  {[]string{"relavium:run", "relavium:ops"}, slices.Concat([]string{"relavium_echo", "relavium_hidden", "relavium_other"}, companions)},
		"gate": {[]string{"relavium:gate"}, nil},
		"away": {[]string{"relavium:run:nowhere"}, nil},
	} {
		token, _ := l.token(name, c.scopes...)
		me := at.as(token)
		if got := me.tools(); !slices.Equal(got, c.want) {
			t.Errorf("%s: tools = %q, want %q", name, got, c.want)
		}
		session := me.initialize("2025-06-18")
		for _, tool := range []string{"relavium_echo", "relavium_other", "relavium_hidden"} {
			listed := slices.Contains(c.want, tool)
			for _, a := range []answer{me.call(tool, ""), session.post(toolCall("1", tool, ""))} {
				m := a.response()
				switch {
				case listed && m.Error != nil:
					t.Errorf("%s: %s = %s, want a result", name, tool, m.raw)
				case !listed && (m.Error == nil || m.Error.Code != -32602 || !strings.HasPrefix(m.Error.Message, "unknown tool: "+tool)):
					t.Errorf("%s: %s = %s, want an unknown tool", name, tool, m.raw)
				case !listed && c.want == nil && strings.Contains(m.Error.Message, "closest"):
					t.Errorf("%s: %s = %s, which names what is not listed", name, tool, m.raw)
				}
			}
		}
	}
}

// With OAuth a workflow may be there for some subjects or clients alone.
func TestVisibleTo(t *testing.T) {
	t.Parallel()
	bySubject, byClient := shaped(t, "by-subject", "", "1"), shaped(t, "by-client", "", "2")
	bySubject.VisibleTo, byClient.VisibleTo = []string{"ann"}, []string{"client-1"}
	s, _, _ := newServer(t, func(o *publish.Options) { o.NoRunTools = true }, bySubject, byClient)
	l := openLobby(t, access.ModeOAuth)
	at := listen(t, s, l.options())
	otherClient := issuer.Shape{Claims: map[string]any{"client_id": "client-2"}}
	for _, c := range []struct {
		token string
		want  []string
	}{
		{l.jwt("ann", "relavium:run", issuer.Shape{}), []string{"relavium_by-client", "relavium_by-subject"}},
		{l.jwt("bob", "relavium:run", issuer.Shape{}), []string{"relavium_by-client"}},
		{l.jwt("ann", "", otherClient), []string{"relavium_by-subject"}},
		{l.jwt("bob", "relavium:run", otherClient), nil},
	} {
		if got := at.as(c.token).tools(); !slices.Equal(got, c.want) {
			t.Errorf("tools = %q, want %q", got, c.want)
		}
	}
	if a := at.as(l.jwt("bob", "", otherClient)).call("relavium_by-subject", ""); a.status == http.StatusForbidden || !strings.Contains(a.body, "unknown tool") {
		t.Errorf("a call of what is not there for bob = %d %s, want an unknown tool", a.status, a.body)
	}
}

// What one principal started is not there for another: run, gate, state, session,
// resource, cancel, stream.
func TestOthersRuns(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	l := openLobby(t, access.ModeToken)
	at := listen(t, s, l.options())
	annToken, made := l.token("ann", "relavium:run")
	bobToken, _ := l.token("bob", "relavium:run", "relavium:gate", "relavium:ops")
	ann, bob := at.as(annToken), at.as(bobToken)

	session := ann.initializeAs("2025-11-25", declaresForm)
	call := ann.begin(toolCall("7", "relavium_deploy", ""), session.header()...)
	question := call.asked()
	last := call.ids[len(call.ids)-1]
	run, _, _ := strings.Cut(last, ".")
	gates, err := e.Gates(t.Context(), engine.GateFilter{Run: run})
	if err != nil || len(gates) != 1 {
		t.Fatalf("gates = %v, %v", gates, err)
	}

	// The session is not there, whatever is done with it.
	stolen := &sessionClient{site: bob, id: session.id, version: session.version}
	for name, a := range map[string]answer{
		"tools/list": stolen.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`),
		"the answer": stolen.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, question.ID, approve)),
		"a cancel":   stolen.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`),
		"a stream":   stolen.do(http.MethodGet, "", stolen.header("Last-Event-ID", run+".0")...),
		"its end":    stolen.do(http.MethodDelete, "", stolen.header()...),
	} {
		if a.status != http.StatusNotFound {
			t.Errorf("%s in another's session = %d %s, want 404", name, a.status, a.body)
		}
	}
	// Nor is the run, in a session of one's own or without.
	own := bob.initializeAs("2025-11-25", declaresForm)
	for name, a := range map[string]answer{
		"the answer": own.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, question.ID, approve)),
		"a cancel":   own.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`),
	} {
		if a.status != http.StatusAccepted {
			t.Errorf("%s in one's own session = %d, want 202 and nothing done", name, a.status)
		}
	}
	for _, tool := range []string{"relavium_run_status", "relavium_run_wait", "relavium_run_cancel"} {
		if a := bob.call(tool, fmt.Sprintf(`,"arguments":{"run":%q}`, run)); !strings.Contains(a.body, "no run") || !strings.Contains(a.body, `"isError":true`) {
			t.Errorf("%s of another's run = %s, want that there is none", tool, a.body)
		}
	}
	if a := bob.call("relavium_run_list", ""); strings.Contains(a.body, run) {
		t.Errorf("relavium_run_list of another shows the run: %s", a.body)
	}
	if a := bob.call("relavium_run_list", fmt.Sprintf(`,"arguments":{"before":%q}`, run)); !strings.Contains(a.body, "no run") {
		t.Errorf("relavium_run_list before another's run = %s", a.body)
	}
	for _, uri := range []string{"relavium://runs/" + run, "relavium://runs/" + run + "/outputs/result"} {
		if a := bob.modern("1", "resources/read", uri, fmt.Sprintf(`"uri":%q`, uri)); a.response().Error == nil || a.response().Error.Code != -32602 {
			t.Errorf("resources/read of another's %s = %s, want -32602", uri, a.body)
		}
	}
	// Same arguments and the same key start a run of one's own.
	key := `,"arguments":{},"_meta":{"relavium/idempotencyKey":"k"}`
	other := bob.begin(toolCall("1", "relavium_deploy", key), own.header()...)
	other.asked()
	if otherRun, _, _ := strings.Cut(other.ids[len(other.ids)-1], "."); otherRun == run {
		t.Error("a call of another principal joined the run")
	}
	other.drop()

	g, err := e.Gate(t.Context(), gates[0].ID)
	if err != nil || g.Decision != "" {
		t.Errorf("the gate = %+v, %v, want it open still", g, err)
	}
	// A new token of the name continues, in the same session even.
	if _, err := access.Revoke(t.Context(), l.store, made.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if m, ok := call.response(); ok {
		t.Errorf("the stream of a revoked token brought %s, want its end", m.raw)
	}
	if r, err := e.Run(t.Context(), run, ""); err != nil || r.State != engine.Waiting || r.Principal != "token:ann" {
		t.Errorf("the run of a revoked token = %+v, %v, want it to go on as ann's", r, err)
	}
	if a := session.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked token = %d, want 401", a.status)
	}
	againToken, _ := l.token("ann", "relavium:run")
	again := at.as(againToken)
	if a := again.call("relavium_run_status", fmt.Sprintf(`,"arguments":{"run":%q}`, run)); !strings.Contains(a.body, `"status":"waiting"`) {
		t.Errorf("relavium_run_status by a new token of the name = %s, want the run", a.body)
	}
	back := &sessionClient{site: again, id: session.id, version: session.version}
	stream := back.get(last)
	asked := stream.asked()
	<-time.After(20 * time.Millisecond)
	back.says(asked, approve)
	if m, ok := stream.response(); !ok || string(m.ID) != "7" || !strings.Contains(m.raw, "approved") {
		t.Errorf("the answer on the stream that came back = %s", m.raw)
	}
}

// A state that was sealed for one principal is nothing in the hands of another.
func TestOthersState(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	l := openLobby(t, access.ModeOAuth)
	at := listen(t, s, l.options())
	ann, bob := at.as(l.jwt("ann", "relavium:run", issuer.Shape{})), at.as(l.jwt("bob", "relavium:run", issuer.Shape{}))
	meta := strings.Replace(modernMeta, `clientCapabilities":{}`, `clientCapabilities":{"elicitation":{"form":{}}}`, 1)
	send := func(me *site, rest string) answer {
		t.Helper()
		return me.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_deploy"`+rest+`,`+meta+`}}`, modernHeader("tools/call", "relavium_deploy")...)
	}
	asked := send(ann, "").response()
	var q struct{ RequestState string }
	if err := json.Unmarshal(asked.Result, &q); err != nil || q.RequestState == "" {
		t.Fatalf("a call that waits = %s", asked.raw)
	}
	answers := fmt.Sprintf(`,"requestState":%q,"inputResponses":{"one":%s}`, q.RequestState, approve)
	if a := send(bob, answers); a.response().Error == nil || a.response().Error.Code != -32602 {
		t.Errorf("another's state = %s, want -32602", a.body)
	}
	gates, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
	if err != nil || len(gates) != 1 {
		t.Errorf("open gates = %v, %v, want the one", gates, err)
	}
	if a := send(at.as(l.jwt("ann", "openid", issuer.Shape{})), answers); a.status != http.StatusForbidden {
		t.Errorf("one's own state with a token without the scope = %d, want 403", a.status)
	}
	// A fresh token of the same subject goes on.
	if a := send(at.as(l.jwt("ann", "relavium:run:deploy", issuer.Shape{})), answers); !strings.Contains(a.body, "approved") {
		t.Errorf("one's own state = %s, want the result", a.body)
	}
}

// What a token opened ends with it: at once when it is revoked, and for what
// waits for no call when it expires. A call that was admitted may finish.
func TestTokenEnds(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	l := openLobby(t, access.ModeOAuth)
	at := listen(t, s, l.options())
	// Clocks may differ by 30 s. A slow machine opens all of this before it is over.
	soon := time.Now().Add(6 * time.Second).Truncate(time.Second)
	me := at.as(l.jwt("ann", "relavium:run", issuer.Shape{Claims: map[string]any{"exp": soon.Add(-30 * time.Second).Unix()}}))
	session := me.initializeAs("2025-11-25", declaresForm)
	stream := session.get("")
	call := me.begin(toolCall("1", "relavium_deploy", ""), session.header()...)
	q := call.asked()
	listening := me.begin(modernBody("9", "subscriptions/listen", `"notifications":{"toolsListChanged":true}`), modernHeader("subscriptions/listen", "")...)
	if m, ok := stream.until(func(wire) bool { return true }); ok {
		t.Errorf("the stream of an expired token brought %s, want its end", m.raw)
	}
	if m, ok := listening.response(); !ok || m.Error != nil {
		t.Errorf("the subscription of an expired token ended with %s, want a result", m.raw)
	}
	if time.Now().Before(soon) || time.Now().After(soon.Add(time.Minute)) {
		t.Errorf("the streams ended %v after the token", time.Since(soon))
	}
	gates, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
	if err != nil || len(gates) != 1 {
		t.Fatalf("gates = %v, %v", gates, err)
	}
	if _, err := e.Decide(t.Context(), gates[0].ID, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	if m, ok := call.response(); !ok || !strings.Contains(m.raw, "approved") {
		t.Errorf("the admitted call = %s, want its result", m.raw)
	}
	// The clock of the token has a leeway; what is resumed needs a valid one after it.
	expired := at.as(l.jwt("ann", "relavium:run", issuer.Shape{Claims: map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}}))
	gone := &sessionClient{site: expired, id: session.id, version: session.version}
	if a := gone.do(http.MethodGet, "", gone.header("Last-Event-ID", call.ids[len(call.ids)-1])...); a.status != http.StatusUnauthorized {
		t.Errorf("a stream resumed with an expired token = %d, want 401", a.status)
	}
	_ = q
}

// Revoking ends every stream of the token, and no other's.
func TestRevoked(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, chained(t, "deploy", "one"))
	l := openLobby(t, access.ModeToken)
	at := listen(t, s, l.options())
	token, made := l.token("ann", "relavium:run")
	otherToken, _ := l.token("bob", "relavium:run")
	me, other := at.as(token), at.as(otherToken)
	session := me.initialize("2025-11-25")
	stream, kept := session.get(""), other.initialize("2025-11-25").get("")
	call := me.begin(toolCall("1", "relavium_deploy", ""), session.header()...)
	run, _ := call.gate()
	modern := me.begin(modernBody("2", "tools/call", `"name":"relavium_deploy","arguments":{"who":"x"}`), modernHeader("tools/call", "relavium_deploy")...)
	modernRun, _ := modern.gate()
	listening := me.begin(modernBody("9", "subscriptions/listen", `"notifications":{"toolsListChanged":true}`), modernHeader("subscriptions/listen", "")...)
	if _, err := access.Revoke(t.Context(), l.store, made.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*pendingCall{"stream": stream, "call": call, "modern call": modern, "subscription": listening} {
		if m, ok := p.response(); ok {
			t.Errorf("the %s of a revoked token brought %s, want its end", name, m.raw)
		}
	}
	for _, id := range []string{run, modernRun} {
		st.waitDetached(t, id, engine.DetachDrop)
		if r, err := e.Run(t.Context(), id, ""); err != nil || r.State != engine.Waiting {
			t.Errorf("run %s = %+v, %v, want it to go on", id, r, err)
		}
	}
	select {
	case <-ended(kept):
		t.Error("the stream of another token ended")
	case <-time.After(300 * time.Millisecond):
	}
	kept.drop()
}

func ended(p *pendingCall) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			if _, err := p.events.next(); err != nil {
				return
			}
		}
	}()
	return over
}

// Limits are of each principal by itself, count what starts a run alone, and say
// when to try again.
func TestLimits(t *testing.T) {
	t.Parallel()
	limits := func(l access.Limits) func(*publish.Options) {
		return func(o *publish.Options) { anyTime(o); o.Limits = l }
	}
	t.Run("a minute", func(t *testing.T) {
		t.Parallel()
		s, e, _ := newServer(t, limits(access.Limits{PerMinute: 3}), shaped(t, "echo", "", "1"))
		l := openLobby(t, access.ModeToken)
		at := listen(t, s, l.options())
		annToken, _ := l.token("ann", "relavium:run")
		bobToken, _ := l.token("bob", "relavium:run")
		ann, bob := at.as(annToken), at.as(bobToken)
		for range 3 {
			if a := ann.call("relavium_echo", ""); a.status != http.StatusOK {
				t.Fatalf("a call = %d %s", a.status, a.body)
			}
		}
		session := ann.initialize("2025-11-25")
		for _, a := range []answer{ann.call("relavium_echo", ""), session.post(toolCall("1", "relavium_echo", ""))} {
			if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || a.response().Error == nil || !strings.Contains(a.body, "calls_per_minute") {
				t.Errorf("a call too many = %d %v %s, want 429 with a time", a.status, a.header, a.body)
			}
		}
		if a := ann.call("relavium_echo", `,"arguments":{"no":1}`); a.status != http.StatusOK {
			t.Errorf("a call that starts nothing = %d, want that it is wrong", a.status)
		}
		for range 10 {
			if a := ann.call("relavium_run_list", ""); a.status != http.StatusOK {
				t.Errorf("a read = %d, want 200", a.status)
			}
		}
		if a := bob.call("relavium_echo", ""); a.status != http.StatusOK {
			t.Errorf("a call of another = %d, want 200", a.status)
		}
		if runs, err := e.Runs(t.Context(), engine.RunFilter{}); err != nil || len(runs) != 4 {
			t.Errorf("%d runs, %v; want 4", len(runs), err)
		}
	})
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		s, _, _ := newServer(t, limits(access.Limits{Concurrent: 2}), chained(t, "deploy", "one"), shaped(t, "echo", "", "1"))
		l := openLobby(t, access.ModeToken)
		at := listen(t, s, l.options())
		token, _ := l.token("ann", "relavium:run")
		ann := at.as(token)
		session := ann.initialize("2025-11-25")
		for i := range 2 {
			ann.begin(toolCall(fmt.Sprint(i+1), "relavium_deploy", fmt.Sprintf(`,"arguments":{"who":"%d"}`, i)), session.header()...).gate()
		}
		if a := ann.call("relavium_echo", ""); a.status != http.StatusTooManyRequests || !strings.Contains(a.body, `"limit":"concurrent"`) {
			t.Errorf("a third at once = %d %s, want 429", a.status, a.body)
		}
		session.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if a := ann.call("relavium_echo", ""); a.status != http.StatusOK {
			t.Errorf("after one ended = %d %s, want 200", a.status, a.body)
		}
	})
	agent := func(runner engine.AgentRunner, l access.Limits) func(*publish.Options) {
		return func(o *publish.Options) {
			o.Engine = openEngine(t, filepath.Join(t.TempDir(), "serve.db"), func(e *engine.Options) { e.Agent = runner })
			o.Limits = l
		}
	}
	t.Run("a day", func(t *testing.T) {
		t.Parallel()
		s, e, _ := newServer(t, agent(costly{}, access.Limits{CostPerDay: 150}), single(t, ""))
		l := openLobby(t, access.ModeToken)
		at := listen(t, s, l.options())
		annToken, _ := l.token("ann", "relavium:run")
		bobToken, _ := l.token("bob", "relavium:run")
		for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
			if a := at.as(annToken).call("relavium_dig", ""); a.status != want || want != http.StatusOK && !strings.Contains(a.body, "cost_per_day_microcents") {
				t.Errorf("call %d = %d %s, want %d", i+1, a.status, a.body, want)
			}
		}
		if a := at.as(bobToken).call("relavium_dig", ""); a.status != http.StatusOK {
			t.Errorf("a call of another = %d %s, want 200", a.status, a.body)
		}
		for since, want := range map[time.Duration]int64{-24 * time.Hour: 200, time.Hour: 0} {
			if got, err := e.Spent(t.Context(), "token:ann", time.Now().Add(since)); err != nil || got != want {
				t.Errorf("Spent since %v = %d, %v, want %d", since, got, err, want)
			}
		}
	})
	t.Run("of the process", func(t *testing.T) {
		t.Parallel()
		held := make(chan struct{})
		s, _, _ := newServer(t, agent(holding(held), access.Limits{Runs: 2}), single(t, ""), shaped(t, "echo", "", "1"))
		l := openLobby(t, access.ModeToken)
		at := listen(t, s, l.options())
		token, _ := l.token("ann", "relavium:run")
		ann := at.as(token)
		session := ann.initialize("2025-11-25")
		for i := range 2 {
			call := ann.begin(toolCall(fmt.Sprint(i+1), "relavium_dig", fmt.Sprintf(`,"_meta":{"progressToken":%d}`, i)), session.header()...)
			if _, ok := call.until(func(m wire) bool { return strings.Contains(m.raw, "work") }); !ok {
				t.Fatal("the run does not begin")
			}
		}
		a := ann.call("relavium_echo", "")
		if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, `"limit":"runs"`) {
			t.Errorf("a run too many = %d %v %s, want 503 with a time", a.status, a.header, a.body)
		}
		close(held)
		for tick, late := time.NewTicker(20*time.Millisecond), time.After(patience); a.status != http.StatusOK; a = ann.call("relavium_echo", "") {
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("after the runs ended = %d %s, want 200", a.status, a.body)
			}
		}
	})
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		s, _, _ := newServer(t, limits(access.Limits{PerMinute: 1, Concurrent: 1, Runs: 4}), shaped(t, "echo", "", "1"))
		at := listen(t, s, publish.HTTPOptions{})
		for range 5 {
			if a := at.call("relavium_echo", ""); a.status != http.StatusOK {
				t.Errorf("a call of local = %d, want 200", a.status)
			}
		}
	})
}

// holding is an agent that ends when the channel is closed.
type holding <-chan struct{}

func (h holding) RunAgent(ctx context.Context, _ engine.AgentCall) (engine.AgentResult, error) {
	select {
	case <-h:
		return engine.AgentResult{Output: json.RawMessage(`"let go"`)}, nil
	case <-ctx.Done():
		return engine.AgentResult{}, ctx.Err()
	}
}

// Progress of calls at once never crosses from one principal to another.
func TestProgressIsOnesOwn(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, chain(t, "chain", 4))
	l := openLobby(t, access.ModeToken)
	at := listen(t, s, l.options())
	var callers sync.WaitGroup
	for n := range 8 {
		token, _ := l.token(fmt.Sprintf("caller-%d", n), "relavium:run")
		me := at.as(token)
		callers.Go(func() {
			session := me.initialize("2025-11-25")
			for i := range scaled(20, 200) {
				value := n*1000 + i
				rest := fmt.Sprintf(`,"arguments":{"n":%d},"_meta":{"progressToken":"caller-%d"}`, value, n)
				a := session.post(toolCall("1", "relavium_chain", rest))
				progress := 0
				for _, m := range a.messages {
					if m.Method == "" {
						continue
					}
					progress++
					if !strings.Contains(string(m.Params), fmt.Sprintf(`"progressToken":"caller-%d"`, n)) {
						t.Errorf("caller %d was told %s", n, m.raw)
					}
				}
				if r := a.response(); progress == 0 || !strings.Contains(r.raw, fmt.Sprintf(`{"result":%d}`, value)) {
					t.Errorf("caller %d: %d notifications and %s, want its own value %d", n, progress, r.raw, value)
				}
			}
		})
	}
	callers.Wait()
}

// Idle streams of one principal leave the server to others.
func TestIdleStreams(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	l := openLobby(t, access.ModeToken)
	opt := l.options()
	opt.MaxSessions = 1 << 20
	at := listen(t, s, opt)
	greedyToken, _ := l.token("greedy", "relavium:run")
	otherToken, _ := l.token("other", "relavium:run")
	greedy := at.as(greedyToken)
	for range 1000 {
		greedy.initialize("2025-11-25").get("")
	}
	if a := at.as(otherToken).call("relavium_echo", ""); a.status != http.StatusOK {
		t.Errorf("a call beside idle streams = %d %s, want 200", a.status, a.body)
	}
}

// Whoever started a run may not answer its gates where the operator says so; a
// call that nobody else could answer is refused.
func TestApproverNotRequester(t *testing.T) {
	t.Parallel()
	strict, hopeless := chained(t, "strict", "one"), chained(t, "hopeless", "one")
	strict.NotRequester, hopeless.NotRequester = true, true
	hopeless.Accept = []string{publish.AcceptElicitation}
	s, e, _ := newServer(t, anyTime, strict, hopeless)
	l := openLobby(t, access.ModeToken)
	at := listen(t, s, l.options())
	token, _ := l.token("ann", "relavium:run", "relavium:gate")
	session := at.as(token).initializeAs("2025-11-25", declaresForm)
	call := at.as(token).begin(toolCall("1", "relavium_strict", ""), session.header()...)
	_, gate := call.gate()
	if a := session.post(toolCall("2", "relavium_hopeless", "")); !strings.Contains(a.body, `"isError":true`) {
		t.Errorf("a call that nobody could answer = %s, want a refusal", a.body)
	}
	if _, err := e.Decide(t.Context(), gate, engine.Decision{Decision: engine.Approved, By: "token:lead", Via: engine.ViaConsole}); err != nil {
		t.Fatal(err)
	}
	m, ok := call.until(func(m wire) bool { return m.Method == "" || m.Method == "elicitation/create" })
	if !ok || m.Method != "" || !strings.Contains(m.raw, "approved") {
		t.Errorf("the requester got %s, want the result without having been asked", m.raw)
	}
}

// private is a home folder as the product makes one.
func private(tb testing.TB) string {
	tb.Helper()
	home := filepath.Join(tb.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		tb.Fatal(err)
	}
	return home
}
