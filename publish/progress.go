package publish

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
)

// A progress turns a run's events into notifications/progress. Its value is the
// number of nodes settled, plus k/(k+1) for the k-th notification since the last
// of them: it always grows, and reaches total only when every node is settled.
// It is safe for concurrent use.
type progress struct {
	x     *exchange
	token json.RawMessage // as sent; nil means that nothing is sent
	total int

	mu      sync.Mutex
	settled map[string]bool
	further int // notifications since a node settled
	last    time.Time
	over    bool // nothing is sent any more

	// Of a call that was resumed:
	told  int64 // events up to this one are not told again
	quiet bool  // such events may come still
	base  int   // what further begins with where nodes settled before
}

func newProgress(x *exchange, total int) *progress {
	token := x.request.Meta("progressToken")
	if len(token) > 0 && (token[0] == '{' || token[0] == '[' || token[0] == 'n' || token[0] == 't' || token[0] == 'f') {
		token = nil // "MUST be a string or integer value"
	}
	return &progress{x: x, token: token, total: total, settled: map[string]bool{}, last: time.Now()}
}

// event notes what happened and tells the client if it is worth a line.
func (p *progress) event(ev *engine.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.quiet && ev.N <= p.told
	p.quiet = p.quiet && ev.N < p.told
	if ev.Settles() && !p.settled[ev.Node] {
		p.settled[ev.Node] = true
		p.further = -1
	}
	if before {
		p.further = p.base
		return
	}
	if line := eventLine(ev); line != "" {
		p.write(line)
	} else if p.further < 0 {
		p.further = 0
	}
}

// eventLine is an event for people, or "" for one that tells them nothing.
func eventLine(ev *engine.Event) string {
	switch ev.Type {
	case engine.NodeStarted:
		if ev.NodeType == "agent" {
			return "node " + ev.Node + " started"
		}
	case engine.NodeCompleted:
		return "node " + ev.Node + " completed"
	case engine.NodeSkipped:
		return "node " + ev.Node + " skipped"
	case engine.NodeFailed:
		if ev.Error != nil {
			return fmt.Sprintf("node %s failed: %s", ev.Node, ev.Error.Code)
		}
		return "node " + ev.Node + " failed"
	case engine.NodeRetrying:
		return "node " + ev.Node + " is tried again"
	case engine.GateResumed:
		return fmt.Sprintf("gate %s: %s", orElse(ev.Node, ev.Gate), orElse(ev.Decision, "answered"))
	case engine.AgentToolCall:
		return fmt.Sprintf("node %s calls %s", ev.Node, ev.Tool)
	case engine.BudgetWarning:
		return "the run nears its cost limit"
	case engine.RunTimeout:
		return "the run's time is up"
	}
	return ""
}

// send writes one notification. A client that is gone is found out elsewhere.
func (p *progress) send(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(line)
}

// since is when the last notification was due to be written.
func (p *progress) since() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// end keeps everything behind it from being written: "progress notifications
// MUST stop after completion" (MCP, Progress).
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

// write does what send does; p.mu is held.
func (p *progress) write(line string) {
	p.last = time.Now()
	if p.token == nil || p.over || p.quiet {
		return
	}
	p.further++
	if p.further > 0 && len(p.settled) >= p.total {
		return // nothing is left between here and the result
	}
	note := struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress float64         `json:"progress"`
		Total    int             `json:"total"`
		Message  string          `json:"message,omitempty"`
	}{Token: p.token, Progress: float64(len(p.settled)), Total: max(p.total, len(p.settled))}
	if p.further > 0 {
		note.Progress += float64(p.further) / float64(p.further+1)
	}
	if p.x.caller.knows(mcp.ProtocolVersion20250326) {
		note.Message = oneLine(line, 400)
	}
	p.x.notify(string(mcp.MethodNotificationProgress), note)
}

// beat tells a client that the run is alive.
func (p *progress) beat(waiting string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("running, %d of %d nodes settled", len(p.settled), p.total)
	if waiting != "" {
		line = waiting
	}
	p.write(line)
}

// notify writes a notification of the exchange's stream.
func (x *exchange) notify(method string, params any) {
	body, err := encode(params)
	if err != nil {
		return
	}
	_ = x.request.Notify(method, body) // a call whose client is gone ends by its context
}
