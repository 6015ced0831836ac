package workflows

import (
	"encoding/json"
	"errors"
	"time"
)

var errSkeleton = errors.New("workflows: not built yet")

type graph struct {
	order      []string
	in, out    map[string][]Edge
	ancestors  map[string][]string
	mergeOrder map[string][]string
}

func (g *graph) node(string) (*Node, bool) { return nil, false }

func retryDelay(*Retry, int) time.Duration { return 0 }

// Options are what the loader cannot know by itself; every nil func skips its check.
type Options struct {
	// EnvDenied tells why a declared environment name is refused (P48).
	EnvDenied func(name string) (reason string, denied bool)
	// CheckURL checks the address of a network server or provider.
	CheckURL func(rawURL string, allowLocal bool) error
	// Servers are the names of the registered MCP servers (P75); nil skips.
	Servers []string
	// Registry finds an agent file by id for agent_ref; nil defers to dispatch.
	Registry func(id string) (*Agent, bool)
	// ReadRef reads an agent file named by $ref, relative to the workflow file.
	ReadRef func(path string) ([]byte, error)
}

// Parse checks one workflow file. name is used in messages only. On failure the
// error is a Problems with every problem of the file, in file order; warnings
// are returned beside a good workflow.
func Parse(name string, src []byte, opt Options) (*Workflow, Problems, error) {
	return nil, nil, errSkeleton
}

// ParseAgent checks one agent file.
func ParseAgent(name string, src []byte, opt Options) (*Agent, Problems, error) {
	return nil, nil, errSkeleton
}

// FromSnapshot rebuilds the workflow of Snapshot; only checks that depend on
// the file alone are made again.
func FromSnapshot(snapshot json.RawMessage) (*Workflow, error) { return nil, errSkeleton }

// A Problem is one thing wrong with a file.
type Problem struct {
	File      string `json:"file"`
	Line, Col int    `json:"-"`
	Rule      string `json:"rule"`  // P01 to P75
	Class     string `json:"class"` // syntax, validation, secret_leak, graph, warning
	Where     string `json:"where"` // workflow.nodes[2].branches[0].when
	What      string `json:"what"`
	Remedy    string `json:"remedy,omitempty"`
}

// Problems are all problems of a file, in file order; as an error each is a line
// "file:line:col: where: what: remedy".
type Problems []Problem

func (p Problems) Error() string { return "" }

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

// CheckOutput validates a node's output against the schema that governs it, if
// any. The error carries path and keyword only.
func (w *Workflow) CheckOutput(node string, value json.RawMessage) error { return errSkeleton }

// OutputSchema is the schema that governs a node's output (an agent node's own
// wins over its agent's), or nil.
func (w *Workflow) OutputSchema(node string) json.RawMessage { return nil }

// Mermaid draws the graph as a Mermaid flowchart.
func (w *Workflow) Mermaid() string { return "" }
