package console

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// guests are people with a secret each.
type guests map[string]*Visitor

func (g guests) Admit(_ context.Context, secret string) (*Visitor, bool) {
	v := g[secret]
	return v, v != nil
}

// other is a workflow with a gate whose message names one of two outputs.
func other(t *testing.T) *workflows.Workflow {
	t.Helper()
	return parse(t, `schema_version: '1.0'
workflow:
  id: crane
  nodes:
    - { id: start, type: input }
    - { id: shown, type: transform, transform: "'a-shown-value'" }
    - { id: kept, type: transform, transform: "'a-kept-value'" }
    - { id: check, type: human_gate, gate_type: approval, message_template: 'Take {{ run.outputs["shown"] }}?' }
    - { id: result, type: output }
  edges: [{ from: start, to: shown }, { from: start, to: kept }, { from: shown, to: check }, { from: kept, to: check }, { from: check, to: result }]
`)
}

// Whoever may decide the gates of one workflow sees those and what they show of
// their runs, and nothing else is there for them.
func TestGuest(t *testing.T) {
	t.Parallel()
	var gone atomic.Bool
	list := guests{
		"all": {Principal: engine.Local, Runs: true},
		"one": {
			Principal: "token:lead", Gates: func(workflow string) bool { return workflow == "crane" },
			Live: func(context.Context) bool { return !gone.Load() },
		},
		"ops": {Principal: "token:ops", Gates: func(string) bool { return false }, Runs: true},
	}
	d := newDesk(t, func(opt *Options) { opt.Login = both{list, opt.Login} })
	heronRun, heronGate := d.start(flow{})
	craneRun, craneGate := d.startWorkflow(other(t))
	as := func(secret string) *http.Client {
		t.Helper()
		browser := d.newBrowser()
		a := d.get(browser, "/login")
		if a = d.post(browser, "/login", url.Values{"form": {a.form()}, "token": {secret}}); a.status != http.StatusSeeOther {
			t.Fatalf("login with %q = %d, want 303", secret, a.status)
		}
		return browser
	}
	lead := as("one")
	inbox := d.get(lead, "/")
	inbox.has(craneGate.ID, "token:lead")
	inbox.lacks(heronGate.ID)
	gate := d.get(lead, "/gates/"+craneGate.ID)
	gate.has("Take a-shown-value?", "a-shown-value", `name="decision"`)
	gate.lacks("a-kept-value", "/runs/"+craneRun)
	d.page("/gates/"+craneGate.ID).has("a-kept-value", "/runs/"+craneRun)
	if a := d.get(lead, "/runs"); a.status != http.StatusOK || strings.Contains(a.body, craneRun) || strings.Contains(a.body, heronRun) {
		t.Errorf("the list of runs of a guest = %d:\n%s", a.status, a.body)
	}
	form := gate.form()
	for _, path := range []string{
		"/gates/" + heronGate.ID, "/gates/" + heronGate.ID + "/live", "/runs/" + craneRun, "/runs/" + craneRun + "/live",
		"/runs/" + craneRun + "/outputs/kept", "/runs/" + craneRun + "/cancel", "/runs/" + heronRun,
	} {
		if a := d.get(lead, path); a.status != http.StatusNotFound {
			t.Errorf("GET %s of a guest = %d, want 404", path, a.status)
		}
	}
	for _, path := range []string{"/gates/" + heronGate.ID, "/runs/" + craneRun + "/cancel"} {
		if a := d.post(lead, path, url.Values{"form": {form}, "decision": {"approve"}}); a.status != http.StatusNotFound {
			t.Errorf("POST %s of a guest = %d, want 404", path, a.status)
		}
	}
	ops := as("ops")
	d.get(ops, "/").lacks(craneGate.ID, heronGate.ID)
	d.get(ops, "/runs").has(craneRun, heronRun)
	d.get(ops, "/runs/"+craneRun).lacks("/cancel")
	if a := d.post(ops, "/runs/"+craneRun+"/cancel", url.Values{"form": {d.get(ops, "/runs").form()}}); a.status != http.StatusNotFound {
		t.Errorf("cancel by one who only looks = %d, want 404", a.status)
	}
	if a := d.post(lead, "/gates/"+craneGate.ID, url.Values{"form": {form}, "decision": {"approve"}}); a.status != http.StatusSeeOther {
		t.Fatalf("decide = %d, want 303:\n%s", a.status, a.body)
	}
	if g := d.gate(craneGate.ID); g.Decision != engine.Approved || g.DecidedBy != "token:lead" || g.Via != engine.ViaConsole {
		t.Errorf("decision = %+v, want approved by token:lead via console", g)
	}
	if r := d.ended(craneRun); r.State != engine.Completed {
		t.Errorf("the run is %s, want completed", r.State)
	}
	gone.Store(true)
	if a := d.get(lead, "/"); a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/login") {
		t.Errorf("the inbox of one who is let in no more = %d to %q, want 303 to the login", a.status, a.header.Get("Location"))
	}
	if a := d.post(lead, "/gates/"+heronGate.ID, url.Values{"form": {form}, "decision": {"approve"}}); a.status != http.StatusUnauthorized {
		t.Errorf("a form of one who is let in no more = %d, want 401", a.status)
	}
}

// both lets in whom one of two logins does.
type both [2]Login

func (b both) Admit(ctx context.Context, secret string) (*Visitor, bool) {
	if v, ok := b[0].Admit(ctx, secret); ok {
		return v, true
	}
	return b[1].Admit(ctx, secret)
}

// A request may show by itself who it is from, as through a proxy that logs
// people in: no cookie is needed, and none is set.
func TestBearer(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(opt *Options) {
		opt.Login = both{guests{"good": {Principal: "token:lead", Gates: func(string) bool { return true }}}, opt.Login}
	})
	_, gate := d.start(flow{bare: true})
	browser := d.newBrowser()
	with := func(req *http.Request, header string) *answer {
		req.Header.Set("Authorization", header)
		return d.do(browser, req)
	}
	page := with(d.request(http.MethodGet, "/gates/"+gate.ID, http.NoBody), "Bearer good")
	page.has(`name="decision"`, "token:lead")
	page.lacks("Log out")
	if page.header.Get("Set-Cookie") != "" {
		t.Errorf("Set-Cookie = %q, want none", page.header.Get("Set-Cookie"))
	}
	for _, header := range []string{"Bearer bad", "Basic good", "Bearer ", "good"} {
		if a := with(d.request(http.MethodGet, "/gates/"+gate.ID, http.NoBody), header); a.status == http.StatusOK {
			t.Errorf("with %q = 200", header)
		}
	}
	if a := with(d.formRequest("/gates/"+gate.ID, url.Values{"decision": {"approve"}, "form": {"x"}}), "Bearer good"); a.status != http.StatusForbidden {
		t.Errorf("a form without its token = %d, want 403", a.status)
	}
	if a := with(d.formRequest("/gates/"+gate.ID, url.Values{"decision": {"approve"}, "form": {page.form()}}), "Bearer good"); a.status != http.StatusSeeOther {
		t.Errorf("the form = %d, want 303", a.status)
	}
	if g := d.gate(gate.ID); g.DecidedBy != "token:lead" {
		t.Errorf("decided by %q, want token:lead", g.DecidedBy)
	}
}
