package inbound

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// Three failed starts within a minute make the next ones wait: 1, 2, 4 … 30 s, with one
// probe after each wait.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarts(time.Now)
		cause := &workflows.ToolError{Fault: workflows.ToolUnavailable, Reason: ReasonDied, Message: "it ended"}
		fail := func() bool {
			attempt, refused := s.enter("k")
			if refused != nil {
				if refused.Reason != ReasonBackoff || refused.Message == "" {
					t.Errorf("refused = %v, want the stored cause", refused)
				}
				return false
			}
			attempt.ended(cause, true)
			return true
		}
		for i := range failuresToBackoff {
			if !fail() {
				t.Fatalf("start %d is refused", i)
			}
		}
		for _, wait := range []time.Duration{1, 2, 4, 8, 16, 30, 30, 30} {
			wait *= time.Second
			time.Sleep(wait - 1) //nolint:forbidigo // in a bubble
			if fail() {
				t.Errorf("a start began before %v", wait)
			}
			time.Sleep(time.Nanosecond) //nolint:forbidigo // in a bubble
			attempt, refused := s.enter("k")
			if refused != nil {
				t.Fatalf("no probe after %v: %v", wait, refused)
			}
			if fail() {
				t.Error("a second start began while one probes")
			}
			attempt.ended(cause, true)
		}
		time.Sleep(30 * time.Second) //nolint:forbidigo // in a bubble
		attempt, refused := s.enter("k")
		if refused != nil {
			t.Fatal(refused)
		}
		attempt.ended(cause, false) // cancelled: it says nothing
		if attempt, refused = s.enter("k"); refused != nil {
			t.Fatalf("a cancelled probe counts: %v", refused)
		}
		attempt.ended(nil, true)
		for i := range failuresToBackoff {
			if !fail() {
				t.Errorf("start %d after a success is refused", i)
			}
		}
		if _, refused := s.enter("other"); refused != nil {
			t.Errorf("another server is refused: %v", refused)
		}
	})
}

// Starts that wait for a place while others fail begin nothing any more, end nobody's
// probe and make no wait longer.
func TestBackoffOfWaitingStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarts(time.Now)
		cause := &workflows.ToolError{Reason: ReasonDied, Message: "it ended"}
		all := make([]*attempt, 8)
		for i := range all {
			var refused *workflows.ToolError
			if all[i], refused = s.enter("k"); refused != nil || all[i].again() != nil {
				t.Fatalf("start %d is refused: %v", i, refused)
			}
		}
		for _, failed := range all[:failuresToBackoff+2] {
			failed.ended(cause, true)
		}
		waiting := all[failuresToBackoff+2:]
		if refused := waiting[0].again(); refused == nil || refused.Reason != ReasonBackoff || refused.Limit != time.Second {
			t.Errorf("again() = %v, want a wait of 1 s", refused)
		}
		time.Sleep(time.Second) //nolint:forbidigo // in a bubble
		probe, refused := s.enter("k")
		if refused != nil || probe.again() != nil {
			t.Fatalf("the probe is refused: %v", refused)
		}
		waiting[0].ended(&workflows.ToolError{Reason: ReasonBackoff}, false)
		waiting[1].ended(cause, true)
		if _, refused := s.enter("k"); refused == nil {
			t.Error("a second probe began")
		}
		probe.ended(nil, true)
		if refused := waiting[2].again(); refused != nil {
			t.Errorf("again() after a success = %v", refused)
		}
	})
}

func TestFailuresFarApartDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStarts(time.Now)
		for range 10 {
			attempt, refused := s.enter("k")
			if refused != nil {
				t.Fatal(refused)
			}
			attempt.ended(&workflows.ToolError{}, true)
			time.Sleep(31 * time.Second) //nolint:forbidigo // in a bubble
		}
	})
}

func TestStartsAreBounded(t *testing.T) {
	s := newStarts(time.Now)
	for i := range 2 * maxStarts {
		attempt, refused := s.enter(fmt.Sprint(i))
		if refused != nil {
			t.Fatal(refused)
		}
		attempt.ended(&workflows.ToolError{}, true)
	}
	if n := len(s.m); n > maxStarts {
		t.Errorf("%d starts are remembered, want at most %d", n, maxStarts)
	}
}

// Many runs of a server that ends at its start: each gets a typed failure, and few start.
func TestStartStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = func(c *serving, _ message) bool {
			_ = c.out.(interface{ Close() error }).Close()
			return true
		}
		w := newWorld(t, map[string]*server{"s": s}, nil)
		f, root := flow(stdioRef("s")), t.TempDir()
		open := func(i int) error {
			return w.Open(t.Context(), Run{ID: fmt.Sprint(i), Workflow: f, Root: root})
		}
		for i := range failuresToBackoff {
			wantFault(t, open(i), workflows.ToolUnavailable, ReasonDied, false)
		}
		before := s.count("end")
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() { wantFault(t, open(100+i), workflows.ToolUnavailable, ReasonBackoff, false) })
		}
		wg.Wait()
		synctest.Wait()
		if n := s.count("end") - before; n > 2 {
			t.Errorf("%d starts in the storm, want none", n)
		}
		w.shutdown(t)
	})
}

func TestPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		w.Park(t.Context(), "r")
		if _, err := w.say(t.Context(), f, "s", "x"); err == nil {
			t.Error("a parked run's tool was called")
		}
		time.Sleep(defaultKeepParked - 1) //nolint:forbidigo // in a bubble
		w.mustOpen(t, f)                  // goes on with what it has
		if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "x" || s.count("initialize") != 1 {
			t.Errorf("Call() = %v, %v after %d handshakes, want x after 1", got, err, s.count("initialize"))
		}
		time.Sleep(2 * defaultKeepParked) //nolint:forbidigo // in a bubble
		if s.count("end") != 0 {
			t.Error("a run that goes on was closed")
		}
		w.Park(t.Context(), "r")
		w.Park(t.Context(), "r")
		time.Sleep(defaultKeepParked) //nolint:forbidigo // in a bubble
		synctest.Wait()
		if s.count("end") != 1 {
			t.Errorf("the server was ended %d times after %v, want once", s.count("end"), defaultKeepParked)
		}
		w.mustOpen(t, f) // anew
		if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "x" || s.count("initialize") != 2 {
			t.Errorf("Call() = %v, %v after %d handshakes, want x after 2", got, err, s.count("initialize"))
		}
		w.Park(t.Context(), "r")
		if err := w.Close(t.Context(), "r"); err != nil { // a drain closes at once
			t.Errorf("Close() = %v", err)
		}
		w.shutdown(t)
	})
}

// Of the children of parked runs the oldest make room.
func TestParkedChildrenAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w, f, root := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s")), t.TempDir()
		for i := range maxParked + 3 {
			id := fmt.Sprint(i)
			if err := w.Open(t.Context(), Run{ID: id, Workflow: f, Root: root}); err != nil {
				t.Fatal(err)
			}
			w.Park(t.Context(), id)
			synctest.Wait()
			if n := s.count("end"); n != max(0, i+1-maxParked) {
				t.Errorf("%d servers were ended after %d parked, want %d", n, i+1, max(0, i+1-maxParked))
			}
		}
		if w.lookup("0") != nil || w.lookup("3") == nil {
			t.Error("it was not the oldest that made room")
		}
		w.shutdown(t)
	})
}

// A parked run that lost its server gets another one.
func TestParkedServerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		w.Park(t.Context(), "r")
		w.peerOf(t).lost(errEnded)
		w.mustOpen(t, f)
		if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "x" {
			t.Errorf("Call() = %v, %v, want x", got, err)
		}
		w.shutdown(t)
		if s.count("end") != 2 {
			t.Errorf("%d servers were ended, want 2", s.count("end"))
		}
	})
}

func TestCloseDigest(t *testing.T) {
	w := newWorld(t, nil, nil)
	f := flow(helperRef(t, "s", "polite"), helperRef(t, "other", "noise"))
	w.mustOpen(t, f)
	digest := w.lookup("r").conns[0].digest
	if err := w.CloseDigest(t.Context(), digest); err != nil {
		t.Errorf("CloseDigest() = %v", err)
	}
	if n := len(w.children.Living()); n != 1 {
		t.Errorf("%d children live, want the other one", n)
	}
	_, err := w.say(t.Context(), f, "s", "x")
	wantFault(t, err, workflows.ToolUnavailable, ReasonDied, false)
	if got, err := w.say(t.Context(), f, "other", "x"); err != nil || got.Text != "x" {
		t.Errorf("Call() of the other = %v, %v, want x", got, err)
	}
	if err := w.Close(t.Context(), "r"); err != nil && !errors.Is(err, errEnded) {
		t.Errorf("Close() = %v", err)
	}
	w.shutdown(t)
}
