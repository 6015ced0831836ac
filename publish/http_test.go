package publish_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/publish"
)

// A site is a server that listens on loopback.
type site struct {
	tb     testing.TB
	addr   string
	client *http.Client
	stop   context.CancelFunc
	done   chan error
	bearer string // sent with each request, if it is not ""
}

// as is the site as the holder of a token sees it.
func (s *site) as(token string) *site {
	other := *s
	other.bearer = token
	return &other
}

func (s *site) url() string { return "http://" + s.addr + "/mcp" }

// listen serves until the test ends. Answers that are no stream by themselves
// do not become one on a slow machine, unless the test says when.
func listen(tb testing.TB, s *publish.Server, opt publish.HTTPOptions) *site {
	tb.Helper()
	opt.Hold = cmp.Or(opt.Hold, 10*time.Second)
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	at := &site{
		tb: tb, addr: l.Addr().String(), stop: stop, done: make(chan error, 1),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}},
	}
	go func() { at.done <- s.ServeHTTPOn(ctx, l, opt) }()
	tb.Cleanup(func() {
		stop()
		select {
		case err := <-at.done:
			if err != nil {
				tb.Errorf("ServeHTTPOn = %v", err)
			}
		case <-time.After(patience):
			tb.Error("ServeHTTPOn does not end")
		}
		at.client.CloseIdleConnections()
	})
	return at
}

// both is what the specification wants of Accept.
const both = "application/json, text/event-stream"

// send makes one request; header lists names and values. The caller closes the body.
func (s *site) send(ctx context.Context, method, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", both)
	if s.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+s.bearer)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
			continue
		}
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	return s.client.Do(req)
}

// An answer is a response that was read to its end.
type answer struct {
	status   int
	header   http.Header
	body     string
	messages []wire // of an event stream in order, or the one of a JSON body
	ids      []string
	comments int
}

// response is the one message that is no notification.
func (a answer) response() wire {
	for _, m := range a.messages {
		if m.Method == "" {
			return m
		}
	}
	return wire{raw: a.body}
}

// do makes one request and reads the answer.
func (s *site) do(method, body string, header ...string) answer {
	s.tb.Helper()
	ctx, done := context.WithTimeout(s.tb.Context(), 2*patience)
	defer done()
	resp, err := s.send(ctx, method, body, header...)
	if err != nil {
		s.tb.Fatalf("%s %.80s: %v", method, body, err)
	}
	defer resp.Body.Close()
	a, err := read(resp)
	if err != nil {
		s.tb.Fatalf("%s %.80s: read: %v", method, body, err)
	}
	return a
}

func read(resp *http.Response) (answer, error) {
	a := answer{status: resp.StatusCode, header: resp.Header}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		events := newEvents(resp.Body)
		for {
			ev, err := events.next()
			if errors.Is(err, io.EOF) {
				return a, nil
			}
			if err != nil {
				return a, err
			}
			a.add(ev)
		}
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	a.body = string(b)
	if m := (wire{raw: strings.TrimSpace(a.body)}); json.Unmarshal(b, &m) == nil {
		a.messages = append(a.messages, m)
	}
	return a, nil
}

func (a *answer) add(ev event) {
	if ev.id != "" {
		a.ids = append(a.ids, ev.id)
	}
	if ev.comment {
		a.comments++
	}
	if ev.data != "" {
		m := wire{raw: ev.data}
		if err := json.Unmarshal([]byte(ev.data), &m); err != nil {
			m.Method = "broken: " + err.Error()
		}
		a.messages = append(a.messages, m)
	}
}

// An event is one event of a stream, or a comment.
type event struct {
	id, data string
	comment  bool
}

// events reads an event stream.
type events struct{ r *bufio.Reader }

func newEvents(r io.Reader) *events { return &events{bufio.NewReaderSize(r, 64<<10)} }

func (e *events) next() (event, error) {
	var ev event
	for {
		line, err := e.r.ReadString('\n')
		if err != nil {
			return event{}, err
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "":
			return ev, nil
		case strings.HasPrefix(line, ":"):
			ev.comment = true
		case strings.HasPrefix(line, "id: "):
			ev.id = line[4:]
		case strings.HasPrefix(line, "data: "):
			ev.data += line[6:]
		}
	}
}

// modern sends a request of 2026-07-28 as it has to be.
func modernHeader(method, name string) []string {
	return []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", name}
}

func modernBody(id, method, params string) string {
	if params != "" {
		params += ","
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s%s}}`, id, method, params, modernMeta)
}

func (s *site) modern(id, method, name, params string) answer {
	s.tb.Helper()
	return s.do(http.MethodPost, modernBody(id, method, params), modernHeader(method, name)...)
}

// A session is a client of an earlier revision.
type sessionClient struct {
	*site
	id      string
	version string
}

func (s *site) initialize(version string) *sessionClient {
	s.tb.Helper()
	return s.initializeAs(version, "")
}

// initializeAs shakes hands as a client that declares capabilities.
func (s *site) initializeAs(version, capabilities string) *sessionClient {
	s.tb.Helper()
	a := s.do(http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{%s},"clientInfo":{"name":"probe","version":"0"}}}`, version, capabilities))
	id := a.header.Get("Mcp-Session-Id")
	if a.status != http.StatusOK || id == "" || !bytes.Contains(a.response().Result, []byte(`"protocolVersion":"`+version+`"`)) {
		s.tb.Fatalf("initialize(%s) = %d, session %q, %s", version, a.status, id, a.body)
	}
	c := &sessionClient{site: s, id: id, version: version}
	if a := c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); a.status != http.StatusAccepted || a.body != "" {
		s.tb.Fatalf("notifications/initialized = %d %q, want 202 and nothing", a.status, a.body)
	}
	return c
}

func (c *sessionClient) header(more ...string) []string {
	return append([]string{"Mcp-Session-Id", c.id, "MCP-Protocol-Version", c.version}, more...)
}

func (c *sessionClient) post(body string, header ...string) answer {
	c.tb.Helper()
	return c.do(http.MethodPost, body, c.header(header...)...)
}

func toolCall(id, tool, rest string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q%s}}`, id, tool, rest)
}

// A call works in each revision, in the form that it knows.
func TestHTTPCall(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "  inputs:\n    - { name: n, type: number }\n", "inputs.n + 1"))
	at := listen(t, s, publish.HTTPOptions{})
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
		c := at.initialize(version)
		if a := c.post(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); a.status != http.StatusOK || !strings.Contains(a.body, `"relavium_echo"`) {
			t.Errorf("%s: tools/list = %d %s", version, a.status, a.body)
		}
		a := c.post(toolCall(`"a"`, "relavium_echo", `,"arguments":{"n":41}`))
		if a.status != http.StatusOK || !strings.Contains(a.body, `"id":"a"`) || !strings.Contains(a.body, "42") {
			t.Errorf("%s: tools/call = %d %s", version, a.status, a.body)
		}
		if got, want := strings.Contains(a.body, "structuredContent"), version >= "2025-06-18"; got != want {
			t.Errorf("%s: structuredContent is there: %t, want %t: %s", version, got, want, a.body)
		}
	}
	a := at.modern("9007199254740993", "tools/call", "relavium_echo", `"name":"relavium_echo","arguments":{"n":41}`)
	if a.status != http.StatusOK || !strings.Contains(a.body, `"id":9007199254740993`) || !strings.Contains(a.body, `"structuredContent":{"result":42}`) {
		t.Errorf("2026-07-28: tools/call = %d %s", a.status, a.body)
	}
	if got := a.header.Get("Mcp-Session-Id"); got != "" {
		t.Errorf("2026-07-28: Mcp-Session-Id = %q, want none", got)
	}
	if a := at.modern("1", "server/discover", "", ""); a.status != http.StatusOK || !strings.Contains(a.body, `"2026-07-28"`) || !strings.Contains(a.body, `"ttlMs"`) {
		t.Errorf("server/discover = %d %s", a.status, a.body)
	}
}
