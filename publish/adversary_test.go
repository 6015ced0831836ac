package publish_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// TestModelCannotDecide gives a model every tool that there is, and some that
// there are not, at a run that waits at its gate. It chooses names and
// arguments; the client sends them. Whatever it tries, the gate stays open and
// nothing that it reads helps it on.
func TestModelCannotDecide(t *testing.T) {
	t.Parallel()
	for _, modern := range []bool{false, true} {
		t.Run(fmt.Sprintf("modern %t", modern), func(t *testing.T) {
			t.Parallel()
			s, e, _ := newServer(t, func(o *publish.Options) {
				anyTime(o)
				o.Page = func(gate string) string { return "http://127.0.0.1:7412/gates/" + gate }
			}, chained(t, "deploy", "one"))
			c := connect(t, s)
			// The client has no elicitation: what decides would have to be a tool.
			meta := ""
			if modern {
				meta = "," + modernMeta
			} else {
				c.elicits(legacy, "")
			}
			c.call(`"waiting"`, "relavium_deploy", meta)
			note := c.notification("notifications/relavium/human_gate")
			var gate struct{ RunID, GateID string }
			if err := json.Unmarshal(note.Params, &gate); err != nil {
				t.Fatal(err)
			}
			c.send(`{"jsonrpc":"2.0","id":"list","method":"tools/list","params":{%s}}`, strings.TrimPrefix(meta, ","))
			var list struct {
				Tools []struct {
					Name        string
					InputSchema struct{ Properties map[string]any }
				}
			}
			if err := json.Unmarshal(c.response(`"list"`).Result, &list); err != nil {
				t.Fatal(err)
			}
			tries := 0
			try := func(tool string, args map[string]any) {
				t.Helper()
				tries++
				raw, err := json.Marshal(args)
				if err != nil {
					t.Fatal(err)
				}
				id := fmt.Sprint(tries)
				c.call(id, tool, `,"arguments":`+string(raw)+meta)
				m := c.response(id)
				for _, helps := range []string{`"requestState":"`, `"v1.`, "token="} {
					if strings.Contains(m.raw, helps) {
						t.Errorf("%s(%s) tells the model %q: %s", tool, raw, helps, m.raw)
					}
				}
			}
			answers := []map[string]any{
				{"decision": "approve"},
				{"decision": "approved", "gate": gate.GateID},
				{"value": "approve", "comment": "the user said yes"},
				{"action": "accept", "content": map[string]any{"decision": "approve"}},
				{"inputResponses": map[string]any{"one": map[string]any{"action": "accept", "content": map[string]any{"decision": "approve"}}}},
				{"requestState": "v1.a.b", "inputResponses": map[string]any{}},
				{"decidedBy": "local", "via": "console", "state": "approved"},
			}
			names := []string{
				"relavium_gate_approve", "relavium_resolve_gate", "relavium_run_answer", "relavium_approve", "gate", "elicitation/create",
			}
			for _, tool := range list.Tools {
				names = append(names, tool.Name)
				for property := range tool.InputSchema.Properties {
					if strings.Contains(strings.ToLower(property), "decision") || property == "gate" {
						t.Errorf("tool %s has an argument %q", tool.Name, property)
					}
				}
			}
			for _, name := range names {
				if name == "relavium_run_cancel" {
					continue // it may end the run, which decides nothing: below
				}
				for _, answer := range answers {
					try(name, answer)
					if name == "relavium_deploy" {
						continue // which takes no run
					}
					named := map[string]any{"run": gate.RunID, "timeout_s": 1}
					maps.Copy(named, answer)
					try(name, named)
				}
			}
			try("relavium_run_status", map[string]any{"run": gate.RunID})
			try("relavium_run_wait", map[string]any{"run": gate.RunID, "timeout_s": 1})
			try("relavium_run_wait", map[string]any{"run": gate.GateID, "timeout_s": 1})
			try("relavium_run_list", map[string]any{})
			for i, uri := range []string{"relavium://runs/" + gate.RunID, "relavium://gates/" + gate.GateID, "relavium://runs/" + gate.RunID + "/outputs/one"} {
				id := fmt.Sprintf(`"read %d"`, i)
				c.send(`{"jsonrpc":"2.0","id":%s,"method":"resources/read","params":{"uri":%q%s}}`, id, uri, meta)
				c.response(id)
			}
			for i, ask := range []string{
				`"prompts/list","params":{`, `"prompts/get","params":{"name":"approve","arguments":{"decision":"approve"}`,
				`"completion/complete","params":{"ref":{"type":"ref/prompt","name":"approve"},"argument":{"name":"decision","value":"approve"}`,
				`"resources/templates/list","params":{`, `"resources/list","params":{`, `"relavium/decide","params":{"gate":"` + gate.GateID + `","decision":"approve"`,
				`"elicitation/create","params":{"action":"accept","content":{"decision":"approve"}`,
			} {
				id, rest := fmt.Sprintf(`"other %d"`, i), meta
				if strings.HasSuffix(ask, "{") {
					rest = strings.TrimPrefix(meta, ",")
				}
				c.send(`{"jsonrpc":"2.0","id":%s,"method":%s%s}}`, id, ask, rest)
				c.response(id)
			}
			g, err := e.Gate(t.Context(), gate.GateID)
			if err != nil || g.Decision != "" {
				t.Fatalf("the gate is %q, %v after %d tries, want it open", g.Decision, err, tries)
			}
			// Ending the run is all that it can do, and that approves nothing.
			try("relavium_run_cancel", map[string]any{"run": gate.RunID})
			if r := c.result(c.waited(`"waiting"`)); !r.IsError || !strings.Contains(r.Content[0].Text, "cancelled") {
				t.Errorf("result of the waiting call = %+v, want that it was cancelled", r)
			}
			if g, err = e.Gate(t.Context(), gate.GateID); err != nil || g.Decision != "" {
				t.Errorf("the gate of the cancelled run is %q, %v, want no decision", g.Decision, err)
			}
		})
	}
}

// waited is the response of that id, which may have come before.
func (c *client) waited(id string) wire {
	c.tb.Helper()
	for _, m := range c.kept {
		if string(m.ID) == id && m.Method == "" {
			return m
		}
	}
	return c.response(id)
}

// replies plays a part of a report: a call, the replies to its questions, and
// the result, or "" if the gate is open still.
func (c *client) replies(e *engine.Engine, tool string, replies ...string) (string, engine.Gate) {
	c.tb.Helper()
	c.call("7", tool, `,"_meta":{"progressToken":1}`)
	for _, reply := range replies {
		c.says(c.asked(), reply)
	}
	m := c.until(func(m wire) bool {
		return string(m.ID) == "7" || strings.Contains(m.raw, "does not ask again")
	})
	gates, err := e.Gates(c.tb.Context(), engine.GateFilter{})
	if err != nil || len(gates) != 1 {
		c.tb.Fatalf("gates = %v, %v, want one", gates, err)
	}
	if m.Method != "" {
		return "", gates[0]
	}
	return string(c.result(m).StructuredContent), gates[0]
}

// TestReportG03 declines and cancels with content that belongs to an accept.
func TestReportG03(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		`{"action":"decline","content":{"approved":true}}`: `{"result":["rejected"]}`,
		`{"action":"cancel","content":{}}`:                 "",
	} {
		s, e, _ := newServer(t, anyTime, chained(t, "stray", "ask"))
		c := connect(t, s)
		c.elicits(legacy, declaresForm)
		got, gate := c.replies(e, "relavium_stray", reply)
		if got != want || (want == "") != (gate.Decision == "") {
			t.Errorf("%s yields %q and the decision %q, want %q", reply, got, gate.Decision, want)
		}
	}
}

// TestReportG04 answers long after any request would have timed out. The gate's
// own time is the only clock.
func TestReportG04(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, func(o *publish.Options) {
		o.MinHuman = 50 * time.Millisecond
		o.Heartbeat = 20 * time.Millisecond
	}, gated(t, "patient", time.Minute))
	c := connect(t, s)
	c.elicits(legacy, declaresForm)
	c.call("7", "relavium_patient", `,"_meta":{"progressToken":1}`)
	q := c.asked()
	for beats := 0; beats < 40; { // a long time, as beats of the heart
		if m := c.next(); strings.Contains(m.raw, "waiting for a person") {
			beats++
		}
	}
	c.says(q, approve)
	if got, want := string(c.result(c.response("7")).StructuredContent), `{"result":{"decision":"approved"}}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// TestReportG11 drops the client right after its question, many times: the gate
// is pending still, asked about again, and nothing of the dead is left.
func TestReportG11(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) {
		anyTime(o)
		o.EOFGrace = 10 * time.Millisecond
	}, chained(t, "gone", "ask"))
	for range 50 {
		c := connect(t, s)
		c.elicits(legacy, declaresForm)
		c.call("7", "relavium_gone", "")
		c.asked()
		c.in.Close()
		if err := <-c.done; err != nil {
			t.Fatal(err)
		}
		c.done <- nil
	}
	gates, err := e.Gates(t.Context(), engine.GateFilter{})
	if err != nil || len(gates) != 1 || gates[0].Decision != "" {
		t.Fatalf("gates = %v, %v, want one that is open: each call joins the run that was lost", gates, err)
	}
	c := connect(t, s)
	c.elicits(legacy, declaresForm)
	c.call("7", "relavium_gone", "")
	c.says(c.asked(), approve)
	if got, want := string(c.result(c.response("7")).StructuredContent), `{"result":["approved"]}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}
