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

// enter lets a start of key begin, or returns why it may not: the cause of the last
// failure. ended must be called once when the start has ended: with nil if it succeeded,
// its failure, or counted false if it says nothing about the server.
func (s *starts) enter(key string) (ended func(cause *workflows.ToolError, counted bool), refused *workflows.ToolError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.m[key]
	if r != nil && r.waits > 0 {
		if r.probing || s.now().Before(r.until) {
			f := *r.cause
			f.Reason, f.Retryable = ReasonBackoff, false
			f.Message = "it failed to start too often just now: " + r.cause.Message
			f.Limit = max(r.until.Sub(s.now()), 0)
			return nil, &f
		}
		r.probing = true
	}
	return func(cause *workflows.ToolError, counted bool) { s.ended(key, cause, counted) }, nil
}

func (s *starts) ended(key string, cause *workflows.ToolError, counted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.m[key]
	switch {
	case cause == nil:
		delete(s.m, key)
		return
	case !counted:
		if r != nil {
			r.probing = false
		}
		return
	case r == nil:
		s.prune()
		r = &startRecord{}
		s.m[key] = r
	}
	now := s.now()
	copy(r.failed[1:], r.failed[:])
	r.failed[0], r.cause, r.probing = now, cause, false
	if r.waits > 0 || !r.failed[failuresToBackoff-1].IsZero() && now.Sub(r.failed[failuresToBackoff-1]) <= failureWindow {
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
