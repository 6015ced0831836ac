package agent_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/workflows"
)

// inEngine runs the workflow in an engine of its own; each gate that opens is decided
// by decide.
func inEngine(t *testing.T, opt agent.Options, w *workflows.Workflow, decide func(engine.Event) engine.Decision) []engine.Event {
	t.Helper()
	return inEngineAt(t, t.TempDir(), opt, w, decide)
}

func types(events []engine.Event) string {
	var out []string
	for _, ev := range events {
		if ev.Node == "n" || ev.Node == "" {
			out = append(out, strings.TrimPrefix(ev.Type, "agent:"))
		}
	}
	return strings.Join(out, " ")
}

// Events of an agent node come in the order in which things happened, and its cost
// adds up.
func TestEventsInEngine(t *testing.T) {
	t.Parallel()
	first := calls(call("1", "t", `{}`))
	first[0].deltas = []agent.Delta{{Reasoning: "hm"}, {Text: "let me see"}}
	events := inEngine(t, agent.Options{Models: answers(first, says("done")), Builtin: &host{tools: []tool{builtin("t")}}}, parse(t, agentOf("t", "", "")), nil)
	if got, want := types(events), "run:started node:started reasoning token cost:updated tool_call tool_result cost:updated node:completed run:completed"; got != want {
		t.Errorf("events = %s, want %s", got, want)
	}
	var cumulative []int64
	for _, ev := range events {
		if ev.Type == engine.CostUpdated {
			cumulative = append(cumulative, *ev.Cost, *ev.CumulativeCost)
		}
	}
	// 20 and 10 tokens of input at 3, 7 and 5 of output at 15 micro-cents each.
	if diff := cmp.Diff([]int64{165, 165, 105, 270}, cumulative); diff != "" {
		t.Errorf("cost (-want +got):\n%s", diff)
	}
	last := events[len(events)-1]
	if string(last.Outputs) != `{"out":"done"}` || *last.TotalCost != 270 || last.TotalTokens.Input != 30 || last.TotalTokens.Output != 12 {
		t.Errorf("run:completed = %+v", last)
	}
}

// A turn beyond the budget waits for a person; approved it goes on where it was.
func TestBudgetInEngine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		decision, want string
		code           engine.Code
	}{
		{engine.Approved, `{"out":"done"}`, ""},
		{engine.Rejected, "", engine.CodeBudgetExceeded},
	} {
		h := &host{tools: []tool{builtin("t")}}
		h.tools[0].check = admits(workflows.Admission{})
		m := answers(calls(call("1", "t", `{}`)), says("done"))
		// The first turn may cost some 9,000 and costs 165; the cap holds one more such.
		w := parse(t, agentOf("t", "", "max_tokens: 600")+"\nbudget: {max_cost_microcents: 9200, on_exceed: pause_for_approval}")
		gates := 0
		events := inEngine(t, agent.Options{Models: m, Builtin: h}, w, func(ev engine.Event) engine.Decision {
			gates++
			if ev.Reason != engine.ReasonBudget {
				t.Errorf("gate for %q", ev.Reason)
			}
			return engine.Decision{Decision: tt.decision, By: "local", Via: engine.ViaConsole, Payload: json.RawMessage(nil)}
		})
		last := events[len(events)-1]
		var code engine.Code
		if last.Error != nil {
			code = last.Error.Code
		}
		if string(last.Outputs) != tt.want || code != tt.code || gates != 1 {
			t.Errorf("%s: %s %s, %s after %d gates: %s", tt.decision, last.Type, last.Outputs, code, gates, types(events))
		}
		if len(h.journal) != 1 {
			t.Errorf("%s: called %v", tt.decision, h.journal)
		}
	}
}

// A node's retry dispatches it again with effects of its own.
func TestRetryInEngine(t *testing.T) {
	t.Parallel()
	m := answers([]step{fails(agent.Overloaded), ok("", "done")})
	events := inEngine(t, agent.Options{Models: m}, parse(t, agentOf("", "", "retry: {max: 2, backoff: linear, backoff_ms: 1}")), nil)
	if got, want := types(events), "run:started node:started cost:updated node:retrying node:started cost:updated node:completed run:completed"; got != want {
		t.Errorf("events = %s, want %s", got, want)
	}
}
