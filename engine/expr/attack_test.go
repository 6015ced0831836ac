package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const attackEnv = "RELAVIUM_EXPR_ATTACK"

// An attack runs in a process of its own, because what it may break is the process.
type attack struct {
	name   string
	source string
	want   string // the value, or the reasons that are right, separated by |
}

func attacks() []attack {
	return []attack{
		{"endless loop", `(()=>{while(true){}})()`, "timeout"},
		{"endless loop in finally", `(()=>{for(;;){try{for(;;){}}finally{continue}}})()`, "timeout"},
		{"endless loop in catch", `(()=>{for(;;)try{for(;;);}catch(e){}})()`, "timeout"},
		{"labels", `(()=>{a:for(;;){b:for(;;){continue a}}})()`, "timeout"},
		{"sort callback", `[3,2,1].sort(()=>{while(true){}})`, "timeout"},
		{"replace callback", `'aaa'.replace(/a/g,()=>{for(;;);})`, "timeout"},
		{"iterator", `[...{[Symbol.iterator](){return {next:()=>({done:false})}}}]`, "timeout|memory"},
		{"generator", `[...(function*(){for(;;)yield 1})()]`, "timeout|memory"},
		{"destructuring an endless generator", `(([...a])=>a)((function*(){for(;;)yield})())`, "timeout|memory"},
		{"getter of the result", `({get a(){while(true){}}})`, "timeout"},
		{"toJSON of the result", `({toJSON(){while(true){}}})`, "timeout"},
		{"toStringTag of the result", `({get [Symbol.toStringTag](){for(;;);}})`, "timeout"},
		{"valueOf", `+{valueOf(){for(;;);}}`, "timeout"},
		{"toString of what is thrown", `(()=>{throw {toString(){for(;;);}}})()`, "runtime"},
		{"message of what is thrown", `(()=>{throw {get message(){for(;;);}}})()`, "runtime"},
		{"stack of what is thrown", `(()=>{const e=new Error;Object.defineProperty(e,'stack',{get(){for(;;);}});throw e})()`, "runtime"},
		{"prepareStackTrace", `(()=>{Error.prepareStackTrace=()=>{for(;;);};return new Error('x').stack.length>=0})()`, "=true"},
		{"repeat", `'x'.repeat(2**30).length`, "runtime|memory"},
		{"repeat below the limit", `'x'.repeat(2**28).length`, "memory|runtime"},
		{"padEnd", `'x'.padEnd(2**30).length`, "runtime|memory"},
		{"string doubling", `[...Array(34)].reduce(s=>s+s,'xxxxxxxx').length`, "memory|runtime"},
		{"rope, then flattened", `[...Array(26)].reduce(s=>s+s,'xxxxxxxx').at(-1)`, "memory|runtime"},
		{"deep rope", `(()=>{let s='';for(let i=0;i<1e6;i++)s='ab'+s+'cd';return s.length})()`, "=4000000|memory|timeout"},
		{"template bomb", "(()=>{let s='xxxxxxxxxxxxxxxx';for(let i=0;i<40;i++)s=`${s}${s}`;return s.length})()", "memory|runtime"},
		{"String.raw bomb", `String.raw({raw:{length:2**31,0:'x'}},...Array(5))`, "runtime"},
		{"join bomb", `Array(2**20).fill('x'.repeat(2**12)).join('').length`, "memory|runtime|timeout"},
		{"join of a sparse array", `(()=>{const a=[];a.length=2**32-1;return a.join('')})()`, "runtime"},
		{"push", `(()=>{let a=[];while(true)a.push(a.length)})()`, "memory|timeout"},
		{"fill", `new Array(2**28).fill(0).length`, "runtime"},
		{"array doubling", `(()=>{let a=[1];for(;;)a=a.concat(a)})()`, "memory|timeout"},
		{"spread doubling", `(()=>{let a=[1];for(;;)a=[...a,...a]})()`, "memory|timeout"},
		{"memory that is caught", `(()=>{for(;;){try{let a=[];for(;;)a.push({})}catch(e){}}})()`, "timeout|memory"},
		{"sparse array as result", `(()=>{const a=[];a[2**31]=1;return a})()`, "memory|timeout"},
		{"sparse array sorted", `(()=>{const a=[];a[2**32-2]=1;return a.sort().length})()`, "runtime"},
		{"sparse array searched", `(()=>{const a=[];a.length=2**32-1;return a.indexOf(1)})()`, "runtime"},
		{"array-like of 2^53", `Array.prototype.reverse.call({length:2**53-1})`, "runtime"},
		{"array-like includes", `Array.prototype.includes.call({length:2**53-1},1)`, "runtime"},
		{"Array.from length", `Array.from({length:2**32}).length`, "runtime|memory|timeout"},
		{"flat of itself", `(()=>{const a=[1];for(let i=0;i<30;i++)a.push(a);return a.flat(Infinity).length})()`, "timeout|memory|stack"},
		{"bigint power", `(2n**(2n**33n)).toString().length`, "runtime|memory"},
		{"bigint digits", `(2n**20000000n).toString().length`, "timeout|memory|runtime"},
		{"bigint squaring", `(()=>{let a=3n;for(;;)a=a*a})()`, "timeout|memory|runtime"},
		{"bigint parse", `BigInt('9'.repeat(2**22))%7n===0n`, "timeout|memory|runtime|=false|=true"},
		{"array buffer", `new ArrayBuffer(2**31).byteLength`, "runtime|memory"},
		{"array buffer resize", `(()=>{const b=new ArrayBuffer(8,{maxByteLength:2**30});b.resize(2**29);return b.byteLength})()`, "runtime|memory"},
		{"typed array", `new Float64Array(2**27).length`, "runtime|memory"},
		{"recursion", `(function f(){return f()+1})()`, "stack"},
		{"recursion that is caught", `(function f(){try{return f()}catch(e){return f()}})()`, "timeout|stack"},
		{"recursion through sort", `(function f(){return [2,1].sort(f)})()`, "stack"},
		{"recursion through toString", `(()=>{const o={toString(){return ''+o}};return ''+o})()`, "stack"},
		{"recursion through a getter", `(()=>{const o={get a(){return o.a}};return o.a})()`, "stack"},
		{"recursion through bind", `(()=>{let f=()=>1;for(let i=0;i<1e5;i++)f=f.bind();return f()})()`, "stack|memory"},
		{"recursion through replace", `(function f(){return 'a'.replace(/a/,f)})()`, "stack"},
		{"recursion through JSON", `(function f(){return JSON.stringify({toJSON:f})})()`, "stack"},
		{"recursion through JSON.parse", `(function f(){return JSON.parse('[1]',f)})()`, "stack|runtime"},
		{"recursion through class fields", `(()=>{class A{x=new A};return new A})()`, "stack"},
		{"recursion through spread", `(function f(){return [...{[Symbol.iterator]:f}]})()`, "stack"},
		{"deep result", `(()=>{let o={};let p=o;for(let i=0;i<1e5;i++){p.a={};p=p.a}return o})()`, "non_serializable"},
		{"deep array", `(()=>{let a=[];for(let i=0;i<1e5;i++)a=[a];return a})()`, "non_serializable"},
		{"deep array joined", `(()=>{let a=[];for(let i=0;i<1e5;i++)a=[a];return ''+a})()`, "stack"},
		{"deep array flattened", `(()=>{let a=[];for(let i=0;i<1e5;i++)a=[a];return a.flat(Infinity).length})()`, "stack"},
		{"deep value stringified", `(()=>{let a=[];for(let i=0;i<1e5;i++)a=[a];return JSON.stringify(a)})()`, "stack"},
		{"deep text parsed", `JSON.parse('['.repeat(1e6)).length`, "stack|runtime"},
		{"deep prototype chain", `(()=>{let o={};for(let i=0;i<2e5;i++)o=Object.create(o);return o.x===undefined})()`, "=true|memory|timeout"},
		{"deep scope chain freed", `(()=>{let f=null;for(let i=0;i<1e5;i++){const g=f;f=()=>g}return 1})()`, "=1|memory|timeout"},
		{"deep list freed", `(()=>{let l=null;for(let i=0;i<2e5;i++)l={l};return 1})()`, "=1|memory|timeout"},
		{"deep map freed", `(()=>{let l=null;for(let i=0;i<1e5;i++)l=new Map([[1,l]]);return 1})()`, "=1|memory|timeout"},
		{"nested brackets", strings.Repeat("[", 15_000) + strings.Repeat("]", 15_000), "syntax"},
		{"nested parentheses", strings.Repeat("(", 15_000) + "1" + strings.Repeat(")", 15_000), "syntax"},
		{"nested braces", strings.Repeat("{a:", 10_000) + "1" + strings.Repeat("}", 5_000), "syntax"},
		{"nested arrows", strings.Repeat("()=>", 8_000) + "1", "syntax|non_serializable"},
		{"nested functions", strings.Repeat("()=>{", 5_000) + strings.Repeat("}", 5_000), "syntax|non_serializable"},
		{"nested templates", strings.Repeat("`${", 8_000) + "1" + strings.Repeat("}`", 8_000), "syntax"},
		{"nested unary", strings.Repeat("!", 32_000) + "1", "syntax|=true|=false"},
		{"nested new", strings.Repeat("new ", 8_000) + "Array", "syntax|runtime|stack"},
		{"nested conditions", strings.Repeat("1?", 8_000) + "1" + strings.Repeat(":1", 8_000-1), "syntax"},
		{"nested power", strings.Repeat("1**", 10_000) + "1", "syntax|=1"},
		{"nested assignment", "(()=>{let a;return " + strings.Repeat("a=", 16_000) + "1})()", "syntax|=1"},
		{"nested optional calls", "(x=>x" + strings.Repeat("?.a", 10_000) + ")(null)", "=null|syntax|non_serializable"},
		{"nested regexp", "/" + strings.Repeat("(", 15_000) + strings.Repeat(")", 15_000) + "/.test('')", "syntax"},
		{"nested regexp built", `'x'.match('('.repeat(5e4)+')'.repeat(5e4))`, "runtime|stack|memory"},
		{"nested brackets before a long list", strings.Repeat("(", 400) + strings.Repeat("[1],", 7_500) + "1" + strings.Repeat(")", 400), "=1|syntax"},
		{"backtracking", `/^(a+)+$/.test('a'.repeat(40)+'b')`, "timeout|memory"},
		{"backtracking in a look-ahead", `/^(?=(a+)+$)/.test('a'.repeat(40)+'b')`, "timeout|memory"},
		{"backtracking in a look-behind", `/(?<=^(a+)+)c/.test('a'.repeat(40)+'b')`, "timeout|memory|=false"},
		{"backtracking through references", `/^(a*)*\1*b$/.test('a'.repeat(60))`, "timeout|memory|=false"},
		{"backtracking in split", `('a'.repeat(40)+'b').split(/(a+)+c/).length`, "timeout|memory|=1"},
		{"large quantifier", `/(?:a{1000}){1000}b/.test('a'.repeat(1e5))`, "timeout|memory|runtime|syntax|=false"},
		{"large quantifier built", `'a'.search('(((a{9999}){9999}){9999}){9999}')`, "timeout|memory|runtime|=-1"},
		{"Function through constructor", `({}).constructor.constructor('return typeof globalThis')()`, "runtime"},
		{"Function through an arrow", `(()=>{}).constructor('return 1+1')()`, "runtime"},
		{"pollution", `Object.prototype.polluted = 1`, "=1"},
		{"species", `(()=>{class A extends Array{static get [Symbol.species](){return function(){for(;;);}}};return new A(1,2,3).map(x=>x)})()`, "timeout"},
		{"reviver", `JSON.parse('[1,2,3]',function(k,v){this.length=2**32-1;return v}).length`, "timeout|memory|=4294967295"},
		{"callee", `(function(){return arguments.callee})()`, "runtime"},
		{"async loop", `(async()=>{for(;;);})()`, "timeout|non_serializable"},
		{"await", `(async()=>{for(;;)await 1})()`, "non_serializable"},
		{"import", `import('fs')`, "non_serializable|runtime|syntax"},
		{"thenable", `({then(f){for(;;);}})`, "non_serializable"},
		{"Array.fromAsync", `typeof Array.fromAsync`, `="undefined"`},
		{"sum", `Math.sumPrecise({[Symbol.iterator]:()=>({next:()=>({done:false,value:1})})})`, "timeout"},
		{"normalize", `'\u0344'.repeat(2**20).normalize('NFD').length`, "memory|timeout|runtime|=2097152"},
		{"case", `'\u0390'.repeat(2**22).toUpperCase().length`, "memory|timeout|runtime|=12582912"},
		{"locale compare", `'a'.repeat(2**22).localeCompare('a'.repeat(2**22)+'b')`, "=-1|memory|timeout"},
		{"slow steps", `(()=>{for(;;)'x'.repeat(1e6).toUpperCase()})()`, "timeout"},
		{"slow steps that are caught", `(()=>{for(;;)try{for(;;)'x'.repeat(1e6).toUpperCase()}catch{}})()`, "timeout"},
		{"slow sort", `(()=>{const a=Array.from({length:3e5},(_,i)=>'k'+(i*7919%300007));for(;;)a.sort()})()`, "timeout|memory"},
		{"slow comparison", `(()=>{const a='x'.repeat(9e6)+'a',b='x'.repeat(9e6)+'b';let n=0;for(;;)if(a===b)n++})()`, "timeout"},
		{"slow order", `(()=>{const a='x'.repeat(9e6)+'a',b='x'.repeat(9e6)+'b';let n=0;for(;;)if(a<b)n++})()`, "timeout"},
		{"slow sort of long strings", `(()=>{const a='x'.repeat(4e6)+'a',b='x'.repeat(4e6)+'b';return Array.from({length:2e5},(_,i)=>i%2?a:b).sort().length})()`, "timeout"},
		{"slow toSorted of long strings", `(()=>{const a='x'.repeat(4e6)+'a',b='x'.repeat(4e6)+'b';return Array.from({length:2e5},(_,i)=>i%2?a:b).toSorted().length})()`, "timeout"},
		{"slow indexOf of a long string", `(()=>{const a='x'.repeat(4e6)+'a',b='x'.repeat(4e6)+'b';return Array(2e5).fill(a).indexOf(b)})()`, "timeout"},
		{"slow includes of a long string", `(()=>{const a='x'.repeat(4e6)+'a',b='x'.repeat(4e6)+'b';return Array(2e5).fill(a).includes(b)})()`, "timeout"},
		{"slow keys", `(()=>{const a='x'.repeat(4e6)+'a';return new Set(Array(2e5).fill(0).map((_,i)=>i%2?a+i:a)).size})()`, "timeout|memory"},
		{"slow switch", `(()=>{const a='x'.repeat(9e6)+'a',b='x'.repeat(9e6)+'b';for(;;)switch(a){case b:}})()`, "timeout"},
		{"slow bigint comparison", `(()=>{const a=3n**600000n,b=a+1n;for(let n=0;;)if(a===b)n++})()`, "timeout"},
		{"slow bigints found", `(()=>{const a=3n**600000n,b=a+1n;return Array(1e6).fill(a).indexOf(b)})()`, "timeout|memory"},
		{"slow bigints sorted", `(()=>{const a=3n**300000n;return Array(1e5).fill(a).sort().length})()`, "=100000|timeout|memory"},
		{"slow bigints joined", `(()=>{const a=3n**300000n;return Array(1e5).fill(a).join().length})()`, "timeout|memory|runtime"},
		{"iterator grouped", `Object.groupBy(Array.prototype.values.call({length:2**53-1}),Boolean)`, "timeout|memory"},
		{"iterator as entries", `Object.fromEntries(Array.prototype.values.call({length:2**53-1}))`, "runtime"},
		{"iterator taken", `Array.prototype.values.call({length:2**53-1}).take(2**50).toArray().length`, "timeout|memory|runtime"},
		{"iterator spread into a call", `Math.max(...Array.prototype.values.call({length:2**53-1}))`, "timeout|memory|runtime"},
		{"array-like copied", `Array.prototype.toSpliced.call({length:2**32},0,1).length`, "runtime|memory"},
		{"array-like replaced", `Array.prototype.with.call({length:2**53-1},0,1).length`, "runtime|memory"},
		{"array from an array-like", `Array.from.call(Object,{length:2**53-1})`, "timeout|memory"},
		{"number of many digits", `Number('9'.repeat(1e7))+parseInt('9'.repeat(1e7))`, "=null|memory|timeout"},
		{"bigint shift", `1n<<(2n**40n)`, "runtime|memory"},
		{"bigint as bits", `BigInt.asUintN(2**53-1,-1n)`, "runtime|memory|non_serializable"},
		{"bigint from hex", `BigInt('0x'+'f'.repeat(4e6))===0n`, "runtime|memory|=false"},
		{"bigint in base 3", `(2n**1000000n).toString(3).length`, "=630930|runtime|timeout"},
		{"encoding", `encodeURIComponent('\u{1F600}'.repeat(1e6)).length`, "=12000000|memory|timeout"},
		{"regexp of a long text", `new RegExp('a'.repeat(4e6)).test('b')`, "=false|memory|timeout|runtime"},
		{"regexp of many branches", `new RegExp('(a|'.repeat(200)+'b'+')'.repeat(200)).test('c'.repeat(1e6))`, "=false|timeout|runtime"},
		{"empty matches", `'a'.repeat(4e6).replace(/(?:)/g,'bc').length`, "memory|timeout"},
		{"empty needle", `'a'.repeat(4e6).replaceAll('','bc').length`, "=12000002|memory|timeout"},
		{"references in a replacement", `'a'.repeat(1e5).replace(/a+/,'$&'.repeat(1e5)).length`, "memory|timeout|runtime"},
		{"slow search", `('a'.repeat(1e7)).indexOf('a'.repeat(5e6)+'b')`, "runtime|memory"},
		{"slow search by split", `'a'.repeat(4e6).split('a'.repeat(2e6)+'b').length`, "runtime|memory"},
		{"slow search through an object", `'a'.repeat(4e6).includes({toString(){return 'a'.repeat(2e6)+'b'}})`, "runtime|memory"},
		{"iterator of an array-like", `new Set(Array.prototype.values.call({length:2**53-1})).size`, "timeout|runtime"},
		{"iterator helper with a builtin", `Array.prototype.values.call({length:2**53-1}).forEach(Boolean)`, "timeout|runtime"},
		{"iterator helper that skips", `Array.prototype.values.call({length:2**53-1}).drop(2**52).next()`, "runtime"},
		{"find with a builtin", `Array.prototype.find.call({length:2**53-1},Boolean)`, "timeout|runtime"},
		{"set operation", `new Set([undefined]).isSupersetOf({size:1,has(){},keys(){return [].values.call({length:2**53-1})}})`, "runtime"},
		{"length with a getter", `(()=>{let n=0;return [].indexOf.call({get length(){return n++?2**53-1:1}},1)})()`, "runtime"},
		{"length with valueOf", `(()=>{let n=0;return [].indexOf.call({length:{valueOf(){return n++?2**53-1:1}}},1)})()`, "runtime"},
		{"length of a function", `(()=>{const f=()=>1;Object.defineProperty(f,'length',{value:2**53-1});return [].indexOf.call(f,1)})()`, "runtime"},
		{"length through the prototype", `[].includes.call(Object.create({length:2**53-1}),1)`, "runtime"},
		{"sparse array concatenated", `(()=>{const a=[];a.length=2**32-1;return [].concat(a).length})()`, "runtime"},
		{"sparse array flattened", `(()=>{const a=[];a.length=2**32-1;return [a].flat().length})()`, "timeout"},
		{"sparse array in a text", "(()=>{const a=[];a.length=2**32-1;return `${a}`})()", "runtime"},
		{"sparse array as property list", `(()=>{const a=[];a.length=2**32-1;return JSON.stringify({},a)})()`, "runtime"},
		{"sparse array spread", `(()=>{const a=[];a.length=2**32-1;return [...a].length})()`, "memory|timeout|runtime"},
		{"sparse array in a set", `(()=>{const a=[];a.length=2**32-1;return new Set(a).size})()`, "memory|timeout"},
		{"sparse array copied", `(()=>{const a=[];a.length=2**32-1;return a.toSorted().length})()`, "memory|runtime"},
		{"sparse array filled by a setter", `(()=>{class A extends Array{};const a=new A(2**32-1);return a.map(x=>x).length})()`, "runtime"},
		{"arguments of 2^32", `Math.max.apply(null,{length:2**32})`, "runtime|memory"},
		{"symbol replace by a builtin", `RegExp.prototype[Symbol.match].call({flags:'g',exec:Object},'x')`, "timeout|memory|runtime"},
		{"captures of 2^53", `RegExp.prototype[Symbol.replace].call({flags:'',exec(){return {length:2**53-1,0:'x',index:0}}},'x','y')`, "timeout|memory|runtime"},
		{"bigint power and text", `(()=>{for(;;)(7n**200000n).toString()})()`, "timeout|runtime"},
		{"bigint division", `(()=>{const a=3n**600000n,b=7n**100000n;for(;;)a/b})()`, "timeout|runtime"},
		{"stringify of a large value", `(()=>{const a=Array.from({length:2e5},(_,i)=>({i}));for(;;)JSON.stringify(a)})()`, "timeout|memory"},
		{"huge result", `'x'.repeat(2**21)`, "memory"},
		{"huge keys", `Object.fromEntries([...Array(1e6).keys()].map(k=>['k'+k,k]))`, "memory|timeout"},
		{"symbols", `(()=>{for(let i=0;;i++)Symbol.for('s'+i)})()`, "memory|timeout"},
		{"shapes", `(()=>{const a=[];for(let i=0;;i++)a.push({['k'+i]:1})})()`, "memory|timeout"},
		{"weak map", `(()=>{const w=new WeakMap;const k=[];for(let i=0;;i++){const o={};k.push(o);w.set(o,o)}})()`, "memory|timeout"},
		{"own limits loosened", `(()=>{try{(function f(){f()})()}catch{};try{let a=[];for(;;)a.push({})}catch{};return 1})()`, "=1|memory|timeout"},
	}
}

// answer is what a child reports.
type answer struct {
	Result  string // the reason, or = and the value
	Elapsed time.Duration
	CPU     time.Duration
	After   string // what the process says to 1+1 then
	PeakMB  int
}

func childAttack(index string) {
	n, err := strconv.Atoi(index)
	if err != nil {
		panic(err)
	}
	limitAddressSpace()
	a, s := attacks()[n], New(1)
	if !slices.Contains(strings.Split(a.want, "|"), ReasonTimeout) {
		s.timeout = time.Minute // what ends it comes first, also on a busy machine
	}
	before := peakMB()
	start := time.Now()
	got := outcome(s, a.source)
	report := answer{Result: got, Elapsed: time.Since(start), CPU: cpuTime(), PeakMB: peakMB() - before}
	s.timeout = time.Minute
	report.After = outcome(s, "1+1")
	if err := json.NewEncoder(os.Stderr).Encode(report); err != nil {
		panic(err)
	}
}

// plainBinary is this test binary without the race detector, under which the
// engine is too slow to tell what an attack does.
func plainBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if slowdown == 1 {
		return exe
	}
	exe = filepath.Join(t.TempDir(), "expr.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-race=false", "-c", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	return exe
}

func TestAttacks(t *testing.T) {
	t.Parallel()
	exe := plainBinary(t)
	for i, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, exe)
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", attackEnv, i))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: the process died: %v\n%.400s", a.name, err, out)
			}
			var got answer
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatalf("answer %q: %v", out, err)
			}
			t.Logf("%s: %.60s in %v, %d MB", a.name, got.Result, got.Elapsed.Round(time.Millisecond), got.PeakMB)
			if want := strings.Split(a.want, "|"); !slices.Contains(want, got.Result) {
				t.Errorf("%s: Eval = %.80s, want one of %v", a.name, got.Result, want)
			}
			// The cap is wall time. The margin is for a builtin that does not
			// look at the clock; on a busy machine the work done counts.
			if most := evalTimeout + 2*time.Second; got.Elapsed > most && got.CPU > most {
				t.Errorf("%s: Eval took %v and %v of a processor, want about %v at most", a.name, got.Elapsed, got.CPU, evalTimeout)
			}
			if got.PeakMB > 160 {
				t.Errorf("Eval raised the peak by %d MB, want at most 160", got.PeakMB)
			}
			if got.After != "=2" {
				t.Errorf("1+1 afterwards = %s, want =2", got.After)
			}
		})
	}
}

// outcome is the result of an expression with a small scope in one word.
func outcome(s *Sandbox, source string) string {
	value, err := s.Eval(testContext(), source, Scope{Inputs: json.RawMessage(`{"n":1}`)})
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	if err != nil {
		return err.Error()
	}
	return "=" + string(value)
}
