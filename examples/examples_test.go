package examples_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/builtin"
	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/engine/expr"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
	"github.com/relavium/relavium-serve/workflows"
)

const project = "examples"

var update = flag.Bool("update", false, "write the outputs that the runs gave")

func TestMain(m *testing.M) {
	if child.Supervising() {
		os.Exit(child.Supervise()) //nolint:forbidigo // TestMain is this package's main
	}
	if slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, npmServer) }) {
		if err := serveFiles(os.Args, os.Stdin, os.Stdout); err != nil { //nolint:forbidigo // this process is a stdio server
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// approve is how the test answers the gates of the samples.
func approve() engine.Decision {
	return engine.Decision{Decision: "approved", Comment: "Read and approved.", By: "examples", Via: "cli"}
}

func load(t *testing.T) []workflows.Loaded {
	t.Helper()
	files, err := filepath.Glob("workflows/*.relavium.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 9 {
		t.Fatalf("%d example workflows, want at least 9", len(files))
	}
	var all []workflows.Loaded
	for _, file := range files {
		loaded, warnings, err := workflows.LoadFile(file, workflows.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(warnings) > 0 {
			t.Errorf("%s: warnings %v, want none", file, warnings)
		}
		all = append(all, loaded)
	}
	return all
}

// TestFiles holds the examples to what a reader may expect of one.
func TestFiles(t *testing.T) {
	t.Parallel()
	for _, loaded := range load(t) {
		w := loaded.Workflow
		if want := w.ID + ".relavium.yaml"; filepath.Base(loaded.Path) != want {
			t.Errorf("%s: the file of workflow %q is not named %s", loaded.Path, w.ID, want)
		}
		if w.Name == "" || w.Description == "" || len(w.Tags) == 0 || w.Trigger.Type != "mcp_call" {
			t.Errorf("%s: name, description, tags or the trigger mcp_call is missing", w.ID)
		}
		for _, in := range w.Inputs {
			if in.Description == "" {
				t.Errorf("%s: input %q has no description", w.ID, in.Name)
			}
		}
		for _, source := range expressions(w) {
			if err := expr.Compile(source); err != nil {
				t.Errorf("%s: %v:\n%s", w.ID, err, source)
			}
		}
	}
}

func expressions(w *workflows.Workflow) []string {
	var all []string
	for _, n := range w.Nodes {
		switch spec := n.Spec.(type) {
		case workflows.ConditionNode:
			all = append(all, spec.Expression)
		case workflows.TransformNode:
			all = append(all, spec.Expression)
		case workflows.MergeNode:
			if spec.Strategy == "custom" {
				all = append(all, spec.Expression)
			}
		case workflows.InputNode, workflows.AgentNode, workflows.GateNode, workflows.ParallelNode, workflows.OutputNode:
		}
	}
	for _, e := range w.Edges {
		if e.Condition != "" {
			all = append(all, e.Condition)
		}
	}
	return all
}

// TestRun runs every example with the input beside it, approves its gates, and
// compares the outputs with those beside it.
func TestRun(t *testing.T) {
	t.Parallel()
	e := open(t)
	for _, loaded := range load(t) {
		id := loaded.Workflow.ID
		input, err := os.ReadFile(filepath.Join("workflows", id+".input.json"))
		if err != nil {
			t.Fatal(err)
		}
		last := execute(t, e, loaded, input, approve())
		if last.Type != engine.RunCompleted {
			t.Errorf("%s ended with %s %v, want %s", id, last.Type, last.Error, engine.RunCompleted)
			continue
		}
		compare(t, filepath.Join("workflows", id+".output.json"), last.Outputs)
	}
}

// TestBranches takes the ways that the samples do not.
func TestBranches(t *testing.T) {
	t.Parallel()
	reject := engine.Decision{Decision: "rejected", Comment: "Not on a Friday.", By: "examples", Via: "cli"}
	e, all := open(t), make(map[string]workflows.Loaded)
	for _, loaded := range load(t) {
		all[loaded.Workflow.ID] = loaded
	}
	for _, tt := range []struct {
		id, input string
		decision  engine.Decision
		want      string // part of the outputs
	}{
		{"release-notes", `{"version":"1.0.1"}`, approve(), `"## 1.0.1\n\nNo changes that users would notice.\n"`},
		{"release-notes", `{"version":"1.0.1","commits":"docs: say how\nchore: tidy"}`, approve(), `### Documentation\n\n- say how\n"`},
		{"incident-triage", `{"title":"Orders are gone","service":"orders","users_affected_percent":1,"data_loss":true}`, approve(), `"severity":"critical","action":"page"`},
		{"incident-triage", `{"title":"A broken icon","service":"shop","users_affected_percent":20,"workaround":"none needed"}`, approve(), `"severity":"minor","action":"ticket"`},
		{"fan-out-report", `{"log":"nothing of use"}`, approve(), `"latency":{"p50_ms":null,"p95_ms":null,"slow":0},"unreadable_lines":1`},
		{"deploy", `{"version":"1.4.0"}`, reject, `"go":true,"version":"1.4.0","environment":"staging","approval":"not needed"`},
		{"deploy", `{"version":"1.4.0","environment":"production"}`, reject, `"approval":"rejected","comment":"Not on a Friday.","steps":[]`},
		{"invoice-check", `{"number":"7","lines":"Desk; 10; 900","claimed_net":9000,"claimed_total":10710}`, approve(), `"verdict":"review"`},
		{"invoice-check", `{"number":"7","lines":"Desk; 1; 900\nno price","claimed_net":900,"claimed_total":1072}`, approve(), `"problems":["cannot read line \"no price\"","total is 1072.00, should be 1071.00"]`},
		{"pr-risk-score", `{"diff":"--- a/README.md\n+++ b/README.md\n+A line."}`, approve(), `"score":0,"review":"one reviewer","ask":[],"reasons":[]`},
	} {
		last := execute(t, e, all[tt.id], json.RawMessage(tt.input), tt.decision)
		if last.Type != engine.RunCompleted || !strings.Contains(string(last.Outputs), tt.want) {
			t.Errorf("%s %s ended with %s %v %s, want %s", tt.id, tt.input, last.Type, last.Error, last.Outputs, tt.want)
		}
	}
}

// open opens a store of its own, which the test closes.
func open(t *testing.T) *engine.Engine {
	t.Helper()
	host := servers(t)
	e, err := engine.Open(t.Context(), engine.Options{
		Path: filepath.Join(t.TempDir(), "runs.db"), Executor: true, Projects: []string{project},
		Agent: agents(t, host), Attend: attend(host), ReadFile: builtin.Reader{}.ReadText, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// agents run on a model that answers as the scripts beside the examples say.
func agents(t *testing.T, host *inbound.Host) *agent.Runner {
	t.Helper()
	var script fakemodel.Script
	files, err := filepath.Glob("workflows/*.model.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		src, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		one, err := fakemodel.ReadScript(src)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		script.Conversations = append(script.Conversations, one.Conversations...)
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}
	server := httptest.NewServer(fakemodel.New(fakemodel.Options{Script: script}))
	providers := make(map[string]models.Provider)
	for _, name := range models.Names() {
		providers[name] = models.Provider{BaseURL: fakemodel.URL(server.URL, name), AllowLocalEndpoint: true}
	}
	m, err := models.New(models.Options{Providers: providers, Key: func(context.Context, string) (string, error) { return "key", nil }})
	if err != nil {
		t.Fatal(err)
	}
	tools, err := builtin.New(builtin.Options{Home: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.CloseIdle()
		server.Close()
	})
	return agent.New(agent.Options{Models: m, Builtin: tools, Spill: tools.Spill, Servers: host})
}

// execute runs one example, settles its gates and returns its terminal event.
func execute(t *testing.T, e *engine.Engine, loaded workflows.Loaded, input json.RawMessage, decision engine.Decision) engine.Event {
	t.Helper()
	w := loaded.Workflow
	arguments, err := w.ResolveInputs(input)
	if err != nil {
		t.Fatalf("%s: %v", w.ID, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	started, err := e.Start(ctx, engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: project, Root: loaded.Root}, Principal: engine.Local,
		Arguments: arguments, Source: "cli",
	})
	if err != nil {
		t.Fatalf("%s: %v", w.ID, err)
	}
	run, err := e.Attach(ctx, started.Run, engine.Local)
	if err != nil {
		t.Fatalf("%s: %v", w.ID, err)
	}
	var last engine.Event
	for {
		event, err := run.Next(ctx)
		if errors.Is(err, io.EOF) {
			return last
		}
		if err != nil {
			t.Fatalf("%s after %s: %v", w.ID, last.Type, err)
		}
		last = event
		if event.Type == engine.AgentToolResult && (event.Success == nil || !*event.Success) {
			t.Errorf("%s: tool %s fails: %s", w.ID, event.Tool, event.Summary)
		}
		if event.Type != engine.GatePaused {
			continue
		}
		if strings.Contains(event.Message, "{{") {
			t.Errorf("%s: gate message %q holds a template", w.ID, event.Message)
		}
		if _, err := e.Decide(ctx, event.Gate, decision); err != nil {
			t.Fatalf("%s: %v", w.ID, err)
		}
	}
}

func compare(t *testing.T, file string, got json.RawMessage) {
	t.Helper()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, got, "", "  "); err != nil {
		t.Fatal(err)
	}
	pretty.WriteByte('\n')
	if *update {
		if err := os.WriteFile(file, pretty.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), pretty.String()); diff != "" {
		t.Errorf("%s: outputs differ (-want +got):\n%s", file, diff)
	}
}
