package expr

import (
	"testing"
)

func TestSmoke(t *testing.T) {
	s := New(0)
	for _, c := range []string{`1+1`, `{a: inputs.x, b: run.outputs["n"].k}`, `Object.keys(run.outputs)`, `1))})();(()=>{((2`, `inputs.x = 1`, `inputs = 1`, `run.outputs.ghost`, `[1,2].map(x=>x*2)`,
		`(() => { for(;;){} })()`, `10n`, `({a:()=>1})`, `new String("x")`, `({a:[new Number(1)]})`, `(()=>{const a={};a.a=a;return a})()`, `({m: new Map([[1,2]]), n: NaN, z: -0, u: undefined})`, `typeof Date + typeof Promise + typeof Proxy`, `({}).constructor.constructor("return typeof process")()`, `Math.random()`, `typeof __host + typeof __out`, `branches`, `Math.max(1,2)`, `(function f(){return f()})()`, `(()=>{let a=[];for(;;)a.push('xxxxxxxxxxxxxxxxx'+a.length)})()`, `import("x")`, `throw 1`, `(()=>{throw new Error("interrupted")})()`} {
		v, err := s.Eval(t.Context(), c, Scope{Inputs: []byte(`{"x":1}`), Outputs: []Output{{"z", []byte(`1`)}, {"n", []byte(`{"k":[1]}`)}}})
		t.Logf("%s => %s %v", c, v, err)
	}
}

func BenchmarkEval(b *testing.B) {
	s := New(0)
	sc := Scope{Inputs: []byte(`{"x":1}`), Outputs: []Output{{"z", []byte(`1`)}, {"n", []byte(`{"k":[1]}`)}}}
	for b.Loop() {
		if _, err := s.Eval(b.Context(), `{a: inputs.x, b: run.outputs["n"].k}`, sc); err != nil {
			b.Fatal(err)
		}
	}
}
