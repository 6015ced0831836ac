package access

import (
	"net/netip"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// Limits bound the calls that start runs. Zero means no bound.
type Limits struct {
	PerMinute  int // of one principal; not of local
	Concurrent int // of one principal at once, from a call's start to its answer; not of local
	Runs       int // that execute in the process at once
	// CostPerDay is what runs of one principal may cost in 24 h before another is
	// started, in micro-cents; not of local. Whoever starts runs checks it.
	CostPerDay int64
}

// A LimitError refuses a call that would start a run.
type LimitError struct {
	Limit string        // the key in [serve.limits]
	Most  int64         // what it allows
	After time.Duration // when it may be tried again
}

func (e *LimitError) Error() string {
	switch e.Limit {
	case "calls_per_minute":
		return "too many calls: this caller may start a limited number of runs in a minute"
	case "concurrent":
		return "too many calls at once: this caller has to wait for one of them to end"
	case "cost_per_day_microcents":
		return "the runs of this caller have cost as much as they may within a day"
	}
	return "the server executes as many runs as it may at once"
}

// A Limiter applies Limits. It is safe for concurrent use.
type Limiter struct {
	active func(but ...string) int // runs that execute in the process, beside some; nil means that none do
	now    func() time.Time

	mu       sync.Mutex
	limits   Limits
	starting map[*Slot]string // calls whose run may not execute yet, and that run, or ""
	callers  map[engine.Principal]*usage
}

// usage is what one principal did in the last minute, by seconds.
type usage struct {
	open   int
	counts [60]int32
	at     int64 // second of the last count
	sum    int
}

// maxCallers is from how many on the principals that do nothing are forgotten.
const maxCallers = 1024

// NewLimiter makes a Limiter; active tells how many runs execute in the process beside
// those that it is given, which are different ones.
func NewLimiter(limits Limits, active func(but ...string) int) *Limiter {
	return &Limiter{limits: limits, active: active, now: time.Now, starting: map[*Slot]string{}, callers: map[engine.Principal]*usage{}}
}

// Set puts other limits in place. What was counted stays counted.
func (l *Limiter) Set(limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limits = limits
}

// Limits are those in place.
func (l *Limiter) Limits() Limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limits
}

// A Slot is the place of one call within the limits.
type Slot struct {
	l      *Limiter
	caller *usage // nil when none is counted
	second int64
	done   bool
}

// Take finds a place for a call that may start a run, or says why there is none
// with a *LimitError. The caller calls Starts or Joined once the run is known, Begun
// when it executes, and Done at the end.
func (l *Limiter) Take(p engine.Principal) (*Slot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits.Runs > 0 && l.running() >= l.limits.Runs {
		return nil, &LimitError{Limit: "runs", Most: int64(l.limits.Runs), After: time.Second}
	}
	s := &Slot{l: l}
	if p != engine.Local && (l.limits.PerMinute > 0 || l.limits.Concurrent > 0) {
		now := l.now().Unix()
		u := l.usage(p, now)
		u.roll(now)
		switch {
		case l.limits.Concurrent > 0 && u.open >= l.limits.Concurrent:
			return nil, &LimitError{Limit: "concurrent", Most: int64(l.limits.Concurrent), After: time.Second}
		case l.limits.PerMinute > 0 && u.sum >= l.limits.PerMinute:
			return nil, &LimitError{Limit: "calls_per_minute", Most: int64(l.limits.PerMinute), After: u.free(l.limits.PerMinute)}
		}
		u.open++
		u.sum++
		u.counts[now%60]++
		s.caller, s.second = u, now
	}
	l.starting[s] = ""
	return s, nil
}

// running is how many runs execute or are going to; the lock is held.
func (l *Limiter) running() int {
	if l.active == nil {
		return len(l.starting)
	}
	known := make([]string, 0, len(l.starting))
	for _, run := range l.starting {
		if run != "" {
			known = append(known, run)
		}
	}
	return len(l.starting) + l.active(known...)
}

// usage finds or makes the usage of a principal; the lock is held.
func (l *Limiter) usage(p engine.Principal, now int64) *usage {
	if u := l.callers[p]; u != nil {
		return u
	}
	if len(l.callers) >= maxCallers {
		for other, u := range l.callers {
			if u.open == 0 && now-u.at >= 60 {
				delete(l.callers, other)
			}
		}
	}
	u := &usage{at: now}
	l.callers[p] = u
	return u
}

// roll forgets what is older than a minute.
func (u *usage) roll(now int64) {
	for ; u.at < now && u.sum > 0; u.at++ {
		u.sum -= int(u.counts[(u.at+1)%60])
		u.counts[(u.at+1)%60] = 0
	}
	u.at = max(u.at, now)
}

// free is when fewer than limit starts are left of the last minute.
func (u *usage) free(limit int) time.Duration {
	left := u.sum
	for i := int64(1); i <= 60; i++ {
		if left -= int(u.counts[(u.at+i)%60]); left < limit {
			return time.Duration(i) * time.Second
		}
	}
	return time.Minute
}

// Starts says which run the call has started, which may execute by now.
func (s *Slot) Starts(run string) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if _, starting := s.l.starting[s]; starting {
		s.l.starting[s] = run
	}
}

// Begun says that the run of the call was seen to execute.
func (s *Slot) Begun() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	delete(s.l.starting, s)
}

// Joined says that the call started no run: it is not counted by the minute.
func (s *Slot) Joined() {
	s.Begun()
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	u := s.caller
	if u == nil || s.second < 0 {
		return
	}
	u.roll(s.l.now().Unix())
	if u.at-s.second < 60 && u.counts[s.second%60] > 0 {
		u.counts[s.second%60]--
		u.sum--
	}
	s.second = -1
}

// Done gives the place back. Calling it again does nothing.
func (s *Slot) Done() {
	s.Begun()
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if !s.done && s.caller != nil {
		s.caller.open--
	}
	s.done = true
}

// failures bounds how often an address may try credentials that are no good. A
// good one is taken whatever was tried before: a guess is hopeless anyway, and
// whoever shares an address with somebody broken must not be shut out.
type failures struct {
	most int
	now  func() time.Time

	mu sync.Mutex
	by map[netip.Prefix]*tries
}

type tries struct {
	since time.Time
	n     int
}

// maxAddresses bounds the addresses that are remembered.
const maxAddresses = 16384

// more counts one failure; it is false, with the time to wait, when there were
// too many within a minute. This machine is not counted.
func (f *failures) more(from netip.Addr) (after time.Duration, ok bool) {
	from = from.Unmap()
	if !from.IsValid() || from.IsLoopback() {
		return 0, true
	}
	bits := 32
	if from.Is6() {
		bits = 64 // what one subscriber has
	}
	key, err := from.Prefix(bits)
	if err != nil {
		return 0, true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	t := f.by[key]
	if t == nil || now.Sub(t.since) >= time.Minute {
		if len(f.by) >= maxAddresses {
			f.forget(now)
		}
		t = &tries{since: now}
		f.by[key] = t
	}
	if t.n >= f.most {
		return time.Minute - now.Sub(t.since), false
	}
	t.n++
	return 0, true
}

// forget drops what is over, or everything where that does not suffice.
func (f *failures) forget(now time.Time) {
	for key, t := range f.by {
		if now.Sub(t.since) >= time.Minute {
			delete(f.by, key)
		}
	}
	if len(f.by) >= maxAddresses {
		clear(f.by)
	}
}
