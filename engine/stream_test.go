package engine

import (
	"testing"
	"testing/synctest"
)

// TestStoredEventComesOnce: an event that a call read from the store does not come again
// once the stream of its replica has heard of it too.
func TestStoredEventComesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStream("r", 6) // another replica has stored the next event since
		a := &Attachment{e: &Engine{closing: make(chan struct{})}, run: "r", s: s, pos: 6, stored: []Event{{N: 6}}}
		got := make(chan int64, 2)
		go func() {
			for range cap(got) {
				ev, err := a.Next(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- ev.N
			}
		}()
		synctest.Wait() // for the event after the stored one
		s.mu.Lock()
		s.append(Event{N: 6}, Event{N: 7})
		s.mu.Unlock()
		if first, second := <-got, <-got; first != 6 || second != 7 {
			t.Errorf("events %d and %d came, want 6 and 7", first, second)
		}
	})
}
