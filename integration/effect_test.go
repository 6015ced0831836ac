//go:build unix

package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// L10: a client cancels a call that waits after its agent has counted something. It was
// counted once, and the record of the run says so, who ended it, and what had been done;
// so does what a model is told that asks for it.
func TestCancelAfterEffect(t *testing.T) {
	t.Parallel()
	workflow := strings.NewReplacer(
		"    - {id: result, type: output}\n", "    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Proceed?'}\n    - {id: result, type: output}\n",
		"{from: work, to: result}", "{from: work, to: ask}, {from: ask, to: result}",
	).Replace(toolUser)
	p, _ := agentProject(t, anyAnswer, map[string]string{"tool-user": workflow}, toolScript())
	write(t, filepath.Join(p.dir, "note.sh"), note)
	s := p.serve(t, "--publish", "tool-user")
	s.initialize()
	s.request("1", "tools/call", `{"name":"relavium_tool-user","arguments":{}}`)
	id := s.gate(0)
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	p.await(t, id, "cancelled")
	if got := notes(t, p); got["end one"] != 1 || got["end two"] != 1 {
		t.Errorf("notes = %v, want each once", got)
	}
	m := s.ask("2", "tools/call", fmt.Sprintf(`{"name":"relavium_run_status","arguments":{"run":%q}}`, id))
	for _, want := range []string{`"status":"cancelled"`, `{"id":"work","type":"agent","state":"completed"}`} {
		if !strings.Contains(string(m.Result), want) {
			t.Errorf("relavium_run_status = %s, want %s in it", m.Result, want)
		}
	}
	if events := p.ok(t, "runs", "events", id); strings.Count(events, "agent:tool_result") != 3 || !strings.Contains(events, "run:cancelled") {
		t.Errorf("events = %s, want three tool results and the cancel", events)
	}
	if log := p.ok(t, "audit", "--json"); !strings.Contains(log, `"run.cancel"`) {
		t.Errorf("audit = %s, want the cancel", log)
	}
}
