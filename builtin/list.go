package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of one listing.
const (
	maxListed = 2_000   // entries that are returned
	maxLooked = 100_000 // entries that are looked at
	maxDepth  = 32      // folders below the one that is listed

	maxPattern = 256 // bytes of a pattern, which is matched with every name
)

func (t *Tools) listDirectory() *tool {
	return &tool{
		id: "list_directory",
		about: "Lists a folder of the workspace: name, type (file, directory, link or other), sizeBytes and lastModified of each entry, sorted by name. " +
			"Paths are relative to the workspace and may not leave it. " +
			"With recursive the names are paths below the folder; .git is named but not entered, links are not followed, and files that may hold credentials are left out. " +
			"truncated says that there is more than is returned. A path that begins with run: is one of this run's own folder.",
		params: []param{
			{name: "path", schema: `{"type":"string"}`, about: "folder to list; the workspace itself if absent"},
			{name: "recursive", schema: `{"type":"boolean"}`, about: "whether to list the folders below it too"},
			{name: "glob", schema: `{"type":"string"}`, about: "what names must match: *.go matches at any depth, docs/*.md a path, ** any folders"},
		},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			name := a.text("path", maxPath)
			if _, given := a.values["path"]; !given {
				name = "."
			}
			l := listing{glob: a.text("glob", maxPattern), depth: 0}
			if a.flag("recursive") {
				l.depth = maxDepth
			}
			if a.err != nil {
				return plan{}, a.err
			}
			out := plan{Admission: workflows.Admission{Repeatable: true}}
			p, err := t.find(c, name)
			out.perform = func(ctx context.Context) (json.RawMessage, error) {
				l := l
				if err := l.walk(ctx, p); err != nil {
					return nil, err
				}
				return object(field{"entries", l.entries}, field{"truncated", l.truncated})
			}
			return out, err
		},
	}
}

// An entry is one file or folder of a listing.
type entry struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Size     int64  `json:"sizeBytes"`
	Modified string `json:"lastModified"`
}

// A listing gathers the entries of a folder.
type listing struct {
	glob  string
	whole bool // glob is of the whole path, also without a slash
	depth int  // how many folders down; 0 is the folder alone

	entries   []entry
	looked    int
	truncated bool
}

// walk fills the listing with what is at the place.
func (l *listing) walk(ctx context.Context, p *place) error {
	dir, err := p.open(p.names)
	if err != nil {
		return err
	}
	l.entries = []entry{}
	return l.folder(ctx, p, dir, "", 0)
}

// folder lists one folder, and closes it. Names of the floor are left out.
func (l *listing) folder(ctx context.Context, p *place, dir *os.Root, below string, depth int) (err error) {
	defer func() { err = errors.Join(err, dir.Close()) }()
	found, err := l.names(ctx, dir)
	if err != nil {
		return err
	}
	for _, about := range found {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := path.Join(below, about.Name())
		full := path.Join(strings.Join(p.names, "/"), name)
		if !utf8.ValidString(name) || workflows.CheckPath(full) != nil || isOneOf(about, p.floor) {
			continue
		}
		if l.matches(name, about.Name()) {
			if len(l.entries) == maxListed {
				l.truncated = true
				return nil
			}
			l.entries = append(l.entries, entry{Name: name, Type: typeOf(about.Mode()), Size: sizeOf(about), Modified: stamp(about.ModTime())})
		}
		if !about.IsDir() || depth == l.depth || fold(about.Name()) == ".git" || l.truncated {
			l.truncated = l.truncated || about.IsDir() && depth == l.depth && depth > 0
			continue
		}
		next, err := openFolder(dir, about.Name(), p.floor)
		if err != nil {
			continue // gone or closed to us meanwhile
		}
		if err := l.folder(ctx, p, next, name, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// names reads the entries of a folder, as far as the bounds let it, in order.
func (l *listing) names(ctx context.Context, dir *os.Root) (found []fs.FileInfo, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	open, err := dir.Open(".")
	if err != nil {
		return nil, told(readFault(err))
	}
	defer func() { err = errors.Join(err, open.Close()) }()
	for l.looked < maxLooked {
		some, err := open.ReadDir(min(1024, maxLooked-l.looked))
		for _, e := range some {
			l.looked++
			if about, err := dir.Lstat(e.Name()); err == nil {
				found = append(found, about)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.SortFunc(found, func(a, b fs.FileInfo) int { return strings.Compare(a.Name(), b.Name()) })
			return found, nil
		}
		if err != nil {
			return nil, report("the folder cannot be listed")
		}
	}
	l.truncated = true
	slices.SortFunc(found, func(a, b fs.FileInfo) int { return strings.Compare(a.Name(), b.Name()) })
	return found, nil
}

func (l *listing) matches(name, base string) bool {
	switch {
	case l.glob == "":
		return true
	case l.whole || strings.Contains(l.glob, "/"):
		return matchPath(l.glob, name)
	default:
		return matchName(l.glob, base)
	}
}

func typeOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeSymlink != 0:
		return "link"
	default:
		return "other"
	}
}

func sizeOf(about fs.FileInfo) int64 {
	if about.Mode().IsRegular() {
		return about.Size()
	}
	return 0
}
