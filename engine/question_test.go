package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

func TestNonceIsGoodOnce(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), nil)
	_, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	gate := gates[0]
	spend := func(nonce string) int {
		t.Helper()
		good, err := e.Spend(t.Context(), nonce, gate, "no-such-gate")
		if err != nil {
			t.Fatal(err)
		}
		return len(good)
	}
	ask := func(nonce string) {
		t.Helper()
		if err := e.Ask(t.Context(), nonce, time.Now(), gate, "no-such-gate"); err != nil {
			t.Fatal(err)
		}
	}
	if got := spend("a"); got != 0 {
		t.Errorf("Spend of a nonce that was never asked = %d gates, want 0", got)
	}
	ask("a")
	ask("b") // another call waits for the same gate
	for _, c := range []struct {
		nonce string
		want  int
	}{{"a", 1}, {"a", 0}, {"b", 1}, {"b", 0}, {"", 0}} {
		if got := spend(c.nonce); got != c.want {
			t.Errorf("Spend(%q) = %d gates, want %d", c.nonce, got, c.want)
		}
	}
	if err := e.Ask(t.Context(), "two words", time.Now(), gate); err == nil {
		t.Error("Ask took a nonce with a space")
	}

	// However often it is asked, a gate keeps a bounded number of nonces.
	for i := range 40 {
		ask(fmt.Sprintf("n%d", i))
	}
	if old, recent := spend("n10"), spend("n39"); old != 0 || recent != 1 {
		t.Errorf("Spend of an old and of a recent nonce = %d, %d, want 0, 1", old, recent)
	}

	// At a decided gate none is good.
	ask("late")
	if _, err := e.Decide(t.Context(), gate, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	if got := spend("late"); got != 0 {
		t.Errorf("Spend at a decided gate = %d gates, want 0", got)
	}
	ask("later")
	if got := spend("later"); got != 0 {
		t.Errorf("Spend of a nonce asked at a decided gate = %d gates, want 0", got)
	}
}

func TestNonceIsSpentByOneOfMany(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), nil)
	_, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	if err := e.Ask(t.Context(), "once", time.Now(), gates...); err != nil {
		t.Fatal(err)
	}
	var good atomic.Int32
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			spent, err := e.Spend(t.Context(), "once", gates...)
			if err != nil {
				t.Error(err)
			}
			good.Add(int32(len(spent)))
		})
	}
	all.Wait()
	if got := good.Load(); got != 1 {
		t.Errorf("%d of 16 spent the nonce, want 1", got)
	}
}
