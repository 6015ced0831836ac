package expr

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Work counts, and the time that passes only where it is out of all proportion, or
// where nobody knows of the work.
func TestClock(t *testing.T) {
	t.Parallel()
	s := New(1)
	t.Cleanup(s.Close)
	code, err := s.scripts()
	if err != nil {
		t.Fatal(err)
	}
	const limit = time.Second
	for _, tt := range []struct {
		name string
		work func(passed time.Duration) (time.Duration, error)
		ends time.Duration
	}{
		{"all for it", func(passed time.Duration) (time.Duration, error) { return passed, nil }, limit},
		{"a quarter", func(passed time.Duration) (time.Duration, error) { return passed / 4, nil }, 4 * limit},
		{"nothing", func(time.Duration) (time.Duration, error) { return 0, nil }, busiest * limit},
		{"unknown", func(time.Duration) (time.Duration, error) { return 0, errors.New("no such clock") }, limit},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, err := newMachine(code)
			if err != nil {
				t.Fatal(err)
			}
			defer m.close()
			start := time.Now()
			c := m.startClock(limit, func() (time.Duration, error) { return tt.work(time.Since(start)) })
			over := func(after time.Duration) bool {
				<-time.After(time.Until(start.Add(after)))
				synctest.Wait()
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.over
			}
			if over(tt.ends - grace) {
				t.Errorf("%s: over before %v", tt.name, tt.ends)
			}
			if !over(tt.ends + grace) {
				t.Errorf("%s: not over after %v", tt.name, tt.ends)
			}
			if over(tt.ends + 2*grace); !m.end() {
				t.Errorf("%s: the machine is not stopped after %v", tt.name, tt.ends+2*grace)
			}
			if !c.stop() {
				t.Errorf("%s: stop = false, want that the time was over", tt.name)
			}
		})
	}
}
