package publish_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
)

// dial connects to /ws as a client that writes and reads a line for a message.
func (s *site) dial(header ...string) *client {
	s.tb.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(s.tb.Context()))
	opt := &websocket.DialOptions{HTTPClient: s.client, Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		opt.HTTPHeader.Add(header[i], header[i+1])
	}
	ws, resp, err := websocket.Dial(ctx, "http://"+s.addr+"/ws", opt) //nolint:bodyclose // it closes it
	if err != nil {
		s.tb.Fatalf("dial: %v (%v)", err, resp)
	}
	ws.SetReadLimit(16 << 20)
	inR, inW := io.Pipe()
	c := &client{tb: s.tb, in: inW, lines: make(chan wire, 4096), done: make(chan error, 1), stop: stop}
	var moving sync.WaitGroup
	moving.Go(func() {
		r := bufio.NewReader(inR)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				_ = ws.Close(websocket.StatusNormalClosure, "")
				return
			}
			if err := ws.Write(ctx, websocket.MessageText, []byte(line)); err != nil {
				return
			}
		}
	})
	moving.Go(func() {
		defer close(c.lines)
		for {
			_, b, err := ws.Read(ctx)
			if err != nil {
				c.done <- err
				return
			}
			m := wire{raw: string(b)}
			if err := json.Unmarshal(b, &m); err != nil {
				s.tb.Errorf("the server wrote %q: %v", b, err)
			}
			c.lines <- m
		}
	})
	s.tb.Cleanup(func() {
		inW.Close()
		moving.Wait()
		inR.Close()
		stop()
	})
	return c
}

// runState waits until a run is in that state.
func runState(t *testing.T, eng *engine.Engine, run string, want engine.State) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		r, err := eng.Run(t.Context(), run, engine.Local)
		if err == nil && r.State == want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("run %s is %v (%v), want %s", run, r, err, want)
		}
	}
}

// gateRun is the run of the notification of a gate.
func (c *client) gateRun() string {
	c.tb.Helper()
	var p struct{ RunID string }
	m := c.notification("notifications/relavium/human_gate")
	if err := json.Unmarshal(m.Params, &p); err != nil || p.RunID == "" {
		c.tb.Fatalf("the notification names no run: %s", m.raw)
	}
	return p.RunID
}

// A client of 2025 is asked on the connection, and its progress and its
// questions are its own.
func TestWebSocketSession(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one", "two:input"))
	at := listen(t, s, publish.HTTPOptions{WebSocket: true})
	a, b := at.dial(), at.dial()
	for who, c := range map[string]*client{"ann": a, "bob": b} {
		c.elicits(legacy, declaresForm)
		c.call("7", "relavium_deploy", fmt.Sprintf(`,"arguments":{"who":%q},"_meta":{"progressToken":%q}`, who, who))
	}
	for who, c := range map[string]*client{"ann": a, "bob": b} {
		q := c.asked()
		if got, want := messageOf(t, q), "Proceed at one for "+who+"?"; got != want {
			t.Errorf("question = %q, want %q", got, want)
		}
		c.says(q, approve)
		c.says(c.asked(), `{"action":"accept","content":{"value":"`+who+`"}}`)
		m := c.response("7")
		if got, want := string(c.result(m).StructuredContent), `{"result":["approved","`+who+`"]}`; got != want {
			t.Errorf("structuredContent = %s, want %s", got, want)
		}
		steps := 0
		for _, m := range c.kept {
			if m.Method == "notifications/progress" {
				if steps++; !strings.Contains(m.raw, `"progressToken":"`+who+`"`) {
					t.Errorf("progress of somebody else: %s", m.raw)
				}
			}
		}
		if steps == 0 {
			t.Errorf("%s: no progress came", who)
		}
	}
}

// A client of 2026-07-28 says everything with each request here too.
func TestWebSocketModern(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	c := listen(t, s, publish.HTTPOptions{WebSocket: true, NoMCP: true}).dial()
	meta := strings.Replace(modernMeta, `Capabilities":{}`, `Capabilities":{"elicitation":{}}`, 1)
	c.send(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{%s}}`, meta)
	if m := c.response("1"); !strings.Contains(m.raw, `"2026-07-28"`) {
		t.Errorf("server/discover = %s", m.raw)
	}
	c.call("2", "relavium_deploy", `,"arguments":{"who":"ann"},`+meta)
	m := c.response("2")
	var asked struct {
		ResultType    string
		RequestState  string
		InputRequests map[string]json.RawMessage
	}
	if err := json.Unmarshal(m.Result, &asked); err != nil || asked.ResultType != "input_required" || len(asked.InputRequests) != 1 {
		t.Fatalf("tools/call = %s, want one input request", m.raw)
	}
	state, err := json.Marshal(asked.RequestState)
	if err != nil {
		t.Fatal(err)
	}
	c.call("3", "relavium_deploy", `,"arguments":{"who":"ann"},"inputResponses":{"one":`+approve+`},"requestState":`+string(state)+`,`+meta)
	if m := c.response("3"); !strings.Contains(m.raw, `"structuredContent":{"result":["approved"]}`) {
		t.Errorf("the retry = %s", m.raw)
	}
}

// A cancel ends the run; a connection that drops leaves it for the same call to
// join again, which then is asked.
func TestWebSocketEnds(t *testing.T) {
	t.Parallel()
	s, eng, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	at := listen(t, s, publish.HTTPOptions{WebSocket: true})
	c := at.dial()
	c.initialize(legacy, "probe")
	c.call("7", "relavium_deploy", "")
	run := c.gateRun()
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
	runState(t, eng, run, engine.Cancelled)

	c.call("8", "relavium_deploy", `,"arguments":{"who":"bob"}`)
	run = c.gateRun()
	c.in.Close()
	<-c.done
	runState(t, eng, run, engine.Waiting)

	c = at.dial()
	c.elicits(legacy, declaresForm)
	for n := 1; ; n++ { // the server may not have seen yet that the first is gone
		id := strconv.Itoa(n)
		c.call(id, "relavium_deploy", `,"arguments":{"who":"bob"}`)
		now := c.gateRun()
		q := c.asked()
		if now != run {
			c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
			continue
		}
		c.says(q, approve)
		if got := runOf(c.result(c.response(id))); got != run {
			t.Errorf("the call joined run %s, want %s", got, run)
		}
		return
	}
}

// A token that does not allow a workflow does not show it; one that is revoked
// ends the connection, and its run goes on.
func TestWebSocketTokens(t *testing.T) {
	t.Parallel()
	l := openLobby(t, access.ModeToken)
	secret, made := l.token("ann", "relavium:run:deploy")
	s, eng, _ := newServer(t, anyTime, chained(t, "deploy", "one"), shaped(t, "other", "", "1"))
	opt := l.options()
	opt.WebSocket = true
	at := listen(t, s, opt)
	c := at.dial("Authorization", "Bearer "+secret)
	c.initialize(legacy, "probe")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if m := c.response("1"); !strings.Contains(m.raw, "relavium_deploy") || strings.Contains(m.raw, "relavium_other") {
		t.Errorf("tools/list = %s, want deploy alone", m.raw)
	}
	c.call("2", "relavium_other", "")
	if m := c.response("2"); m.Error == nil || !strings.Contains(m.Error.Message, "unknown tool") {
		t.Errorf("a call of another workflow = %s, want unknown tool", m.raw)
	}
	c.call("3", "relavium_deploy", "")
	run := c.gateRun()
	if _, err := access.Revoke(t.Context(), l.store, made.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := <-c.done; websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("the connection ended with %v, want status 1008", err)
	}
	r, err := eng.Run(t.Context(), run, "token:ann")
	if err != nil || r.State != engine.Waiting {
		t.Errorf("the run is %v, %v; want it waiting", r, err)
	}
	if resp := at.fetch(http.MethodGet, "/ws", "", "Authorization", "Bearer "+secret, "Connection", "Upgrade", "Upgrade", "websocket"); resp.status != http.StatusUnauthorized {
		t.Errorf("another connection with the token = %d, want 401", resp.status)
	}
}
