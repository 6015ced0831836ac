package builtin

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

const openNonblock = 0

func linkCount(file *os.File, _ fs.FileInfo) (uint64, error) {
	var about windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(file.Fd()), &about); err != nil {
		return 0, err
	}
	return uint64(about.NumberOfLinks), nil
}

// linksOf counts the links of a file that was looked at.
func linksOf(dir *os.Root, name string, seen fs.FileInfo) (uint64, error) {
	file, err := dir.Open(name)
	if err != nil {
		return 0, err
	}
	links, err := linkCount(file, seen)
	return links, errors.Join(err, file.Close())
}
