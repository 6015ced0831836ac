package publish_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// asked is the next question on the stream.
func (p *pendingCall) asked() wire {
	p.tb.Helper()
	m, ok := p.until(func(m wire) bool { return m.Method == "elicitation/create" })
	if !ok {
		p.tb.Fatal("the stream ended without a question")
	}
	return m
}

func (c *sessionClient) says(q wire, result string) {
	c.tb.Helper()
	if a := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result)); a.status != http.StatusAccepted {
		c.tb.Errorf("an answer to a question = %d, want 202", a.status)
	}
}

// A client of 2025 is asked on the stream of its call, gate after gate; only its
// own session can answer.
func TestHTTPElicitation(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one", "two"))
	at := listen(t, s, publish.HTTPOptions{})
	c, stranger := at.initializeAs("2025-11-25", declaresForm), at.initializeAs("2025-11-25", declaresForm)
	call := at.begin(toolCall("1", "relavium_deploy", ""), c.header()...)
	first := call.asked()
	stranger.says(first, reject)
	c.says(first, approve)
	c.says(first, reject) // again is not heard
	c.says(call.asked(), reject)
	m, ok := call.response()
	if got, want := string(textOfResult(t, m).StructuredContent), `{"result":["approved","rejected"]}`; !ok || got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// A question whose stream broke is asked again on the one that comes back.
func TestHTTPElicitationResumed(t *testing.T) {
	t.Parallel()
	s, _, st := newStoredServer(t, nil, chained(t, "deploy", "one"))
	at := listen(t, s, publish.HTTPOptions{})
	c := at.initializeAs("2025-11-25", declaresForm)
	call := at.begin(toolCall("1", "relavium_deploy", ""), c.header()...)
	first := call.asked()
	last := call.ids[len(call.ids)-1]
	run, _, _ := strings.Cut(last, ".")
	call.drop()
	st.waitDetached(t, run, engine.DetachDrop)
	back := c.get(last)
	again := back.asked()
	if string(again.ID) != string(first.ID) || messageOf(t, again) != messageOf(t, first) {
		t.Errorf("asked again: %s, want the same question %s", again.raw, first.raw)
	}
	// As a person would, after a moment.
	<-time.After(600 * time.Millisecond)
	c.says(again, approve)
	m, ok := back.response()
	if !ok || string(m.ID) != "1" || runOf(textOfResult(t, m)) != run || !strings.Contains(m.raw, "approved") {
		t.Errorf("the answer = %s, want that of run %s", m.raw, run)
	}
}

// A person answers while the stream of the question is broken, and the client
// does not know that yet.
func TestHTTPAnswerAfterTheDrop(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{approve: engine.Approved, `{"action":"decline"}`: engine.Rejected, `{"action":"cancel"}`: ""} {
		s, e, st := newStoredServer(t, nil, chained(t, "deploy", "one"))
		at := listen(t, s, publish.HTTPOptions{})
		c, stranger := at.initializeAs("2025-11-25", declaresForm), at.initializeAs("2025-11-25", declaresForm)
		call := at.begin(toolCall("1", "relavium_deploy", ""), c.header()...)
		q := call.asked()
		last := call.ids[len(call.ids)-1]
		run, _, _ := strings.Cut(last, ".")
		call.drop()
		st.waitDetached(t, run, engine.DetachDrop)
		<-time.After(600 * time.Millisecond) // as a person would, after a moment
		stranger.says(q, approve)            // is not asked
		c.says(q, reply)
		c.says(q, approve) // again is not heard
		gates, err := e.Gates(t.Context(), engine.GateFilter{Run: run})
		if err != nil || len(gates) != 1 || gates[0].Decision != want {
			t.Errorf("gates after %s = %+v, %v, want the decision %q", reply, gates, err, want)
		}
		if want == "" {
			continue
		}
		m, ok := c.get(last).response()
		if !ok || !strings.Contains(m.raw, want) {
			t.Errorf("the answer = %s, want that of run %s", m.raw, run)
		}
	}
}

// A client of 2026-07-28 gets the questions as its result and comes back with
// the answers.
func TestHTTPInputRequired(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one", "two"))
	at := listen(t, s, publish.HTTPOptions{})
	meta := strings.Replace(modernMeta, `clientCapabilities":{}`, `clientCapabilities":{"elicitation":{"form":{}}}`, 1)
	header := modernHeader("tools/call", "relavium_deploy")
	send := func(rest string, more ...string) wire {
		t.Helper()
		return at.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_deploy"`+rest+`,`+meta+`}}`, append(header, more...)...).response()
	}
	answers := ""
	for _, node := range []string{"one", "two"} {
		m := send(answers)
		var r struct {
			ResultType    string
			InputRequests map[string]struct{ Method string }
			RequestState  string
		}
		if err := json.Unmarshal(m.Result, &r); err != nil || r.ResultType != "input_required" || r.InputRequests[node].Method != "elicitation/create" {
			t.Fatalf("result = %s, want a question of gate %s", m.raw, node)
		}
		answers = fmt.Sprintf(`,"requestState":%q,"inputResponses":{%q:%s}`, r.RequestState, node, approve)
	}
	if m := send(answers); !strings.Contains(m.raw, `"resultType":"complete"`) || !strings.Contains(m.raw, `["approved","approved"]`) {
		t.Errorf("the last answer = %s, want the result", m.raw)
	}
	// Without a stream it is no client that can be asked.
	narrow, _, _ := newServer(t, func(o *publish.Options) { o.Accept = []string{publish.AcceptElicitation} }, chained(t, "deploy", "one"))
	at = listen(t, narrow, publish.HTTPOptions{})
	if m := send("", "Accept", "application/json"); m.Error == nil || m.Error.Code != -32021 {
		t.Errorf("a call that takes one body = %s, want -32021", m.raw)
	}
}
