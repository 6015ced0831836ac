package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/workflows"
)

// agentFunc answers agent nodes.
type agentFunc func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error)

func (f agentFunc) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	return f(ctx, call)
}

func echo(_ context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(call.Prompt)
	return engine.AgentResult{Output: bytes.TrimSpace(out.Bytes())}, err
}

const project = "p-test"

// lease is long enough that a replica on a busy machine is not cut off; what tests of a
// death have is shorter.
const lease = 15 * time.Second

// patience is how long a test waits for what must come. It is for a machine under load:
// nothing waits that long.
const patience = time.Minute

// open opens an engine on path that the test closes.
func open(t *testing.T, path string, change func(*engine.Options)) *engine.Engine {
	t.Helper()
	opt := engine.Options{
		Lease: lease, Path: path, Executor: true, Projects: []string{project}, Agent: agentFunc(echo),
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	if change != nil {
		change(&opt)
	}
	e, err := engine.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// parse wraps a fragment in the envelope of the format cases.
func parse(t *testing.T, fragment string) *workflows.Workflow {
	t.Helper()
	src := "schema_version: '1.0'\nworkflow:\n  id: heron-case\n" + indent(fragment)
	w, _, err := workflows.Parse("heron-case.relavium.yaml", []byte(src), workflows.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	return w
}

// indent moves a fragment below the workflow key; its leading tabs are Go's, not YAML's.
func indent(s string) string {
	lines := strings.Split(strings.Trim(s, "\n"), "\n")
	for i, l := range lines {
		lines[i] = "  " + strings.TrimLeft(l, "\t")
	}
	return strings.Join(lines, "\n") + "\n"
}

// request asks for a run of w with the given arguments.
func request(t *testing.T, w *workflows.Workflow, args string) engine.StartRequest {
	t.Helper()
	in, err := w.ResolveInputs(json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	return engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: project, Root: t.TempDir()}, Principal: engine.Local,
		Arguments: in, Source: "mcp", Client: "test",
	}
}

// finish runs w and returns all events up to the terminal one.
func finish(t *testing.T, e *engine.Engine, req engine.StartRequest) []engine.Event {
	t.Helper()
	started, err := e.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, e, started.Run)
}

func follow(t *testing.T, e *engine.Engine, run string) []engine.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := e.Attach(ctx, run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var out []engine.Event
	for {
		ev, err := a.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("Next after %d events: %v", len(out), err)
		}
		out = append(out, ev)
	}
}

func last(events []engine.Event) engine.Event { return events[len(events)-1] }

// brief lists events as "type node" for comparison.
func brief(events []engine.Event) string {
	var parts []string
	for _, ev := range events {
		parts = append(parts, strings.TrimSpace(ev.Type+" "+ev.Node))
	}
	return strings.Join(parts, ", ")
}

func TestPureRun(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	w := parse(t, `
		inputs: [{name: bird, type: string, required: true}]
		nodes:
		  - {id: in, type: input}
		  - {id: shout, type: transform, transform: '{ name: inputs.bird.toUpperCase(), z: 1, a: 2 }'}
		  - {id: out, type: output}
		edges: [{from: in, to: shout}, {from: shout, to: out}]`)
	events := finish(t, e, request(t, w, `{"bird":"tern"}`))
	want := "run:started, node:started in, node:completed in, node:started shout, node:completed shout, node:started out, node:completed out, run:completed"
	if got := brief(events); got != want {
		t.Errorf("events\n got %s\nwant %s", got, want)
	}
	if got, want := string(last(events).Outputs), `{"out":{"name":"TERN","z":1,"a":2}}`; got != want {
		t.Errorf("outputs = %s, want %s", got, want)
	}
	for i, ev := range events {
		if ev.N != int64(i) {
			t.Errorf("event %d has number %d", i, ev.N)
		}
	}
	stored, err := e.Events(t.Context(), events[0].Run, 0)
	if err != nil || len(stored) != len(events) {
		t.Errorf("Events = %d events, %v; want the %d that were delivered", len(stored), err, len(events))
	}
	r, err := e.Run(t.Context(), events[0].Run, engine.Local)
	if err != nil || r.State != engine.Completed || string(r.Outputs) != string(last(events).Outputs) {
		t.Errorf("Run = %+v, %v", r, err)
	}
}

func TestGateDecidedWhileTheCallWaits(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	w := parse(t, `
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go?'}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: out}]`)
	started, err := e.Start(t.Context(), request(t, w, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	a, err := e.Attach(t.Context(), started.Run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	gate := ""
	for gate == "" {
		ev, err := a.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == engine.RunPaused {
			gate = ev.GateIDs[0]
		}
	}
	decision := engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI, Comment: "fine"}
	if _, err := e.Decide(t.Context(), gate, decision); err != nil {
		t.Fatal(err)
	}
	events := follow(t, e, started.Run)
	want := "run:started, node:started in, node:completed in, node:started ask, human_gate:paused ask, run:paused, " +
		"human_gate:resumed ask, node:completed ask, node:started out, node:completed out, run:completed"
	if got := brief(events); got != want {
		t.Errorf("events\n got %s\nwant %s", got, want)
	}
	if got, want := string(last(events).Outputs), `{"out":{"decision":"approved","decidedBy":"local","comment":"fine"}}`; got != want {
		t.Errorf("outputs = %s, want %s", got, want)
	}
	if _, err := e.Decide(t.Context(), gate, decision); err != nil {
		t.Errorf("the same decision again: %v, want success", err)
	}
	decision.Decision = engine.Rejected
	if _, err := e.Decide(t.Context(), gate, decision); err == nil {
		t.Error("a contradicting decision succeeded")
	} else if _, ok := errors.AsType[*engine.DecidedError](err); !ok {
		t.Errorf("a contradicting decision: %v, want a DecidedError", err)
	}
	a.Close()
}

func TestAgentNodes(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	w := parse(t, `
		agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'}]
		max_parallel: 1
		nodes:
		  - {id: in, type: input}
		  - {id: split, type: parallel, parallel_of: [slow, quick]}
		  - {id: slow, type: agent, agent_ref: wader, prompt_template: 's'}
		  - {id: quick, type: agent, agent_ref: wader, prompt_template: 'q'}
		  - {id: join, type: merge, merge_strategy: concat}
		  - {id: out, type: output}
		edges: [{from: in, to: split}, {from: slow, to: join}, {from: quick, to: join}, {from: join, to: out}]`)
	events := finish(t, e, request(t, w, `{}`))
	if got, want := string(last(events).Outputs), `{"out":["s","q"]}`; got != want {
		t.Errorf("outputs = %s, want %s (%s)", got, want, brief(events))
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
