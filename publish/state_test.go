package publish_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/transport"
)

// replica is a server on an engine of its own over a store that others use, with
// the keys of a home.
func replica(tb testing.TB, store, home string, w publish.Workflow) (*client, *engine.Engine) {
	tb.Helper()
	keys, err := gates.OpenKeys(tb.Context(), home, discard())
	if err != nil {
		tb.Fatal(err)
	}
	e := openEngine(tb, store, nil)
	s, err := publish.New(publish.Options{
		Engine: e, Workflows: []publish.Workflow{w}, Prefix: publish.DefaultPrefix, Logger: discard(), MinHuman: -1, Keys: keys,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return connect(tb, s), e
}

// TestStateAtAnotherReplica takes a state to another process of the same store:
// one with the same keys serves it, one without refuses it and spoils nothing.
func TestStateAtAnotherReplica(t *testing.T) {
	t.Parallel()
	store, home := filepath.Join(t.TempDir(), "serve.db"), t.TempDir()
	w := chained(t, "deploy", "one", "two")
	first, e := replica(t, store, home, w)
	second, _ := replica(t, store, home, w)
	stranger, _ := replica(t, store, t.TempDir(), w)
	r, _ := first.round("1", "relavium_deploy", "")
	run := strings.Trim(string(r.Meta["relavium/runId"]), `"`)
	if _, m := stranger.round("2", "relavium_deploy", retry(r, `{"one":`+approve+`}`)); m.Error == nil || m.Error.Code != -32602 {
		t.Errorf("a replica with other keys says %s, want -32602", m.raw)
	}
	if open, err := e.Gates(t.Context(), engine.GateFilter{Run: run, Open: true}); err != nil || len(open) != 1 {
		t.Fatalf("open gates = %v, %v, want the one", open, err)
	}
	r, m := second.round("3", "relavium_deploy", retry(r, `{"one":`+approve+`}`))
	if _, ok := r.InputRequests["two"]; !ok {
		t.Fatalf("the other replica says %s, want the question about two", m.raw)
	}
	r, m = first.round("4", "relavium_deploy", retry(r, `{"two":`+reject+`}`))
	if got, want := string(r.StructuredContent), `{"result":["approved","rejected"]}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
}

// TestStateOfAnotherPrincipal is refused in the words of any other state that is
// not of the call, and leaves the gate alone.
func TestStateOfAnotherPrincipal(t *testing.T) {
	t.Parallel()
	s, e, log := newServer(t, anyTime, chained(t, "deploy", "one"))
	call := func(p, rest string) (transport.Reply, round) {
		t.Helper()
		reply := s.Answer(t.Context(), &transport.Request{
			ID: json.RawMessage("1"), Method: "tools/call", Principal: p, Session: &transport.Session{},
			Params: json.RawMessage(`{"name":"relavium_deploy",` + modernForm + rest + `}`),
			Notify: func(string, json.RawMessage) error { return nil },
		})
		var r round
		if reply.Error == nil {
			if err := json.Unmarshal(reply.Result, &r); err != nil {
				t.Fatal(err)
			}
		}
		return reply, r
	}
	_, mine := call("token:ann", "")
	for _, p := range []string{"local", "token:ben", "token:Ann", ""} {
		reply, _ := call(p, retry(mine, `{"one":`+approve+`}`))
		if reply.Error == nil || reply.Error.Code != -32602 || reply.Error.Message != "invalid params: requestState is not one of this call" {
			t.Errorf("principal %q gets %s, %v, want -32602", p, reply.Result, reply.Error)
		}
	}
	if !strings.Contains(log.String(), "other principal") {
		t.Error("the log does not say whose state it was not")
	}
	open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
	if err != nil || len(open) != 1 {
		t.Fatalf("open gates = %v, %v, want the one", open, err)
	}
	_, end := call("token:ann", retry(mine, `{"one":`+approve+`}`))
	if got, want := string(end.StructuredContent), `{"result":["approved"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
	if g, err := e.Gate(t.Context(), open[0].ID); err != nil || g.DecidedBy != "token:ann" || g.Via != engine.ViaElicitation {
		t.Errorf("gate = %+v, %v, want it decided by token:ann via elicitation", g, err)
	}
}

// TestStateAfterTheDecision brings an answer when another rung has decided: that
// decision stands, and the call gets the result.
func TestStateAfterTheDecision(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	c := connect(t, s)
	r, _ := c.round("1", "relavium_deploy", "")
	open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
	if err != nil || len(open) != 1 {
		t.Fatalf("open gates = %v, %v, want one", open, err)
	}
	if _, err := e.Decide(t.Context(), open[0].ID, engine.Decision{Decision: engine.Rejected, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	r, m := c.round("2", "relavium_deploy", retry(r, `{"one":`+approve+`}`))
	if got, want := string(r.StructuredContent), `{"result":["rejected"]}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
}

// TestClientThatAnswersInMilliseconds is no person: whatever it says sooner than
// one can decides nothing, and the command line does. The bound is long here, as
// a machine under load takes its time.
func TestClientThatAnswersInMilliseconds(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) { o.MinHuman = time.Hour }, chained(t, "deploy", "one"))
	decide := func() {
		t.Helper()
		open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
		if err != nil || len(open) != 1 {
			t.Fatalf("open gates = %v, %v, want one: the reply decided it", open, err)
		}
		if _, err := e.Decide(t.Context(), open[0].ID, engine.Decision{Decision: engine.Rejected, By: "local", Via: engine.ViaCLI}); err != nil {
			t.Fatal(err)
		}
	}
	for _, reply := range []string{approve, `{"action":"decline"}`, `{"action":"accept","content":{}}`} {
		old := connect(t, s)
		old.elicits(legacy, declaresForm)
		old.call("7", "relavium_deploy", `,"_meta":{"progressToken":1}`)
		old.says(old.asked(), reply)
		old.until(func(m wire) bool { return strings.Contains(m.raw, "sooner than a person answers") })
		decide()
		if got, want := string(old.result(old.response("7")).StructuredContent), `{"result":["rejected"]}`; got != want {
			t.Errorf("structuredContent = %s, want %s", got, want)
		}

		modern := connect(t, s)
		r, _ := modern.round("1", "relavium_deploy", "")
		meta := strings.Replace(modernForm, `"_meta":{`, `"_meta":{"progressToken":2,`, 1)
		modern.call("2", "relavium_deploy", ","+meta+retry(r, `{"one":`+reply+`}`))
		modern.until(func(m wire) bool { return strings.Contains(m.raw, "sooner than a person answers") })
		decide()
		m := modern.response("2")
		if !strings.Contains(m.raw, `{"result":["rejected"]}`) {
			t.Errorf("result = %s, want that of the command line", m.raw)
		}
	}
}

// TestAcceptWithNothing is asked once more, in both eras, and then answered.
func TestAcceptWithNothing(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	old := connect(t, s)
	old.elicits(legacy, declaresForm)
	old.call("7", "relavium_deploy", "")
	first := old.asked()
	old.says(first, `{"action":"accept","content":{}}`)
	second := old.asked()
	if string(first.ID) == string(second.ID) {
		t.Errorf("the second question has the id of the first, %s", first.ID)
	}
	old.says(first, approve) // the first is answered
	old.says(second, reject)
	if got, want := string(old.result(old.response("7")).StructuredContent), `{"result":["rejected"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}

	modern := connect(t, s)
	r, _ := modern.round("1", "relavium_deploy", "")
	again, m := modern.round("2", "relavium_deploy", retry(r, `{"one":{"action":"accept","content":{}}}`))
	if _, ok := again.InputRequests["one"]; !ok || again.RequestState == r.RequestState {
		t.Fatalf("result = %s, want the question once more", m.raw)
	}
	end, m := modern.round("3", "relavium_deploy", retry(again, `{"one":`+reject+`}`))
	if got, want := string(end.StructuredContent), `{"result":["rejected"]}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
}
