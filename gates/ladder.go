package gates

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	// gatherTime is how long a call of 2026-07-28 lets more gates open beside
	// the oldest before it returns with them.
	gatherTime = 2 * time.Second
	// maxRounds is how often one call may return for input: clients give up at
	// the tenth round.
	maxRounds = 8
)

// ErrRounds says that a call has asked as often as clients bear.
var ErrRounds = errors.New("gates: too many rounds of questions")

// Options configure New. Engine, Keys and Logger are required.
type Options struct {
	Engine *engine.Engine
	Keys   *Keys
	Logger *slog.Logger

	Clean func(string) string      // makes text safe to show; nil means a plain one
	Page  func(gate string) string // address of the console's page of a gate, or ""; nil means that there is none
	Now   func() time.Time         // nil means time.Now
}

// A Ladder asks the clients of one process about gates. It is safe for
// concurrent use. Whoever ends connections may call Wait.
type Ladder struct {
	opt Options

	mu        sync.Mutex // of everything below and of every Call
	questions map[place]*question
	busy      int           // goroutines of questions
	idle      chan struct{} // closed when busy falls to 0
}

// A place is where a question stands: one about a gate on a connection.
type place struct {
	connection any
	gate       string
}

// New makes a Ladder.
func New(opt Options) (*Ladder, error) {
	switch {
	case opt.Engine == nil:
		return nil, errors.New("gates: Options.Engine is required")
	case opt.Keys == nil:
		return nil, errors.New("gates: Options.Keys is required")
	case opt.Logger == nil:
		return nil, errors.New("gates: Options.Logger is required")
	}
	if opt.Clean == nil {
		opt.Clean = printable
	}
	if opt.Page == nil {
		opt.Page = func(string) string { return "" }
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &Ladder{opt: opt, questions: map[place]*question{}}, nil
}

// Keys are those that seal the states of the ladder's questions.
func (l *Ladder) Keys() *Keys { return l.opt.Keys }

// Wait returns when no question is open any more, which is soon after every
// connection ended, or when ctx ends.
func (l *Ladder) Wait(ctx context.Context) {
	for {
		l.mu.Lock()
		busy, idle := l.busy, l.idle
		l.mu.Unlock()
		if busy == 0 {
			return
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return
		}
	}
}

// start runs f beside everything else; the lock is held.
func (l *Ladder) start(f func()) {
	if l.busy == 0 {
		l.idle = make(chan struct{})
	}
	l.busy++
	go func() {
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.busy--; l.busy == 0 {
				close(l.idle)
			}
		}()
		f()
	}()
}

// A Call is one waiting call, as the ladder sees it. Who waits tells it of the
// run's gates, and ends it by End or HandOver. It is safe for concurrent use.
type Call struct {
	l      *Ladder
	client Client
	policy Policy
	run    string
	say    func(line string)

	// Under the ladder's lock:
	open   []engine.Gate   // that wait and may be asked about, oldest first
	again  map[string]bool // asked once more after an invalid answer
	asking *question       // of 2025
	taken  []*question     // back, as the client is being told
	only   bool            // nothing but the open gates is left of the run
	shut   bool            // the client is not asked any more by this call
	over   bool
	round  int // questions that the call returned so far
}

// Begin is for a call of the client that waits for a run. say tells the client's
// person one line; it is called from several goroutines, not after the call's
// end.
func (l *Ladder) Begin(c Client, p Policy, run string, say func(line string)) *Call {
	return &Call{l: l, client: c, policy: p, run: run, say: say, again: map[string]bool{}}
}

// Event tells the call what happened in its run, in order. News of the past, as
// a call hears it that attached late, leads to no question.
func (c *Call) Event(ctx context.Context, ev *engine.Event) {
	if c.client.Capabilities.Elicitation == nil {
		return // it is never asked, whatever happens
	}
	switch ev.Type {
	case engine.GatePaused, engine.BudgetPaused:
		g, err := c.l.opt.Engine.Gate(ctx, ev.Gate)
		if err != nil {
			if ctx.Err() == nil {
				c.l.opt.Logger.WarnContext(ctx, "read a gate", slog.String("run", c.run), slog.String("gate", ev.Gate), slog.String("error", err.Error()))
			}
			return
		}
		c.opened(ctx, &g)
	case engine.GateResumed:
		c.closed(ctx, ev.Gate)
	case engine.RunPaused:
		c.paused(ev.GateIDs)
	}
}

// opened adds a gate that waits, which a client of 2025 is asked about as soon
// as no other question of the call is open, the oldest gate first.
func (c *Call) opened(ctx context.Context, g *engine.Gate) {
	if g.Decision != "" || !offered(g, c.client.Principal) {
		return
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.over || slices.ContainsFunc(c.open, func(o engine.Gate) bool { return o.ID == g.ID }) {
		return
	}
	c.open = append(c.open, *g)
	slices.SortStableFunc(c.open, func(a, b engine.Gate) int {
		if d := a.Opened.Compare(b.Opened); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
	c.only = false
	c.next(ctx)
}

// closed takes out a gate that waits no more. A question about it that is open
// is cancelled at the client.
func (c *Call) closed(ctx context.Context, gate string) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.open = slices.DeleteFunc(c.open, func(o engine.Gate) bool { return o.ID == gate })
	c.only = false
	if q := c.asking; q != nil && q.form.gate.ID == gate {
		q.close(ctx)
		c.taken = append(c.taken, q)
		c.asking = nil
		c.next(ctx)
	}
}

// paused notes that the run goes on only by decisions of these gates. If one of
// them is decided since, this says nothing.
func (c *Call) paused(gates []string) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for _, id := range gates {
		if !slices.ContainsFunc(c.open, func(o engine.Gate) bool { return o.ID == id }) {
			return
		}
	}
	c.only = len(gates) > 0
}

// Due is when a call of 2026-07-28 returns with its question; the zero time
// means not before more is told.
func (c *Call) Due() time.Time {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if !c.client.modern() || c.shut || c.over {
		return time.Time{}
	}
	for i := range c.open {
		if c.rung(&c.open[i]) == noRung {
			continue
		}
		if c.only {
			return c.open[i].Opened
		}
		return c.open[i].Opened.Add(gatherTime)
	}
	return time.Time{}
}

// rung tells how the call's client may be asked about a gate.
func (c *Call) rung(g *engine.Gate) rung {
	return rungOf(&c.client, &c.policy, func() bool { return c.l.opt.Page(g.ID) != "" })
}

// form is the question about a gate by the rung that the client has.
func (c *Call) form(g *engine.Gate, r rung) form {
	url := ""
	if r == pageRung {
		url = c.l.opt.Page(g.ID)
	}
	return newForm(g, c.policy.Names[g.Node], url)
}

// A Question is what an input_required result asks for.
type Question struct {
	Requests mcp.InputRequests
	State    string // the sealed requestState
}

// Question makes one question of all gates that are open, for the call to
// return with. request is the RequestDigest of the call. The error is ErrRounds
// if the call asked often enough: it hands over, or calls Shut. A nil question
// says that no gate is left to ask about.
func (c *Call) Question(ctx context.Context, request string) (*Question, error) {
	run, err := c.l.opt.Engine.Run(ctx, c.run, c.client.Principal)
	if err != nil {
		return nil, err
	}
	state := State{
		Run: c.run, Nonce: rand.Text(), Principal: string(c.client.Principal), Request: request,
		Definition: run.Digest, Ends: run.Deadline,
	}
	waiting, err := c.l.opt.Engine.Gates(ctx, engine.GateFilter{Run: c.run, Open: true, Limit: 1000})
	if err != nil {
		return nil, err
	}
	requests := mcp.InputRequests{}
	c.l.mu.Lock()
	c.open = slices.DeleteFunc(c.open, func(o engine.Gate) bool { // decided, and the news is on its way
		return !slices.ContainsFunc(waiting, func(w engine.Gate) bool { return w.ID == o.ID })
	})
	c.round++
	state.Round = c.round
	for i := range c.open {
		g := &c.open[i]
		r := c.rung(g)
		if r == noRung {
			continue
		}
		f := c.form(g, r)
		for _, other := range []string{f.key, g.Node, g.ID} { // two gates may have been given one key
			if f.key = other; !has(requests, other) {
				break
			}
		}
		requests[f.key] = mcp.NewElicitationInputRequest(f.params(c.client.Version, state.Nonce, c.l.opt.Clean))
		asked := Asked{Gate: g.ID, Key: f.key, URL: f.url != "", Again: c.again[g.ID]}
		if f.renamed {
			asked.Field = f.field
		}
		state.Asked = append(state.Asked, asked)
	}
	c.l.mu.Unlock()
	switch {
	case len(requests) == 0:
		return nil, nil //nolint:nilnil // nothing to ask is no error
	case state.Round > maxRounds:
		return nil, ErrRounds
	}
	state.At = c.l.opt.Now()
	if err := c.l.opt.Engine.Ask(ctx, state.Nonce, state.At, state.ids()...); err != nil {
		return nil, err
	}
	sealed, err := c.l.opt.Keys.Seal(&state)
	if err != nil {
		return nil, err
	}
	return &Question{Requests: requests, State: sealed}, nil
}

func has(requests mcp.InputRequests, key string) bool {
	_, ok := requests[key]
	return ok
}

// Shut keeps the call's client from being asked again.
func (c *Call) Shut() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.shut = true
}

// Answer takes the answers that a retry brings with its state, which must have
// been opened and checked against this very request. Those of a stale question
// are ignored: its gate is decided or expired, its run's life is over, or it was
// answered before. The call then waits on. The error is the store's.
func (c *Call) Answer(ctx context.Context, s *State, responses json.RawMessage) error {
	received := c.l.opt.Now()
	good, err := c.l.opt.Engine.Spend(ctx, s.Nonce, s.ids()...)
	if err != nil {
		return err
	}
	if s.Over(received) || !c.policy.elicits() { // the operator may have closed the rung since
		good = nil
	}
	c.l.mu.Lock()
	c.round = s.Round
	for _, a := range s.Asked {
		c.again[a.Gate] = a.Again
	}
	c.l.mu.Unlock()
	replies, err := workflows.Members(responses)
	if err != nil {
		replies = nil
	}
	for _, asked := range s.Asked {
		at := slices.IndexFunc(replies, func(m workflows.Member) bool { return m.Key == asked.Key })
		if at < 0 {
			continue // not answered: it is asked anew
		}
		g, err := c.l.opt.Engine.Gate(ctx, asked.Gate)
		if err != nil {
			return err
		}
		f := newForm(&g, Name{Key: asked.Key, Field: asked.Field}, "")
		if asked.URL {
			f.url = "asked"
		}
		if !slices.Contains(good, asked.Gate) {
			c.late(&g)
			continue
		}
		c.settle(ctx, &f, f.read(replies[at].Value, received.Sub(s.At), c.policy.MinHuman), asked.Again)
	}
	return nil
}

// late says that an answer came when nothing was left to answer.
func (c *Call) late(g *engine.Gate) {
	c.l.opt.Logger.Info("stale answer ignored", slog.String("run", c.run), slog.String("gate", g.ID))
	switch {
	case g.Decision != "":
		c.tell("gate %s was decided already: %s by %s via %s at %s", g.Node, g.Decision, g.DecidedBy, g.Via, g.Decided.UTC().Format(time.RFC3339))
	default:
		c.tell("gate %s: an answer to an earlier question is not taken", g.Node)
	}
}

// settle does what an outcome wants and reports whether the gate may be asked
// about once more. again says that this was the second question.
func (c *Call) settle(ctx context.Context, f *form, o outcome, again bool) (more bool) {
	g := &f.gate
	closed := ""
	switch o := o.(type) {
	case decided:
		c.decide(ctx, g, o.decision)
		return false
	case answered, withdrawn: // elsewhere
		return false
	case invalid:
		if !again {
			c.tell("gate %s is not answered: %s; the question comes once more", g.Node, o.why)
			c.l.mu.Lock()
			c.again[g.ID] = true
			c.l.mu.Unlock()
			return true
		}
		closed = o.why + ", twice"
	case cancelled:
		closed = "the question was dismissed"
	case visited:
		closed = "its page was opened, where it can be answered"
	case reflex:
		closed = fmt.Sprintf("the reply came %d ms after the question, sooner than a person answers", o.after.Milliseconds())
	case broken:
		closed = o.why
	}
	c.l.opt.Logger.InfoContext(ctx, "gate not answered by the client", slog.String("run", c.run), slog.String("gate", g.ID), slog.String("why", closed))
	c.shutFor(g.Node, closed)
	return false
}

// shutFor closes the rung for this call and says so, once.
func (c *Call) shutFor(node, why string) {
	c.l.mu.Lock()
	before := c.shut
	c.shut = true
	c.l.mu.Unlock()
	if !before {
		c.tell("gate %s is not decided: %s; this call does not ask again, and waits for another way to answer", node, why)
	}
}

// decide stores a person's answer. The run goes on by itself.
func (c *Call) decide(ctx context.Context, g *engine.Gate, d engine.Decision) {
	d.By, d.Via = string(c.client.Principal), engine.ViaElicitation
	stands, err := c.l.opt.Engine.Decide(context.WithoutCancel(ctx), g.ID, d) // the engine bounds it
	if err == nil {
		c.l.opt.Logger.InfoContext(ctx, "gate decided", slog.String("run", c.run), slog.String("gate", g.ID),
			slog.String("decision", stands.Decision), slog.String("by", stands.DecidedBy), slog.String("via", stands.Via))
		return
	}
	late, ok := errors.AsType[*engine.DecidedError](err)
	switch {
	case !ok:
		c.l.opt.Logger.WarnContext(ctx, "store a decision", slog.String("run", c.run), slog.String("gate", g.ID), slog.String("error", err.Error()))
		c.shutFor(g.Node, "the answer could not be stored")
	case late.Gate.Decision != "":
		c.late(&late.Gate)
	default:
		c.tell("gate %s was not open any more when the answer came", g.Node)
	}
}

// tell says one line while the call lasts.
func (c *Call) tell(format string, args ...any) {
	c.l.mu.Lock()
	over := c.over
	c.l.mu.Unlock()
	if !over {
		c.say(fmt.Sprintf(format, args...))
	}
}
