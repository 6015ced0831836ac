//go:build unix

package secrets

import "golang.org/x/sys/unix"

func noCore() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }
