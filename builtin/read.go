package builtin

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/workflows"
)

// MaxText is the most bytes that a Reader reads from one file.
const MaxText = 4 << 20

// A ReadError says why a file was not read. Its text names neither the file nor
// any folder, so that it may be shown to whoever may see the run.
type ReadError struct {
	Reason string

	denied bool // by policy; otherwise the file is just not there or not to be read
}

func (e *ReadError) Error() string { return "read_file: " + e.Reason }

// A Reader reads text files of a workspace. The zero value works; it is safe for
// concurrent use.
type Reader struct {
	// Private are absolute paths of folders and files that are never read, wherever
	// the workspace is.
	Private []string
}

// ReadText returns the whole UTF-8 text of the file that path names below root,
// the absolute path of a workspace. Links are followed inside the workspace
// only, and the floor of format 6.3 is checked on the written and on the real
// path. A file that is not regular, has more than one link, holds more than
// MaxText bytes or is not UTF-8 is refused. Every error is a *ReadError.
func (r Reader) ReadText(root, path string) ([]byte, error) {
	if err := workflows.CheckPath(path); err != nil {
		return nil, &ReadError{Reason: "the path is not allowed in this workspace", denied: true}
	}
	realRoot, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, &ReadError{Reason: "the workspace cannot be opened"}
	}
	names, err := r.resolve(realRoot, path)
	if err != nil {
		return nil, err
	}
	jail, err := os.OpenRoot(realRoot)
	if err != nil {
		return nil, &ReadError{Reason: "the workspace cannot be opened"}
	}
	file, err := openBelow(jail, names, r.floor())
	if err != nil {
		return nil, err
	}
	text, err := readAll(file)
	if closeErr := file.Close(); err == nil && closeErr != nil {
		return nil, &ReadError{Reason: "the file cannot be read"}
	}
	return text, err
}

// resolve follows every link of path and returns the names from the workspace
// down to the real file.
func (r Reader) resolve(realRoot, path string) ([]string, error) {
	target, err := filepath.EvalSymlinks(filepath.Join(realRoot, filepath.FromSlash(path)))
	if err != nil {
		return nil, readFault(err)
	}
	rel, err := filepath.Rel(realRoot, target)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, &ReadError{Reason: "the file is not inside the workspace", denied: true}
	}
	if err := workflows.CheckPath(filepath.ToSlash(rel)); err != nil {
		return nil, &ReadError{Reason: "the path is not allowed in this workspace", denied: true}
	}
	if onPrivate(target, r.Private) {
		return nil, &ReadError{Reason: "the path is not allowed in this workspace", denied: true}
	}
	return strings.Split(rel, string(filepath.Separator)), nil
}

// onPrivate tells whether a real path is one of the private ones, or below one.
func onPrivate(target string, private []string) bool {
	for _, p := range private {
		at, err := filepath.EvalSymlinks(p)
		if err != nil { // it does not exist, and is not to be made
			at = filepath.Clean(p)
		}
		if below(target, at) {
			return true
		}
	}
	return false
}

// floor is what stands at the private paths, whatever name leads there.
func (r Reader) floor() []fs.FileInfo {
	var floor []fs.FileInfo
	for _, p := range r.Private {
		if about, err := os.Stat(p); err == nil {
			floor = append(floor, about)
		}
	}
	return floor
}

func isOneOf(about fs.FileInfo, these []fs.FileInfo) bool {
	return slices.ContainsFunc(these, func(t fs.FileInfo) bool { return os.SameFile(t, about) })
}

func below(path, folder string) bool {
	if runtime.GOOS == "windows" || runtime.GOOS == "darwin" {
		path, folder = strings.ToLower(path), strings.ToLower(folder)
	}
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}

// openBelow opens the regular file at the end of names, none of which may be a
// link any more: each is looked at without following it and must be the very
// file that is then open, so that a link put in its place meanwhile is noticed.
// Nothing on the way may be of the floor. It closes dir.
func openBelow(dir *os.Root, names []string, floor []fs.FileInfo) (*os.File, error) {
	for _, name := range names[:len(names)-1] {
		next, err := openFolder(dir, name, floor)
		if closeErr := dir.Close(); err == nil && closeErr != nil {
			err = readFault(errors.Join(closeErr, next.Close()))
		}
		if err != nil {
			return nil, err
		}
		dir = next
	}
	file, err := openRegular(dir, names[len(names)-1], floor)
	if closeErr := dir.Close(); err == nil && closeErr != nil {
		return nil, readFault(errors.Join(closeErr, file.Close()))
	}
	return file, err
}

func openFolder(dir *os.Root, name string, floor []fs.FileInfo) (*os.Root, error) {
	seen, err := dir.Lstat(name)
	if err != nil {
		return nil, readFault(err)
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return nil, readFault(err)
	}
	opened, err := next.Stat(".")
	switch {
	case err != nil:
		return nil, readFault(errors.Join(err, next.Close()))
	case !os.SameFile(seen, opened):
		return nil, errors.Join(&ReadError{Reason: "a folder changed while it was opened"}, next.Close())
	case isOneOf(opened, floor):
		return nil, errors.Join(&ReadError{Reason: "the path is not allowed in this workspace", denied: true}, next.Close())
	}
	return next, nil
}

func openRegular(dir *os.Root, name string, floor []fs.FileInfo) (*os.File, error) {
	seen, err := dir.Lstat(name)
	if err != nil {
		return nil, readFault(err)
	}
	if !seen.Mode().IsRegular() {
		return nil, &ReadError{Reason: "not a regular file"}
	}
	if isOneOf(seen, floor) {
		return nil, &ReadError{Reason: "the path is not allowed in this workspace", denied: true}
	}
	file, err := dir.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, readFault(err)
	}
	if err := checkOpened(file, seen); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func checkOpened(file *os.File, seen fs.FileInfo) error {
	opened, err := file.Stat()
	if err != nil || !os.SameFile(seen, opened) {
		return &ReadError{Reason: "the file changed while it was opened"}
	}
	links, err := linkCount(file, opened)
	switch {
	case err != nil:
		return &ReadError{Reason: "the file cannot be read"}
	case links > 1:
		return &ReadError{Reason: "the file has more than one hard link", denied: true}
	case opened.Size() > MaxText:
		return &ReadError{Reason: fmt.Sprintf("the file is larger than %d bytes", MaxText)}
	}
	return nil
}

func readAll(file *os.File) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(file, MaxText+1))
	switch {
	case err != nil:
		return nil, &ReadError{Reason: "the file cannot be read"}
	case len(text) > MaxText:
		return nil, &ReadError{Reason: fmt.Sprintf("the file is larger than %d bytes", MaxText)}
	case !utf8.Valid(text):
		return nil, &ReadError{Reason: "the file is not UTF-8 text"}
	}
	return text, nil
}

// readFault says what went wrong without the path that is in err.
func readFault(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &ReadError{Reason: "no such file in the workspace"}
	case errors.Is(err, fs.ErrPermission):
		return &ReadError{Reason: "no permission to read the file"}
	default:
		return &ReadError{Reason: "the file cannot be read"}
	}
}
