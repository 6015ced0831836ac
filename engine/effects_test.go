package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

const oneAgent = `
	agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'%s}]
	%s
	nodes:
	  - {id: in, type: input}
	  - {id: dig, type: agent, agent_ref: wader, prompt_template: 'dig'}
	  - {id: out, type: output}
	edges: [{from: in, to: dig}, {from: dig, to: out}]`

// script is an agent node that makes effects one after another and yields their values.
type script struct {
	mu        sync.Mutex
	effects   []engine.Effect
	cost      int64
	performed []string // keys
	fail      func(n int) error
	after     func(n int) // called inside the effect
}

func (s *script) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	var values []string
	for _, ef := range s.effects {
		out, err := call.Do(ctx, ef, func(_ context.Context, key string) (engine.EffectResult, error) {
			s.mu.Lock()
			s.performed = append(s.performed, key[strings.Index(key, "/")+1:])
			s.mu.Unlock()
			if s.after != nil {
				s.after(ef.N)
			}
			if s.fail != nil {
				if err := s.fail(ef.N); err != nil {
					return engine.EffectResult{Cost: s.cost}, err
				}
			}
			return engine.EffectResult{
				Value: json.RawMessage(fmt.Sprintf(`"v%d"`, ef.N)), Cost: s.cost,
				Said: []engine.Event{{Type: engine.CostUpdated, Model: "m-1", Cost: new(s.cost)}},
			}, nil
		})
		switch {
		case errors.Is(err, engine.ErrSkipped):
			values = append(values, `"skipped"`)
			continue
		case err != nil:
			return engine.AgentResult{}, err
		}
		values = append(values, string(out.Value))
	}
	return engine.AgentResult{Output: json.RawMessage("[" + strings.Join(values, ",") + "]")}, nil
}

func (s *script) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.performed)
}

func turn(n int, estimate int64) engine.Effect {
	return engine.Effect{
		N: n, Kind: engine.EffectTurn, Name: "m-1", Request: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Repeatable: true, Estimate: estimate,
		Said: []engine.Event{{Type: engine.AgentToken, Token: fmt.Sprintf("t%d", n), Model: "m-1"}},
	}
}

func tool(n int) engine.Effect {
	return engine.Effect{
		N: n, Kind: engine.EffectTool, Name: "run_command", Request: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Shown: json.RawMessage(`{"argv":["make"]}`),
		Said: []engine.Event{{Type: engine.AgentToolCall, Tool: "run_command"}},
	}
}

func TestEffectsInOrderAndCost(t *testing.T) {
	t.Parallel()
	s := &script{effects: []engine.Effect{turn(0, 0), tool(1), turn(2, 0)}, cost: 7}
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = s })
	events := finish(t, e, request(t, parse(t, fmt.Sprintf(oneAgent, "", "")), `{}`))
	want := "run:started, node:started in, node:completed in, node:started dig, agent:token dig, cost:updated dig, agent:tool_call dig, cost:updated dig, " +
		"agent:token dig, cost:updated dig, node:completed dig, node:started out, node:completed out, run:completed"
	if got := brief(events); got != want {
		t.Errorf("events\n got %s\nwant %s", got, want)
	}
	var cumulative []int64
	for _, ev := range events {
		if ev.Type == engine.CostUpdated {
			cumulative = append(cumulative, *ev.CumulativeCost)
		}
	}
	if !slices.Equal(cumulative, []int64{7, 14, 21}) || *last(events).TotalCost != 21 {
		t.Errorf("cumulative cost %v, total %d; want 7 14 21 and 21", cumulative, *last(events).TotalCost)
	}
	if got, want := s.keys(), []string{"dig/1/0", "dig/1/1", "dig/1/2"}; !slices.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
	stored, err := e.Events(t.Context(), events[0].Run, 0)
	if err != nil || brief(stored) != brief(events) {
		t.Errorf("stored events\n got %s, %v\nwant %s", brief(stored), err, brief(events))
	}
	if r, err := e.Run(t.Context(), events[0].Run, engine.Local); err != nil || r.Cost != 21 {
		t.Errorf("Run cost = %d, %v; want 21", r.Cost, err)
	}
}

// parkedAt follows a run to where it is paused and returns the gates that wait.
func parkedAt(t *testing.T, e *engine.Engine, run string) []engine.Gate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := e.Attach(ctx, run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for {
		ev, err := a.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ev.Terminal() {
			t.Fatalf("the run ended: %+v", ev)
		}
		if ev.Type == engine.RunPaused {
			gates, err := e.Gates(ctx, engine.GateFilter{Run: run, Open: true})
			if err != nil {
				t.Fatal(err)
			}
			if len(gates) > 0 { // not a pause that is over
				return gates
			}
		}
	}
}

func decide(t *testing.T, e *engine.Engine, gate string, d engine.Decision) {
	t.Helper()
	d.By, d.Via = "local", engine.ViaCLI
	if _, err := e.Decide(t.Context(), gate, d); err != nil {
		t.Fatal(err)
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		exceed, decision string
		want             string
		performed        int
	}{
		{exceed: "fail", want: "budget_exceeded", performed: 1},
		{exceed: "warn", want: "", performed: 3},
		{exceed: "pause_for_approval", decision: engine.Approved, want: "", performed: 3},
		{exceed: "pause_for_approval", decision: engine.Rejected, want: "budget_exceeded", performed: 1},
	} {
		t.Run(test.exceed+" "+test.decision, func(t *testing.T) {
			t.Parallel()
			s := &script{effects: []engine.Effect{turn(0, 50), turn(1, 50), turn(2, 50)}, cost: 60}
			e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = s })
			w := parse(t, fmt.Sprintf(oneAgent, "", "budget: {max_cost_microcents: 100, on_exceed: "+test.exceed+"}"))
			started, err := e.Start(t.Context(), request(t, w, `{}`))
			if err != nil {
				t.Fatal(err)
			}
			if test.decision != "" {
				for n := 1; n == 1 || test.decision == engine.Approved && n < 3; n++ {
					gates := parkedAt(t, e, started.Run)
					if len(gates) != 1 || gates[0].Reason != engine.ReasonBudget || gates[0].Type != "approval" || gates[0].Node != "dig" {
						t.Fatalf("gates = %+v, want one budget gate", gates)
					}
					if got := len(s.keys()); got != n {
						t.Errorf("%d calls were made before approval %d, want %d", got, n, n)
					}
					decide(t, e, gates[0].ID, engine.Decision{Decision: test.decision})
				}
			}
			events := follow(t, e, started.Run)
			code := ""
			if f := last(events).Error; f != nil {
				code = string(f.Code)
			}
			if code != test.want || len(s.keys()) != test.performed {
				t.Errorf("ended %q after %d calls (%v), want %q after %d: %s", code, len(s.keys()), last(events).Error, test.want, test.performed, brief(events))
			}
			warnings := strings.Count(brief(events), engine.BudgetWarning)
			if want := map[bool]int{true: 1}[test.exceed == "warn"]; warnings != want {
				t.Errorf("%d budget warnings, want %d", warnings, want)
			}
			if n := strings.Count(brief(events), "node:started dig"); n != 1 {
				t.Errorf("the node started %d times: %s", n, brief(events))
			}
		})
	}
}

// TestCostsDoNotWrap has a provider claim to have used more than there is: the budget
// holds, and the run can still be read.
func TestCostsDoNotWrap(t *testing.T) {
	t.Parallel()
	for exceed, want := range map[string]string{"fail": "budget_exceeded", "warn": ""} {
		t.Run(exceed, func(t *testing.T) {
			t.Parallel()
			s := &script{effects: []engine.Effect{turn(0, 50), turn(1, math.MaxInt64), turn(2, 50), turn(3, 50)}, cost: math.MaxInt64}
			e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = s })
			w := parse(t, fmt.Sprintf(oneAgent, "", "budget: {max_cost_microcents: 100, on_exceed: "+exceed+"}"))
			events := finish(t, e, request(t, w, `{}`))
			code := ""
			if f := last(events).Error; f != nil {
				code = string(f.Code)
			}
			if calls := map[string]int{"fail": 1, "warn": 4}[exceed]; code != want || len(s.keys()) != calls {
				t.Errorf("ended %q after %d calls, want %q after %d", code, len(s.keys()), want, calls)
			}
			if r, err := e.Run(t.Context(), events[0].Run, engine.Local); err != nil || r.Cost != 1<<53 {
				t.Errorf("Run cost = %d, %v; want %d", r.Cost, err, 1<<53)
			}
		})
	}
}

// TestApprovalIsOfOneCall has a chain of models try one after another at one place:
// what a person approved for one does not let another pass, nor the same again once
// it cost something.
func TestApprovalIsOfOneCall(t *testing.T) {
	t.Parallel()
	overloaded := errors.New("overloaded")
	var (
		mu    sync.Mutex
		tried []string
	)
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		for _, c := range []struct {
			model string
			cost  int64 // of a try that fails; -1 is one that answers
		}{{"cheap", 0}, {"dear", 0}, {"dear", 30}, {"dear", -1}} {
			ef := turn(0, 50)
			if ef.Name = c.model; c.model == "dear" {
				ef.Estimate = 5000
			}
			_, err := call.Do(ctx, ef, func(context.Context, string) (engine.EffectResult, error) {
				mu.Lock()
				defer mu.Unlock()
				tried = append(tried, c.model)
				if c.cost < 0 {
					return engine.EffectResult{Value: json.RawMessage(`"here"`)}, nil
				}
				return engine.EffectResult{Cost: c.cost}, overloaded
			})
			switch {
			case err == nil:
				return engine.AgentResult{Output: json.RawMessage(`"here"`)}, nil
			case !errors.Is(err, overloaded):
				return engine.AgentResult{}, err
			}
		}
		return engine.AgentResult{}, overloaded
	})
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = agent })
	w := parse(t, fmt.Sprintf(oneAgent, "", "budget: {max_cost_microcents: 10, on_exceed: pause_for_approval}"))
	started, err := e.Start(t.Context(), request(t, w, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ asked, tried string }{
		{"cheap", ""},
		{"dear", "cheap"},
		{"dear", "cheap cheap dear dear"}, // entered again, the chain begins anew
	} {
		gates := parkedAt(t, e, started.Run)
		mu.Lock()
		got := strings.Join(tried, " ")
		mu.Unlock()
		if len(gates) != 1 || !strings.Contains(gates[0].Message, "next call of "+want.asked+" ") || got != want.tried {
			t.Fatalf("gate %d: %+v after %q, want one about %s after %q", i, gates, got, want.asked, want.tried)
		}
		d := engine.Decision{Decision: engine.Approved}
		if i == 2 {
			d.Decision = engine.Rejected
		}
		decide(t, e, gates[0].ID, d)
	}
	if f := last(follow(t, e, started.Run)).Error; f == nil || f.Code != engine.CodeBudgetExceeded {
		t.Errorf("ended %v, want budget_exceeded", f)
	}
}

func TestReservationsOfParallelCallsDoNotPassTogether(t *testing.T) {
	t.Parallel()
	var performed sync.Map
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		errs := make(chan error, 4)
		for n := range 4 {
			go func() {
				_, err := call.Do(ctx, turn(n, 40), func(context.Context, string) (engine.EffectResult, error) {
					performed.Store(n, true)
					<-time.After(20 * time.Millisecond) // all are under way at once
					return engine.EffectResult{Value: json.RawMessage("1"), Cost: 40}, nil
				})
				errs <- err
			}()
		}
		var failed error
		for range 4 {
			if err := <-errs; err != nil {
				failed = err
			}
		}
		return engine.AgentResult{Output: json.RawMessage("1")}, failed
	})
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = agent })
	w := parse(t, fmt.Sprintf(oneAgent, "", "budget: {max_cost_microcents: 100, on_exceed: fail}"))
	events := finish(t, e, request(t, w, `{}`))
	count := 0
	performed.Range(func(any, any) bool { count++; return true })
	if f := last(events).Error; f == nil || f.Code != engine.CodeBudgetExceeded || count != 2 {
		t.Errorf("ended %v after %d calls, want budget_exceeded after 2", f, count)
	}
}

func TestNodeRetryStopsAtWhatMayNotBeRepeated(t *testing.T) {
	t.Parallel()
	unavailable := &engine.RunError{Code: engine.CodeProviderUnavailable, Message: "overloaded", Retryable: true}
	retry := ", retry: {max: 2, backoff: linear, backoff_ms: 1}"
	for name, test := range map[string]struct {
		effects []engine.Effect
		fail    func(n int) error
		want    []string
		told    string
	}{
		"model turns alone": {
			effects: []engine.Effect{turn(0, 0), turn(1, 0)},
			fail:    func(n int) error { return map[bool]error{true: unavailable}[n == 1] },
			want:    []string{"dig/1/0", "dig/1/1", "dig/2/0", "dig/2/1"},
			told:    "overloaded",
		},
		"after a command": {
			effects: []engine.Effect{tool(0), turn(1, 0)},
			fail:    func(n int) error { return map[bool]error{true: unavailable}[n == 1] },
			want:    []string{"dig/1/0", "dig/1/1"},
			told:    "overloaded; not tried again, because run_command was called, which may not be repeated",
		},
		"a command that was not sent": {
			effects: []engine.Effect{tool(0)},
			fail: func(int) error {
				return errors.Join(&engine.RunError{Code: engine.CodeToolFailed, Message: "refused", Retryable: true}, engine.ErrUnsent)
			},
			want: []string{"dig/1/0", "dig/2/0"},
			told: "refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{effects: test.effects, fail: test.fail}
			e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = s })
			events := finish(t, e, request(t, parse(t, fmt.Sprintf(oneAgent, retry, "")), `{}`))
			if got := s.keys(); !slices.Equal(got, test.want) {
				t.Errorf("performed %v, want %v", got, test.want)
			}
			if f := last(events).Error; f == nil || f.Message != test.told {
				t.Errorf("error %v, want %q", f, test.told)
			}
		})
	}
}

func TestApprovalCoversOneCommit(t *testing.T) {
	t.Parallel()
	w := parse(t, `
		agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'}]
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go?'}
		  - {id: one, type: agent, agent_ref: wader, prompt_template: 'a'}
		  - {id: two, type: agent, agent_ref: wader, prompt_template: 'b'}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: one}, {from: one, to: two}, {from: two, to: out}]`)
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		if len(call.Approvals) != 1 {
			return engine.AgentResult{}, fmt.Errorf("%d approvals, want 1", len(call.Approvals))
		}
		commit := tool(0)
		commit.Approval = call.Approvals[0]
		_, err := call.Do(ctx, commit, func(context.Context, string) (engine.EffectResult, error) {
			return engine.EffectResult{Value: json.RawMessage(`"ok"`)}, nil
		})
		if errors.Is(err, engine.ErrApprovalUsed) {
			return engine.AgentResult{Output: json.RawMessage(`"used"`)}, nil
		}
		return engine.AgentResult{Output: json.RawMessage(`"committed"`)}, err
	})
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = agent })
	started, err := e.Start(t.Context(), request(t, w, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	decide(t, e, parkedAt(t, e, started.Run)[0].ID, engine.Decision{Decision: engine.Approved})
	follow(t, e, started.Run)
	for node, want := range map[string]string{"one": `"committed"`, "two": `"used"`} {
		if got, err := e.Output(t.Context(), started.Run, node, engine.Local); err != nil || string(got) != want {
			t.Errorf("output of %s = %s, %v; want %s", node, got, err, want)
		}
	}
}

func TestDifferentRequestAtTheSamePlace(t *testing.T) {
	t.Parallel()
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		ok := func(context.Context, string) (engine.EffectResult, error) {
			return engine.EffectResult{Value: json.RawMessage("1")}, nil
		}
		if _, err := call.Do(ctx, turn(0, 0), ok); err != nil {
			return engine.AgentResult{}, err
		}
		again, err := call.Do(ctx, turn(0, 0), ok)
		if err != nil || !again.Replayed || string(again.Value) != "1" {
			return engine.AgentResult{}, fmt.Errorf("the same again: %+v, %w", again, err)
		}
		other := turn(0, 0)
		other.Request = json.RawMessage(`{"other":true}`)
		_, err = call.Do(ctx, other, ok)
		return engine.AgentResult{}, err
	})
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent, o.Logger = agent, discard() })
	events := finish(t, e, request(t, parse(t, fmt.Sprintf(oneAgent, "", "")), `{}`))
	if f := last(events).Error; f == nil || f.Code != engine.CodeInternal || f.CorrelationID == "" {
		t.Errorf("error %+v, want internal with a correlation id", f)
	}
}

// TestLongStream has a model say five thousand tokens in ten turns. What is stored
// does not stay in memory, and whoever reads late reads all of it.
func TestLongStream(t *testing.T) {
	t.Parallel()
	const turns, tokens = 10, 500
	most := 0
	var e *engine.Engine
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		for n := range turns {
			_, err := call.Do(ctx, turn(n, 0), func(context.Context, string) (engine.EffectResult, error) {
				for range tokens {
					call.Emit(engine.Event{Type: engine.AgentToken, Token: "x", Model: "m-1"})
				}
				return engine.EffectResult{Value: json.RawMessage("1")}, nil
			})
			if err != nil {
				return engine.AgentResult{}, err
			}
			most = max(most, e.Streamed(call.Run))
		}
		return engine.AgentResult{Output: json.RawMessage("1")}, nil
	})
	e = open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = agent })
	started, err := e.Start(t.Context(), request(t, parse(t, fmt.Sprintf(oneAgent, "", "")), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	events := follow(t, e, started.Run)
	again := follow(t, e, started.Run)
	for _, all := range [][]engine.Event{events, again} {
		count := 0
		for i, ev := range all {
			if ev.N != int64(i) {
				t.Fatalf("event %d has number %d", i, ev.N)
			}
			if ev.Type == engine.AgentToken {
				count++
			}
		}
		if want := turns * (tokens + 1); count != want {
			t.Errorf("%d tokens, want %d", count, want)
		}
	}
	if most > 3000 {
		t.Errorf("%d events of the run were in memory, want few more than 2048", most)
	}
}
