package main

import (
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// agentEvents are what a run with one agent says.
func agentEvents() []engine.Event {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	return []engine.Event{
		{Type: engine.RunStarted, Run: "r1", Time: at},
		{Type: engine.NodeStarted, Node: "dig", NodeType: "agent"},
		{Type: engine.AgentToken, Node: "dig", Token: "I will look.\nThen"},
		{Type: engine.AgentToolCall, Node: "dig", Tool: "read_file", ToolInput: []byte(`{"path":"a.txt"}`)},
		{Type: engine.CostUpdated, Node: "dig", Model: "m", InputTokens: new(int64(1200)), OutputTokens: new(int64(30)), Cost: new(int64(120_000))},
		{Type: engine.AgentToken, Node: "dig", Token: " done \x1b[31mred"},
		{Type: engine.CostUpdated, Node: "dig", Model: "m", InputTokens: new(int64(300)), OutputTokens: new(int64(12)), Cost: new(int64(0)), Priced: new(false)},
		{Type: engine.NodeCompleted, Node: "dig", DurationMS: new(int64(1500))},
		{Type: engine.RunCompleted, Run: "r1", Time: at.Add(2 * time.Second)},
	}
}

func TestViewShowsWhatAnAgentSays(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := &view{w: &out, width: 80, nodes: []nodeView{{id: "dig", kind: "agent", state: "pending"}}}
	for _, ev := range agentEvents() {
		if err := v.show(&ev); err != nil {
			t.Fatal(err)
		}
	}
	want := `run r1
▸ dig (agent) running
  dig | I will look.
  dig | Then
▸ dig (agent) running calls read_file {"path":"a.txt"}
  dig |  done red
✓ dig (agent) completed 1.5s, 2 model calls, 1 tool call, 1500 tokens in, 42 out, $0.001200 and calls of unknown price
run r1 completed in 2s: 2 model calls, 1 tool call, 1500 tokens in, 42 out, $0.001200 and calls of unknown price
`
	if got := out.String(); got != want {
		t.Errorf("shown:\n%s\nwant:\n%s", got, want)
	}
}

func TestViewInPlaceKeepsItsLines(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	v := &view{w: &out, width: 60, place: true, nodes: []nodeView{{id: "dig", kind: "agent", state: "pending"}, {id: "out", kind: "output", state: "pending"}}}
	events := agentEvents()
	for i := range events[:3] {
		if err := v.show(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	warning := engine.Event{Type: engine.BudgetWarning, Spent: new(int64(2e8)), Limit: new(int64(1e8))}
	if err := v.show(&warning); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{"▸ dig (agent) running Then\n", "\x1b[2A\x1b[J! the run has spent $2.00 of its budget of $1.00\n▸ dig"} {
		if !strings.Contains(got, want) {
			t.Errorf("shown %q, want it to contain %q", got, want)
		}
	}
}
