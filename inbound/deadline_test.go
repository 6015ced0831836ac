package inbound

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

func TestConnectDeadline(t *testing.T) {
	tests := []struct {
		name string
		ref  workflows.ServerRef
		want time.Duration
	}{
		{"stdio", workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh"}, 120 * time.Second},
		{"network", workflows.ServerRef{ID: "s", Transport: "http", URL: "http://127.0.0.1:9/", AllowLocalEndpoint: true}, 30 * time.Second},
		{"raised", workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh", ConnectTimeout: 600 * time.Second}, 600 * time.Second},
		{"lowered", workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh", ConnectTimeout: time.Millisecond}, time.Millisecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.silent = true
				w := newWorld(t, map[string]*server{"s": s}, nil)
				began := time.Now()
				f := wantFault(t, w.open(t, flow(test.ref)), workflows.ToolUnavailable, ReasonConnect, false)
				if took := time.Since(began); took != test.want || f.Limit != test.want || f.Server != "s" {
					t.Errorf("Open took %v with limit %v of %q, want %v", took, f.Limit, f.Server, test.want)
				}
				if s.count("server/discover") != 1 || s.count("initialize") != 1 {
					t.Errorf("the server got %q, want both questions once", s.log())
				}
				w.shutdown(t)
			})
		})
	}
}

// A server that comes up slowly within its time comes up.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = func(_ *serving, m message) bool {
			if m.method == "server/discover" {
				time.Sleep(80 * time.Second) //nolint:forbidigo // in a bubble
			}
			return false
		}
		w := newWorld(t, map[string]*server{"s": s}, nil)
		w.mustOpen(t, flow(stdioRef("s")))
		w.shutdown(t)
	})
}

// How long a start may take, and what is said when that is not enough (case T15).
func TestStartDelays(t *testing.T) {
	for _, test := range []struct {
		delay, limit time.Duration
		fits         bool
	}{
		{45 * time.Second, 0, true}, {130 * time.Second, 0, false}, {130 * time.Second, 200 * time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			s.before = func() { time.Sleep(test.delay) } //nolint:forbidigo // in a bubble
			w := newWorld(t, map[string]*server{"s": s}, nil)
			ref := stdioRef("s")
			ref.ConnectTimeout = test.limit
			err := w.open(t, flow(ref))
			if test.fits {
				if err != nil {
					t.Errorf("Open() with a delay of %v = %v", test.delay, err)
				}
			} else {
				f := wantFault(t, err, workflows.ToolUnavailable, ReasonConnect, false)
				for _, part := range []string{"first start may download", "connect_timeout_ms"} {
					if !strings.Contains(f.Message, part) {
						t.Errorf("message = %q, want %q in it", f.Message, part)
					}
				}
			}
			time.Sleep(20 * time.Second) //nolint:forbidigo // in a bubble: until the program has ended, too
			w.shutdown(t)
		})
	}
}

func TestDiscoveryDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		n := 0
		s.answer = func(c *serving, m message) bool {
			if m.method != "tools/list" {
				return false
			}
			n++
			page := fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}],"nextCursor":"%d"}`, n, n)
			time.AfterFunc(7*time.Second, func() { c.reply(m.id, page) })
			return true
		}
		w := newWorld(t, map[string]*server{"s": s}, nil)
		began := time.Now()
		f := wantFault(t, w.open(t, flow(stdioRef("s"))), workflows.ToolUnavailable, ReasonDiscoverTime, false)
		if took := time.Since(began); took != discoveryLimit || f.Limit != discoveryLimit {
			t.Errorf("Open took %v with limit %v, want %v", took, f.Limit, discoveryLimit)
		}
		w.shutdown(t)
		if s.count("notifications/cancelled") != 1 {
			t.Errorf("the server got %q, want the page under way cancelled", s.log())
		}
	})
}

// hangs answers every call but those that say "go".
func hangs(c *serving, m message) bool {
	return m.method == "tools/call" && textOf(member(member(m.params, "arguments"), "text")) != "go"
}

// A call has its 60 s and no more, and the failure names them (report L08).
func TestCallDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = hangs
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		began := time.Now()
		_, err := w.say(t.Context(), f, "s", "hang")
		fault := wantFault(t, err, workflows.ToolFailed, ReasonDeadline, false)
		if took := time.Since(began); took != callLimit || fault.Limit != callLimit || fault.Elapsed != callLimit {
			t.Errorf("Call took %v, says %v of %v, want %v", took, fault.Elapsed, fault.Limit, callLimit)
		}
		synctest.Wait()
		if got := s.log(); got[len(got)-1] != "notifications/cancelled 4 deadline" {
			t.Errorf("the server got %q, want a notice for request 4 last", got)
		}
		if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
			t.Errorf("the next call = %v, %v, want go", got, err)
		}
		w.shutdown(t)
	})
}

func TestCancelReachesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = hangs
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := w.say(ctx, f, "s", "hang")
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		synctest.Wait()
		if got := s.log(); got[len(got)-1] != "notifications/cancelled 4 cancelled" {
			t.Errorf("the server got %q, want a notice for request 4 last", got)
		}
		w.shutdown(t)
	})
}

// Who gave up is told so, also where a deadline has passed when the failure is judged.
func TestCancelBeforeDeadline(t *testing.T) {
	asked, giveUp := context.WithCancel(t.Context())
	giveUp()
	at := &tool{server: "s"}
	wantFault(t, callFault(asked, at, outcome{begun: true}, errors.Join(errCallDeadline, errCancelled), time.Now()),
		workflows.ToolCancelled, ReasonCancelled, false)
	wantFault(t, startFault(asked, "s", &declared{}, errors.Join(errConnectDeadline, errCancelled), time.Now()),
		workflows.ToolCancelled, ReasonCancelled, false)
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = hangs
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(callLimit-1, cancel)
		_, err := w.say(ctx, f, "s", "hang")
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		w.shutdown(t)
	})
	// A deadline of who asked is a deadline.
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = hangs
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		ctx, stop := context.WithTimeoutCause(t.Context(), time.Second, fmt.Errorf("node: %w", context.DeadlineExceeded))
		defer stop()
		_, err := w.say(ctx, f, "s", "hang")
		wantFault(t, err, workflows.ToolFailed, ReasonDeadline, false)
		w.shutdown(t)
	})
}

func TestCancelDuringConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.silent = true
		w := newWorld(t, map[string]*server{"s": s}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := w.Open(ctx, Run{ID: "r", Workflow: flow(stdioRef("s")), Root: t.TempDir()})
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		w.shutdown(t)
	})
}

func TestCancelDuringDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = func(_ *serving, m message) bool { return m.method == "tools/list" }
		w := newWorld(t, map[string]*server{"s": s}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := w.Open(ctx, Run{ID: "r", Workflow: flow(stdioRef("s")), Root: t.TempDir()})
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		w.shutdown(t)
		if s.count("notifications/cancelled 3") != 1 {
			t.Errorf("the server got %q, want a notice for the page", s.log())
		}
	})
}

// One slow call costs its siblings nothing.
func TestSiblingsUntouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = hangs
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := w.say(t.Context(), f, "s", "hang")
			wantFault(t, err, workflows.ToolFailed, ReasonDeadline, false)
		})
		for range 50 {
			wg.Go(func() {
				began := time.Now()
				if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" || time.Since(began) != 0 {
					t.Errorf("a sibling = %v, %v after %v, want go at once", got, err, time.Since(began))
				}
			})
		}
		wg.Wait()
		w.shutdown(t)
	})
}

// What a server that reads nothing never got is known not to have happened; what was
// begun is not.
func TestUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		block := make(chan struct{})
		s.answer = func(_ *serving, m message) bool {
			if m.method == "tools/call" {
				<-block
			}
			return false
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		var wg sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			wg.Go(func() { _, errs[i] = w.say(t.Context(), f, "s", "x") })
			synctest.Wait()
		}
		wg.Wait()
		// The first was read, the second waits in the pipe, the third was never begun.
		wantFault(t, errs[0], workflows.ToolFailed, ReasonDeadline, false)
		wantFault(t, errs[1], workflows.ToolFailed, ReasonDeadline, false)
		wantFault(t, errs[2], workflows.ToolFailed, ReasonDeadline, true)
		close(block)
		synctest.Wait()
		if n := s.count("tools/call"); n != 2 {
			t.Errorf("the server got %d calls, want 2", n)
		}
		w.shutdown(t)
	})
}

func TestServerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		die := errors.New("dies")
		s.answer = func(c *serving, m message) bool {
			if m.method == "tools/call" {
				_ = c.out.(interface{ CloseWithError(err error) error }).CloseWithError(die)
				return true
			}
			return false
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		_, err := w.say(t.Context(), f, "s", "x")
		wantFault(t, err, workflows.ToolFailed, ReasonLost, false)
		_, err = w.say(t.Context(), f, "s", "x") // it stays dead
		wantFault(t, err, workflows.ToolUnavailable, ReasonDied, false)
		w.shutdown(t)
	})
}
