package publish_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
)

// replicas are two servers with one store and the same keys.
func replicas(t *testing.T, change func(*publish.Options), opt publish.HTTPOptions, list ...publish.Workflow) (a, b *site, e *engine.Engine) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.db")
	keys, err := gates.NewKeys(discard())
	if err != nil {
		t.Fatal(err)
	}
	next := func() *site {
		s, opened, _ := newServer(t, func(o *publish.Options) {
			o.Engine, o.Keys = openEngine(t, path, nil), keys
			if change != nil {
				change(o)
			}
		}, list...)
		e = opened
		return listen(t, s, opt)
	}
	return next(), next(), e
}

// on is the session as the other server sees it.
func (c *sessionClient) on(other *site) *sessionClient {
	return &sessionClient{site: other, id: c.id, version: c.version}
}

const listTools = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`

// A session is good at every replica, until it is ended at one of them (report P03).
func TestReplicasSession(t *testing.T) {
	t.Parallel()
	a, b, _ := replicas(t, nil, publish.HTTPOptions{Hold: 10 * time.Millisecond}, gated(t, "deploy", time.Hour))
	long := strings.Repeat("ü", 500)
	made := a.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`+long+`","version":"0"}}}`)
	c := &sessionClient{site: a, id: made.header.Get("Mcp-Session-Id"), version: "2025-11-25"}
	for _, r := range c.id {
		if r < 0x21 || r > 0x7e {
			t.Errorf("session id %q has %q, want visible ASCII", c.id, r)
		}
	}
	if len(c.id) == 0 || len(c.id) > 512 {
		t.Errorf("the session id has %d bytes, want at most 512", len(c.id))
	}
	there := c.on(b)
	if got := there.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`).status; got != http.StatusAccepted {
		t.Errorf("initialized at the other replica = %d, want 202", got)
	}
	if got := there.post(listTools); got.status != http.StatusOK || !strings.Contains(got.body, "relavium_deploy") {
		t.Errorf("tools/list at the other replica = %d %s", got.status, got.body)
	}
	call, standing := a.begin(toolCall("1", "relavium_deploy", ""), c.header()...), c.get("")
	call.gate()
	began := time.Now()
	if got := there.do(http.MethodDelete, "", there.header()...).status; got != http.StatusOK {
		t.Errorf("DELETE at the other replica = %d, want 200", got)
	}
	for name, p := range map[string]*pendingCall{"call": call, "stream": standing} {
		if m, ok := p.until(func(wire) bool { return true }); ok {
			t.Errorf("%s of an ended session has %s, want its end", name, m.raw)
		}
	}
	t.Logf("streams at the other replica ended after %v", time.Since(began))
	for _, at := range []*sessionClient{c, there} {
		if got := at.post(listTools).status; got != http.StatusNotFound {
			t.Errorf("a request after the end = %d, want 404", got)
		}
	}
}

// What is no session of these keys is not there.
func TestReplicasForged(t *testing.T) {
	t.Parallel()
	a, b, e := replicas(t, nil, publish.HTTPOptions{}, shaped(t, "echo", "", "1"))
	c := a.initialize("2025-11-25")
	flip := func(i int) string {
		by := byte('A')
		if c.id[i] == by {
			by = 'B'
		}
		return c.id[:i] + string(by) + c.id[i+1:]
	}
	head, body, _ := strings.Cut(c.id, ".")
	foreign, err := gates.NewKeys(discard())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{
		flip(0), flip(len(head) + 1), flip(len(c.id) / 2), flip(len(c.id) - 2), c.id[:len(c.id)-1], c.id + "A", c.id + "=", head, head + ".", "." + body, ".",
		"..", "%00", strings.Repeat("A", 1<<10), strings.Repeat("A", 60<<10), c.id + "." + c.id, foreign.SealAs("session", []byte(`{"p":"x","v":"2025-11-25","t":1}`)),
	} {
		for _, at := range []*site{a, b} {
			other := &sessionClient{site: at, id: id, version: c.version}
			for _, got := range []answer{other.post(listTools), other.do(http.MethodGet, "", other.header()...), other.do(http.MethodDelete, "", other.header()...)} {
				if got.status != http.StatusNotFound {
					t.Errorf("session %.80q = %d %s, want 404", id, got.status, got.body)
				}
			}
		}
	}
	if got := c.on(b).post(listTools).status; got != http.StatusOK {
		t.Errorf("the session itself = %d, want 200", got)
	}
	if _, ended, err := e.SeenSession(t.Context(), "nobody"); err != nil || ended {
		t.Errorf("an unknown session: ended %t, %v", ended, err)
	}
}

// A session that has reached its age is not there, be it in use or not.
func TestReplicasAge(t *testing.T) {
	t.Parallel()
	const age = time.Second
	a, b, _ := replicas(t, nil, publish.HTTPOptions{SessionAge: age}, shaped(t, "echo", "", "1"))
	began := time.Now()
	made := a.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"0"}}}`)
	c := &sessionClient{site: a, id: made.header.Get("Mcp-Session-Id"), version: "2025-11-25"}
	for _, at := range []*site{a, b} {
		for {
			asked := time.Now()
			got := c.on(at).post(listTools).status
			young := time.Since(began) < age
			if old := asked.Sub(began) > 2*age; got == http.StatusNotFound && young || got != http.StatusNotFound && old {
				t.Fatalf("a session of %v = %d, want that it is there for %v", time.Since(began), got, age)
			}
			if got == http.StatusNotFound {
				break
			}
			<-time.After(age / 20)
		}
	}
}

// A session of another principal is not there at any replica.
func TestReplicasPrincipals(t *testing.T) {
	t.Parallel()
	l := openLobby(t, access.ModeToken)
	a, b, _ := replicas(t, nil, l.options(), shaped(t, "echo", "", "1"))
	annToken, _ := l.token("ann", "relavium:run")
	bobToken, _ := l.token("bob", "relavium:run", "relavium:ops")
	c := a.as(annToken).initialize("2025-11-25")
	if got := c.on(b.as(annToken)).post(listTools).status; got != http.StatusOK {
		t.Errorf("one's own session at the other replica = %d, want 200", got)
	}
	for _, at := range []*site{a, b} {
		stolen := c.on(at.as(bobToken))
		for _, got := range []int{stolen.post(listTools).status, stolen.do(http.MethodDelete, "", stolen.header()...).status} {
			if got != http.StatusNotFound {
				t.Errorf("the session of another principal = %d, want 404", got)
			}
		}
	}
	if got := c.post(listTools).status; got != http.StatusOK {
		t.Errorf("the session after all = %d, want 200", got)
	}
}

// The reply to a question counts at whichever replica it arrives, by the same rules.
func TestReplicasElicitation(t *testing.T) {
	t.Parallel()
	a, b, _ := replicas(t, anyTime, publish.HTTPOptions{Hold: 10 * time.Millisecond}, chained(t, "deploy", "one", "two", "three"))
	c, stranger := a.initializeAs("2025-11-25", declaresForm), b.initializeAs("2025-11-25", declaresForm)
	there := c.on(b)
	call := a.begin(toolCall("1", "relavium_deploy", ""), c.header()...)
	first := call.asked()
	stranger.says(first, reject)
	there.says(wire{ID: json.RawMessage(`"QQQQQQQQQQQQQQQQQQQQQQQQQQ"`)}, reject) // nobody asked
	there.says(first, approve)
	for _, at := range []*sessionClient{c, there} { // again is not heard
		at.says(first, reject)
	}
	next := func() wire { // a question; none is taken back that was answered
		t.Helper()
		m, ok := call.until(func(m wire) bool {
			if m.Method == "notifications/cancelled" {
				t.Errorf("a question was taken back: %s", m.raw)
			}
			return m.Method == "elicitation/create"
		})
		if !ok {
			t.Fatal("no question")
		}
		return m
	}
	second := next()
	there.says(second, `{"action":"accept","content":{}}`) // is asked once more
	again := next()
	if string(again.ID) == string(second.ID) || messageOf(t, again) != messageOf(t, second) {
		t.Errorf("asked again: %s, want the same question under another id than %s", again.raw, second.raw)
	}
	there.says(second, approve) // is spent
	c.says(again, reject)
	there.says(next(), approve)
	m, ok := call.response()
	if got, want := string(textOfResult(t, m).StructuredContent), `{"result":["approved","rejected","approved"]}`; !ok || got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// What closes the rung closes it for the call that waits elsewhere, which says so.
func TestReplicasNoAnswer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*publish.Options)
		replies []string
		says    string
	}{
		"reflex":        {func(o *publish.Options) { o.MinHuman = time.Hour }, []string{approve}, "sooner than a person answers"},
		"cancel":        {anyTime, []string{`{"action":"cancel"}`}, "was dismissed"},
		"invalid twice": {anyTime, []string{`{"action":"accept"}`, `{"action":"accept","content":{"decision":"maybe"}}`}, "twice"},
		"no answer":     {anyTime, []string{`[]`}, "not a JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, e := replicas(t, tt.change, publish.HTTPOptions{Hold: 10 * time.Millisecond}, chained(t, "deploy", "one"))
			c := a.initializeAs("2025-11-25", declaresForm)
			call := a.begin(toolCall("1", "relavium_deploy", `,"_meta":{"progressToken":"p"}`), c.header()...)
			for _, reply := range tt.replies {
				c.on(b).says(call.asked(), reply)
			}
			if _, ok := call.until(func(m wire) bool { return strings.Contains(m.raw, tt.says) }); !ok {
				t.Errorf("the stream ended without %q", tt.says)
			}
			run, _, _ := strings.Cut(call.ids[0], ".")
			open, err := e.Gates(t.Context(), engine.GateFilter{Run: run, Open: true})
			if err != nil || len(open) != 1 {
				t.Fatalf("open gates = %+v, %v, want one", open, err)
			}
			decide(t, e, open[0].ID, engine.Approved)
			if m, ok := call.response(); !ok || !strings.Contains(m.raw, "approved") {
				t.Errorf("the answer = %s, want the result", m.raw)
			}
		})
	}
}

// A cancel reaches the call wherever it is answered.
func TestReplicasCancel(t *testing.T) {
	t.Parallel()
	a, b, e := replicas(t, nil, publish.HTTPOptions{Hold: 10 * time.Millisecond}, gated(t, "deploy", time.Hour))
	c, other := a.initialize("2025-11-25"), b.initialize("2025-11-25")
	call := a.begin(toolCall("7", "relavium_deploy", ""), c.header()...)
	run, _ := call.gate()
	for _, id := range []string{"8", `"7"`} {
		c.on(b).post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
	}
	other.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	<-time.After(600 * time.Millisecond)
	if r := waitState(t, e, run, engine.Waiting, engine.Cancelled); r.State != engine.Waiting {
		t.Fatalf("the run is %s by the cancel of other requests, want waiting", r.State)
	}
	c.on(b).post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"enough"}}`)
	waitState(t, e, run, engine.Cancelled)
	if m, ok := call.response(); ok {
		t.Errorf("a cancelled call was answered: %s", m.raw)
	}
}

// A client whose stream broke goes on at the other replica: it is asked under the same
// id, its progress grows on, and it gets the answer, once.
func TestReplicasResume(t *testing.T) {
	t.Parallel()
	a, b, _ := replicas(t, func(o *publish.Options) { o.MinHuman, o.Heartbeat = -1, 50*time.Millisecond }, publish.HTTPOptions{Hold: 10 * time.Millisecond}, chained(t, "deploy", "one", "two"))
	c, stranger := a.initializeAs("2025-11-25", declaresForm), a.initializeAs("2025-11-25", declaresForm)
	call := a.begin(toolCall(`"x/1"`, "relavium_deploy", `,"_meta":{"progressToken":"p"}`), c.header()...)
	first := call.asked()
	top := grows(t, call, -1, 3)
	last := call.ids[len(call.ids)-1]
	run, _, _ := strings.Cut(last, ".")
	call.drop()

	there := c.on(b)
	back := there.get(last)
	again := back.asked()
	if string(again.ID) != string(first.ID) || messageOf(t, again) != messageOf(t, first) {
		t.Errorf("asked again: %s, want the same question %s", again.raw, first.raw)
	}
	top = grows(t, back, top, 3)
	c.says(again, approve)
	second := back.asked()
	if messageOf(t, second) == messageOf(t, first) {
		t.Errorf("the second question = %s, want that of the next gate", second.raw)
	}
	grows(t, back, top, 3)
	there.says(second, approve)
	m, ok := back.response()
	if !ok || string(m.ID) != `"x/1"` || runOf(textOfResult(t, m)) != run || !strings.Contains(m.raw, `["approved","approved"]`) {
		t.Errorf("the answer = %s, want that of run %s", m.raw, run)
	}
	final := back.ids[len(back.ids)-1]
	for _, at := range []*sessionClient{c, there} {
		silent(t, at.get(final), "a stream for an answer that was read")
	}
	silent(t, stranger.on(b).get(last), "a stream of another session")
	silent(t, there.get(last), "a stream for an answer that was given")
}

// grows reads n progress notifications, each larger than the one before.
func grows(t *testing.T, p *pendingCall, after float64, n int) float64 {
	t.Helper()
	for range n {
		var at struct {
			ProgressToken string
			Progress      float64
		}
		m, ok := p.until(func(m wire) bool { return m.Method == "notifications/progress" })
		if err := json.Unmarshal(m.Params, &at); !ok || err != nil || at.ProgressToken != "p" || at.Progress <= after {
			t.Fatalf("progress %s after %v, want more", m.raw, after)
		}
		after = at.Progress
	}
	return after
}

// A replica that stops leaves its sessions to the others.
func TestReplicasStop(t *testing.T) {
	t.Parallel()
	a, b, _ := replicas(t, nil, publish.HTTPOptions{}, shaped(t, "echo", "", "1"))
	c := a.initialize("2025-11-25")
	standing := c.get("")
	a.stop()
	if _, err := standing.events.next(); err == nil {
		_, err = standing.events.next()
		if !errors.Is(err, io.EOF) {
			t.Errorf("the stream of a server that stops ended with %v", err)
		}
	}
	if got := c.on(b).post(listTools).status; got != http.StatusOK {
		t.Errorf("the session after its replica stopped = %d, want 200", got)
	}
}

// The use of a session at one replica keeps it alive for the others.
func TestReplicasIdle(t *testing.T) {
	t.Parallel()
	idle := scaled(700*time.Millisecond, 5*time.Second)
	a, b, _ := replicas(t, nil, publish.HTTPOptions{SessionIdle: idle}, shaped(t, "echo", "", "1"))
	abandoned := a.initialize("2025-11-25")
	// Where the machine does something else for longer than the limit the session was not
	// in use: another one begins. The others hear of the use from time to time.
	late := time.After(2 * patience)
	for done := false; !done; {
		last := time.Now()
		used := a.initialize("2025-11-25")
		began := time.Now()
		for alive := true; alive && !done; {
			select {
			case <-time.After(idle / 8):
			case <-late:
				t.Fatal("no session in use is alive at the other replica")
			}
			asked := time.Now()
			got := used.post(listTools).status
			if alive = got == http.StatusOK; !alive && time.Since(last) < idle {
				t.Fatalf("a session in use = %d, want 200", got)
			}
			last = asked
			done = alive && time.Since(began) > 2*idle && used.on(b).post(listTools).status == http.StatusOK
		}
	}
	<-time.After(idle)
	for _, at := range []*site{a, b} {
		if got := abandoned.on(at).post(listTools).status; got != http.StatusNotFound {
			t.Errorf("an abandoned session = %d, want 404", got)
		}
	}
}

// Requests of one session go to either replica in turn.
func TestReplicasInTurn(t *testing.T) {
	t.Parallel()
	a, b, _ := replicas(t, nil, publish.HTTPOptions{}, shaped(t, "echo", "  inputs:\n    - { name: n, type: number }\n", "inputs.n"))
	c := a.initialize("2025-06-18")
	for n := range 20 {
		at := c.on([]*site{a, b}[n%2])
		got := at.post(toolCall(fmt.Sprint(n), "relavium_echo", fmt.Sprintf(`,"arguments":{"n":%d}`, n)))
		if want := fmt.Sprintf(`"structuredContent":{"result":%d}`, n); got.status != http.StatusOK || !strings.Contains(got.body, want) {
			t.Errorf("call %d = %d %s, want %s", n, got.status, got.body, want)
		}
	}
}
