package gates

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// patience bounds what a test waits for; it is never what passes.
const patience = 30 * time.Second

const project = "p-test"

type noAgents struct{}

func (noAgents) RunAgent(context.Context, engine.AgentCall) (engine.AgentResult, error) {
	return engine.AgentResult{}, &engine.RunError{Code: engine.CodeToolUnavailable, Message: "none"}
}

// openEngine opens an engine that the test closes.
func openEngine(tb testing.TB, path string) *engine.Engine {
	tb.Helper()
	e, err := engine.Open(tb.Context(), engine.Options{
		Path: path, Executor: true, Projects: []string{project}, Agent: noAgents{}, Logger: (&logged{}).logger(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer done()
		if err := e.Close(ctx); err != nil {
			tb.Errorf("Close = %v", err)
		}
	})
	return e
}

// gated is a workflow of gates: those of one group open at once, and a group
// opens when the one before it is decided.
func gated(tb testing.TB, groups ...string) *workflows.Workflow {
	tb.Helper()
	var nodes, edges strings.Builder
	from := []string{"start"}
	for _, group := range groups {
		var now []string
		for spec := range strings.FieldsSeq(group) {
			id, kind, _ := strings.Cut(spec, ":")
			if kind == "" {
				kind = "approval"
			}
			fmt.Fprintf(&nodes, "    - { id: %s, type: human_gate, gate_type: %s, message_template: \"Proceed at %s?\" }\n", id, kind, id)
			for _, f := range from {
				fmt.Fprintf(&edges, "    - { from: %s, to: %s }\n", f, id)
			}
			now = append(now, id)
		}
		from = now
	}
	for _, f := range from {
		fmt.Fprintf(&edges, "    - { from: %s, to: result }\n", f)
	}
	src := "schema_version: '1.0'\nworkflow:\n  id: heron\n  version: '0.1.0'\n  name: heron\n  description: waits\n" +
		"  trigger: { type: mcp_call }\n  nodes:\n    - { id: start, type: input }\n" + nodes.String() +
		"    - { id: result, type: output, output_format: json }\n  edges:\n" + edges.String()
	w, _, err := workflows.Parse("heron.relavium.yaml", []byte(src), workflows.Options{})
	if err != nil {
		tb.Fatalf("%v\n%s", err, src)
	}
	return w
}

// A ladderTest is a ladder over an engine with one run.
type ladderTest struct {
	tb     testing.TB
	engine *engine.Engine
	ladder *Ladder
	run    string
	log    *logged
}

func newLadder(tb testing.TB, opt Options, w *workflows.Workflow) *ladderTest {
	tb.Helper()
	t := &ladderTest{tb: tb, engine: openEngine(tb, filepath.Join(tb.TempDir(), "serve.db")), log: &logged{}}
	opt.Engine, opt.Keys, opt.Logger = t.engine, newKeys(tb, t.log), t.log.logger()
	var err error
	if t.ladder, err = New(opt); err != nil {
		tb.Fatal(err)
	}
	t.begin(w)
	tb.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer done()
		t.ladder.Wait(ctx)
	})
	return t
}

// begin starts another run, which the test is about from now on.
func (t *ladderTest) begin(w *workflows.Workflow) {
	t.tb.Helper()
	started, err := t.engine.Start(t.tb.Context(), engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: project}, Principal: engine.Local, Arguments: json.RawMessage(`{}`), Source: "mcp",
	})
	if err != nil {
		t.tb.Fatal(err)
	}
	t.run = started.Run
}

// A waiter is one call that waits for the run, as a server drives it.
type waiter struct {
	t    *ladderTest
	call *Call
	at   *engine.Attachment

	mu   sync.Mutex
	said []string
}

func (t *ladderTest) attach(c Client, p Policy) *waiter {
	t.tb.Helper()
	at, err := t.engine.Attach(t.tb.Context(), t.run, engine.Local)
	if err != nil {
		t.tb.Fatal(err)
	}
	t.tb.Cleanup(at.Close)
	w := &waiter{t: t, at: at}
	c.Principal = engine.Local
	if p.Accept == nil {
		p.Accept = []string{AcceptElicitation, AcceptConsole, AcceptCLI}
	}
	w.call = t.ladder.Begin(c, p, t.run, func(line string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.said = append(w.said, line)
	})
	return w
}

func (w *waiter) lines() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.said, "\n")
}

// next waits for the end of the run, or for a question of 2026-07-28.
func (w *waiter) next(request string) (*engine.Event, *Question, error) {
	ctx, done := context.WithTimeout(w.t.tb.Context(), patience)
	defer done()
	for {
		nctx, stop := ctx, func() {}
		if due := w.call.Due(); !due.IsZero() {
			nctx, stop = context.WithDeadline(ctx, due)
		}
		ev, err := w.at.Next(nctx)
		stop()
		switch {
		case err == nil:
			w.call.Event(ctx, &ev)
			if ev.Terminal() {
				w.call.End()
				return &ev, nil, nil
			}
		case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			q, err := w.call.Question(ctx, request)
			if err != nil || q != nil {
				w.call.End()
				return nil, q, err
			}
		default:
			return nil, nil, err
		}
	}
}

// outcome waits for the end of the run, which decides it alone.
func (w *waiter) outcome() string {
	ev, q, err := w.next("")
	if err != nil || q != nil {
		return fmt.Sprintf("the run ended with %v, %v, want its terminal event; said:\n%s", q, err, w.lines())
	}
	return w.t.decisions() + " " + ev.Type
}

// decisions are those of the run's gates, oldest gate first.
func (t *ladderTest) decisions() string {
	list, err := t.engine.Gates(t.tb.Context(), engine.GateFilter{Run: t.run})
	if err != nil {
		return err.Error()
	}
	words := make([]string, len(list))
	for i, g := range list {
		words[i] = g.Node + "=" + g.Decision
		if g.Decision != "" {
			words[i] += "/" + g.Via
		}
		if g.Payload != nil {
			words[i] += "/" + string(g.Payload)
		}
		if g.Comment != "" {
			words[i] += "/" + g.Comment
		}
	}
	return strings.Join(words, " ")
}

func (t *ladderTest) gate(node string) engine.Gate {
	t.tb.Helper()
	list, err := t.engine.Gates(t.tb.Context(), engine.GateFilter{Run: t.run})
	if err != nil {
		t.tb.Fatal(err)
	}
	for _, g := range list {
		if g.Node == node {
			return g
		}
	}
	t.tb.Fatalf("no gate at %s", node)
	return engine.Gate{}
}

func (t *ladderTest) decide(node, decision string) {
	t.tb.Helper()
	if _, err := t.engine.Decide(t.tb.Context(), t.gate(node).ID, engine.Decision{Decision: decision, By: "cli", Via: engine.ViaCLI}); err != nil {
		t.tb.Fatal(err)
	}
}

// An elicited is one question as a client of 2025 got it. The test answers it.
type elicited struct {
	id     string
	params mcp.ElicitationParams
	raw    string
	answer chan Reply
	ctx    context.Context //nolint:containedctx // of the one request that it is
}

// accept answers after that long.
func (e *elicited) reply(result string, after time.Duration) {
	at := time.Now()
	e.answer <- Reply{Result: json.RawMessage(result), Sent: at, Received: at.Add(after)}
}

// about is the node that a question asks about.
func (e *elicited) about() string {
	return strings.TrimSuffix(strings.TrimPrefix(e.params.Message, "Proceed at "), "?")
}

// A client2025 gets questions and hands them to the test.
type client2025 struct {
	asked     chan *elicited
	cancelled chan string // ids
	gone      chan struct{}
}

func newClient2025() *client2025 {
	return &client2025{asked: make(chan *elicited, 64), cancelled: make(chan string, 64), gone: make(chan struct{})}
}

var errGone = errors.New("the connection is gone")

func (c *client2025) ask(ctx context.Context, id, method string, params json.RawMessage) (Reply, error) {
	e := &elicited{id: id, raw: string(params), answer: make(chan Reply, 4), ctx: ctx}
	if method != "elicitation/create" {
		return Reply{}, fmt.Errorf("asked by %s", method)
	}
	if err := json.Unmarshal(params, &e.params); err != nil {
		return Reply{}, err
	}
	c.asked <- e
	select {
	case r := <-e.answer:
		return r, nil
	case <-c.gone:
		return Reply{}, errGone
	case <-ctx.Done():
		c.cancelled <- id
		return Reply{}, context.Cause(ctx)
	}
}

func (c *client2025) client(version string) Client {
	return Client{
		Version: version, Capabilities: mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapability{}},
		Connection: c, Ask: c.ask,
	}
}

// question is the next one that the client gets.
func (c *client2025) question(tb testing.TB) *elicited {
	tb.Helper()
	select {
	case e := <-c.asked:
		return e
	case <-time.After(patience):
		tb.Fatal("no question came")
	}
	return nil
}

// quiet fails if there is a question that the test does not want.
func (c *client2025) quiet(tb testing.TB) {
	tb.Helper()
	select {
	case e := <-c.asked:
		tb.Errorf("asked once more: %s", e.raw)
	default:
	}
}

func (c *client2025) takenBack(tb testing.TB, id string) {
	tb.Helper()
	select {
	case got := <-c.cancelled:
		if got != id {
			tb.Errorf("the question %s was taken back, want %s", got, id)
		}
	case <-time.After(patience):
		tb.Fatal("the question was not taken back")
	}
}

const (
	yes  = `{"action":"accept","content":{"decision":"approve"}}`
	no   = `{"action":"accept","content":{"decision":"reject"}}`
	slow = time.Second
)

// human is a policy that takes nothing for a reflex that a person could do.
func human() Policy { return Policy{MinHuman: 500 * time.Millisecond} }

// run drives a waiter beside the test.
func (w *waiter) start() <-chan string {
	out := make(chan string, 1)
	go func() { out <- w.outcome() }()
	return out
}

func finished(tb testing.TB, out <-chan string) string {
	tb.Helper()
	select {
	case s := <-out:
		return s
	case <-time.After(patience):
		tb.Fatal("the call does not end")
	}
	return ""
}

func TestThreeGatesInARow2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one", "two:review", "three:input"))
	c := newClient2025()
	out := lt.attach(c.client("2025-11-25"), human()).start()
	for i, answer := range []string{
		yes,
		`{"action":"accept","content":{"decision":"reject","comment":"not yet"}}`,
		`{"action":"accept","content":{"value":"blue"}}`,
	} {
		q := c.question(t)
		if got, want := q.about(), []string{"one", "two", "three"}[i]; got != want {
			t.Errorf("question %d is about %s, want %s", i, got, want)
		}
		c.quiet(t)
		q.reply(answer, slow)
	}
	if got, want := finished(t, out), `one=approved/elicitation two=rejected/elicitation/not yet three=input_provided/elicitation/"blue" run:completed`; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
}

// TestOneQuestionAtATime2025 opens three gates at once: the oldest is asked about
// first, and one that is decided elsewhere meanwhile is not asked about.
func TestOneQuestionAtATime2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one two three"))
	c := newClient2025()
	w := lt.attach(c.client("2025-06-18"), human())
	out := w.start()
	first := c.question(t)
	lt.waitFor(3)
	c.quiet(t)
	if strings.Contains(first.raw, `"mode"`) {
		t.Errorf("a question of 2025-06-18 has a mode: %s", first.raw)
	}
	list, err := lt.engine.Gates(t.Context(), engine.GateFilter{Run: lt.run, Open: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := first.about(); got != list[0].Node {
		t.Errorf("the first question is about %s, want the oldest gate %s", got, list[0].Node)
	}
	lt.decide(list[1].Node, engine.Rejected)
	first.reply(yes, slow)
	second := c.question(t)
	if got := second.about(); got != list[2].Node {
		// The news of the second gate may be on its way: then its question is taken back.
		c.takenBack(t, second.id)
		second = c.question(t)
	}
	second.reply(yes, slow)
	got := finished(t, out)
	for _, want := range []string{list[0].Node + "=approved/elicitation", list[1].Node + "=rejected/cli", list[2].Node + "=approved/elicitation", "run:completed"} {
		if !strings.Contains(got, want) {
			t.Errorf("outcome = %s, want %s in it", got, want)
		}
	}
}

// waitFor waits until so many gates are open.
func (t *ladderTest) waitFor(n int) {
	t.tb.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		list, err := t.engine.Gates(t.tb.Context(), engine.GateFilter{Run: t.run, Open: true})
		if err != nil {
			t.tb.Fatal(err)
		}
		if len(list) == n {
			return
		}
		if time.Now().After(deadline) {
			t.tb.Fatalf("%d gates are open, want %d", len(list), n)
		}
	}
}

// TestReplies2025 holds what each reply does to one gate: whether it decides,
// whether the client is asked again, and what its person is told.
func TestReplies2025(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		replies []string
		after   time.Duration
		want    string // the gate's decision
		told    string
	}{
		{"decline", []string{`{"action":"decline","content":{"approved":true}}`}, slow, "one=rejected/elicitation", ""},
		{"answered late", []string{yes}, 75 * time.Minute, "one=approved/elicitation", ""},
		{"cancel", []string{`{"action":"cancel","content":{}}`}, slow, "one=", "dismissed"},
		{"reflex", []string{yes}, 3 * time.Millisecond, "one=", "3 ms"},
		{"reflex decline", []string{`{"action":"decline"}`}, 3 * time.Millisecond, "one=", "3 ms"},
		{"accept with nothing, then an answer", []string{`{"action":"accept","content":{}}`, no}, slow, "one=rejected/elicitation", "once more"},
		{"accept with nothing, twice", []string{`{"action":"accept","content":{}}`, `{"action":"accept"}`}, slow, "one=", "twice"},
		{"accept with a word of another form", []string{`{"action":"accept","content":{"approved":true}}`, yes}, slow, "one=approved/elicitation", "once more"},
		{"no result", []string{`{"ok":true}`}, slow, "one=", "not accept, decline or cancel"},
		{"error", []string{"error"}, slow, "one=", "with an error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lt := newLadder(t, Options{}, gated(t, "one", "two"))
			client := newClient2025()
			w := lt.attach(client.client("2025-11-25"), human())
			out := w.start()
			for _, reply := range c.replies {
				q := client.question(t)
				if reply == "error" {
					q.answer <- Reply{Refused: true}
					continue
				}
				q.reply(reply, c.after)
			}
			if strings.HasSuffix(c.want, "=") {
				lt.told(w, c.told)
				if got := lt.decisions(); got != c.want {
					t.Errorf("decisions = %s, want %s", got, c.want)
				}
				// The other ways stay, and the rung stays closed for the next gate.
				lt.decide("one", engine.Approved)
				lt.waitFor(1)
				lt.decide("two", engine.Approved)
				if got, want := finished(t, out), "one=approved/cli two=approved/cli run:completed"; got != want {
					t.Errorf("outcome = %s, want %s", got, want)
				}
				client.quiet(t)
				if n := strings.Count(w.lines(), "does not ask again"); n != 1 {
					t.Errorf("it is said %d times that nothing more is asked, want once:\n%s", n, w.lines())
				}
				return
			}
			client.question(t).reply(yes, slow)
			if got, want := finished(t, out), c.want+" two=approved/elicitation run:completed"; got != want {
				t.Errorf("outcome = %s, want %s", got, want)
			}
			if !strings.Contains(w.lines(), c.told) {
				t.Errorf("told %q, want %q in it", w.lines(), c.told)
			}
		})
	}
}

// told waits until the waiter's person was told something.
func (t *ladderTest) told(w *waiter, what string) {
	t.tb.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if strings.Contains(w.lines(), what) {
			return
		}
		if time.Now().After(deadline) {
			t.tb.Fatalf("told %q, want %q in it", w.lines(), what)
		}
	}
}

// TestClosedElsewhere2025 decides a gate on another rung while its question is
// open: the client is told, and its answer comes too late.
func TestClosedElsewhere2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one"))
	c := newClient2025()
	out := lt.attach(c.client("2025-11-25"), human()).start()
	q := c.question(t)
	lt.decide("one", engine.Rejected)
	c.takenBack(t, q.id)
	if got := context.Cause(q.ctx).Error(); got != errClosed.Error() {
		t.Errorf("taken back because %q, want %q", got, errClosed)
	}
	if got, want := finished(t, out), "one=rejected/cli run:completed"; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
}

// TestContradiction2025 lets an answer and another decision race many times:
// exactly one stands, and the other side is told which.
func TestContradiction2025(t *testing.T) {
	t.Parallel()
	wf := gated(t, "one")
	lt := newLadder(t, Options{}, wf)
	stood := map[string]int{}
	rounds := 250
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		lt.begin(wf)
		c := newClient2025()
		out := lt.attach(c.client("2025-11-25"), human()).start()
		q := c.question(t)
		gate := lt.gate("one")
		errs := make(chan error, 1)
		go func() {
			_, err := lt.engine.Decide(t.Context(), gate.ID, engine.Decision{Decision: engine.Rejected, By: "cli", Via: engine.ViaCLI})
			errs <- err
		}()
		q.reply(yes, slow)
		got := finished(t, out)
		stood[got]++
		_, late := errors.AsType[*engine.DecidedError](<-errs)
		switch got {
		case "one=approved/elicitation run:completed":
			if !late {
				t.Errorf("outcome = %s, and the command line was told that its decision stands", got)
			}
		case "one=rejected/cli run:completed":
			if late {
				t.Errorf("outcome = %s, and the command line was told that it came late", got)
			}
		default:
			t.Errorf("outcome = %s, want one of the two decisions", got)
		}
	}
	t.Logf("what stood: %v", stood)
}

// TestManyDecisions has 50 clients answer one gate at once, half of them each
// way (report G05).
func TestManyDecisions(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one"))
	const many = 50
	outs := make([]<-chan string, many)
	questions := make([]*elicited, many)
	for i := range many {
		c := newClient2025()
		outs[i] = lt.attach(c.client("2025-11-25"), human()).start()
		questions[i] = c.question(t)
	}
	var all sync.WaitGroup
	for i, q := range questions {
		all.Go(func() {
			q.reply([]string{yes, no}[i%2], slow)
			q.reply([]string{no, yes}[i%2], slow) // nobody reads a second reply to one question
		})
	}
	all.Wait()
	first := finished(t, outs[0])
	if first != "one=approved/elicitation run:completed" && first != "one=rejected/elicitation run:completed" {
		t.Errorf("outcome = %s, want one decision", first)
	}
	for _, out := range outs[1:] {
		if got := finished(t, out); got != first {
			t.Errorf("another call's outcome = %s, want %s", got, first)
		}
	}
	events, err := lt.engine.Events(t.Context(), lt.run, 0)
	if err != nil {
		t.Fatal(err)
	}
	resumed := 0
	for i := range events {
		if events[i].Type == engine.GateResumed {
			resumed++
		}
	}
	if resumed != 1 {
		t.Errorf("%d events of type %s, want 1", resumed, engine.GateResumed)
	}
}

// TestClientDies leaves while the question is open: the gate is as it was and
// may be asked about again (report G11).
func TestClientDies(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one"))
	for range 20 {
		c := newClient2025()
		w := lt.attach(c.client("2025-11-25"), human())
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			for {
				ev, err := w.at.Next(ctx)
				if err != nil {
					break
				}
				w.call.Event(ctx, &ev)
			}
			w.call.End()
			w.at.Close()
		}()
		c.question(t)
		close(c.gone)
		leave()
		<-left
	}
	if got := lt.decisions(); got != "one=" {
		t.Errorf("decisions = %s, want none", got)
	}
	lt.ladder.Wait(t.Context())
	lt.ladder.mu.Lock()
	if n := len(lt.ladder.questions); n != 0 {
		t.Errorf("%d questions are left, want none", n)
	}
	lt.ladder.mu.Unlock()
	c := newClient2025()
	out := lt.attach(c.client("2025-11-25"), human()).start()
	c.question(t).reply(yes, slow)
	if got, want := finished(t, out), "one=approved/elicitation run:completed"; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
}

// drive hands events to a call until it is told to stop.
func (w *waiter) drive(until func(ev *engine.Event) bool) {
	w.t.tb.Helper()
	ctx, done := context.WithTimeout(w.t.tb.Context(), patience)
	defer done()
	for {
		ev, err := w.at.Next(ctx)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			w.t.tb.Fatal(err)
		}
		w.call.Event(ctx, &ev)
		if until(&ev) {
			return
		}
	}
}

func opens(ev *engine.Event) bool { return ev.Type == engine.GatePaused }

// TestHandOver2025 hands a call over with its question open. The answer decides
// the gate; a call that waits again on the connection does not ask twice.
func TestHandOver2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one", "two"))
	c := newClient2025()
	w := lt.attach(c.client("2025-11-25"), human())
	w.drive(opens)
	q := c.question(t)
	w.call.HandOver(t.Context())
	w.call.HandOver(t.Context()) // safe to repeat
	again := lt.attach(c.client("2025-11-25"), human())
	again.drive(opens)
	again.call.HandOver(t.Context())
	c.quiet(t)
	third := lt.attach(c.client("2025-11-25"), human())
	out := third.start()
	q.reply(yes, slow)
	next := c.question(t)
	if got := next.about(); got != "two" {
		t.Errorf("the next question is about %s, want two", got)
	}
	next.reply(no, slow)
	if got, want := finished(t, out), "one=approved/elicitation two=rejected/elicitation run:completed"; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
	if w.lines() != "" {
		t.Errorf("a call that is over was told %q", w.lines())
	}
}

// TestHandOverAlone2025 leaves a question behind with no call at all: its answer
// counts, and it is taken back when the gate closes elsewhere.
func TestHandOverAlone2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one", "two"))
	c := newClient2025()
	w := lt.attach(c.client("2025-11-25"), human())
	w.drive(opens)
	q := c.question(t)
	w.call.HandOver(t.Context())
	w.at.Close()
	q.reply(yes, slow)
	lt.ladder.Wait(t.Context())
	if got := lt.gate("one").Decision; got != engine.Approved {
		t.Errorf("decision = %q, want %q", got, engine.Approved)
	}
	lt.waitFor(1) // the second gate
	w = lt.attach(c.client("2025-11-25"), human())
	w.drive(func(ev *engine.Event) bool { return ev.Type == engine.GatePaused && ev.Node == "two" })
	q = c.question(t)
	w.call.HandOver(t.Context())
	w.at.Close()
	lt.decide("two", engine.Rejected)
	c.takenBack(t, q.id)
	if got, want := lt.decisions(), "one=approved/elicitation two=rejected/cli"; got != want {
		t.Errorf("decisions = %s, want %s", got, want)
	}
}

// TestEndTakesBack2025 ends a call by itself: its question goes with it, unless
// another call of the connection waits for the same gate.
func TestEndTakesBack2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one"))
	c := newClient2025()
	first := lt.attach(c.client("2025-11-25"), human())
	first.drive(opens)
	q := c.question(t)
	second := lt.attach(c.client("2025-11-25"), human())
	second.drive(opens)
	first.call.End()
	if q.ctx.Err() != nil {
		t.Fatal("the question was taken back while another call waits for its answer")
	}
	second.call.End()
	c.takenBack(t, q.id)
	if got := lt.decisions(); got != "one=" {
		t.Errorf("decisions = %s, want none", got)
	}
	c.quiet(t)
}

// TestNoElicitationIsNeverAsked has a client without the capability, and one
// whose operator closed the rung.
func TestNoElicitationIsNeverAsked(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{}, gated(t, "one"))
	able := newClient2025()
	bare := able.client("2025-11-25")
	bare.Capabilities.Elicitation = nil
	outs := []<-chan string{
		lt.attach(bare, human()).start(),
		lt.attach(able.client("2025-11-25"), Policy{Accept: []string{AcceptConsole, AcceptCLI}}).start(),
		lt.attach(Client{Version: "2026-07-28"}, human()).start(),
	}
	lt.waitFor(1)
	lt.decide("one", engine.Approved)
	for _, out := range outs {
		if got, want := finished(t, out), "one=approved/cli run:completed"; got != want {
			t.Errorf("outcome = %s, want %s", got, want)
		}
	}
	able.quiet(t)
}

// TestPage2025 shows a client that opens pages where the gate can be answered.
func TestPage2025(t *testing.T) {
	t.Parallel()
	lt := newLadder(t, Options{Page: func(gate string) string { return "http://127.0.0.1:7412/gates/" + gate }}, gated(t, "one"))
	c := newClient2025()
	client := c.client("2025-11-25")
	client.Capabilities.Elicitation.URL = &struct{}{}
	w := lt.attach(client, human())
	out := w.start()
	q := c.question(t)
	if q.params.Mode != "url" || q.params.URL != "http://127.0.0.1:7412/gates/"+lt.gate("one").ID || q.params.ElicitationID != q.id || q.params.RequestedSchema != nil {
		t.Errorf("question = %s, want the gate's page and an elicitationId", q.raw)
	}
	q.reply(`{"action":"accept","content":{"decision":"approve"}}`, slow)
	lt.told(w, "page was opened")
	if got := lt.decisions(); got != "one=" {
		t.Errorf("decisions = %s, want none: opening a page decides nothing", got)
	}
	lt.decide("one", engine.Approved)
	if got, want := finished(t, out), "one=approved/cli run:completed"; got != want {
		t.Errorf("outcome = %s, want %s", got, want)
	}
}
