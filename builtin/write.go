package builtin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	maxWrite    = 4 << 20  // bytes of one call
	maxAppended = 64 << 20 // bytes of a file that is appended to
)

func (t *Tools) writeFile() *tool {
	return &tool{
		id: "write_file",
		about: "Writes a text file: replaces it whole, or appends to it. Paths are relative to the workspace, with / between names, and may not leave it; " +
			"files that decide what programs or workflows run (.git, package.json, Makefile, files that a command names and the like) are refused, and a refused path ends the run. " +
			"Returns path and bytesWritten. A path that begins with run: is one of this run's own folder; the path in the result says where the file really is.",
		params: []param{
			{name: "path", schema: `{"type":"string"}`, about: "file to write, such as docs/guide.md", required: true},
			{name: "content", schema: `{"type":"string"}`, about: "the text to write", required: true},
			{name: "append", schema: `{"type":"boolean"}`, about: "whether to add the text at the end of the file instead of replacing it"},
			{name: "createDirs", schema: `{"type":"boolean"}`, about: "whether to make the folders of the path that do not exist"},
		},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			w := writing{content: a.text("content", maxWrite), add: a.flag("append"), makeDirs: a.flag("createDirs")}
			name := a.text("path", maxPath)
			if a.err != nil {
				return plan{}, a.err
			}
			out := plan{Admission: workflows.Admission{Repeatable: !w.add}}
			err := t.planWrite(c, name, &w)
			out.perform = func(context.Context) (json.RawMessage, error) {
				if w.place.own {
					if _, err := t.Folder(c.Run); err != nil {
						return nil, failed("run_folder", "the run's own folder cannot be opened", err)
					}
				}
				return w.perform()
			}
			return out, err
		},
	}
}

// A writing is one call of write_file.
type writing struct {
	content  string
	add      bool
	makeDirs bool

	place   *place
	missing int
}

// planWrite decides where a path is written and whether it may be.
func (t *Tools) planWrite(c *workflows.ToolCall, name string, w *writing) error {
	if text.Check(name) != nil {
		return incorrect("the path holds characters that do not show")
	}
	if !t.projectWrites(c) {
		if rest, own := cutOwn(name); !own {
			name = ownFolder + rest
		}
	}
	place, missing, err := t.place(c, name)
	if err != nil {
		return err
	}
	own, err := t.ownFolder(c.Run)
	if err != nil {
		return failed("run_folder", "the run's own folder cannot be opened", err)
	}
	s := t.shield(c, own)
	seen, err := os.Lstat(place.path())
	if err != nil {
		seen = nil
	}
	written, _ := cutOwn(name)
	if why := s.refuses(place, written, seen); why != "" {
		return denied(reasonPath, "%s", why)
	}
	if missing > 0 && !w.makeDirs {
		return report("a folder of the path does not exist; say createDirs to make it")
	}
	place.floor = append(place.floor, s.found...)
	w.place, w.missing = place, missing
	return nil
}

// perform writes the file. It stands there whole or not at all, unless it was
// appended to.
func (w *writing) perform() (out json.RawMessage, err error) {
	names := w.place.names
	folder, base := names[:len(names)-1], names[len(names)-1]
	dir, err := w.place.open(folder[:len(folder)-w.missing])
	if err != nil {
		return nil, err
	}
	for _, name := range folder[len(folder)-w.missing:] {
		next, err := makeFolder(dir, name, w.place)
		if closeErr := dir.Close(); err == nil && closeErr != nil {
			err = errors.Join(closeErr, next.Close())
		}
		if err != nil {
			return nil, err
		}
		dir = next
	}
	defer func() {
		if closeErr := dir.Close(); err == nil && closeErr != nil {
			err = failed("write", "the folder cannot be closed", closeErr)
		}
	}()
	mode := fs.FileMode(0o644)
	if w.place.own {
		mode = 0o600
	}
	seen, err := dir.Lstat(base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		seen, err = nil, nil
	case err == nil:
		err = w.checkSeen(dir, base, seen)
	}
	if err != nil {
		return nil, writeFault(err)
	}
	if w.add {
		err = appendTo(dir, base, seen, []byte(w.content), mode)
	} else {
		err = replace(dir, base, []byte(w.content), mode, seen)
	}
	if err != nil {
		return nil, writeFault(err)
	}
	return object(field{"path", w.place.shown}, field{"bytesWritten", len(w.content)})
}

func makeFolder(dir *os.Root, name string, p *place) (*os.Root, error) {
	mode := fs.FileMode(0o755)
	if p.own {
		mode = 0o700
	}
	if err := dir.Mkdir(name, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, writeFault(err)
	}
	next, err := openFolder(dir, name, p.floor)
	return next, told(err)
}

// checkSeen refuses what a file that is there already may not be.
func (w *writing) checkSeen(dir *os.Root, base string, seen fs.FileInfo) error {
	switch {
	case seen.Mode()&fs.ModeSymlink != 0:
		return denied(reasonPath, "the file is a link")
	case seen.IsDir():
		return report("the path names a folder")
	case !seen.Mode().IsRegular():
		return denied(reasonPath, "not a regular file")
	case isOneOf(seen, w.place.floor):
		return denied(reasonPath, "the path is not allowed in this workspace")
	case w.add && seen.Size()+int64(len(w.content)) > maxAppended:
		return report(fmt.Sprintf("the file would become larger than %d bytes", maxAppended))
	}
	links, err := linksOf(dir, base, seen)
	if err == nil && links > 1 {
		return denied(reasonPath, "the file has more than one hard link")
	}
	return err
}

// replace puts a file with the text in the place of what has the name, with the
// permissions of what was seen there or, if that is nil, with mode.
func replace(dir *os.Root, name string, content []byte, mode fs.FileMode, seen fs.FileInfo) error {
	temp := ".write-" + rand.Text()
	file, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil && seen != nil {
		err = file.Chmod(seen.Mode().Perm())
	}
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(temp))
	}
	return nil
}

// appendTo adds the text at the end of the file that was seen, or of a new one.
func appendTo(dir *os.Root, name string, seen fs.FileInfo, content []byte, mode fs.FileMode) error {
	flags := os.O_WRONLY | os.O_APPEND | openNonblock
	if seen == nil {
		flags |= os.O_CREATE | os.O_EXCL
	}
	file, err := dir.OpenFile(name, flags, mode)
	if err != nil {
		return err
	}
	if seen != nil {
		opened, err := file.Stat()
		if err != nil || !os.SameFile(seen, opened) {
			return errors.Join(report("the file changed while it was opened"), file.Close())
		}
		if links, err := linkCount(file, opened); err != nil || links > 1 {
			return errors.Join(denied(reasonPath, "the file has more than one hard link"), file.Close())
		}
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// writeFault says what went wrong without the path that is in err.
func writeFault(err error) error {
	if fault, ok := errors.AsType[*workflows.ToolError](err); ok {
		return fault
	}
	if said, ok := errors.AsType[report](err); ok {
		return said
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return report("no permission to write the file")
	case errors.Is(err, fs.ErrNotExist):
		return report("a folder of the path does not exist; say createDirs to make it")
	default:
		return failed("write", "the file cannot be written", err)
	}
}
