package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// The tools that the loop itself provides.
const (
	invokeAgent = "invoke_agent"
	mcpCall     = "mcp_call"
)

// An entry is a tool that the agent may call.
type entry struct {
	tool     workflows.Tool
	host     ToolHost // nil for what the loop provides
	delegate string   // invokeAgent, mcpCall or ""
}

// A grant is the effective grant of a loop (format 2.2): what the agent lists and
// what its servers admit, narrowed by the node and by the nodes that call it.
type grant struct {
	tools     map[string]*entry
	known     map[string]bool      // every tool there is, granted or not
	ofServers map[[2]string]string // id by server and the server's own name, granted or not
	specs     []ToolSpec           // what the model is told of
	size      int                  // bytes of specs
	narrowing [][]string           // what holds for callees too
	callees   []string             // nodes that may be invoked from here
}

// newGrant resolves the grant of the loop.
func (l *loop) newGrant(narrowing [][]string) (*grant, error) {
	d := l.d
	g := &grant{tools: map[string]*entry{}, known: map[string]bool{invokeAgent: true, mcpCall: true}, ofServers: map[[2]string]string{}}
	var entries []*entry
	if d.opt.Builtin != nil {
		for _, t := range d.opt.Builtin.Tools(d.call.Run, l.agent) {
			entries = append(entries, &entry{tool: t, host: d.opt.Builtin})
		}
	}
	own := map[string]bool{}
	for _, id := range l.agent.Tools {
		own[id] = true
	}
	var served []*entry
	if d.opt.Servers != nil {
		for _, t := range d.opt.Servers.Tools(d.call.Run, l.agent) {
			served = append(served, &entry{tool: t, host: d.opt.Servers})
			own[t.ID] = true
		}
	}
	for _, id := range l.spec.Tools {
		if !own[id] {
			return nil, &engine.RunError{
				Code: engine.CodeValidation, Message: fmt.Sprintf("node %q narrows to tool %q, which agent %q does not have", l.node.ID, id, l.agent.ID),
			}
		}
	}
	g.narrowing = slices.Clip(narrowing)
	if l.spec.Tools != nil {
		g.narrowing = append(g.narrowing, l.spec.Tools)
	}
	granted := func(id string) bool {
		return own[id] && !slices.ContainsFunc(g.narrowing, func(tools []string) bool { return !slices.Contains(tools, id) })
	}
	for _, e := range served {
		g.ofServers[[2]string{e.tool.Server, e.tool.Name}] = e.tool.ID
	}
	g.callees = l.callable()
	entries = append(entries, l.invokeAgent(g.callees), l.mcpCall(served, granted))
	for _, e := range append(entries, served...) {
		id := e.tool.ID
		g.known[id] = true
		if !granted(id) || g.tools[id] != nil {
			continue
		}
		g.tools[id] = e
		if e.tool.InputSchema == nil {
			continue // nothing that it could be called for
		}
		g.specs = append(g.specs, ToolSpec{Name: id, Description: e.tool.Description, Schema: e.tool.InputSchema})
		g.size += len(id) + len(e.tool.Description) + len(e.tool.InputSchema)
	}
	return g, nil
}

// warnMissing says which granted tools are not there.
func (l *loop) warnMissing(ctx context.Context) {
	for _, id := range l.agent.Tools {
		if !l.grant.known[id] {
			l.d.log.LogAttrs(ctx, slog.LevelWarn, "granted tool is not there", slog.String("agent", l.agent.ID), slog.String("tool", id))
		}
	}
}

// callable lists the agent nodes that may be invoked from here: none that is on the
// way here, and none too deep.
func (l *loop) callable() []string {
	if len(l.above) > maxDepth {
		return nil
	}
	var out []string
	for i := range l.d.call.Workflow.Nodes {
		n := &l.d.call.Workflow.Nodes[i]
		if _, ok := n.Spec.(workflows.AgentNode); ok && !slices.Contains(l.above, n.ID) {
			out = append(out, n.ID)
		}
	}
	return out
}

func (l *loop) invokeAgent(callees []string) *entry {
	e := &entry{tool: workflows.Tool{ID: invokeAgent, Name: invokeAgent}, delegate: invokeAgent}
	if len(callees) == 0 {
		return e
	}
	var b strings.Builder
	b.WriteString("Asks another agent of this workflow and returns its answer. The agents, by node:")
	for _, id := range callees {
		b.WriteString("\n- " + id)
		node, _ := l.d.call.Workflow.Node(id)
		spec, _ := node.Spec.(workflows.AgentNode)
		agent, ok := l.d.call.Workflow.Agent(spec.AgentRef)
		switch {
		case node.Description != "":
			b.WriteString(": " + node.Description)
		case ok && agent.Description != "":
			b.WriteString(": " + agent.Description)
		}
	}
	e.tool.Description = b.String()
	e.tool.InputSchema = object([]property{
		{name: "node", Type: "string", Description: "The node of the agent to ask.", Enum: callees},
		{name: "input", Type: "string", Description: "What to ask it. It sees nothing else of this conversation."},
	})
	return e
}

func (l *loop) mcpCall(served []*entry, granted func(string) bool) *entry {
	e := &entry{tool: workflows.Tool{ID: mcpCall, Name: mcpCall}, delegate: mcpCall}
	var servers []string
	for _, s := range served {
		if granted(s.tool.ID) && !slices.Contains(servers, s.tool.Server) {
			servers = append(servers, s.tool.Server)
		}
	}
	if len(servers) == 0 {
		return e
	}
	e.tool.Description = "Calls a tool of a connected MCP server by the server's own name for it, as mcp_<server>_<tool> does."
	e.tool.InputSchema = object([]property{
		{name: "server", Type: "string", Description: "The server.", Enum: servers},
		{name: "tool", Type: "string", Description: "The server's own name of the tool."},
		{name: "arguments", Type: "object", Description: "The arguments of the tool.", optional: true},
	})
	return e
}

// A property is a member of an object schema.
type property struct {
	name        string
	optional    bool
	Type        string   `json:"type"`
	Description string   `json:"description"`
	Enum        []string `json:"enum,omitempty"`
}

// object is the schema of an object with these properties and no others.
func object(properties []property) json.RawMessage {
	var members []workflows.Member
	var required []string
	for _, p := range properties {
		raw, err := encode(p)
		if err != nil {
			continue // strings always encode
		}
		members = append(members, workflows.Member{Key: p.name, Value: raw})
		if !p.optional {
			required = append(required, p.name)
		}
	}
	raw, err := encode(struct {
		Type       string          `json:"type"`
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required"`
		Additional bool            `json:"additionalProperties"`
	}{"object", workflows.Object(members), required, false})
	if err != nil {
		return nil
	}
	return raw
}
