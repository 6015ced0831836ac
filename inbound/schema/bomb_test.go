package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// bombs are schemas that ask a naive reader or validator for much time or memory.
// All of them are refused.
func bombs() map[string]json.RawMessage {
	text := map[string]string{
		"levels":       strings.Repeat(`{"items":`, 100_000) + `{}` + strings.Repeat(`}`, 100_000),
		"brackets":     strings.Repeat(`[`, 1<<20),
		"depth":        strings.Repeat(`{"not":`, 60) + `{}` + strings.Repeat(`}`, 60),
		"too long":     `{"description":"` + strings.Repeat("a", 1<<20) + `"}`,
		"numbers":      `{"enum":[` + strings.Repeat("1e9,", 200_000) + `1e999999999]}`,
		"exponent":     `{"multipleOf":0e999999999}`,
		"subschemas":   `{"anyOf":[` + strings.Repeat(`{},`, 200_000) + `{}]}`,
		"loop":         `{"$ref":"#"}`,
		"program":      `{"properties":{"a":{"pattern":"` + strings.Repeat("(.{1000})", 50) + `"}}}`,
		"nested group": `{"properties":{"a":{"pattern":"` + strings.Repeat("(", 250) + strings.Repeat(")", 250) + `{1000}{1000}"}}}`,
		"classes":      `{"properties":{"a":{"pattern":"(?i)` + strings.Repeat(`[\\p{L}\\p{N}]{99}`, 15) + `"}}}`,
		"look-ahead":   `{"properties":{"a":{"pattern":"^(?=(a+)+$)"}}}`,
		"escapes":      `{"properties":{"a":{"default":"` + strings.Repeat(`\u001b`, 100_000) + `"}}}`,
		"names":        `{"properties":{"` + strings.Repeat(`\u202e`, 40) + `":{}}}`,
		"remote":       `{"properties":{"a":{"$ref":"http://localhost:1/x"}}}`,
		"file":         `{"properties":{"a":{"$ref":"file:///dev/zero"}}}`,
		"meta":         `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":["object","object"]}`,
	}
	var doubling, chain, fan, deep strings.Builder
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	text["doubling"] = `{"$defs":{` + doubling.String() + `"d40":{}},"$ref":"#/$defs/d0"}`
	for i := range 1990 {
		fmt.Fprintf(&chain, `"d%d":{"$ref":"#/$defs/d%d"},`, i, (i+1)%1990)
	}
	text["chain"] = `{"$defs":{` + chain.String() + `"x":{}},"$ref":"#/$defs/d0"}`
	// Recursions that differ in their last step alone, and a last one that does not.
	for i := range 450 {
		fmt.Fprintf(&deep, `"d%d":{"properties":{"a":{"$ref":"#/$defs/d%d"}}},`, i, i+1)
	}
	for i := range 900 {
		fmt.Fprintf(&fan, `"p%d":{"$ref":"#/$defs/d0"},`, i)
	}
	text["paths"] = `{"$defs":{` + deep.String() + `"d450":{"properties":{` + fan.String() + `"x":{}},"patternProperties":{"q":{"$ref":"#/$defs/d0"}}}},"$ref":"#/$defs/d0"}`
	fan.Reset()
	for i := range 1990 {
		fmt.Fprintf(&fan, `{"$ref":"#"},`)
		_ = i
	}
	text["fan"] = `{"properties":{"a":{"anyOf":[` + fan.String() + `{}]}}}`
	out := make(map[string]json.RawMessage, len(text))
	for name, s := range text {
		out[name] = json.RawMessage(s)
	}
	return out
}

func TestBombs(t *testing.T) {
	t.Parallel()
	for name, schema := range bombs() {
		if _, _, err := Admit(schema); err == nil {
			t.Errorf("%s: Admit = nil, want it refused", name)
		}
	}
	for _, c := range schemaCases(t) {
		if _, _, err := Admit(json.RawMessage(c.Schema)); c.Verdict == "drop" && err == nil {
			t.Errorf("%s: Admit = nil, want it refused", c.ID)
		}
	}
}

// The goal is 50 ms for each.
func BenchmarkBombs(b *testing.B) {
	all := bombs()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := Admit(all[name]); err == nil {
					b.Fatal("admitted")
				}
			}
		})
	}
}

// wide is about as much as the bounds let one schema ask for.
func wide(tb testing.TB) json.RawMessage {
	tb.Helper()
	var b strings.Builder
	b.WriteString(`{"type":"object","properties":{`)
	for i := range 60 {
		fmt.Fprintf(&b, `"p%d":{"type":"string","description":"what it is","pattern":"^[a-z]{1,200}$","maxLength":%d},`, i, 200+i)
	}
	for i := range 1900 {
		fmt.Fprintf(&b, `"q%d":{"enum":["a","b",%d]},`, i, i)
	}
	b.WriteString(`"end":{}}}`)
	return json.RawMessage(b.String())
}

func BenchmarkAdmit(b *testing.B) {
	usual := json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{` +
		`"path":{"type":"string","description":"` + strings.Repeat("The path of a file. ", 50) + `"},` +
		`"head":{"type":"number","description":"` + strings.Repeat("How many lines. ", 50) + `"},` +
		`"edits":{"type":"array","items":{"type":"object","properties":{"old":{"type":"string"},"new":{"type":"string"}},"required":["old","new"],"additionalProperties":false}}},` +
		`"required":["path"],"additionalProperties":false}`)
	for name, schema := range map[string]json.RawMessage{"usual": usual, "wide": wide(b)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(schema)))
			for b.Loop() {
				if _, _, err := Admit(schema); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	s, _, err := Admit(usual)
	if err != nil {
		b.Fatal(err)
	}
	args := json.RawMessage(`{"path":"/a/b","head":7,"edits":[{"old":"x","new":"y"}]}`)
	b.Run("validate", func(b *testing.B) {
		for b.Loop() {
			if err := s.Validate(args); err != nil {
				b.Fatal(err)
			}
		}
	})
}
