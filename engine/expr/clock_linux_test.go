package expr

import (
	"runtime"
	"testing"
	"time"
)

// A thread that works is told from one that waits.
func TestThreadTime(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	work := threadTime()
	const some = 20 * time.Millisecond
	worked := func() time.Duration {
		told := make(chan time.Duration)
		go func() {
			at, err := work()
			if err != nil {
				t.Error(err)
			}
			told <- at
		}()
		return <-told
	}
	for start := time.Now(); worked() < some; {
		if time.Since(start) > time.Minute {
			t.Fatal("a thread that works does nothing")
		}
		for range 1_000_000 {
			runtime.KeepAlive(start)
		}
	}
	before, start := worked(), time.Now()
	<-time.After(5 * some)
	if got, passed := worked()-before, time.Since(start); got > passed/2 {
		t.Errorf("a thread that waits for %v worked for %v", passed, got)
	}
}
