package schema

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The JSON Schema Test Suite: what is admitted is judged as the suite says, and
// what is not is counted by its reason. Each of its schemas stands for one property
// of an object, as the arguments of a tool are one.
func TestSuite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, dialect string
		judged        int
		refused       map[Reason]int
	}{
		{"draft2020-12", "https://json-schema.org/draft/2020-12/schema", 949, map[Reason]int{Keyword: 47, Reference: 16, Text: 7}},
		{"draft-07", "http://json-schema.org/draft-07/schema#", 824, map[Reason]int{Keyword: 24, Reference: 10, Text: 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var groups []struct {
				File, Description string
				Schema            any
				Tests             []struct {
					Description string
					Data        json.RawMessage
					Valid       bool
				}
			}
			readJSON(t, "testdata/suite/"+c.name+".json", &groups)
			judged, refused := 0, map[Reason]int{}
			for _, g := range groups {
				if object, ok := g.Schema.(map[string]any); ok {
					delete(object, "$schema")
				}
				moved(g.Schema)
				raw, err := json.Marshal(map[string]any{"$schema": c.dialect, "properties": map[string]any{"x": g.Schema}})
				if err != nil {
					t.Fatal(err)
				}
				s, _, err := Admit(raw)
				if err != nil {
					reason, ok := errors.AsType[*RefusedError](err)
					if !ok {
						t.Fatalf("%s: %s: Admit = %v, want a *RefusedError", g.File, g.Description, err)
					}
					refused[reason.Reason]++
					t.Logf("%s: %s: %v", g.File, g.Description, err)
					continue
				}
				for _, test := range g.Tests {
					if err := s.Validate(json.RawMessage(`{"x":` + string(test.Data) + `}`)); (err == nil) != test.Valid {
						t.Errorf("%s: %s: %s: Validate = %v, want valid %t", g.File, g.Description, test.Description, err, test.Valid)
					}
					judged++
				}
			}
			if diff := cmp.Diff(c.refused, refused); diff != "" || judged != c.judged {
				t.Errorf("%d judged, want %d; refused (-want +got):\n%s", judged, c.judged, diff)
			}
		})
	}
}

// moved rewrites the references of a schema that now stands below #/properties/x.
func moved(v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			if name == "enum" || name == "const" {
				continue // data
			}
			if ref, ok := below.(string); ok && name == "$ref" && strings.HasPrefix(ref, "#") {
				v[name] = "#/properties/x" + strings.TrimPrefix(ref, "#")
				continue
			}
			moved(below)
		}
	case []any:
		for _, below := range v {
			moved(below)
		}
	}
}
