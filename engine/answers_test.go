package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// TestTwoAnswersAtOnce decides a thousand gates twice at the same instant, one way and
// the other: exactly one answer wins, the other hears which.
func TestTwoAnswersAtOnce(t *testing.T) {
	t.Parallel()
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	req := request(t, parse(t, gateFragment), `{}`)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for round := range rounds / 4 {
				if err := twoAnswers(t, e, req); err != nil {
					t.Errorf("worker %d, round %d: %v", worker, round, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func twoAnswers(t *testing.T, e *engine.Engine, req engine.StartRequest) error {
	t.Helper()
	run, gates := untilPaused(t, e, req)
	start := make(chan struct{})
	var wg sync.WaitGroup
	var got [2]engine.Gate
	var errs [2]error
	for i, decision := range []string{engine.Approved, engine.Rejected} {
		wg.Go(func() {
			<-start
			got[i], errs[i] = e.Decide(t.Context(), gates[0], engine.Decision{Decision: decision, By: decision, Via: engine.ViaConsole})
		})
	}
	close(start)
	wg.Wait()
	winner, loser := 0, 1
	if errs[0] != nil {
		winner, loser = 1, 0
	}
	if errs[winner] != nil {
		return fmt.Errorf("nobody won: %w, %w", errs[0], errs[1])
	}
	late, ok := errors.AsType[*engine.DecidedError](errs[loser])
	if !ok || late.Gate.Decision != got[winner].Decision {
		return fmt.Errorf("the loser got %+v, %w; want to hear of %s", got[loser], errs[loser], got[winner].Decision)
	}
	if want := fmt.Sprintf(`{"out":{"decision":%q,"decidedBy":%q}}`, got[winner].Decision, got[winner].DecidedBy); string(last(follow(t, e, run)).Outputs) != want {
		return fmt.Errorf("the run went on with another answer than %s", want)
	}
	return nil
}

// TestAnswerAtTheTimeout answers in the moment the time runs out: either the person
// or the time-out decided, and whoever was told so did.
func TestAnswerAtTheTimeout(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	w := parse(t, `
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, timeout_ms: 300, timeout_action: approve}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: out}]`)
	var wg sync.WaitGroup
	for round := range 20 {
		wg.Go(func() {
			run, gate := untilAsked(t, e, request(t, w, `{}`))
			g, err := e.Gate(t.Context(), gate)
			if err != nil {
				t.Error(err)
				return
			}
			<-time.After(time.Until(g.Expires) + time.Duration(round-10)*time.Millisecond/4)
			_, err = e.Decide(t.Context(), g.ID, engine.Decision{Decision: engine.Rejected, By: "person", Via: engine.ViaConsole})
			want := `{"out":{"decision":"rejected","decidedBy":"person"}}`
			if _, late := errors.AsType[*engine.DecidedError](err); late {
				want = `{"out":{"decision":"approved","decidedBy":"timeout"}}`
			} else if err != nil {
				t.Error(err)
				return
			}
			if got := string(last(follow(t, e, run)).Outputs); got != want {
				t.Errorf("round %d: told %v, the run went on with %s, want %s", round, err, got, want)
			}
		})
	}
	wg.Wait()
}
