package workflows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// links makes the checks that join parts of a file: agents to nodes, references
// to secrets, edges to nodes. It fills the workflow's agents, edges and graph.
func (c *checker) links(d *draft) {
	c.linkAgents(d)
	c.checkGrants(d)
	c.checkSecretNames(d)
	c.checkTaint(d)
	c.checkReferences(d)
	c.checkDeadlines(d)
	c.linkEdges(d)
	if c.failed() {
		return
	}
	d.workflow.schemas = c.governing(d.workflow)
	c.advise(d)
}

// governing holds, by node id, the compiled schema that governs its output.
func (c *checker) governing(w *Workflow) map[string]*compiledSchema {
	agents := make(map[string]json.RawMessage, len(w.Agents))
	for i := range w.Agents {
		agents[w.Agents[i].ID] = w.Agents[i].OutputSchema
	}
	out := make(map[string]*compiledSchema)
	for i := range w.Nodes {
		var raw json.RawMessage
		switch spec := w.Nodes[i].Spec.(type) {
		case AgentNode:
			if raw = spec.OutputSchema; raw == nil {
				raw = agents[spec.AgentRef]
			}
		case TransformNode:
			raw = spec.OutputSchema
		case InputNode, GateNode, ConditionNode, ParallelNode, MergeNode, OutputNode:
		}
		if raw == nil {
			continue
		}
		if s, err := c.compile(raw); err == nil { // checked when it was read
			out[w.Nodes[i].ID] = s
		}
	}
	return out
}

// linkAgents finds the agent of every agent node: in the file, else in the
// registry (format 1.8), and checks that the node only narrows its tools (P61).
func (c *checker) linkAgents(d *draft) {
	w := d.workflow
	missing := make(map[string]bool)
	for i := range w.Nodes {
		spec, ok := w.Nodes[i].Spec.(AgentNode)
		if !ok || spec.AgentRef == "" {
			continue
		}
		source := d.nodes[i]
		a, found := w.Agent(spec.AgentRef)
		if !found && !missing[spec.AgentRef] {
			a, found = c.registered(d, spec.AgentRef, source)
			missing[spec.AgentRef] = !found
		}
		if !found {
			if c.opt.Registry != nil && !d.partialAgents {
				c.add(source.item.member("agent_ref"), "P71", source.where+".agent_ref",
					"dangling_ref: no agent "+shown(spec.AgentRef), c.nearestAgent(w, spec.AgentRef))
			}
			continue
		}
		c.checkGrant(&spec, a, source)
	}
}

func (c *checker) nearestAgent(w *Workflow, id string) string {
	ids := make([]string, 0, len(w.Agents))
	for i := range w.Agents {
		ids = append(ids, w.Agents[i].ID)
	}
	if near := nearest(id, ids); near != "" {
		return "did you mean " + shown(near) + "?"
	}
	return "declare it under workflow.agents or in an agent file"
}

// registered takes an agent from the registry or the snapshot into the workflow.
func (c *checker) registered(d *draft, id string, source nodeSource) (*Agent, bool) {
	where := source.where + ".agent_ref"
	doc := (*item)(nil)
	switch {
	case c.restored:
		doc = c.kept("", id)
	case c.opt.Registry != nil:
		if a, ok := c.opt.Registry(id); ok && a != nil && a.ID == id {
			doc = agentItem(a)
		}
	}
	if doc == nil {
		return nil, false
	}
	inner := &checker{file: c.file, restored: c.restored}
	a := inner.agent(doc, "agent "+id)
	for _, p := range inner.problems { // an agent that its own file would not pass
		p.Line, p.Col = source.item.line, source.item.col
		c.problems = append(c.problems, p)
	}
	d.external = append(d.external, externalAgent{agent: &a})
	d.workflow.Agents = append(d.workflow.Agents, a)
	d.agents = append(d.agents, agentSource{item: source.item, where: where, file: c.file})
	return &a, true
}

// checkGrant reports the tools of a node that its agent does not have. Tools of
// the agent's own servers are known at run time only.
func (c *checker) checkGrant(spec *AgentNode, a *Agent, source nodeSource) {
	list := source.item.member("tools")
	if list == nil || list.kind != listItem {
		return
	}
	for i, n := range list.items {
		if n.kind != stringItem || slices.Contains(a.Tools, n.text) ||
			len(a.Servers) > 0 && strings.HasPrefix(n.text, "mcp_") {
			continue
		}
		c.add(n, "P61", index(source.where+".tools", i),
			fmt.Sprintf("tool %s is not granted to agent %s", shown(n.text), shown(spec.AgentRef)),
			"a node can only narrow what its agent has")
	}
}

// checkDeadlines warns of a gate that the run's own deadline forestalls.
func (c *checker) checkDeadlines(d *draft) {
	if d.workflow.Timeout == 0 {
		return
	}
	for i := range d.workflow.Nodes {
		g, ok := d.workflow.Nodes[i].Spec.(GateNode)
		if ok && g.Timeout >= d.workflow.Timeout {
			c.warn(d.nodes[i].item.member("timeout_ms"), "P57", d.nodes[i].where+".timeout_ms",
				"the gate's timeout can never be reached before the run's", "make it shorter than workflow.timeout_ms")
		}
	}
}

// promptRefs lists what an agent's own prompt refers to.
func (c *checker) promptRefs(a *Agent) []ref {
	refs, ok := c.prompts[a.ID]
	if !ok {
		if c.prompts == nil {
			c.prompts = make(map[string][]ref)
		}
		refs = refsOf(a.SystemPrompt)
		c.prompts[a.ID] = refs
	}
	return refs
}

// refsOf lists the references of an authored text. A text that is only scanned
// (format 1.7) may hold braces that mean nothing: what does not parse is skipped.
func refsOf(text string) []ref {
	if !strings.Contains(text, "{{") {
		return nil
	}
	if t, err := parseTemplate(text); err == nil {
		return t.refs()
	}
	var out []ref
	for pos, end := 0, 0; ; {
		open := strings.Index(text[pos:], "{{")
		if open < 0 {
			return out
		}
		pos += open
		if end < pos+2 {
			next := strings.Index(text[pos+2:], "}}")
			if next < 0 {
				return out
			}
			end = pos + 2 + next
		}
		t, err := parseTemplate(text[pos : end+2])
		if err != nil {
			pos += 2
			continue
		}
		out = append(out, t.refs()...)
		pos = end + 2
	}
}
