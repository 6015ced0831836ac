//go:build unix

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// toolUser is a workflow whose one agent runs a command, reads what it left, runs
// another and says that it is done.
const toolUser = `schema_version: '1.0'
workflow:
  id: tool-user
  version: '1.0.0'
  name: Tool user
  description: One agent with tools.
  trigger: {type: mcp_call}
  tools: {allowedCommands: ['sh note.sh one', 'sh note.sh two']}
  agents:
    - {id: worker, provider: anthropic, model: claude-sonnet-4-6, system_prompt: 'You note things.', tools: [run_command, read_file], max_tokens: 500}
  nodes:
    - {id: start, type: input}
    - {id: work, type: agent, agent_ref: worker, prompt_template: 'Note one, look, note two.'}
    - {id: result, type: output}
  edges: [{from: start, to: work}, {from: work, to: result}]
`

// note writes that it began, waits while it is held, and writes that it ended.
const note = `echo "begin $1" >> notes.txt
while [ -e "hold-$1" ]; do sleep 0.05; done
echo "end $1" >> notes.txt
echo "noted $1"
`

func toolScript() fakemodel.Script {
	command := func(word string) fakemodel.Call {
		return fakemodel.Call{Name: "run_command", Arguments: json.RawMessage(fmt.Sprintf(`{"command":"sh","args":["note.sh",%q]}`, word))}
	}
	return fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Text: "I note one.", Calls: []fakemodel.Call{command("one")}},
		{Calls: []fakemodel.Call{{Name: "read_file", Arguments: json.RawMessage(`{"path":"notes.txt"}`)}}},
		{Calls: []fakemodel.Call{command("two")}},
		{Text: "Both are noted."},
	}}}}
}

// agentProject is a project whose agents talk to a stand-in that outlives every kill.
func agentProject(t *testing.T, settings string, workflows map[string]string, script fakemodel.Script) (project, *fakemodel.Server) {
	t.Helper()
	fake := fakemodel.New(fakemodel.Options{Script: script, Key: "stand-in-key"})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	in := install(t, fmt.Sprintf("%s\n[providers.anthropic]\nbase_url = %q\nallow_local_endpoint = true\n", settings, fakemodel.URL(server.URL, "anthropic")))
	in.env = []string{"RELAVIUM_ANTHROPIC_API_KEY=stand-in-key"}
	return in.project(t, "agents", workflows), fake
}

// killAt runs the command and kills it as soon as an event of its run satisfies at,
// or, if at is nil, as soon as ready returns. It returns the run's id.
func (p project) killAt(t *testing.T, at func(event map[string]any) bool, ready func(ctx context.Context) error, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := p.command(ctx, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var diag strings.Builder
	cmd.Stderr = &diag
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := make(chan error, 1)
	if ready != nil {
		go func() {
			err := ready(ctx)
			_ = cmd.Process.Kill()
			killed <- err
		}()
	}
	id, hit := "", at == nil
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var event map[string]any
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		id, _ = event["runId"].(string)
		if at != nil && at(event) {
			hit = true
			_ = cmd.Process.Kill()
			break
		}
	}
	_ = cmd.Wait()
	if ready != nil {
		if err := <-killed; err != nil {
			t.Fatalf("what was to be waited for did not come: %v\n%s", err, diag.String())
		}
	}
	if !hit || id == "" {
		t.Fatalf("the process ended by itself: %s", diag.String())
	}
	return id
}

// notes counts the lines that the commands wrote.
func notes(t *testing.T, p project) map[string]int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(p.dir, "notes.txt"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	out := make(map[string]int)
	for line := range strings.Lines(string(raw)) {
		out[strings.TrimSpace(line)]++
	}
	return out
}

// answered counts the answers that the stand-in gave whole, by turn.
func answered(fake *fakemodel.Server) map[int]int {
	out := make(map[int]int)
	for _, e := range fake.Entries() {
		if e.Event == "end" && e.Outcome == "done" {
			out[e.Turn]++
		}
	}
	return out
}

// TestKillToolUser kills the process after every recorded step of an agent that uses
// tools. The next process goes on: every turn and every command happens once.
func TestKillToolUser(t *testing.T) {
	t.Parallel()
	const settings = "[gates]\naccept = [\"cli\", \"cli-noninteractive\"]"
	for step := range 7 { // turn, command, turn, read, turn, command, turn
		t.Run(fmt.Sprint("after step ", step), func(t *testing.T) {
			t.Parallel()
			p, fake := agentProject(t, settings, map[string]string{"tool-user": toolUser}, toolScript())
			write(t, filepath.Join(p.dir, "note.sh"), note)
			seen := -1
			run := p.killAt(t, func(event map[string]any) bool {
				if event["type"] == "cost:updated" || event["type"] == "agent:tool_result" {
					seen++
				}
				return seen == step
			}, nil, "run", "tool-user", "--json")
			out, stderr, code := p.cli(t, "run", "--resume", run)
			done := notes(t, p)
			// A step is told once it is recorded, and on a busy machine the kill comes some
			// steps later: a command may run by then, or be about to, and a person is asked
			// of it alone.
			if code == 3 {
				command := ""
				for _, word := range []string{"one", "two"} {
					if strings.Contains(stderr, fmt.Sprintf(`"note.sh",%q`, word)) {
						command = word
					}
				}
				if command == "" {
					t.Fatalf("a gate does not name the command that it asks of: %s", stderr)
				}
				p.ok(t, "gate", "answer", run, "--value", "repeat", "--yes")
				out, stderr, code = p.cli(t, "run", "--resume", run)
				done = notes(t, p)
				for _, word := range []string{"begin ", "end "} {
					if done[word+command] == 2 {
						done[word+command] = 1
					}
				}
			}
			if got, want := strings.TrimSpace(out), "Both are noted."; got != want || code != 0 {
				t.Errorf("result = %q, exit %d, want %q: %s", got, code, want, stderr)
			}
			if want := map[string]int{"begin one": 1, "end one": 1, "begin two": 1, "end two": 1}; !maps.Equal(done, want) {
				t.Errorf("commands wrote %v, want %v", done, want)
			}
			twice := 0
			for turn, n := range answered(fake) {
				switch {
				case n == 1:
				case n == 2 && turn >= firstOpen(step):
					twice++
				default:
					t.Errorf("turn %d was answered %d times", turn, n)
				}
			}
			if twice > 1 {
				t.Errorf("%d turns were answered twice, want at most the one under way", twice)
			}
		})
	}
}

// firstOpen is the first model turn that may be under way once a step is recorded.
func firstOpen(step int) int { return step/2 + 1 }

// TestKillInFlight kills the process while a command runs. Nobody knows what came of
// it, so a person is asked, and what the person says is done.
func TestKillInFlight(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]map[string]int{
		"repeat": {"begin one": 2, "end one": 1, "begin two": 1, "end two": 1},
		"skip":   {"begin one": 1, "begin two": 1, "end two": 1},
		"fail":   {"begin one": 1},
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			p, _ := agentProject(t, "[gates]\naccept = [\"cli\", \"cli-noninteractive\"]", map[string]string{"tool-user": toolUser}, toolScript())
			write(t, filepath.Join(p.dir, "note.sh"), note)
			hold := filepath.Join(p.dir, "hold-one")
			write(t, hold, "")
			run := p.killAt(t, nil, func(ctx context.Context) error { return p.noted(ctx, "begin one") }, "run", "tool-user", "--json")
			if _, stderr, code := p.cli(t, "run", "--resume", run); code != 3 || !strings.Contains(stderr, "run_command") {
				t.Fatalf("resume: exit %d, want 3 and a word of the command: %s", code, stderr)
			}
			if err := os.Remove(hold); err != nil {
				t.Fatal(err)
			}
			listed := p.ok(t, "gate", "list", "--json")
			if !strings.Contains(listed, `"outcome_unknown"`) || !strings.Contains(listed, "note.sh") {
				t.Errorf("gate list = %s, want the reason and the arguments", listed)
			}
			if out, stderr, code := p.cli(t, "gate", "answer", run, "--value", "perhaps", "--yes"); code != 2 || !strings.Contains(stderr, "repeat|skip|fail") {
				t.Errorf("an answer that is none of the three: exit %d, want 2 and the three: %s%s", code, out, stderr)
			}
			p.ok(t, "gate", "answer", run, "--value", answer, "--yes")
			out, stderr, code := p.cli(t, "run", "--resume", run)
			switch {
			case answer == "fail" && (code != 1 || !strings.Contains(stderr, "tool_failed")):
				t.Errorf("exit %d, %s; want 1 and tool_failed", code, stderr)
			case answer != "fail" && (code != 0 || strings.TrimSpace(out) != "Both are noted."):
				t.Errorf("exit %d, %q, %s; want the result", code, out, stderr)
			}
			if got := notes(t, p); !maps.Equal(got, want) {
				t.Errorf("commands wrote %v, want %v", got, want)
			}
		})
	}
}

// noted returns once a line stands in notes.txt.
func (p project) noted(ctx context.Context, line string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		raw, err := os.ReadFile(filepath.Join(p.dir, "notes.txt"))
		if err == nil && slices.Contains(strings.Split(string(raw), "\n"), line) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
