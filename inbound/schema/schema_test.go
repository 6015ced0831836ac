package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func readJSON(tb testing.TB, name string, into any) {
	tb.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		tb.Fatal(err)
	}
}

// A schemaCase is one of the handed cases.
type schemaCase struct {
	ID, Schema, Verdict string
}

func schemaCases(tb testing.TB) []schemaCase {
	tb.Helper()
	var file struct{ Cases []schemaCase }
	readJSON(tb, "testdata/cases.json", &file)
	return file.Cases
}

func TestAdmitCases(t *testing.T) {
	t.Parallel()
	want := map[string]Reason{
		"remote-ref": Reference, "file-ref": Reference, "self-loop": Reference, "mutual-loop": Reference,
		"dangling-ref": Reference, "bignum": NotJSON, "tiny": NotJSON, "duplicate-name": NotJSON,
		"lone-surrogate": NotJSON, "unknown-dialect": Dialect, "dynamic-ref": Keyword, "embedded-id": Keyword,
		"branching-recursion": Recursion, "wildcard-recursion": Recursion, "root-array": Root, "root-string": Root,
		"tuple-items-2020": Shape, "lookahead": Pattern, "type-typo": Shape, "billion-laughs": Expansion,
		"depth-40": NotJSON, "pattern-600": Pattern,
	}
	all := schemaCases(t)
	if len(all) != 31 {
		t.Fatalf("%d cases, want 31", len(all))
	}
	for _, c := range all {
		s, _, err := Admit(json.RawMessage(c.Schema))
		if c.Verdict == "admit" {
			if err != nil {
				t.Errorf("%s: Admit = %v, want it admitted", c.ID, err)
			}
			continue
		}
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || s != nil || refused.Reason != want[c.ID] {
			t.Errorf("%s: Admit = %v, want %s", c.ID, err, want[c.ID])
		}
	}
}

func TestTextCases(t *testing.T) {
	t.Parallel()
	var file struct {
		Schema []struct {
			ID, Verdict     string
			Schema, Cleaned json.RawMessage
		}
	}
	readJSON(t, "testdata/text.json", &file)
	if len(file.Schema) != 9 {
		t.Fatalf("%d cases, want 9", len(file.Schema))
	}
	for _, c := range file.Schema {
		s, _, err := Admit(c.Schema)
		if (err == nil) != (c.Verdict == "admit") {
			t.Errorf("%s: Admit = %v, want %s", c.ID, err, c.Verdict)
			continue
		}
		if err != nil {
			if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Reason != Text {
				t.Errorf("%s: Admit = %v, want %s", c.ID, err, Text)
			}
			continue
		}
		if c.Cleaned == nil {
			c.Cleaned = c.Schema
		}
		var got, want any
		if json.Unmarshal(s.JSON(), &got) != nil || json.Unmarshal(c.Cleaned, &want) != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: JSON = %s, want %s", c.ID, s.JSON(), c.Cleaned)
		}
	}
}

// Each bound is kept at the bound and refused one over.
func TestBounds(t *testing.T) {
	t.Parallel()
	nested := func(n int) string {
		return strings.Repeat(`{"items":`, n) + `{}` + strings.Repeat(`}`, n)
	}
	object := func(n int, name func(i int) string, value string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `%q:%s`, name(i), value)
		}
		return "{" + b.String() + "}"
	}
	numbered := func(i int) string { return fmt.Sprintf("p%d", i) }
	for _, c := range []struct {
		what   string
		schema func(n int) string
		bound  int
		reason Reason
	}{
		{"depth", nested, 32, Depth},
		{"levels of data", func(n int) string {
			return `{"default":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
		}, 63, NotJSON},
		{"subschemas", func(n int) string { return `{"properties":` + object(n-1, numbered, "true") + `}` }, 2000, Count},
		{"pattern bytes", func(n int) string { return `{"properties":{"a":{"pattern":"` + strings.Repeat("a", n) + `"}}}` }, 512, Pattern},
		{"patterns", func(n int) string { return `{"patternProperties":` + object(n, numbered, "true") + `}` }, 64, Pattern},
		{"literal", func(n int) string {
			return `{"properties":{"a":{"default":"` + strings.Repeat("é", n/2) + strings.Repeat("a", n%2) + `"}}}`
		}, 4096, Literal},
		{"enum member", func(n int) string { return `{"properties":{"a":{"enum":["` + strings.Repeat("a", n) + `"]}}}` }, 4096, Literal},
		{"nested description", func(n int) string {
			return `{"properties":{"a":{"description":"` + strings.Repeat("a", n) + `\u202e"}}}`
		}, 8192, Literal},
		{"property name", func(n int) string { return `{"properties":{"` + strings.Repeat("a", n) + `":{}}}` }, 256, Name},
		{"name in data", func(n int) string { return `{"const":{"` + strings.Repeat("a", n) + `":1}}` }, 256, Name},
		{"number", func(n int) string { return fmt.Sprintf(`{"minimum":1e%d}`, n) }, 300, NotJSON},
		{"small number", func(n int) string { return fmt.Sprintf(`{"minimum":-1e-%d}`, n) }, 300, NotJSON},
		{"digits", func(n int) string { return `{"minimum":1` + strings.Repeat("0", n-1) + `}` }, 64, NotJSON},
		{"bytes", func(n int) string {
			head, fill := `{"enum":["`, strings.Repeat(strings.Repeat("a", 97)+`","`, (n-200)/100)
			return head + fill + strings.Repeat("b", n-len(head)-len(fill)-len(`"]}`)) + `"]}`
		}, 1 << 20, Size},
		{"values", func(n int) string { return `{"enum":[` + strings.Repeat("1,", n-3) + `1]}` }, 50_000, Count},
		{"program", func(n int) string {
			// One step for each letter that is repeated, one for each repetition.
			return `{"properties":{"a":{"pattern":"` + strings.Repeat("a{1000}", n/1000) + `"}}}`
		}, 24_000, Pattern},
	} {
		if _, _, err := Admit(json.RawMessage(c.schema(c.bound))); err != nil {
			t.Errorf("%s of %d: Admit = %v, want it admitted", c.what, c.bound, err)
		}
		over := c.bound + 1
		if c.what == "program" {
			over = 52_000
		}
		_, _, err := Admit(json.RawMessage(c.schema(over)))
		if refused, ok := errors.AsType[*RefusedError](err); !ok || refused.Reason != c.reason {
			t.Errorf("%s of %d: Admit = %.300v, want %s", c.what, over, err, c.reason)
		}
	}
}

// What an admission says never holds more than the names of the schema, escaped.
func TestRefusalText(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"properties":{"a/b~":{"enum":["canary\u001b[31m"]}}}`: `schema_text at #/properties/a~1b~0/enum/0: holds U+001B at byte 6, which does not show`,
		`{"properties":{"a\u202e":{}}}`:                         `schema_text at #/properties/a\u{202E}: a name holds U+202E at byte 1, which does not show`,
		`{"properties":{"a":{"type":"canary"}}}`:                `schema_invalid at #/properties/a/type: not a JSON Schema (anyOf)`,
		`{"properties":{"a":{"minLength":-1}}}`:                 `schema_invalid at #/properties/a/minLength: not a JSON Schema (minimum)`,
		`{"properties":{"a":{"pattern":"(?=canary)"}}}`:         `schema_pattern at #/properties/a/pattern: RE2 cannot match it: look-around is not supported`,
		`null`:                         `schema_root at #: not an object`,
		`"canary"`:                     `schema_root at #: not an object`,
		`{"type":"object","type":"x"}`: `schema_not_json at #: invalid JSON at byte 17: repeated key`,
		`{"properties":[]}`:            `schema_invalid at #/properties: not an object of schemas`,
		`{"items":{"$schema":"http://json-schema.org/draft-07/schema#"}}`: `schema_dialect at #/items/$schema: another dialect inside a schema`,
	} {
		_, _, err := Admit(json.RawMessage(schema))
		if err == nil || err.Error() != want {
			t.Errorf("Admit(%s) = %v, want %s", schema, err, want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	_, got, err := Admit(json.RawMessage(` {"type": "object", "x-foo": {"a": 1}, "properties": {"a": {"nullable": true, "type": "string"}, "b": true}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Report{Bytes: 95, Subschemas: 3, Ignored: []string{"nullable", "x-foo"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	_, got, err = Admit(json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","dependentRequired":{"a":["b"]},"prefixItems":[{}],"if":{}}`))
	if err != nil || !cmp.Equal(got.Ignored, []string{"dependentRequired", "prefixItems"}) {
		t.Errorf("ignored in draft-07 = %v, %v, want dependentRequired and prefixItems", got.Ignored, err)
	}
}

// The copy for models keeps order, digits and spelling.
func TestJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{ }`: `{"type":"object"}`,
		`{"properties":{"z":{"default":1.50},"a":{"const":"<é\u0041>"}},"description":"x\r\ny\u200b"}`: `{"type":"object","properties":{"z":{"default":1.50},"a":{"const":"<éA>"}},"description":"x\ny"}`,
		`{"type":"object","required":["a"],"examples":[[],{}]}`:                                        `{"type":"object","required":["a"],"examples":[[],{}]}`,
	} {
		s, _, err := Admit(json.RawMessage(in))
		if err != nil || string(s.JSON()) != want {
			t.Errorf("JSON of %s = %s, %v, want %s", in, s.JSON(), err, want)
		}
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	for schema, ok := range map[string]bool{
		`{"definitions":{"a<b>":{"type":"string"}},"properties":{"x":{"$ref":"#/definitions/a%3Cb%3E"}}}`:                                                                            true,
		`{"$schema":"http://json-schema.org/draft-07/schema#","$defs":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a"}}}`:                                              true,
		`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"dependencies":{"q":["r"]},"type":"string"}},"properties":{"x":{"$ref":"#/definitions/a"}}}`:       true,
		`{"$schema":"https://json-schema.org/draft-07/schema","properties":{"x":{"items":[true],"additionalItems":false,"type":"array"}}}`:                                           true,
		`{"$schema":"http://json-schema.org/draft-06/schema#","properties":{"x":{"exclusiveMinimum":1,"allOf":[{"$ref":"#/definitions/s"}]}},"definitions":{"s":{"type":"string"}}}`: true,
		`{"$schema":"https://json-schema.org/draft/2019-09/schema","properties":{"x":{"$ref":"#/$defs/a","minLength":9}},"$defs":{"a":{}},"unevaluatedProperties":false}`:            true,
		`{"$defs":{"a/b":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a~1b"}}}`:                                                                                             true,
		`{"properties":{"x":{"anyOf":[{"type":"string"}]},"y":{"$ref":"#/properties/x/anyOf/0"}}}`:                                                                                   true,
		`{"properties":{"x":{"const":{}},"y":{"$ref":"#/properties/x/const"}}}`:                                                                                                      false,
		`{"properties":{"x":{},"y":{"$ref":"#/properties/x/anyOf/00"}}}`:                                                                                                             false,
		`{"properties":{"x":{"$ref":"#/properties/y"},"y":{"$ref":"#/properties/x"}}}`:                                                                                               false,
		`{"properties":{"x":{"$ref":7}}}`: false,
		`{"$id":"http://json-schema.org/draft-07/schema","properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"strng"}}}`: false,
	} {
		s, _, err := Admit(json.RawMessage(schema))
		if (err == nil) != ok {
			t.Errorf("Admit(%s) = %v, want admitted %t", schema, err, ok)
		}
		if err == nil && s.Validate(json.RawMessage(`{"x":1,"y":1}`)) == nil {
			t.Errorf("Validate with %s = nil, want the reference enforced", schema)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	s, _, err := Admit(json.RawMessage(`{"type":"object","properties":{
		"a":{"type":"integer","minimum":1},"b":{"type":"string","pattern":"^\\w+$","format":"email"},
		"c":{"type":["string","null"]},"d":{"enum":["canary",1]},"e":{"items":{"type":"boolean"}}},
		"required":["a"],"additionalProperties":false}`))
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`{"a":1}`:                     "",
		`{"a":1.0,"b":"x","c":null}`:  "",
		``:                            "the arguments do not fit the tool's schema: at /a: required",
		`{"a":0,"b":" "}`:             "the arguments do not fit the tool's schema: at /a: minimum; at /b: pattern",
		`{"a":"canary","b":null}`:     "the arguments do not fit the tool's schema: at /a: type; at /b: type",
		`{"a":1,"d":"canary2"}`:       "the arguments do not fit the tool's schema: at /d: enum",
		`{"a":1,"x\u202e/":"canary"}`: `the arguments do not fit the tool's schema: at /x\u{202E}~1: additionalProperties`,
		`{"a":1,"e":[true,"canary"]}`: "the arguments do not fit the tool's schema: at /e/1: type",
		`[]`:                          "the arguments do not fit the tool's schema: at the top: type",
		`{"a":1,"a":2}`:               "the arguments are not strict JSON: invalid JSON at byte 7: repeated key",
		`{"a":1e10000000}`:            "the arguments are not strict JSON: invalid JSON at byte 5: a number beyond what a double holds",
		`{"a":1e301}`:                 "the arguments hold a number outside 1e-300 to 1e300",
		`{"a":"` + "\xff" + `"}`:      "the arguments are not strict JSON: invalid JSON at byte 6: not UTF-8",
	} {
		got := ""
		if err := s.Validate(json.RawMessage(args)); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("Validate(%s) = %q, want %q", args, got, want)
		}
	}
	if err := s.Validate(json.RawMessage(`{"b":"` + strings.Repeat("a", 1<<20) + `"}`)); err == nil || err.Error() != "the arguments are more than 1 MiB" {
		t.Errorf("Validate of more than 1 MiB = %v", err)
	}
}

// A validation that runs over its clock fails, and so do others while it runs.
func TestValidateOverrun(t *testing.T) {
	t.Parallel()
	s, _, err := Admit(json.RawMessage(`{"properties":{"a":{"items":{"uniqueItems":true,"contains":{"const":0}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	s.limit = 1 // far less than these arguments take, one processor or more
	args := json.RawMessage(`{"a":[` + strings.Repeat(`[1,2,3,4,5,6,7,8,9],`, 8000) + `[]]}`)
	if err := s.Validate(args); !errors.Is(err, errOverrun) {
		t.Fatalf("Validate = %v, want %v", err, errOverrun)
	}
	s.limit = time.Minute
	if err := s.Validate(json.RawMessage(`{}`)); err != nil && !errors.Is(err, errOverrun) {
		t.Errorf("Validate = %v, want nil or %v", err, errOverrun)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.abandoned.Load() > 0 {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the validation does not end")
		}
	}
	if err := s.Validate(json.RawMessage(`{}`)); err != nil {
		t.Errorf("Validate afterwards = %v, want nil", err)
	}
}

// What cannot take long is checked at once; what a reference or a pattern multiplies,
// or is large, is watched.
func TestLight(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, schema, arguments string
		light, valid            bool
	}{
		{"a tree", `{"properties":{"n":{"anyOf":[{"type":"number"},{"enum":["x"]}]}}}`, `{"n":"x"}`, true, true},
		{"a tree that is broken", `{"properties":{"n":{"anyOf":[{"type":"number"},{"enum":["x"]}]}}}`, `{"n":"y"}`, true, false},
		{"recursion", `{"properties":{"a":{"$ref":"#"}}}`, `{"a":{"a":{"a":{}}}}`, false, true},
		{"a pattern", `{"properties":{"n":{"pattern":"^(a|b)*$"}}}`, `{"n":"abab"}`, false, true},
		{"names by a pattern", `{"patternProperties":{"^a":{"type":"number"}}}`, `{"ab":"1"}`, false, false},
		{"many values", `{"properties":{"n":{"uniqueItems":true}}}`, `{"n":[` + strings.Repeat("0,", 20_000) + `1]}`, false, false},
	} {
		s, _, err := Admit(json.RawMessage(tt.schema))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if got := s.light(len(tt.arguments)); got != tt.light {
			t.Errorf("%s: light = %t, want %t", tt.name, got, tt.light)
		}
		s.limit = time.Minute
		if err := s.Validate(json.RawMessage(tt.arguments)); (err == nil) != tt.valid {
			t.Errorf("%s: Validate = %v, want valid %t", tt.name, err, tt.valid)
		}
	}
}
