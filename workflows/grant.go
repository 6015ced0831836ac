package workflows

import (
	"fmt"
	"slices"
	"strings"
)

// Tools whose grant says more about a workflow than others.
const (
	toolMCPCall     = "mcp_call"
	toolInvokeAgent = "invoke_agent"
	toolRunCommand  = "run_command"
	toolWriteFile   = "write_file"
)

// report adds a problem about an agent, at one of its keys where the file has it.
func (c *checker) report(source agentSource, key, rule, class, what, remedy string) {
	at, where := source.item, source.where
	if v := at.member(key); v != nil {
		at, where = v, join(where, key)
	}
	c.problems = append(c.problems, Problem{
		File: source.file, Line: at.line, Col: at.col, Rule: rule, Class: class, Where: where, What: what, Remedy: remedy,
	})
}

// checkGrants refuses grants that can never be used, which are thinkos: mcp_call
// without a server, invoke_agent without another agent node.
func (c *checker) checkGrants(d *draft) {
	if c.restored {
		return
	}
	for i := range d.workflow.Agents {
		a := &d.workflow.Agents[i]
		if slices.Contains(a.Tools, toolMCPCall) && len(a.Servers) == 0 {
			c.report(d.agents[i], "tools", "P61", ClassValidation,
				"agent "+shown(a.ID)+" has mcp_call and no mcp_servers", "declare the server under mcp_servers, or remove mcp_call")
		}
	}
	if d.partialNodes {
		return
	}
	agentNodes := 0
	for i := range d.workflow.Nodes {
		if _, ok := d.workflow.Nodes[i].Spec.(AgentNode); ok {
			agentNodes++
		}
	}
	if agentNodes > 1 {
		return
	}
	for i := range d.workflow.Nodes {
		spec, a, ok := d.workflow.agentOf(i)
		if !ok || !granted(spec, a, toolInvokeAgent) {
			continue
		}
		source := d.nodes[i]
		at := source.item.member("tools")
		if at == nil {
			at = source.item
		}
		c.add(at, "P61", source.where, "agent "+shown(a.ID)+" has invoke_agent, and the workflow has no other agent node",
			"add the node that it is to call, or remove invoke_agent")
	}
}

func builtinTools() []string {
	return []string{
		"read_file", toolWriteFile, "list_directory", toolRunCommand, "http_request", "git_status", "git_commit", toolMCPCall, toolInvokeAgent,
	}
}

// adviseTools warns of an agent's tools that there cannot be, since they are neither
// built in nor of a server.
func (c *checker) adviseTools(o *object, a *Agent) {
	for i, id := range a.Tools {
		n, where := o.get("tools").items[i], index(o.at("tools"), i)
		switch {
		case slices.Contains(builtinTools(), id), slices.Contains(absentTools(), id):
		case strings.HasPrefix(id, "mcp_"):
			if len(a.Servers) == 0 {
				c.warn(n, "P61", where, "tool "+shown(id)+" is of an MCP server, and the agent has none", "declare the server under mcp_servers")
			}
		default:
			remedy := "built in are " + strings.Join(builtinTools(), ", ")
			if near := nearest(id, builtinTools()); near != "" {
				remedy = "did you mean " + shown(near) + "?"
			}
			c.warn(n, "P61", where, "there is no tool "+shown(id), remedy)
		}
	}
}

// agentOf is the spec and the agent of an agent node whose agent is known.
func (w *Workflow) agentOf(node int) (*AgentNode, *Agent, bool) {
	spec, ok := w.Nodes[node].Spec.(AgentNode)
	if !ok {
		return nil, nil, false
	}
	a, ok := w.Agent(spec.AgentRef)
	return &spec, a, ok
}

// granted reports whether a node may call a built-in tool (format 2.2).
func granted(spec *AgentNode, a *Agent, tool string) bool {
	return slices.Contains(a.Tools, tool) && (spec.Tools == nil || slices.Contains(spec.Tools, tool))
}

// spawns reports whether a node may call tools of a server that runs here as a child.
func (c *checker) spawns(spec *AgentNode, a *Agent) bool {
	server := func(tool string) bool { return strings.HasPrefix(tool, "mcp_") }
	return c.hasStdio(a) && (spec.Tools == nil || slices.ContainsFunc(spec.Tools, server))
}

func (c *checker) hasStdio(a *Agent) bool {
	return slices.ContainsFunc(a.Servers, func(s ServerRef) bool {
		return s.Transport == transportStdio || s.Ref != "" && slices.Contains(c.opt.StdioServers, s.Ref)
	})
}

// checkSecretNames refuses two secrets of a workflow that one variable supplies.
func (c *checker) checkSecretNames(d *draft) {
	if c.restored {
		return
	}
	taken := make(map[string]string) // variable: what is read from it
	clash := func(variable, what string) (other string, found bool) {
		for _, v := range []string{variable, variable + "_FILE"} {
			if first, used := taken[v]; used && first != what {
				return first, true
			}
			taken[v] = what
		}
		return "", false
	}
	w := d.workflow
	for i := range w.Inputs {
		if w.Inputs[i].Type != TypeSecret {
			continue
		}
		name := w.Inputs[i].Name
		if other, found := clash(w.SecretEnv(name), name); found {
			c.add(d.inputs[i].member("name"), "P20", index("workflow.inputs", i)+".name",
				"the secret inputs "+shown(other)+" and "+shown(name)+" are read from the same variable", "rename one of them")
		}
	}
	clear(taken)
	for i := range w.Agents {
		for _, s := range w.Agents[i].Servers {
			for _, v := range s.Env {
				for _, name := range SecretRefs(v.Value) {
					if other, found := clash(secretEnv(name), name); found {
						c.report(d.agents[i], "mcp_servers", "P48", ClassValidation,
							"the secrets "+shown(other)+" and "+shown(name)+" are read from the same variable", "rename one of them")
					}
				}
			}
		}
	}
}

// advise warns of what is allowed and perhaps not meant.
func (c *checker) advise(d *draft) {
	if c.restored {
		return
	}
	c.adviseModels(d)
	c.adviseKeys(d)
	c.advisePrices(d)
	c.adviseCommands(d)
	c.adviseSpawns(d)
}

// adviseModels warns of models that a provider's catalog does not have (P62): it is
// open, since providers publish models faster than programs.
func (c *checker) adviseModels(d *draft) {
	if c.opt.UnknownModel == nil {
		return
	}
	unknown := func(provider, model string) (what, remedy string, bad bool) {
		near, bad := c.opt.UnknownModel(provider, model)
		remedy = "check the spelling; a model that is newer than this table works too"
		if len(near) > 0 {
			remedy = "did you mean " + quotedOr(near) + "?"
		}
		return "no model " + shown(model) + " of " + provider + " is known", remedy, bad
	}
	for i := range d.workflow.Agents {
		a := &d.workflow.Agents[i]
		if what, remedy, bad := unknown(a.Provider, a.Model); bad {
			c.report(d.agents[i], "model", "P62", ClassWarning, what, remedy)
		}
		for _, f := range a.Fallback {
			if what, remedy, bad := unknown(f.Provider, f.Model); bad {
				c.report(d.agents[i], "fallback_chain", "P62", ClassWarning, what, remedy)
			}
		}
	}
	for i := range d.workflow.Nodes {
		spec, a, ok := d.workflow.agentOf(i)
		if !ok || spec.Model == "" {
			continue
		}
		if what, remedy, bad := unknown(a.Provider, spec.Model); bad {
			c.warn(d.nodes[i].item.member("model"), "P62", d.nodes[i].where+".model", what, remedy)
		}
	}
}

func quotedOr(ids []string) string {
	quoted := make([]string, len(ids))
	for i, id := range ids {
		quoted[i] = shown(id)
	}
	return strings.Join(quoted, " or ")
}

// adviseKeys warns of an agent whose provider has no key here (P74). The call is
// what is refused.
func (c *checker) adviseKeys(d *draft) {
	if c.opt.MissingKey == nil {
		return
	}
	used := make(map[string]bool)
	for _, use := range d.workflow.Models() {
		used[use.Agent] = true
	}
	for i := range d.workflow.Agents {
		a := &d.workflow.Agents[i]
		if !used[a.ID] {
			continue
		}
		if remedy, missing := c.opt.MissingKey(a.Provider); missing {
			c.report(d.agents[i], "provider", "P74", ClassWarning, "there is no key for "+a.Provider+": calls of this workflow are refused", remedy)
		}
	}
}

// advisePrices warns of a budget that cannot be kept to, since a model has no price.
func (c *checker) advisePrices(d *draft) {
	budget := d.workflow.Budget
	if c.opt.Priced == nil || budget == nil || budget.MaxCostMicrocents <= 0 || budget.OnExceed == "warn" {
		return
	}
	warned := make(map[string]bool)
	for _, use := range d.workflow.Models() {
		key := use.Provider + " " + use.Model
		if warned[key] || c.opt.Priced(use.Provider, use.Model) {
			continue
		}
		warned[key] = true
		i := slices.IndexFunc(d.workflow.Agents, func(a Agent) bool { return a.ID == use.Agent })
		c.report(d.agents[i], "model", "P62", ClassWarning,
			"the budget does not count "+shown(use.Model)+", which has no price", `give it one under [prices."MODEL"] in config.toml`)
	}
}

// adviseGlobs warns of patterns that let a program do anything, and of those that let
// nothing through.
func (c *checker) adviseGlobs(o *object, globs []string) {
	for i, glob := range globs {
		at, where := o.get("allowedCommandGlobs").items[i], index(o.at("allowedCommandGlobs"), i)
		words := strings.Split(glob, " ")
		wild := func(word string) bool { return strings.ContainsAny(word, "*?") }
		fixed := func(word string) bool { return !wild(word) }
		switch {
		case wild(words[0]):
			c.warn(at, "P61", where, "the first word of a command takes no wildcard: this matches nothing", "name the program")
		case slices.ContainsFunc(words, wild) && !slices.ContainsFunc(words[1:], fixed):
			c.warn(at, "P61", where, "no argument is fixed: the program may be made to do whatever it can", "fix the first arguments, such as a subcommand")
		}
	}
}

// adviseCommands warns of agents that can write what they can run.
func (c *checker) adviseCommands(d *draft) {
	for i := range d.workflow.Nodes {
		spec, a, ok := d.workflow.agentOf(i)
		if !ok || !granted(spec, a, toolWriteFile) {
			continue
		}
		with := ""
		switch {
		case granted(spec, a, toolRunCommand):
			with = "run_command"
		case c.spawns(spec, a):
			with = "a local server"
		default:
			continue
		}
		c.warn(d.nodes[i].item, "P61", d.nodes[i].where, fmt.Sprintf("agent %s has write_file and %s: together they can run anything it writes", shown(a.ID), with),
			"split the work between two agents, or narrow the node's tools")
	}
}

// adviseSpawns tells of local servers that a gate after them takes the state from: a
// run that waits long is parked and its children end.
func (c *checker) adviseSpawns(d *draft) {
	w := d.workflow
	var after map[string]string
	for i := range w.Nodes {
		spec, a, ok := w.agentOf(i)
		if !ok || !c.spawns(spec, a) {
			continue
		}
		if after == nil {
			after = w.gatesAfter()
		}
		if gate := after[w.Nodes[i].ID]; gate != "" {
			c.warn(d.nodes[i].item, "P41", d.nodes[i].where, fmt.Sprintf(
				"the gate %s comes after an agent with a local server: a run that waits there for long ends the server, and what it keeps in memory is gone",
				shown(gate)), "")
		}
	}
}

// gatesAfter names, for each node that a gate comes after, such a gate.
func (w *Workflow) gatesAfter() map[string]string {
	after := make(map[string]string)
	for _, id := range slices.Backward(w.Topological()) {
		for _, e := range w.Out(id) {
			gate := after[e.To]
			if n, ok := w.Node(e.To); ok && n.Type() == "human_gate" {
				gate = e.To
			}
			if gate != "" {
				after[id] = gate
				break
			}
		}
	}
	return after
}
