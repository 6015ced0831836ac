package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/engine"
)

const gatesPerPage = 25

// A gateView is one gate as pages show it.
type gateView struct {
	ID, Run, Node string
	Workflow      string
	Kind          string // approval, review, input
	Waits         string // what for, in words
	Message       string
	Assignee      string
	Opened        *moment
	Expires       *moment
	Expired       bool
	Soon          bool   // it expires within the hour
	OnTimeout     string // what happens then
	Reason        string // why the engine opened it
	Choices       []choice
	Done, Nodes   int
	Did           []string // nodes that completed, the last ones

	Decision  string // in words; "" while it waits
	State     string // of the pill
	DecidedBy string
	Via       string
	Decided   *moment
	Comment   string
	Payload   *shown
}

// A choice is one of the answers that a gate takes, where it takes no others.
type choice struct{ Value, Label string }

// choices are those of a gate about a call whose outcome is not known.
func choices(g *engine.Gate) []choice {
	if g.Reason != engine.ReasonUnknown {
		return nil
	}
	return []choice{{"repeat", "Repeat the call"}, {"skip", "Skip it"}, {"fail", "Fail the step"}}
}

func (c *Console) gateView(g *engine.Gate) gateView {
	v := gateView{
		ID: g.ID, Run: g.Run, Node: line(g.Node, 80), Workflow: line(g.Workflow, 80), Kind: g.Type,
		Message: clean(g.Message, maxMessage), Assignee: line(g.Assignee, 120),
		Opened: c.moment(g.Opened), Expires: c.moment(g.Expires), State: "waiting",
		Decision: decisionWord(g.Decision), DecidedBy: line(g.DecidedBy, 120), Via: viaWord(g.Via),
		Decided: c.moment(g.Decided), Comment: clean(g.Comment, maxMessage), Payload: value(g.Payload, maxShown),
		Choices: choices(g), Expired: g.Decision == "" && !g.Expires.IsZero() && !c.opt.Now().Before(g.Expires),
	}
	v.Soon = v.Expired || g.Decision == "" && !g.Expires.IsZero() && g.Expires.Sub(c.opt.Now()) < time.Hour
	switch g.Type {
	case "input":
		v.Waits = "an answer"
	case "review":
		v.Waits = "a review"
	default:
		v.Waits = "approval"
	}
	switch g.TimeoutAction {
	case "approve":
		v.OnTimeout = "then it is approved by itself"
	case "reject":
		v.OnTimeout = "then the run fails"
	}
	switch g.Reason {
	case engine.ReasonBudget:
		v.Reason = "The run has reached its budget."
	case engine.ReasonUnknown:
		v.Reason = "Nobody knows whether this step took effect before a crash."
	}
	switch g.Decision {
	case engine.Approved, engine.InputProvided:
		v.State = "completed"
	case engine.Rejected:
		v.State = "failed"
	}
	if v.Expired {
		v.State = "skipped"
	}
	return v
}

func decisionWord(decision string) string {
	switch decision {
	case engine.InputProvided:
		return "answered"
	default:
		return decision
	}
}

func viaWord(via string) string {
	switch via {
	case engine.ViaConsole:
		return "the console"
	case engine.ViaCLI:
		return "the command line"
	case engine.ViaCLINonInteractive:
		return "the command line, unattended"
	case engine.ViaElicitation:
		return "its MCP client"
	case engine.ViaTimeout:
		return "its time-out"
	default:
		return line(via, 40)
	}
}

type inboxView struct {
	Gates []gateView
	Next  string // page on from this gate
	First bool
}

// waiting reads one page of the gates that the visitor may see.
func (c *Console) waiting(ctx context.Context, s *session, after string) (gates []engine.Gate, more bool, err error) {
	filter := engine.GateFilter{Open: true, After: after, Limit: gatesPerPage + 1}
	if s.visitor.Gates != nil {
		filter.Limit = 1000
	}
	for {
		page, err := c.opt.Engine.Gates(ctx, filter)
		if err != nil {
			return nil, false, err
		}
		for i := range page {
			if !s.visitor.gates(page[i].Workflow) {
				continue
			}
			if len(gates) == gatesPerPage {
				return gates, true, nil
			}
			gates = append(gates, page[i])
		}
		if len(page) < filter.Limit {
			return gates, false, nil
		}
		filter.After = page[len(page)-1].ID
	}
}

func stampGates(gates []engine.Gate, more bool) string {
	var ids []string
	for i := range gates {
		ids = append(ids, gates[i].ID)
	}
	if more {
		ids = append(ids, "more")
	}
	return digest(ids...)
}

func (c *Console) inbox(w http.ResponseWriter, r *http.Request, s *session) {
	after := r.URL.Query().Get("after")
	gates, more, err := c.waiting(r.Context(), s, after)
	if err != nil {
		c.broken(w, r, err)
		return
	}
	view := inboxView{First: after == ""}
	progress := make(map[string]*engine.Run)
	for i := range gates {
		v := c.gateView(&gates[i])
		v.Message = clean(gates[i].Message, 2000)
		if err := c.progress(r.Context(), &v, progress); err != nil {
			c.broken(w, r, err)
			return
		}
		view.Gates = append(view.Gates, v)
	}
	if more {
		view.Next = gates[len(gates)-1].ID
	}
	p := s.page("inbox", "Waiting for you", view)
	p.Live = c.opt.Prefix + "/live?" + url.Values{"after": {after}, "since": {stampGates(gates, more)}}.Encode()
	p.Refresh = 10
	c.show(w, r, http.StatusOK, "inbox", p)
}

// progress fills in what the run of a gate has done so far. A run whose
// definition cannot be read shows none.
func (c *Console) progress(ctx context.Context, v *gateView, known map[string]*engine.Run) error {
	run, ok := known[v.Run]
	if !ok {
		var err error
		if run, err = c.opt.Engine.Run(ctx, v.Run, ""); err != nil {
			if ctx.Err() != nil {
				return err
			}
			run = &engine.Run{}
		}
		known[v.Run] = run
	}
	v.Nodes = len(run.Nodes)
	for i := range run.Nodes {
		switch node := &run.Nodes[i]; node.State {
		case "completed":
			v.Done++
			v.Did = append(v.Did, line(node.ID, 40))
		case "skipped", "failed":
			v.Done++
		}
	}
	v.Did = v.Did[max(0, len(v.Did)-6):]
	return nil
}

func (c *Console) inboxLive(w http.ResponseWriter, r *http.Request, s *session) {
	after := r.URL.Query().Get("after")
	c.live(w, r, s, func(ctx context.Context) (string, error) {
		gates, more, err := c.waiting(ctx, s, after)
		return stampGates(gates, more), err
	})
}

type decisionView struct {
	Gate    gateView
	Run     runView
	Whole   bool   // the run has a page of its own
	Open    bool   // it can be decided here
	Refused string // why not
	Late    bool   // somebody else was first
	Mine    bool   // decided by the form just sent
	Idle    bool   // decided, and nobody executes the run
	Problem string // with the form just sent
	Value   string // typed
	Typed   string // comment typed
}

func (c *Console) gatePage(w http.ResponseWriter, r *http.Request, s *session) {
	c.showGate(w, r, s, http.StatusOK, &decisionView{Mine: r.URL.Query().Get("sent") == "1"})
}

// showGate shows a gate, whatever it is: to decide or decided.
func (c *Console) showGate(w http.ResponseWriter, r *http.Request, s *session, status int, view *decisionView) {
	gate, err := c.gateOf(r.Context(), s, id(r, "gate"))
	if err != nil {
		c.broken(w, r, err)
		return
	}
	run, events, err := c.runOf(r.Context(), gate.Run)
	if err != nil {
		c.broken(w, r, err)
		return
	}
	view.Gate = c.gateView(&gate)
	view.Whole = s.visitor.sees(run)
	if !view.Whole {
		c.onlyNamed(r.Context(), run, &gate)
	}
	view.Run = c.runView(r.Context(), run, events, false)
	view.Open = gate.Decision == "" && !view.Gate.Expired && !run.State.Terminal()
	view.Mine = view.Mine && gate.Decision != "" && gate.Via == engine.ViaConsole && gate.DecidedBy == string(s.visitor.Principal)
	if refused := c.opt.Refused(r.Context(), run, s.visitor.Principal); refused != nil && view.Open {
		view.Open, view.Refused = false, clean(refused.Error(), 1000)
	}
	if gate.Decision != "" && !run.State.Terminal() {
		alive, err := c.opt.Engine.Alive(r.Context(), run.Project)
		view.Idle = err == nil && !alive
	}
	title := cmp.Or(view.Gate.Workflow, "Gate") + ": " + view.Gate.Node
	p := s.page("inbox", title, view)
	p.Live = c.opt.Prefix + "/gates/" + url.PathEscape(gate.ID) + "/live?since=" + url.QueryEscape(stampGate(&gate, run.State, len(events)))
	if !view.Open {
		p.Refresh = 5
	}
	if status != http.StatusOK {
		p.Live, p.Refresh = "", 0 // what was typed stays to be read
	}
	c.show(w, r, status, "gate", p)
}

func stampGate(g *engine.Gate, state engine.State, events int) string {
	return digest(g.ID, g.Decision, string(state), strconv.Itoa(events))
}

func (c *Console) gateLive(w http.ResponseWriter, r *http.Request, s *session) {
	gate, err := c.gateOf(r.Context(), s, id(r, "gate"))
	if err != nil {
		c.broken(w, r, err)
		return
	}
	watch := c.watch(gate.Run)
	c.live(w, r, s, func(ctx context.Context) (string, error) {
		g, err := c.opt.Engine.Gate(ctx, gate.ID)
		if err != nil {
			return "", err
		}
		state, events, err := watch(ctx)
		return stampGate(&g, state, events), err
	})
}

// verdict reads the form of a decision.
func verdict(r *http.Request, gate *engine.Gate) (d engine.Decision, problem string) {
	form := r.PostForm
	d.Comment = normal(form.Get("comment"))
	given := normal(form.Get("value"))
	switch {
	case !utf8.ValidString(given) || !utf8.ValidString(d.Comment):
		return d, "The text is not valid Unicode."
	case len(d.Comment) > engine.MaxComment:
		return d, "The comment is longer than 64 KiB."
	}
	if these := choices(gate); these != nil {
		d.Decision, d.Payload = engine.InputProvided, quoted(given)
		if !slices.ContainsFunc(these, func(c choice) bool { return c.Value == given }) {
			return d, "Choose one of the answers."
		}
		return d, ""
	}
	input := gate.Type == "input"
	switch form.Get("decision") {
	case "approve":
		if input {
			return d, "This gate waits for an answer."
		}
		d.Decision = engine.Approved
	case "reject":
		d.Decision = engine.Rejected
	case "answer":
		if !input {
			return d, "This gate waits for a decision, not for an answer."
		}
		if given == "" {
			return d, "Write an answer first."
		}
		d.Decision, d.Payload = engine.InputProvided, quoted(given)
		if len(d.Payload) > engine.MaxPayload {
			return d, "The answer is longer than 256 KiB."
		}
	default:
		return d, "Choose what to decide."
	}
	return d, ""
}

func (c *Console) decide(w http.ResponseWriter, r *http.Request, s *session) {
	gate, err := c.gateOf(r.Context(), s, id(r, "gate"))
	if err != nil {
		c.broken(w, r, err)
		return
	}
	typed := &decisionView{Value: r.PostForm.Get("value"), Typed: r.PostForm.Get("comment")}
	d, problem := verdict(r, &gate)
	if problem != "" {
		typed.Problem = problem
		c.showGate(w, r, s, http.StatusUnprocessableEntity, typed)
		return
	}
	run, err := c.opt.Engine.Run(r.Context(), gate.Run, "")
	if err != nil {
		c.broken(w, r, err)
		return
	}
	if gate.Decision == "" && c.opt.Refused(r.Context(), run, s.visitor.Principal) != nil {
		c.showGate(w, r, s, http.StatusForbidden, typed)
		return
	}
	d.By, d.Via = string(s.visitor.Principal), engine.ViaConsole
	decided, err := c.opt.Engine.Decide(r.Context(), gate.ID, d)
	if _, late := errors.AsType[*engine.DecidedError](err); late {
		typed.Late = true
		c.showGate(w, r, s, http.StatusConflict, typed)
		return
	}
	if err != nil {
		c.broken(w, r, err)
		return
	}
	c.log.InfoContext(r.Context(), "console: a gate was decided", "gate", decided.ID, "run", decided.Run, "decision", decided.Decision, "by", d.By)
	http.Redirect(w, r, c.opt.Prefix+"/gates/"+url.PathEscape(gate.ID)+"?sent=1", http.StatusSeeOther)
}

// watch returns a function that tells, cheaply and again and again, the state of
// a run and how many events are stored.
func (c *Console) watch(run string) func(context.Context) (engine.State, int, error) {
	var state engine.State
	events, calls := 0, 0
	return func(ctx context.Context) (engine.State, int, error) {
		more, err := c.opt.Engine.Events(ctx, run, int64(events))
		if err != nil {
			return "", 0, err
		}
		if calls%8 == 0 || len(more) > 0 { // without an event only parked changes
			r, err := c.opt.Engine.Run(ctx, run, "")
			if err != nil {
				return "", 0, err
			}
			state = r.State
		}
		calls++
		events += len(more)
		return state, events, nil
	}
}

// runOf reads a run and its stored events. A run whose definition cannot be read
// has no nodes.
func (c *Console) runOf(ctx context.Context, run string) (*engine.Run, []engine.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout/2)
	defer cancel()
	r, err := c.opt.Engine.Run(ctx, run, "")
	if err != nil {
		return nil, nil, err
	}
	events, err := c.opt.Engine.Events(ctx, run, 0)
	return r, events, err
}

// took is how long a run took, or takes so far.
func (c *Console) took(r *engine.Run) string {
	if r.Created.IsZero() {
		return ""
	}
	if !r.Ended.IsZero() {
		return span(r.Ended.Sub(r.Created))
	}
	return span(c.opt.Now().Sub(r.Created).Truncate(time.Second))
}

// active reports whether a run may still be cancelled.
func active(r *engine.Run) bool {
	return slices.Contains([]engine.State{engine.Running, engine.Waiting, engine.Parked, engine.Blocked}, r.State)
}
