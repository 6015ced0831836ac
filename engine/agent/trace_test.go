package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// Turns and calls of an agent that another one asks stand below that call, and a try
// that fails stands beside the one that did not. A run that no call started has its
// own id as its trace.
func TestSpans(t *testing.T) {
	t.Parallel()
	const told = "told-2d7a"
	spans := tracetest.NewSpanRecorder()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := engine.Open(ctx, engine.Options{
		Path: durabletest.Place(t, t.TempDir()), Executor: true, Projects: []string{"p"}, Logger: slog.New(slog.DiscardHandler),
		Agent: agent.New(agent.Options{
			Models: answersOf(map[string][][]step{
				"sys a": {calls(invokes("1", "bb", told), call("2", "t", `{"x":"`+told+`"}`), call("3", told, `{}`)), says(told)},
				"sys b": {{fails(agent.Overloaded), says(told)[0]}},
			}),
			Builtin: &host{tools: []tool{builtin("t")}},
		}),
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test"),
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := start(ctx, e, parse(t, `
agents:
  - {id: a, provider: anthropic, model: m-one, system_prompt: sys a, tools: [invoke_agent, t]}
  - {id: b, provider: openai, model: m-two, system_prompt: sys b, description: does b, fallback_chain: [{provider: openai, model: m-one}]}
nodes:
  - {id: in, type: input}
  - {id: n, type: agent, agent_ref: a, prompt_template: go}
  - {id: bb, type: agent, agent_ref: b, prompt_template: `+told+`}
  - {id: out, type: output}
edges: [{from: in, to: n}, {from: n, to: bb}, {from: bb, to: out}]
`), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for {
		if _, err = a.Next(ctx); err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	runs, err := e.Runs(ctx, engine.RunFilter{})
	if err != nil || len(runs) != 1 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	if err := e.Close(context.WithoutCancel(ctx)); err != nil {
		t.Error(err)
	}

	names := make(map[string]string)
	for _, s := range spans.Ended() {
		names[s.SpanContext().SpanID().String()] = s.Name()
	}
	var tree []string
	for _, s := range spans.Ended() {
		if got, want := s.SpanContext().TraceID().String(), strings.ReplaceAll(runs[0].ID, "-", ""); got != want {
			t.Errorf("the span %q is of the trace %s, want %s", s.Name(), got, want)
		}
		if text := fmt.Sprint(s.Name(), s.Attributes(), s.Status(), s.Events()); strings.Contains(text, told) {
			t.Errorf("a span tells %s", text)
		}
		if parent := names[s.Parent().SpanID().String()]; !strings.HasPrefix(parent, "invoke_workflow") && parent != "" {
			tree = append(tree, parent+" > "+s.Name()+" "+s.Status().Code.String())
		}
	}
	slices.Sort(tree)
	if diff := cmp.Diff([]string{
		"execute_tool invoke_agent > chat m-one Unset",
		"execute_tool invoke_agent > chat m-two Error",
		"invoke_agent a > chat m-one Unset",
		"invoke_agent a > chat m-one Unset",
		"invoke_agent a > execute_tool Error",
		"invoke_agent a > execute_tool invoke_agent Unset",
		"invoke_agent a > execute_tool t Unset",
		"invoke_agent b > chat m-two Unset",
	}, tree); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
