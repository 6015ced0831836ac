package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; it is never what passes.
const patience = 30 * time.Second

const projectKey = "p-test"

type noAgents struct{}

func (noAgents) RunAgent(context.Context, engine.AgentCall) (engine.AgentResult, error) {
	return engine.AgentResult{}, &engine.RunError{Code: engine.CodeToolUnavailable, Message: "none"}
}

// A desk is a console over an engine, and a browser before it.
type desk struct {
	t       *testing.T
	engine  *engine.Engine
	console *Console
	server  *httptest.Server
	browser *http.Client
	token   string
	home    string
}

// newDesk makes a desk of somebody who is logged in. tune may change the options.
func newDesk(t *testing.T, tune func(*Options)) *desk {
	t.Helper()
	return newDeskAt(t, t.TempDir(), noAgents{}, tune)
}

// newDeskAt is newDesk in a home that may have been used before.
func newDeskAt(t *testing.T, home string, agents engine.AgentRunner, tune func(*Options)) *desk {
	t.Helper()
	d := &desk{t: t, home: home}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	d.engine, err = engine.Open(t.Context(), engine.Options{
		Path: filepath.Join(d.home, "serve.db"), Executor: true, Projects: []string{projectKey}, Agent: agents, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer done()
		if err := d.engine.Close(ctx); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
	if d.token, err = (StartToken{Home: d.home}).Renew(); err != nil {
		t.Fatal(err)
	}
	opt := Options{Engine: d.engine, Login: StartToken{Home: d.home}, Logger: quiet, Poll: 20 * time.Millisecond}
	if tune != nil {
		tune(&opt)
	}
	if d.console, err = New(opt); err != nil {
		t.Fatal(err)
	}
	d.server = httptest.NewServer(d.console)
	t.Cleanup(d.server.Close)
	d.browser = d.newBrowser()
	d.logIn(d.browser)
	return d
}

func (d *desk) newBrowser() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		d.t.Fatal(err)
	}
	transport := &http.Transport{}
	d.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Jar: jar, Transport: transport, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (d *desk) url(path string) string { return d.server.URL + d.console.opt.Prefix + path }

func (d *desk) logIn(browser *http.Client) {
	d.t.Helper()
	a := d.get(browser, "/login")
	a = d.post(browser, "/login", url.Values{"form": {a.form()}, "token": {d.token}})
	if a.status != http.StatusSeeOther {
		d.t.Fatalf("POST /login = %d, want 303:\n%s", a.status, a.body)
	}
}

// An answer is what the browser got.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// form is the token of the forms of a page.
func (a *answer) form() string {
	a.t.Helper()
	m := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(a.body)
	if m == nil {
		a.t.Fatalf("the page has no form token:\n%s", a.body)
	}
	return m[1]
}

func (a *answer) has(texts ...string) {
	a.t.Helper()
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			a.t.Errorf("the page lacks %q:\n%s", text, a.body)
		}
	}
}

func (a *answer) lacks(texts ...string) {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			a.t.Errorf("the page has %q:\n%s", text, a.body)
		}
	}
}

func (d *desk) do(browser *http.Client, req *http.Request) *answer {
	d.t.Helper()
	res, err := browser.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return &answer{t: d.t, status: res.StatusCode, header: res.Header, body: string(body)}
}

func (d *desk) request(method, path string, body io.Reader) *http.Request {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.url(path), body)
	if err != nil {
		d.t.Fatal(err)
	}
	return req
}

func (d *desk) get(browser *http.Client, path string) *answer {
	d.t.Helper()
	return d.do(browser, d.request(http.MethodGet, path, http.NoBody))
}

// page gets a page that has to be there.
func (d *desk) page(path string) *answer {
	d.t.Helper()
	a := d.get(d.browser, path)
	if a.status != http.StatusOK {
		d.t.Fatalf("GET %s = %d, want 200:\n%s", path, a.status, a.body)
	}
	return a
}

// formRequest is a form as a browser sends it from the console's own page.
func (d *desk) formRequest(path string, form url.Values) *http.Request {
	d.t.Helper()
	req := d.request(http.MethodPost, path, strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", d.server.URL)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	return req
}

func (d *desk) post(browser *http.Client, path string, form url.Values) *answer {
	d.t.Helper()
	return d.do(browser, d.formRequest(path, form))
}

// send posts a form with the token of the page at the same path.
func (d *desk) send(path string, form url.Values) *answer {
	d.t.Helper()
	form.Set("form", d.page("/runs").form())
	return d.post(d.browser, path, form)
}

// A flow is a workflow for tests: input, a transform, a gate, an output.
type flow struct {
	kind    string // of the gate
	message string // template
	assign  string
	name    string
	value   string // expression of the transform before the gate
	timeout int    // ms; 0 means none
	bare    bool   // without transforms, which take time
}

func (f flow) parse(t *testing.T) *workflows.Workflow {
	t.Helper()
	q := func(v string) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	or := func(v, def string) string {
		if v == "" {
			return def
		}
		return v
	}
	timeout := ""
	if f.timeout > 0 {
		timeout = fmt.Sprintf("timeout_ms: %d, timeout_action: reject, ", f.timeout)
	}
	assign := ""
	if f.assign != "" {
		assign = "assignee: " + q(f.assign) + ", "
	}
	if f.bare {
		return parse(t, `schema_version: '1.0'
workflow:
  id: heron
  nodes:
    - { id: start, type: input }
    - { id: check, type: human_gate, gate_type: approval, message_template: 'Go on?' }
    - { id: result, type: output }
  edges: [{ from: start, to: check }, { from: check, to: result }]
`)
	}
	return parse(t, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: heron
  version: '0.1.0'
  name: heron
  description: waits
  trigger: { type: mcp_call }
  nodes:
    - { id: start, type: input }
    - { id: plan, label: %s, type: transform, transform: %s }
    - { id: check, type: human_gate, gate_type: %s, %s%smessage_template: %s }
    - { id: last, type: transform, transform: "run.outputs['check']" }
    - { id: result, type: output, output_format: json }
  edges:
    - { from: start, to: plan }
    - { from: plan, to: check }
    - { from: check, to: last }
    - { from: last, to: result }
`, q(or(f.name, "The plan")), q(or(f.value, "({steps: 3})")), or(f.kind, "approval"), timeout, assign, q(or(f.message, "Go on?"))))
}

func parse(t *testing.T, src string) *workflows.Workflow {
	t.Helper()
	w, _, err := workflows.Parse("heron.relavium.yaml", []byte(src), workflows.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return w
}

// start begins a run of the flow and returns it with its gate, once it waits.
func (d *desk) start(f flow) (run string, gate engine.Gate) {
	d.t.Helper()
	return d.startWorkflow(f.parse(d.t))
}

func (d *desk) startWorkflow(w *workflows.Workflow) (run string, gate engine.Gate) {
	d.t.Helper()
	started, err := d.engine.Start(d.t.Context(), engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: projectKey}, Principal: engine.Local, Arguments: json.RawMessage(`{}`), Source: "mcp", Client: "a-client",
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.until(func() bool {
		gates, err := d.engine.Gates(d.t.Context(), engine.GateFilter{Run: started.Run, Open: true})
		if err != nil {
			d.t.Fatal(err)
		}
		if len(gates) == 0 {
			return false
		}
		gate = gates[0]
		r, err := d.engine.Run(d.t.Context(), started.Run, "")
		return err == nil && r.State == engine.Waiting
	})
	return started.Run, gate
}

// until waits for something to hold.
func (d *desk) until(holds func() bool) {
	d.t.Helper()
	tick, timer := time.NewTicker(10*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timer.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-timer.C:
			d.t.Fatal("it does not come")
		}
	}
}

func (d *desk) gate(id string) engine.Gate {
	d.t.Helper()
	g, err := d.engine.Gate(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	return g
}

// ended waits for the end of a run.
func (d *desk) ended(run string) *engine.Run {
	d.t.Helper()
	var r *engine.Run
	d.until(func() bool {
		var err error
		if r, err = d.engine.Run(d.t.Context(), run, ""); err != nil {
			d.t.Fatal(err)
		}
		return r.State.Terminal()
	})
	return r
}
