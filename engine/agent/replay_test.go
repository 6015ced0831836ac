package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/workflows"
)

// eventful is a trial that has it all: parallel calls, corrections, callees, a
// fallback, an approval, a failed try, a repair.
func eventful() *trial {
	once := admits(workflows.Admission{})
	commit := builtin("c")
	commit.check = admits(workflows.Admission{Approval: true})
	write := builtin("w")
	write.check = once
	return &trial{
		models: answersOf(map[string][][]step{
			"sys a": {
				calls(call("", "w", `{"n":1}`), call("", "r", `{}`), invokes("", "m", "help"), call("", "nope", `{}`), call("", "c", `{"n":1}`)),
				calls(invokes("", "m", "again"), call("", "w", `{"n":2}`), call("", "c", `{"n":2}`), call("", "r", `{"x`)),
				says("not yet"),
				says(`{"ok":true}`),
			},
			"sys b": {calls(call("", "w", `{"of":"b"}`), call("", "r", `{}`)), down("m-two", says("b says"))},
		}),
		builtin: &host{tools: []tool{write, builtin("r"), commit}},
		history: newHistory(),
		ask:     func(c *engine.AgentCall) { c.Approvals = []string{"g1", "g2"} },
	}
}

const eventfulWorkflow = `
agents:
  - {id: a, provider: anthropic, model: m-one, system_prompt: sys a, tools: [invoke_agent, w, r, c]}
  - {id: b, provider: openai, model: m-two, system_prompt: sys b, tools: [w, r], fallback_chain: [{model: m-one, provider: anthropic}]}
nodes:
  - {id: in, type: input}
  - {id: n, type: agent, agent_ref: a, prompt_template: go, output_schema: {type: object, required: [ok]}}
  - {id: m, type: agent, agent_ref: b, prompt_template: unused}
  - {id: out, type: output}
edges: [{from: in, to: n}, {from: n, to: m}, {from: m, to: out}]
`

// A node whose process ends after any number of effects is entered again: each
// effect is made once, at the same place and with the same request, and the answer
// is the same.
func TestEnteredAgain(t *testing.T) {
	t.Parallel()
	whole, w := eventful(), parse(t, eventfulWorkflow)
	want, err := whole.run(t, t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	effects := whole.history.done
	if effects < 20 {
		t.Fatalf("%d effects, want more", effects)
	}
	for stop := 1; stop < effects; stop++ {
		t.Run(fmt.Sprint(stop), func(t *testing.T) {
			t.Parallel()
			x := eventful()
			x.history.stopAt = stop
			got, err := x.run(t, t.Context(), w)
			if !errors.Is(err, errEnded) {
				t.Fatalf("RunAgent = %s, %v; want it to end", got.Output, err)
			}
			x.history.stopAt = 0
			got, err = x.run(t, t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Output) != string(want.Output) || got.Tokens.Output != want.Tokens.Output {
				t.Errorf("RunAgent = %s, %v; want %s, %v", got.Output, got.Tokens, want.Output, want.Tokens)
			}
			for place, n := range x.history.made {
				if n != 1 {
					t.Errorf("%s was made %d times", place, n)
				}
			}
			if diff := cmp.Diff(sorted(whole.history.asked), sorted(x.history.asked)); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
			for place, r := range whole.history.rows {
				if again := x.history.rows[place]; again.request != r.request {
					t.Errorf("%s asked for %s, want %s", place, again.request, r.request)
				}
			}
			if diff := cmp.Diff(sorted(whole.builtin.journal), sorted(x.builtin.journal)); diff != "" {
				t.Errorf("tools called (-want +got):\n%s", diff)
			}
			results := func(x *trial) []string { return sorted(x.history.said(engine.AgentToolResult)) }
			if diff := cmp.Diff(results(whole), results(x)); diff != "" {
				t.Errorf("results said (-want +got):\n%s", diff)
			}
		})
	}
}

// The order in which parallel calls end changes nothing that is recorded.
func TestOrderOfParallelCalls(t *testing.T) {
	t.Parallel()
	listed := make([]agent.Call, 20)
	for i := range listed {
		listed[i] = call(fmt.Sprint("c", i), "t", fmt.Sprintf(`{"i":%d}`, i))
	}
	var before []agent.Message
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		pauses := make(map[string]time.Duration)
		for _, c := range listed {
			pauses[string(c.Arguments)] = time.Duration(random.IntN(1000)) * time.Millisecond
		}
		w := parse(t, agentOf("t", "", ""))
		synctest.Test(t, func(t *testing.T) {
			slow := builtin("t")
			slow.call = func(ctx context.Context, c *workflows.ToolCall) (workflows.ToolResult, error) {
				timer := time.NewTimer(pauses[string(c.Arguments)])
				defer timer.Stop()
				<-timer.C
				return workflows.ToolResult{Text: string(c.Arguments) + " " + c.Key}, nil
			}
			x := &trial{models: answers(calls(listed...), says("done")), builtin: &host{tools: []tool{slow}}}
			if _, err := x.run(t, t.Context(), w); err != nil {
				t.Fatal(err)
			}
			got := x.models.requests[1].Messages
			if before != nil {
				if diff := cmp.Diff(before, got); diff != "" {
					t.Errorf("seed %d (-before +now):\n%s", seed, diff)
				}
			}
			before = got
		})
	}
	for i, p := range before[2].Parts {
		if want := fmt.Sprintf(`{"i":%d} run/node/1/:%d`, i, i+1); !strings.HasSuffix(p.Result.Text, want) {
			t.Errorf("result %d = %s, want %s", i, p.Result.Text, want)
		}
	}
}

// A call that waits for a person lets its siblings end; what was not begun waits
// with it.
func TestParked(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		deny    map[string]error
		calls   []agent.Call
		wrong   string
		journal []string
	}{
		{
			name: "one of three", deny: map[string]error{":2": engine.ErrParked}, wrong: engine.ErrParked.Error(),
			calls: []agent.Call{call("1", "slow", `{}`), call("2", "quick", `{}`), call("3", "slow", `{"b":1}`)}, journal: []string{`slow {"b":1}`, "slow {}"},
		},
		{
			name: "the turn", deny: map[string]error{":0": engine.ErrParked}, wrong: engine.ErrParked.Error(),
			calls: []agent.Call{call("1", "slow", `{}`)},
		},
		{
			name: "a failure goes before", deny: map[string]error{":1": engine.ErrParked}, wrong: "tool_failed",
			calls: []agent.Call{call("1", "quick", `{}`), call("2", "broken", `{}`)}, journal: []string{"broken {}"},
		},
		{
			name: "the budget", deny: map[string]error{":2": &engine.RunError{Code: engine.CodeBudgetExceeded}}, wrong: "budget_exceeded",
			calls: []agent.Call{call("1", "quick", `{}`)}, journal: []string{"quick {}"},
		},
		{
			name: "inside a callee", deny: map[string]error{"1:0": engine.ErrParked}, wrong: engine.ErrParked.Error(),
			calls: []agent.Call{invokes("1", "m", "x"), call("2", "slow", `{}`), invokes("3", "m", "x")}, journal: []string{"slow {}"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := parse(t, `
agents: [{id: a, provider: anthropic, model: m-one, system_prompt: be terse, tools: [slow, quick, broken, invoke_agent]}]
nodes:
  - {id: in, type: input}
  - {id: n, type: agent, agent_ref: a, prompt_template: go}
  - {id: m, type: agent, agent_ref: a, prompt_template: go}
  - {id: out, type: output}
edges: [{from: in, to: n}, {from: n, to: m}, {from: m, to: out}]
`)
			synctest.Test(t, func(t *testing.T) {
				slow, broken := builtin("slow"), builtin("broken")
				slow.call = func(ctx context.Context, _ *workflows.ToolCall) (workflows.ToolResult, error) {
					timer := time.NewTimer(time.Minute)
					defer timer.Stop()
					select {
					case <-timer.C:
						return workflows.ToolResult{Text: "slow"}, nil
					case <-ctx.Done():
						return workflows.ToolResult{}, &workflows.ToolError{Fault: workflows.ToolCancelled}
					}
				}
				broken.call = faults(workflows.ToolError{Fault: workflows.ToolFailed})
				x := &trial{models: answers(calls(tt.calls...), says("done")), builtin: &host{tools: []tool{slow, builtin("quick"), broken}}, history: newHistory()}
				x.history.deny = tt.deny
				_, err := x.run(t, t.Context(), w)
				if wrong(err) != tt.wrong {
					t.Errorf("RunAgent = %v, want %s", err, tt.wrong)
				}
				slices.Sort(x.builtin.journal)
				if diff := cmp.Diff(tt.journal, x.builtin.journal); diff != "" {
					t.Errorf("tools called (-want +got):\n%s", diff)
				}
				for _, r := range x.history.rows {
					if r.started && !r.done {
						t.Error("a sibling was left under way")
					}
				}
				// With the decision made the node goes on to the same end.
				if tt.wrong != engine.ErrParked.Error() {
					return
				}
				x.history.deny = nil
				if got, err := x.run(t, t.Context(), w); err != nil || string(got.Output) != `"done"` {
					t.Errorf("RunAgent = %s, %v; want done", got.Output, err)
				}
			})
		})
	}
}

// One slow call costs its siblings nothing.
func TestSlowCall(t *testing.T) {
	t.Parallel()
	w := parse(t, agentOf("slow, quick", "", ""))
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu sync.Mutex
		ended := map[string]time.Duration{}
		after := func(id string, d time.Duration) tool {
			out := builtin(id)
			out.call = func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
				timer := time.NewTimer(d)
				defer timer.Stop()
				<-timer.C
				mu.Lock()
				defer mu.Unlock()
				ended[id] = time.Since(began)
				return workflows.ToolResult{}, nil
			}
			return out
		}
		listed := []agent.Call{call("s", "slow", `{}`)}
		for i := range 40 {
			listed = append(listed, call(fmt.Sprint(i), "quick", `{}`))
		}
		x := &trial{models: answers(calls(listed...), says("done")), builtin: &host{tools: []tool{after("slow", time.Minute), after("quick", time.Second)}}}
		if _, err := x.run(t, t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if ended["quick"] > 5*time.Second || ended["slow"] != time.Minute {
			t.Errorf("ended after %v", ended)
		}
	})
}

// A call that a person skips has an unknown outcome; the model hears so and goes on.
func TestSkipped(t *testing.T) {
	t.Parallel()
	x := &trial{models: answers(calls(call("1", "t", `{}`)), says("done")), builtin: &host{tools: []tool{builtin("t")}}, history: newHistory()}
	x.history.skip[":1"] = true
	got, err := x.run(t, t.Context(), parse(t, agentOf("t", "", "")))
	if err != nil || string(got.Output) != `"done"` {
		t.Fatalf("RunAgent = %s, %v", got.Output, err)
	}
	r := x.models.requests[1].Messages[2].Parts[0].Result
	if !r.IsError || !strings.Contains(r.Text, "outcome of this call is unknown") {
		t.Errorf("the model was told %+v", r)
	}
	if len(x.builtin.journal) != 0 {
		t.Errorf("called %v", x.builtin.journal)
	}
}

// A call that was done stays done, also where policy would refuse it now.
func TestDoneBeforeItWasRefused(t *testing.T) {
	t.Parallel()
	denied := false
	fickle := builtin("t")
	fickle.check = func(*workflows.ToolCall) (workflows.Admission, error) {
		if denied {
			return workflows.Admission{}, &workflows.ToolError{Fault: workflows.ToolDenied}
		}
		return workflows.Admission{}, nil
	}
	x := &trial{models: answers(calls(call("1", "t", `{}`)), says("done")), builtin: &host{tools: []tool{fickle}}, history: newHistory()}
	w := parse(t, agentOf("t", "", ""))
	x.history.stopAt = 2
	if _, err := x.run(t, t.Context(), w); !errors.Is(err, errEnded) {
		t.Fatal(err)
	}
	denied, x.history.stopAt = true, 0
	if got, err := x.run(t, t.Context(), w); err != nil || string(got.Output) != `"done"` {
		t.Errorf("RunAgent = %s, %v; want done", got.Output, err)
	}
}

// What ends the node is kept too: entered again it ends the same way, and nothing is
// sent.
func TestFailureIsKept(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err   workflows.ToolError
		wrong string
		calls int
	}{
		{workflows.ToolError{Fault: workflows.ToolFailed, Reason: "deadline"}, "tool_failed", 1},
		{workflows.ToolError{Fault: workflows.ToolFailed, Retryable: true}, "tool_failed retryable", 2},
		{workflows.ToolError{Fault: workflows.ToolUnavailable}, "tool_unavailable", 1},
	} {
		broken := builtin("t")
		broken.check = admits(workflows.Admission{})
		broken.call = faults(tt.err)
		x := &trial{models: answers(calls(call("1", "t", `{}`))), builtin: &host{tools: []tool{broken}}}
		w := parse(t, agentOf("t", "", ""))
		for range 2 {
			if _, err := x.run(t, t.Context(), w); wrong(err) != tt.wrong {
				t.Errorf("RunAgent = %v, want %s", err, tt.wrong)
			}
		}
		if len(x.builtin.journal) != tt.calls {
			t.Errorf("%s: %d calls, want %d", tt.wrong, len(x.builtin.journal), tt.calls)
		}
	}
}
