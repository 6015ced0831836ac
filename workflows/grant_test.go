package workflows

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// granting is a workflow with the agents and nodes; other is what stands beside them
// under workflow.
func granting(agents, nodes, edges, other string) string {
	return "schema_version: '1.0'\nworkflow:\n  id: grants\n" + other + "  agents:\n" + agents + "  nodes:\n" + nodes + "  edges: [" + edges + "]\n"
}

func agentLine(id, rest string) string {
	return "    - {id: " + id + ", provider: openai, model: m-1, system_prompt: hi" + rest + "}\n"
}

// said is what Parse says of a file, one line for each problem: without the file's name,
// column 0.
func said(t *testing.T, src string, opt Options) []string {
	t.Helper()
	_, warnings, err := Parse("f", []byte(src), opt)
	problems, ok := errors.AsType[Problems](err)
	if err != nil && !ok {
		t.Fatal(err)
	}
	var out []string
	for _, p := range append(problems, warnings...) {
		p.File, p.Col = "", 0
		out = append(out, p.Rule+" "+p.Class+" "+strings.TrimPrefix(p.String(), ":"))
	}
	return out
}

const (
	oneNode  = "    - {id: a, type: agent, agent_ref: owl}\n"
	twoOwls  = oneNode + "    - {id: b, type: agent, agent_ref: owl}\n"
	stdioOwl = ", mcp_servers: [{id: gh, transport: stdio, command: /bin/x}]"
)

func TestGrants(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		src  string
		want []string
	}{
		{"mcp_call with a server", granting(agentLine("owl", ", tools: [mcp_call], mcp_servers: [{ref: gh}]"), oneNode, "", ""), nil},
		{"mcp_call without a server", granting(agentLine("owl", ", tools: [read_file, mcp_call]"), oneNode, "", ""), []string{
			"P61 validation 5:0: workflow.agents[0].tools: agent \"owl\" has mcp_call and no mcp_servers: declare the server under mcp_servers, or remove mcp_call",
		}},
		{"invoke_agent with another", granting(agentLine("owl", ", tools: [invoke_agent]"), twoOwls, "", ""), nil},
		{"invoke_agent alone", granting(agentLine("owl", ", tools: [invoke_agent]"), oneNode, "", ""), []string{
			`P61 validation 7:0: workflow.nodes[0]: agent "owl" has invoke_agent, and the workflow has no other agent node: add the node that it is to call, or remove invoke_agent`,
		}},
		{"invoke_agent taken by the node", granting(agentLine("owl", ", tools: [invoke_agent]"), "    - {id: a, type: agent, agent_ref: owl, tools: []}\n", "", ""), nil},
		{"tools of no version", granting(agentLine("owl", ", tools: [web_search, read_clipboard, notify, read_media]"), oneNode, "", ""), []string{
			`P61 validation 5:0: workflow.agents[0].tools[0]: tool "web_search" is not part of this version: remove it`,
			`P61 validation 5:0: workflow.agents[0].tools[1]: tool "read_clipboard" is not part of this version: remove it`,
			`P61 validation 5:0: workflow.agents[0].tools[2]: tool "notify" is not part of this version: remove it`,
			`P61 validation 5:0: workflow.agents[0].tools[3]: tool "read_media" is not part of this version: remove it`,
		}},
		{"tools that are not there", granting(agentLine("owl", ", tools: [read_file, run_commnd, mcp_gh_search, teleport]"), oneNode, "", ""), []string{
			`P61 warning 5:0: workflow.agents[0].tools[1]: there is no tool "run_commnd": did you mean "run_command"?`,
			`P61 warning 5:0: workflow.agents[0].tools[2]: tool "mcp_gh_search" is of an MCP server, and the agent has none: declare the server under mcp_servers`,
			`P61 warning 5:0: workflow.agents[0].tools[3]: there is no tool "teleport": built in are read_file, write_file, list_directory, run_command, http_request, git_status, git_commit, mcp_call, invoke_agent`,
		}},
		{"media", granting(agentLine("owl", ""), "    - {id: a, type: agent, agent_ref: owl, output_modalities: [text, image], count: 2}\n", "", ""), []string{
			"P73 validation 7:0: workflow.nodes[0].output_modalities[1]: generating media is not part of this version: use text",
			"P73 validation 7:0: workflow.nodes[0].count: generating media is not part of this version: remove it",
		}},
		{"commands", granting(agentLine("owl", ""), oneNode, "", "  tools: {allowedCommandGlobs: ['git status *', 'git *', 'npm * --x', 'ls', '* x', 'go ? *']}\n"), []string{
			"P61 warning 4:0: workflow.tools.allowedCommandGlobs[1]: no argument is fixed: the program may be made to do whatever it can: fix the first arguments, such as a subcommand",
			"P61 warning 4:0: workflow.tools.allowedCommandGlobs[4]: the first word of a command takes no wildcard: this matches nothing: name the program",
			"P61 warning 4:0: workflow.tools.allowedCommandGlobs[5]: no argument is fixed: the program may be made to do whatever it can: fix the first arguments, such as a subcommand",
		}},
		{"writes and runs", granting(agentLine("owl", ", tools: [write_file, run_command]"), twoOwls+"    - {id: c, type: agent, agent_ref: owl, tools: [write_file]}\n", "", ""), []string{
			`P61 warning 7:0: workflow.nodes[0]: agent "owl" has write_file and run_command: together they can run anything it writes: split the work between two agents, or narrow the node's tools`,
			`P61 warning 8:0: workflow.nodes[1]: agent "owl" has write_file and run_command: together they can run anything it writes: split the work between two agents, or narrow the node's tools`,
		}},
		{"writes and spawns", granting(agentLine("owl", ", tools: [write_file]"+stdioOwl), oneNode+"    - {id: c, type: agent, agent_ref: owl, tools: [write_file]}\n", "", ""), []string{
			`P61 warning 7:0: workflow.nodes[0]: agent "owl" has write_file and a local server: together they can run anything it writes: split the work between two agents, or narrow the node's tools`,
		}},
		{"writes and spawns a registered one", granting(agentLine("owl", ", tools: [write_file], mcp_servers: [{ref: local}]"), oneNode, "", ""), []string{
			`P61 warning 7:0: workflow.nodes[0]: agent "owl" has write_file and a local server: together they can run anything it writes: split the work between two agents, or narrow the node's tools`,
		}},
		{"writes and calls", granting(agentLine("owl", ", tools: [write_file], mcp_servers: [{ref: gh}]"), oneNode, "", ""), nil},
		{"a gate after a local server", granting(agentLine("owl", stdioOwl), oneNode+
			"    - {id: before, type: human_gate, gate_type: approval}\n    - {id: t, type: transform, transform: '1'}\n    - {id: g, type: human_gate, gate_type: approval}\n",
			"{from: before, to: a}, {from: a, to: t}, {from: t, to: g}", ""), []string{
			`P41 warning 7:0: workflow.nodes[0]: the gate "g" comes after an agent with a local server: a run that waits there for long ends the server, and what it keeps in memory is gone`,
		}},
		{"a gate before a local server", granting(agentLine("owl", stdioOwl), oneNode+"    - {id: g, type: human_gate, gate_type: approval}\n", "{from: g, to: a}", ""), nil},
		{"secret inputs of one variable", granting(agentLine("owl", ""), oneNode, "",
			"  inputs:\n    - {name: api-key, type: secret}\n    - {name: api_key, type: secret}\n    - {name: API_KEY, type: string}\n    - {name: api_key_file, type: secret}\n"), []string{
			`P20 validation 6:0: workflow.inputs[1].name: the secret inputs "api-key" and "api_key" are read from the same variable: rename one of them`,
			`P20 validation 8:0: workflow.inputs[3].name: the secret inputs "api-key" and "api_key_file" are read from the same variable: rename one of them`,
		}},
		{"secrets of one variable", granting(agentLine("owl", ", mcp_servers: [{id: s, transport: stdio, command: /bin/x, env: {A: '{{secrets.owl-key}}', B: '{{secrets.owl.key}}', C: '{{ secrets.owl-key }}'}}]"), oneNode, "", ""), []string{
			`P48 validation 5:0: workflow.agents[0].mcp_servers: the secrets "owl-key" and "owl.key" are read from the same variable: rename one of them`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := said(t, tt.src, Options{Servers: []string{"gh", "local"}, StdioServers: []string{"local"}})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

func TestModelAdvice(t *testing.T) {
	t.Parallel()
	opt := Options{
		UnknownModel: func(provider, model string) ([]string, bool) {
			return map[string][]string{"gpt9-mini": {"gpt-9-mini", "gpt-9"}}[model], provider == "openai" && model != "gpt-9"
		},
		Priced:     func(_, model string) bool { return model == "gpt-9" },
		MissingKey: func(provider string) (string, bool) { return "set RELAVIUM_X_API_KEY", provider == "anthropic" },
	}
	agents := "    - {id: owl, provider: openai, model: gpt-9, system_prompt: hi, fallback_chain: [{provider: anthropic, model: heron-2}, {provider: openai, model: gpt9-mini}]}\n" +
		"    - {id: wren, provider: gemini, model: anything, system_prompt: hi}\n" +
		"    - {id: kite, provider: anthropic, model: heron-2, system_prompt: hi}\n" +
		"    - {id: unused, provider: anthropic, model: heron-2, system_prompt: hi}\n"
	nodes := "    - {id: a, type: agent, agent_ref: owl}\n    - {id: b, type: agent, agent_ref: owl, model: zzz}\n" +
		"    - {id: c, type: agent, agent_ref: wren}\n    - {id: d, type: agent, agent_ref: kite}\n"
	want := []string{
		`P62 warning 5:0: workflow.agents[0].fallback_chain: no model "gpt9-mini" of openai is known: did you mean "gpt-9-mini" or "gpt-9"?`,
		`P74 warning 7:0: workflow.agents[2].provider: there is no key for anthropic: calls of this workflow are refused: set RELAVIUM_X_API_KEY`,
		`P62 warning 11:0: workflow.nodes[1].model: no model "zzz" of openai is known: check the spelling; a model that is newer than this table works too`,
	}
	if diff := cmp.Diff(want, said(t, granting(agents, nodes, "", ""), opt)); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	for onExceed, many := range map[string]int{"fail": 4, "pause_for_approval": 4, "warn": 0} {
		budget := "  budget: {max_cost_microcents: 100, on_exceed: " + onExceed + "}\n"
		unpriced := 0
		for _, line := range said(t, granting(agents, nodes, "", budget), opt) {
			if strings.Contains(line, "the budget does not count") {
				unpriced++
			}
		}
		if unpriced != many {
			t.Errorf("on_exceed %s: %d models are said to have no price, want %d", onExceed, unpriced, many)
		}
	}
	if got := said(t, granting(agents, nodes, "", "  budget: {max_cost_microcents: 0}\n"), Options{Priced: opt.Priced}); got != nil {
		t.Errorf("without a cap: %v", got)
	}
}

func TestSupply(t *testing.T) {
	t.Parallel()
	src := granting(
		"    - {id: owl, provider: openai, model: m-1, system_prompt: hi, fallback_chain: [{provider: gemini, model: m-2}], mcp_servers: "+
			"[{id: s, transport: stdio, command: /bin/x, env: {A: '{{secrets.token}}', B: 'x {{ secrets.other.one }} {{secrets.token}}', C: plain}}]}\n",
		"    - {id: a, type: agent, agent_ref: owl}\n    - {id: b, type: agent, agent_ref: owl, model: m-3}\n", "", "")
	w := parse(t, []byte(src))
	want := []ModelUse{
		{"a", "owl", "openai", "m-1", true},
		{"a", "owl", "gemini", "m-2", false},
		{"b", "owl", "openai", "m-3", true},
		{"b", "owl", "gemini", "m-2", false},
	}
	if diff := cmp.Diff(want, w.Models()); diff != "" {
		t.Errorf("Models (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"token", "other.one"}, w.SecretRefs()); diff != "" {
		t.Errorf("SecretRefs (-want +got):\n%s", diff)
	}
	// A snapshot was checked when it was taken.
	again, err := FromSnapshot(parse(t, []byte(src)).Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, again.Models()); diff != "" {
		t.Errorf("Models of the snapshot (-want +got):\n%s", diff)
	}
}

// What a file can cause is bounded, whatever it asks advice for.
func TestAdviceTakesLittleTime(t *testing.T) {
	t.Parallel()
	const n = 1500
	many := func(line func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(line(i))
		}
		return b.String()
	}
	agents := many(func(i int) string {
		return fmt.Sprintf("    - {id: a%d, provider: openai, model: m%d, system_prompt: hi, tools: [write_file, run_command], mcp_servers: [{id: s, transport: stdio, command: /bin/x, env: {A: '{{secrets.s%d}}'}}]}\n", i, i, i)
	})
	nodes := many(func(i int) string {
		return fmt.Sprintf("    - {id: n%d, type: agent, agent_ref: a%d}\n    - {id: g%d, type: human_gate, gate_type: approval}\n", i, i, i)
	})
	edges := many(func(i int) string {
		if i+1 == n {
			return fmt.Sprintf("{from: n%d, to: g%d}", i, i)
		}
		return fmt.Sprintf("{from: n%d, to: g%d}, {from: g%d, to: n%d}, ", i, i, i, i+1)
	})
	begin := time.Now()
	got := said(t, granting(agents, nodes, edges, "  budget: {max_cost_microcents: 1}\n"), Options{
		UnknownModel: func(string, string) ([]string, bool) { return nil, true },
		Priced:       func(string, string) bool { return false },
		MissingKey:   func(string) (string, bool) { return "x", true },
	})
	if len(got) != maxProblems+1 {
		t.Errorf("%d warnings, want %d", len(got), maxProblems+1)
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("Parse took %v", took)
	}
	t.Logf("%v", time.Since(begin))
}
