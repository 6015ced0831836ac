package inbound

import (
	"context"
	"encoding/json"

	"github.com/mark3labs/mcp-go/mcp"
)

// An answer is what a request of the server is going to get. Its id is claimed until
// the answer was sent or revoked.
type answer struct {
	key     string
	body    []byte
	started bool
	revoked bool
}

// requested takes a request of the server. A ping is answered; everything else asks for
// what was never declared.
func (p *peer) requested(m message) {
	if m.id[0] != '"' && !isInteger(m.id) {
		p.report("request with a bad id dropped", "method", clip(m.method))
		return
	}
	body, err := p.answerTo(m)
	if err != nil {
		p.report("request of the server not answered", "err", err)
		return
	}
	a := &answer{key: idKey(m.id), body: body}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil || p.closing {
		return
	}
	if _, twice := p.claimed[a.key]; twice {
		p.report("request under an id that is in use dropped", "method", clip(m.method))
		return
	}
	select {
	case p.queue <- a:
		p.claimed[a.key] = a
	default:
		p.report("request dropped: too many wait for their answer", "method", clip(m.method))
	}
}

func (p *peer) answerTo(m message) ([]byte, error) {
	var body struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  *struct{}       `json:"result,omitempty"`
		Error   *rpcFault       `json:"error,omitempty"`
	}
	body.Version, body.ID = "2.0", m.id
	if m.method == string(mcp.MethodPing) {
		body.Result = &struct{}{}
	} else {
		body.Error = &rpcFault{mcp.METHOD_NOT_FOUND, "not supported by this client"}
	}
	return json.Marshal(body)
}

type rpcFault struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// answerAll sends what is queued, one by one, until the connection ends.
func (p *peer) answerAll(ctx context.Context) {
	defer p.leave()
	for {
		var a *answer
		select {
		case a = <-p.queue:
		case <-p.quit:
			return
		}
		if p.begin(a) {
			p.sendAnswer(ctx, a)
			p.release(a)
		}
	}
}

// begin takes an answer that nobody revoked.
func (p *peer) begin(a *answer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.started = !a.revoked
	return a.started
}

// release gives the id of an answer back to the server.
func (p *peer) release(a *answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claimed[a.key] == a {
		delete(p.claimed, a.key)
	}
}

func (p *peer) sendAnswer(ctx context.Context, a *answer) {
	ctx, stop := context.WithTimeout(ctx, answerLimit)
	defer stop()
	if err := p.wire.send(ctx, &outgoing{body: a.body}); err != nil {
		p.report("answer to the server not sent", "err", err)
	}
}

// revokeAll revokes the answers that were not begun. The caller holds the lock.
func (p *peer) revokeAll() {
	for key, a := range p.claimed {
		if !a.started {
			a.revoked = true
			delete(p.claimed, key)
		}
	}
}

// notified takes a notification of the server.
func (p *peer) notified(m message) {
	switch m.method {
	case string(mcp.MethodNotificationCancelled):
		p.revoke(member(m.params, "requestId"))
	case string(mcp.MethodNotificationToolsListChanged):
		p.report("the server says that its tools changed; the run keeps those it began with")
	}
}

// revoke obeys a server's cancellation of its own request: an answer that was not begun
// is not sent. It has no power over our requests, whatever their ids.
func (p *peer) revoke(id json.RawMessage) {
	if len(id) == 0 || id[0] != '"' && !isInteger(id) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.claimed[idKey(id)]; ok && !a.started {
		a.revoked = true
		delete(p.claimed, a.key)
	}
}

// isInteger reports whether a JSON value is written as an integer.
func isInteger(raw json.RawMessage) bool {
	if len(raw) > 0 && raw[0] == '-' {
		raw = raw[1:]
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(raw) > 0
}

// idKey makes ids comparable: two spellings of one string are one id.
func idKey(id json.RawMessage) string {
	if id[0] == '"' {
		return `"` + textOf(id)
	}
	return string(id)
}

// clip keeps what a server sent from filling a line of the log.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most]
}
