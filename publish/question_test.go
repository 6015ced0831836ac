package publish_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/transport"
)

// chained is a workflow whose gates open one after the other; a kind may stand
// behind an id.
func chained(tb testing.TB, id string, list ...string) publish.Workflow {
	tb.Helper()
	var nodes, edges strings.Builder
	from := "start"
	var outputs []string
	for _, spec := range list {
		gate, kind, _ := strings.Cut(spec, ":")
		if kind == "" {
			kind = "approval"
		}
		fmt.Fprintf(&nodes, "    - { id: %s, type: human_gate, gate_type: %s, message_template: \"Proceed at %s for {{ inputs.who }}?\" }\n", gate, kind, gate)
		fmt.Fprintf(&edges, "    - { from: %s, to: %s }\n", from, gate)
		outputs = append(outputs, fmt.Sprintf("run.outputs[%q].payload === undefined ? run.outputs[%q].decision : run.outputs[%q].payload", gate, gate, gate))
		from = gate
	}
	return parse(tb, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  description: test workflow %s
  trigger: { type: mcp_call }
  inputs:
    - { name: who, type: string, required: false, default: "ann" }
  nodes:
    - { id: start, type: input }
%s    - { id: shape, type: transform, transform: '[%s]' }
    - { id: result, type: output, output_format: json }
  edges:
%s    - { from: %s, to: shape }
    - { from: shape, to: result }
`, id, id, id, nodes.String(), strings.ReplaceAll(strings.Join(outputs, ","), "'", "''"), edges.String(), from))
}

// elicits shakes hands as a client of that revision that declares elicitation.
func (c *client) elicits(version, declared string) {
	c.tb.Helper()
	c.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{%s},"clientInfo":{"name":"probe","version":"0"}}}`, version, declared)
	c.response(`"init"`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

const declaresForm = `"elicitation":{}`

// asked is the next question that the server asks.
func (c *client) asked() wire {
	c.tb.Helper()
	return c.notification("elicitation/create")
}

// says answers a question.
func (c *client) says(q wire, result string) {
	c.tb.Helper()
	c.send(`{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result)
}

// anyTime lets tests answer as fast as they can.
func anyTime(o *publish.Options) { o.MinHuman = -1 }

const (
	approve = `{"action":"accept","content":{"decision":"approve"}}`
	reject  = `{"action":"accept","content":{"decision":"reject"}}`
)

func messageOf(tb testing.TB, q wire) string {
	tb.Helper()
	var p struct{ Message string }
	if err := json.Unmarshal(q.Params, &p); err != nil {
		tb.Fatal(err)
	}
	return p.Message
}

func TestElicitationOverStdio(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one", "two:review", "three:input"))
	c := connect(t, s)
	c.elicits(legacy, declaresForm)
	c.call("7", "relavium_deploy", `,"arguments":{"who":"bob"},"_meta":{"progressToken":"p"}`)
	for i, answer := range []string{approve, reject, `{"action":"accept","content":{"value":"blue"}}`} {
		node := []string{"one", "two", "three"}[i]
		q := c.asked()
		if got, want := messageOf(t, q), "Proceed at "+node+" for bob?"; got != want {
			t.Errorf("question %d = %q, want %q", i+1, got, want)
		}
		// The notification comes first, and on every rung.
		if !slices.ContainsFunc(c.kept, func(m wire) bool {
			return m.Method == "notifications/relavium/human_gate" && strings.Contains(m.raw, "Proceed at "+node)
		}) {
			t.Errorf("no notification of gate %s before its question", node)
		}
		c.says(q, answer)
		c.says(q, reject) // the same response twice is heard once
	}
	r := c.result(c.response("7"))
	if got, want := string(r.StructuredContent), `{"result":["approved","rejected","blue"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// TestElicitationRepliesOverStdio holds what a reply does that is no answer.
func TestElicitationRepliesOverStdio(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, reply, told string }{
		{"cancel", `{"action":"cancel","content":{"decision":"approve"}}`, "was dismissed"},
		{"reflex", approve, "sooner than a person answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, e, _ := newServer(t, func(o *publish.Options) {
				if c.name == "reflex" {
					o.MinHuman = time.Hour
				} else {
					o.MinHuman = -1
				}
			}, chained(t, "deploy", "one"))
			cl := connect(t, s)
			cl.elicits("2025-06-18", declaresForm)
			cl.call("7", "relavium_deploy", `,"_meta":{"progressToken":"p"}`)
			cl.says(cl.asked(), c.reply)
			cl.until(func(m wire) bool {
				return m.Method == "notifications/progress" && strings.Contains(m.raw, c.told)
			})
			open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
			if err != nil || len(open) != 1 {
				t.Fatalf("open gates = %v, %v, want the one", open, err)
			}
			if _, err := e.Decide(t.Context(), open[0].ID, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
				t.Fatal(err)
			}
			if got, want := string(cl.result(cl.response("7")).StructuredContent), `{"result":["approved"]}`; got != want {
				t.Errorf("structuredContent = %s, want %s", got, want)
			}
			for _, m := range cl.kept {
				if m.Method == "elicitation/create" {
					t.Errorf("asked again: %s", m.raw)
				}
			}
		})
	}
}

// TestNothingIsAskedWithoutElicitation looks at everything that is written to
// clients that did not declare it.
func TestNothingIsAskedWithoutElicitation(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	for _, shake := range []func(c *client) string{
		func(c *client) string { c.elicits(legacy, ""); return "" },
		func(c *client) string { c.elicits("2025-03-26", declaresForm); return "" },
		func(c *client) string { c.elicits(legacy, `"elicitation":{"url":{}}`); return "" }, // no console runs
		func(*client) string { return "," + modernMeta },
	} {
		c := connect(t, s)
		c.call("7", "relavium_deploy", shake(c))
		c.notification("notifications/relavium/human_gate")
		open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
		if err != nil || len(open) != 1 {
			t.Fatalf("open gates = %v, %v, want one", open, err)
		}
		if _, err := e.Decide(t.Context(), open[0].ID, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
			t.Fatal(err)
		}
		m := c.response("7")
		c.result(m)
		for _, m := range append(c.kept, m) {
			if m.Method == "elicitation/create" || strings.Contains(m.raw, "input_required") {
				t.Errorf("asked a client that did not declare elicitation: %s", m.raw)
			}
		}
	}
}

// TestClosedElsewhereOverStdio decides a gate by the command line while its
// question is open.
func TestClosedElsewhereOverStdio(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	c := connect(t, s)
	c.elicits(legacy, declaresForm)
	c.call("7", "relavium_deploy", "")
	q := c.asked()
	open, err := e.Gates(t.Context(), engine.GateFilter{Open: true})
	if err != nil || len(open) != 1 {
		t.Fatalf("open gates = %v, %v, want one", open, err)
	}
	if _, err := e.Decide(t.Context(), open[0].ID, engine.Decision{Decision: engine.Rejected, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	back := c.notification("notifications/cancelled")
	if !strings.Contains(back.raw, string(q.ID)) || !strings.Contains(back.raw, "decided elsewhere") {
		t.Errorf("taken back by %s, want the id %s and the reason", back.raw, q.ID)
	}
	for _, m := range c.kept { // on HTTP nothing could follow the response
		if string(m.ID) == "7" {
			t.Errorf("the response came before the question was taken back: %s", m.raw)
		}
	}
	c.says(q, approve) // too late: nobody asks any more
	if got, want := string(c.result(c.response("7")).StructuredContent), `{"result":["rejected"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// TestHandOverAtAGate gives a call back while its question is open. Its answer
// still decides, and the next call does not ask again.
func TestHandOverAtAGate(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, func(o *publish.Options) {
		anyTime(o)
		o.Handover = map[string]time.Duration{"probe": 200 * time.Millisecond}
	}, chained(t, "deploy", "one", "two"))
	c := connect(t, s)
	c.elicits(legacy, declaresForm)
	c.call("7", "relavium_deploy", "")
	r := c.result(c.response("7"))
	if !strings.Contains(string(r.StructuredContent), `"status":"running"`) {
		t.Fatalf("structuredContent = %s, want a hand-over", r.StructuredContent)
	}
	// Every wait may be handed over too: wait again, and answer what is asked.
	var asked []string
	end := ""
	for id := 8; end == ""; id++ {
		c.call(fmt.Sprint(id), "relavium_run_wait", fmt.Sprintf(`,"arguments":{"run":%q,"timeout_s":1}`, runOf(r)))
		m := c.response(fmt.Sprint(id))
		if got := string(c.result(m).StructuredContent); !strings.Contains(got, `"waiting":`) {
			end = got
		}
		for _, m := range c.kept {
			switch m.Method {
			case "elicitation/create":
				asked = append(asked, messageOf(t, m))
				c.says(m, approve)
			case "notifications/cancelled":
				t.Errorf("a question was taken back: %s", m.raw)
			}
		}
		c.kept = nil
	}
	if got, want := end, `{"result":["approved","approved"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
	if got, want := strings.Join(asked, " "), "Proceed at one for ann? Proceed at two for ann?"; got != want {
		t.Errorf("asked %q, want each question once: %q", got, want)
	}
}

// modernForm is what a client of 2026-07-28 with elicitation says with each request.
const modernForm = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"probe","version":"0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}`

// A round is what a tools/call of 2026-07-28 yields.
type round struct {
	ResultType    string
	InputRequests map[string]struct {
		Method string
		Params struct {
			Mode            string
			Message         string
			RequestedSchema json.RawMessage
			ElicitationID   string
		}
	}
	RequestState      string
	StructuredContent json.RawMessage
	IsError           bool
	Content           []content
	Meta              map[string]json.RawMessage `json:"_meta"`
}

func (c *client) round(id, tool, rest string) (round, wire) {
	c.tb.Helper()
	c.call(id, tool, ","+modernForm+rest)
	m := c.response(id)
	var r round
	if m.Error == nil {
		if err := json.Unmarshal(m.Result, &r); err != nil {
			c.tb.Fatal(err)
		}
	}
	return r, m
}

// retry is the call again, with the state and an answer.
func retry(r round, responses string) string {
	return fmt.Sprintf(`,"requestState":%q,"inputResponses":%s`, r.RequestState, responses)
}

func TestInputRequiredOverStdio(t *testing.T) {
	t.Parallel()
	w := chained(t, "deploy", "one", "two:input")
	w.Gates = map[string]gates.Name{"two": {Key: "user_name", Field: "name"}}
	s, _, _ := newServer(t, anyTime, w)
	c := connect(t, s)
	const args = `,"arguments":{"who":"bob"}`
	r, m := c.round("1", "relavium_deploy", args)
	q, ok := r.InputRequests["one"]
	if r.ResultType != "input_required" || !ok || len(r.InputRequests) != 1 || q.Method != "elicitation/create" ||
		q.Params.Mode != "form" || q.Params.Message != "Proceed at one for bob?" || q.Params.ElicitationID != "" {
		t.Fatalf("result = %s, want the question about one", m.raw)
	}
	if r.Meta["relavium/runId"] == nil || r.Meta["io.modelcontextprotocol/serverInfo"] == nil {
		t.Errorf("_meta = %v, want the run and the server", r.Meta)
	}
	first := r
	r, m = c.round("2", "relavium_deploy", args+retry(r, `{"one":`+approve+`}`))
	if q, ok := r.InputRequests["user_name"]; r.ResultType != "input_required" || !ok || !strings.Contains(string(q.Params.RequestedSchema), `"name"`) {
		t.Fatalf("result = %s, want the question about two by its name", m.raw)
	}
	second := r
	r, m = c.round("3", "relavium_deploy", args+retry(r, `{"user_name":{"action":"accept","content":{"name":"Ada"}}}`))
	if got, want := string(r.StructuredContent), `{"result":["approved","Ada"]}`; got != want || r.ResultType != "complete" || r.IsError {
		t.Fatalf("result = %s, want %s, complete", m.raw, want)
	}
	if r.Meta["io.modelcontextprotocol/serverInfo"] == nil || r.Meta["relavium/runId"] == nil {
		t.Errorf("_meta = %v, want the run and the server", r.Meta)
	}
	// Stale states get the result again, and the answers with them are ignored.
	for i, state := range []round{first, second} {
		r, m := c.round(fmt.Sprint(4+i), "relavium_deploy", args+retry(state, `{"one":`+reject+`,"user_name":{"action":"decline"}}`))
		if got, want := string(r.StructuredContent), `{"result":["approved","Ada"]}`; got != want {
			t.Errorf("result of a replay = %s, want %s", m.raw, want)
		}
	}
}

// TestStateIsOfOneCall sends states that are not of the call that brings them.
// Each is refused in the same words, and the run goes on as if nothing happened.
func TestStateIsOfOneCall(t *testing.T) {
	t.Parallel()
	s, e, log := newServer(t, anyTime, chained(t, "deploy", "one"), chained(t, "other", "one"))
	c := connect(t, s)
	first, _ := c.round("1", "relavium_deploy", `,"arguments":{"who":"bob"}`)
	run := strings.Trim(string(first.Meta["relavium/runId"]), `"`)
	forged := first
	forged.RequestState = first.RequestState[:len(first.RequestState)-8] + "AAAAAAAA"
	empty := round{}
	for name, send := range map[string]struct{ tool, rest string }{
		"another tool":      {"relavium_other", `,"arguments":{"who":"bob"}` + retry(first, `{"one":`+approve+`}`)},
		"no tool":           {"relavium_none", `,"arguments":{"who":"bob"}` + retry(first, `{"one":`+approve+`}`)},
		"other arguments":   {"relavium_deploy", `,"arguments":{"who":"eve"}` + retry(first, `{"one":`+approve+`}`)},
		"no arguments":      {"relavium_deploy", retry(first, `{"one":`+approve+`}`)},
		"invalid arguments": {"relavium_deploy", `,"arguments":{"who":7}` + retry(first, `{"one":`+approve+`}`)},
		"forged":            {"relavium_deploy", `,"arguments":{"who":"bob"}` + retry(forged, `{"one":`+approve+`}`)},
		"empty":             {"relavium_deploy", `,"arguments":{"who":"bob"}` + retry(empty, `{"one":`+approve+`}`)},
		"no text":           {"relavium_deploy", `,"arguments":{"who":"bob"},"requestState":7,"inputResponses":{"one":` + approve + `}`},
		"a companion":       {"relavium_run_wait", fmt.Sprintf(`,"arguments":{"run":%q}`, run) + retry(first, `{"one":`+approve+`}`)},
	} {
		_, m := c.round(`"`+name+`"`, send.tool, send.rest)
		if m.Error == nil || m.Error.Code != -32602 || m.Error.Message != "invalid params: requestState is not one of this call" {
			t.Errorf("%s: response = %s, want -32602", name, m.raw)
		}
	}
	g, err := e.Gates(t.Context(), engine.GateFilter{Run: run, Open: true})
	if err != nil || len(g) != 1 {
		t.Fatalf("open gates = %v, %v, want the one: a refused state decides nothing", g, err)
	}
	for _, why := range []string{"not genuine", "other request"} {
		if !strings.Contains(log.String(), why) {
			t.Errorf("the log does not say %q", why)
		}
	}
	// Answers without a state belong to no question: a fresh call.
	r, m := c.round("2", "relavium_deploy", `,"arguments":{"who":"bob"},"inputResponses":{"one":`+approve+`}`)
	if r.ResultType != "input_required" || string(r.Meta["relavium/runId"]) == string(first.Meta["relavium/runId"]) {
		t.Errorf("result = %s, want the question of another run", m.raw)
	}
	r, m = c.round("3", "relavium_deploy", `,"arguments":{"who":"bob"},"inputResponses":[7]`)
	if r.ResultType != "input_required" {
		t.Errorf("result = %s, want a question: what comes without a state is ignored", m.raw)
	}
	// The same arguments in other words are the same.
	r, m = c.round("4", "relavium_deploy", `,"arguments":{ "who" : "b\u006fb" }`+retry(first, `{"one":`+approve+`}`))
	if got, want := string(r.StructuredContent), `{"result":["approved"]}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
	// Defaults count as if they were sent.
	r, _ = c.round("5", "relavium_deploy", "")
	r, m = c.round("6", "relavium_deploy", `,"arguments":{"who":"ann"}`+retry(r, `{"one":`+reject+`}`))
	if got, want := string(r.StructuredContent), `{"result":["rejected"]}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
}

// TestStateOutlivesItsTool takes a state back after the workflow was edited, and
// after it is not published any more.
func TestStateOutlivesItsTool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		then func(tb testing.TB) []publish.Workflow
	}{
		{"edited", func(tb testing.TB) []publish.Workflow {
			tb.Helper()
			return []publish.Workflow{chained(tb, "deploy", "two", "three")}
		}},
		{"edited to take other inputs", func(tb testing.TB) []publish.Workflow {
			tb.Helper()
			return []publish.Workflow{gated(tb, "deploy", time.Hour)}
		}},
		{"unpublished", func(testing.TB) []publish.Workflow { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			keys := func() *gates.Keys {
				k, err := gates.OpenKeys(t.Context(), home, discard())
				if err != nil {
					t.Fatal(err)
				}
				return k
			}
			e := openEngine(t, filepath.Join(t.TempDir(), "serve.db"), nil)
			with := func(list []publish.Workflow) *client {
				s, err := publish.New(publish.Options{
					Engine: e, Workflows: list, Prefix: publish.DefaultPrefix, Logger: discard(), MinHuman: -1, Keys: keys(),
				})
				if err != nil {
					t.Fatal(err)
				}
				return connect(t, s)
			}
			first, _ := with([]publish.Workflow{chained(t, "deploy", "one")}).round("1", "relavium_deploy", `,"arguments":{"who":"bob"}`)
			r, m := with(c.then(t)).round("2", "relavium_deploy", `,"arguments":{"who":"bob"}`+retry(first, `{"one":`+approve+`}`))
			if got, want := string(r.StructuredContent), `{"result":["approved"]}`; got != want {
				t.Errorf("result = %s, want %s", m.raw, want)
			}
		})
	}
}

// TestWaitAsksToo serves the ladder of a companion tool.
func TestWaitAsksToo(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one", "two"))
	c := connect(t, s)
	first, _ := c.round("1", "relavium_deploy", "")
	args := fmt.Sprintf(`,"arguments":{"run":%s,"timeout_s":30}`, first.Meta["relavium/runId"])
	r, m := c.round("2", "relavium_run_wait", args)
	if r.ResultType != "input_required" || len(r.InputRequests) != 1 {
		t.Fatalf("result = %s, want the question about one", m.raw)
	}
	r, m = c.round("3", "relavium_run_wait", args+retry(r, `{"one":`+approve+`}`))
	if _, ok := r.InputRequests["two"]; !ok {
		t.Fatalf("result = %s, want the question about two", m.raw)
	}
	r, m = c.round("4", "relavium_run_wait", args+retry(r, `{"two":`+approve+`}`))
	if got, want := string(r.StructuredContent), `{"result":["approved","approved"]}`; got != want {
		t.Errorf("result = %s, want %s", m.raw, want)
	}
}

// TestLostQuestionIsJoined loses an input_required result on its way. The same
// call, which has no state to bring, gets the question of the same run.
func TestLostQuestionIsJoined(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	call := func(rest string) (transport.Reply, round) {
		t.Helper()
		reply := s.Answer(t.Context(), &transport.Request{
			ID: json.RawMessage("1"), Method: "tools/call", Principal: "local", Session: &transport.Session{},
			Params: json.RawMessage(`{"name":"relavium_deploy",` + modernForm + rest + `}`),
			Notify: func(string, json.RawMessage) error { return nil },
		})
		if reply.Error != nil {
			t.Fatal(reply.Error)
		}
		var r round
		if err := json.Unmarshal(reply.Result, &r); err != nil {
			t.Fatal(err)
		}
		return reply, r
	}
	lost, first := call("")
	if first.ResultType != "input_required" || lost.Lost == nil {
		t.Fatalf("result = %s, want a question that may be lost", lost.Result)
	}
	lost.Lost()
	_, second := call("")
	if got, want := string(second.Meta["relavium/runId"]), string(first.Meta["relavium/runId"]); got != want {
		t.Errorf("the same call waits for run %s, want that of the question that was lost, %s", got, want)
	}
	_, other := call("") // which was not lost: a deliberate second call
	if string(other.Meta["relavium/runId"]) == string(first.Meta["relavium/runId"]) {
		t.Error("a second call joined a run whose question arrived")
	}
	_, end := call(retry(second, `{"one":`+approve+`}`))
	if got, want := string(end.StructuredContent), `{"result":["approved"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(runs) != 2 {
		t.Errorf("runs = %d, %v, want 2", len(runs), err)
	}
}

// TestNinthRoundHandsOver stops before clients do.
func TestNinthRoundHandsOver(t *testing.T) {
	t.Parallel()
	var list []string
	for i := range 10 {
		list = append(list, fmt.Sprintf("g%d", i))
	}
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", list...))
	c := connect(t, s)
	rest := ""
	for i := range 8 {
		r, m := c.round(fmt.Sprint(i), "relavium_deploy", rest)
		if _, ok := r.InputRequests[list[i]]; !ok {
			t.Fatalf("round %d = %s, want the question about %s", i+1, m.raw, list[i])
		}
		rest = retry(r, fmt.Sprintf(`{%q:%s}`, list[i], approve))
	}
	r, m := c.round("8", "relavium_deploy", rest)
	if r.ResultType != "complete" || !strings.Contains(string(r.StructuredContent), `"next":"relavium_run_wait"`) {
		t.Errorf("the ninth round = %s, want a hand-over", m.raw)
	}
}

// TestAcceptOfClient refuses before the start what nobody could answer, by what
// this very client can do.
func TestAcceptOfClient(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) {
		anyTime(o)
		o.Accept = []string{publish.AcceptElicitation}
	}, chained(t, "deploy", "one"))
	c := connect(t, s)
	c.call("1", "relavium_deploy", ","+modernMeta)
	if m := c.response("1"); m.Error == nil || m.Error.Code != -32021 {
		t.Errorf("response = %s, want -32021", m.raw)
	}
	plain := connect(t, s)
	plain.elicits(legacy, "")
	if r := plain.callResult("relavium_deploy", ""); !r.IsError || !strings.Contains(r.Content[0].Text, "[gates] accept") {
		t.Errorf("result = %+v, want a refusal that names the setting", r)
	}
	if runs, err := e.Runs(t.Context(), engine.RunFilter{}); err != nil || len(runs) != 0 {
		t.Errorf("runs = %v, %v, want none", runs, err)
	}
	able := connect(t, s)
	able.elicits(legacy, declaresForm)
	able.call("7", "relavium_deploy", "")
	q := able.asked()
	if note := able.kept[slices.IndexFunc(able.kept, func(m wire) bool { return m.Method == "notifications/relavium/human_gate" })]; !strings.Contains(note.raw, "in the client that called") {
		t.Errorf("notification = %s, want that it says where", note.raw)
	}
	able.says(q, approve)
	if got, want := string(able.result(able.response("7")).StructuredContent), `{"result":["approved"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// TestManyAskedAtOnce has one connection answer many calls, each with its own
// question.
func TestManyAskedAtOnce(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	c := connect(t, s)
	c.elicits(legacy, declaresForm)
	const many = 20
	for i := range many {
		c.call(fmt.Sprint(i), "relavium_deploy", fmt.Sprintf(`,"arguments":{"who":"p%d"}`, i))
	}
	var all sync.WaitGroup
	want := map[string]bool{}
	for range many {
		q := c.asked()
		answer, word := approve, "approved"
		var who int
		if _, err := fmt.Sscanf(messageOf(t, q), "Proceed at one for p%d?", &who); err != nil {
			t.Fatal(err)
		}
		if who%2 == 1 {
			answer, word = reject, "rejected"
		}
		want[fmt.Sprintf("%d %s", who, word)] = true
		all.Go(func() { c.says(q, answer) })
	}
	all.Wait()
	responses := map[string]string{}
	for _, m := range c.kept {
		if m.Result != nil {
			responses[string(m.ID)] = m.raw
		}
	}
	for len(responses) < many {
		m := c.next()
		if m.Result != nil && m.Method == "" && string(m.ID) != `"init"` {
			responses[string(m.ID)] = m.raw
		}
	}
	for key := range want {
		id, word, _ := strings.Cut(key, " ")
		if !strings.Contains(responses[id], `["`+word+`"]`) {
			t.Errorf("call %s = %s, want %s", id, responses[id], word)
		}
	}
}
