package expr

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime measures the processor time of the calling thread from now on; what it
// returns may be called by any other.
func threadTime() func() (time.Duration, error) {
	// The clock of a thread, as pthread_getcpuclockid(3) makes it.
	id := int32(^unix.Gettid()<<3 | 6) //nolint:gosec // a thread id has less than 29 bits
	read := func() (time.Duration, error) {
		var at unix.Timespec
		err := unix.ClockGettime(id, &at)
		return time.Duration(at.Nano()), err
	}
	start, failed := read()
	return func() (time.Duration, error) {
		now, err := read()
		if failed != nil {
			err = failed
		}
		return now - start, err
	}
}
