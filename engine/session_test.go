package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// A question of a session is found by whoever gets its reply, and settled once.
func TestQuestionOfSession(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	asked := engine.Question{ID: "q1", Session: "s1", Run: run, Gate: gates[0], Sent: time.UnixMilli(time.Now().UnixMilli()), Field: "note", URL: true, Again: true}
	if err := e.AskSession(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := e.Question(t.Context(), "s1", "q1"); !ok || err != nil || got != asked {
		t.Errorf("Question = %+v, %t, %v, want %+v", got, ok, err, asked)
	}
	if got, ok, err := e.QuestionAbout(t.Context(), "s1", gates[0]); !ok || err != nil || got != asked {
		t.Errorf("QuestionAbout = %+v, %t, %v, want %+v", got, ok, err, asked)
	}
	for _, other := range [][2]string{{"s2", "q1"}, {"s1", "q2"}} {
		if got, ok, err := e.Question(t.Context(), other[0], other[1]); ok || err != nil {
			t.Errorf("Question(%s, %s) = %+v, %v, want none", other[0], other[1], got, err)
		}
	}
	var settled atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			good, err := e.SettleQuestion(t.Context(), asked, fmt.Sprintf("outcome %d", i))
			if err != nil {
				t.Error(err)
			}
			if good {
				settled.Add(1)
			}
		})
	}
	all.Wait()
	if got := settled.Load(); got != 1 {
		t.Errorf("%d of 8 settled the question, want 1", got)
	}
	if _, ok, err := e.Question(t.Context(), "s1", "q1"); ok || err != nil {
		t.Errorf("a settled question can be answered, %v", err)
	}
	outcome, ok, err := e.Outcome(t.Context(), "q1")
	if !ok || err != nil {
		t.Errorf("Outcome = %q, %t, %v", outcome, ok, err)
	}
	if news, err := e.SessionNews(t.Context()); err != nil || news.Settled["q1"] != outcome {
		t.Errorf("news = %+v, %v, want outcome %q", news, err, outcome)
	}
	if good, err := e.Spend(t.Context(), "q1", gates[0]); err != nil || len(good) != 0 {
		t.Errorf("the nonce of a settled question = %v, %v, want it spent", good, err)
	}

	// One whose nonce is spent, or whose gate is decided, cannot be answered.
	spent := asked
	spent.ID = "q2"
	if err := e.AskSession(t.Context(), spent); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Spend(t.Context(), "q2", gates[0]); err != nil {
		t.Fatal(err)
	}
	if good, err := e.SettleQuestion(t.Context(), spent, "late"); good || err != nil {
		t.Errorf("SettleQuestion after Spend = %t, %v, want false", good, err)
	}
	last := asked
	last.ID = "q3"
	if err := e.AskSession(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := e.Question(t.Context(), "s1", "q3"); ok || err != nil {
		t.Errorf("a question of a decided gate can be answered, %v", err)
	}
	last.ID = "q4"
	if err := e.AskSession(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := e.Outcome(t.Context(), "q4"); ok || err != nil {
		t.Errorf("a question at a decided gate has an outcome, %v", err)
	}
}

// What one process writes of a session another reads.
func TestSessions(t *testing.T) {
	t.Parallel()
	place := durabletest.Place(t, t.TempDir())
	a, b := open(t, place, nil), open(t, place, nil)
	now := time.UnixMilli(time.Now().UnixMilli())
	seen := func(e *engine.Engine, id string, want time.Time, over bool) {
		t.Helper()
		at, ended, err := e.SeenSession(t.Context(), id)
		if err != nil || !at.Equal(want) || ended != over {
			t.Errorf("SeenSession(%s) = %v, %t, %v, want %v, %t", id, at, ended, err, want, over)
		}
	}
	seen(b, "s1", time.Time{}, false)
	for _, used := range []time.Time{now.Add(-time.Hour), now, now.Add(-time.Minute)} { // the latest counts
		if err := a.SeeSessions(t.Context(), map[string]time.Time{"s1": used, "s2": now.Add(-2 * time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	seen(b, "s1", now, false)
	if err := b.EndSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if err := b.EndSession(t.Context(), "s3"); err != nil {
		t.Fatal(err)
	}
	seen(a, "s1", now, true)
	if err := a.SeeSessions(t.Context(), map[string]time.Time{"s1": now.Add(time.Second)}); err != nil {
		t.Fatal(err)
	}
	seen(a, "s1", now.Add(time.Second), true) // an end is an end
	id, err := b.CancelCall(t.Context(), "s2", `"7"`, "enough", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if got, err := a.Cancelling(t.Context(), "s2", now.Add(-time.Second)); err != nil || got != want {
			t.Errorf("Cancelling = %t, %v, want %t", got, err, want)
		}
		if got, err := a.Cancelling(t.Context(), "s1", now.Add(-time.Second)); err != nil || got {
			t.Errorf("Cancelling of another session = %t, %v, want false", got, err)
		}
		if err := b.CallCancelled(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	news, err := a.SessionNews(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(news.Ended)
	if !slices.Equal(news.Ended, []string{"s1", "s3"}) || len(news.Cancels) != 1 {
		t.Fatalf("news = %+v, want the ends of s1 and s3 and a cancel", news)
	}
	if c := news.Cancels[0]; c.ID != id || c.Session != "s2" || c.Call != `"7"` || c.Reason != "enough" || time.Since(c.Sent).Abs() > time.Minute {
		t.Errorf("cancel = %+v", c)
	}
	if err := a.ForgetSessions(t.Context(), now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	seen(b, "s2", time.Time{}, false)
	seen(b, "s1", now.Add(time.Second), true)
}
