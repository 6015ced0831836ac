//go:build !linux

package expr

import "time"

// threadTime is the time that passes: what a thread does is not known here.
func threadTime() func() (time.Duration, error) {
	start := time.Now()
	return func() (time.Duration, error) { return time.Since(start), nil }
}
