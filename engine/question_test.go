package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

func TestNonceIsGoodOnce(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
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
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
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

// How a task shows a gate's question outlives the calls that ask about it too,
// and is changed by one of several who would.
func TestShowing(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	gate := gates[0]
	first := time.UnixMilli(1_800_000_000_000)
	show := func(at time.Time) engine.Showing {
		t.Helper()
		shown, open, err := e.Show(t.Context(), run, at, gate, "no-such-gate")
		if err != nil || !open || len(shown) != 1 {
			t.Fatalf("Show = %v, %t, %v, want the gate alone", shown, open, err)
		}
		return shown[gate]
	}
	if got, want := show(first), (engine.Showing{Since: first}); got != want {
		t.Errorf("Show = %v, want %v", got, want)
	}
	for i := range 40 {
		if err := e.Ask(t.Context(), fmt.Sprintf("n%d", i), time.Now(), gate); err != nil {
			t.Fatal(err)
		}
	}
	stands := show(first.Add(time.Hour))
	if want := (engine.Showing{Since: first}); stands != want {
		t.Errorf("Show after an hour and 40 calls = %v, want %v", stands, want)
	}
	if good, err := e.Spend(t.Context(), "n39", gate); err != nil || len(good) != 1 {
		t.Errorf("Spend of a recent nonce = %v, %v, want the gate", good, err)
	}
	var won atomic.Int32
	var racing sync.WaitGroup
	for range 16 {
		racing.Go(func() {
			if good, err := e.Reshow(t.Context(), run, gate, stands, true); err != nil {
				t.Error(err)
			} else if good {
				won.Add(1)
			}
		})
	}
	racing.Wait()
	if got := won.Load(); got != 1 {
		t.Errorf("%d of 16 asked once more, want 1", got)
	}
	if got, want := show(first), (engine.Showing{Since: first, Again: true}); got != want {
		t.Errorf("Show of the second question = %v, want %v", got, want)
	}
	if good, err := e.Reshow(t.Context(), run, gate, stands, false); err != nil || good {
		t.Errorf("Reshow of the first question = %t, %v, want false", good, err)
	}
	if good, err := e.Reshow(t.Context(), run, gate, engine.Showing{Since: first, Again: true}, false); err != nil || !good {
		t.Errorf("Reshow = %t, %v, want true", good, err)
	}
	if _, err := e.Decide(t.Context(), gate, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	if _, open, err := e.Show(t.Context(), run, first, gate); err != nil || open {
		t.Errorf("Show of a task that asks no more: open = %t, %v, want false", open, err)
	}
}
