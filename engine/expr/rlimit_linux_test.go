package expr

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// limitAddressSpace makes an attack that escapes the memory limit die instead of
// taking the machine with it.
func limitAddressSpace() {
	if err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: 4 << 30, Max: 4 << 30}); err != nil {
		panic(err)
	}
}

// peakMB is the largest resident size of this process so far.
func peakMB() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kb int
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		panic(err)
	}
	return kb >> 10
}

// cpuTime is the processor time of this process so far.
func cpuTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
