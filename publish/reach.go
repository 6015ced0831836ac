package publish

import (
	"slices"
	"strconv"
	"strings"

	"github.com/relavium/relavium-serve/workflows"
)

// A reach is what runs of a workflow can touch, read off its graph.
type reach struct {
	gates    []string // ids of human gates
	models   []string
	servers  []string // MCP servers, by id or ref
	unknown  []string // granted tools that this binary does not know
	effects  bool     // some node is not pure
	files    bool     // reads files of the workspace
	write    bool
	commands bool
	local    bool // endpoints under allow_local_endpoint
	spawn    bool
	network  bool // beyond a model
}

func reachOf(w *workflows.Workflow) reach {
	var r reach
	for i := range w.Context {
		r.template(w.Context[i].Value.Template)
	}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		switch spec := n.Spec.(type) {
		case workflows.GateNode:
			r.gates = append(r.gates, n.ID)
			r.template(spec.Message)
			r.template(spec.Assignee)
		case workflows.OutputNode:
			if spec.SaveTo != nil {
				r.write, r.effects = true, true
			}
		case workflows.AgentNode:
			r.agent(w, &spec)
		case workflows.InputNode, workflows.ConditionNode, workflows.TransformNode, workflows.ParallelNode, workflows.MergeNode:
			// pure
		}
	}
	slices.Sort(r.models)
	slices.Sort(r.servers)
	slices.Sort(r.unknown)
	r.models, r.servers, r.unknown = slices.Compact(r.models), slices.Compact(r.servers), slices.Compact(r.unknown)
	return r
}

func (r *reach) template(t *workflows.Template) {
	if t != nil && strings.Contains(t.Source(), "read_file") {
		r.files = true
	}
}

func (r *reach) agent(w *workflows.Workflow, n *workflows.AgentNode) {
	r.effects = true
	r.template(n.Prompt)
	a, ok := w.Agent(n.AgentRef)
	if !ok { // found at dispatch only: it may hold anything
		r.unknown = append(r.unknown, n.AgentRef)
		return
	}
	model := a.Model
	if n.Model != "" {
		model = n.Model
	}
	if model != "" {
		r.models = append(r.models, model)
	}
	for i := range a.Servers {
		s := &a.Servers[i]
		name := s.ID
		if s.Ref != "" {
			name = s.Ref
		}
		r.servers = append(r.servers, name)
		switch {
		case s.Ref != "": // the registration decides, and it may change
			r.spawn, r.network = true, true
		case s.Transport == "stdio":
			r.spawn = true
		default:
			r.network = true
		}
		r.local = r.local || s.AllowLocalEndpoint
	}
	granted := a.Tools
	if n.Tools != nil {
		granted = n.Tools
	}
	for _, t := range granted {
		r.grant(t, len(a.Servers) > 0)
	}
}

func (r *reach) grant(tool string, hasServers bool) {
	switch tool {
	case "read_file", "list_directory":
		r.files = true
	case "write_file":
		r.write = true
	case "run_command", "git_status":
		r.commands = true
	case "git_commit":
		r.commands, r.write = true, true
	case "http_request":
		r.network = true
	case "mcp_call", "invoke_agent": // the agent's servers and the graph's agents are counted themselves
	default:
		if !hasServers || !strings.HasPrefix(tool, "mcp_") {
			r.unknown = append(r.unknown, tool)
		}
	}
}

// readOnly reports whether nothing reachable can write, spawn or reach the
// network beyond a model. One unknown tool taints the whole. Gates do not count.
func (r *reach) readOnly() bool {
	return !r.write && !r.commands && !r.spawn && !r.network && len(r.unknown) == 0
}

// openWorld reports whether a model or the network is reached.
func (r *reach) openWorld() bool {
	return len(r.models) > 0 || r.network || r.spawn || r.commands || len(r.unknown) > 0
}

// annotations of MCP 2025-03-26, in the order of the specification.
func (r *reach) annotations() []workflows.Member {
	flag := func(key string, on bool) workflows.Member {
		return workflows.Member{Key: key, Value: []byte(strconv.FormatBool(on))}
	}
	return []workflows.Member{
		flag("readOnlyHint", r.readOnly()),
		flag("destructiveHint", !r.readOnly()),
		flag("idempotentHint", !r.effects),
		flag("openWorldHint", r.openWorld()),
	}
}

// sentence tells a model in one line whether a call may wait for a person and
// what it can touch.
func (r *reach) sentence() string {
	wait := "Does not wait for a person."
	if n := len(r.gates); n > 0 {
		wait = "May wait for a person to answer " + plural(n, "the gate ", "the gates ") + strings.Join(r.gates, ", ") + "."
	}
	can := r.can()
	if len(can) == 0 {
		return wait + " Touches nothing outside itself."
	}
	return wait + " Can " + strings.Join(can, "; ") + "."
}

// can lists what a run can touch, in words.
func (r *reach) can() []string {
	var can []string
	add := func(on bool, what string) {
		if on {
			can = append(can, what)
		}
	}
	add(len(r.models) > 0, "call "+plural(len(r.models), "the model ", "the models ")+strings.Join(r.models, ", "))
	add(r.files, "read files of its workspace")
	add(r.write, "write files")
	add(r.commands, "run commands")
	add(len(r.servers) > 0, "use "+plural(len(r.servers), "the MCP server ", "the MCP servers ")+strings.Join(r.servers, ", "))
	add(r.spawn, "start programs")
	add(r.local, "reach local addresses")
	add(r.network, "reach the network")
	add(len(r.unknown) > 0, "use "+strings.Join(r.unknown, ", "))
	return can
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
