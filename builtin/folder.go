package builtin

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// tempFolder, below the home, holds the folders of runs.
const tempFolder = "tmp"

// hooksPrefix begins the names of empty folders in which git looks for hooks.
const hooksPrefix = ".hooks-"

// maxSpill bounds what Spill keeps in one file.
const maxSpill = 16 << 20

var (
	errRunID     = errors.New("builtin: not a run id")
	errRunFolder = errors.New("builtin: the run's folder is not a folder of its own")
)

// Folder returns the absolute path of the run's own folder, and makes it if it does
// not exist. It is the run's alone, and only its user can enter it.
func (t *Tools) Folder(run string) (string, error) {
	at, err := t.ownFolder(run)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{filepath.Dir(at), at} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", errRunFolder
		}
	}
	return t.ownFolder(run) // what was there already may be no folder
}

// ownFolder is the path of the run's folder, which need not exist. Where something
// is, it is a folder and no link.
func (t *Tools) ownFolder(run string) (string, error) {
	if !isRunID(run) {
		return "", errRunID
	}
	top := filepath.Join(t.home, tempFolder)
	for _, dir := range []string{top, filepath.Join(top, run)} {
		about, err := os.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil || !about.IsDir() {
			return "", errRunFolder
		}
	}
	return filepath.Join(top, run), nil
}

// isRunID keeps names of folders to letters, digits, - and _.
func isRunID(run string) bool {
	if run == "" || len(run) > 64 {
		return false
	}
	return !strings.ContainsFunc(run, func(r rune) bool { return r == '.' || !isPlain(r) })
}

// isPlain tells whether a character is safe in a file's name on every platform.
func isPlain(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' || r == '_' || r == '.'
}

// Spill keeps a text in the run's own folder until the run ends and returns the path
// by which read_file reads it. The same name again replaces it. Of more than 16 MiB
// the rest is dropped.
func (t *Tools) Spill(run, name string, content []byte) (string, error) {
	if _, err := t.Folder(run); err != nil {
		return "", err
	}
	dir, err := os.OpenRoot(t.home)
	if err != nil {
		return "", errRunFolder
	}
	rel := path.Join("spill", plainName(name))
	err = func() error {
		folder := path.Join(tempFolder, run, "spill")
		if err := dir.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		inside, err := dir.OpenRoot(folder)
		if err != nil {
			return err
		}
		return errors.Join(replace(inside, plainName(name), content[:min(len(content), maxSpill)], 0o600, nil), inside.Close())
	}()
	if err := errors.Join(err, dir.Close()); err != nil {
		return "", errors.Join(errRunFolder, err)
	}
	return ownFolder + rel, nil
}

// plainName makes of any name one of a file: letters, digits, dots, - and _.
func plainName(name string) string {
	name = strings.Map(func(r rune) rune {
		if isPlain(r) {
			return r
		}
		return '-'
	}, name)
	name = strings.TrimLeft(name[max(0, len(name)-100):], ".")
	if name == "" {
		return "text"
	}
	return name
}

// Remove removes the run's own folder. It is safe to call twice.
func (t *Tools) Remove(run string) error {
	if !isRunID(run) {
		return errRunID
	}
	return t.remove(run)
}

func (t *Tools) remove(name string) error {
	dir, err := os.OpenRoot(filepath.Join(t.home, tempFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errRunFolder
	}
	return errors.Join(dir.RemoveAll(name), dir.Close())
}

// Sweep removes the folders of runs that ended while nobody was there to do it:
// those that alive does not know. It goes on after an error and returns them joined.
func (t *Tools) Sweep(alive func(run string) bool) error {
	entries, err := os.ReadDir(filepath.Join(t.home, tempFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errRunFolder
	}
	var errs []error
	for _, e := range entries {
		about, err := e.Info()
		leftover := err == nil && strings.HasPrefix(e.Name(), hooksPrefix) && time.Since(about.ModTime()) > time.Hour
		if leftover || isRunID(e.Name()) && !alive(e.Name()) {
			errs = append(errs, t.remove(e.Name()))
		}
	}
	return errors.Join(errs...)
}
