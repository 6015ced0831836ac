//go:build unix

package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// TestRunFolder has an agent read on in a result that was too large to show, as the
// result itself says, and write in its run's own folder, which ends with the run.
func TestRunFolder(t *testing.T) {
	t.Parallel()
	call := func(name, arguments string) fakemodel.Call {
		return fakemodel.Call{Name: name, Arguments: json.RawMessage(arguments)}
	}
	const hint = `read_file {"path":"run:spill/work-1-1.txt","startByte":`
	p, fake := agentProject(t, "", map[string]string{
		"tool-user": strings.NewReplacer("[run_command, read_file]", "[run_command, read_file, write_file]", "sh note.sh one", "sh long.sh").Replace(toolUser),
	}, fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Calls: []fakemodel.Call{call("run_command", `{"command":"sh","args":["long.sh"]}`)}},
		{Calls: []fakemodel.Call{
			call("read_file", `{"path":"run:spill/work-1-1.txt","startByte":30000,"byteCount":9000}`),
			call("write_file", `{"path":"run:mine.txt","content":"kept"}`),
		}},
		{Calls: []fakemodel.Call{call("read_file", `{"path":"run:mine.txt"}`)}},
		{Text: "Both are read."},
	}}}})
	write(t, filepath.Join(p.dir, "long.sh"), "i=0\nwhile [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); done\n")
	out, stderr, code := p.cli(t, "run", "tool-user")
	if got, want := strings.TrimSpace(out), "Both are read."; got != want || code != 0 {
		t.Fatalf("run = %q, exit %d, want %q: %s", got, code, want, stderr)
	}
	shown := map[int]string{}
	for _, e := range fake.Entries() {
		if e.Event == "request" {
			shown[e.Turn] = strings.ReplaceAll(string(e.Body), `\"`, `"`)
		}
	}
	for turn, want := range map[int]string{1: hint, 2: `line 3000`, 3: `kept`} {
		if !strings.Contains(shown[turn], want) {
			t.Errorf("turn %d is not shown %q", turn, want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(p.home, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("ReadDir(tmp) = %v, %v, want nothing once the run ended", left, err)
	}
}
