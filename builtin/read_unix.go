//go:build unix

package builtin

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// openNonblock keeps the opening of a pipe that took the file's place from waiting.
const openNonblock = syscall.O_NONBLOCK

func linkCount(_ *os.File, opened fs.FileInfo) (uint64, error) {
	stat, ok := opened.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("no link count")
	}
	return uint64(stat.Nlink), nil //nolint:unconvert // the width of Nlink differs between systems
}

// linksOf counts the links of a file that was looked at.
func linksOf(_ *os.Root, _ string, seen fs.FileInfo) (uint64, error) { return linkCount(nil, seen) }
