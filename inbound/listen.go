package inbound

import (
	"context"
	"net/http"
	"time"

	"github.com/relavium/relavium-serve/egress"
)

const (
	// standing is the lane of a stream that belongs to no request: no response may come
	// on it.
	standing = -1
	// maxRelistens is how often in a row a standing stream that brings nothing is asked
	// for again.
	maxRelistens = 5
)

// listener is a wire on which the server can speak unasked.
type listener interface{ listen(ctx context.Context) }

// listen starts the wire's standing stream, if it has one, until the peer closes.
func (p *peer) listen(ctx context.Context) {
	w, ok := p.wire.(listener)
	if !ok {
		return
	}
	p.mu.Lock()
	entered := p.ended == nil && p.enter()
	p.mu.Unlock()
	if !entered {
		return
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer p.leave()
		defer close(ended)
		w.listen(ctx)
	}()
	go func() {
		defer stop()
		select {
		case <-p.quit:
		case <-ended:
		}
	}()
}

// listen asks for the stream on which a server of the revisions before 2026-07-28 may
// speak unasked ("The client MAY issue an HTTP GET to the MCP endpoint"), and for the
// next one when it ends. A server that offers none is asked once.
func (h *httpWire) listen(ctx context.Context) {
	var at cursor
	for failures := 0; failures < maxRelistens; {
		heard, offered := h.hear(ctx, &at)
		switch {
		case !offered || ctx.Err() != nil:
			return
		case heard:
			failures = 0
		default:
			failures++
		}
		delay := defaultReconnect << failures
		if at.retry > 0 {
			delay = max(at.retry, minReconnect)
		}
		timer := time.NewTimer(min(delay, maxReconnect))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// hear reads one standing stream to its end.
func (h *httpWire) hear(ctx context.Context, at *cursor) (heard, offered bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url, nil)
	if err != nil || h.address(req) != nil {
		return false, false
	}
	req.Header.Set("Accept", "text/event-stream")
	if at.id != "" {
		req.Header.Set("Last-Event-ID", at.id)
	}
	resp, err := do(h.client, req)
	if err != nil {
		return false, at.id != "" && egress.ReasonOf(err) == ""
	}
	defer closeBody(resp)
	if resp.StatusCode != http.StatusOK || mediaType(resp) != "text/event-stream" {
		return false, false
	}
	err = readEvents(resp.Body, at, func(e event) bool {
		heard = true
		if e.name == "message" {
			h.to.deliver(standing, e.data)
		}
		return true
	})
	return heard && err == nil, true
}
