package publish

import (
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/workflows"
)

// The kinds of Touch.
const (
	ReachFiles    = "files"    // reads a path that comes from an input or a model
	ReachWrite    = "write"    // writes files
	ReachCommands = "commands" // runs commands of the machine
	ReachLocal    = "local"    // reaches an endpoint under allow_local_endpoint
	ReachSpawn    = "spawn"    // starts an MCP server
)

// A Touch is one thing outside themselves that runs of a workflow can reach and
// that an operator confirms before strangers may start them.
type Touch struct {
	Kind  string
	Node  string // "" for the workflow's context
	Agent string // "" where the node itself does it
	What  string // the tool, command or host:port
}

// Surroundings are what a workflow file leaves to the configuration.
type Surroundings struct {
	// Server finds the registration of an MCP server; nil knows none.
	Server func(name string) (workflows.ServerRef, bool)
	// Local finds the address of a model provider that is reached under
	// allow_local_endpoint; nil means that none is.
	Local func(provider string) (hostPort string, ok bool)
}

// Touches lists what runs of a workflow can touch, in the order of the file.
func Touches(w *workflows.Workflow, around Surroundings) []Touch {
	t := touching{workflow: w, around: around}
	for i := range w.Context {
		if w.ReadsGiven(w.Context[i].Value.Template) {
			t.add(ReachFiles, "read_file in context "+w.Context[i].Key)
		}
	}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		t.node, t.agent = n.ID, ""
		switch spec := n.Spec.(type) {
		case workflows.GateNode:
			if w.ReadsGiven(spec.Message) || w.ReadsGiven(spec.Assignee) {
				t.add(ReachFiles, "read_file")
			}
		case workflows.OutputNode:
			if spec.SaveTo != nil {
				t.add(ReachWrite, "save_to")
			}
		case workflows.AgentNode:
			t.agentNode(&spec)
		case workflows.InputNode, workflows.ConditionNode, workflows.TransformNode, workflows.ParallelNode, workflows.MergeNode:
			// pure
		}
	}
	return t.found
}

// touching gathers the touches of one workflow.
type touching struct {
	workflow    *workflows.Workflow
	around      Surroundings
	node, agent string
	found       []Touch
}

func (t *touching) add(kind, what string) {
	touch := Touch{Kind: kind, Node: t.node, Agent: t.agent, What: what}
	if !slices.Contains(t.found, touch) {
		t.found = append(t.found, touch)
	}
}

func (t *touching) agentNode(n *workflows.AgentNode) {
	t.agent = n.AgentRef
	if t.workflow.ReadsGiven(n.Prompt) {
		t.add(ReachFiles, "read_file in its prompt")
	}
	a, ok := t.workflow.Agent(n.AgentRef)
	if !ok { // found at dispatch only: it may hold anything
		for _, kind := range []string{ReachFiles, ReachWrite, ReachCommands, ReachSpawn} {
			t.add(kind, "an agent that is not known yet")
		}
		return
	}
	providers := []string{a.Provider}
	for i := range a.Fallback {
		providers = append(providers, a.Fallback[i].Provider)
	}
	for _, provider := range providers {
		if t.around.Local == nil || provider == "" {
			continue
		}
		if at, local := t.around.Local(provider); local {
			t.add(ReachLocal, at)
		}
	}
	for i := range a.Servers {
		t.server(&a.Servers[i])
	}
	granted := a.Tools
	if n.Tools != nil {
		granted = n.Tools
	}
	for _, tool := range granted {
		switch tool {
		case "read_file", "list_directory":
			t.add(ReachFiles, tool)
		case "write_file":
			t.add(ReachWrite, tool)
		case "run_command", "git_status":
			t.add(ReachCommands, tool)
		case "git_commit":
			t.add(ReachCommands, tool)
			t.add(ReachWrite, tool)
		}
	}
}

func (t *touching) server(s *workflows.ServerRef) {
	name := s.ID
	declared := *s
	if s.Ref != "" {
		name = s.Ref
		known := false
		if t.around.Server != nil {
			declared, known = t.around.Server(s.Ref)
		}
		if !known { // whatever is registered under the name
			t.add(ReachSpawn, "MCP server "+name)
			return
		}
	}
	if declared.Transport == "stdio" || declared.Transport == "" && declared.Command != "" {
		t.add(ReachSpawn, strings.TrimSpace("MCP server "+name+": "+declared.Command))
		return
	}
	if declared.AllowLocalEndpoint {
		at := name
		if u, err := url.Parse(declared.URL); err == nil && u.Host != "" {
			at = hostPort(u)
		}
		t.add(ReachLocal, at)
	}
}

func hostPort(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	port := "443"
	if u.Scheme == "http" || u.Scheme == "ws" {
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Kinds lists the kinds of touches, each once, in a fixed order.
func Kinds(touches []Touch) []string {
	var kinds []string
	for _, kind := range []string{ReachFiles, ReachWrite, ReachCommands, ReachLocal, ReachSpawn} {
		if slices.ContainsFunc(touches, func(t Touch) bool { return t.Kind == kind }) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}
