package transport

import (
	"encoding/json"
	"sync"
)

// initialized is what a client says when the answer to initialize arrived.
const initialized = "notifications/initialized"

// Notices are notifications that belong to no request and go to every session of
// a revision before 2026-07-28 that has said notifications/initialized. The zero
// value has no sessions. It is safe for concurrent use.
type Notices struct {
	mu   sync.Mutex
	ears map[*ear]struct{}
}

// An ear is where one session hears notices. There is room for one: a client that
// has not taken a notice needs no other to look again.
type ear struct{ lines chan []byte }

func newEar() *ear { return &ear{lines: make(chan []byte, 1)} }

// Say sends a notification to whoever listens. It waits for nobody: a session
// that has not taken the notice before this one gets that alone. Params must
// encode to a JSON object.
func (n *Notices) Say(method string, params json.RawMessage) {
	line := notificationLine(method, params)
	n.mu.Lock()
	defer n.mu.Unlock()
	for e := range n.ears {
		e.put(line)
	}
}

func (e *ear) put(line []byte) {
	select {
	case e.lines <- line:
	default:
	}
}

// join lets a session hear from now on, until it leaves.
func (n *Notices) join(e *ear) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ears == nil {
		n.ears = map[*ear]struct{}{}
	}
	n.ears[e] = struct{}{}
}

func (n *Notices) leave(e *ear) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ears, e)
}
