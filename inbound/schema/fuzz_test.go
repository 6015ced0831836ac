package schema

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Whatever a server sends: no panic, a typed refusal that is safe to show, or a
// copy that is admitted again as it is.
func FuzzAdmit(f *testing.F) {
	for _, c := range schemaCases(f) {
		f.Add([]byte(c.Schema), []byte(`{"a":{"a":1}}`))
	}
	f.Add([]byte(`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"items":{"$ref":"#"}}}}`), []byte(`{"a":[{"a":[]}]}`))
	f.Add([]byte(`{"if":{"required":["a"]},"then":{"minProperties":1},"dependentSchemas":{"a":{"not":{}}},"unevaluatedProperties":false}`), []byte(`{"a":1}`))
	f.Fuzz(func(t *testing.T, schema, arguments []byte) {
		s, report, err := Admit(schema)
		if err != nil {
			if _, ok := errors.AsType[*RefusedError](err); !ok || s != nil {
				t.Fatalf("Admit(%q) = %v, want a *RefusedError", schema, err)
			}
			if err := text.Check(err.Error()); err != nil {
				t.Fatalf("refusal of %q: %v", schema, err)
			}
			return
		}
		canonical, err := workflows.Canonical(schema)
		if err != nil || len(canonical) != report.Bytes {
			t.Fatalf("bytes of %q = %d, want %d (%v)", schema, report.Bytes, len(canonical), err)
		}
		again, _, err := Admit(s.JSON())
		if err != nil || string(again.JSON()) != string(s.JSON()) {
			t.Fatalf("Admit(JSON of %q) = %v, want it admitted as it is", schema, err)
		}
		if err := s.Validate(json.RawMessage(arguments)); err != nil {
			if err := text.Check(err.Error()); err != nil {
				t.Fatalf("Validate(%q) by %q: %v", arguments, schema, err)
			}
		}
	})
}
