package expr

import "testing"

func BenchmarkEval(b *testing.B) {
	s := New(0)
	sc := Scope{Inputs: []byte(`{"x":1}`), Outputs: []Output{{"z", []byte(`1`)}, {"n", []byte(`{"k":[1]}`)}}}
	for b.Loop() {
		if _, err := s.Eval(b.Context(), `{a: inputs.x, b: run.outputs["n"].k}`, sc); err != nil {
			b.Fatal(err)
		}
	}
}
