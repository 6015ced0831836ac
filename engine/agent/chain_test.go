package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/workflows"
)

func rateLimited(after time.Duration) step {
	s := fails(agent.RateLimit)
	s.err = &agent.ModelError{Kind: agent.RateLimit, Provider: "p", Model: "m", Message: "slow down", RetryAfter: after}
	return s
}

func streamed(kind agent.ErrorKind) step {
	return step{deltas: []agent.Delta{{Text: "half"}}, err: &agent.ModelError{Kind: kind, Provider: "p", Model: "m", Streamed: true}}
}

func on(model string, s step) step {
	s.model = model
	return s
}

func ok(model, text string) step { return on(model, says(text)[0]) }

func uses(model, tool string) step { return on(model, calls(call("", tool, `{}`))[0]) }

// Tries of one turn: who is asked, when, and what it comes to (format 2.3, 12.4).
func TestChain(t *testing.T) {
	t.Parallel()
	const (
		two   = "fallback_chain: [{model: m-two, provider: openai}]"
		three = "fallback_chain: [{model: m-two, provider: openai, max_attempts: 3}, {model: m-three, provider: gemini}]"
		same  = "fallback_chain: [{model: m-two, provider: anthropic}]"
	)
	slow := builtin("slow")
	slow.call = func(ctx context.Context, _ *workflows.ToolCall) (workflows.ToolResult, error) {
		timer := time.NewTimer(6 * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		return workflows.ToolResult{Text: "slept"}, nil
	}
	tests := []struct {
		name, fallback string
		turns          [][]step
		want, wrong    string
		took           time.Duration
	}{
		{name: "primary answers", fallback: two, turns: [][]step{{ok("m-one", "a")}}, want: `"a"`},
		{name: "primary once", turns: [][]step{{fails(agent.Overloaded), ok("", "a")}}, wrong: "provider_unavailable retryable"},
		{name: "fallback at once", fallback: two, turns: [][]step{{on("m-one", fails(agent.Overloaded)), ok("m-two", "b")}}, want: `"b"`},
		{name: "fallback after a time-out", fallback: two, turns: [][]step{{fails(agent.Timeout), ok("m-two", "b")}}, want: `"b"`},
		{name: "fallback after the line broke", fallback: two, turns: [][]step{{fails(agent.Transport), ok("m-two", "b")}}, want: `"b"`},
		{
			name: "backoff of one entry", fallback: three, want: `"b"`, took: 750 * time.Millisecond,
			turns: [][]step{{fails(agent.Overloaded), on("m-two", fails(agent.Overloaded)), on("m-two", fails(agent.Transport)), ok("m-two", "b")}},
		},
		{
			name: "the whole chain", fallback: three, wrong: "provider_rate_limit retryable", took: 750 * time.Millisecond,
			turns: [][]step{{on("m-one", fails(agent.Overloaded)), on("m-two", fails(agent.Overloaded)), on("m-two", fails(agent.Overloaded)), on("m-two", fails(agent.Overloaded)), on("m-three", fails(agent.RateLimit))}},
		},
		{
			name: "an entry keeps to what the provider asks", fallback: three, want: `"b"`, took: 3250 * time.Millisecond,
			turns: [][]step{{fails(agent.Overloaded), on("m-two", fails(agent.Overloaded)), on("m-two", rateLimited(3*time.Second)), ok("m-two", "b")}},
		},
		{name: "auth", fallback: two, turns: [][]step{{fails(agent.Auth), ok("", "b")}}, wrong: "provider_auth"},
		{name: "bad request", fallback: two, turns: [][]step{{fails(agent.BadRequest), ok("", "b")}}, wrong: "validation"},
		{name: "content filter", fallback: two, turns: [][]step{{fails(agent.ContentFilter), ok("", "b")}}, wrong: "content_filter"},
		{name: "cancelled there", fallback: two, turns: [][]step{{fails(agent.Cancelled), ok("", "b")}}, wrong: "cancelled"},
		{name: "unknown", fallback: two, turns: [][]step{{fails(agent.Unknown), ok("", "b")}}, wrong: "internal"},
		{name: "not a model error", fallback: two, turns: [][]step{{step{err: errors.New("odd")}, ok("", "b")}}, wrong: "odd"},
		{name: "content had come", fallback: two, turns: [][]step{{streamed(agent.Transport), ok("", "b")}}, wrong: "provider_unavailable retryable"},
		{
			name: "a parked provider is passed by", fallback: two, want: `"c"`,
			turns: [][]step{{rateLimited(5 * time.Second), uses("m-two", "quick")}, {ok("m-two", "c")}},
		},
		{
			name: "a parked provider comes back", fallback: two, want: `"c"`, took: 6 * time.Second,
			turns: [][]step{{rateLimited(5 * time.Second), uses("m-two", "slow")}, {ok("m-one", "c")}},
		},
		{
			name: "the last hope waits", fallback: same, want: `"b"`, took: 5 * time.Second,
			turns: [][]step{{rateLimited(5 * time.Second), ok("m-two", "b")}},
		},
		{
			name: "not for long", fallback: same, want: `"b"`, took: 30 * time.Second,
			turns: [][]step{{rateLimited(time.Hour), ok("m-two", "b")}},
		},
		{
			name: "a second where it does not say", fallback: same, want: `"b"`, took: time.Second,
			turns: [][]step{{rateLimited(0), ok("m-two", "b")}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := parse(t, agentOf("quick, slow", tt.fallback, ""))
			synctest.Test(t, func(t *testing.T) {
				x := &trial{models: answers(tt.turns...), builtin: &host{tools: []tool{builtin("quick"), slow}}}
				began := time.Now()
				got, err := x.run(t, t.Context(), w)
				if wrong(err) != tt.wrong || string(got.Output) != tt.want {
					t.Errorf("RunAgent = %s, %v; want %s, %s", got.Output, err, tt.want, tt.wrong)
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				tries := 0
				for _, turn := range tt.turns {
					tries += len(turn)
				}
				if tt.want != "" && len(x.models.requests) != tries {
					t.Errorf("%d tries, want %d", len(x.models.requests), tries)
				}
				if said := x.history.said(engine.CostUpdated); len(said) != len(x.models.requests) {
					t.Errorf("%d tries said %q, want one each", len(x.models.requests), said)
				}
			})
		})
	}
}

// Every try of a turn has one place and one request; each says what it cost, also
// one that failed.
func TestTriesAreOneEffect(t *testing.T) {
	t.Parallel()
	w := parse(t, agentOf("t", "fallback_chain: [{model: m-two, provider: openai}, {model: m-odd, provider: gemini}]", ""))
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		x := &trial{
			models: answers([]step{
				fails(agent.Overloaded), fails(agent.Overloaded), uses("m-odd", "t"),
			}, []step{fails(agent.Overloaded), ok("m-two", "done")}),
			builtin: &host{tools: []tool{builtin("t")}},
			change: func(o *agent.Options) {
				o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			},
		}
		got, err := x.run(t, t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		if want := (engine.Tokens{Input: 2 + 2 + 20 + 2 + 10, Output: 7 + 5, Model: "m-two"}); got.Tokens != want {
			t.Errorf("tokens = %v, want %v", got.Tokens, want)
		}
		if diff := cmp.Diff([]string{
			"cost:updated m-one #1 2+0=6", "cost:updated m-two #2 2+0=2", "cost:updated m-odd #3 20+7=0 priced=false",
			"agent:tool_call t {}", "agent:tool_result t true ok t",
			"cost:updated m-one #1 2+0=6", "cost:updated m-two #2 10+5=20",
		}, x.history.said()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		places := map[string][]string{}
		for _, e := range x.history.effects {
			at := e.Path + ":" + string(rune('0'+e.N)) + " " + string(e.Request)
			places[at] = append(places[at], e.Name)
		}
		if len(places) != 3 {
			t.Errorf("effects = %v, want three places", places)
		}
		// 28 bytes of conversation and tools, and as many tokens as a turn may answer.
		if x.history.effects[0].Estimate < 4096*15 || x.history.effects[2].Estimate != 0 {
			t.Errorf("estimates = %d, %d; want over %d, and 0 where no price is known", x.history.effects[0].Estimate, x.history.effects[2].Estimate, 4096*15)
		}
		if n := strings.Count(log.String(), "price of the model"); n != 1 {
			t.Errorf("the log says %d times that a price is not known, want once:\n%s", n, log.String())
		}
	})
}

// A stream that broke has cost something, though the provider has not come to say how
// much: what was sent and what came count.
func TestBrokenStreamCosts(t *testing.T) {
	t.Parallel()
	broken := func(used agent.Usage) step {
		return step{
			deltas: []agent.Delta{{Text: "half"}, {Reasoning: strings.Repeat("m", 396)}},
			err:    &agent.ModelError{Kind: agent.Transport, Provider: "p", Model: "m", Streamed: true, Usage: used},
		}
	}
	for name, tt := range map[string]struct {
		step step
		want string
	}{
		"nothing said":   {broken(agent.Usage{}), "cost:updated m-one #1 16+100=1548"},
		"only the input": {broken(agent.Usage{Input: 20, Output: 1}), "cost:updated m-one #1 20+100=1560"},
		"all of it":      {broken(agent.Usage{Input: 20, Output: 200}), "cost:updated m-one #1 20+200=3060"},
		"nothing came":   {fails(agent.Transport), "cost:updated m-one #1 2+0=6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := &trial{models: answers([]step{tt.step})}
			if _, err := x.run(t, t.Context(), parse(t, agentOf("", "", ""))); err == nil {
				t.Fatal("RunAgent = nil, want an error")
			}
			if diff := cmp.Diff([]string{tt.want}, x.history.said(engine.CostUpdated)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

// What a provider thought and signed is for that provider alone.
func TestReasoningStaysWithItsProvider(t *testing.T) {
	t.Parallel()
	thought := agent.Part{Reasoning: &agent.Reasoning{Text: "hm", Provider: "anthropic", Opaque: json.RawMessage(`{"sig":"x"}`)}}
	asked := call("1", "t", `{}`)
	asked.Opaque, asked.Provider = json.RawMessage(`"sig"`), "anthropic"
	first := step{turn: &agent.Turn{Stop: agent.StopToolUse, Parts: []agent.Part{thought, {Call: &asked}}}}
	x := &trial{
		models:  answers([]step{first}, []step{fails(agent.Overloaded), ok("m-two", "done")}),
		builtin: &host{tools: []tool{builtin("t")}},
	}
	if _, err := x.run(t, t.Context(), parse(t, agentOf("t", "fallback_chain: [{model: m-two, provider: openai}]", ""))); err != nil {
		t.Fatal(err)
	}
	bare := call("1", "t", `{}`)
	for i, want := range [][]agent.Part{1: {thought, {Call: &asked}}, 2: {{Call: &bare}}} {
		if want == nil {
			continue
		}
		if diff := cmp.Diff(want, x.models.requests[i].Messages[1].Parts); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", i, diff)
		}
	}
}

// A dispatch ends by the first cause: the run's end, then the node's own deadline.
func TestDeadline(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ *agent.Request) error {
		<-ctx.Done()
		return &agent.ModelError{Kind: agent.Timeout, Err: ctx.Err()}
	}
	stuck := builtin("t")
	stuck.check = admits(workflows.Admission{})
	stuck.call = func(ctx context.Context, _ *workflows.ToolCall) (workflows.ToolResult, error) {
		<-ctx.Done()
		return workflows.ToolResult{}, &workflows.ToolError{Fault: workflows.ToolCancelled, Reason: "cancelled"}
	}
	tests := []struct {
		name   string
		turns  [][]step
		cancel time.Duration // of the run; 0 means never
		wrong  string
		took   time.Duration
	}{
		{name: "model", turns: [][]step{{{before: hang}}}, wrong: "provider_unavailable retryable", took: 2 * time.Second},
		{name: "tool", turns: [][]step{calls(call("1", "t", `{}`))}, wrong: "provider_unavailable retryable", took: 2 * time.Second},
		{name: "chain", turns: [][]step{{rateLimited(time.Minute)}}, wrong: "provider_unavailable retryable", took: 2 * time.Second},
		{name: "run cancelled before", turns: [][]step{{{before: hang}}}, cancel: time.Second, wrong: "cancelled", took: time.Second},
		{name: "run cancelled in a tool", turns: [][]step{calls(call("1", "t", `{}`))}, cancel: time.Second, wrong: "cancelled", took: time.Second},
		{name: "run cancelled in the same instant", turns: [][]step{{{before: func(ctx context.Context, _ *agent.Request) error {
			<-ctx.Done()
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			<-timer.C
			return ctx.Err()
		}}}}, cancel: 2500 * time.Millisecond, wrong: "cancelled", took: 3 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := parse(t, agentOf("t", "fallback_chain: [{model: m-two, provider: anthropic}]", "timeout_ms: 2000"))
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancel > 0 {
					timer := time.AfterFunc(tt.cancel, cancel)
					defer timer.Stop()
				}
				x := &trial{models: answers(tt.turns...), builtin: &host{tools: []tool{stuck}}}
				began := time.Now()
				_, err := x.run(t, ctx, w)
				if wrong(err) != tt.wrong || time.Since(began) != tt.took {
					t.Errorf("RunAgent = %v after %s, want %s after %s", err, time.Since(began), tt.wrong, tt.took)
				}
			})
		})
	}
}
