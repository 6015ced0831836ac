package containers

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// asking is a workflow with a gate between two steps.
const asking = `schema_version: '1.0'
workflow:
  id: asking
  version: '1.0.0'
  name: Asking
  description: Asks a person in mid-run.
  trigger: {type: mcp_call}
  inputs: [{name: label, type: string, required: true}]
  nodes:
    - {id: start, type: input}
    - {id: before, type: transform, transform: '"before " + inputs.label'}
    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go on with {{ inputs.label }}?'}
    - {id: behind, type: transform, transform: 'run.outputs["before"] + ", " + run.outputs["ask"].decision'}
    - {id: result, type: output}
  edges: [{from: start, to: before}, {from: before, to: ask}, {from: ask, to: behind}, {from: behind, to: result}]
`

// answerable lets a test answer gates from inside a container, and calls be many.
const answerable = `[gates]
accept = ["elicitation", "cli", "cli-noninteractive"]
min_human_ms = 0
[serve.limits]
calls_per_minute = 0
concurrent = 0
`

// TestContainersEmbedded runs the image with its embedded store: as nobody, with a root
// that cannot be written, with a health that the engine sees. Killed in mid-run and
// started again it goes on with what the volume has, and it stops when it is told to.
func TestContainersEmbedded(t *testing.T) {
	needEngine(t)
	t.Parallel()
	front := newNet(t)
	r := startReplica(t, newSite(t, answerable, map[string]string{"asking": asking}), front, volume(t))
	token := r.token(t)

	c := &call{workflow: "asking", key: "k", input: "soup", token: token}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.make(ctx, t, r) }()
	until(t, patience, "the gate is open", func() bool { return len(r.gates(t)) == 1 })
	run := r.gates(t)[0].Run

	kill(t, r.id)
	docker(t, "start", r.id)
	r.ready(t)
	until(t, patience, "the engine holds it for healthy", func() bool { return r.state(t).Health.Status == "healthy" })
	r.ok(t, "gate", "approve", run, "--yes")
	if err := <-done; err != nil || c.failed || !strings.Contains(c.result, "before soup, approved") || c.attempts < 2 {
		t.Errorf("the call's result = %q (error %t, attempts %d), %v; want before soup, approved at the second attempt or later", c.result, c.failed, c.attempts, err)
	}
	if runs := r.runs(t); len(runs) != 1 || runs[0].State != "completed" {
		t.Errorf("runs = %+v, want one that is completed", runs)
	}

	if out := docker(t, "top", r.id, "-o", "pid,uid"); !strings.Contains(out, "65532") || strings.Contains(out, " 0\n") {
		t.Errorf("the processes in the container and their users are\n%s\nwant 65532 alone", out)
	}
	began := time.Now()
	docker(t, "stop", r.id)
	if took, s := time.Since(began), r.state(t); took > 10*time.Second || s.ExitCode != 0 || s.OOMKilled {
		t.Errorf("a stop took %v and ended with %+v, want 10 s at most and exit code 0", took, s)
	}
}

// A containerState is what the engine knows of a container.
type containerState struct {
	Status    string
	ExitCode  int
	OOMKilled bool
	Health    struct{ Status string }
}

func (r replica) state(t *testing.T) containerState {
	t.Helper()
	var s containerState
	if err := json.Unmarshal([]byte(docker(t, "inspect", "--format", "{{json .State}}", r.id)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestContainersPostgres starts the stand-in for the database and asks it something.
func TestContainersPostgres(t *testing.T) {
	needEngine(t)
	t.Parallel()
	db := startPostgres(t, newNet(t))
	if out := psql(t, db, "select 6 * 7"); out != "42" {
		t.Errorf("6 * 7 = %s, want 42", out)
	}
}

// psql asks the database inside its container.
func psql(t *testing.T, db, query string) string {
	t.Helper()
	return strings.TrimSpace(docker(t, "exec", db, "psql", "-U", "relavium", "-At", "-c", query))
}
