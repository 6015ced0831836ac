package workflows

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const wader = "agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.', tools: [read_file, list_directory]}]\n"

// The cases of the format that a loader decides, by their numbers.
func TestFormatCases(t *testing.T) {
	t.Parallel()
	oneEdge := func(edge string) string {
		return "nodes: [{id: in, type: input}, {id: out, type: output}]\nedges: [" + edge + "]"
	}
	oneNode := func(node string) string {
		return wader + "nodes: [{id: in, type: input}, {id: out, type: output}, " + node + "]\nedges: [{from: in, to: out}]"
	}
	condition := func(edge string) string {
		return "nodes: [{id: in, type: input}, {id: p, type: output}, {id: q, type: output}, {id: c, type: condition, expression: '7', " +
			"branches: [{when: 7, target_node: p}, {when: urgent, target_node: q}]}]\nedges: [{from: in, to: c}" + edge + "]"
	}
	parallel := func(edge string) string {
		return `nodes:
  - {id: in, type: input}
  - {id: split, type: parallel, parallel_of: [slow, quick]}
  - {id: quick, type: transform, transform: '"q"'}
  - {id: slow, type: transform, transform: '"s"'}
  - {id: join, type: merge, merge_strategy: concat}
  - {id: out, type: output}
edges: [{from: in, to: split}, {from: slow, to: join}, {from: quick, to: join}, {from: join, to: out}` + edge + "]"
	}
	server := func(s string) string {
		return "agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: hi, mcp_servers: [" + s + "]}]"
	}
	saveTo := func(path string) string { return oneNode("{id: o, type: output, save_to: " + path + "}") }
	for _, tt := range []struct {
		id, src string
		want    []string
	}{
		{"03a", "tags: &t [marsh]\ndescription: *t", []string{"P03", "P03"}},
		{"03b", "metadata: {<<: {a: 1}, b: 2}", []string{"P04"}},
		{"03c", "name: a\nname: b", []string{"P05"}},
		{"04", "agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: hi, temprature: 0.4}]", []string{"P12"}},
		{"04 metadata", "metadata: {temprature: 0.4}", nil},
		{"05a", oneEdge("{from: in, to: out, on_error: out}"), []string{"P65"}},
		{"05b", oneEdge("{from: in, to: out, data_mapping: {}}"), []string{"P65"}},
		{"05c", oneNode("{id: l, type: loop}"), []string{"P51"}},
		{"05d", oneNode("{id: m, type: merge, merge_strategy: best_of_n}"), []string{"P56"}},
		{"05e", oneNode("{id: g, type: human_gate, gate_type: input, timeout_ms: 1, timeout_action: escalate}"), []string{"P57"}},
		{"05f", oneNode("{id: t, type: transform, transform: '1', expression_type: jmespath}"), []string{"P53"}},
		{"06", "inputs: [{name: nest-site_2, type: string}, {name: 'nest.site', type: string}]", []string{"P19"}},
		{"07a", "inputs: [{name: n, type: number, validation: {max_length: 3}}]", []string{"P22"}},
		{"07b", "inputs: [{name: s, type: string, validation: {min: 1}}]", []string{"P22"}},
		{"07c", "inputs: [{name: b, type: boolean, validation: {enum: [true]}}]", []string{"P22"}},
		{"07d", "inputs: [{name: n, type: number, validation: {min: 9, max: 2}}]", []string{"P23"}},
		{"07e", "inputs: [{name: n, type: number, validation: {min: 0, max: 10}}]", nil},
		{"09", `context: [{key: first, value: '{{ run.outputs["in"] }}'}]`, []string{"P28"}},
		{"09 file", "inputs: [{name: path, type: string}]\ncontext: [{key: first, value: '{{inputs.path | read_file}}'}]", nil},
		{"12", oneNode(`{id: say, type: agent, agent_ref: wader, prompt_template: 'Note: {{ run.outputs["ghost"].text | default("none") }}'}`), nil},
		{"12 bare", oneNode(`{id: say, type: agent, agent_ref: wader, prompt_template: '{{ run.outputs["ghost"].text }}', retry: {max: 3, backoff: linear}}`), nil},
		{"13a", oneNode("{id: say, type: agent, agent_ref: wader, prompt_template: 'id {{ run.id }}'}"), nil},
		{"13b", saveTo("'shots/{{ run.id }}/owl.png'"), nil},
		{"13c", saveTo("'/shots/owl.png'"), []string{"P59"}},
		{"13d", saveTo(`'C:\shots\owl.png'`), []string{"P59"}},
		{"13e", saveTo("'shots/../../owl.png'"), []string{"P59"}},
		{"13f", saveTo("'shots/{{ inputs.x }}.png'"), []string{"P59"}},
		{"14", oneNode(`{id: t, type: transform, transform: '"{{inputs.bird}}"'}`), nil},
		{"18a", condition(", {from: 'c:7', to: p}"), nil},
		{"18b", condition(", {from: 'c:urgent', to: q}"), nil},
		{"18c", condition(", {from: 'c:seven', to: p}"), []string{"P67"}},
		{"18d", condition(", {from: c, to: p}"), []string{"P68"}},
		{"18e", condition(", {from: 'in:7', to: p}"), []string{"P67"}},
		{"18f", condition(""), nil},
		{"18g", condition(", {from: 'c:7', to: q}"), []string{"P72"}},
		{"19", parallel(""), nil},
		{"19 outsider", parallel(", {from: split, to: out}"), []string{"P69"}},
		{"19 member", parallel(", {from: split, to: slow}"), nil},
		{"20d", oneNode("{id: m, type: merge, merge_strategy: custom}"), []string{"P56"}},
		{"20e", oneNode("{id: m, type: merge, merge_strategy: custom, merge_fn: \"branches # note\\n\"}"), nil},
		{"31a input", oneNode("{id: x, type: input, retry: {max: 2, backoff: linear}}"), []string{"P54"}},
		{"31a output", oneNode("{id: x, type: output, retry: {max: 2, backoff: linear}}"), []string{"P54"}},
		{"31a parallel", oneNode("{id: x, type: parallel, parallel_of: [y], retry: {max: 2, backoff: linear}}, {id: y, type: output}"), []string{"P54"}},
		{"31a gate", oneNode("{id: x, type: human_gate, gate_type: input, retry: {max: 2, backoff: linear}}"), []string{"P54"}},
		{"31b", oneNode("{id: x, type: transform, transform: '1', retry: {max: 2, backoff: linear, retry_on: []}}"), []string{"P36"}},
		{"31c", oneNode("{id: x, type: transform, transform: '1', retry: {max: 2, backoff: linear, retry_on: [tool_denied]}}"), []string{"P36"}},
		{"34", oneNode("{id: x, type: agent, agent_ref: wader, tools: [read_file, run_command]}"), []string{"P61"}},
		{"34 narrower", oneNode("{id: x, type: agent, agent_ref: wader, tools: [read_file]}"), nil},
		{"36e both", server("{ref: cameras, transport: stdio}"), []string{"P39"}},
		{"36e command", server("{id: cam, transport: http, command: x, url: 'https://h.example'}"), []string{"P42"}},
		{"36e env", server("{id: cam, transport: stdio, command: x, env: {node_options: '--x'}}"), []string{"P48"}}, // report T13
		{"36e websocket", server("{id: cam, transport: websocket, url: 'wss://h.example'}"), []string{"P49"}},
		{"36e local", server("{id: cam, transport: websocket, url: 'ws://127.0.0.1:9', allow_local_endpoint: true}"), nil},
	} {
		_, _, err := Parse("case.relavium.yaml", fragment(tt.src), testOptions("testdata/good"))
		if got := rules(t, err); !slices.Equal(got, tt.want) {
			t.Errorf("case %s: rules = %v, want %v\n%v", tt.id, got, tt.want, err)
		}
	}
}

func TestFormatCase01(t *testing.T) {
	t.Parallel()
	const src = "schema_version: 1.0\nworkflow: {id: heron-case, nodes: [{id: in, type: input}], edges: []}\n"
	_, _, err := Parse("f", []byte(src), Options{})
	if want := "f:1:17: schema_version: want the string '1.0': write schema_version: '1.0', with quotes"; err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
	parse(t, []byte(strings.Replace(src, "1.0", "'1.0'", 1)))
}

func TestFormatCase03d(t *testing.T) {
	t.Parallel()
	_, _, err := Parse("f", []byte(string(fragment("name: a"))+"---\n"+string(fragment("name: b"))), Options{})
	if diff := cmp.Diff([]string{"P08"}, rules(t, err)); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestFormatCase10(t *testing.T) {
	t.Parallel()
	const inputs = "inputs: [{name: pin, type: secret}]\ncontext: [{key: a, value: 'x{{inputs.pin}}'}, {key: b, value: '{{ctx.a}}!'}]\n"
	_, _, err := Parse("f", fragment(inputs+`nodes:
  - {id: in, type: input}
  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Use {{ctx.b}}?'}
edges: [{from: in, to: ask}]`), Options{})
	want := `f:8:74: workflow.nodes[1].message_template: secret_interpolation: node "ask", message_template: no part of a workflow may show a secret`
	if err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
	_, _, err = Parse("f", fragment(inputs+"agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Use {{ctx.b}}.'}]"), Options{})
	if diff := cmp.Diff([]string{"P60"}, rules(t, err)); diff != "" {
		t.Errorf("rules of a system_prompt (-want +got):\n%s", diff)
	}
	w := parse(t, fragment(inputs+"tags: []"))
	for _, e := range w.Context {
		if !e.Tainted {
			t.Errorf("context %s is not tainted, want it to be", e.Key)
		}
	}
}

func TestFormatCase27(t *testing.T) {
	t.Parallel()
	_, _, err := Parse("f", fragment(`nodes:
  - {id: in, type: input}
  - {id: a, type: transform, transform: '1'}
  - {id: b, type: transform, transform: '1'}
edges: [{from: in, to: lost}, {from: a, to: b}, {from: b, to: a}]`), Options{})
	want := "f:6:7: workflow.nodes[1]: cycle: a -> b -> a: remove one of its edges or references\n" +
		`f:8:26: workflow.edges[0].to: unknown_edge_target: no node "lost"`
	if err == nil || err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		retry Retry
		want  []time.Duration
	}{
		{Retry{Max: 4, Backoff: "linear", Base: 200 * time.Millisecond}, []time.Duration{200, 400, 600}},
		{Retry{Max: 4, Backoff: "exponential", Base: 200 * time.Millisecond}, []time.Duration{200, 400, 800}},
	} {
		for i, want := range tt.want {
			if got := tt.retry.Delay(i + 1); got != want*time.Millisecond {
				t.Errorf("%s Delay(%d) = %v, want %v", tt.retry.Backoff, i+1, got, want*time.Millisecond)
			}
		}
	}
	for _, backoff := range []string{"linear", "exponential"} {
		for _, base := range []time.Duration{1, time.Second, 1000 * time.Hour, 1<<63 - 1} {
			r := Retry{Backoff: backoff, Base: base}
			last := time.Duration(0)
			for n := 1; n <= 200; n++ {
				got := r.Delay(n)
				if got > 24*time.Hour || got < last {
					t.Fatalf("%s Delay(%d) of base %v = %v, want between %v and 24h", backoff, n, base, got, last)
				}
				last = got
			}
		}
	}
	w := parse(t, fragment("nodes: [{id: x, type: transform, transform: '1', retry: {max: 2, backoff: linear}}]\nedges: []"))
	if got := w.Nodes[0].Retry.Delay(1); got != time.Second {
		t.Errorf("Delay(1) without backoff_ms = %v, want 1s", got)
	}
}

// Without what a loader is told, its checks are left out.
func TestOptionsAreOptional(t *testing.T) {
	t.Parallel()
	for _, src := range []string{
		"nodes: [{id: a, type: agent, agent_ref: stranger}]\nedges: []",
		"agents: [{$ref: nowhere.agent.yaml}]\nnodes: [{id: a, type: agent, agent_ref: nowhere}]\nedges: []",
		"agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: hi, mcp_servers: [{ref: unknown}, " +
			"{id: a, transport: stdio, command: x, env: {NODE_OPTIONS: x}}, {id: b, transport: http, url: 'https://10.0.0.1'}]}]",
	} {
		w, _, err := Parse("f", fragment(src), Options{})
		if err != nil {
			t.Errorf("Parse(%s) = %v, want a workflow", src, err)
			continue
		}
		checkRoundTrip(t, w)
	}
}

func TestParseAgent(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile(filepath.Join("testdata", "good", "agents", "ferry.agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, warnings, err := ParseAgent("ferry.agent.yaml", src, Options{})
	want := &Agent{ID: "ferry", Provider: "openai", Model: "m-9", SystemPrompt: `Cross {{ run.outputs["count"] }}.`, Tools: []string{}}
	if diff := cmp.Diff(want, got); err != nil || len(warnings) > 0 || diff != "" {
		t.Errorf("ParseAgent = %v, %v (-want +got):\n%s", warnings, err, diff)
	}
	for name, src := range map[string]string{
		"a.agent.yaml:1:1: id: missing key \"id\"":                                                           "provider: openai\nmodel: m\nsystem_prompt: hi\n",
		"a.agent.yaml:1:17: schema_version: want the string '1.0': write schema_version: '1.0', with quotes": "schema_version: 1.0\nid: a\nprovider: openai\nmodel: m\nsystem_prompt: hi\n",
		"a.agent.yaml:1:1: want a map, got a list":                                                           "[]\n",
		"a.agent.yaml:1:1: file holds no document":                                                           "",
	} {
		if _, _, err := ParseAgent("a.agent.yaml", []byte(src), Options{}); err == nil || err.Error() != name {
			t.Errorf("ParseAgent(%q) = %v, want %s", src, err, name)
		}
	}
}

func TestProblemsRepeatNoPosition(t *testing.T) {
	t.Parallel()
	p := Problem{File: "a.yaml", What: "file cannot be read"}
	if got, want := p.String(), "a.yaml: file cannot be read"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}
