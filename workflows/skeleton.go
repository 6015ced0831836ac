package workflows

import (
	"errors"
)

var errSkeleton = errors.New("workflows: not built yet")

// A Source is one place to look for workflow files.
type Source struct {
	Dir  string // searched recursively
	Root string // the project root of files below it that have none of their own
}

// A Loaded is one workflow file that loaded, with its project root.
type Loaded struct {
	Workflow *Workflow
	Root     string // absolute real path
	Path     string // absolute path of the file
}

// A Catalog is what the sources hold. A file that did not load is in Broken and
// keeps nothing else from loading.
type Catalog struct {
	Workflows []Loaded // by id
	Broken    []Broken
	Warnings  Problems
}

// Broken is a file that did not load. ID is its workflow id where that much
// could be read, else "".
type Broken struct {
	Path     string
	ID       string
	Problems Problems
}

// Load reads every workflow and agent file of the sources. The error is for what
// concerns no single file: an id used twice, a source that cannot be read, a
// project root that is / or the user's home.
func Load(sources []Source, opt Options) (*Catalog, error) { return nil, errSkeleton }

// LoadFile reads one workflow file and the agents of its project.
func LoadFile(path string, opt Options) (Loaded, Problems, error) {
	return Loaded{}, nil, errSkeleton
}

// ProjectRoot is the nearest ancestor of the file, links resolved, that holds a
// .relavium folder which is not home; else fallback. A root that is /, a drive or the
// user's home is refused.
func ProjectRoot(file, fallback, home string) (string, error) { return "", errSkeleton }

// Mermaid draws the graph as a Mermaid flowchart.
func (w *Workflow) Mermaid() string { return "" }
