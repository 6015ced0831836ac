package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCodexToken lets Codex, a client of 2025-06-18, call over HTTP with a token:
// a plain workflow, and one that waits for a person. It is offered the question
// and, as nobody sits before it, gives it back; the person decides elsewhere.
func TestCodexToken(t *testing.T) {
	t.Parallel()
	program := filepath.Join(agents(t), filepath.FromSlash("codex-linux-x64/vendor/x86_64-unknown-linux-musl/codex/codex"))
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil || string(out) != "codex-cli 0.104.0\n" {
		t.Fatalf("codex --version = %q, %v, want 0.104.0", out, err)
	}
	p := scenarioProject(t)
	token := p.newToken(t, "codex", "relavium:run")
	server := p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token")
	wire := tap(t, server.url)

	greeting := startModel(t, "relavium_greet", `{"name":"Ada","times":2}`)
	answer := <-p.codex(t, program, greeting, wire.url, token)
	if !strings.Contains(answer.text, "Hello Ada") || len(answer.calls) != 1 {
		t.Errorf("answer after relavium_greet = %+v, want one call and the greeting", answer)
	}
	for _, name := range []string{"greet", "breaks", "deploy", "steps", "run_wait"} {
		if tool := "mcp__flows__relavium_" + name; !slices.Contains(greeting.tools(), tool) {
			t.Errorf("tools offered to the model = %q, want %s among them", greeting.tools(), tool)
		}
	}
	if sent := wire.sent(); !strings.Contains(sent, `"name":"relavium_greet"`) {
		t.Errorf("it sent %s, want the call", sent)
	}
	checkRevision(t, wire.sent(), "2025-06-18")

	failing := startModel(t, "relavium_breaks", `{}`)
	if answer := <-p.codex(t, program, failing, wire.url, token); !strings.Contains(answer.text, "sandbox_error") {
		t.Errorf("answer after relavium_breaks = %+v, want its error code in it", answer)
	}

	deploying := startModel(t, "relavium_deploy", `{"version":"1.4.2"}`)
	waiting := p.codex(t, program, deploying, wire.url, token)
	p.approve(t, p.awaitWaiting(t))
	if answer := <-waiting; !strings.Contains(answer.text, "approved") || !strings.Contains(answer.text, "1.4.2") {
		t.Errorf("answer after relavium_deploy = %+v, want the approved version in it", answer)
	}
	if sent := wire.sent(); !strings.Contains(sent, `"elicitation":`) || !strings.Contains(sent, `"action":"cancel"`) {
		t.Errorf("it sent %s, want that it declares elicitation and gives the question back", sent)
	}
	if runs := p.runs(t); len(runs) != 3 {
		t.Errorf("%d runs, want 3: %+v", len(runs), runs)
	}
	p.ownedBy(t, "token:codex")
	if strings.Contains(server.diag.String(), token) {
		t.Error("the log holds the token")
	}

	// One letter off, it is offered nothing and starts nothing.
	other := byte('A')
	if token[len(token)-1] == other {
		other = 'B'
	}
	wrong := startModel(t, "relavium_greet", `{"name":"Ada"}`)
	answer = <-p.codex(t, program, wrong, wire.url, token[:len(token)-1]+string(other))
	if len(answer.calls) != 0 || strings.Contains(answer.text, "Hello") || slices.ContainsFunc(wrong.tools(), isFlow) {
		t.Errorf("with a wrong token it got %+v and offered %q, want none of the server's tools", answer, wrong.tools())
	}
	if runs := p.runs(t); len(runs) != 3 {
		t.Errorf("%d runs after a call with a wrong token, want 3", len(runs))
	}
}

func isFlow(tool string) bool { return strings.HasPrefix(tool, "mcp__flows__relavium_") }

// A codexAnswer is what one prompt came to: the tools that were called and the
// last message.
type codexAnswer struct {
	calls []string
	text  string
}

// codex runs one prompt to its end; the answer arrives on the channel, which is
// closed without one where the program fails.
func (p project) codex(t *testing.T, program string, model *fakeModel, url, token string) <-chan codexAnswer {
	t.Helper()
	home := t.TempDir()
	write(t, filepath.Join(home, "config.toml"), fmt.Sprintf(`model = "gpt-5"
model_provider = "fake"
approval_policy = "never"
sandbox_mode = "read-only"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "%s/v1"
wire_api = "responses"
env_key = "FAKE_KEY"
[mcp_servers.flows]
url = "%s"
bearer_token_env_var = "FLOWS_TOKEN"
[analytics]
enabled = false
`, model.server.URL, url))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	cmd := exec.CommandContext(ctx, program, "exec", "--json", "--skip-git-repo-check", "Call the tool.")
	cmd.Dir = p.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CODEX_HOME=" + home, "LANG=C.UTF-8", "CI=1",
		"FAKE_KEY=none", "FLOWS_TOKEN=" + token,
	}
	cmd.WaitDelay = 5 * time.Second
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	answers, done := make(chan codexAnswer, 1), make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		defer close(answers)
		if err := cmd.Run(); err != nil {
			t.Errorf("codex: %v\n%s\n%s", err, &out, &diag)
			return
		}
		var answer codexAnswer
		lines := bufio.NewScanner(&out)
		for lines.Scan() {
			var event struct {
				Type string
				Item struct{ Type, Tool, Text string }
			}
			if err := json.Unmarshal(lines.Bytes(), &event); err != nil || event.Type != "item.completed" {
				continue
			}
			switch event.Item.Type {
			case "mcp_tool_call":
				answer.calls = append(answer.calls, event.Item.Tool)
			case "agent_message":
				answer.text = event.Item.Text
			}
		}
		answers <- answer
	}()
	return answers
}
