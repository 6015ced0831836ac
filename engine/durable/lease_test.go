package durable

import (
	"testing"
	"time"
)

// TestFresh: a process that was stopped does not count itself as alive once another
// may have begun to count it as dead.
func TestFresh(t *testing.T) {
	t.Parallel()
	for ago, want := range map[time.Duration]bool{0: true, 10 * time.Second: true, 21 * time.Second: false, time.Hour: false} {
		l := &lease{length: 30 * time.Second, renewed: time.Now().Add(-ago)}
		if got := l.fresh(); got != want {
			t.Errorf("fresh %v after the last renewal = %v, want %v", ago, got, want)
		}
	}
}
