package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
	"github.com/relavium/relavium-serve/workflows"
)

// reached are the real models, all providers at one fake.
func reached(t *testing.T, opt fakemodel.Options) (agent.Models, *fakemodel.Server) {
	t.Helper()
	fake := fakemodel.New(opt)
	srv := httptest.NewServer(fake)
	providers := map[string]models.Provider{}
	for _, name := range models.Names() {
		providers[name] = models.Provider{BaseURL: fakemodel.URL(srv.URL, name), AllowLocalEndpoint: true}
	}
	m, err := models.New(models.Options{Providers: providers, Key: func(context.Context, string) (string, error) { return "key-of-the-test", nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.CloseIdle()
		srv.CloseClientConnections()
		srv.Close()
	})
	return m, fake
}

// current is a model of each provider that reasons.
func current() map[string]string {
	return map[string]string{
		models.Anthropic: "claude-sonnet-5-5", models.OpenAI: "gpt-5.2", models.DeepSeek: "deepseek-flash", models.Gemini: "gemini-3.8-flash",
	}
}

// asks is a workflow whose agent asks first, then the others of the chain.
func asks(t *testing.T, ofNode string, chain ...string) *workflows.Workflow {
	t.Helper()
	var fallback []string
	for _, p := range chain[1:] {
		fallback = append(fallback, fmt.Sprintf("{provider: %s, model: %s, max_attempts: 2}", p, current()[p]))
	}
	return parse(t, fmt.Sprintf(`
agents:
  - {id: a, provider: %s, model: %s, system_prompt: be terse, reasoning_effort: high, tools: [t, u], fallback_chain: [%s]}
nodes:
  - {id: in, type: input}
  - {id: n, type: agent, agent_ref: a, prompt_template: go%s}
  - {id: out, type: output}
edges: [{from: in, to: n}, {from: n, to: out}]
`, chain[0], current()[chain[0]], strings.Join(fallback, ", "), ofNode))
}

func eachProvider(t *testing.T, run func(t *testing.T, provider string)) {
	t.Helper()
	for provider := range current() {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			run(t, provider)
		})
	}
}

// outcomes tells how the fake answered, for a test that fails.
func outcomes(fake *fakemodel.Server) string {
	var out []string
	for _, e := range fake.Entries() {
		if e.Event == "end" {
			out = append(out, fmt.Sprintf("%s turn %d: %s %d %s", e.Provider, e.Turn, e.Outcome, e.Status, e.Why))
		}
	}
	return strings.Join(out, "\n")
}

func scripted(turns ...fakemodel.Turn) fakemodel.Options {
	return fakemodel.Options{Script: fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: turns}}}}
}

var callsTwo = fakemodel.Turn{Reasoning: "think first", Text: "I look. ", Calls: []fakemodel.Call{
	{Name: "t", Arguments: json.RawMessage(`{"a":1}`)}, {Name: "u", Arguments: json.RawMessage(`{"b":"x"}`)},
}}

// A whole conversation by each provider's own wire: reasoning that is given back,
// parallel calls, a mistake, a reply that has to be repaired.
func TestProviders(t *testing.T) {
	t.Parallel()
	const schema = ", output_schema: {type: object, properties: {ok: {type: boolean}}, required: [ok], additionalProperties: false}"
	eachProvider(t, func(t *testing.T, provider string) {
		t.Helper()
		m, fake := reached(t, scripted(
			callsTwo,
			fakemodel.Turn{Reasoning: "again", Calls: []fakemodel.Call{{Name: "nope"}}},
			fakemodel.Turn{Text: "yes"},
			fakemodel.Turn{Reasoning: "at last", Text: `{"ok":true}`},
		))
		x := &trial{builtin: &host{tools: []tool{builtin("t"), builtin("u")}}, change: func(o *agent.Options) { o.Models = m }}
		got, err := x.run(t, t.Context(), asks(t, schema, provider))
		if err != nil {
			t.Fatalf("RunAgent: %v\n%+v", err, outcomes(fake))
		}
		if string(got.Output) != `{"ok":true}` {
			t.Errorf("output = %s", got.Output)
		}
		if diff := cmp.Diff([]string{`t {"a":1}`, `u {"b":"x"}`}, sorted(x.builtin.journal)); diff != "" {
			t.Errorf("tools called (-want +got):\n%s", diff)
		}
		if said := x.history.said(engine.CostUpdated); len(said) != 4 || strings.Contains(strings.Join(said, ""), "priced") {
			t.Errorf("cost said %q", said)
		}
		var streamed string
		for _, ev := range x.history.events {
			if ev.Type == engine.AgentToken {
				streamed += ev.Token
			}
		}
		if streamed != `I look. yes{"ok":true}` {
			t.Errorf("streamed %q", streamed)
		}
		for _, e := range fake.Entries() {
			if e.Event == "end" && e.Outcome != "done" {
				t.Errorf("turn %d ended %s: %s", e.Turn, e.Outcome, e.Why)
			}
		}
	})
}

// Each provider is followed by each other one in the middle of a tool loop.
func TestFallbackAcrossProviders(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, first string) {
		t.Helper()
		eachProvider(t, func(t *testing.T, second string) {
			t.Helper()
			if first == second {
				return // no pair
			}
			m, fake := reached(t, fakemodel.Options{Answer: func(q *fakemodel.Request) (fakemodel.Turn, bool) {
				switch {
				case q.Turn == 0:
					return callsTwo, true
				case q.Provider == first:
					return fakemodel.Turn{Fail: []fakemodel.Fail{{Status: 503}, {Status: 503}}}, true
				}
				return fakemodel.Turn{Text: "from " + q.Provider}, true
			}})
			x := &trial{builtin: &host{tools: []tool{builtin("t"), builtin("u")}}, change: func(o *agent.Options) { o.Models = m }}
			got, err := x.run(t, t.Context(), asks(t, "", first, second))
			if err != nil || string(got.Output) != `"from `+second+`"` {
				t.Errorf("RunAgent = %s, %v\n%s", got.Output, err, outcomes(fake))
			}
			if len(x.builtin.journal) != 2 {
				t.Errorf("called %v", x.builtin.journal)
			}
		})
	})
}

// What a provider's faults come to.
func TestProviderFaults(t *testing.T) {
	t.Parallel()
	cut := func(how fakemodel.Cut) fakemodel.Turn { return fakemodel.Turn{Text: "half of it", Cut: how, After: 2} }
	tests := []struct {
		name  string
		turn  fakemodel.Turn
		want  string
		wrong string
	}{
		{"429, then an answer from the other", fakemodel.Turn{Text: "a", Fail: []fakemodel.Fail{{Status: 429, RetryAfter: "1"}}}, `"b"`, ""},
		{"overloaded, then an answer from the other", fakemodel.Turn{Text: "a", Fail: []fakemodel.Fail{{Status: 529}}}, `"b"`, ""},
		{"key refused", fakemodel.Turn{Fail: []fakemodel.Fail{{Status: 401}}}, "", "provider_auth"},
		{"request refused", fakemodel.Turn{Fail: []fakemodel.Fail{{Status: 400}}}, "", "validation"},
		{"disconnected in mid-stream", cut(fakemodel.CutDisconnect), "", "provider_unavailable retryable"},
		{"truncated in mid-stream", cut(fakemodel.CutTruncated), "", "provider_unavailable retryable"},
		{"malformed in mid-stream", cut(fakemodel.CutMalformed), "", "provider_unavailable retryable"},
		{"filtered", fakemodel.Turn{Text: "half", Stop: "content_filter"}, "", "content_filter"},
		{"cut off", fakemodel.Turn{Text: "half", Stop: "length"}, `"half"`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			eachProvider(t, func(t *testing.T, provider string) {
				t.Helper()
				other := models.Anthropic
				if provider == other {
					other = models.OpenAI
				}
				m, fake := reached(t, fakemodel.Options{Answer: func(q *fakemodel.Request) (fakemodel.Turn, bool) {
					if q.Provider == provider {
						return tt.turn, true
					}
					return fakemodel.Turn{Text: "b"}, true
				}})
				x := &trial{change: func(o *agent.Options) { o.Models = m }}
				got, err := x.run(t, t.Context(), asks(t, "", provider, other))
				if string(got.Output) != tt.want || wrong(err) != tt.wrong {
					t.Errorf("RunAgent = %s, %v; want %s, %s\n%s", got.Output, err, tt.want, tt.wrong, outcomes(fake))
				}
				if err != nil && strings.Contains(err.Error(), "127.0.0.1") {
					t.Errorf("the error names an address: %v", err)
				}
			})
		})
	}
}

// A run that is cancelled in mid-stream hangs up on its provider.
func TestCancelHangsUp(t *testing.T) {
	t.Parallel()
	eachProvider(t, func(t *testing.T, provider string) {
		t.Helper()
		m, fake := reached(t, scripted(fakemodel.Turn{Tokens: 100, Cut: fakemodel.CutHold, After: 5}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		x := &trial{change: func(o *agent.Options) { o.Models = m }, ask: func(c *engine.AgentCall) {
			emit := c.Emit
			c.Emit = func(ev engine.Event) {
				emit(ev)
				cancel()
			}
		}}
		if _, err := x.run(t, ctx, asks(t, "", provider)); wrong(err) != "cancelled" {
			t.Errorf("RunAgent = %v, want cancelled", err)
		}
		within, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := fake.Wait(within, fakemodel.Ended("gone", 1)); err != nil {
			t.Errorf("the provider does not see it: %v", err)
		}
	})
}
