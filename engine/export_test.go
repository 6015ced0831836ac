package engine

import "time"

// SetBlockedAfter says how long a run that nobody fits goes unsaid.
func (o *Options) SetBlockedAfter(d time.Duration) { o.blockedAfter = d }

// Streamed returns how many events of a run are in memory.
func (e *Engine) Streamed(run string) int {
	e.mu.Lock()
	s := e.streams[run]
	e.mu.Unlock()
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}
