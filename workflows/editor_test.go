package workflows

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func editorSchema(t *testing.T, kind string) *jsonschema.Schema {
	t.Helper()
	src, err := Schema(kind)
	if err != nil {
		t.Fatalf("Schema(%s): %v", kind, err)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(src)))
	if err != nil {
		t.Fatalf("Schema(%s) is not JSON: %v", kind, err)
	}
	s, err := newSchemaCompiler(doc)
	if err != nil {
		t.Fatalf("Schema(%s) does not compile: %v", kind, err)
	}
	return s
}

// validate checks a YAML text against an editor's schema.
func validate(t *testing.T, s *jsonschema.Schema, name, src string) error {
	t.Helper()
	root, problems := decode(name, []byte(src))
	if root == nil || len(problems) > 0 {
		t.Fatalf("%s: decode: %v", name, problems)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(root.json())))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s.Validate(doc)
}

func TestSchemaKind(t *testing.T) {
	t.Parallel()
	if _, err := Schema("workflows"); !errors.Is(err, ErrSchemaKind) {
		t.Errorf("Schema(workflows) = %v, want %v", err, ErrSchemaKind)
	}
}

// Every reference of an editor's schema leads somewhere, and nothing is left over.
func TestSchemaIsWhole(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"workflow", "agent", "config"} {
		src, err := Schema(kind)
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Dialect string                     `json:"$schema"`
			Defs    map[string]json.RawMessage `json:"$defs"`
		}
		if err := json.Unmarshal(src, &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Dialect != "https://json-schema.org/draft/2020-12/schema" {
			t.Errorf("Schema(%s): $schema = %s", kind, doc.Dialect)
		}
		for name := range doc.Defs {
			if !strings.Contains(string(src), `"#/$defs/`+name+`"`) {
				t.Errorf("Schema(%s): nothing refers to %s", kind, name)
			}
		}
	}
}

func TestSchemaAcceptsGoodFiles(t *testing.T) {
	t.Parallel()
	schemas := map[string]*jsonschema.Schema{
		".relavium.yaml": editorSchema(t, "workflow"),
		".agent.yaml":    editorSchema(t, "agent"),
	}
	seen := map[string]int{}
	err := filepath.WalkDir("testdata/good", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for suffix, schema := range schemas {
			if strings.HasSuffix(path, suffix) {
				seen[suffix]++
				if err := validate(t, schema, path, string(src)); err != nil {
					t.Errorf("%s: the schema refuses a good file: %v", path, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for suffix := range schemas {
		if seen[suffix] == 0 {
			t.Errorf("testdata/good has no *%s", suffix)
		}
	}
}

// everything is a workflow with every object that a file may hold.
const everything = `schema_version: '1.0'
workflow:
  id: everything
  version: 1.2.3
  name: Everything
  description: All objects.
  tags: [a]
  metadata: {any: {thing: 1}}
  trigger: {type: manual}
  inputs:
    - {name: text, type: string, required: true, default: 'x', description: d, validation: {format: email, pattern: a, enum: [a], min_length: 1, max_length: 2}}
    - {name: number, type: number, default: 1, validation: {min: 0, max: 2, enum: [1]}}
    - {name: flag, type: boolean, default: '{{ inputs.text }}'}
    - {name: pin, type: secret}
  context:
    - {key: c, value: 1}
  tools: {allowedCommands: [a], allowedCommandGlobs: [b], allowedDomains: [c.example]}
  budget: {max_cost_microcents: 1, on_exceed: warn}
  timeout_ms: 1000
  max_parallel: 2
  agents:
    - id: local
      name: Local
      description: d
      model: m
      provider: openai
      system_prompt: Be brief.
      temperature: 0.5
      max_tokens: 10
      reasoning_effort: low
      input_schema: {type: object}
      output_schema: {type: object}
      tools: [read_file]
      memory: {type: window, window_size: 3}
      retry: {max: 2, backoff: linear, backoff_ms: 10, retry_on: [tool_failed]}
      fallback_chain: [{model: n, provider: gemini, max_attempts: 2}]
      mcp_servers:
        - {id: child, transport: stdio, command: prog, args: [a], env: {TOKEN: '{{secrets.t}}'}, connect_timeout_ms: 5, tools_allowlist: [t]}
        - {id: remote, transport: http, url: 'https://r.example', allow_local_endpoint: false}
        - {ref: named, tools_allowlist: []}
    - {$ref: agents/other.agent.yaml}
  nodes:
    - {id: start, type: input, label: l, description: d, position: {x: 1}}
    - {id: talk, type: agent, agent_ref: local, prompt_template: hi, system_prompt_append: s, model: m, temperature: 1, max_tokens: 1, tools: [], output_schema: {}, output_modalities: [text], timeout_ms: 5, retry: {max: 1, backoff: exponential}}
    - {id: ask, type: human_gate, gate_type: approval, assignee: a, message_template: m, timeout_ms: 5, timeout_action: approve}
    - {id: route, type: condition, expression: '1', expression_type: js, branches: [{when: true, target_node: calc}], default: fan, retry: {max: 1, backoff: linear}}
    - {id: calc, type: transform, transform: '1', expression_type: js, output_schema: {type: number}, retry: {max: 1, backoff: linear}}
    - {id: fan, type: parallel, parallel_of: [calc]}
    - {id: join, type: merge, merge_strategy: custom, merge_fn: branches, retry: {max: 1, backoff: linear}}
    - {id: end, type: output, output_format: json, save_to: 'a/{{run.id}}'}
  edges:
    - {from: start, to: talk, label: l, condition: 'true'}
`

const agentText = `schema_version: '1.0'
id: lone
model: m
provider: deepseek
system_prompt: Be brief.
mcp_servers:
  - {id: child, transport: stdio, command: prog}
`

// The table holds what a schema can know; each line is one change to a good file
// that makes it bad, for the parser as well.
func TestSchemaRefusesBadWorkflows(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new string }{
		{"version as a number", "'1.0'\nworkflow", "1.0\nworkflow"},
		{"no schema_version", "schema_version: '1.0'\n", ""},
		{"unknown key at the top", "workflow:\n", "extra: 1\nworkflow:\n"},
		{"unknown key of the workflow", "  id: everything\n", "  id: everything\n  nodez: []\n"},
		{"no id", "  id: everything\n", ""},
		{"id not kebab", "id: everything", "id: Every_thing"},
		{"long id", "id: everything", "id: " + strings.Repeat("a", 129)},
		{"tags a string", "tags: [a]", "tags: a"},
		{"metadata a list", "metadata: {any: {thing: 1}}", "metadata: [1]"},
		{"unknown trigger", "{type: manual}", "{type: cron}"},
		{"companion of another type", "{type: manual}", "{type: manual, schedule: '* * * * *'}"},
		{"companion missing", "{type: manual}", "{type: file_change}"},
		{"webhook without a path", "{type: manual}", "{type: webhook, webhook: {secret_env: A}}"},
		{"input name", "name: text", "name: 'te.xt'"},
		{"input type", "type: string, required", "type: text, required"},
		{"input without a type", "{name: pin, type: secret}", "{name: pin}"},
		{"required as text", "required: true", "required: 'true'"},
		{"default of another type", "default: 1,", "default: [1],"},
		{"default text for a number", "default: 1,", "default: 'one',"},
		{"default for a secret", "{name: pin, type: secret}", "{name: pin, type: secret, default: a}"},
		{"number rule for text", "validation: {format", "validation: {min: 1, format"},
		{"text rule for a number", "validation: {min: 0", "validation: {pattern: a, min: 0"},
		{"rule for a boolean", "{name: flag, type: boolean,", "{name: flag, type: boolean, validation: {enum: [true]},"},
		{"unknown format", "format: email", "format: ipv4"},
		{"negative length", "min_length: 1", "min_length: -1"},
		{"min as text", "min: 0", "min: '0'"},
		{"enum of another type", "enum: [1]}", "enum: ['1']}"},
		{"context value a list", "value: 1}", "value: [1]}"},
		{"context key", "key: c,", "key: 'a b',"},
		{"snake case in tools", "allowedDomains", "allowed_domains"},
		{"budget without a cap", "max_cost_microcents: 1, ", ""},
		{"budget action", "on_exceed: warn", "on_exceed: stop"},
		{"timeout of zero", "timeout_ms: 1000", "timeout_ms: 0"},
		{"fraction", "max_parallel: 2", "max_parallel: 2.5"},
		{"unknown provider", "provider: openai", "provider: ollama"},
		{"agent without a model", "      model: m\n", ""},
		{"empty system prompt", "system_prompt: Be brief.", "system_prompt: ' '"},
		{"temperature", "temperature: 0.5", "temperature: 2.5"},
		{"reasoning", "reasoning_effort: low", "reasoning_effort: none"},
		{"memory", "{type: window,", "{type: disk,"},
		{"retry without max", "{max: 2, backoff: linear, backoff_ms", "{backoff: linear, backoff_ms"},
		{"retry code", "retry_on: [tool_failed]", "retry_on: [validation]"},
		{"no retry codes", "retry_on: [tool_failed]", "retry_on: []"},
		{"fallback without a provider", "{model: n, provider: gemini,", "{model: n,"},
		{"server with both forms", "{ref: named,", "{ref: named, id: x,"},
		{"server with neither form", "{ref: named, tools_allowlist: []}", "{tools_allowlist: []}"},
		{"stdio without a command", "command: prog, ", ""},
		{"stdio with a url", "command: prog,", "command: prog, url: 'https://a.example',"},
		{"network with env", "transport: http,", "transport: http, env: {A: b},"},
		{"network without a url", "url: 'https://r.example', ", ""},
		{"websocket far away", "transport: http,", "transport: websocket,"},
		{"unknown transport", "transport: http,", "transport: grpc,"},
		{"connect timeout", "connect_timeout_ms: 5", "connect_timeout_ms: 600001"}, // report T15
		{"key beside $ref", "{$ref: agents/other.agent.yaml}", "{$ref: agents/other.agent.yaml, id: x}"},
		{"no nodes", everything[strings.Index(everything, "  nodes:"):strings.Index(everything, "  edges:")], ""},
		{"empty nodes", everything[strings.Index(everything, "  nodes:"):strings.Index(everything, "  edges:")], "  nodes: []\n"},
		{"no edges", everything[strings.Index(everything, "  edges:"):], ""},
		{"node without an id", "{id: start, type", "{type"},
		{"node without a type", "{id: fan, type: parallel,", "{id: fan,"},
		{"reserved node type", "type: parallel", "type: loop"},
		{"key of another node type", "type: parallel,", "type: parallel, transform: '1',"},
		{"retry on a gate", "gate_type: approval,", "gate_type: approval, retry: {max: 1, backoff: linear},"},
		{"agent node without agent_ref", "agent_ref: local, ", ""},
		{"media", "output_modalities: [text]", "output_modalities: [image]"},
		{"no modalities", "output_modalities: [text]", "output_modalities: []"},
		{"gate without a type", "gate_type: approval, ", ""},
		{"escalate", "timeout_action: approve", "timeout_action: escalate"},
		{"jmespath", "expression: '1', expression_type: js", "expression: '1', expression_type: jmespath"},
		{"no branches", "branches: [{when: true, target_node: calc}]", "branches: []"},
		{"when null", "when: true", "when: null"},
		{"when a list", "when: true", "when: [1]"},
		{"branch without a target", "{when: true, target_node: calc}", "{when: true}"},
		{"no transform", "transform: '1', expression_type: js, output", "output"},
		{"transform a number", "transform: '1'", "transform: 1"},
		{"output_schema a string", "output_schema: {type: number}", "output_schema: 'number'"},
		{"no members", "parallel_of: [calc]", "parallel_of: []"},
		{"best_of_n", "merge_strategy: custom", "merge_strategy: best_of_n"},
		{"custom without merge_fn", "merge_fn: branches, ", ""},
		{"data_mapping", "label: l, condition", "data_mapping: {}, condition"},
		{"on_error", "label: l, condition", "on_error: skip, condition"},
		{"edge without a target", "from: start, to: talk", "from: start"},
		{"edge condition a boolean", "condition: 'true'", "condition: true"},
	}
	schema := editorSchema(t, "workflow")
	if err := validate(t, schema, "everything", everything); err != nil {
		t.Fatalf("the schema refuses the good file: %v", err)
	}
	for _, tt := range tests {
		src := strings.Replace(everything, tt.old, tt.new, 1)
		if src == everything {
			t.Errorf("%s: %q is not in the good file", tt.name, tt.old)
			continue
		}
		if err := validate(t, schema, tt.name, src); err == nil {
			t.Errorf("%s: the schema accepts it", tt.name)
		}
		if _, _, err := Parse("f", []byte(src), Options{}); err == nil {
			t.Errorf("%s: Parse accepts it", tt.name)
		}
	}
}

func TestSchemaRefusesBadAgents(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new string }{
		{"unknown key", "id: lone\n", "id: lone\nkind: agent\n"},
		{"version as a number", "'1.0'", "1.0"},
		{"no provider", "provider: deepseek\n", ""},
		{"no id", "id: lone\n", ""},
		{"$ref", "id: lone\n", "id: lone\n$ref: a\n"},
		{"server without a transport", "transport: stdio, ", ""},
	}
	schema := editorSchema(t, "agent")
	if err := validate(t, schema, "lone", agentText); err != nil {
		t.Fatalf("the schema refuses the good file: %v", err)
	}
	if _, _, err := ParseAgent("f", []byte(agentText), Options{}); err != nil {
		t.Fatalf("ParseAgent: %v", err)
	}
	for _, tt := range tests {
		src := strings.Replace(agentText, tt.old, tt.new, 1)
		if src == agentText {
			t.Errorf("%s: %q is not in the good file", tt.name, tt.old)
		}
		if err := validate(t, schema, tt.name, src); err == nil {
			t.Errorf("%s: the schema accepts it", tt.name)
		}
		if _, _, err := ParseAgent("f", []byte(src), Options{}); err == nil {
			t.Errorf("%s: ParseAgent accepts it", tt.name)
		}
	}
}

func TestSchemaOfConfig(t *testing.T) {
	t.Parallel()
	schema := editorSchema(t, "config")
	good, err := os.ReadFile("testdata/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	check := func(src string) error {
		var doc map[string]any
		if err := toml.Unmarshal([]byte(src), &doc); err != nil {
			t.Fatalf("Unmarshal: %v", err)
		}
		asJSON, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(asJSON)))
		if err != nil {
			t.Fatal(err)
		}
		return schema.Validate(value)
	}
	if err := check(string(good)); err != nil {
		t.Errorf("the schema refuses testdata/config.toml: %v", err)
	}
	if err := check(""); err != nil {
		t.Errorf("the schema refuses an empty file: %v", err)
	}
	for _, bad := range []string{
		"[server]\n", "[serve]\npublished = []\n", "[serve]\npublish = 'a'\n", "[serve]\ntransport = 'sse'\n", "[serve]\norphan_grace = 10\n",
		"[serve]\norphan_grace = 'soon'\n", "[serve]\ntasks = 'yes'\n", "[serve]\nallow_mcp_stdio = true\n", "[serve.workflow.a]\ntool = 'a b'\n",
		"[serve.workflow.a]\ntool = '" + strings.Repeat("a", 65) + "'\n", "[serve.workflow.a]\nreach = ['all']\n", "[serve.workflow.a.gate.g]\nname = 'x'\n",
		"[serve.limits]\nruns = -1\n", "[gates]\naccept = ['email']\n", "[gates]\nmin_human_ms = 'x'\n", "[runs]\nkeep = 30\n", "[providers.ollama]\nbase_url = 'x'\n",
		"[providers.openai]\napi_key = 'x'\n", "[database]\ndurability = 'off'\n", "[host]\nmax_children = 0\n", "[prices.m]\nin = 1\n", "[auth]\nscope = 'x'\n",
		"[secrets]\nkey = 'x'\n", "[[mcp_servers]]\ntransport = 'stdio'\ncommand = 'a'\n", "[[mcp_servers]]\nname = 'a'\ntransport = 'stdio'\n",
		"[[mcp_servers]]\nname = 'a'\ntransport = 'http'\nurl = 'u'\nenv = {A = 'b'}\n", "[variables]\na = 1\n", "[defaults]\nfs_scope = 'none'\n",
	} {
		if err := check(bad); err == nil {
			t.Errorf("the schema accepts %q", bad)
		}
	}
}

// The parser and the schema know the same keys of every object. An unknown key in
// each makes the parser list those it knows.
func TestSchemaKnowsTheParsersKeys(t *testing.T) {
	t.Parallel()
	const stray = "qqqqqqqqqqqqqqqq"
	src := strings.ReplaceAll(everything, "{", "{"+stray+": 1, ")
	for _, free := range []string{"{{", "metadata: {", "any: {", "output_schema: {", "input_schema: {", "position: {", "env: {"} {
		withStray := strings.ReplaceAll(free, "{", "{"+stray+": 1, ")
		src = strings.ReplaceAll(src, withStray, free)
	}
	for _, block := range []string{"schema_version: '1.0'\n", "  id: everything\n", "    - id: local\n"} {
		indent := strings.Repeat(" ", len(block)-len(strings.TrimLeft(block, " -")))
		src = strings.Replace(src, block, block+indent+stray+": 1\n", 1)
	}
	_, _, err := Parse("f", []byte(src), Options{})
	problems, _ := errors.AsType[Problems](err)
	agentSrc := strings.Replace(agentText, "id: lone\n", "id: lone\n"+stray+": 1\n", 1)
	_, _, err = ParseAgent("agent", []byte(agentSrc), Options{})
	agentProblems, _ := errors.AsType[Problems](err)

	known := map[string][]string{} // by the place of the object
	for _, p := range append(slices.Clip(problems), agentProblems...) {
		place, ok := strings.CutSuffix(p.Where, stray)
		keys, okKeys := strings.CutPrefix(p.Remedy, "known keys: ")
		if ok && okKeys {
			known[p.File+" "+strings.TrimSuffix(place, ".")] = strings.Split(keys, ", ")
		}
	}
	tests := []struct {
		place, kind, definition string
		parserOnly              []string // refused wherever they stand, with their own message
	}{
		{"f ", "workflow", "", nil},
		{"f workflow", "workflow", "Workflow", nil},
		{"f workflow.trigger", "workflow", "Trigger", nil},
		{"f workflow.inputs[0]", "workflow", "Input", nil},
		{"f workflow.inputs[0].validation", "workflow", "TextRules NumberRules", nil},
		{"f workflow.context[0]", "workflow", "Context", nil},
		{"f workflow.tools", "workflow", "ToolPolicy", nil},
		{"f workflow.budget", "workflow", "Budget", nil},
		{"f workflow.agents[0]", "workflow", "Agent", nil},
		{"f workflow.agents[0].memory", "workflow", "Memory", nil},
		{"f workflow.agents[0].retry", "workflow", "Retry", nil},
		{"f workflow.agents[0].fallback_chain[0]", "workflow", "Fallback", nil},
		{"f workflow.agents[0].mcp_servers[0]", "workflow", "Server", nil},
		{"f workflow.agents[0].mcp_servers[1]", "workflow", "Server", nil},
		{"f workflow.agents[0].mcp_servers[2]", "workflow", "ServerByName", []string{
			"id", "transport", "command", "args", "env", "url", "allow_local_endpoint", "connect_timeout_ms",
		}},
		{"f workflow.agents[1]", "workflow", "AgentFileRef", nil},
		{"f workflow.nodes[0]", "workflow", "InputNode", nil},
		{"f workflow.nodes[1]", "workflow", "AgentNode", []string{"count", "duration_seconds"}},
		{"f workflow.nodes[1].retry", "workflow", "Retry", nil},
		{"f workflow.nodes[2]", "workflow", "GateNode", nil},
		{"f workflow.nodes[3]", "workflow", "ConditionNode", nil},
		{"f workflow.nodes[3].branches[0]", "workflow", "Branch", nil},
		{"f workflow.nodes[4]", "workflow", "TransformNode", nil},
		{"f workflow.nodes[5]", "workflow", "ParallelNode", nil},
		{"f workflow.nodes[6]", "workflow", "MergeNode", nil},
		{"f workflow.nodes[7]", "workflow", "OutputNode", nil},
		{"f workflow.edges[0]", "workflow", "Edge", nil},
		{"agent ", "agent", "", []string{}},
	}
	places := map[string]bool{}
	for _, tt := range tests {
		places[tt.place] = true
		var want []string
		for _, key := range known[tt.place] {
			if !slices.Contains(tt.parserOnly, key) {
				want = append(want, key)
			}
		}
		if tt.place == "agent " {
			want = append(want, "schema_version") // of the file, not of the agent
		}
		got := schemaKeys(t, tt.kind, tt.definition)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema's %s knows %v, the parser %v", tt.place, tt.definition, got, want)
		}
	}
	for place := range known {
		kept := places[place] || strings.HasPrefix(place, "f workflow.inputs[") || strings.HasSuffix(place, ".retry")
		if !kept {
			t.Errorf("%q is in no line of the table", place)
		}
	}
}

// schemaKeys are the properties of definitions, sorted; of the root for "".
func schemaKeys(t *testing.T, kind, definitions string) []string {
	t.Helper()
	type object struct {
		Properties map[string]json.RawMessage
	}
	var doc struct {
		object
		Defs map[string]object `json:"$defs"`
	}
	src, err := Schema(kind)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(src, &doc); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for name := range strings.FieldsSeq(definitions) {
		for key := range doc.Defs[name].Properties {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if definitions == "" {
		for key := range doc.Properties {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Every file of testdata/bad that breaks a rule which a schema can know is refused
// by the schema too.
func TestSchemaRefusesBadFiles(t *testing.T) {
	t.Parallel()
	structural := strings.Fields("P10 P11 P12 P14 P15 P16 P17 P19 P21 P22 P26 P31 P32 P33 P34 P35 P36 P37 P38 P39 P40 P42 P43 P47 P49 P52 P53 P54 P55 P56 P57 P65")
	schema := editorSchema(t, "workflow")
	files, err := filepath.Glob("testdata/bad/*.relavium.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		root, problems := decode(file, src)
		if root == nil || len(problems) > 0 {
			continue // not JSON-like: a schema never sees it
		}
		_, _, err = Parse(file, src, Options{})
		all, _ := errors.AsType[Problems](err)
		i := slices.IndexFunc(all, func(p Problem) bool { return slices.Contains(structural, p.Rule) })
		if i < 0 {
			continue
		}
		checked++
		if err := validate(t, schema, file, string(src)); err == nil {
			t.Errorf("%s: the schema accepts it; %s: %s: %s", file, all[i].Rule, all[i].Where, all[i].What)
		}
	}
	if checked < 20 {
		t.Errorf("%d files checked, want at least 20", checked)
	}
}
