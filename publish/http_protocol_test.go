package publish_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// codeOf is the code of the JSON-RPC error in an answer, or 0.
func codeOf(a answer) int {
	if m := a.response(); m.Error != nil {
		return m.Error.Code
	}
	return 0
}

// What a request of 2026-07-28 must say, and what is said if it does not.
func TestHTTPModernFaults(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, func(o *publish.Options) { o.Accept = []string{publish.AcceptElicitation} },
		shaped(t, "echo", "", "1"), gated(t, "ask", time.Hour))
	at := listen(t, s, publish.HTTPOptions{})
	const list = `{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{` + modernMeta + `}}`
	meta := func(version, rest string) string {
		return `{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `"` + rest + `}}}`
	}
	call := modernBody("5", "tools/call", `"name":"relavium_echo","arguments":{}`)
	for _, tt := range []struct {
		name   string
		body   string
		header []string
		status int
		code   int
	}{
		{"good", list, modernHeader("tools/list", ""), 200, 0},
		{"session and Last-Event-ID are ignored", list, append(modernHeader("tools/list", ""), "Mcp-Session-Id", "dead", "Last-Event-ID", "x.1"), 200, 0},
		{"no version header", list, []string{"Mcp-Method", "tools/list"}, 400, -32020},
		{"another version header", list, []string{"MCP-Protocol-Version", "2025-11-25", "Mcp-Method", "tools/list"}, 400, -32020},
		{"no method header", list, []string{"MCP-Protocol-Version", "2026-07-28"}, 400, -32020},
		{"another method header", list, modernHeader("tools/call", ""), 400, -32020},
		{"no name header", call, modernHeader("tools/call", ""), 400, -32020},
		{"another name header", call, modernHeader("tools/call", "relavium_ask"), 400, -32020},
		{"name header in base64", call, modernHeader("tools/call", "=?base64?cmVsYXZpdW1fZWNobw==?="), 200, 0},
		{"no _meta", `{"jsonrpc":"2.0","id":5,"method":"tools/list"}`, modernHeader("tools/list", ""), 400, -32602},
		{"no capabilities", meta("2026-07-28", ""), modernHeader("tools/list", ""), 400, -32602},
		{"a version to come", meta("2099-01-01", `,"io.modelcontextprotocol/clientCapabilities":{}`), []string{"MCP-Protocol-Version", "2099-01-01", "Mcp-Method", "tools/list"}, 400, -32022},
		{"unknown method", modernBody("5", "tools/lost", ""), modernHeader("tools/lost", ""), 404, -32601},
		{"initialize is gone", modernBody("5", "initialize", ""), modernHeader("initialize", ""), 404, -32601},
		{"unknown tool", modernBody("5", "tools/call", `"name":"nope"`), modernHeader("tools/call", "nope"), 400, -32602},
		{"no such resource", modernBody("5", "resources/read", `"uri":"relavium://runs/none"`), modernHeader("resources/read", "relavium://runs/none"), 400, -32602},
		{"a gate that nobody may answer", modernBody("5", "tools/call", `"name":"relavium_ask"`), modernHeader("tools/call", "relavium_ask"), 400, -32021},
		{"an array", "[" + list + "]", modernHeader("tools/list", ""), 400, -32600},
		{"no JSON", "{", modernHeader("tools/list", ""), 400, -32700},
		{"id null", strings.Replace(list, `"id":5`, `"id":null`, 1), modernHeader("tools/list", ""), 400, -32600},
		{"a notification is dropped", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, modernHeader("notifications/cancelled", ""), 202, 0},
	} {
		a := at.do(http.MethodPost, tt.body, tt.header...)
		if a.status != tt.status || codeOf(a) != tt.code {
			t.Errorf("%s: %d code %d, want %d code %d: %s", tt.name, a.status, codeOf(a), tt.status, tt.code, a.body)
		}
		if id := a.header.Get("Mcp-Session-Id"); id != "" {
			t.Errorf("%s: Mcp-Session-Id = %q, want none", tt.name, id)
		}
		if m := a.response(); tt.code != 0 && tt.code != -32700 && tt.code != -32600 && string(m.ID) != "5" {
			t.Errorf("%s: id = %s, want 5", tt.name, m.ID)
		}
	}
	for _, tt := range []struct{ code, want string }{
		{"-32022", `{"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"2099-01-01"}`},
		{"-32021", `{"requiredCapabilities":{"elicitation":{"form":{}}}}`},
	} {
		var a answer
		if tt.code == "-32022" {
			a = at.do(http.MethodPost, meta("2099-01-01", ""), "MCP-Protocol-Version", "2099-01-01")
		} else {
			a = at.modern("5", "tools/call", "relavium_ask", `"name":"relavium_ask"`)
		}
		if m := a.response(); m.Error == nil || string(m.Error.Data) != tt.want {
			t.Errorf("data of %s = %s, want %s", tt.code, a.body, tt.want)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if a := at.do(method, "", "MCP-Protocol-Version", "2026-07-28"); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != http.MethodPost {
			t.Errorf("%s of 2026-07-28 = %d Allow %q, want 405 and POST", method, a.status, a.header.Get("Allow"))
		}
	}
	if a := at.do(http.MethodPut, "{}"); a.status != http.StatusMethodNotAllowed {
		t.Errorf("PUT = %d, want 405", a.status)
	}
}

// Report P01: 404 for a session that is not, 400 without one, and what carries
// one although its revision has none works.
func TestHTTPSessions(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	at := listen(t, s, publish.HTTPOptions{})
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	dead := []string{"Mcp-Session-Id", "00000000-dead", "MCP-Protocol-Version", "2025-11-25"}
	for _, tt := range []struct {
		method, body string
		header       []string
		want         int
	}{
		{http.MethodPost, list, dead, 404},
		{http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, dead, 404},
		{http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, dead, 404},
		{http.MethodGet, "", dead, 404},
		{http.MethodDelete, "", dead, 404},
		{http.MethodPost, list, dead[2:], 400},
		{http.MethodGet, "", dead[2:], 400},
		{http.MethodDelete, "", dead[2:], 400},
		{http.MethodPost, list, []string{"MCP-Protocol-Version", "1999-01-01"}, 400},
	} {
		if a := at.do(tt.method, tt.body, tt.header...); a.status != tt.want {
			t.Errorf("%s %s %q = %d, want %d", tt.method, tt.body, tt.header, a.status, tt.want)
		}
	}
	c := at.initialize("2025-11-25")
	if other := at.initialize("2025-11-25"); other.id == c.id {
		t.Error("two clients got one session id")
	}
	if a := c.post(list); a.status != http.StatusOK {
		t.Errorf("tools/list = %d, want 200", a.status)
	}
	if a := c.post(`{"jsonrpc":"2.0","id":1,"result":{}}`); a.status != http.StatusAccepted {
		t.Errorf("a response = %d, want 202", a.status)
	}
	if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"nope"}`); a.status != http.StatusOK || codeOf(a) != -32601 {
		t.Errorf("an unknown method = %d code %d, want 200 and -32601", a.status, codeOf(a))
	}
	if a := c.do(http.MethodDelete, "", c.header()...); a.status != http.StatusOK {
		t.Errorf("DELETE = %d, want 200", a.status)
	}
	if a := c.post(list); a.status != http.StatusNotFound {
		t.Errorf("tools/list after DELETE = %d, want 404", a.status)
	}
}

// Report P03: a server beside it with keys of its own does not know the session,
// and says 404 so that the client initializes again.
func TestHTTPSessionOfAnotherServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "serve.db")
	w := shaped(t, "echo", "", "1")
	here, _, _ := newServer(t, func(o *publish.Options) { o.Engine = openEngine(t, path, nil) }, w)
	there, _, _ := newServer(t, func(o *publish.Options) { o.Engine = openEngine(t, path, nil) }, w)
	a, b := listen(t, here, publish.HTTPOptions{}), listen(t, there, publish.HTTPOptions{})
	c := a.initialize("2025-11-25")
	c.site = b
	if got := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); got.status != http.StatusNotFound {
		t.Errorf("tools/list with the session of another process = %d, want 404", got.status)
	}
}

// Reports P08 and P09: both spellings answer at once, in a form that the client
// takes; only one that takes neither is turned away.
func TestHTTPForms(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	at := listen(t, s, publish.HTTPOptions{})
	c := at.initialize("2025-11-25")
	legacy := toolCall("1", "relavium_echo", "")
	modern := modernBody("1", "tools/call", `"name":"relavium_echo"`)
	const whole, events = "application/json", "text/event-stream"
	for _, tt := range []struct {
		accept string
		status int
		form   string
	}{
		{"*/*", 200, whole},
		{"", 200, whole},
		{whole, 200, whole},
		{events, 200, events},
		{"application/*", 200, whole},
		{both, 200, whole},
		{"text/event-stream;q=0, application/json;q=0.5", 200, whole},
		{"text/html, */*;q=0.1", 200, whole},
		{"text/html", 406, ""},
	} {
		for era, a := range map[string]answer{
			"2025": at.do(http.MethodPost, legacy, c.header("Accept", tt.accept)...),
			"2026": at.do(http.MethodPost, modern, append(modernHeader("tools/call", "relavium_echo"), "Accept", tt.accept)...),
		} {
			if a.status != tt.status || tt.form != "" && a.header.Get("Content-Type") != tt.form {
				t.Errorf("%s: Accept %q = %d %s, want %d %s", era, tt.accept, a.status, a.header.Get("Content-Type"), tt.status, tt.form)
			}
			if tt.status == 200 && (len(a.messages) != 1 || a.messages[0].Result == nil) {
				t.Errorf("%s: Accept %q: messages %v, want one result", era, tt.accept, a.messages)
			}
		}
	}
	for kind, want := range map[string]int{
		"application/json; charset=utf-8": 200, "application/json;charset=UTF-8": 200, "Application/JSON": 200,
		"text/plain": 415, "": 415, "application/x-www-form-urlencoded": 415,
	} {
		if a := at.do(http.MethodPost, legacy, c.header("Content-Type", kind)...); a.status != want {
			t.Errorf("Content-Type %q = %d, want %d", kind, a.status, want)
		}
	}
	for _, url := range []string{"/mcp", "/mcp/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.addr+url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Forwarded-Proto", "https")
		resp, err := at.client.Transport.RoundTrip(req) // follows nothing
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("POST %s = %d, want 200", url, resp.StatusCode)
		}
	}
}

// Report O01, and a foreign Origin alone: who may not call is told so whatever
// they ask for.
func TestHTTPHostAndOrigin(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	at := listen(t, s, publish.HTTPOptions{Hosts: []string{"serve.example", "exact.example:8443"}, Origins: []string{"https://app.example"}})
	_, port, err := net.SplitHostPort(at.addr)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path, method, host, origin string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+at.addr+path, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		req.Host = host
		resp, err := at.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for host, want := range map[string]int{
		"localhost:" + port: 200, "127.0.0.1:" + port: 200, "[::1]:" + port: 200, "LOCALHOST:" + port: 200, "localhost": 200,
		"127.8.8.8": 200, "serve.example": 200, "Serve.Example:9": 200, "exact.example:8443": 200,
		"exact.example": 403, "exact.example:1": 403, "evil.test": 403, "localhost.evil.test": 403, "evil.test:" + port: 403,
		"10.0.0.1": 403, "[fe80::1]": 403, "localhost:x": 403, "127.0.0.1.evil.test": 403,
	} {
		if got := ask("/mcp", http.MethodPost, host, ""); got != want {
			t.Errorf("Host %q = %d, want %d", host, got, want)
		}
	}
	for origin, want := range map[string]int{
		"http://localhost:5173": 200, "http://127.0.0.1": 200, "https://[::1]:1": 200, "https://app.example": 200, "HTTPS://App.Example": 200,
		"https://evil.test": 403, "null": 403, "http://app.example": 403, "https://app.example.evil.test": 403, "https://app.example:444": 403,
		"http://localhost.evil.test": 403, "http://localhost@evil.test": 403, "file://": 403, "ftp://localhost": 403, "http://localhost/x": 403,
	} {
		if got := ask("/mcp", http.MethodPost, at.addr, origin); got != want {
			t.Errorf("Origin %q = %d, want %d", origin, got, want)
		}
	}
	for _, path := range []string{"/mcp", "/mcp/", "/healthz", "/readyz", "/nowhere"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodHead} {
			if got := ask(path, method, at.addr, "https://evil.test"); got != http.StatusForbidden {
				t.Errorf("%s %s from a foreign origin = %d, want 403", method, path, got)
			}
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/nowhere": 404, "/debug/pprof/": 404} {
		if got := ask(path, http.MethodGet, at.addr, ""); got != want {
			t.Errorf("GET %s = %d, want %d", path, got, want)
		}
	}
}

// Report O04: a page of a listed origin may send every header of the protocol
// and read the session id; other pages get nothing.
func TestHTTPCORS(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	at := listen(t, s, publish.HTTPOptions{Origins: []string{"https://app.example"}})
	const asked = "authorization, content-type, mcp-protocol-version, mcp-session-id, mcp-method, mcp-name, last-event-id, mcp-param-region"
	preflight := at.do(http.MethodOptions, "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", asked)
	if preflight.status != http.StatusNoContent || preflight.header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Fatalf("preflight = %d %v, want 204 for the origin", preflight.status, preflight.header)
	}
	allowed := strings.ToLower(preflight.header.Get("Access-Control-Allow-Headers"))
	for name := range strings.SplitSeq(asked, ", ") {
		if !strings.Contains(allowed, name) {
			t.Errorf("preflight allows %q, want %s among them", allowed, name)
		}
	}
	for _, method := range []string{"GET", "POST", "DELETE"} {
		if !strings.Contains(preflight.header.Get("Access-Control-Allow-Methods"), method) {
			t.Errorf("preflight allows %q, want %s among them", preflight.header.Get("Access-Control-Allow-Methods"), method)
		}
	}
	initialize := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"0"}}}`
	for _, tt := range []struct {
		body   string
		status int
	}{{initialize, 200}, {"{", 400}} {
		a := at.do(http.MethodPost, tt.body, "Origin", "https://app.example")
		exposed := a.header.Get("Access-Control-Expose-Headers")
		if a.status != tt.status || a.header.Get("Access-Control-Allow-Origin") != "https://app.example" ||
			!strings.Contains(exposed, "Mcp-Session-Id") || !strings.Contains(exposed, "WWW-Authenticate") || !strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Origin") {
			t.Errorf("answer to a listed origin = %d %v", a.status, a.header)
		}
		if a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Error("credentials are allowed, want not")
		}
	}
	for _, origin := range []string{"https://evil.test", "http://localhost:3000"} {
		for _, a := range []answer{
			at.do(http.MethodOptions, "", "Origin", origin, "Access-Control-Request-Method", "POST"),
			at.do(http.MethodPost, initialize, "Origin", origin),
		} {
			for name := range a.header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("answer to %s has %s", origin, name)
				}
			}
		}
	}
}

// A body over 4 MiB is refused without being read to its end, and one of exactly
// that is not; nothing that arrives slowly holds a place for long.
func TestHTTPBounds(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	at := listen(t, s, publish.HTTPOptions{})
	c := at.initialize("2025-11-25")
	padded := func(size int) string {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":""}}`
		return strings.Replace(body, `""`, `"`+strings.Repeat("x", size-len(body))+`"`, 1)
	}
	if a := c.post(padded(4 << 20)); a.status != http.StatusOK {
		t.Errorf("a body of 4 MiB = %d, want 200", a.status)
	}
	if a := c.post(padded(4<<20 + 1)); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 4 MiB and 1 byte = %d, want 413", a.status)
	}
	for _, length := range []int64{64 << 20, -1} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.url(), io.LimitReader(rand.Reader, 64<<20))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Content-Type", "application/json")
		resp, err := at.client.Do(req)
		if err != nil {
			t.Logf("a body of 64 MiB: %v", err) // cut off while it was being written
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body of 64 MiB = %d, want 413", resp.StatusCode)
		}
	}
	if a := c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "X-Long", strings.Repeat("x", 80<<10)); a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("headers of 80 KiB = %d, want 431", a.status)
	}
}

// The request of a client that writes its headers a byte at a time ends.
func TestHTTPSlowClients(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]string{
		"headers": "POST /mcp HTTP/1.1\r\nHost: localhost\r\nX",
		"body":    "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("takes the time that a client is given")
			}
			s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
			opt := publish.HTTPOptions{HeaderTimeout: 300 * time.Millisecond}
			if name == "body" {
				opt = publish.HTTPOptions{BodyTimeout: 300 * time.Millisecond}
			}
			at := listen(t, s, opt)
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, start); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(conn)
			if err != nil {
				t.Errorf("the server keeps the connection: %v", err)
			}
			if name == "body" && !bytes.HasPrefix(rest, []byte("HTTP/1.1 408 ")) {
				t.Errorf("a body that does not come = %.40q, want 408", rest)
			}
		})
	}
}

// An array is part of 2025-03-26 alone.
func TestHTTPArrays(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, func(o *publish.Options) { o.NoRunTools = true },
		shaped(t, "echo", "  inputs:\n    - { name: n, type: number }\n", "inputs.n + 1"))
	at := listen(t, s, publish.HTTPOptions{})
	const array = `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_echo","arguments":{"n":1}}},
		{"jsonrpc":"2.0","method":"notifications/initialized"}, {"jsonrpc":"2.0","id":"x","method":"ping"}, {"jsonrpc":"2.0","id":null,"method":"ping"},
		{"jsonrpc":"2.0","id":3,"method":"initialize","params":{}}, {"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"relavium_echo","arguments":{"n":9}}}]`
	c := at.initialize("2025-03-26")
	for _, accept := range []string{both, "application/json", "text/event-stream"} {
		a := c.post(array, "Accept", accept)
		responses := a.messages
		if a.header.Get("Content-Type") == "application/json" || len(responses) == 1 {
			responses = nil
			text := a.body
			if text == "" {
				text = a.messages[0].raw
			}
			if err := json.Unmarshal([]byte(text), &responses); err != nil {
				t.Fatalf("Accept %s: %v: %s", accept, err, text)
			}
		}
		var got []string
		for _, m := range responses {
			outcome := "result"
			if m.Error != nil {
				outcome = strconv.Itoa(m.Error.Code)
			}
			got = append(got, string(m.ID)+" "+outcome)
		}
		if diff := cmp.Diff([]string{"1 result", `"x" result`, "null -32600", "3 -32600", "4 result"}, got); a.status != http.StatusOK || diff != "" {
			t.Errorf("Accept %s: %d (-want +got):\n%s", accept, a.status, diff)
		}
	}
	if a := c.post(`[{"jsonrpc":"2.0","method":"notifications/initialized"}]`); a.status != http.StatusAccepted {
		t.Errorf("an array of notifications = %d, want 202", a.status)
	}
	for _, bad := range []string{"[]", "[" + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 64) + `{}]`} {
		if a := c.post(bad); a.status != http.StatusBadRequest || codeOf(a) != -32600 {
			t.Errorf("%.20s… = %d code %d, want 400 and -32600", bad, a.status, codeOf(a))
		}
	}
	for _, version := range []string{"2024-11-05", "2025-06-18", "2025-11-25"} {
		if a := at.initialize(version).post(array); a.status != http.StatusBadRequest || codeOf(a) != -32600 {
			t.Errorf("%s: an array = %d code %d, want 400 and -32600", version, a.status, codeOf(a))
		}
	}
}

// subscriptions/listen is acknowledged, shows signs of life, and ends with its
// result when the server stops.
func TestHTTPListen(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, func(o *publish.Options) { o.Heartbeat = 50 * time.Millisecond }, shaped(t, "echo", "", "1"))
	at := listen(t, s, publish.HTTPOptions{})
	header := modernHeader("subscriptions/listen", "")
	body := modernBody(`"sub"`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`)
	if a := at.do(http.MethodPost, body, append(header, "Accept", "application/json")...); a.status != http.StatusNotAcceptable {
		t.Errorf("listen without event streams = %d, want 406", a.status)
	}
	if a := at.do(http.MethodPost, strings.Replace(body, "true", "false", 1), header...); len(a.messages) != 2 || a.messages[1].Result == nil {
		t.Errorf("listen to nothing = %v, want the acknowledgement and the result", a.messages)
	}
	for _, accept := range []string{both, "text/event-stream", "*/*", ""} {
		resp, err := at.send(t.Context(), http.MethodPost, body, append(header, "Accept", accept)...)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		events := newEvents(resp.Body)
		ack, err := events.next()
		for err == nil && ack.comment { // the machine took its time
			ack, err = events.next()
		}
		const tag = `"io.modelcontextprotocol/subscriptionId":"sub"`
		if err != nil || !strings.Contains(ack.data, `"notifications/subscriptions/acknowledged"`) || !strings.Contains(ack.data, tag) {
			t.Fatalf("Accept %q: first event = %q, %v, want the acknowledgement", accept, ack.data, err)
		}
		if resp.Header.Get("X-Accel-Buffering") != "no" || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("header = %v", resp.Header)
		}
		if beat, err := events.next(); err != nil || !beat.comment {
			t.Errorf("second event = %+v, %v, want a comment", beat, err)
		}
		if accept != "" {
			continue
		}
		at.stop()
		for {
			ev, err := events.next()
			if err != nil {
				t.Fatalf("the stream ended without its result: %v", err)
			}
			if ev.data != "" {
				if !strings.Contains(ev.data, `"id":"sub"`) || !strings.Contains(ev.data, `"resultType":"complete"`) || !strings.Contains(ev.data, tag) {
					t.Errorf("last event = %s, want the result", ev.data)
				}
				break
			}
		}
		if _, err := events.next(); !errors.Is(err, io.EOF) {
			t.Errorf("after the result: %v, want the end", err)
		}
	}
}

// Report P06: signs of life on every stream and on a JSON body that waits; the
// newest GET stream replaces the one before.
func TestHTTPSignsOfLife(t *testing.T) {
	t.Parallel()
	beat, least := scaled(40*time.Millisecond, 15*time.Second), scaled(5, 3)
	s, e, _ := newServer(t, func(o *publish.Options) { o.Heartbeat = beat }, gated(t, "idle", time.Hour))
	at := listen(t, s, publish.HTTPOptions{Hold: 20 * time.Millisecond})
	c := at.initialize("2025-11-25")
	a := at.begin(modernBody("1", "tools/call", `"name":"relavium_idle","arguments":{}`), modernHeader("tools/call", "relavium_idle")...)
	_, gate := a.gate()
	for beats := 0; beats < least; {
		ev, err := a.events.next()
		if err != nil || strings.Contains(ev.data, "notifications/progress") {
			t.Fatalf("a blocked POST brought %+v, %v, want comments", ev, err)
		}
		if ev.comment {
			beats++
		}
	}
	decide(t, e, gate, engine.Approved)
	if m, ok := a.response(); !ok || m.Result == nil || a.resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the result of a blocked POST = %s", m.raw)
	}
	// Of 2026 and of 2025 as one JSON body: breaks, no progress, the result.
	for era, send := range map[string]func() (*http.Response, error){
		"2026": func() (*http.Response, error) {
			return at.send(t.Context(), http.MethodPost, modernBody("1", "tools/call", `"name":"relavium_idle"`), append(modernHeader("tools/call", "relavium_idle"), "Accept", "application/json")...)
		},
		"2025": func() (*http.Response, error) {
			return at.send(t.Context(), http.MethodPost, toolCall("1", "relavium_idle", `,"_meta":{"progressToken":1}`), c.header("Accept", "application/json")...)
		},
	} {
		resp, err := send()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		breaks := make([]byte, least)
		if _, err := io.ReadFull(resp.Body, breaks); err != nil || strings.Trim(string(breaks), "\n") != "" {
			t.Errorf("%s: a JSON body began with %q, %v, want %d line breaks", era, breaks, err, least)
		}
		decide(t, e, waitGate(t, e), engine.Approved)
		rest, err := io.ReadAll(resp.Body)
		var m wire
		if err != nil || json.Unmarshal(rest, &m) != nil || m.Result == nil || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: JSON body = %s, %v, want the result", era, rest, err)
		}
	}
	first := c.get("")
	for range 3 {
		if ev, err := first.events.next(); err != nil || !ev.comment {
			t.Fatalf("GET stream: %+v, %v, want comments", ev, err)
		}
	}
	second := c.get("")
	if m, ok := first.response(); ok {
		t.Errorf("the replaced stream had %s, want its end", m.raw)
	}
	for range 3 {
		if ev, err := second.events.next(); err != nil || !ev.comment {
			t.Fatalf("second GET stream: %+v, %v, want comments", ev, err)
		}
	}
	if a := c.do(http.MethodGet, "", c.header("Accept", "application/json")...); a.status != http.StatusNotAcceptable {
		t.Errorf("GET without event streams = %d, want 406", a.status)
	}
	if a := c.do(http.MethodDelete, "", c.header()...); a.status != http.StatusOK {
		t.Errorf("DELETE = %d, want 200", a.status)
	}
	if m, ok := second.response(); ok {
		t.Errorf("the stream of an ended session had %s, want its end", m.raw)
	}
}

// waitGate waits until one gate is open and returns it.
func waitGate(t *testing.T, e *engine.Engine) string {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); ; {
		open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(open) == 1 {
			return open[0].ID
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d gates are open, want one", len(open))
		}
	}
}

// Report L14: a call or an open gate keeps a session alive; an abandoned one goes.
func TestHTTPSessionIdle(t *testing.T) {
	t.Parallel()
	idle := scaled(time.Second, 5*time.Second)
	s, e, _ := newServer(t, nil, gated(t, "twelve", time.Hour))
	at := listen(t, s, publish.HTTPOptions{SessionIdle: idle})
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	// begins makes a session and a call of it that waits at a gate.
	begins := func(key string) (c *sessionClient, call *pendingCall, run, gate string) {
		t.Helper()
		for late := time.Now().Add(patience); time.Now().Before(late); {
			began := time.Now()
			c = at.initialize("2025-11-25")
			resp, err := at.send(t.Context(), http.MethodPost, toolCall("9", "relavium_twelve", fmt.Sprintf(`,"_meta":{"relavium/idempotencyKey":%q}`, key)), c.header()...)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode == http.StatusNotFound && time.Since(began) > idle {
				resp.Body.Close() // it was abandoned while the machine did something else
				continue
			}
			if resp.StatusCode != http.StatusOK {
				rest, err := io.ReadAll(resp.Body)
				t.Fatalf("a call = %d %s, %v, %v after its session was made", resp.StatusCode, rest, err, time.Since(began))
			}
			ctx, drop := context.WithTimeout(t.Context(), 4*patience)
			context.AfterFunc(ctx, func() { resp.Body.Close() })
			t.Cleanup(drop)
			call = &pendingCall{tb: t, resp: resp, events: newEvents(resp.Body), drop: drop}
			run, gate = call.gate()
			return c, call, run, gate
		}
		t.Fatal("no session lives long enough for a call")
		return nil, nil, "", ""
	}

	abandoned := at.initialize("2025-11-25")
	dropped, call, run, gate := begins("dropped")
	call.drop()
	<-time.After(2 * idle)
	if got := dropped.post(list).status; got != http.StatusOK {
		t.Errorf("a call of a session with an open gate = %d, want 200", got)
	}
	decide(t, e, gate, engine.Approved)
	waitState(t, e, run, engine.Completed)

	kept, call, _, gate := begins("kept")
	<-time.After(2 * idle)
	decide(t, e, gate, engine.Approved)
	if m, ok := call.response(); !ok || m.Result == nil {
		t.Fatalf("a call longer than the idle limit = %s", m.raw)
	}
	answered := time.Now()
	if got := kept.post(list).status; got != http.StatusOK && time.Since(answered) < idle {
		t.Errorf("a call after a long one = %d, want 200", got)
	}
	// Asking keeps a session alive, so it is asked once, after a while.
	<-time.After(2 * idle)
	for name, c := range map[string]*sessionClient{"an abandoned session": abandoned, "a session whose gate was decided": dropped} {
		if got := c.post(list).status; got != http.StatusNotFound {
			t.Errorf("a call of %s, long after = %d, want 404", name, got)
		}
	}
}
