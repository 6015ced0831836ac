package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
)

// paced streams pieces with pauses before each.
func paced(pieces ...any) *pacedModels {
	return &pacedModels{pieces: pieces}
}

type pacedModels struct{ pieces []any }

func (p *pacedModels) Turn(ctx context.Context, _ *agent.Request, delta func(agent.Delta)) (*agent.Turn, error) {
	var text strings.Builder
	for _, piece := range p.pieces {
		switch piece := piece.(type) {
		case time.Duration:
			timer := time.NewTimer(piece)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		case string:
			text.WriteString(piece)
			delta(agent.Delta{Text: piece})
		case agent.Delta:
			delta(piece)
		case error:
			return nil, piece
		}
	}
	return &agent.Turn{Stop: agent.StopEnd, Parts: []agent.Part{{Text: text.String()}}}, nil
}

func (p *pacedModels) Price(string, string) (agent.Price, bool) { return agent.Price{}, true }

func TestTokens(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	tests := []struct {
		name   string
		pieces []any
		want   []string // time and event
	}{
		{"one", []any{"a"}, []string{"0 a"}},
		{"none", []any{}, nil},
		{"slow ones at once", []any{"a", 25 * ms, "b", 30 * ms, "c"}, []string{"0 a", "25 b", "55 c"}},
		{"quick ones together", []any{"a", 5 * ms, "b", 5 * ms, "c", 5 * ms, "d", 50 * ms, "e"}, []string{"0 a", "25 bcd", "65 e"}},
		{"the rest before the result", []any{"a", 5 * ms, "b", 5 * ms, "c"}, []string{"0 a", "10 bc"}},
		{"the rest before the failure", []any{"a", 5 * ms, "b", &agent.ModelError{Kind: agent.Transport, Streamed: true}}, []string{"0 a", "5 b"}},
		{"thoughts apart, in order", []any{agent.Delta{Reasoning: "x"}, agent.Delta{Reasoning: "y"}, "a", agent.Delta{Reasoning: "z"}, "b"}, []string{"0 (x)", "0 (y)", "0 a", "0 (z)", "0 b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := parse(t, agentOf("", "", ""))
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var got []string
				x := &trial{
					change: func(o *agent.Options) { o.Models = paced(tt.pieces...) },
					ask: func(c *engine.AgentCall) {
						c.Emit = func(ev engine.Event) {
							if ev.Model != "m-one" {
								t.Errorf("%s of model %q", ev.Type, ev.Model)
							}
							text := ev.Token
							if ev.Type == engine.AgentReasoning {
								text = "(" + ev.Text + ")"
							}
							got = append(got, fmt.Sprintf("%d %s", time.Since(began).Milliseconds(), text))
						}
					},
				}
				_, _ = x.run(t, t.Context(), w)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A thousand tokens in a second are some forty events, none of them lost.
func TestTokensAreGathered(t *testing.T) {
	t.Parallel()
	var pieces []any
	for i := range 1000 {
		pieces = append(pieces, fmt.Sprint(i, " "), time.Millisecond)
	}
	w := parse(t, agentOf("", "", ""))
	synctest.Test(t, func(t *testing.T) {
		x := &trial{change: func(o *agent.Options) { o.Models = paced(pieces...) }}
		got, err := x.run(t, t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		n := 0
		for _, ev := range x.history.events {
			if ev.Type == engine.AgentToken {
				all.WriteString(ev.Token)
				n++
			}
		}
		if n < 30 || n > 41 {
			t.Errorf("%d events, want about 40", n)
		}
		if string(got.Output) != `"`+all.String()+`"` {
			t.Error("the tokens are not the reply")
		}
	})
}

// masked replaces the word, also where it comes in pieces.
func masked(text string) string { return strings.ReplaceAll(text, "canary-secret", "***") }

func maskedStream() func(string, bool) string {
	held := ""
	return func(piece string, last bool) string {
		held = masked(held + piece)
		if last {
			out := held
			held = ""
			return out
		}
		keep := min(len(held), len("canary-secret")-1)
		out := held[:len(held)-keep]
		held = held[len(held)-keep:]
		return out
	}
}

// A secret in what a model or a tool says is in no event, no record and no request.
func TestScrub(t *testing.T) {
	t.Parallel()
	const secret = "canary-secret"
	asked := call("1", "t", `{"a":"`+secret+`"}`)
	first := step{
		deltas: []agent.Delta{{Reasoning: "it is canary-"}, {Reasoning: "secret"}, {Text: "say can"}, {Text: "ary-secret now"}},
		turn: &agent.Turn{Stop: agent.StopToolUse, Parts: []agent.Part{
			{Reasoning: &agent.Reasoning{Text: secret, Provider: "anthropic", Opaque: []byte(`{"t":"` + secret + `"}`)}},
			{Text: "say " + secret},
			{Call: &asked},
		}},
	}
	leak := builtin("t")
	leak.call = returns("token " + secret)
	deny := builtin("u")
	x := &trial{
		models:  answers([]step{first}, calls(call("2", "t", `{"b":"`+secret+`"`)), says("bye "+secret)),
		builtin: &host{tools: []tool{leak, deny}},
		change: func(o *agent.Options) {
			o.Scrub, o.ScrubStream = masked, maskedStream
		},
	}
	got, err := x.run(t, t.Context(), parse(t, agentOf("t, u", "", "")))
	if err != nil {
		t.Fatal(err)
	}
	if want := `"bye ***"`; string(got.Output) != want {
		t.Errorf("output = %s, want %s", got.Output, want)
	}
	var everything strings.Builder
	for _, r := range x.history.rows {
		fmt.Fprintf(&everything, "%s %s\n", r.request, r.result.Value)
	}
	for _, ev := range x.history.events {
		fmt.Fprintf(&everything, "%+v %s\n", ev, ev.ToolInput)
	}
	for _, e := range x.history.effects {
		fmt.Fprintf(&everything, "%s %s\n", e.Request, e.Shown)
	}
	for _, req := range x.models.requests {
		for _, m := range req.Messages {
			for _, p := range m.Parts {
				fmt.Fprintf(&everything, "%s %+v %+v %+v\n", p.Text, p.Reasoning, p.Call, p.Result)
				if p.Reasoning != nil {
					fmt.Fprintf(&everything, "%s", p.Reasoning.Opaque)
				}
				if p.Call != nil {
					fmt.Fprintf(&everything, "%s", p.Call.Arguments)
				}
			}
		}
	}
	if strings.Contains(everything.String(), secret) {
		t.Errorf("the secret is in:\n%s", everything.String())
	}
	var streamed string
	for _, ev := range x.history.events {
		streamed += ev.Text + ev.Token
	}
	if want := "it is ***say *** now"; streamed != want {
		t.Errorf("streamed = %q, want %q", streamed, want)
	}
}
