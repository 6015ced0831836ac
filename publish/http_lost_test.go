package publish_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// A pending call is a POST whose stream is open.
type pendingCall struct {
	tb     testing.TB
	resp   *http.Response
	events *events
	drop   context.CancelFunc
	ids    []string
}

// begin sends a call that waits, and returns once its stream is open.
func (s *site) begin(body string, header ...string) *pendingCall {
	s.tb.Helper()
	ctx, drop := context.WithTimeout(s.tb.Context(), 5*patience)
	resp, err := s.send(ctx, http.MethodPost, body, header...)
	if err != nil {
		drop()
		s.tb.Fatal(err)
	}
	s.tb.Cleanup(func() { drop(); resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		s.tb.Fatalf("%.80s = %d %s, want a stream", body, resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return &pendingCall{tb: s.tb, resp: resp, events: newEvents(resp.Body), drop: drop}
}

// get opens a stream of the session; last may be "".
func (c *sessionClient) get(last string) *pendingCall {
	c.tb.Helper()
	ctx, drop := context.WithTimeout(c.tb.Context(), 5*patience)
	resp, err := c.send(ctx, http.MethodGet, "", c.header("Last-Event-ID", last)...)
	if err != nil {
		drop()
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { drop(); resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("X-Accel-Buffering") != "no" {
		c.tb.Fatalf("GET = %d %v, want a stream", resp.StatusCode, resp.Header)
	}
	return &pendingCall{tb: c.tb, resp: resp, events: newEvents(resp.Body), drop: drop}
}

// until returns the first message that matches; ok is false at the end.
func (p *pendingCall) until(match func(wire) bool) (m wire, ok bool) {
	p.tb.Helper()
	for {
		ev, err := p.events.next()
		if err != nil {
			return wire{}, false
		}
		if ev.id != "" {
			p.ids = append(p.ids, ev.id)
		}
		if ev.data == "" {
			continue
		}
		m := wire{raw: ev.data}
		if err := json.Unmarshal([]byte(ev.data), &m); err != nil {
			p.tb.Fatalf("event %q: %v", ev.data, err)
		}
		if match(m) {
			return m, true
		}
	}
}

// gate waits until the call tells of a gate, and returns the run's and its id.
func (p *pendingCall) gate() (run, gate string) {
	p.tb.Helper()
	m, ok := p.until(func(m wire) bool { return m.Method == "notifications/relavium/human_gate" })
	var note struct{ RunID, GateID string }
	if !ok || json.Unmarshal(m.Params, &note) != nil {
		p.tb.Fatal("the stream told of no gate")
	}
	return note.RunID, note.GateID
}

func (p *pendingCall) response() (wire, bool) {
	p.tb.Helper()
	return p.until(func(m wire) bool { return m.Method == "" })
}

func textOfResult(tb testing.TB, m wire) result {
	tb.Helper()
	var r result
	if m.Error != nil || json.Unmarshal(m.Result, &r) != nil || len(r.Content) == 0 {
		tb.Fatalf("want a result, got %s", m.raw)
	}
	return r
}

// Another client's cancel, and the request ids that clients share, touch nobody
// else's call; one's own cancel ends the call and its run.
func TestHTTPCancelIsOnesOwn(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "deploy", time.Hour))
	at := listen(t, s, publish.HTTPOptions{})
	a, b := at.initialize("2025-11-25"), at.initialize("2025-11-25")
	key := func(k string) string { return `,"_meta":{"relavium/idempotencyKey":"` + k + `"}` }
	callA := at.begin(toolCall("7", "relavium_deploy", key("a")), a.header()...)
	callB := at.begin(toolCall("7", "relavium_deploy", key("b")), b.header()...)
	modern := at.begin(modernBody("7", "tools/call", `"name":"relavium_deploy"`), modernHeader("tools/call", "relavium_deploy")...)
	runA, _ := callA.gate()
	runB, gateB := callB.gate()
	runM, gateM := modern.gate()

	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
	third := at.initialize("2025-11-25")
	for name, a := range map[string]answer{
		"another session": third.post(cancel),
		"2026-07-28":      at.do(http.MethodPost, strings.Replace(cancel, `"requestId"`, modernMeta+`,"requestId"`, 1), modernHeader("notifications/cancelled", "")...),
		"the call's own":  a.post(cancel),
	} {
		if a.status != http.StatusAccepted {
			t.Errorf("cancel of %s = %d, want 202", name, a.status)
		}
	}
	waitState(t, e, runA, engine.Cancelled)
	if m, ok := callA.response(); ok {
		t.Errorf("a cancelled call was answered: %s", m.raw)
	}
	for _, run := range []string{runB, runM} {
		if r := waitState(t, e, run, engine.Waiting, engine.Cancelled); r.State != engine.Waiting {
			t.Errorf("run of another client's call 7 is %s, want waiting", r.State)
		}
	}
	decide(t, e, gateB, engine.Approved)
	decide(t, e, gateM, engine.Approved)
	for run, call := range map[string]*pendingCall{runB: callB, runM: modern} {
		m, ok := call.response()
		if !ok || string(m.ID) != "7" || runOf(textOfResult(t, m)) != run {
			t.Errorf("answer of run %s = %s, want its own", run, m.raw)
		}
	}
}

// A 2025 connection that drops only detaches: a cancel that comes after still
// reaches the run, a client's clock leaves it alone.
func TestHTTPCancelAfterTheDrop(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, gated(t, "deploy", time.Hour))
	at := listen(t, s, publish.HTTPOptions{})
	c := at.initialize("2025-11-25")
	for reason, want := range map[string]engine.State{"the user pressed a key": engine.Cancelled, "Request timed out": engine.Waiting} {
		call := at.begin(toolCall(`"x"`, "relavium_deploy", `,"_meta":{"relavium/idempotencyKey":"`+reason+`"}`), c.header()...)
		run, _ := call.gate()
		call.drop()
		st.waitDetached(t, run, engine.DetachDrop)
		if a := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x","reason":%q}}`, reason)); a.status != http.StatusAccepted {
			t.Errorf("cancel = %d, want 202", a.status)
		}
		if r := waitState(t, e, run, engine.Waiting, engine.Cancelled); r.State != want {
			t.Errorf("run after a cancel with reason %q is %s, want %s", reason, r.State, want)
		}
	}
}

// A call that its client gave up does not wait again when the client's library comes
// back for the stream that ended, at whichever replica: the call made again has the run.
func TestHTTPGivenUpIsNotResumed(t *testing.T) {
	t.Parallel()
	a, b, e := replicas(t, nil, publish.HTTPOptions{Hold: 10 * time.Millisecond}, gated(t, "deploy", time.Hour))
	c := a.initialize("2025-11-25")
	for i, there := range []*sessionClient{c, c.on(b)} {
		id := strconv.Itoa(i + 1)
		call := a.begin(toolCall(id, "relavium_deploy", ""), c.header()...)
		run, gate := call.gate()
		last := call.ids[len(call.ids)-1]
		there.post(cancelOf(id, gaveUp))
		if m, ok := call.response(); ok {
			t.Errorf("a cancelled call was answered: %s", m.raw)
		}
		silent(t, there.get(last), "a stream for a call that was given up")
		again := there.begin(toolCall(id+"01", "relavium_deploy", ""), there.header()...)
		if joined, _ := again.gate(); joined != run {
			t.Errorf("given up at replica %d: the call again waits for %s, want %s", i, joined, run)
		}
		silent(t, there.get(last), "a stream for a call that was given up, whose run another one waits for")
		decide(t, e, gate, engine.Approved)
		if m, ok := again.response(); !ok || runOf(textOfResult(t, m)) != run {
			t.Errorf("given up at replica %d: the call again got %s, want the result of %s", i, m.raw, run)
		}
	}
}

// A store is the run store of a server, for what no interface shows.
type store struct{ db *sql.DB }

// newStoredServer is a server whose store can be looked into.
func newStoredServer(t *testing.T, change func(*engine.Options), list ...publish.Workflow) (*publish.Server, *engine.Engine, store) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "serve.db")
	s, e, _ := newServer(t, func(o *publish.Options) { o.Engine = openEngine(t, path, change) }, list...)
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return s, e, store{db}
}

// waitDetached waits until the run has lost its caller, and holds the reason to want.
func (s store) waitDetached(t *testing.T, run, want string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		var at sql.NullInt64
		var reason sql.NullString
		if err := s.db.QueryRowContext(t.Context(), `select detached, detach_reason from runs where id=?`, run).Scan(&at, &reason); err != nil {
			t.Fatal(err)
		}
		if at.Valid {
			if reason.String != want {
				t.Errorf("run %s is detached by %q, want %q", run, reason.String, want)
			}
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("run %s is attached still", run)
		}
	}
}

func (s store) runs(t *testing.T) int {
	t.Helper()
	var n int
	if err := s.db.QueryRowContext(t.Context(), `select count(*) from runs`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// A client that gives up, by closing on 2026-07-28, by dropping before or by its
// clock, and calls again gets the run that it began, once; then a call is a new one.
func TestHTTPRetryJoins(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, gated(t, "deploy", time.Hour))
	at := listen(t, s, publish.HTTPOptions{})
	c := at.initialize("2025-06-18")
	for _, tt := range []struct {
		reason, body string
		header       []string
	}{
		{engine.DetachClose, modernBody("1", "tools/call", `"name":"relavium_deploy"`), modernHeader("tools/call", "relavium_deploy")},
		{engine.DetachDrop, toolCall("1", "relavium_deploy", `,"arguments":{}`), c.header()},
		{engine.DetachClock, toolCall("2", "relavium_deploy", `,"arguments":{}`), c.header()},
	} {
		call := at.begin(tt.body, tt.header...)
		run, _ := call.gate()
		if tt.reason == engine.DetachClock { // as SDKs do after 60 s
			c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"McpError: MCP error -32001: Request timed out"}}`)
		}
		call.drop()
		st.waitDetached(t, run, tt.reason)
		retry := at.begin(tt.body, tt.header...)
		joined, gate := retry.gate()
		if joined != run {
			t.Errorf("%s: the retry waits for %s, want %s", tt.reason, joined, run)
		}
		decide(t, e, gate, engine.Approved)
		m, ok := retry.response()
		if r := textOfResult(t, m); !ok || runOf(r) != run || string(r.Meta["relavium/joined"]) != "true" {
			t.Errorf("%s: the retry got %s, want the joined result", tt.reason, m.raw)
		}
		before := st.runs(t)
		again := at.begin(tt.body, tt.header...)
		if other, _ := again.gate(); other == run || st.runs(t) != before+1 {
			t.Errorf("%s: a call after the result waits for %s of %d runs, want a new one", tt.reason, other, st.runs(t))
		}
		// It stays attached, so that no later call of this test joins it.
	}
}

// A run that completes while its client is away is joined by the retry.
func TestHTTPRetryAfterTheEnd(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, gated(t, "deploy", time.Hour))
	at := listen(t, s, publish.HTTPOptions{Hold: 10 * time.Millisecond})
	body, header := modernBody("1", "tools/call", `"name":"relavium_deploy"`), modernHeader("tools/call", "relavium_deploy")
	call := at.begin(body, header...)
	run, gate := call.gate()
	call.drop()
	st.waitDetached(t, run, engine.DetachClose)
	decide(t, e, gate, engine.Approved)
	waitState(t, e, run, engine.Completed)
	a := at.do(http.MethodPost, body, header...)
	if r := textOfResult(t, a.response()); runOf(r) != run || string(r.Meta["relavium/joined"]) != "true" {
		t.Errorf("the retry got %s, want the result of run %s", a.response().raw, run)
	}
}

// Two equal calls that both wait are two runs.
func TestHTTPTwoCallsStayTwo(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, gated(t, "deploy", time.Hour))
	at := listen(t, s, publish.HTTPOptions{})
	header := modernHeader("tools/call", "relavium_deploy")
	first := at.begin(modernBody("1", "tools/call", `"name":"relavium_deploy"`), header...)
	second := at.begin(modernBody("1", "tools/call", `"name":"relavium_deploy"`), header...)
	runA, gateA := first.gate()
	runB, gateB := second.gate()
	if runA == runB || st.runs(t) != 2 {
		t.Fatalf("two calls wait for %s and %s, want two runs", runA, runB)
	}
	decide(t, e, gateB, engine.Rejected)
	decide(t, e, gateA, engine.Approved)
	for call, want := range map[*pendingCall]string{first: "approved", second: "rejected"} {
		if m, ok := call.response(); !ok || !strings.Contains(m.raw, want) {
			t.Errorf("answer = %s, want %s", m.raw, want)
		}
	}
}

// Report E04: a run whose client dropped reaches one end, and the record says it.
func TestHTTPDroppedRunEnds(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*engine.Options){
		"completed": nil,
		"cancelled": func(o *engine.Options) { o.OrphanGrace = time.Nanosecond; o.Agent = stuckAgents{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := gated(t, "record", time.Hour)
			if name == "cancelled" {
				w = agentWorkflow(t, "record")
			}
			s, e, st := newStoredServer(t, change, w)
			at := listen(t, s, publish.HTTPOptions{Hold: 10 * time.Millisecond})
			call := at.begin(toolCall("1", "relavium_record", `,"_meta":{"progressToken":1}`), at.initialize("2025-11-25").header()...)
			gate := ""
			if name == "completed" {
				_, gate = call.gate()
			}
			for len(call.ids) == 0 {
				if _, ok := call.until(func(wire) bool { return true }); !ok {
					t.Fatal("the stream ended")
				}
			}
			run, _, _ := strings.Cut(call.ids[0], ".")
			call.drop()
			st.waitDetached(t, run, engine.DetachDrop)
			if gate != "" {
				decide(t, e, gate, engine.Approved)
			}
			waitState(t, e, run, engine.State(name))
		})
	}
}

// The same after a restart: the next process brings the run to its end.
func TestHTTPDroppedRunEndsAfterRestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "serve.db")
	first, err := engine.Open(t.Context(), engine.Options{
		Path: path, Executor: true, Projects: []string{projectKey}, Agent: noAgents{}, Logger: discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := newServer(t, func(o *publish.Options) { o.Engine = first }, gated(t, "record", time.Second))
	at := listen(t, s, publish.HTTPOptions{})
	call := at.begin(toolCall("1", "relavium_record", ""), at.initialize("2025-11-25").header()...)
	run, _ := call.gate()
	call.drop()
	at.stop()
	err = <-at.done
	at.done <- err
	ctx, done := context.WithTimeout(t.Context(), patience)
	defer done()
	if err := first.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if r := waitState(t, openEngine(t, path, nil), run, engine.Completed, engine.Failed, engine.Cancelled); r.State != engine.Completed {
		t.Errorf("the run of a dropped call is %s after a restart, want completed", r.State)
	}
}

// stuckAgents run until their run is cancelled.
type stuckAgents struct{}

func (stuckAgents) RunAgent(ctx context.Context, _ engine.AgentCall) (engine.AgentResult, error) {
	<-ctx.Done()
	return engine.AgentResult{}, ctx.Err()
}

func agentWorkflow(tb testing.TB, id string) publish.Workflow {
	tb.Helper()
	return parse(tb, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  description: test workflow
  trigger: { type: mcp_call }
  agents:
    - { id: helper, provider: anthropic, model: claude-sonnet-4-6, system_prompt: 'Help.' }
  nodes:
    - { id: start, type: input }
    - { id: think, type: agent, agent_ref: helper, prompt_template: 'Think.' }
    - { id: result, type: output }
  edges:
    - { from: start, to: think }
    - { from: think, to: result }
`, id, id))
}

// Report P05: what a client missed of a 2025 call it gets by Last-Event-ID, once;
// asking again leaves a stream open that says nothing more.
func TestHTTPResume(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, gated(t, "deploy", time.Hour))
	at := listen(t, s, publish.HTTPOptions{Hold: 10 * time.Millisecond})
	c := at.initialize("2025-11-25")
	other := at.initialize("2025-11-25")
	for _, early := range []bool{true, false} { // back before the run ends, or after
		call := at.begin(toolCall(`"late"`, "relavium_deploy", fmt.Sprintf(`,"_meta":{"relavium/idempotencyKey":"%t"}`, early)), c.header()...)
		run, gate := call.gate()
		if len(call.ids) == 0 || !strings.HasPrefix(call.ids[0], run+".") {
			t.Fatalf("event ids = %q, want some of run %s", call.ids, run)
		}
		last := call.ids[len(call.ids)-1]
		call.drop()
		st.waitDetached(t, run, engine.DetachDrop)
		var back *pendingCall
		if early {
			back = c.get(last)
			if again, _ := back.gate(); again != run { // what waits still is told again
				t.Errorf("the stream tells of run %s, want %s", again, run)
			}
		}
		decide(t, e, gate, engine.Approved)
		if !early {
			waitState(t, e, run, engine.Completed)
			foreign := other.get(last)
			silent(t, foreign, "a stream of another session")
			back = c.get(last)
		}
		m, ok := back.response()
		if !ok || string(m.ID) != `"late"` || runOf(textOfResult(t, m)) != run || !strings.Contains(m.raw, "approved") {
			t.Errorf("early %t: the answer again = %s, want the result of run %s for id \"late\"", early, m.raw, run)
		}
		if m, ok := back.response(); ok {
			t.Errorf("early %t: a second answer on the stream: %s", early, m.raw)
		}
		final := back.ids[len(back.ids)-1]
		for _, id := range []string{last, final} {
			silent(t, c.get(id), "a stream for an answer that was given")
		}
	}
	// An answer that was read to its end is not given again, one that was not is.
	whole := at.begin(toolCall("1", "relavium_deploy", `,"_meta":{"relavium/idempotencyKey":"k"}`), c.header()...)
	_, gate := whole.gate()
	decide(t, e, gate, engine.Approved)
	if _, ok := whole.response(); !ok {
		t.Fatal("no answer")
	}
	silent(t, c.get(whole.ids[len(whole.ids)-1]), "a stream for an answer that was read")
	if m, ok := c.get(whole.ids[0]).response(); !ok || string(m.ID) != "1" {
		t.Errorf("the answer to a client that lacks it = %s", m.raw)
	}
}

// silent holds that a stream stays open and has no message.
func silent(t *testing.T, p *pendingCall, what string) {
	t.Helper()
	defer p.drop()
	got := make(chan string, 1)
	go func() {
		for {
			ev, err := p.events.next()
			if err != nil {
				got <- "its end: " + err.Error()
				return
			}
			if ev.data != "" {
				got <- ev.data
				return
			}
		}
	}()
	select {
	case m := <-got:
		t.Errorf("%s has %s, want nothing", what, m)
	case <-time.After(200 * time.Millisecond):
	}
	p.drop()
}

// Report L16: the server stops although 100 streams are open and
// 20 calls wait; each call is told, each stream ends cleanly, no run is failed.
func TestHTTPStop(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "park", time.Hour))
	at := listen(t, s, publish.HTTPOptions{Hold: 10 * time.Millisecond})
	var streams, calls []*pendingCall
	for range 50 {
		streams = append(streams, at.begin(modernBody("1", "subscriptions/listen", `"notifications":{"toolsListChanged":true}`), modernHeader("subscriptions/listen", "")...))
		streams = append(streams, at.initialize("2025-11-25").get(""))
	}
	runs := map[string]bool{}
	for i := range 20 {
		body, header := modernBody("1", "tools/call", `"name":"relavium_park"`), modernHeader("tools/call", "relavium_park")
		if i%2 == 0 {
			body, header = toolCall("1", "relavium_park", ""), at.initialize("2025-11-25").header()
		}
		call := at.begin(body, header...)
		run, _ := call.gate()
		runs[run] = true
		calls = append(calls, call)
	}
	if len(runs) != 20 {
		t.Fatalf("20 calls wait for %d runs", len(runs))
	}
	// One that never sends a whole request must not hold the server up.
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /mcp HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	at.stop()
	var reading sync.WaitGroup
	for _, call := range calls {
		reading.Go(func() {
			m, ok := call.response()
			var r result
			if !ok || json.Unmarshal(m.Result, &r) != nil || !r.IsError || !runs[runOf(r)] || !strings.Contains(m.raw, "server is stopping") {
				t.Errorf("a waiting call got %q, want that the server is stopping and its run", m.raw)
			}
			if _, err := call.events.next(); !errors.Is(err, io.EOF) {
				t.Errorf("the stream of a call ended with %v", err)
			}
		})
	}
	for _, stream := range streams {
		reading.Go(func() {
			for {
				if _, err := stream.events.next(); errors.Is(err, io.EOF) {
					return
				} else if err != nil {
					t.Errorf("a stream ended with %v, want its end", err)
					return
				}
			}
		})
	}
	reading.Wait()
	select {
	case err = <-at.done:
	case <-time.After(patience):
		t.Fatal("the server does not stop")
	}
	at.done <- err
	for run := range runs {
		if r := waitState(t, e, run, engine.Waiting, engine.Failed, engine.Cancelled); r.State != engine.Waiting {
			t.Errorf("run of a waiting call is %s, want waiting", r.State)
		}
	}
}
