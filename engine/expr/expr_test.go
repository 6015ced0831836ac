package expr

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sample is a scope with something of everything.
func sample() Scope {
	return Scope{
		Inputs: json.RawMessage(`{"bird":"tern","count":3,"pin":{"secret":true,"ref":"inputs.pin"},"big":9007199254740993}`),
		Ctx:    json.RawMessage(`{"site":"a<b & c","__proto__":{"evil":1}}`),
		Outputs: []Output{
			{"z-first", json.RawMessage(`{"k":1,"only":"a"}`)},
			{"a-second", json.RawMessage(`{"note":"","list":[{"n":1},{"n":2}],"nul":null}`)},
			{"text", json.RawMessage(`"plain \u00e9 \ud83d\ude00 \u0000"`)},
			{"constructor", json.RawMessage(`7`)},
		},
	}
}

func TestEval(t *testing.T) {
	t.Parallel()
	s := patient(t, 0)
	tests := []struct {
		source string
		want   string // the value, or the reason
	}{
		// The scope.
		{`inputs.bird`, `="tern"`},
		{`ctx.site`, `="a<b & c"`},
		{`inputs.pin`, `={"secret":true,"ref":"inputs.pin"}`},
		{`inputs.big`, `=9007199254740992`},
		{`run.outputs["a-second"].list[1].n`, `=2`},
		{`run.outputs.text`, `="plain é 😀 \u0000"`},
		{`Object.keys(run.outputs)`, `=["z-first","a-second","text","constructor"]`},
		{`Object.keys(run)`, `=["outputs"]`},
		{`JSON.stringify(run.outputs["z-first"])`, `="{\"k\":1,\"only\":\"a\"}"`},
		{`{...run.outputs}["constructor"]`, `=7`},
		{`run.outputs.constructor`, `=7`},
		{`run.outputs["ghost"] === undefined`, `=true`},
		{`run.outputs["to-string"] === undefined && run.id === undefined`, `=true`},
		{`"z-first" in run.outputs && !("ghost" in run.outputs)`, `=true`},
		{`run.outputs.hasOwnProperty("text")`, `=true`},
		{`run.outputs["a-second"] === run.outputs["a-second"]`, `=true`},
		{`run.outputs["a-second"].nul`, `=null`},
		{`ctx.evil === undefined && Object.keys(ctx)[1] === "__proto__"`, `=true`},
		{`typeof branches`, `="undefined"`},
		{`branches`, "runtime"},
		{`typeof globalThis.inputs + typeof globalThis.run + typeof globalThis.ctx`, `="undefinedundefinedundefined"`},
		{`[typeof __host, typeof __scope, typeof __out, typeof scope, typeof refused]`, `=["undefined","undefined","undefined","undefined","undefined"]`},

		// Frozen at every level.
		{`(() => { ctx.x = 1; return 1 })()`, "runtime"},
		{`(() => { inputs.pin.ref = 1 })()`, "runtime"},
		{`run.outputs["a-second"].list.push(1)`, "runtime"},
		{`(() => { run.outputs["a-second"].list[0].n = 5 })()`, "runtime"},
		{`(() => { run.outputs.x = 1 })()`, "runtime"},
		{`(() => { run.outputs = 1 })()`, "runtime"},
		{`delete inputs.bird`, "runtime"},
		{`inputs = 1`, "runtime"},
		{`run = {}`, "runtime"},
		{`undeclared = 1`, "runtime"},
		{`Object.isFrozen(inputs.pin) && Object.isFrozen(run) && Object.isFrozen(run.outputs) && Object.isFrozen(run.outputs["a-second"].list[0])`, `=true`},
		{`Math.max = 1`, "runtime"},

		// One expression, whatever it holds.
		{`{ bird: inputs.bird }`, `={"bird":"tern"}`},
		{`{}`, `={}`},
		{"1 // a comment", `=1`},
		{"/* a */ 1 /* b */", `=1`},
		{"\n\n[1,\n2]\n", `=[1,2]`},
		{`1, 2`, `=2`},
		{`"{{inputs.bird}}"`, `="{{inputs.bird}}"`},
		{`(x => x + 1)(1)`, `=2`},
		{`{ n: 1 } # note`, "syntax"},
		{``, "syntax"},
		{`// nothing`, "syntax"},
		{`1 /*`, "syntax"},
		{`return 1`, "syntax"},
		{`let a = 1`, "syntax"},
		{`1; 2`, "syntax"},
		{`throw 1`, "syntax"},
		{`if (true) 1`, "syntax"},
		{`...[1]`, "syntax"},
		{`await 1`, "syntax"},
		{`yield`, "syntax"},
		{`import.meta`, "syntax"},
		{`new.target`, "syntax"},
		{`with ({}) 1`, "syntax"},
		{`010`, "syntax"},
		{`1))})();(()=>{((2`, "syntax"},
		{`1)` + "\n" + `,(2`, "syntax"},
		{`1],[2`, "syntax"},
		{`1) + (2`, "syntax"},
		{`1]) + ([2`, "syntax"},
		{`1\n)})();globalThis.x=1;(()=>{return (2`, "syntax"},
		{`a)=>(1`, "syntax"},
		{"`${1", "syntax"},
		{"\xff", "syntax"},
		{strings.Repeat(" ", maxSource) + "1", "syntax"},

		// The language.
		{`typeof Date + typeof Promise + typeof Proxy`, `="undefinedundefinedundefined"`},
		{`Math.random()`, "runtime"},
		{`[3,20,100].sort()`, `=[100,20,3]`},
		{`Object.keys({b:1, 2:1, a:1, 1:1})`, `=["1","2","b","a"]`},
		{`({}).constructor.constructor("return typeof process")()`, "runtime"},
		{`inputs?.a?.b ?? "none"`, `="none"`},
		{"`${inputs.bird}s`", `="terns"`},
		{`[...'abc'].join('-')`, `="a-b-c"`},
		{`(({a, ...r}) => r)({a: 1, b: 2})`, `={"b":2}`},
		{`[1,2,3].toSorted((a, b) => b - a).at(0)`, `=3`},
		{`Object.groupBy([1,2,3], x => x % 2 ? 'o' : 'e').o.length`, `=2`},
		{`'aXbX'.replaceAll('X', '_')`, `="a_b_"`},
		{`'a.b.c'.split('.')`, `=["a","b","c"]`},
		{`'abc'.split()`, `=["abc"]`},
		{`'abc'.split(undefined, 1)`, `=["abc"]`},
		{`'a1b2'.split(/\d/)`, `=["a","b",""]`},
		{`'a1b2'.replace(/\d/g, d => d * 2)`, `="a2b4"`},
		{`'aab'.replace('a', x => x + '!')`, `="a!ab"`},
		{`'abcabc'.lastIndexOf('c')`, `=5`},
		{`'abc'.indexOf('c', 1)`, `=2`},
		{`'nullx'.includes(null)`, `=true`},
		{`/(?<y>\d{4})/.exec('in 2024').groups.y`, `="2024"`},
		{`(10n ** 20n) + ''`, `="100000000000000000000"`},
		{`new Set([1,1,2]).size + new Map([[1,2]]).get(1)`, `=4`},
		{`[1,[2,[3,[4]]]].flat()`, `=[1,2,[3,[4]]]`},
		{`[1,[2,[3,[4]]]].flat(Infinity)`, `=[1,2,3,4]`},
		{`[1,2].flatMap((x, i) => [x, i])`, `=[1,0,2,1]`},
		{`[1].concat(2, [3, [4]])`, `=[1,2,3,[4]]`},
		{`[1,2,3,4].filter(x => x % 2).map(x => x * 2).reduce((a, b) => a + b, 0)`, `=8`},
		{`[1,2,3].reduce((a, b) => a + b)`, `=6`},
		{`[].reduce((a, b) => a + b)`, "runtime"},
		{`[1,2,3,2].lastIndexOf(2)`, `=3`},
		{`[3,1,2].sort((a, b) => a - b).reverse().slice(1)`, `=[2,1]`},
		{`(() => { const a = [1,2,3]; a.splice(1, 1); a.unshift(0); a.shift(); return a })()`, `=[1,3]`},
		{`[1,10,9,,undefined,'b','a',true,null].sort().join('|')`, `="1|10|9|a|b||true||"`},
		{`[{toString: () => 'b'}, 'c', [0], 10n].toSorted().map(String)`, `=["0","10","b","c"]`},
		{`[Symbol("x"), {}].sort()`, "runtime"},
		{`[1,2].sort(1)`, "runtime"},
		{`(() => { const s = 'x'.repeat(2000), a = ['a', s, , s + 'b', s]; return [a.indexOf(s), a.lastIndexOf(s), a.includes(s), a.indexOf(s, 2), a.lastIndexOf(s, 3), a.includes(s + 'c'), a.indexOf(s, -1)] })()`, `=[1,4,true,4,1,false,4]`},
		{`[[1n, 2n, 1n].lastIndexOf(1n), [1n].includes(1), [NaN].includes(NaN), [,].includes(undefined), [,].indexOf(undefined)]`, `=[2,false,true,true,-1]`},
		{`String([1,[2,3]])`, `="1,2,3"`},
		{`Array.prototype.map.call('ab', c => c + c)`, `=["aa","bb"]`},
		{`(function () { return [].slice.call(arguments, 1) })(1, 2, 3)`, `=[2,3]`},
		{`JSON.parse('{"a":[1]}').a`, `=[1]`},
		{`JSON.stringify({b: 1, a: 2}, ['a'])`, `="{\"a\":2}"`},
		{`JSON.stringify([1], null, 1)`, `="[\n 1\n]"`},
		{"String.raw`a\\n${1}`", `="a\\n1"`},
		{`(class A { static x = 1 }).x`, `=1`},
		{`new (class { constructor() { this.a = 1 } })`, `={"a":1}`},
		{`Reflect`, "runtime"},
		{`eval("1")`, "runtime"},
		{`Function("return 1")()`, "runtime"},
		{`(() => { throw new Error("interrupted") })()`, "runtime"},
		{`(() => { throw new InternalError("interrupted") })()`, "runtime"},
		{`(() => { throw null })()`, "runtime"},
		{`run.outputs["owl"].length > 0`, "runtime"},
		{`run.outputs["owl"] === "ready"`, `=false`},

		// What is JSON and what is not.
		{`10n`, "non_serializable"},
		{`new String("x")`, "non_serializable"},
		{`undefined`, "non_serializable"},
		{`void 0`, "non_serializable"},
		{`(() => 1)`, "non_serializable"},
		{`Symbol("x")`, "non_serializable"},
		{`new Number(1)`, "non_serializable"},
		{`new Boolean(false)`, "non_serializable"},
		{`Object(1n)`, "non_serializable"},
		{`Object(Symbol("x"))`, "non_serializable"},
		{`Object.setPrototypeOf(new String("x"), null)`, "non_serializable"},
		{`Object.setPrototypeOf(new String("x"), Object.prototype)`, "non_serializable"},
		{`Object.assign(new Number(1), {[Symbol.toStringTag]: "Object"})`, "non_serializable"},
		{`{a: [10n]}`, "non_serializable"},
		{`{a: {b: () => 1}}`, "non_serializable"},
		{`[Symbol("x")]`, "non_serializable"},
		{`[[new String("x")]]`, "non_serializable"},
		{`(async () => 1)()`, "non_serializable"},
		{`{a: (async () => 1)()}`, "non_serializable"},
		{`class {}`, "non_serializable"},
		{`(() => { const a = {}; a.a = a; return a })()`, "non_serializable"},
		{`(() => { const a = []; a.push([a]); return a })()`, "non_serializable"},
		{`(() => { const a = {}; return {b: {toJSON: () => a}, c: a} })()`, `={"b":{},"c":{}}`},
		{`(() => { const a = {x: 1}; return [a, a, {a}] })()`, `=[{"x":1},{"x":1},{"a":{"x":1}}]`},
		{`{m: new Map([[1,2]]), n: NaN, z: -0, u: undefined}`, `={"m":{},"n":null,"z":0}`},
		{`new Set([1])`, `={}`},
		{`[undefined, Infinity, -Infinity, -0]`, `=[null,null,null,0]`},
		{`NaN`, `=null`},
		{`-0`, `=0`},
		{`null`, `=null`},
		{`""`, `=""`},
		{`1e21`, `=1e+21`},
		{`0.1 + 0.2`, `=0.30000000000000004`},
		{`{toJSON() { return {a: 1} }}`, `={"a":1}`},
		{`{toJSON() { return undefined }}`, "non_serializable"},
		{`{get a() { return 1 }}`, `={"a":1}`},
		{`{get a() { throw new Error("x") }}`, "runtime"},
		{`{toJSON() { throw 1 }}`, "runtime"},
		{`Object.create({a: 1})`, `={}`},
		{`Object.create(null)`, `={}`},
		{`{["__proto__"]: 1}`, `={"__proto__":1}`},
		{`{[Symbol("s")]: 1, a: 1}`, `={"a":1}`},
		{`/x/`, `={}`},
		{`new Error("x")`, `={}`},
		{`"\ud800"`, `="\ud800"`},
		{`"\u2028<&>"`, "=\"\u2028<&>\""},
		{`(() => { let a = 1; for (let i = 0; i < 64; i++) a = [a]; return a })()`, "=" + strings.Repeat("[", 64) + "1" + strings.Repeat("]", 64)},
		{`(() => { let a = 1; for (let i = 0; i < 65; i++) a = [a]; return a })()`, "non_serializable"},
		{`'x'.repeat(2**20 - 1)`, "memory"},
		{`'x'.repeat(2**20 - 2).length`, `=1048574`},

		// What an expression replaces changes nothing but its own view.
		{`(() => { JSON.stringify = () => '"no"'; return 1 })()`, `=1`},
		{`(() => { JSON.stringify = null; Object.prototype.toString = null; Array.isArray = null; return [{a: 1}] })()`, `=[{"a":1}]`},
		{`(() => { Object.defineProperty(Array.prototype, '0', {set() {}}); return [{a: [1]}] })()`, `=[{"a":[1]}]`},
		{`(() => { Object.prototype.toJSON = () => 1; return {a: 2} })()`, `=1`},
		{`(() => { const f = Object.getPrototypeOf(() => 1); f.call = f.apply = null; return new String("x") })()`, "non_serializable"},
		{`(() => { String.prototype.valueOf = () => { throw 1 }; return [new String("x")] })()`, "non_serializable"},
		{`(() => { Object.prototype.get = 1; Object.prototype.value = 2; return [1].map(x => x) })()`, `=[1]`},
		{`Object.prototype.polluted = 1`, `=1`},
		{`({}).polluted === undefined`, `=true`},
	}
	for _, tt := range tests {
		value, err := s.Eval(t.Context(), tt.source, sample())
		if got := brief(t, value, err); got != tt.want {
			t.Errorf("Eval(%.120s) = %.120s, want %.120s", tt.source, got, tt.want)
		}
	}
	if value, err := s.Eval(t.Context(), `'x'.repeat(2**20 - 2)`, sample()); err != nil || len(value) != maxResult {
		t.Errorf("Eval of the largest result = %d bytes, %v, want %d", len(value), err, maxResult)
	}
}

func TestEvalBranches(t *testing.T) {
	t.Parallel()
	s, scope := patient(t, 0), sample()
	scope.Branches = json.RawMessage(`[{"k":1,"only":"a"},{"k":2}]`)
	for _, tt := range []struct{ source, want string }{
		{`{ n: branches.length, last: branches[1].k, byId: run.outputs["z-first"].k }`, `={"n":2,"last":2,"byId":1}`},
		{`branches.push(1)`, "runtime"},
		{`branches[0].k = 2`, "runtime"},
		{`branches = []`, "runtime"},
		{"{ n: branches.length } # note", "syntax"},
	} {
		value, err := s.Eval(t.Context(), tt.source, scope)
		if got := brief(t, value, err); got != tt.want {
			t.Errorf("Eval(%s) = %s, want %s", tt.source, got, tt.want)
		}
	}
}

func TestSelect(t *testing.T) {
	t.Parallel()
	s := patient(t, 0)
	for _, tt := range []struct{ source, want string }{
		{`1`, `=1`},
		{`true`, `=true`},
		{`"teal"`, `="teal"`},
		{`NaN`, `=null`},
		{`-0`, `=0`},
		{`inputs.count > 2`, `=true`},
		{`({})`, "result_type"},
		{`[]`, "result_type"},
		{`null`, "result_type"},
		{`undefined`, "result_type"},
		{`1n`, "result_type"},
		{`new Boolean(true)`, "result_type"},
		{`({toJSON: () => true})`, "result_type"},
		{`() => 1`, "result_type"},
		{`run.outputs["owl"].length > 0`, "runtime"},
		{`#`, "syntax"},
	} {
		value, err := s.Select(t.Context(), tt.source, sample())
		if got := brief(t, value, err); got != tt.want {
			t.Errorf("Select(%s) = %s, want %s", tt.source, got, tt.want)
		}
	}
}

func TestTruthy(t *testing.T) {
	t.Parallel()
	s := patient(t, 0)
	for _, tt := range []struct{ source, want string }{
		{`run.outputs["a-second"].note`, "=false"},
		{`!run.outputs["a-second"].note`, "=true"},
		{`undefined`, "=false"},
		{`run.outputs.ghost`, "=false"},
		{`null`, "=false"},
		{`0n`, "=false"},
		{`NaN`, "=false"},
		{`"false"`, "=true"},
		{`[]`, "=true"},
		{`() => 1`, "=true"},
		{`new Boolean(false)`, "=true"},
		{`run.outputs.ghost.note`, "runtime"},
	} {
		truthy, err := s.Truthy(t.Context(), tt.source, sample())
		if got := brief(t, strconv.AppendBool(nil, truthy), err); got != tt.want {
			t.Errorf("Truthy(%s) = %s, want %s", tt.source, got, tt.want)
		}
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	s := patient(t, 0)
	s.timeout = 50 * time.Millisecond
	_, err := s.Eval(t.Context(), `(() => { for(;;){} })()`, Scope{})
	if got := brief(t, nil, err); got != ReasonTimeout {
		t.Errorf("Eval of an endless loop = %s, want %s", got, ReasonTimeout)
	}
	if e := (&Error{ReasonTimeout}); !e.Retryable() {
		t.Error("a timeout is not retryable, want retryable")
	}
	for _, reason := range []string{ReasonSyntax, ReasonRuntime, ReasonResultType, ReasonNonSerializable, ReasonMemory, ReasonStack, ReasonScope} {
		if e := (&Error{reason}); e.Retryable() {
			t.Errorf("%s is retryable, want not", reason)
		}
	}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	for _, source := range []string{`1`, `{a: 1}`, `(() => { for(;;){} })()`, `undeclared.x`} {
		if err := Compile(source); err != nil {
			t.Errorf("Compile(%s) = %v, want nil", source, err)
		}
	}
	for _, source := range []string{``, `1 +`, `1; 2`, `1) + (2`, `# x`} {
		if got := brief(t, nil, Compile(source)); got != ReasonSyntax {
			t.Errorf("Compile(%s) = %s, want %s", source, got, ReasonSyntax)
		}
	}
}
