//go:build unix

package consent

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFlags keeps a link from being followed and a pipe from holding the opener.
func openFlags() int { return unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC }

func lockFlags() int { return os.O_CREATE | os.O_RDWR | openFlags() }

// isLink reports whether a file was not opened because it is a link.
func isLink(err error) bool {
	return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) // FreeBSD says EMLINK
}

// notOwn says why an open file may be another's work; "" if it is not.
func notOwn(about fs.FileInfo) string {
	stat, ok := about.Sys().(*syscall.Stat_t)
	switch {
	case about.Mode().Perm()&0o077 != 0:
		return "is open to others: its mode must be 0600"
	case !ok:
		return "has no owner"
	case int64(stat.Uid) != int64(os.Geteuid()):
		return "belongs to another user"
	case stat.Nlink != 1:
		return "has more than one name"
	}
	return ""
}

// syncFolder puts the names of a folder's files on the disk.
func syncFolder(path string) error {
	dir, err := os.Open(path) //nolint:gosec // the home
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
