package console

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	runsPerPage = 50
	maxTimeline = 400       // events on a page, the last ones
	maxValues   = 512 << 10 // bytes of values on a page
)

// normal makes the line breaks of a form's text plain ones (HTML 4.10.21.7).
func normal(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// quoted is a text as JSON, its characters as they are.
func quoted(s string) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string cannot fail
	return bytes.TrimRight(b.Bytes(), "\n")
}

// A runView is one run as pages show it.
type runView struct {
	ID, Workflow string
	State        string
	Reason       string
	By           string
	Source       string
	Started      *moment
	Ended        *moment
	Deadline     *moment
	Took         string
	Cost         string
	Digest       string
	Error        *errorView
	Done, Total  int
	Active       bool
	MayCancel    bool
	Parked       bool
	Asked        bool // its end was asked for just now
	Inputs       *shown
	Outputs      []outputView
	Nodes        []nodeView
	Drawing      *drawing
	Timeline     []eventView
	Left         int // events that are not shown
	Gates        []gateView
}

type errorView struct{ Code, Message, Node, Correlation string }

type nodeView struct {
	Anchor string
	ID     string
	Label  string
	Type   string
	State  string
	Word   string // the state for people
	Reason string
	Took   string
	Output *shown
}

type outputView struct {
	Node  string
	Value *shown
	Raw   bool // there is more at its own address
}

type eventView struct {
	N     int64
	Clock string
	Full  string
	State string
	What  string
	Node  string
	Note  string
}

// runView makes the view of a run; whole adds what only its own page shows.
func (c *Console) runView(ctx context.Context, r *engine.Run, events []engine.Event, whole bool) runView {
	v := runView{
		ID: r.ID, Workflow: line(r.Workflow, 100), State: string(r.State), Reason: line(r.Reason, maxLine),
		By: line(string(r.Principal), 100), Source: sourceWord(r),
		Started: c.moment(r.Created), Ended: c.moment(r.Ended), Took: c.took(r), Cost: dollars(r.Cost),
		Digest: line(strings.TrimPrefix(r.Digest, "sha256:"), 12), Active: active(r), Parked: r.State == engine.Parked,
		Inputs: value(r.Inputs, maxShown), Total: len(r.Nodes),
	}
	if string(bytes.TrimSpace(r.Inputs)) == "{}" {
		v.Inputs = nil
	}
	if !r.State.Terminal() {
		v.Deadline = c.moment(r.Deadline)
	}
	if e := r.Error; e != nil {
		v.Error = &errorView{Code: string(e.Code), Message: clean(e.Message, 4000), Node: line(e.Node, 80), Correlation: line(e.CorrelationID, 80)}
	}
	definition, err := c.opt.Engine.Definition(ctx, r.ID)
	if err != nil {
		definition = nil // the states still say something
	}
	v.nodes(r, definition, durations(events))
	if whole {
		if definition != nil {
			v.Drawing = draw(definition, r.Nodes, r.State.Terminal())
		}
		v.outputs(r)
		v.timeline(events)
	}
	return v
}

// words makes a code readable.
func words(code string) string { return strings.ReplaceAll(line(code, maxLine), "_", " ") }

// sourceWord says where a run was started.
func sourceWord(r *engine.Run) string {
	switch {
	case r.Source == "cli":
		return "the command line"
	case r.Client != "":
		return line(r.Client, 60)
	default:
		return "MCP"
	}
}

func durations(events []engine.Event) map[string]time.Duration {
	out := make(map[string]time.Duration)
	for i := range events {
		if ev := &events[i]; ev.DurationMS != nil && ev.Node != "" {
			out[ev.Node] = time.Duration(*ev.DurationMS) * time.Millisecond
		}
	}
	return out
}

func (v *runView) nodes(r *engine.Run, definition *workflows.Workflow, took map[string]time.Duration) {
	left := maxValues
	for i := range r.Nodes {
		n := &r.Nodes[i]
		one := nodeView{
			Anchor: "step-" + strconv.Itoa(i), ID: line(n.ID, 80), Type: typeWord(n.Type),
			State: stateClass(n.State, r.State.Terminal()), Word: stateWord(n.State, r.State.Terminal()), Reason: words(n.Reason),
		}
		if definition != nil {
			if node, ok := definition.Node(n.ID); ok && node.Label != n.ID {
				one.Label = line(node.Label, 80)
			}
		}
		if d := took[n.ID]; d > 0 && n.State == "completed" {
			one.Took = span(d)
		}
		if limit := min(maxShown, left); limit > 0 && n.State == "completed" {
			if one.Output = value(n.Output, limit); one.Output != nil {
				left -= len(one.Output.Text)
			}
		}
		switch n.State {
		case "completed", "failed", "skipped":
			v.Done++
		}
		v.Nodes = append(v.Nodes, one)
	}
}

func typeWord(t string) string {
	if t == "human_gate" {
		return "gate"
	}
	return t
}

func (v *runView) outputs(r *engine.Run) {
	members, err := workflows.Members(r.Outputs)
	if err != nil {
		return
	}
	left := maxValues
	for _, m := range members {
		limit := min(maxShown, left)
		one := outputView{Node: line(m.Key, 80), Raw: true}
		if limit > 0 {
			one.Value = value(m.Value, limit)
			left -= len(one.Value.Text)
			one.Raw = one.Value.Cut
		}
		v.Outputs = append(v.Outputs, one)
	}
}

// timeline leaves out that a step started which has ended since, and what a gate
// says twice.
func (v *runView) timeline(events []engine.Event) {
	over := make(map[string]bool)
	for i := range events {
		if ev := &events[i]; ev.Settles() || ev.Type == engine.GatePaused {
			over[ev.Node] = true
		}
	}
	gates := make(map[string]bool)
	for i := range events {
		ev := &events[i]
		what, state := eventWord(ev)
		if ev.Type == engine.GatePaused {
			gates[ev.Node] = true
		}
		switch {
		case what == "",
			ev.Type == engine.NodeStarted && ev.Attempt <= 1 && over[ev.Node],
			ev.Type == engine.NodeCompleted && gates[ev.Node]:
			continue
		}
		one := eventView{
			N: ev.N, Clock: ev.Time.Local().Format("15:04:05"), Full: ev.Time.UTC().Format(time.RFC3339Nano),
			What: what, State: state, Node: line(ev.Node, 60),
		}
		switch {
		case ev.Error != nil:
			one.Note = line(string(ev.Error.Code)+": "+ev.Error.Message, maxLine)
		case ev.Decision != "":
			one.Note = line("by "+ev.DecidedBy+" via "+viaWord(ev.Via), maxLine)
			if ev.Comment != "" {
				one.Note += ": “" + line(ev.Comment, maxLine) + "”"
			}
		case ev.Message != "":
			one.Note = line(ev.Message, maxLine)
		case len(ev.Selected) > 0:
			one.Note = "to " + line(strings.Join(ev.Selected, ", "), maxLine)
		case ev.Reason != "":
			one.Note = words(ev.Reason)
		case ev.DurationMS != nil && *ev.DurationMS > 0 && ev.Type == engine.NodeCompleted:
			one.Note = "in " + span(time.Duration(*ev.DurationMS)*time.Millisecond)
		}
		v.Timeline = append(v.Timeline, one)
	}
	if v.Left = len(v.Timeline) - maxTimeline; v.Left > 0 {
		v.Timeline = v.Timeline[v.Left:]
	}
}

// eventWord says what happened, in words, and the colour that goes with it; ""
// for an event that a timeline leaves out.
func eventWord(ev *engine.Event) (what, state string) {
	switch ev.Type {
	case engine.RunStarted:
		return "run started", "running"
	case engine.RunTimeout:
		return "run timed out", "failed"
	case engine.RunCompleted:
		return "run completed", "completed"
	case engine.RunFailed:
		return "run failed", "failed"
	case engine.RunCancelled:
		return "run cancelled", "cancelled"
	case engine.NodeStarted:
		if ev.Attempt > 1 {
			return "started again", "running"
		}
		return "started", "running"
	case engine.NodeCompleted:
		return "completed", "completed"
	case engine.NodeFailed:
		return "failed", "failed"
	case engine.NodeRetrying:
		return "will be tried again", "waiting"
	case engine.NodeSkipped:
		return "skipped", "skipped"
	case engine.GatePaused:
		return "waits for a person", "waiting"
	case engine.GateResumed:
		if ev.Decision == engine.Rejected {
			return "rejected", "failed"
		}
		return decisionWord(ev.Decision), "completed"
	case engine.BudgetWarning:
		return "budget warning", "waiting"
	case engine.BudgetPaused:
		return "budget reached", "waiting"
	}
	return "", ""
}

type runsView struct {
	Runs     []runView
	Workflow string
	State    string
	States   []string
	Next     string
	First    bool
}

// filterOf reads the filter of a list of runs; what is no state counts as none.
func filterOf(r *http.Request) (engine.RunFilter, string) {
	q := r.URL.Query()
	f := engine.RunFilter{Workflow: strings.TrimSpace(q.Get("workflow")), Before: q.Get("before"), Limit: runsPerPage + 1}
	state := q.Get("state")
	if !slices.Contains(stateWords(), state) {
		return f, ""
	}
	f.States = []engine.State{engine.State(state)}
	return f, state
}

func stateWords() []string {
	return []string{
		string(engine.Running), string(engine.Waiting), string(engine.Completed), string(engine.Failed),
		string(engine.Cancelled), string(engine.Parked), string(engine.Blocked),
	}
}

// list reads one page of runs. Running and parked are one state in the store.
func (c *Console) list(ctx context.Context, f engine.RunFilter) (runs []engine.Run, next string, err error) {
	runs, err = c.opt.Engine.Runs(ctx, f)
	if err != nil {
		return nil, "", err
	}
	if len(runs) > runsPerPage {
		runs = runs[:runsPerPage]
		next = runs[len(runs)-1].ID
	}
	if len(f.States) > 0 {
		runs = slices.DeleteFunc(runs, func(r engine.Run) bool { return r.State != f.States[0] })
	}
	return runs, next, nil
}

func stampRuns(runs []engine.Run) string {
	var parts []string
	for i := range runs {
		parts = append(parts, runs[i].ID, string(runs[i].State))
	}
	return digest(parts...)
}

func (c *Console) runs(w http.ResponseWriter, r *http.Request, s *session) {
	f, state := filterOf(r)
	if !s.visitor.Runs {
		f.Principal = s.visitor.Principal
	}
	runs, next, err := c.list(r.Context(), f)
	if err != nil {
		c.broken(w, r, err)
		return
	}
	view := runsView{Workflow: line(f.Workflow, 200), State: state, States: stateWords(), First: f.Before == ""}
	for i := range runs {
		one := &runs[i]
		view.Runs = append(view.Runs, runView{
			ID: one.ID, Workflow: line(one.Workflow, 80), State: string(one.State), Reason: line(one.Reason, 160),
			Started: c.moment(one.Created), Took: c.took(one), Cost: dollars(one.Cost),
			Source: sourceWord(one),
		})
	}
	query := url.Values{}
	for key, v := range map[string]string{"workflow": f.Workflow, "state": state} {
		if v != "" {
			query.Set(key, v)
		}
	}
	if next != "" {
		on := url.Values{"before": {next}}
		for key := range query {
			on.Set(key, query.Get(key))
		}
		view.Next = "?" + on.Encode()
	}
	query.Set("before", f.Before)
	query.Set("since", stampRuns(runs))
	p := s.page("runs", "Runs", view)
	p.Live, p.Refresh = c.opt.Prefix+"/runs/live?"+query.Encode(), 10
	c.show(w, r, http.StatusOK, "runs", p)
}

func (c *Console) runsLive(w http.ResponseWriter, r *http.Request, s *session) {
	f, _ := filterOf(r)
	if !s.visitor.Runs {
		f.Principal = s.visitor.Principal
	}
	c.live(w, r, s, func(ctx context.Context) (string, error) {
		runs, _, err := c.list(ctx, f)
		return stampRuns(runs), err
	})
}

func (c *Console) runPage(w http.ResponseWriter, r *http.Request, s *session) {
	run, events, err := c.runOf(r.Context(), id(r, "run"))
	if err = s.seen(run, err); err != nil {
		c.broken(w, r, err)
		return
	}
	view := c.runView(r.Context(), run, events, true)
	view.MayCancel = view.Active && s.visitor.cancels(run)
	view.Asked = r.URL.Query().Get("asked") == "1" && view.Active
	if view.Active {
		gates, err := c.opt.Engine.Gates(r.Context(), engine.GateFilter{Run: run.ID, Open: true, Limit: gatesPerPage})
		if err != nil {
			c.broken(w, r, err)
			return
		}
		for i := range gates {
			if !s.visitor.gates(gates[i].Workflow) {
				continue
			}
			g := c.gateView(&gates[i])
			g.Message = line(gates[i].Message, maxLine)
			view.Gates = append(view.Gates, g)
		}
	}
	p := s.page("runs", view.Workflow+" · "+string(run.State), view)
	p.Live = c.opt.Prefix + "/runs/" + url.PathEscape(run.ID) + "/live?since=" + url.QueryEscape(stampRun(run.State, len(events)))
	if view.Active {
		p.Refresh = 3
	}
	c.show(w, r, http.StatusOK, "run", p)
}

func stampRun(state engine.State, events int) string {
	return string(state) + "-" + strconv.Itoa(events)
}

func (c *Console) runLive(w http.ResponseWriter, r *http.Request, s *session) {
	run, err := c.opt.Engine.Run(r.Context(), id(r, "run"), "")
	if err = s.seen(run, err); err != nil {
		c.broken(w, r, err)
		return
	}
	watch := c.watch(run.ID)
	if _, _, err := watch(r.Context()); err != nil {
		c.broken(w, r, err)
		return
	}
	c.live(w, r, s, func(ctx context.Context) (string, error) {
		state, events, err := watch(ctx)
		return stampRun(state, events), err
	})
}

// output is one output of a run by itself, as a file: no browser runs it.
func (c *Console) output(w http.ResponseWriter, r *http.Request, s *session) {
	run, err := c.opt.Engine.Run(r.Context(), id(r, "run"), "")
	if err = s.seen(run, err); err != nil {
		c.broken(w, r, err)
		return
	}
	raw, err := c.opt.Engine.Output(r.Context(), id(r, "run"), id(r, "node"), "")
	if err != nil {
		c.broken(w, r, err)
		return
	}
	v := value(raw, maxWhole)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="output.txt"`)
	_, _ = w.Write([]byte(v.Text)) //nolint:gosec // plain text that no browser shows: an attachment, nosniff
}

func (c *Console) cancelPage(w http.ResponseWriter, r *http.Request, s *session) {
	run, events, err := c.runOf(r.Context(), id(r, "run"))
	if err == nil && !s.visitor.cancels(run) {
		err = engine.ErrRunNotFound
	}
	if err != nil {
		c.broken(w, r, err)
		return
	}
	c.show(w, r, http.StatusOK, "cancel", s.page("runs", "Cancel a run", c.runView(r.Context(), run, events, false)))
}

func (c *Console) cancel(w http.ResponseWriter, r *http.Request, s *session) {
	run := id(r, "run")
	about, err := c.opt.Engine.Run(r.Context(), run, "")
	if err == nil && !s.visitor.cancels(about) {
		err = engine.ErrRunNotFound
	}
	if err != nil {
		c.broken(w, r, err)
		return
	}
	if err := c.opt.Engine.Cancel(r.Context(), run, string(s.visitor.Principal), engine.ViaConsole, "cancelled via "+engine.ViaConsole); err != nil {
		c.broken(w, r, err)
		return
	}
	c.log.InfoContext(r.Context(), "console: a run was cancelled", "run", run)
	http.Redirect(w, r, c.opt.Prefix+"/runs/"+url.PathEscape(run)+"?asked=1", http.StatusSeeOther)
}
