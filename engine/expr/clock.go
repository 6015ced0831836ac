package expr

import (
	"sync"
	"time"
)

// busiest is how much longer than its limit an evaluation may last on a machine that
// has no processor for it.
const busiest = 30

// A clock bounds one evaluation by the time that a processor works on it: on a busy
// machine more time passes, which is not the expression's fault. Where it is not known
// what a processor does, the time that passes counts.
type clock struct {
	m     *machine
	limit time.Duration
	start time.Time
	work  func() (time.Duration, error)

	mu      sync.Mutex
	timer   *time.Timer
	over    bool
	stopped bool
}

// startClock bounds an evaluation that begins now, whose work is told from now on.
func (m *machine) startClock(limit time.Duration, work func() (time.Duration, error)) *clock {
	c := &clock{m: m, limit: limit, start: time.Now(), work: work}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(limit, c.look)
	return c
}

// look ends the evaluation if its time is over: first as the engine itself would.
func (c *clock) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	if c.over {
		c.m.starve()
		return
	}
	passed := time.Since(c.start)
	worked, err := c.work()
	if err != nil {
		worked = passed
	}
	if left := c.limit - worked; left > 0 && passed < c.limit*busiest {
		c.timer.Reset(max(left, time.Millisecond))
		return
	}
	c.over = true
	c.m.interrupt()
	c.timer.Reset(grace)
}

// stop reports whether the time was over.
func (c *clock) stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.timer.Stop()
	return c.over
}
