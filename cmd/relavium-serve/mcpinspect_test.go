package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/workflows"
)

// What mcp inspect shows of a workflow is what its agents get: of two tools with one
// name the later one is dropped, for an agent that has both servers.
func TestCollide(t *testing.T) {
	t.Parallel()
	server := func(name string, ids ...string) inspectedServer {
		s := inspectedServer{Server: name}
		for _, id := range ids {
			s.Tools = append(s.Tools, inspectedTool{ID: id, Name: id})
		}
		return s
	}
	servers := []inspectedServer{
		server("x", "mcp_x_y_z", "mcp_x_q"), server("x_y", "mcp_x_y_z", "mcp_x_y_q"), server("x_z", "mcp_x_q"), server("down"),
	}
	collide([]workflows.Agent{
		{ID: "both", Servers: []workflows.ServerRef{{ID: "x"}, {ID: "down"}, {Ref: "x_y"}, {Ref: "absent"}}},
		{ID: "one", Servers: []workflows.ServerRef{{ID: "x_z"}}},
	}, servers)
	got := map[string][]string{}
	for _, s := range servers {
		for _, tool := range s.Tools {
			got[s.Server] = append(got[s.Server], tool.ID)
		}
		for _, d := range s.Dropped {
			got[s.Server] = append(got[s.Server], "not "+d.Name+": "+d.Reason+": "+d.Detail)
		}
	}
	want := map[string][]string{
		"x":   {"mcp_x_y_z", "mcp_x_q"},
		"x_y": {"mcp_x_y_q", "not mcp_x_y_z: name_collision: for agent both server x has the name mcp_x_y_z"},
		"x_z": {"mcp_x_q"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
}
