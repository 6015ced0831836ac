package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

type schemaCase struct{ ID, Schema, Verdict string }

// nest wraps a schema n times in items.
func nest(n int, inner string) string {
	return strings.Repeat(`{"items":`, n) + inner + strings.Repeat(`}`, n)
}

func TestCompileSchema(t *testing.T) {
	t.Parallel()
	var laughs strings.Builder
	for i := range 30 {
		fmt.Fprintf(&laughs, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i+1, i, i)
	}
	tests := []struct{ name, schema, want string }{
		{"any type at the root", `{"type":"string"}`, ""},
		{"true", `true`, ""},
		{"properties", `{"type":"object","properties":{"a":{"type":["string","null"],"pattern":"^a$"}},"required":["a"],"additionalProperties":false}`, ""},
		{"local definitions", `{"$defs":{"n":{"type":"number"}},"properties":{"a":{"$ref":"#/$defs/n"}}}`, ""},
		{"a tree", `{"properties":{"left":{"$ref":"#"},"right":{"$ref":"#"}}}`, ""},
		{"a list of itself", `{"$defs":{"n":{"properties":{"next":{"$ref":"#/$defs/n"}}}},"properties":{"a":{"$ref":"#/$defs/n"},"b":{"$ref":"#/$defs/n"}}}`, ""},
		{"draft-07 tuples", `{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}],"additionalItems":false,"dependencies":{"a":["b"],"c":{"required":["d"]}}}`, ""},
		{"unknown words are annotations", `{"type":"object","x-order":1,"properties":{"$ref":{"type":"string"}}}`, ""},
		{"32 deep", nest(32, "{}"), ""},
		{"33 deep", nest(33, "{}"), "at #" + strings.Repeat("/items", 33) + ": the schema is more than 32 deep; flatten it"},
		{"not JSON", `{`, "at #: invalid JSON at byte 1: expected a key; write it as JSON values"},
		{"a list", `[]`, "at #: a schema is an object, true or false; write one of them"},
		{"remote $ref", `{"properties":{"a":{"$ref":"http://x.invalid/y"}}}`, "at #/properties/a/$ref: a $ref that leaves the schema; refer to #/$defs/NAME only"},
		{"file $ref", `{"$ref":"file:///etc/passwd"}`, "at #/$ref: a $ref that leaves the schema; refer to #/$defs/NAME only"},
		{"dangling $ref", `{"$ref":"#/$defs/none"}`, "at #/$ref: a $ref to nothing; define what it names below $defs"},
		{"self loop", `{"$ref":"#"}`, "at #: a $ref that leads back to itself; let it recur below a property or an element only"},
		{"mutual loop", `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`, "at #/$defs/b/allOf/0: a $ref that leads back to itself; let it recur below a property or an element only"},
		{"branching recursion", `{"$defs":{"n":{"anyOf":[{"properties":{"a":{"$ref":"#/$defs/n"}}},{"properties":{"a":{"$ref":"#/$defs/n"}}}]}},"$ref":"#/$defs/n"}`, "at #/$defs/n/anyOf/1/properties/a: a schema that recurs twice in one place; let it recur by one path"},
		{"recursion by a wildcard too", `{"properties":{"a":{"$ref":"#"}},"patternProperties":{"^a":{"$ref":"#"}}}`, "at #/properties/a: a schema that recurs twice in one place; let it recur by one path"},
		{"recursion by one and by two steps", `{"properties":{"a":{"allOf":[{"$ref":"#"},{"properties":{"a":{"$ref":"#"}}}]}}}`, "at #/properties/a/allOf/1/properties/a: a schema that recurs twice in one place; let it recur by one path"},
		{"one and two steps of different kinds", `{"properties":{"a":{"anyOf":[{"$ref":"#"},{"items":{"$ref":"#"}}]}}}`, ""},
		{"fan-out", `{"$defs":{"d0":{},` + strings.TrimSuffix(laughs.String(), ",") + `},"$ref":"#/$defs/d30"}`, "more than 20000 subschemas once every $ref is followed; refer less often"},
		{"too many", `{"allOf":[` + strings.Repeat("{},", 2000) + `{}]}`, "at #/allOf/1999: more than 2000 subschemas; write a smaller schema"},
		{"dynamic", `{"$dynamicRef":"#a"}`, "at #/$dynamicRef: the keyword $dynamicRef is not supported here; write the schema without it"},
		{"embedded $id", `{"properties":{"a":{"$id":"http://x.invalid/y"}}}`, "at #/properties/a/$id: the keyword $id is not supported here; write the schema without it"},
		{"anchor", `{"$anchor":"a"}`, "at #/$anchor: the keyword $anchor is not supported here; write the schema without it"},
		{"dependencies of 2020-12", `{"dependencies":{"a":["b"]}}`, "at #/dependencies: the keyword dependencies is not supported here; write the schema without it"},
		{"unknown dialect", `{"$schema":"https://x.invalid/d"}`, "at #/$schema: a dialect that is not known here; leave $schema out; 2020-12, 2019-09, draft-07 and draft-06 are known"},
		{"look-ahead", `{"properties":{"a":{"pattern":"^(?=a)"}}}`, "at #/properties/a/pattern: the pattern cannot be used: look-around is not supported; write it without look-around, back-references and flags"},
		{"look-ahead in a name", `{"patternProperties":{"(?!a)":true}}`, "at #/patternProperties/(?!a): the pattern cannot be used: look-around is not supported; write it without look-around, back-references and flags"},
		{"long pattern", `{"pattern":"` + strings.Repeat("a", 513) + `"}`, "at #/pattern: a pattern of more than 512 bytes; write a shorter one"},
		{"type typo", `{"properties":{"a":{"type":"strng"}}}`, "at #/properties/a/type: not a JSON Schema (anyOf); write it as JSON Schema 2020-12 says"},
		{"tuple of 2020-12", `{"items":[{"type":"string"}]}`, "at #/items: a schema is an object, true or false; write one of them"},
		{"draft-04 boolean", `{"properties":{"a":{"required":true}}}`, "at #/properties/a/required: not a JSON Schema (type); write it as JSON Schema 2020-12 says"},
		{"huge bound", `{"minimum":1e10000000}`, "at #: invalid JSON at byte 11: a number beyond what a double holds; write it as JSON values"},
		{"lone surrogate", `{"title":"\ud800x"}`, "at #: invalid JSON at byte 10: a lone surrogate; write it as JSON values"},
		{"large", `{"title":"` + strings.Repeat("a", 1<<20) + `"}`, "at #: the schema is over 1 MiB; write a smaller one"},
	}
	for _, tt := range tests {
		start := time.Now()
		_, err := compileSchema(json.RawMessage(tt.schema))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: compileSchema: %v", tt.name, err)
		case tt.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tt.want)):
			t.Errorf("%s: compileSchema: %v, want %s", tt.name, err, tt.want)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s: compileSchema took %v", tt.name, took)
		}
	}
}

// The hostile schemas of tools are refused for authors too, but for those whose
// root is not an object: an output may be of any type.
func TestHostileSchemas(t *testing.T) {
	t.Parallel()
	var cases struct{ Cases []schemaCase }
	src, err := os.ReadFile("testdata/schemas.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(src, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases.Cases) < 20 {
		t.Fatalf("testdata/schemas.json has %d cases, want at least 20", len(cases.Cases))
	}
	for _, c := range cases.Cases {
		want := c.Verdict
		if c.ID == "root-string" {
			want = "admit"
		}
		got := "admit"
		if _, err := compileSchema(json.RawMessage(c.Schema)); err != nil {
			got = "drop"
		}
		if got != want {
			t.Errorf("%s: compileSchema: %s, want %s", c.ID, got, want)
		}
	}
}

func TestCheckOutput(t *testing.T) {
	t.Parallel()
	object := `{"type":"object","properties":{"n":{"type":"integer","minimum":0},"list":{"items":{"enum":["a"]}},"a/b":{"not":{}},"x":false,
		"o":{"oneOf":[{"type":"string"},{"minLength":1}]},"r":{"$ref":"#/$defs/p"},"d":{"format":"date"},"m":{"multipleOf":0.1}},
		"$defs":{"p":{"pattern":"^p"}},"required":["n"],"additionalProperties":false}`
	w := &Workflow{
		ID: "w",
		Agents: []Agent{
			{ID: "judge", OutputSchema: json.RawMessage(object)},
			{ID: "plain"},
		},
		Nodes: []Node{
			{ID: "own", Spec: AgentNode{AgentRef: "judge", OutputSchema: json.RawMessage(`{"type":"string"}`)}},
			{ID: "agents", Spec: AgentNode{AgentRef: "judge"}},
			{ID: "none", Spec: AgentNode{AgentRef: "plain"}},
			{ID: "lost", Spec: AgentNode{AgentRef: "nobody"}},
			{ID: "calc", Spec: TransformNode{OutputSchema: json.RawMessage(object)}},
			{ID: "old", Spec: TransformNode{OutputSchema: json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","format":"date"}`)}},
			{ID: "gate", Spec: GateNode{}},
		},
	}
	w.schemas = map[string]*compiledSchema{}
	for _, node := range []string{"own", "agents", "calc", "old"} {
		compiled, err := compileSchema(w.OutputSchema(node))
		if err != nil {
			t.Fatalf("compileSchema(%s): %v", node, err)
		}
		w.schemas[node] = compiled
	}
	tests := []struct{ node, value, want string }{
		{"own", `"x"`, ""},
		{"own", `{"n":1}`, "the output breaks its schema at the top: type"},
		{"agents", `{"n":9007199254740993}`, ""},
		{"calc", `{"n":1.0,"list":["a"],"d":"secret","m":0.3}`, ""},
		{"calc", `{"n":1,"m":0.35}`, "the output breaks its schema at /m: multipleOf"},
		{"calc", `"hunter2"`, "the output breaks its schema at the top: type"},
		{"calc", `{}`, "the output breaks its schema at the top: required"},
		{"calc", `{"n":-1}`, "the output breaks its schema at /n: minimum"},
		{"calc", `{"n":1,"list":["a","hunter2"]}`, "the output breaks its schema at /list/1: enum"},
		{"calc", `{"n":1,"a/b":"hunter2"}`, "the output breaks its schema at /a~1b: not"},
		{"calc", `{"n":1,"x":"hunter2"}`, "the output breaks its schema at /x: false"},
		{"calc", `{"n":1,"o":"hunter2"}`, "the output breaks its schema at /o: oneOf"},
		{"calc", `{"n":1,"r":"hunter2"}`, "the output breaks its schema at /r: pattern"},
		{"calc", `{"n":1,"extra":"hunter2"}`, "the output breaks its schema at the top: additionalProperties"},
		{"calc", `{"n":1,"n":2}`, "invalid JSON at byte 7: repeated key"},
		{"calc", `{"n":1e10000000}`, "invalid JSON at byte 5: a number beyond what a double holds"},
		{"old", `"hunter2"`, ""},
		{"none", `{"any":"thing"}`, ""},
		{"lost", `1`, ""},
		{"gate", `1`, ""},
		{"nowhere", `1`, ""},
	}
	lazy := *w
	lazy.schemas = nil
	for _, tt := range tests {
		for _, w := range []*Workflow{w, &lazy} {
			err := w.CheckOutput(tt.node, json.RawMessage(tt.value))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("CheckOutput(%s, %s) = %v, want none", tt.node, tt.value, err)
			case tt.want != "" && (err == nil || err.Error() != tt.want):
				t.Errorf("CheckOutput(%s, %s) = %v, want %s", tt.node, tt.value, err, tt.want)
			}
		}
	}
	_, ok := errors.AsType[*OutputError](w.CheckOutput("calc", json.RawMessage(`{}`)))
	if !ok {
		t.Error("CheckOutput gave no *OutputError")
	}
	if got := string(w.OutputSchema("own")); got != `{"type":"string"}` {
		t.Errorf("OutputSchema(own) = %s, want the node's", got)
	}
	if got := string(w.OutputSchema("agents")); got != object {
		t.Errorf("OutputSchema(agents) = %s, want the agent's", got)
	}
	if got := w.OutputSchema("gate"); got != nil {
		t.Errorf("OutputSchema(gate) = %s, want nil", got)
	}
}

func TestOutputErrorPathIsBounded(t *testing.T) {
	t.Parallel()
	c, err := compileSchema(json.RawMessage(`{"additionalProperties":{"additionalProperties":{"type":"string"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	value := Object([]Member{{"\u0007\u202e" + strings.Repeat("k", 190), Object([]Member{{strings.Repeat("l", 4000), json.RawMessage("1")}})}})
	err = c.check(value)
	if want := "the output breaks its schema at /\uFFFD\uFFFD" + strings.Repeat("k", 190) + "/…: type"; err == nil || err.Error() != want {
		t.Errorf("check = %v, want %s", err, want)
	}
}

func TestPublishable(t *testing.T) {
	t.Parallel()
	tests := []struct {
		schema string
		want   bool
	}{
		{`{"type":"object","properties":{"a":{"type":"string"}}}`, true},
		{`{}`, true},
		{`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"string"}`, true},
		{`{"properties":{"$ref":{"type":"string"},"$id":true}}`, true},
		{`{"const":{"$ref":"x"}}`, true},
		{`{"$defs":{"a":{}},"type":"string"}`, true},
		{nest(32, "{}"), true},
		{nest(33, "{}"), false},
		{`true`, false},
		{`{"$defs":{"a":{}},"$ref":"#/$defs/a"}`, false},
		{`{"$id":"https://x.invalid/a"}`, false},
		{`{"$anchor":"a"}`, false},
		{`{"$dynamicRef":"#a"}`, false},
		{`{"$schema":"http://json-schema.org/draft-07/schema#"}`, false},
		{`{"type":"strng"}`, false},
		{`{`, false},
		{``, false},
	}
	for _, tt := range tests {
		if got := Publishable(json.RawMessage(tt.schema)); got != tt.want {
			t.Errorf("Publishable(%.80s) = %v, want %v", tt.schema, got, tt.want)
		}
	}
}

// A panic of the validator, and one that does not end, are errors.
func TestGuarded(t *testing.T) {
	t.Parallel()
	err := guarded(time.Minute, func() error { panic("nil pointer") })
	if want := "the schema cannot be evaluated"; err == nil || err.Error() != want {
		t.Errorf("guarded = %v, want %s", err, want)
	}
	release := make(chan struct{})
	defer close(release)
	err = guarded(time.Millisecond, func() error { <-release; return nil })
	if want := "the schema takes too long to evaluate"; err == nil || err.Error() != want {
		t.Errorf("guarded = %v, want %s", err, want)
	}
}

// Whatever is admitted evaluates within its clock, and no panic of the validator
// gets out.
func FuzzSchema(f *testing.F) {
	for _, seed := range []string{
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"items":{"$ref":"#"}}}}`, `{"multipleOf":1e-300}`,
		`{"patternProperties":{"^\\s":false},"unevaluatedProperties":{"not":{}}}`, `{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"]}}`,
		`{"uniqueItems":true,"contains":{"const":1},"minContains":2}`, `{"if":{"type":"null"},"then":false,"else":{"enum":[1,"a",[]]}}`, `true`,
	} {
		f.Add([]byte(seed), []byte(`{"a":[1,{"a":null}],"b":1e300}`))
	}
	f.Fuzz(func(t *testing.T, schema, value []byte) {
		compiled, err := compileSchema(schema)
		if err != nil {
			if strings.Contains(err.Error(), "takes too long") || strings.Contains(err.Error(), "cannot be evaluated") {
				t.Fatalf("compileSchema(%s): %v", schema, err)
			}
			return
		}
		if err := compiled.check(value); err != nil && (strings.Contains(err.Error(), "takes too long") || strings.Contains(err.Error(), "cannot be evaluated")) {
			t.Fatalf("check(%s, %s): %v", schema, value, err)
		}
	})
}
