package child

import (
	"context"
	"slices"
)

// A place is one server's among the living children, had or waited for.
type place struct {
	owner   string
	granted chan struct{}
	refused chan struct{} // the table was closed
}

// admit waits for a place, in the order of arrival; who waits for its own limit lets
// others pass.
func (t *Table) admit(ctx context.Context, owner string) (*place, error) {
	seat := &place{owner: owner, granted: make(chan struct{}), refused: make(chan struct{})}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, ErrTableClosed
	}
	t.queue = append(t.queue, seat)
	t.grant()
	t.mu.Unlock()
	select {
	case <-seat.granted:
		return seat, nil
	default:
	}
	select {
	case <-seat.granted:
		return seat, nil
	case <-seat.refused:
		return nil, ErrTableClosed
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, seat); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
		if owner != "" && t.owners[owner] >= t.perOwner {
			return nil, &FullError{Limit: t.perOwner, Owner: true, Err: context.Cause(ctx)}
		}
		return nil, &FullError{Limit: t.children, Err: context.Cause(ctx)}
	}
	select {
	case <-seat.granted: // in the same moment: it goes to the next
		t.give(seat)
		return nil, context.Cause(ctx)
	default:
		return nil, ErrTableClosed
	}
}

// leave gives a place back.
func (t *Table) leave(seat *place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.give(seat)
}

func (t *Table) give(seat *place) {
	t.taken--
	if seat.owner != "" {
		if t.owners[seat.owner]--; t.owners[seat.owner] == 0 {
			delete(t.owners, seat.owner)
		}
	}
	t.grant()
}

// grant gives free places to those who wait.
func (t *Table) grant() {
	t.queue = slices.DeleteFunc(t.queue, func(seat *place) bool {
		if t.taken >= t.children || seat.owner != "" && t.owners[seat.owner] >= t.perOwner {
			return false
		}
		t.taken++
		if seat.owner != "" {
			t.owners[seat.owner]++
		}
		close(seat.granted)
		return true
	})
}
