package integration

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A toolResult is a tools/call result, or the error that the client threw.
type toolResult struct {
	Result struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
			URI  string `json:"uri"`
		} `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool            `json:"isError"`
		Meta       map[string]any  `json:"_meta"`
	} `json:"result"`
	Error *struct {
		Name    string          `json:"name"`
		Code    json.RawMessage `json:"code"`
		Message string          `json:"message"`
	} `json:"error"`
	Gate     gateNote   `json:"gate"`
	Progress []progress `json:"progress"`
	Late     int        `json:"late"`
}

type progress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

type gateNote struct {
	Run  string `json:"runId"`
	Gate string `json:"gateId"`
	Type string `json:"gateType"`
	Text string `json:"message"`
}

func (r *toolResult) text() string {
	var b strings.Builder
	for _, c := range r.Result.Content {
		b.WriteString(c.Text)
	}
	return b.String()
}

// TestTypeScriptSDK1 and TestTypeScriptSDK2 are the same promises to the two
// generations of the most used client: revisions 2025-11-25 and 2026-07-28.
func TestTypeScriptSDK1(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	checkScenario(t, p, startClient(t, p, "sdk1.mjs"), "2025-11-25", "cancelled")
}

func TestTypeScriptSDK2(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	checkScenario(t, p, startClient(t, p, "sdk2.mjs"), "2026-07-28", "cancelled")
}

// scenarioProject holds the workflows that clients/scenario.mjs calls.
func scenarioProject(t *testing.T) project {
	t.Helper()
	return install(t, anyAnswer).project(t, "project", testdata(t, "greet", "breaks", "steps", "deploy"))
}

// checkScenario reads clients/scenario.mjs to its end; stopped is the state of a
// run whose call was cancelled by the client.
func checkScenario(t *testing.T, p project, steps *clientSteps, revision, stopped string) {
	t.Helper()

	var connect struct {
		Protocol     string         `json:"protocol"`
		Server       map[string]any `json:"server"`
		Capabilities map[string]any `json:"capabilities"`
	}
	steps.next("connect", &connect)
	if connect.Protocol != revision {
		t.Errorf("negotiated revision = %q, want %q", connect.Protocol, revision)
	}
	if connect.Server["name"] != "relavium-serve" {
		t.Errorf("server name = %v, want relavium-serve", connect.Server["name"])
	}
	if connect.Capabilities["tools"] == nil {
		t.Errorf("capabilities = %v, want tools among them", connect.Capabilities)
	}

	checkList(t, steps)

	var got toolResult
	steps.next("call", &got)
	name := "Ada \u2028 \U0001F600"
	checkStructured(t, &got, map[string]any{"letter": map[string]any{
		"greeting": "Hello " + name, "count": 3.0, "all": []any{name, name, name},
	}})
	for _, key := range []string{"relavium/runId", "relavium/durationMs", "relavium/costMicrocents"} {
		if got.Result.Meta[key] == nil {
			t.Errorf("_meta of a result = %v, want %s in it", got.Result.Meta, key)
		}
	}
	steps.next("defaults", &got)
	checkStructured(t, &got, map[string]any{"letter": map[string]any{
		"greeting": "Hello Bo", "count": 1.0, "all": []any{"Bo"},
	}})

	steps.next("invalid", &got)
	if !got.Result.IsError {
		t.Errorf("call with bad arguments = %+v, want isError", got)
	}
	for _, field := range []string{"name", "times", "loud"} {
		if !strings.Contains(got.text(), field) {
			t.Errorf("refusal of bad arguments = %q, want the field %q named", got.text(), field)
		}
	}
	steps.next("unknown", &got)
	if said := got.said(); !strings.Contains(said, "relavium_greet") {
		t.Errorf("call of an unknown tool = %q, want the closest name relavium_greet in it", said)
	}
	steps.next("fails", &got)
	if !got.Result.IsError || !strings.Contains(got.text(), "sandbox_error") || !strings.Contains(got.text(), "oops") {
		t.Errorf("failed run = isError %t %q, want isError with sandbox_error and the node oops", got.Result.IsError, got.text())
	}
	if got.Result.Structured != nil {
		t.Errorf("structuredContent of a failed run = %s, want none", got.Result.Structured)
	}

	steps.next("progress", &got)
	checkStructured(t, &got, map[string]any{"sum": 7.0})
	checkProgress(t, got.Progress, 8)
	if got.Late != 0 {
		t.Errorf("%d progress notifications came after the result, want 0", got.Late)
	}

	steps.next("cancel", &got)
	if got.Error == nil {
		t.Errorf("cancelled call = %+v, want the client's own error", got)
	}
	p.await(t, got.Gate.Run, stopped)
	var after struct {
		Tools int `json:"tools"`
	}
	steps.next("after-cancel", &after)
	if after.Tools == 0 {
		t.Error("tools/list after a cancel is empty")
	}

	checkGate(t, p, steps)
	checkClock(t, p, steps)
	checkRunReads(t, steps)

	steps.next("close", &struct{}{})
	steps.end()
}

func checkList(t *testing.T, steps *clientSteps) {
	t.Helper()
	var list struct {
		Tools []struct {
			Name         string          `json:"name"`
			Title        string          `json:"title"`
			Description  string          `json:"description"`
			InputSchema  json.RawMessage `json:"inputSchema"`
			OutputSchema json.RawMessage `json:"outputSchema"`
			Annotations  map[string]any  `json:"annotations"`
		} `json:"tools"`
	}
	steps.next("list", &list)
	names := make([]string, 0, len(list.Tools))
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		if tool.Description == "" {
			t.Errorf("tool %s has no description", tool.Name)
		}
		if tool.Name != "relavium_greet" {
			continue
		}
		if tool.Title != "Greeting" {
			t.Errorf("title of relavium_greet = %q, want Greeting", tool.Title)
		}
		var in map[string]any
		decode(t, tool.InputSchema, &in)
		want := map[string]any{
			"type": "object", "additionalProperties": false, "required": []any{"name"},
			"properties": map[string]any{
				"name":  map[string]any{"type": "string", "minLength": 1.0, "maxLength": 40.0},
				"times": map[string]any{"type": "number", "minimum": 1.0, "maximum": 5.0, "default": 1.0},
			},
		}
		if diff := cmp.Diff(want, in); diff != "" {
			t.Errorf("inputSchema of relavium_greet (-want +got):\n%s", diff)
		}
		var out struct {
			Type       string                     `json:"type"`
			Properties map[string]json.RawMessage `json:"properties"`
			Required   []string                   `json:"required"`
		}
		decode(t, tool.OutputSchema, &out)
		if out.Type != "object" || out.Properties["letter"] == nil || out.Required != nil {
			t.Errorf("outputSchema of relavium_greet = %s, want an object with letter and no required", tool.OutputSchema)
		}
		if tool.Annotations["readOnlyHint"] != true || tool.Annotations["openWorldHint"] == true {
			t.Errorf("annotations of relavium_greet = %v, want read-only and a closed world", tool.Annotations)
		}
	}
	want := []string{
		"relavium_breaks", "relavium_deploy", "relavium_greet", "relavium_run_cancel",
		"relavium_run_list", "relavium_run_status", "relavium_run_wait", "relavium_steps",
	}
	slices.Sort(names)
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("tools/list (-want +got):\n%s", diff)
	}
}

// checkGate approves from another process while the call waits.
func checkGate(t *testing.T, p project, steps *clientSteps) {
	t.Helper()
	var open struct {
		Gate gateNote `json:"gate"`
	}
	steps.next("gate-open", &open)
	if open.Gate.Type != "approval" || !strings.Contains(open.Gate.Text, "Deploy 1.4.2?") || open.Gate.Gate == "" {
		t.Errorf("human_gate notification = %+v, want an approval that asks Deploy 1.4.2?", open.Gate)
	}
	p.await(t, open.Gate.Run, "waiting")
	p.approve(t, open.Gate.Run)
	var got toolResult
	steps.next("gate", &got)
	checkStructured(t, &got, map[string]any{"result": map[string]any{
		"version": "1.4.2", "decision": "approved", "steps": 2.0,
	}})
	checkProgress(t, got.Progress, 5)
}

// checkClock lets the client's own time-out end a call: the run goes on, and the
// same call again joins it instead of starting a second one.
func checkClock(t *testing.T, p project, steps *clientSteps) {
	t.Helper()
	var got toolResult
	steps.next("clock", &got)
	if got.Error == nil {
		t.Fatalf("call over the client's time limit = %+v, want the client's error", got)
	}
	late := got.Gate.Run
	p.detached(t, late)
	if r := p.show(t, late); r.State != "waiting" {
		t.Errorf("run after the client's time-out is %q, want waiting", r.State)
	}
	steps.goOn()
	p.approve(t, late)
	steps.next("joined", &got)
	if id := got.Result.Meta["relavium/runId"]; id != late {
		t.Errorf("run of the repeated call = %v, want %s", id, late)
	}
	if got.Result.Meta["relavium/joined"] != true {
		t.Errorf("_meta of the repeated call = %v, want relavium/joined true", got.Result.Meta)
	}
	checkStructured(t, &got, map[string]any{"result": map[string]any{
		"version": "clock", "decision": "approved", "steps": 2.0,
	}})
}

// detached waits until the run has lost its caller, which the store alone tells.
func (p project) detached(t *testing.T, run string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(p.home, "serve.db"))+"?mode=ro&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	waitFor(t, func() bool {
		var alone bool
		if err := db.QueryRowContext(t.Context(), "select detached is not null from runs where id=?", run).Scan(&alone); err != nil {
			t.Fatal(err)
		}
		return alone
	}, func() string { return "the run has its caller still" })
}

// checkRunReads asks for the run by a companion tool and as a resource.
func checkRunReads(t *testing.T, steps *clientSteps) {
	t.Helper()
	var got toolResult
	steps.next("status", &got)
	if got.Result.IsError || !strings.Contains(got.text(), "completed") {
		t.Errorf("relavium_run_status = %q, want a completed run", got.text())
	}
	var templates struct {
		Result struct {
			Templates []struct {
				URI string `json:"uriTemplate"`
			} `json:"resourceTemplates"`
		} `json:"result"`
	}
	steps.next("templates", &templates)
	var uris []string
	for _, r := range templates.Result.Templates {
		uris = append(uris, r.URI)
	}
	slices.Sort(uris)
	if diff := cmp.Diff([]string{"relavium://runs/{run}", "relavium://runs/{run}/outputs/{node}"}, uris); diff != "" {
		t.Errorf("resource templates (-want +got):\n%s", diff)
	}
	var resource struct {
		Result struct {
			Contents []struct {
				Text string `json:"text"`
			} `json:"contents"`
		} `json:"result"`
	}
	steps.next("resource", &resource)
	if c := resource.Result.Contents; len(c) != 1 || !strings.Contains(c[0].Text, "completed") {
		t.Errorf("resource of the run = %+v, want its status", c)
	}
}

// said is the text of a result or of the error in its place.
func (r *toolResult) said() string {
	if r.Error != nil {
		return r.Error.Message
	}
	return r.text()
}

func checkStructured(t *testing.T, got *toolResult, want map[string]any) {
	t.Helper()
	if got.Error != nil || got.Result.IsError {
		t.Errorf("call failed: %s", got.said())
		return
	}
	var have map[string]any
	decode(t, got.Result.Structured, &have)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("structuredContent (-want +got):\n%s", diff)
	}
	// A reader who is shown only one of the two misses nothing.
	if len(got.Result.Content) == 0 {
		t.Error("content is empty, want the JSON of structuredContent")
		return
	}
	var read map[string]any
	if err := json.Unmarshal([]byte(got.Result.Content[0].Text), &read); err != nil {
		t.Errorf("content = %q, want the JSON of structuredContent", got.Result.Content[0].Text)
	} else if diff := cmp.Diff(have, read); diff != "" {
		t.Errorf("content against structuredContent (-structured +content):\n%s", diff)
	}
}

func checkProgress(t *testing.T, got []progress, nodes float64) {
	t.Helper()
	if len(got) < int(nodes)/2 {
		t.Errorf("%d progress notifications for %v nodes, want at least half as many", len(got), nodes)
	}
	last := -1.0
	for _, p := range got {
		if p.Progress <= last {
			t.Errorf("progress %v after %v, want strictly more", p.Progress, last)
		}
		if p.Total != nodes || p.Progress > p.Total {
			t.Errorf("progress %v of %v, want at most %v nodes", p.Progress, p.Total, nodes)
		}
		if p.Message == "" {
			t.Error("progress without a message")
		}
		last = p.Progress
	}
}

// clientSteps reads what a client script prints, one JSON line a step.
type clientSteps struct {
	t     *testing.T
	in    io.Writer
	lines chan []byte
	diag  *lockedBuffer
	wait  func() error
}

// startClient runs a script of clients/ against a server of the project, without
// a network where the system allows that.
func startClient(t *testing.T, p project, script string) *clientSteps {
	t.Helper()
	node := clientRuntime(t)
	dir, err := filepath.Abs("clients")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{node, filepath.Join(dir, script), binary, "serve", "--publish", "@mcp_call"}
	if runtime.GOOS == "linux" {
		cage := filepath.Join(dir, "..", "..", "scripts", "loopback")
		if exec.Command(cage, "--probe").Run() == nil {
			args = append([]string{cage}, args...)
		} else {
			t.Log("no network namespace here: the client could reach out")
		}
	}
	return startSteps(t, p, args)
}

// startSteps runs a command that prints a JSON line a step.
func startSteps(t *testing.T, p project, args []string) *clientSteps {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = p.dir, p.environment()
	cmd.WaitDelay = 5 * time.Second
	steps := &clientSteps{t: t, lines: make(chan []byte), diag: new(lockedBuffer), wait: cmd.Wait}
	cmd.Stderr = steps.diag
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	steps.in = in
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go steps.read(ctx, out)
	t.Cleanup(func() {
		cancel()
		if t.Failed() {
			t.Logf("stderr of client and server:\n%s", steps.diag)
		}
	})
	return steps
}

func (s *clientSteps) read(ctx context.Context, out io.Reader) {
	defer close(s.lines)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		select {
		case s.lines <- line:
		case <-ctx.Done():
			return
		}
	}
}

// next reads the line of the named step into v, which it clears first.
func (s *clientSteps) next(step string, v any) {
	s.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("the client ended before step %q:\n%s", step, s.diag)
			}
			var head struct {
				Step   string `json:"step"`
				Method string `json:"method"`
			}
			decode(s.t, line, &head)
			if head.Step == "notification" {
				s.t.Errorf("unasked notification %s", head.Method)
				continue
			}
			if head.Step != step {
				s.t.Fatalf("step %q, want %q: %s", head.Step, step, line)
			}
			if r, ok := v.(*toolResult); ok {
				*r = toolResult{}
			}
			decode(s.t, line, v)
			return
		case <-timer.C:
			s.t.Fatalf("no step %q within %v:\n%s", step, patience, s.diag)
		}
	}
}

// goOn lets a client take its next step that waits for it.
func (s *clientSteps) goOn() {
	s.t.Helper()
	if _, err := io.WriteString(s.in, "go on\n"); err != nil {
		s.t.Fatal(err)
	}
}

// end waits for the client, which has closed its session, to exit 0.
func (s *clientSteps) end() {
	s.t.Helper()
	for range s.lines {
	}
	if err := s.wait(); err != nil {
		s.t.Errorf("client: %v\n%s", err, s.diag)
	}
}

// clientRuntime finds node and the installed packages. Without them the test is
// skipped, except where CI is set: there it fails.
func clientRuntime(t *testing.T) string {
	t.Helper()
	missing := t.Skipf
	if os.Getenv("CI") != "" {
		missing = t.Fatalf
	}
	node, err := exec.LookPath("node")
	if err != nil {
		missing("no node found: the tests with npm clients need node 20 or newer")
	}
	out, err := exec.Command(node, "--version").Output()
	if err != nil || !regexp.MustCompile(`^v(2\d|[3-9]\d)\.`).Match(out) {
		missing("node %s found, 20 or newer needed", strings.TrimSpace(string(out)))
	}
	if _, err := os.Stat(filepath.Join("clients", "node_modules", ".package-lock.json")); err != nil {
		missing("clients are not installed: run make test-clients")
	}
	return node
}

func testdata(tb testing.TB, ids ...string) map[string]string {
	tb.Helper()
	files := map[string]string{}
	for _, id := range ids {
		raw, err := os.ReadFile(filepath.Join("testdata", id+".relavium.yaml"))
		if err != nil {
			tb.Fatal(err)
		}
		files[id] = string(raw)
	}
	return files
}
