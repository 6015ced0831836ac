package main

import (
	"testing"

	"github.com/relavium/relavium-serve/workflows"
)

// A run uses files if any of its parts does.
func TestUsesFiles(t *testing.T) {
	t.Parallel()
	const head = "schema_version: '1.0'\nworkflow:\n  id: w\n"
	agent := func(more, node string) string {
		return head + "  agents: [{id: a, provider: anthropic, model: claude-sonnet-4-6, system_prompt: x" + more + "}]\n" +
			"  nodes: [{id: in, type: input}, {id: n, type: agent, agent_ref: a" + node + "}, {id: out, type: output}]\n  edges: [{from: in, to: n}, {from: n, to: out}]\n"
	}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"nothing":      {head + "  nodes: [{id: in, type: input}, {id: out, type: output}]\n  edges: [{from: in, to: out}]\n", false},
		"save_to":      {head + "  nodes: [{id: in, type: input}, {id: out, type: output, save_to: out.md}]\n  edges: [{from: in, to: out}]\n", true},
		"model":        {agent("", ", prompt_template: hello"), false},
		"web":          {agent(", tools: [http_request]", ", prompt_template: hello"), false},
		"tool":         {agent(", tools: [list_directory]", ", prompt_template: hello"), true},
		"commit":       {agent(", tools: [git_status]", ", prompt_template: hello"), true},
		"prompt reads": {agent("", ", prompt_template: '{{ ctx.f | read_file }}'") + "  context: [{key: f, value: a.md}]\n", true},
	} {
		loaded, _, err := workflows.Parse("w.relavium.yaml", []byte(c.text), workflows.Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := usesFiles(loaded); got != c.want {
			t.Errorf("usesFiles of %s = %t, want %t", name, got, c.want)
		}
	}
}
