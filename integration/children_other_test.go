//go:build !linux

package integration

// held is of the tests of children, which run on Linux.
func held() bool { return false }
