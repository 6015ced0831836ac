package workflows

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a search for files.
const (
	maxFiles   = 5_000
	maxEntries = 200_000
	maxTotal   = 128 << 20
)

const (
	workflowSuffix = ".relavium.yaml"
	agentSuffix    = ".agent.yaml"
)

// A found file is a workflow or an agent by its name, or is yet to be read.
type found struct {
	path  string // absolute real path
	shown string // slash-separated, below the source's folder
	kind  fileKind
}

type fileKind int

const (
	notOurs fileKind = iota
	workflowFile
	agentFile
	unknownFile // below .relavium, to be told by its content
)

// A search collects the files of several folders, each file once.
type search struct {
	files    []found
	seen     map[string]bool // real paths
	entries  int
	warnings Problems
}

// folder looks below dir. Links to files are followed, links to folders are not,
// except dir itself; .git and node_modules are never entered.
func (s *search) folder(dir string) error {
	target, err := realPath(dir)
	if err != nil {
		return fmt.Errorf("folder %s cannot be read", filepath.Base(dir))
	}
	private := slices.Contains(strings.Split(filepath.ToSlash(target), "/"), projectFolder)
	return filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
		rel := shownPath(target, path)
		if s.entries++; s.entries > maxEntries {
			return fmt.Errorf("folder %s holds more than %d entries", filepath.Base(dir), maxEntries)
		}
		if err != nil {
			if path == target {
				return fmt.Errorf("folder %s cannot be read", filepath.Base(dir))
			}
			s.warnings = append(s.warnings, Problem{File: rel, Class: ClassWarning, What: "cannot be read, and is left out"})
			return nil
		}
		if d.IsDir() {
			if path != target && (d.Name() == ".git" || d.Name() == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		inside := private || slices.Contains(strings.Split(rel, "/"), projectFolder)
		return s.file(path, rel, kindByName(d.Name(), inside))
	})
}

func kindByName(name string, private bool) fileKind {
	switch {
	case strings.HasSuffix(name, workflowSuffix):
		return workflowFile
	case strings.HasSuffix(name, agentSuffix):
		return agentFile
	case private && strings.HasSuffix(name, ".yaml"):
		return unknownFile
	}
	return notOurs
}

// file keeps a regular file, or what a link to one leads to.
func (s *search) file(path, shown string, kind fileKind) error {
	if kind == notOurs {
		return nil
	}
	target, err := realPath(path)
	if err != nil {
		s.warnings = append(s.warnings, Problem{File: shown, Class: ClassWarning, What: "is a link that leads nowhere"})
		return nil //nolint:nilerr // a warning; one file keeps no other from loading
	}
	if info, err := os.Stat(target); err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if s.seen[target] {
		return nil
	}
	if len(s.files) == maxFiles {
		return fmt.Errorf("more than %d workflow and agent files", maxFiles)
	}
	if s.seen == nil {
		s.seen = make(map[string]bool)
	}
	s.seen[target] = true
	s.files = append(s.files, found{path: target, shown: shown, kind: kind})
	return nil
}

// shownPath is path below dir with slashes, or its last part if it is not below.
func shownPath(dir, path string) string {
	rel, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		rel = filepath.Base(path)
	}
	return filepath.ToSlash(rel)
}

var errUnreadable = errors.New("file cannot be read")

// readBounded reads a regular file up to one byte past the cap, so that the
// decoder sees that it is too large.
func readBounded(f fs.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, errUnreadable
	}
	src, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, errUnreadable
	}
	return src, nil
}
