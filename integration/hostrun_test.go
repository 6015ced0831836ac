//go:build unix

package integration

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// librarian is a workflow whose agent has the filesystem server of npm.
const librarian = `schema_version: '1.0'
workflow:
  id: librarian
  version: '1.0.0'
  name: Librarian
  description: Looks into the shelf.
  trigger: {type: mcp_call}
  inputs: [{name: topic, type: string, required: true}]
  agents:
    - id: reader
      provider: anthropic
      model: claude-sonnet-4-6
      system_prompt: 'You look into files.'
      max_tokens: 500
      mcp_servers:
        - {id: shelf, transport: stdio, command: node, args: ['SCRIPT', 'SHELF'], tools_allowlist: [read_text_file, list_directory]}
  nodes:
    - {id: start, type: input}
    - {id: look, type: agent, agent_ref: reader, prompt_template: 'What is there about {{ inputs.topic }}?'}
    - {id: result, type: output}
  edges: [{from: start, to: look}, {from: look, to: result}]
`

// npmServer is the program of a server below integration/servers.
func npmServer(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs(filepath.Join("servers", "node_modules", path))
	if err == nil {
		_, err = os.Stat(full)
	}
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("npm's servers are not installed: scripts/clients")
	}
	return full
}

// librarianProject is a project with a shelf of one note.
func librarianProject(t *testing.T) (project, *fakemodel.Server) {
	t.Helper()
	program := npmServer(t, "@modelcontextprotocol/server-filesystem/dist/index.js")
	shelf, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(shelf, "birds.txt"), "The tern is a bird.\n")
	arguments, err := json.Marshal(map[string]string{"path": filepath.Join(shelf, "birds.txt")})
	if err != nil {
		t.Fatal(err)
	}
	script := fakemodel.Script{Conversations: []fakemodel.Conversation{{User: "about birds", Turns: []fakemodel.Turn{
		{Text: "I look.", Calls: []fakemodel.Call{{Name: "mcp_shelf_read_text_file", Arguments: arguments}}},
		{Text: "The note says that the tern is a bird."},
	}}}}
	text := strings.NewReplacer("SCRIPT", program, "SHELF", shelf).Replace(librarian)
	return agentProject(t, anyAnswer, map[string]string{"librarian": text}, script)
}

var digestText = regexp.MustCompile(`v1:[0-9a-f]{64}`)

// TestAgentUsesServer calls a published workflow by a real client; its agent uses a
// real server. Without consent the call is refused before there is a run, and with it
// the server is started for the run and is gone after it.
func TestAgentUsesServer(t *testing.T) {
	t.Parallel()
	p, fake := librarianProject(t)

	_, stderr, code := p.cli(t, "run", "librarian", "--input", "topic=birds")
	digest := digestText.FindString(stderr)
	if code != 2 || digest == "" || !strings.Contains(stderr, "shelf") {
		t.Fatalf("without consent: exit %d, want 2 and the digest: %s", code, stderr)
	}
	if runs := p.runs(t); len(runs) != 0 || len(fake.Entries()) != 0 {
		t.Errorf("%d runs and %d model calls without consent, want none", len(runs), len(fake.Entries()))
	}

	got := p.callTool(t, "relavium_librarian", `{"topic":"birds"}`)
	if !got.Result.IsError || !strings.Contains(got.text(), digest) || strings.Contains(got.text(), p.dir) {
		t.Errorf("a call without consent = %q, want a refusal with the digest and no path", got.text())
	}

	got = p.callTool(t, "relavium_librarian", `{"topic":"birds"}`, "--allow-mcp-stdio", digest)
	if got.Result.IsError || got.text() != "The note says that the tern is a bird." {
		t.Fatalf("the call = %q, %+v", got.text(), got.Error)
	}
	if !strings.Contains(strings.Join(got.progressText(), "\n"), "mcp_shelf_read_text_file") {
		t.Errorf("progress %q says nothing of the tool", got.progressText())
	}
	if log := p.ok(t, "audit", "--json"); !strings.Contains(log, `"server.started"`) || !strings.Contains(log, digest) {
		t.Errorf("the audit log says nothing of the program and its consent: %s", log)
	}
	var asked string
	for _, e := range fake.Entries() {
		if e.Event == "request" && e.Turn == 1 {
			asked = string(e.Body)
		}
	}
	if !strings.Contains(asked, "The tern is a bird.") || !strings.Contains(asked, `external MCP server`) && !strings.Contains(asked, "shelf") {
		t.Errorf("the second turn was asked %s, want the file's text and its origin", asked)
	}
}

func (r *toolResult) progressText() []string {
	var out []string
	for _, p := range r.Progress {
		out = append(out, p.Message)
	}
	return out
}

// callTool serves the project to the TypeScript SDK 2, which calls one tool.
func (p project) callTool(t *testing.T, tool, args string, flags ...string) toolResult {
	t.Helper()
	node := clientRuntime(t)
	script, err := filepath.Abs(filepath.Join("clients", "call.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	all := append([]string{script, tool, args, binary, "serve", "--publish", "@mcp_call"}, flags...)
	cmd := exec.CommandContext(ctx, node, all...)
	cmd.Dir, cmd.Env = p.dir, p.environment()
	var diag strings.Builder
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("call.mjs: %v\n%s", err, diag.String())
	}
	var said struct {
		Progress []string        `json:"progress"`
		Result   json.RawMessage `json:"result"`
	}
	decode(t, out, &said)
	var got toolResult
	decode(t, said.Result, &got.Result)
	for _, line := range said.Progress {
		got.Progress = append(got.Progress, progress{Message: line})
	}
	return got
}

// TestWorkflowCallsItself serves a workflow whose agent calls it over the server's own
// endpoint, behind a proxy whose address is known before: each run tells the next how
// deep it is, and the sixth is refused.
func TestWorkflowCallsItself(t *testing.T) {
	t.Parallel()
	served := make(chan string, 1)
	to := sync.OnceValues(func() (*url.URL, error) { return url.Parse(<-served) })
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			at, err := to()
			if err != nil {
				t.Error(err)
				return
			}
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = at.Scheme, at.Host, ""
		},
		FlushInterval: -1,
	})
	t.Cleanup(proxy.Close)
	script := fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Text: "I ask.", Calls: []fakemodel.Call{{Name: "mcp_self_relavium_mirror", Arguments: json.RawMessage(`{}`)}}},
		{Text: "That is all."},
	}}}}
	p, fake := agentProject(t, anyAnswer, map[string]string{"mirror": strings.Replace(mirror, "URL", proxy.URL+"/mcp", 1)}, script)
	s := p.serveHTTP(t, "--publish", "mirror", "--no-run-tools")
	served <- s.url
	b := bearer{t, s.url, "", plainClient(t, nil)}
	if status, body := b.call("relavium_mirror", `{}`); status != 200 || !strings.Contains(body, "That is all.") {
		t.Fatalf("the call = %d %s", status, body)
	}
	runs := p.runs(t)
	for _, r := range runs {
		if r.State != "completed" {
			t.Errorf("run %s is %s, want completed", r.ID, r.State)
		}
	}
	refused := 0
	for _, e := range fake.Entries() {
		if e.Event == "request" && strings.Contains(string(e.Body), "5 deep") {
			refused++
		}
	}
	if len(runs) != 5 || refused != 1 {
		t.Errorf("%d runs and %d refusals, want 5 and 1", len(runs), refused)
	}
}

const mirror = `schema_version: '1.0'
workflow:
  id: mirror
  version: '1.0.0'
  name: Mirror
  description: Calls itself.
  trigger: {type: mcp_call}
  agents:
    - id: looker
      provider: anthropic
      model: claude-sonnet-4-6
      system_prompt: 'You look.'
      max_tokens: 500
      mcp_servers:
        - {id: self, transport: http, url: 'URL', allow_local_endpoint: true}
  nodes:
    - {id: start, type: input}
    - {id: look, type: agent, agent_ref: looker, prompt_template: 'Who is there?'}
    - {id: result, type: output}
  edges: [{from: start, to: look}, {from: look, to: result}]
`
