package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// A sink shows the events of one run as they come.
type sink interface {
	show(ev *engine.Event) error
}

// eventLines writes the events as NDJSON.
type eventLines struct{ w io.Writer }

func (e eventLines) show(ev *engine.Event) error {
	enc := json.NewEncoder(e.w)
	enc.SetEscapeHTML(false)
	return enc.Encode(ev)
}

// A nodeView is one line of a view.
type nodeView struct {
	id, kind, state, note string

	said  string // by the agent, since the last line break
	spent spend
}

// maxSaid bounds what is kept of a line that an agent has not ended, in bytes.
const maxSaid = 4 << 10

// A view shows the nodes of a run and their states: in place on a terminal that
// is high enough, else one line for each change.
type view struct {
	w       io.Writer
	place   bool // redraw in place
	color   bool
	width   int
	nodes   []nodeView
	drawn   int    // lines on the screen that belong to the view
	paused  bool   // a question is on the screen: change nothing
	stale   bool   // what is drawn in place has changed since
	held    string // lines that wait for the question to go
	started time.Time
	total   spend
}

// newView makes the view of a run of w for the standard error.
func (s *shell) newView(w *workflows.Workflow) *view {
	v := &view{w: s.stderr, color: s.color(s.stderr), width: 80}
	for _, id := range w.Topological() {
		if node, ok := w.Node(id); ok {
			v.nodes = append(v.nodes, nodeView{id: id, kind: node.Type(), state: "pending"})
		}
	}
	if file, ok := s.stderr.(interface{ Fd() uintptr }); ok && isTerminal(s.stderr) && s.env["TERM"] != "dumb" {
		width, height, err := term.GetSize(int(file.Fd()))
		v.place = err == nil && height > len(v.nodes)+2 && width >= 20
		if err == nil {
			v.width = width
		}
	}
	return v
}

func (v *view) show(ev *engine.Event) error {
	if ev.Type == engine.RunStarted {
		v.started = ev.Time
		_, err := fmt.Fprintf(v.w, "run %s\n", ev.Run)
		return err
	}
	if ev.Terminal() {
		err := v.resume()
		if v.total.calls > 0 {
			_, closing := fmt.Fprintln(v.w, v.summary(ev))
			err = errors.Join(err, closing)
		}
		return err
	}
	v.total.add(ev)
	if ev.Type == engine.BudgetWarning && ev.Spent != nil && ev.Limit != nil {
		v.held += fmt.Sprintf("! the run has spent %s of its budget of %s\n", usd(*ev.Spent), usd(*ev.Limit))
	}
	changed := v.change(ev)
	switch {
	case changed == nil:
		if v.held == "" {
			return nil
		}
	case v.place:
		v.stale = true
	case ev.Type == engine.AgentToken:
		v.held += changed.lines()
	case changed.state == "running" && changed.kind != "agent":
		return nil // a line when it settles says enough
	default:
		v.held += changed.rest() + v.line(changed) + "\n"
	}
	if v.paused {
		return nil
	}
	return v.catchUp()
}

// catchUp shows what has changed.
func (v *view) catchUp() error {
	if v.held != "" {
		held := v.held
		v.held = ""
		if v.drawn > 0 { // in the place of what is drawn, which comes below again
			held = fmt.Sprintf("\x1b[%dA\x1b[J", v.drawn) + held
			v.drawn, v.stale = 0, true
		}
		if _, err := io.WriteString(v.w, held); err != nil {
			return err
		}
	}
	if !v.stale {
		return nil
	}
	v.stale = false
	return v.draw()
}

// say takes in what an agent said; drawn in place, only the end of it shows.
func (n *nodeView) say(text string, place bool) {
	n.said += text
	if place && len(n.said) > maxSaid {
		n.said = strings.ToValidUTF8(n.said[len(n.said)-maxSaid/2:], "")
	}
}

// lines takes the whole lines out of what the agent said.
func (n *nodeView) lines() string {
	at := strings.LastIndexByte(n.said, '\n')
	if at < 0 && len(n.said) < maxSaid {
		return ""
	}
	if at < 0 {
		return n.rest()
	}
	whole := n.said[:at]
	n.said = n.said[at+1:]
	return n.quoted(whole)
}

// rest takes all that the agent said and that is not shown.
func (n *nodeView) rest() string {
	said := n.said
	n.said = ""
	return n.quoted(said)
}

func (n *nodeView) quoted(text string) string {
	var b strings.Builder
	for line := range strings.Lines(plain(text)) {
		if line = strings.TrimRight(line, "\n"); strings.TrimSpace(line) != "" {
			b.WriteString("  " + n.id + " | " + line + "\n")
		}
	}
	return b.String()
}

// leave shows what has changed and lets go of the lines on the screen: a question
// comes to stand below them, and nothing is shown until resume.
func (v *view) leave() error {
	err := v.catchUp()
	v.drawn, v.paused = 0, true
	return err
}

// resume shows what has changed since leave, and from now on at once.
func (v *view) resume() error {
	v.paused = false
	return v.catchUp()
}

// change applies an event to its node and returns the node, or nil if nothing shows.
func (v *view) change(ev *engine.Event) *nodeView {
	for i := range v.nodes {
		node := &v.nodes[i]
		if node.id != ev.Node {
			continue
		}
		switch ev.Type {
		case engine.NodeStarted:
			node.state, node.note = "running", ""
			if ev.Attempt > 1 {
				node.note = fmt.Sprintf("attempt %d", ev.Attempt)
			}
		case engine.NodeCompleted:
			node.state, node.note = "completed", ""
			if ev.DurationMS != nil {
				node.note = shortDuration(time.Duration(*ev.DurationMS) * time.Millisecond)
			}
			if used := node.spent.String(); used != "" {
				node.note += ", " + used
			}
			if ev.Selected != nil {
				node.note = "→ " + strings.Join(ev.Selected, ", ")
			}
		case engine.NodeFailed:
			node.state = "failed"
			if ev.Error != nil {
				node.note = string(ev.Error.Code) + ": " + ev.Error.Message
			}
		case engine.NodeRetrying:
			node.state, node.note = "pending", "will be tried again"
		case engine.NodeSkipped:
			node.state, node.note = "skipped", ev.Reason
		case engine.GatePaused:
			node.state, node.note = "waiting", ev.Message
		case engine.GateResumed:
			node.state, node.note = "running", ev.Decision+" by "+ev.DecidedBy
		case engine.AgentToken:
			node.say(ev.Token, v.place)
			node.state, node.note = "running", ""
		case engine.AgentReasoning:
			if !v.place || node.note == "thinks" {
				return nil
			}
			node.state, node.note = "running", "thinks"
		case engine.AgentToolCall:
			node.spent.add(ev)
			node.state, node.note = "running", "calls "+ev.Tool+" "+string(ev.ToolInput)
		case engine.AgentToolResult:
			if ev.Success == nil || *ev.Success {
				return nil
			}
			node.note = ev.Tool + " failed: " + ev.Summary
		case engine.CostUpdated:
			node.spent.add(ev)
			return nil
		default:
			return nil
		}
		return node
	}
	return nil
}

// draw puts the current lines over the ones before.
func (v *view) draw() error {
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", v.drawn)
	}
	for i := range v.nodes {
		b.WriteString(v.line(&v.nodes[i]) + "\n")
	}
	v.drawn = len(v.nodes)
	_, err := io.WriteString(v.w, b.String())
	return err
}

func (v *view) line(node *nodeView) string {
	sign, sgr := "·", "2"
	switch node.state {
	case "running":
		sign, sgr = "▸", "36"
	case "waiting":
		sign, sgr = "?", "33"
	case "completed":
		sign, sgr = "✓", "32"
	case "failed":
		sign, sgr = "✗", "31"
	case "skipped":
		sign, sgr = "-", "2"
	}
	text := fmt.Sprintf("%s (%s) %s", node.id, node.kind, node.state)
	if node.note != "" {
		text += "  " + node.note
	}
	if limit := v.width - 3; v.place {
		if said := tailOf(node.said, limit-len(text)-2); node.state == "running" && node.note == "" && said != "" {
			text += "  " + said
		}
		text = oneLine(text, limit)
	} else {
		text = oneLine(text, 400)
	}
	if v.color {
		return "\x1b[" + sgr + "m" + sign + "\x1b[0m " + text
	}
	return sign + " " + text
}

// tailOf is the end of the last line of what an agent says, of about n characters.
func tailOf(said string, n int) string {
	if at := strings.LastIndexByte(strings.TrimRight(said, "\n"), '\n'); at >= 0 {
		said = said[at+1:]
	}
	runes := []rune(strings.TrimSpace(plain(said)))
	if n < 8 || len(runes) == 0 {
		return ""
	}
	if len(runes) > n {
		return "…" + string(runes[len(runes)-n+1:])
	}
	return string(runes)
}
