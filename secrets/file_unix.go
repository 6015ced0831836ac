//go:build unix

package secrets

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFlags keeps a pipe from holding the opener and, where asked, a link from being
// followed.
func openFlags(noLink bool) int {
	flags := unix.O_NONBLOCK | unix.O_CLOEXEC
	if noLink {
		flags |= unix.O_NOFOLLOW
	}
	return flags
}

func isLink(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) // FreeBSD says EMLINK
}

// notTrusted says why an open file is not what is wanted; "" if it is.
func notTrusted(about fs.FileInfo, want ownership) string {
	if want == anyOwner {
		return ""
	}
	stat, ok := about.Sys().(*syscall.Stat_t)
	mode := about.Mode().Perm()
	own := ok && int64(stat.Uid) == int64(os.Geteuid())
	switch {
	case want == ownerOnly && mode&0o077 != 0:
		return "is open to others: its mode must be 0600"
	case mode&0o022 != 0:
		return "can be written by others: its mode must be 0600"
	case !own && (want == ownerOnly || !ok || stat.Uid != 0):
		return "belongs to another user"
	}
	return ""
}
