package inbound

import (
	"sync"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

const (
	// failuresToBackoff is how many failed starts of one program or URL within
	// failureWindow make further ones wait.
	failuresToBackoff = 3
	failureWindow     = 60 * time.Second
	maxBackoff        = 30 * time.Second
	// maxStarts bounds what is remembered; what is not in trouble is forgotten first.
	maxStarts = 4096
)

// starts keeps a server that fails to start from being started over and over. It is
// safe for concurrent use.
type starts struct {
	now func() time.Time

	mu sync.Mutex
	m  map[string]*startRecord
}

type startRecord struct {
	failed  [failuresToBackoff]time.Time // latest first
	waits   int                          // backoffs in a row
	until   time.Time                    // no start before
	probing bool                         // one start is under way although it is in trouble
	cause   *workflows.ToolError
}

func newStarts(now func() time.Time) *starts {
	return &starts{now: now, m: make(map[string]*startRecord)}
}

// An attempt is one start of a server that was let begin.
type attempt struct {
	s     *starts
	key   string
	probe bool // the one start of a server in trouble
}

// enter lets a start of key begin, or returns why it may not: the cause of the last
// failure. The attempt's ended must be called once when the start has ended.
func (s *starts) enter(key string) (*attempt, *workflows.ToolError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := &attempt{s: s, key: key}
	if r := s.m[key]; r != nil && r.waits > 0 {
		if r.probing || s.now().Before(r.until) {
			return nil, r.refusal(s.now())
		}
		a.probe, r.probing = true, true
	}
	return a, nil
}

// refusal is why no start may begin now.
func (r *startRecord) refusal(now time.Time) *workflows.ToolError {
	f := *r.cause
	f.Reason, f.Retryable = ReasonBackoff, false
	f.Message = "it failed to start too often just now: " + r.cause.Message
	f.Limit = max(r.until.Sub(now), 0)
	return &f
}

// again is asked by an attempt that has waited before it starts anything: the server
// may be in trouble by now.
func (a *attempt) again() *workflows.ToolError {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	if r := a.s.m[a.key]; r != nil && r.waits > 0 && !a.probe {
		return r.refusal(a.s.now())
	}
	return nil
}

// ended takes what came of the attempt: nil if it succeeded, else its failure, which
// counts if it says something about the server.
func (a *attempt) ended(cause *workflows.ToolError, counted bool) {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.m[a.key]
	if r != nil && a.probe {
		r.probing = false
	}
	switch {
	case cause == nil:
		delete(s.m, a.key)
		return
	case !counted:
		return
	case r == nil:
		s.prune()
		r = &startRecord{}
		s.m[a.key] = r
	}
	now := s.now()
	copy(r.failed[1:], r.failed[:])
	r.failed[0], r.cause = now, cause
	switch {
	case r.waits > 0 && !a.probe: // it began before the trouble was known
	case r.waits > 0, !r.failed[failuresToBackoff-1].IsZero() && now.Sub(r.failed[failuresToBackoff-1]) <= failureWindow:
		r.until = now.Add(min(time.Second<<min(r.waits, 5), maxBackoff))
		r.waits++
	}
}

// prune makes room, for more than one so that it is not asked each time. The caller
// holds the lock.
func (s *starts) prune() {
	if len(s.m) < maxStarts {
		return
	}
	now := s.now()
	for key, r := range s.m {
		if !r.probing && now.After(r.until) && now.Sub(r.failed[0]) > failureWindow {
			delete(s.m, key)
		}
	}
	for key, r := range s.m {
		if len(s.m) <= maxStarts/2 {
			return
		}
		if !r.probing {
			delete(s.m, key)
		}
	}
}
