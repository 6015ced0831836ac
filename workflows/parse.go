package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
)

// Options are what the loader cannot know by itself; every nil func skips its check.
type Options struct {
	// EnvDenied tells why a declared environment name is refused (P48).
	EnvDenied func(name string) (reason string, denied bool)
	// CheckURL checks the address of a network server or provider.
	CheckURL func(rawURL string, allowLocal bool) error
	// Servers are the names of the registered MCP servers (P75); nil skips.
	Servers []string
	// StdioServers are those of Servers that run as children of this machine.
	StdioServers []string
	// UnknownModel reports whether the catalog of a provider lacks a model, and which
	// of its models may be meant (P62).
	UnknownModel func(provider, model string) (near []string, unknown bool)
	// Priced reports whether the cost of a model is known.
	Priced func(provider, model string) bool
	// MissingKey reports whether there is no key for a provider, and how to supply it
	// (P74).
	MissingKey func(provider string) (remedy string, missing bool)
	// Registry finds an agent file by id for agent_ref; nil defers to dispatch.
	Registry func(id string) (*Agent, bool)
	// ReadRef reads an agent file named by $ref, relative to the workflow file.
	ReadRef func(path string) ([]byte, error)
	// Home is RELAVIUM_HOME. Neither it nor ~/.relavium marks a project.
	Home string
}

// Parse checks one workflow file. name is used in messages only. On failure the
// error is a Problems with every problem of the file, in file order; warnings
// are returned beside a good workflow, and beside the error as well.
func Parse(name string, src []byte, opt Options) (*Workflow, Problems, error) {
	root, problems := decode(name, src)
	if root == nil || slices.ContainsFunc(problems, func(p Problem) bool { return p.Class == ClassSyntax }) {
		errs, _ := problems.split(name)
		return nil, nil, errs
	}
	c := &checker{file: name, opt: opt, problems: problems}
	return c.finish(c.document(root), root)
}

// ParseAgent checks one agent file; otherwise it is like Parse.
func ParseAgent(name string, src []byte, opt Options) (*Agent, Problems, error) {
	root, problems := decode(name, src)
	if root == nil || slices.ContainsFunc(problems, func(p Problem) bool { return p.Class == ClassSyntax }) {
		errs, _ := problems.split(name)
		return nil, nil, errs
	}
	c := &checker{file: name, opt: opt, problems: problems}
	a := c.agentFile(root)
	errs, warnings := c.problems.split(name)
	if len(errs) > 0 {
		return nil, warnings, errs
	}
	return a, warnings, nil
}

// FromSnapshot rebuilds the workflow of Snapshot; only checks that depend on
// the file alone are made again.
func FromSnapshot(snapshot json.RawMessage) (*Workflow, error) {
	n, err := itemFromJSON(snapshot)
	if err != nil {
		return nil, err
	}
	root, agents := n.member("workflow"), n.member("agents")
	if root == nil || agents == nil || agents.kind != listItem {
		return nil, errSnapshot
	}
	c := &checker{frozen: agents.items, restored: true}
	w, _, err := c.finish(c.document(root), root)
	return w, err
}

// finish makes the checks that need the whole file, and the snapshot.
func (c *checker) finish(d *draft, root *item) (*Workflow, Problems, error) {
	c.links(d)
	errs, warnings := c.problems.split(c.file)
	if len(errs) > 0 {
		return nil, warnings, errs
	}
	w := d.workflow
	w.expressions = d.expressions()
	w.snapshot = snapshotOf(root, d.external)
	sum := sha256.Sum256(w.snapshot)
	w.digest = "sha256:" + hex.EncodeToString(sum[:])
	return w, warnings, nil
}

// snapshotOf holds the document and the agents from outside it. An agent that the
// document refers to by path carries that path.
func snapshotOf(root *item, external []externalAgent) json.RawMessage {
	n := &item{kind: mapItem}
	n.set("workflow", root)
	n.set("agents", listOf(external, func(e externalAgent) *item {
		doc := &item{kind: mapItem}
		if e.ref != "" {
			doc.set("$ref", textItem(e.ref))
		}
		doc.set("agent", agentItem(e.agent))
		return doc
	}))
	return n.json()
}

// An externalAgent is an agent of a file, by $ref, or of the registry.
type externalAgent struct {
	ref   string // "" for the registry
	agent *Agent
}

// kept finds an agent of the snapshot that is read: by its path or, if ref is
// empty, by its id. It is nil when there is none.
func (c *checker) kept(ref, id string) *item {
	for _, n := range c.frozen {
		doc := n.member("agent")
		path := n.member("$ref")
		switch {
		case ref != "" && path != nil && path.text == ref:
			return doc
		case ref == "" && path == nil && doc.member("id") != nil && doc.member("id").text == id:
			return doc
		}
	}
	return nil
}

// A draft is a workflow while it is checked, with the items its parts came from.
type draft struct {
	workflow *Workflow
	external []externalAgent // agents that are not inline, as the snapshot keeps them
	agents   []agentSource
	nodes    []nodeSource
	edges    []edgeSource
	inputs   []*item // of Workflow.Inputs
	context  []*item // of Workflow.Context
	// partial is set when an agent or a node could not be named: then a reference
	// to an unknown one proves nothing.
	partialAgents, partialNodes bool
}
