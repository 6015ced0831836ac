package inbound

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Park says that the run waits for a person. Its connections are kept for a while, as
// long as few children of parked runs are kept; then they are closed, and Open makes
// them anew. Parking a run that is not open does nothing.
func (h *Host) Park(ctx context.Context, runID string) {
	h.mu.Lock()
	r := h.runs[runID]
	if r == nil || !r.park(func() { h.expire(context.WithoutCancel(ctx), r) }, h.opt.KeepParked) {
		h.mu.Unlock()
		return
	}
	h.parked = append(without(h.parked, r), r)
	var over []*run
	total := 0
	for _, kept := range slices.Backward(h.parked) {
		if total += kept.children(); total > maxParked {
			over = append(over, kept)
		}
	}
	h.mu.Unlock()
	for _, old := range slices.Backward(over) { // oldest first
		h.expire(context.WithoutCancel(ctx), old)
	}
}

// expire closes a run that is still parked, and forgets it.
func (h *Host) expire(ctx context.Context, r *run) {
	if r.begin(ctx, func(p phase) bool { return p == parked }) {
		h.forget(r)
	}
}

// park arms the timer of an open run.
func (r *run) park(expire func(), after time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != open {
		return false
	}
	r.phase = parked
	r.keep = time.AfterFunc(after, expire)
	return true
}

// resume lets a parked run go on, and reports whether it is open with all its servers
// alive.
func (r *run) resume() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == open {
		return true
	}
	if r.phase != parked || slices.ContainsFunc(r.conns, func(c *connection) bool { return c.session.peer.alive() != nil }) {
		return false
	}
	r.keep.Stop()
	r.phase = open
	return true
}

// children counts the processes of the run.
func (r *run) children() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, c := range r.conns {
		if c.stdio() {
			n++
		}
	}
	return n
}

// CloseDigest closes every living connection whose program has that digest, and waits
// for their ends: its grant was taken back. Their runs go on without them.
func (h *Host) CloseDigest(ctx context.Context, digest string) error {
	h.mu.Lock()
	runs := slices.Collect(maps.Values(h.runs))
	h.mu.Unlock()
	var errs []error
	for _, r := range runs {
		for _, c := range r.ofDigest(digest) {
			c.session.peer.lost(errRevoked)
			c.end(ctx)
			select {
			case <-c.done:
				errs = append(errs, c.failure)
			case <-ctx.Done():
				errs = append(errs, errOwed)
			}
		}
	}
	return errors.Join(errs...)
}

// errRevoked is why the connections of a revoked program end.
var errRevoked = fmt.Errorf("consent was taken back: %w", errEnded)

// ofDigest lists the connections of the program with that digest.
func (r *run) ofDigest(digest string) []*connection {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*connection
	for _, c := range r.conns {
		if c.stdio() && c.digest == digest {
			out = append(out, c)
		}
	}
	return out
}
