package publish_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/publish"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	_, e, _ := newServer(t, nil)
	named := func(id, tool string) publish.Workflow {
		w := shaped(t, id, "", "1")
		w.Tool = tool
		return w
	}
	long := strings.Repeat("a", 56)
	for name, tt := range map[string]struct {
		list []publish.Workflow
		want []string
	}{
		"too long":          {[]publish.Workflow{named(long, "")}, []string{long, "at most 64", "[serve.workflow." + long + "] tool"}},
		"companion":         {[]publish.Workflow{named("run-status", "")}, []string{"relavium_run_status"}},
		"equal when mapped": {[]publish.Workflow{named("a-b", ""), named("other", "relavium_a_b")}, []string{`"other"`, `"a-b"`}},
		"characters":        {[]publish.Workflow{named("a", "r.a")}, []string{"r.a"}},
		"all at once":       {[]publish.Workflow{named("a", "r.a"), named("b", "r/b")}, []string{"r.a", "r/b"}},
	} {
		_, err := publish.New(publish.Options{Engine: e, Workflows: tt.list, Prefix: publish.DefaultPrefix, Logger: discard()})
		if err == nil {
			t.Errorf("%s: New = nil, want an error", name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: New = %v, want %q in it", name, err, want)
			}
		}
	}
	fits := []publish.Workflow{named(long[1:], ""), named("run-status", "mine"), named("x", "Test_Tool-1")}
	if _, err := publish.New(publish.Options{Engine: e, Workflows: fits, Prefix: publish.DefaultPrefix, Logger: discard()}); err != nil {
		t.Errorf("New with names that fit = %v, want nil", err)
	}
}

// Annotations and the line of the description are read off the graph.
func TestReach(t *testing.T) {
	t.Parallel()
	agent := func(id, tools, servers string) publish.Workflow {
		return parse(t, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  trigger: { type: mcp_call }
  agents:
    - id: worker
      model: claude-sonnet-4-6
      provider: anthropic
      system_prompt: work
%s%s  nodes:
    - { id: start, type: input }
    - { id: work, type: agent, agent_ref: worker, prompt_template: go }
    - { id: result, type: output }
  edges:
    - { from: start, to: work }
    - { from: work, to: result }
`, id, id, tools, servers))
	}
	type hints struct{ ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint bool }
	s, _, _ := newServer(t, nil,
		shaped(t, "pure", "", "1"),
		gated(t, "ask", time.Hour),
		agent("model", "", ""),
		agent("reader", "      tools: [read_file]\n", ""),
		agent("writer", "      tools: [write_file]\n", ""),
		agent("user", "", "      mcp_servers:\n        - { id: up, transport: stdio, command: python3 }\n"),
	)
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	var list struct {
		Tools []struct {
			Name, Description string
			Annotations       hints
		}
	}
	if err := json.Unmarshal(c.response("2").Result, &list); err != nil {
		t.Fatal(err)
	}
	want := map[string]struct {
		hints hints
		says  []string
	}{
		"pure":   {hints{true, false, true, false}, []string{"Does not wait for a person", "Touches nothing"}},
		"ask":    {hints{true, false, true, false}, []string{"May wait for a person to answer the gate ask"}},
		"model":  {hints{true, false, false, true}, []string{"call the model claude-sonnet-4-6"}},
		"reader": {hints{true, false, false, true}, []string{"read files"}},
		"writer": {hints{false, true, false, true}, []string{"write files"}},
		"user":   {hints{false, true, false, true}, []string{"the MCP server up", "start programs"}},
	}
	for _, tool := range list.Tools {
		w, ok := want[strings.TrimPrefix(tool.Name, publish.DefaultPrefix)]
		if !ok {
			continue
		}
		delete(want, strings.TrimPrefix(tool.Name, publish.DefaultPrefix))
		if tool.Annotations != w.hints {
			t.Errorf("annotations of %s = %+v, want %+v", tool.Name, tool.Annotations, w.hints)
		}
		for _, says := range w.says {
			if !strings.Contains(tool.Description, says) {
				t.Errorf("description of %s = %q, want %q in it", tool.Name, tool.Description, says)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("tools/list lacks %v", want)
	}
	if res := c.callResult("relavium_model", ""); !res.IsError || !strings.Contains(res.Content[0].Text, "tool_unavailable") || !strings.Contains(res.Content[0].Text, `"work"`) {
		t.Errorf("a run that reaches an agent node = %+v, want tool_unavailable at node work", res)
	}
}

// Only an output schema that a client can read by itself is published.
func TestOutputSchema(t *testing.T) {
	t.Parallel()
	w := parse(t, `schema_version: '1.0'
workflow:
  id: outs
  version: '0.1.0'
  name: outs
  trigger: { type: mcp_call }
  nodes:
    - { id: start, type: input }
    - id: a
      type: transform
      transform: '({ n: 1 })'
      output_schema: { type: object, properties: { n: { type: number } }, required: [n] }
    - id: b
      type: transform
      transform: '({ n: 1 })'
      output_schema: { $defs: { n: { type: number } }, type: object, properties: { n: { $ref: '#/$defs/n' } } }
    - { id: c, type: transform, transform: '2' }
    - { id: out-a, type: output }
    - { id: out-b, type: output }
    - { id: out-c, type: output }
    - { id: both, type: output }
  edges:
    - { from: start, to: a }
    - { from: start, to: b }
    - { from: start, to: c }
    - { from: a, to: out-a }
    - { from: b, to: out-b }
    - { from: c, to: out-c }
    - { from: a, to: both }
    - { from: c, to: both }
`)
	s, _, log := newServer(t, func(o *publish.Options) { o.NoRunTools = true }, w)
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	var list struct {
		Tools []struct{ OutputSchema json.RawMessage }
	}
	if err := json.Unmarshal(c.response("2").Result, &list); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","properties":{"out-a":{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]},"out-b":{},"out-c":{},"both":{}}}`
	if got := string(list.Tools[0].OutputSchema); got != want {
		t.Errorf("outputSchema = %s\nwant %s", got, want)
	}
	if !strings.Contains(log.String(), "out-b") {
		t.Errorf("log = %s, want it to name out-b", log)
	}
	if res := c.callResult("relavium_outs", ""); string(res.StructuredContent) != `{"out-a":{"n":1},"out-b":{"n":1},"out-c":2,"both":{"a":{"n":1},"c":2}}` {
		t.Errorf("structuredContent = %s %v", res.StructuredContent, res.Content)
	}
}

// The logger that a server gets is the only one it writes to.
func TestNewNeedsItsParts(t *testing.T) {
	t.Parallel()
	_, e, _ := newServer(t, nil)
	for _, opt := range []publish.Options{{Logger: slog.New(slog.DiscardHandler)}, {Engine: e}} {
		if _, err := publish.New(opt); err == nil {
			t.Errorf("New(%+v) = nil, want an error", opt)
		}
	}
}
