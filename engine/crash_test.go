package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/workflows"
)

// The test binary runs itself as the process that is killed.
const (
	childEnv = "RELAVIUM_ENGINE_CHILD" // kill point, or "" of a child that may finish
	childDir = "RELAVIUM_ENGINE_DIR"
)

func TestMain(m *testing.M) {
	if point, ok := os.LookupEnv(childEnv); ok {
		ctx := context.Background() //nolint:forbidigo // The child's main.
		run := child
		if at, ok := strings.CutPrefix(point, "effects "); ok {
			point, run = at, effectChild
		}
		if err := run(ctx, os.Getenv(childDir), point); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// crashWorkflow has effects before, beside and after a gate.
const crashWorkflow = `schema_version: '1.0'
workflow:
  id: crash
  agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'}]
  nodes:
    - {id: in, type: input}
    - {id: a, type: agent, agent_ref: wader, prompt_template: 'a'}
    - {id: b, type: agent, agent_ref: wader, prompt_template: 'b of {{ run.outputs["a"] }}'}
    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go on with {{ run.outputs["a"] }}?'}
    - {id: c, type: agent, agent_ref: wader, prompt_template: 'c {{ run.outputs["ask"].decision }}'}
    - {id: join, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges:
    - {from: in, to: a}
    - {from: a, to: b}
    - {from: a, to: ask}
    - {from: ask, to: c}
    - {from: b, to: join}
    - {from: c, to: join}
    - {from: join, to: out}
`

const crashOutputs = `{"out":["b of a","c approved"]}`

// journal appends what effects did, one line each, and dies where it is told to.
type journal struct {
	file  *os.File
	point string
}

func (j *journal) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	j.die("before:" + call.Node.ID)
	if err := j.line("begin", call); err != nil {
		return engine.AgentResult{}, err
	}
	j.die("inside:" + call.Node.ID)
	if err := j.line("end", call); err != nil {
		return engine.AgentResult{}, err
	}
	return echo(ctx, call)
}

func (j *journal) line(word string, call engine.AgentCall) error {
	_, err := fmt.Fprintf(j.file, "%s %s/%s/%d\n", word, call.Run, call.Node.ID, call.Attempt)
	return err
}

// die ends the process as kill -9 does.
func (j *journal) die(point string) {
	if j.point != point {
		return
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot kill myself:", err)
	}
	select {}
}

// child runs the crash workflow to its end, or to the point where it dies. A run
// that a child before it began is the same run, by its key.
func child(ctx context.Context, dir, point string) error {
	file, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	j := &journal{file: file, point: point}
	place, err := durabletest.In(ctx, dir)
	if err != nil {
		return err
	}
	e, err := engine.Open(ctx, engine.Options{
		Lease: lease, Path: place, Executor: true, Projects: []string{project}, Agent: j, Logger: discard(),
	})
	if err != nil {
		return err
	}
	w, _, err := workflows.Parse("crash.relavium.yaml", []byte(crashWorkflow), workflows.Options{})
	if err != nil {
		return err
	}
	args, err := w.ResolveInputs(nil)
	if err != nil {
		return err
	}
	n := 1
	if point == "storm" {
		n = 6
	}
	done := make(chan error, n)
	for i := range n {
		go func() {
			done <- oneRun(ctx, e, j, engine.StartRequest{
				Workflow: w, Project: engine.Project{Key: project, Root: dir}, Principal: engine.Local, Arguments: args,
				Source: "mcp", IdempotencyKey: fmt.Sprintf("key-%d", i),
			})
		}()
	}
	for range n {
		err = errors.Join(err, <-done)
	}
	return errors.Join(err, e.Close(ctx))
}

func oneRun(ctx context.Context, e *engine.Engine, j *journal, req engine.StartRequest) error {
	started, err := e.Start(ctx, req)
	if err != nil {
		return err
	}
	a, err := e.Attach(ctx, started.Run, engine.Local)
	if err != nil {
		return err
	}
	for {
		ev, err := a.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		j.die("event:" + strings.TrimSpace(ev.Type+" "+ev.Node))
		if ev.Type == engine.GatePaused {
			_, err := e.Decide(ctx, ev.Gate, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaConsole})
			if err != nil {
				return err
			}
			j.die("decided")
		}
		if ev.Terminal() {
			_, err := fmt.Fprintf(os.Stderr, "%s %s %s\n", started.Run, ev.Type, ev.Outputs)
			if err != nil {
				return err
			}
		}
	}
}

// spawn runs a child and returns what it said and whether it was killed.
func spawn(ctx context.Context, dir, point string) (out string, killed bool, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", false, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+point, childDir+"="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == -1 {
		return stderr.String(), true, nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stderr.String(), false, err
}

// TestKillMatrix kills the process before, inside and after every effect, at gate
// opened, gate decided, segment end and run end. The next process ends the run
// with the same outcome, and every effect that completed is done once.
func TestKillMatrix(t *testing.T) {
	t.Parallel()
	points := []string{
		"before:a", "inside:a", "event:node:completed a",
		"before:b", "inside:b", "event:node:completed b",
		"before:c", "inside:c", "event:node:completed c",
		"event:run:started", "event:human_gate:paused ask", "decided", "event:human_gate:resumed ask",
		"event:node:completed out", "event:run:completed",
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			if out, killed, err := spawn(ctx, dir, point); err != nil || !killed {
				t.Fatalf("first process: killed=%v err=%v out=%s", killed, err, out)
			}
			want := wantEffects(t, dir)
			out, killed, err := spawn(ctx, dir, "")
			if err != nil || killed {
				t.Fatalf("second process: killed=%v err=%v out=%s", killed, err, out)
			}
			if !strings.HasSuffix(strings.TrimSpace(out), engine.RunCompleted+" "+crashOutputs) {
				t.Errorf("outcome %q, want %s", out, crashOutputs)
			}
			if diff := cmp.Diff(want, ends(t, dir)); diff != "" {
				t.Errorf("completed effects (-want +got):\n%s", diff)
			}
			checkStored(t, dir, 1)
		})
	}
}

// TestKillStorm kills the process again and again at times of chance while six
// runs go on, and lets the last one finish: nothing is lost or stored twice.
func TestKillStorm(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("20 processes")
	}
	dir := t.TempDir()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rng.IntN(400))*time.Millisecond)
		_, _, err := spawn(ctx, dir, "storm")
		cancel()
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		durabletest.Bury(t, durabletest.Place(t, dir))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	out, killed, err := spawn(ctx, dir, "storm")
	if err != nil || killed {
		t.Fatalf("last process: killed=%v err=%v", killed, err)
	}
	if n := strings.Count(out, engine.RunCompleted+" "+crashOutputs); n != 6 {
		t.Errorf("%d of 6 runs completed rightly:\n%s", n, out)
	}
	checkStored(t, dir, 6)
}

// ends counts the effects that ran to their end, by node.
func ends(t *testing.T, dir string) map[string]int {
	t.Helper()
	out := make(map[string]int)
	for _, line := range effects(t, dir) {
		if end, ok := strings.CutPrefix(line, "end "); ok {
			_, node, _ := strings.Cut(end, "/")
			out[node]++
		}
	}
	return out
}

// wantEffects is what a right recovery leads to from what a killed process left: an
// effect whose completion is recorded is not done again, every other one is done.
func wantEffects(t *testing.T, dir string) map[string]int {
	t.Helper()
	place := durabletest.Place(t, dir)
	durabletest.Bury(t, place)
	out := make(map[string]int)
	if _, err := os.Stat(filepath.Join(dir, "effects")); err == nil {
		out = ends(t, dir)
	}
	for _, node := range []string{"a", "b", "c"} {
		var recorded int
		if err := durabletest.Open(t, place).QueryRowContext(t.Context(),
			`select count(*) from operation_outputs where function_name=? and output like '{"s":"done"%'`, node).Scan(&recorded); err != nil {
			t.Fatal(err)
		}
		if recorded == 0 {
			out[node+"/1"]++
		}
	}
	return out
}

func effects(t *testing.T, dir string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "effects"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for s := bufio.NewScanner(bytes.NewReader(raw)); s.Scan(); {
		out = append(out, s.Text())
	}
	return out
}

// checkStored reads the store as another process does: every run ended, its events
// are numbered without gap, and what an effect or gate says is said once.
func checkStored(t *testing.T, dir string, want int) {
	t.Helper()
	e := open(t, durabletest.Place(t, dir), func(o *engine.Options) { o.Executor = false })
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(runs) != want {
		t.Fatalf("Runs = %d runs, %v, want %d", len(runs), err, want)
	}
	for _, r := range runs {
		if r.State != engine.Completed || string(r.Outputs) != crashOutputs {
			t.Errorf("run %s is %s with %s", r.ID, r.State, r.Outputs)
		}
		events, err := e.Events(t.Context(), r.ID, 0)
		if err != nil {
			t.Fatal(err)
		}
		said := make(map[string]int)
		for i, ev := range events {
			if ev.N != int64(i) {
				t.Errorf("run %s: event %d has number %d", r.ID, i, ev.N)
			}
			if slices.Contains([]string{"a", "b", "c", "ask"}, ev.Node) || ev.Terminal() {
				said[ev.Type+" "+ev.Node]++
			}
		}
		for what, n := range said {
			if n != 1 {
				raw, _ := json.Marshal(events)
				t.Errorf("run %s: %s was said %d times: %s", r.ID, what, n, raw)
			}
		}
	}
}
