package durable

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// silence is how long, in milliseconds, a server may leave unsaid that it got what
// was sent; then the network between is taken for cut.
const silence = 5000

func dropSilent(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, silence)
	})
	if err != nil {
		return err
	}
	if set == unix.EOPNOTSUPP || set == unix.ENOPROTOOPT { // a socket file
		return nil
	}
	return set
}
