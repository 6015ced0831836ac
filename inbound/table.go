package inbound

import (
	"slices"

	"github.com/relavium/relavium-serve/workflows"
)

// A tool is one that an agent may call, and where.
type tool struct {
	DiscoveredTool
	server string // the id or ref under which the agent declares it
	conn   *connection
}

// A table is the tools of one agent in one run. Names are looked up, never taken apart.
type table struct {
	list    []workflows.Tool // in the order of the agent's servers, and of each server
	byID    map[string]*tool
	byName  map[string]*tool // by server and the server's own name
	dropped map[string][]DroppedTool
}

func newTable(agent *workflows.Agent, uses []*declared, conns map[*declared]*connection) *table {
	t := &table{byID: make(map[string]*tool), byName: make(map[string]*tool), dropped: make(map[string][]DroppedTool)}
	for i, d := range uses {
		conn := conns[d]
		allow := agent.Servers[i].ToolsAllowlist
		for _, found := range conn.found.Tools {
			if allow != nil && !slices.Contains(allow, found.Name) {
				t.drop(d.name, &found, DropAllowlist, "tools_allowlist does not name it")
				continue
			}
			if _, taken := t.byID[found.ID]; taken {
				t.drop(d.name, &found, DropCollision, "an earlier tool has the name "+found.ID)
				continue
			}
			entry := &tool{DiscoveredTool: found, server: d.name, conn: conn}
			t.byID[found.ID] = entry
			t.byName[d.name+"\x00"+found.Name] = entry
			t.list = append(t.list, found.Tool)
		}
		for _, name := range allow {
			if !slices.ContainsFunc(conn.found.Tools, func(f DiscoveredTool) bool { return f.Name == name }) {
				t.dropped[d.name] = append(t.dropped[d.name], DroppedTool{
					Name: name, Reason: DropAbsent, Detail: "tools_allowlist names it, and the server does not offer it",
				})
			}
		}
	}
	return t
}

func (t *table) drop(server string, found *DiscoveredTool, reason, detail string) {
	t.dropped[server] = append(t.dropped[server], DroppedTool{Name: found.Name, Reason: reason, Detail: detail, Bytes: found.Bytes})
}
