package builtin

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"unicode"

	"github.com/relavium/relavium-serve/workflows"
)

// ownFolder begins a path in the run's own folder; every other path is one of the
// workspace.
const ownFolder = "run:"

// A place is what a path names inside a jail, with every link followed.
type place struct {
	jail  string        // absolute real path of the workspace or of the run's own folder
	names []string      // real names from there on; none is the jail itself
	own   bool          // the jail is the run's own folder
	shown string        // the path as it is told to the model
	floor []fs.FileInfo // what may be on no way to it
}

// path is the absolute path of the place.
func (p *place) path() string {
	return filepath.Join(append([]string{p.jail}, p.names...)...)
}

// below is the path, as it is told to the model, of what lies below the place.
func (p *place) below(name string) string {
	if p.shown == ownFolder {
		return ownFolder + name
	}
	return path.Join(p.shown, name)
}

// checkPath refuses a path by its words. An attempt to leave the workspace or to
// reach the floor is denied; what is merely malformed, the model may correct.
func checkPath(name string) error {
	err := workflows.CheckPath(name)
	if err == nil {
		if runtime.GOOS == "windows" && strings.Contains(name, ":") {
			return denied(reasonPath, "a path may not hold a colon")
		}
		return nil
	}
	if leaves(name) {
		return denied(reasonPath, "the path leaves the workspace; paths are relative to it")
	}
	slashed := strings.ReplaceAll(name, `\`, "/")
	if name == "" || strings.ContainsAny(name, "\x00\\") || strings.HasPrefix(slashed, "../") || strings.Contains(slashed+"/", "/../") {
		return incorrect("%v", err)
	}
	return denied(reasonPath, "%v", err)
}

// leaves tells whether a path is absolute or ends up outside the folder where it
// begins, on any platform.
func leaves(name string) bool {
	slashed := strings.ReplaceAll(name, `\`, "/")
	if strings.HasPrefix(slashed, "/") || len(slashed) >= 2 && slashed[1] == ':' && unicode.IsLetter(rune(slashed[0])) {
		return true
	}
	clean := path.Clean(slashed)
	return clean == ".." || strings.HasPrefix(clean, "../")
}

// find resolves a path to what exists there. An error is a *workflows.ToolError or a
// report.
func (t *Tools) find(c *workflows.ToolCall, name string) (*place, error) {
	p, rel, err := t.jail(c, name)
	if err != nil {
		return nil, err
	}
	r := Reader{Private: t.opt.Private}
	if !p.own {
		r.Private = append([]string{t.home}, r.Private...)
	}
	p.floor = r.floor()
	if rel == "." {
		return p, nil
	}
	p.names, err = r.resolve(p.jail, rel)
	return p, told(err)
}

// place resolves a path to write to: all folders on the way that exist are followed
// to where they are, and the last name may be no link. missing are the folders that
// do not exist yet.
func (t *Tools) place(c *workflows.ToolCall, name string) (p *place, missing int, err error) {
	p, rel, err := t.jail(c, name)
	if err != nil {
		return nil, 0, err
	}
	if rel == "." {
		return nil, 0, report("the path names a folder")
	}
	if strings.HasSuffix(name, "/") {
		return nil, 0, report("the path ends in a slash, as that of a folder does")
	}
	segments := strings.Split(rel, "/")
	at := p.jail
	for i, segment := range segments {
		next := filepath.Join(at, segment)
		seen, err := os.Lstat(next)
		last := i == len(segments)-1
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if !last {
				missing = len(segments) - 1 - i
			}
			at = filepath.Join(append([]string{at}, segments[i:]...)...)
		case err != nil:
			return nil, 0, told(readFault(err))
		case seen.Mode()&fs.ModeSymlink != 0 && last:
			return nil, 0, denied(reasonPath, "the file is a link")
		case seen.Mode()&fs.ModeSymlink != 0:
			if at, err = filepath.EvalSymlinks(next); err != nil {
				return nil, 0, told(readFault(err))
			}
			if !below(at, p.jail) {
				return nil, 0, denied(reasonPath, "the file is not inside the workspace")
			}
			continue
		default:
			at = next
			continue
		}
		break
	}
	rel, err = filepath.Rel(p.jail, at)
	if err != nil || !filepath.IsLocal(rel) {
		return nil, 0, denied(reasonPath, "the file is not inside the workspace")
	}
	p.names = strings.Split(rel, string(filepath.Separator))
	private := t.opt.Private
	if !p.own {
		private = append([]string{t.home}, private...)
	}
	p.floor = Reader{Private: private}.floor()
	if onPrivate(at, private) {
		return nil, 0, denied(reasonPath, "the path is not allowed in this workspace")
	}
	if err := workflows.CheckPath(filepath.ToSlash(rel)); err != nil {
		return nil, 0, denied(reasonPath, "the path is not allowed in this workspace")
	}
	return p, missing, nil
}

// jail finds the folder that a path is relative to, and checks the path's words. rel
// is the path from there, clean, "." for the folder itself.
func (t *Tools) jail(c *workflows.ToolCall, name string) (p *place, rel string, err error) {
	p = &place{jail: c.Root}
	rel, p.own = strings.CutPrefix(name, ownFolder)
	if p.own && rel == "" {
		rel = "."
	}
	if err := checkPath(rel); err != nil {
		return nil, "", err
	}
	rel = path.Clean(rel)
	p.shown = rel
	if p.own {
		if p.shown = ownFolder; rel != "." {
			p.shown += rel
		}
		p.jail, err = t.ownFolder(c.Run)
		return p, rel, err
	}
	if p.jail, err = filepath.EvalSymlinks(p.jail); err != nil {
		return nil, "", failed("workspace", "the workspace cannot be opened", err)
	}
	return p, rel, nil
}

// told makes of an error of a Reader what a tool says of it.
func told(err error) error {
	fault, ok := errors.AsType[*ReadError](err)
	switch {
	case !ok:
		return err
	case fault.denied:
		return denied(reasonPath, "%s", fault.Reason)
	default:
		return report(fault.Reason)
	}
}

// open opens the folder of the jail, and then one name after the other, none of
// which may be a link or one of the floor. The caller closes what it gets.
func (p *place) open(names []string) (*os.Root, error) {
	dir, err := os.OpenRoot(p.jail)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, told(readFault(err))
	}
	if err != nil {
		return nil, failed("workspace", "the workspace cannot be opened", err)
	}
	for _, name := range names {
		next, err := openFolder(dir, name, p.floor)
		if closeErr := dir.Close(); err == nil && closeErr != nil {
			err = readFault(errors.Join(closeErr, next.Close()))
		}
		if err != nil {
			return nil, told(err)
		}
		dir = next
	}
	return dir, nil
}

// cutOwn tells whether a path is one of the run's own folder, and the path from there.
func cutOwn(name string) (rest string, own bool) { return strings.CutPrefix(name, ownFolder) }
