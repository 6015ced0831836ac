package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	for _, c := range []struct {
		kind, press, value, decision, payload string
		shows                                 string
	}{
		{"approval", "approve", "", engine.Approved, "", "You approved this gate"},
		{"approval", "reject", "", engine.Rejected, "", "You rejected this gate"},
		{"review", "approve", "", engine.Approved, "", "You approved this gate"},
		{"input", "answer", "1.4.0\r\nand <more>", engine.InputProvided, `"1.4.0\nand <more>"`, "You answered this gate"},
		{"input", "reject", "", engine.Rejected, "", "You rejected this gate"},
	} {
		run, gate := d.start(flow{kind: c.kind, message: "Ship it?", assign: "ops"})
		d.page("/").has("/gates/"+gate.ID, "Ship it?", "ops", "2 of 5 steps done", "start, plan")
		d.page("/gates/"+gate.ID).has("Ship it?", "ops", `name="comment"`)
		a := d.send("/gates/"+gate.ID, url.Values{"decision": {c.press}, "value": {c.value}, "comment": {"fine by me"}})
		if a.status != http.StatusSeeOther {
			t.Fatalf("%s %s = %d, want 303:\n%s", c.kind, c.press, a.status, a.body)
		}
		g := d.gate(gate.ID)
		got := [...]string{g.Decision, string(g.Payload), g.Comment, g.DecidedBy, g.Via}
		want := [...]string{c.decision, c.payload, "fine by me", "local", "console"}
		if got != want {
			t.Errorf("%s %s: decision = %q, want %q", c.kind, c.press, got, want)
		}
		if r := d.ended(run); r.State != engine.Completed {
			t.Errorf("%s %s: the run is %s, want completed", c.kind, c.press, r.State)
		}
		d.page(a.header.Get("Location")).has(c.shows, "fine by me", "via the console at")
		d.page("/").lacks(gate.ID)
		d.page("/runs/"+run).has("fine by me", "by local via the console")
	}
}

// A sender calls what may not be repeated. The first call is under way until its
// process ends; the next one returns.
type sender struct{ sent chan struct{} }

func (s *sender) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	_, err := call.Do(ctx, engine.Effect{
		N: 0, Kind: engine.EffectTool, Name: "send_letter", Request: []byte(`{}`), Shown: []byte(`{"to":"ops"}`),
	}, func(ctx context.Context, _ string) (engine.EffectResult, error) {
		if s.sent != nil {
			close(s.sent)
			<-ctx.Done()
			return engine.EffectResult{}, ctx.Err()
		}
		return engine.EffectResult{Value: []byte(`1`)}, nil
	})
	switch {
	case errors.Is(err, engine.ErrSkipped):
		return engine.AgentResult{Output: []byte(`"skipped"`)}, nil
	case err != nil:
		return engine.AgentResult{}, err
	}
	return engine.AgentResult{Output: []byte(`"sent"`)}, nil
}

// TestDecideUnknown decides about a call whose outcome is not known: by one of three
// answers, and no other.
func TestDecideUnknown(t *testing.T) {
	t.Parallel()
	w := parse(t, `schema_version: '1.0'
workflow:
  id: heron
  agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'}]
  nodes: [{id: start, type: input}, {id: post, type: agent, agent_ref: wader, prompt_template: go}, {id: result, type: output}]
  edges: [{from: start, to: post}, {from: post, to: result}]
`)
	for answer, want := range map[string]string{"repeat": `{"result":"sent"}`, "skip": `{"result":"skipped"}`, "fail": ""} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			home, first := t.TempDir(), &sender{sent: make(chan struct{})}
			e, err := engine.Open(t.Context(), engine.Options{
				Path: filepath.Join(home, "serve.db"), Executor: true, Projects: []string{projectKey}, Agent: first, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			started, err := e.Start(t.Context(), engine.StartRequest{
				Workflow: w, Project: engine.Project{Key: projectKey}, Principal: engine.Local, Arguments: []byte(`{}`), Source: "mcp", Client: "a-client",
			})
			if err != nil {
				t.Fatal(err)
			}
			<-first.sent
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			d := newDeskAt(t, home, &sender{}, nil)
			var gate engine.Gate
			d.until(func() bool {
				gates, err := d.engine.Gates(t.Context(), engine.GateFilter{Run: started.Run, Open: true})
				if err != nil {
					t.Fatal(err)
				}
				if len(gates) == 1 {
					gate = gates[0]
				}
				return len(gates) == 1
			})
			page := d.page("/gates/" + gate.ID)
			page.has("Nobody knows whether this step took effect", "send_letter", `value="repeat"`, `value="skip"`, `value="fail"`, `value="answer"`)
			page.lacks("<textarea id=\"value\"", "Send answer", `value="reject"`)
			for _, wrong := range []url.Values{{"decision": {"answer"}, "value": {"perhaps"}}, {"decision": {"reject"}}, {"decision": {"approve"}}} {
				if a := d.send("/gates/"+gate.ID, wrong); a.status != http.StatusUnprocessableEntity {
					t.Errorf("%v = %d, want 422", wrong, a.status)
				}
			}
			if a := d.send("/gates/"+gate.ID, url.Values{"decision": {"answer"}, "value": {answer}}); a.status != http.StatusSeeOther {
				t.Fatalf("%s = %d, want 303:\n%s", answer, a.status, a.body)
			}
			if r := d.ended(started.Run); string(r.Outputs) != want {
				t.Errorf("%s: the run is %s with %s, want %s", answer, r.State, r.Outputs, want)
			}
		})
	}
}

func TestDecideLate(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	_, gate := d.start(flow{bare: true})
	if _, err := d.engine.Decide(t.Context(), gate.ID, engine.Decision{Decision: engine.Rejected, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	d.page("/gates/"+gate.ID).has("Already decided: rejected", "rejected by <strong>local</strong> via the command line at")
	d.page("/gates/" + gate.ID).lacks(`name="decision"`)
	a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}, "comment": {"too late <b>"}})
	if a.status != http.StatusConflict {
		t.Errorf("approve after reject = %d, want 409", a.status)
	}
	a.has("Already decided: rejected", "Your answer changed nothing.", "too late &lt;b&gt;")
	if g := d.gate(gate.ID); g.Decision != engine.Rejected || g.Via != engine.ViaCLI {
		t.Errorf("the decision is %s via %s, want rejected via cli", g.Decision, g.Via)
	}
	if a := d.send("/gates/"+gate.ID, url.Values{"decision": {"reject"}}); a.status != http.StatusSeeOther {
		t.Errorf("reject after reject = %d, want 303: the same again is no conflict", a.status)
	}
}

func TestDecideExpired(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, gate := d.start(flow{timeout: 1})
	if r := d.ended(run); r.State != engine.Failed {
		t.Fatalf("the run is %s, want failed", r.State)
	}
	a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}})
	if a.status != http.StatusConflict {
		t.Errorf("approve after the expiry = %d, want 409", a.status)
	}
	a.has("via its time-out")
	d.page("/runs/"+run).has("run_timeout", "nobody answered the gate in time")
}

// A gate that has expired and that nobody has settled yet offers no form.
func TestExpiredShown(t *testing.T) {
	t.Parallel()
	later := func() time.Time { return time.Now().Add(2 * time.Hour) }
	d := newDesk(t, nil)
	_, gate := d.start(flow{timeout: 3600_000})
	c, err := New(Options{Engine: d.engine, Login: StartToken{Home: d.home}, Logger: d.console.log, Now: later})
	if err != nil {
		t.Fatal(err)
	}
	g := c.gateView(&gate)
	if !g.Expired || g.State != "skipped" {
		t.Errorf("gateView of an expired gate = %+v, want it expired", g)
	}
}

func TestDecideInvalid(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	_, approval := d.start(flow{})
	_, input := d.start(flow{kind: "input"})
	for name, c := range map[string]struct {
		gate string
		form url.Values
		want int
		says string
	}{
		"nothing":        {approval.ID, url.Values{}, 422, "Choose what to decide."},
		"unknown":        {approval.ID, url.Values{"decision": {"approved"}}, 422, "Choose what to decide."},
		"an answer":      {approval.ID, url.Values{"decision": {"answer"}, "value": {"x"}}, 422, "This gate waits for a decision"},
		"approval":       {input.ID, url.Values{"decision": {"approve"}}, 422, "This gate waits for an answer."},
		"no value":       {input.ID, url.Values{"decision": {"answer"}}, 422, "Write an answer first."},
		"long comment":   {approval.ID, url.Values{"decision": {"approve"}, "comment": {strings.Repeat("c", 64<<10+1)}}, 422, "longer than 64 KiB"},
		"long value":     {input.ID, url.Values{"decision": {"answer"}, "value": {strings.Repeat("v", 256<<10)}}, 422, "longer than 256 KiB"},
		"not UTF-8":      {input.ID, url.Values{"decision": {"answer"}, "value": {"\xff"}}, 422, "not valid Unicode"},
		"a huge form":    {input.ID, url.Values{"decision": {"answer"}, "value": {strings.Repeat("v", 3<<20)}}, 400, "cannot be read"},
		"no such gate":   {"0198-nope", url.Values{"decision": {"approve"}}, 404, "no such gate"},
		"an escaped one": {"..%2f..%2fruns", url.Values{"decision": {"approve"}}, 404, "no such gate"},
	} {
		a := d.send("/gates/"+c.gate, c.form)
		if a.status != c.want || !strings.Contains(a.body, c.says) {
			t.Errorf("%s: %d without or with %q, want %d:\n%.2000s", name, a.status, c.says, c.want, a.body)
		}
	}
	for _, id := range []string{approval.ID, input.ID} {
		if g := d.gate(id); g.Decision != "" {
			t.Errorf("gate %s was decided: %s", g.Type, g.Decision)
		}
	}
}

func TestDecideRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(o *Options) {
		o.Refused = func(_ context.Context, r *engine.Run, by engine.Principal) error {
			return fmt.Errorf("%w of %s by %s", errors.New("no <console>"), r.Workflow, by)
		}
	})
	_, gate := d.start(flow{bare: true})
	d.page("/gates/"+gate.ID).has("Not decided here", "no &lt;console&gt; of heron by local")
	d.page("/gates/" + gate.ID).lacks(`name="decision"`)
	if a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}}); a.status != http.StatusForbidden {
		t.Errorf("approve = %d, want 403", a.status)
	}
	if g := d.gate(gate.ID); g.Decision != "" {
		t.Errorf("the gate was decided: %s", g.Decision)
	}
}

func TestInboxPages(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.page("/").has("Nothing waits.")
	var want []string
	for range gatesPerPage + 2 {
		_, gate := d.start(flow{bare: true})
		want = append(want, gate.ID)
	}
	first := d.page("/")
	first.has(want[0], want[gatesPerPage-1], "?after="+want[gatesPerPage-1])
	first.lacks(want[gatesPerPage])
	second := d.page("/?after=" + want[gatesPerPage-1])
	second.has(want[gatesPerPage], want[gatesPerPage+1])
	second.lacks(want[gatesPerPage-1]+`"`, "?after="+want[gatesPerPage+1])
	d.page("/?after=nothing").has("Nothing waits.")
}
