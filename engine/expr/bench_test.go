package expr

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func BenchmarkEval(b *testing.B) {
	var list strings.Builder
	for i := range 60 {
		if i > 0 {
			list.WriteByte(',')
		}
		fmt.Fprintf(&list, `{"id":"item-%03d","score":%d,"tags":["alpha","beta"],"text":"%s"}`, i, i%10, strings.Repeat("lorem ipsum ", 7))
	}
	scope := Scope{
		Inputs:  json.RawMessage(`{"name":"tern"}`),
		Outputs: []Output{{"x", json.RawMessage(`{"score":6.5}`)}, {"items", json.RawMessage("[" + list.String() + "]")}},
	}
	for _, bb := range []struct{ name, source string }{
		{"small", `{hello: inputs.name}`},
		{"lazy", `run.outputs["x"].score < 7`},
		{"filter-map", `run.outputs.items.filter(i => i.score > 5).map(i => i.id).length`},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s := New(0)
			defer s.Close()
			for b.Loop() {
				if _, err := s.Eval(b.Context(), bb.source, scope); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
