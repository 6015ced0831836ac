package gates

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
)

// client2026 declares form elicitation with its request.
func client2026() Client {
	return Client{Version: "2026-07-28", Capabilities: mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapability{Form: &struct{}{}}}}
}

// A clock is what the ladder takes for the time.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// A caller is a client of 2026-07-28 that calls one tool and retries.
type caller struct {
	t      *ladderTest
	clock  *clock
	policy Policy
	last   *waiter
}

const theRequest = "digest-of-the-request"

// call sends the call, with a state and answers if it is a retry, and returns
// the question or the outcome.
func (c *caller) call(state, responses string) (*Question, string) {
	c.t.tb.Helper()
	w := c.t.attach(client2026(), c.policy)
	c.last = w
	if state != "" {
		s, err := c.t.ladder.Keys().Open(state, engine.Local)
		if err != nil {
			c.t.tb.Fatal(err)
		}
		if err := w.call.Answer(c.t.tb.Context(), s, json.RawMessage(responses)); err != nil {
			c.t.tb.Fatal(err)
		}
	}
	ev, q, err := w.next(theRequest)
	switch {
	case err != nil:
		return nil, err.Error()
	case q != nil:
		return q, ""
	}
	return nil, c.t.decisions() + " " + ev.Type
}

// keys are those of a question's input requests.
func keys(q *Question) string {
	if q == nil {
		return "no question"
	}
	return strings.Join(slices.Sorted(maps.Keys(q.Requests)), " ")
}

func newCaller(tb testing.TB, policy Policy, groups ...string) *caller {
	tb.Helper()
	now := newClock()
	return &caller{t: newLadder(tb, Options{Now: now.Now}, gated(tb, groups...)), clock: now, policy: policy}
}

func TestThreeGatesInARow2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one", "two:review", "three:input")
	var state, responses, end string
	var q *Question
	for i, answer := range []string{yes, `{"action":"decline"}`, `{"action":"accept","content":{"value":"blue"}}`} {
		q, end = c.call(state, responses)
		node := []string{"one", "two", "three"}[i]
		if keys(q) != node {
			t.Fatalf("round %d asks for %s (%s), want %s", i+1, keys(q), end, node)
		}
		s, err := c.t.ladder.Keys().Open(q.State, engine.Local)
		if err != nil {
			t.Fatal(err)
		}
		if s.Round != i+1 || s.Request != theRequest || s.Run != c.t.run {
			t.Errorf("state = %+v, want round %d of this request and run", s, i+1)
		}
		c.clock.pass(slow)
		state, responses = q.State, fmt.Sprintf(`{%q:%s}`, node, answer)
	}
	q, end = c.call(state, responses)
	if want := `one=approved/elicitation two=rejected/elicitation three=input_provided/elicitation/"blue" run:completed`; q != nil || end != want {
		t.Errorf("outcome = %s (%s), want %s", end, keys(q), want)
	}
}

// TestAllOpenGatesInOneQuestion2026 answers two gates with one retry.
func TestAllOpenGatesInOneQuestion2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one two three")
	q, _ := c.call("", "")
	if got, want := keys(q), "one three two"; got != want {
		t.Fatalf("asked for %s, want %s", got, want)
	}
	c.clock.pass(slow)
	q, _ = c.call(q.State, `{"one":`+yes+`,"two":`+no+`,"other":`+yes+`}`)
	if got, want := keys(q), "three"; got != want {
		t.Fatalf("asked for %s, want %s", got, want)
	}
	c.clock.pass(slow)
	_, end := c.call(q.State, `{"three":`+yes+`}`)
	for _, want := range []string{"one=approved/elicitation", "two=rejected/elicitation", "three=approved/elicitation", "run:completed"} {
		if !strings.Contains(end, want) {
			t.Errorf("outcome = %s, want %s in it", end, want)
		}
	}
}

// TestDueOfAQuestion2026 is the rule of when a call returns: when only gates are
// left, or two seconds after the oldest.
func TestDueOfAQuestion2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one two")
	w := c.t.attach(client2026(), human())
	if due := w.call.Due(); !due.IsZero() {
		t.Errorf("Due before any gate = %s, want never", due)
	}
	opened := 0
	w.drive(func(ev *engine.Event) bool {
		if opens(ev) {
			opened++
		}
		return opened == 1
	})
	list, err := c.t.engine.Gates(t.Context(), engine.GateFilter{Run: c.t.run})
	if err != nil {
		t.Fatal(err)
	}
	oldest := list[0].Opened
	if got, want := w.call.Due(), oldest.Add(2*time.Second); !got.Equal(want) {
		t.Errorf("Due with a gate = %s, want %s", got, want)
	}
	w.drive(opens)
	if got, want := w.call.Due(), oldest.Add(2*time.Second); !got.Equal(want) {
		t.Errorf("Due with two gates = %s, want %s", got, want)
	}
	w.drive(func(ev *engine.Event) bool { return ev.Type == engine.RunPaused })
	if got := w.call.Due(); !got.Equal(oldest) {
		t.Errorf("Due when only gates are left = %s, want at once", got)
	}
	w.call.Shut()
	if due := w.call.Due(); !due.IsZero() {
		t.Errorf("Due of a call that asks no more = %s, want never", due)
	}
	// A pause of the past, one of whose gates is decided, hurries nothing.
	c.t.decide("one", engine.Approved)
	late := c.t.attach(client2026(), human())
	late.drive(func(ev *engine.Event) bool { return ev.Type == engine.RunPaused })
	if got, want := late.call.Due(), c.t.gate("two").Opened.Add(2*time.Second); !got.Equal(want) {
		t.Errorf("Due after news of the past = %s, want %s", got, want)
	}
}

// TestRetry2026 holds what each answer of a retry does.
func TestRetry2026(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		responses string
		after     time.Duration
		decided   string // of the gate
		asks      bool   // the call returns with the gate's question again
		told      string
	}{
		{"approve", `{"one":` + yes + `}`, slow, "one=approved/elicitation", false, ""},
		{"decline with content", `{"one":{"action":"decline","content":{"decision":"approve"}}}`, slow, "one=rejected/elicitation", false, ""},
		{"cancel", `{"one":{"action":"cancel","content":{"decision":"approve"}}}`, slow, "one=", false, "dismissed"},
		{"reflex", `{"one":` + yes + `}`, 4 * time.Millisecond, "one=", false, "4 ms"},
		{"accept with nothing", `{"one":{"action":"accept"}}`, slow, "one=", true, "once more"},
		{"no result", `{"one":true}`, slow, "one=", false, "not a JSON object"},
		{"another key", `{"two":` + yes + `}`, slow, "one=", true, ""},
		{"no answers", `{}`, slow, "one=", true, ""},
		{"answers of another type", `[]`, slow, "one=", true, ""},
		{"none", ``, slow, "one=", true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			call := newCaller(t, human(), "one")
			q, _ := call.call("", "")
			call.clock.pass(c.after)
			if !c.asks && strings.HasSuffix(c.decided, "=") { // the call waits for the other rungs
				done := make(chan string, 1)
				w := call.t.attach(client2026(), human())
				s, err := call.t.ladder.Keys().Open(q.State, engine.Local)
				if err != nil {
					t.Fatal(err)
				}
				if err := w.call.Answer(t.Context(), s, json.RawMessage(c.responses)); err != nil {
					t.Fatal(err)
				}
				go func() { done <- w.outcome() }()
				call.t.told(w, c.told)
				if got := call.t.decisions(); got != c.decided {
					t.Errorf("decisions = %s, want %s", got, c.decided)
				}
				call.t.decide("one", engine.Rejected)
				if got, want := finished(t, done), "one=rejected/cli run:completed"; got != want {
					t.Errorf("outcome = %s, want %s", got, want)
				}
				return
			}
			again, end := call.call(q.State, c.responses)
			if (again != nil) != c.asks {
				t.Fatalf("the retry yields %s (%s), want a question: %t", keys(again), end, c.asks)
			}
			if !strings.Contains(call.last.lines(), c.told) {
				t.Errorf("told %q, want %q in it", call.last.lines(), c.told)
			}
			if c.asks {
				if again.State == q.State {
					t.Error("the second question has the state of the first")
				}
				call.clock.pass(slow)
				if _, end = call.call(again.State, `{"one":`+yes+`}`); end != "one=approved/elicitation run:completed" {
					t.Errorf("outcome = %s, want the answer to the second question", end)
				}
			} else if want := c.decided + " run:completed"; end != want {
				t.Errorf("outcome = %s, want %s", end, want)
			}
		})
	}
}

// TestSecondInvalidAnswer2026 closes the rung.
func TestSecondInvalidAnswer2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one", "two")
	q, _ := c.call("", "")
	c.clock.pass(slow)
	q, _ = c.call(q.State, `{"one":{"action":"accept","content":{}}}`)
	c.clock.pass(slow)
	if keys(q) != "one" {
		t.Fatalf("asked for %s, want one", keys(q))
	}
	s, err := c.t.ladder.Keys().Open(q.State, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	w := c.t.attach(client2026(), human())
	if err := w.call.Answer(t.Context(), s, json.RawMessage(`{"one":{"action":"accept","content":{}}}`)); err != nil {
		t.Fatal(err)
	}
	out := w.start()
	c.t.told(w, "twice")
	c.t.decide("one", engine.Approved)
	c.t.waitFor(1)
	c.t.decide("two", engine.Approved)
	if got, want := finished(t, out), "one=approved/cli two=approved/cli run:completed"; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
}

// TestStaleState2026 replays a state when its question is answered, its gate is
// decided, or its run has ended: the answers are ignored, nothing is decided
// twice, and the call gets what there is to get.
func TestStaleState2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one", "two")
	first, _ := c.call("", "")
	c.clock.pass(slow)
	second, _ := c.call(first.State, `{"one":`+yes+`}`)
	if keys(second) != "two" {
		t.Fatalf("asked for %s, want two", keys(second))
	}
	c.clock.pass(slow)

	// The first state again, with another answer: the call gets the question at hand.
	again, end := c.call(first.State, `{"one":`+no+`,"two":`+yes+`}`)
	if keys(again) != "two" {
		t.Fatalf("a replay yields %s (%s), want the question about two", keys(again), end)
	}
	if got, want := c.last.lines(), "gate one was decided already: approved by local via elicitation"; !strings.Contains(got, want) {
		t.Errorf("told %q, want %q in it", got, want)
	}
	if got, want := c.t.decisions(), "one=approved/elicitation two="; got != want {
		t.Errorf("decisions = %s, want %s", got, want)
	}

	// Two questions about one gate are open; each is good once.
	c.clock.pass(slow)
	_, end = c.call(second.State, `{"two":`+no+`}`)
	const want = "one=approved/elicitation two=rejected/elicitation run:completed"
	if end != want {
		t.Errorf("outcome = %s, want %s", end, want)
	}
	for _, state := range []string{first.State, second.State, again.State} {
		if _, end = c.call(state, `{"one":`+no+`,"two":`+yes+`}`); end != want {
			t.Errorf("outcome of a replay after the end = %s, want %s", end, want)
		}
	}

	// A nonce that a reflex spent is not good for a slower try.
	other := newCaller(t, human(), "one")
	q, _ := other.call("", "")
	w := other.t.attach(client2026(), human())
	s, err := other.t.ladder.Keys().Open(q.State, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.call.Answer(t.Context(), s, json.RawMessage(`{"one":`+yes+`}`)); err != nil {
		t.Fatal(err)
	}
	other.clock.pass(slow)
	again, _ = other.call(q.State, `{"one":`+yes+`}`)
	if keys(again) != "one" || other.t.decisions() != "one=" {
		t.Errorf("a replay after a reflex yields %s and decides %s, want to be asked anew", keys(again), other.t.decisions())
	}
}

// TestStateOfAnEndedLife2026 brings a state back when its run's time is over by
// the clock, though nothing has ended it yet.
func TestStateOfAnEndedLife2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one")
	q, _ := c.call("", "")
	s, err := c.t.ladder.Keys().Open(q.State, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	c.clock.pass(slow)
	s.Ends = c.clock.Now().Add(-time.Millisecond)
	w := c.t.attach(client2026(), human())
	if err := w.call.Answer(t.Context(), s, json.RawMessage(`{"one":`+yes+`}`)); err != nil {
		t.Fatal(err)
	}
	if got := c.t.decisions(); got != "one=" {
		t.Errorf("decisions = %s, want none", got)
	}
}

// TestRungClosedMeanwhile2026 answers a question after the operator took the rung
// away.
func TestRungClosedMeanwhile2026(t *testing.T) {
	t.Parallel()
	for _, now := range []Policy{
		{Accept: []string{AcceptConsole, AcceptCLI}},
		{Accept: []string{AcceptElicitation, AcceptCLI}, NotRequester: true},
	} {
		c := newCaller(t, human(), "one")
		q, _ := c.call("", "")
		s, err := c.t.ladder.Keys().Open(q.State, engine.Local)
		if err != nil {
			t.Fatal(err)
		}
		c.clock.pass(slow)
		w := c.t.attach(client2026(), now)
		if err := w.call.Answer(t.Context(), s, json.RawMessage(`{"one":`+yes+`}`)); err != nil {
			t.Fatal(err)
		}
		if got := c.t.decisions(); got != "one=" {
			t.Errorf("decisions under %+v = %s, want none", now, got)
		}
	}
}

// TestRetriesAtOnce2026 sends one retry many times at the same instant.
func TestRetriesAtOnce2026(t *testing.T) {
	t.Parallel()
	c := newCaller(t, human(), "one")
	q, _ := c.call("", "")
	c.clock.pass(slow)
	s, err := c.t.ladder.Keys().Open(q.State, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	const many = 16
	outs := make(chan string, many)
	for i := range many {
		w := c.t.attach(client2026(), human())
		go func() {
			if err := w.call.Answer(t.Context(), s, json.RawMessage(`{"one":`+[]string{yes, no}[i%2]+`}`)); err != nil {
				outs <- err.Error()
				return
			}
			// One that finds the nonce spent and the gate still open is asked anew.
			ev, q, err := w.next(theRequest)
			switch {
			case err != nil:
				outs <- err.Error()
			case q != nil:
				outs <- "asked"
			default:
				outs <- c.t.decisions() + " " + ev.Type
			}
		}()
	}
	stands := ""
	for range many {
		got := finished(t, outs)
		switch {
		case got == "asked":
		case got != "one=approved/elicitation run:completed" && got != "one=rejected/elicitation run:completed":
			t.Errorf("outcome = %s, want one decision", got)
		case stands != "" && got != stands:
			t.Errorf("outcomes %s and %s, want one", stands, got)
		default:
			stands = got
		}
	}
}

// TestRounds2026 hands over where clients give up.
func TestRounds2026(t *testing.T) {
	t.Parallel()
	var groups []string
	for i := range maxRounds + 2 {
		groups = append(groups, fmt.Sprintf("g%d", i))
	}
	c := newCaller(t, human(), groups...)
	var state, responses string
	for i := range maxRounds {
		q, end := c.call(state, responses)
		if keys(q) != groups[i] {
			t.Fatalf("round %d asks for %s (%s), want %s", i+1, keys(q), end, groups[i])
		}
		c.clock.pass(slow)
		state, responses = q.State, fmt.Sprintf(`{%q:%s}`, groups[i], yes)
	}
	if q, end := c.call(state, responses); q != nil || end != ErrRounds.Error() {
		t.Errorf("the next round = %s (%s), want %v", keys(q), end, ErrRounds)
	}
	if got := c.t.gate(groups[maxRounds-1]).Decision; got != engine.Approved {
		t.Errorf("the last answer decided %q, want %q", got, engine.Approved)
	}
	// A call that waits for the run begins to count anew.
	q, _ := c.call("", "")
	if keys(q) != groups[maxRounds] {
		t.Errorf("asked for %s, want %s", keys(q), groups[maxRounds])
	}
}

// TestNamesOfGates2026 carries the names that the operator set, and keeps two
// gates of one name apart.
func TestNamesOfGates2026(t *testing.T) {
	t.Parallel()
	policy := human()
	policy.Names = map[string]Name{"one": {Key: "user_name", Field: "name"}, "two": {Key: "user_name"}}
	c := newCaller(t, policy, "one:input two")
	q, _ := c.call("", "")
	if len(q.Requests) != 2 || !has(q.Requests, "user_name") {
		t.Fatalf("asked for %s, want user_name and another", keys(q))
	}
	s, err := c.t.ladder.Keys().Open(q.State, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	var responses []string
	for _, a := range s.Asked {
		answer := yes
		if a.Gate == c.t.gate("one").ID {
			answer = `{"action":"accept","content":{"name":41.50}}`
			if a.Key == "user_name" && a.Field != "name" {
				t.Errorf("the renamed field of %+v is not sealed", a)
			}
		}
		responses = append(responses, fmt.Sprintf("%q:%s", a.Key, answer))
	}
	c.clock.pass(slow)
	c.policy.Names = nil // the settings changed meanwhile: the question's own names count
	_, end := c.call(q.State, "{"+strings.Join(responses, ",")+"}")
	for _, want := range []string{"one=input_provided/elicitation/41.50", "two=approved/elicitation", "run:completed"} {
		if !strings.Contains(end, want) {
			t.Errorf("outcome = %s, want %s in it", end, want)
		}
	}
}

// TestPage2026 sends a client that only opens pages to the console.
func TestPage2026(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{Page: func(gate string) string { return "http://127.0.0.1:7412/gates/" + gate }}, gated(t, "one"))
	client := client2026()
	client.Capabilities.Elicitation = &mcp.ElicitationCapability{URL: &struct{}{}}
	_, q, err := lt.attach(client, human()).next(theRequest)
	if err != nil || q == nil {
		t.Fatalf("next = %v, %v, want a question", q, err)
	}
	p := q.Requests["one"].Elicitation
	if p.Mode != "url" || p.URL == "" || p.ElicitationID != "" {
		t.Errorf("question = %+v, want a page without an id", p)
	}
	s, err := lt.ladder.Keys().Open(q.State, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	w := lt.attach(client, Policy{})
	if err := w.call.Answer(t.Context(), s, json.RawMessage(`{"one":`+yes+`}`)); err != nil {
		t.Fatal(err)
	}
	out := w.start()
	lt.told(w, "page was opened")
	if got := lt.decisions(); got != "one=" {
		t.Errorf("decisions = %s, want none", got)
	}
	lt.decide("one", engine.Approved)
	if got, want := finished(t, out), "one=approved/cli run:completed"; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	e, k := &engine.Engine{}, &Keys{}
	for _, c := range []struct {
		opt  Options
		want string
	}{
		{Options{Keys: k, Logger: (&logged{}).logger()}, "Options.Engine"},
		{Options{Engine: e, Logger: (&logged{}).logger()}, "Options.Keys"},
		{Options{Engine: e, Keys: k}, "Options.Logger"},
	} {
		if _, err := New(c.opt); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("New without it = %v, want %s named", err, c.want)
		}
	}
}
