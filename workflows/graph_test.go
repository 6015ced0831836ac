package workflows

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func goodFile(t *testing.T, name string) *Workflow {
	t.Helper()
	src, err := os.ReadFile("testdata/good/" + name + ".relavium.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, src)
}

func arrows(edges []Edge) []string {
	out := []string{}
	for _, e := range edges {
		arrow := " -> "
		switch {
		case e.Data:
			arrow = " ~> "
		case e.Routed:
			arrow = " => "
		}
		text := e.From + arrow + e.To
		if e.Condition != "" {
			text += " if " + e.Condition
		}
		if e.Label != "" {
			text += " (" + e.Label + ")"
		}
		out = append(out, text)
	}
	return out
}

func TestEdges(t *testing.T) {
	t.Parallel()
	w := goodFile(t, "graph")
	want := []string{
		"in -> split", "in -> aside", "aside -> join", "quick -> join", "slow -> slower", "slower -> join",
		`join -> which if run.outputs["join"].length (any)`, "split -> slow if inputs.slow", "which => p (seven)", "which => q",
		"p -> best", "q -> best", "r -> best", "best -> whole", "whole -> out",
		"split -> quick", "which => r", "slow ~> p",
	}
	if diff := cmp.Diff(want, arrows(w.Edges)); diff != "" {
		t.Errorf("Edges (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"which => p (seven)", "slow ~> p"}, arrows(w.In("p"))); diff != "" {
		t.Errorf("In(p) (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"which => p (seven)", "which => q", "which => r"}, arrows(w.Out("which"))); diff != "" {
		t.Errorf("Out(which) (-want +got):\n%s", diff)
	}
	if got := w.In("in"); len(got) > 0 {
		t.Errorf("In(in) = %v, want none", got)
	}
}

func TestTopological(t *testing.T) {
	t.Parallel()
	w := goodFile(t, "graph")
	want := "in split quick slow slower aside join which p q r best whole out"
	if got := strings.Join(w.Topological(), " "); got != want {
		t.Errorf("Topological() = %s, want %s", got, want)
	}
	if got := strings.Join(w.Ancestors("which"), " "); got != "in split quick slow slower aside join" {
		t.Errorf("Ancestors(which) = %s, want all before it", got)
	}
	if got := w.Ancestors("in"); len(got) > 0 {
		t.Errorf("Ancestors(in) = %v, want none", got)
	}
	if n, ok := w.Node("which"); !ok || n.ID != "which" || n.Type() != "condition" {
		t.Errorf("Node(which) = %v, %v, want the condition", n, ok)
	}
	if _, ok := w.Node("ghost"); ok {
		t.Error("Node(ghost) is found, want not")
	}
}

// A prompt, a gate's texts and an agent's own prompt order nodes; expressions do not.
func TestDataEdges(t *testing.T) {
	t.Parallel()
	w := goodFile(t, "agents")
	want := []string{"in -> count", "count -> sail (then)", "plan ~> count", "in ~> plan"}
	if diff := cmp.Diff(want, arrows(w.Edges)); diff != "" {
		t.Errorf("Edges (-want +got):\n%s", diff)
	}
	w = parse(t, fragment(`nodes:
  - {id: c, type: condition, expression: 'run.outputs["owl"]', branches: [{when: true, target_node: out}]}
  - {id: owl, type: transform, transform: '1'}
  - {id: out, type: output}
edges: []`))
	if diff := cmp.Diff([]string{"c => out"}, arrows(w.Edges)); diff != "" {
		t.Errorf("Edges of an expression (-want +got):\n%s", diff)
	}
}

func TestEdgesOfOnePairAreUnited(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ edges, want string }{
		{"{from: a, to: b}, {from: a, to: b}", "a -> b"},
		{"{from: a, to: b, condition: x}, {from: a, to: b}", "a -> b"},
		{"{from: a, to: b, condition: x}, {from: a, to: b, condition: x, label: l}", "a -> b if x (l)"},
		{"{from: a, to: b, condition: x}, {from: a, to: b, condition: y}", "a -> b if (x\n) || (y\n)"},
	} {
		w := parse(t, fragment("nodes: [{id: a, type: input}, {id: b, type: output}]\nedges: ["+tt.edges+"]"))
		if diff := cmp.Diff([]string{tt.want}, arrows(w.Edges)); diff != "" {
			t.Errorf("Edges of %s (-want +got):\n%s", tt.edges, diff)
		}
	}
}

func TestMergeOrder(t *testing.T) {
	t.Parallel()
	w := goodFile(t, "graph")
	for id, want := range map[string]string{
		"join": "slower quick aside", // the branches of split, as split lists them
		"best": "p q r",
		"in":   "",
	} {
		if got := strings.Join(w.MergeOrder(id), " "); got != want {
			t.Errorf("MergeOrder(%s) = %s, want %s", id, got, want)
		}
	}
	step := func(ids ...string) string {
		out := ""
		for _, id := range ids {
			out += "  - {id: " + id + ", type: transform, transform: '1'}\n"
		}
		return out
	}
	nested := parse(t, fragment("nodes:\n"+step("y", "x1", "x2")+`  - {id: outer, type: parallel, parallel_of: [inner, y]}
  - {id: inner, type: parallel, parallel_of: [x2, x1]}
  - {id: one, type: merge, merge_strategy: concat}
  - {id: all, type: merge, merge_strategy: concat}
  - {id: two, type: parallel, parallel_of: [b, a]}
  - {id: three, type: parallel, parallel_of: [d, c]}
`+step("a", "b", "c", "d")+`  - {id: both, type: merge, merge_strategy: concat}
edges:
  - {from: x1, to: one}
  - {from: x2, to: one}
  - {from: y, to: all}
  - {from: one, to: all}
  - {from: a, to: both}
  - {from: c, to: both}
  - {from: b, to: both}
  - {from: d, to: both}`))
	for id, want := range map[string]string{
		"one":  "x2 x1",
		"all":  "one y",
		"both": "a c b d", // two parallels: as authored
	} {
		if got := strings.Join(nested.MergeOrder(id), " "); got != want {
			t.Errorf("MergeOrder(%s) = %s, want %s", id, got, want)
		}
	}
}

func TestHasGate(t *testing.T) {
	t.Parallel()
	if goodFile(t, "minimal").HasGate() {
		t.Error("HasGate() of a workflow without gates = true, want false")
	}
	if !goodFile(t, "graph").HasGate() {
		t.Error("HasGate() of a workflow with gates = false, want true")
	}
}

// Branch values are told apart as === does, and handles name their text.
func TestWhenText(t *testing.T) {
	t.Parallel()
	for when, want := range map[string]string{
		"true": "true", `"true"`: "true", "7": "7", "7.0": "7", "70e-1": "7", "-0": "0", "0.5": "0.5", "1e21": "1e+21", "1e20": "100000000000000000000",
	} {
		if got := whenText([]byte(when)); got != want {
			t.Errorf("whenText(%s) = %s, want %s", when, got, want)
		}
	}
	if whenIdentity([]byte("7")) != whenIdentity([]byte("7.0")) || whenIdentity([]byte("7")) == whenIdentity([]byte(`"7"`)) {
		t.Error("whenIdentity does not follow ===")
	}
}

// Long graphs and long cycles take no more than linear work.
func TestLongGraphs(t *testing.T) {
	t.Parallel()
	const n = 5000
	var nodes, edges strings.Builder
	for i := range n {
		fmt.Fprintf(&nodes, "  - {id: n%d, type: transform, transform: '1'}\n", i)
		if i > 0 {
			fmt.Fprintf(&edges, "  - {from: n%d, to: n%d}\n", i-1, i)
		}
	}
	w := parse(t, fragment("nodes:\n"+nodes.String()+"edges:\n"+edges.String()))
	if got := len(w.Ancestors(fmt.Sprintf("n%d", n-1))); got != n-1 {
		t.Errorf("Ancestors of the last of %d nodes = %d, want %d", n, got, n-1)
	}
	_, _, err := Parse("f", fragment("nodes:\n"+nodes.String()+"edges:\n"+edges.String()+fmt.Sprintf("  - {from: n%d, to: n0}", n-1)), Options{})
	if diff := cmp.Diff([]string{"P70"}, rules(t, err)); diff != "" {
		t.Errorf("rules of a long cycle (-want +got):\n%s", diff)
	}
	if len(err.Error()) > 1000 {
		t.Errorf("message of a long cycle has %d bytes, want fewer", len(err.Error()))
	}
}

// Files that make naive checks quadratic are checked in time.
func TestHostileGraphs(t *testing.T) {
	t.Parallel()
	many := func(n int, of func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(of(i))
		}
		return b.String()
	}
	const n = 8000
	for name, src := range map[string]string{
		"context chain": "inputs: [{name: pin, type: secret}]\ncontext:\n" + many(n, func(i int) string {
			return fmt.Sprintf("  - {key: c%d, value: '{{ctx.c%d}}'}\n", i, i+1)
		}) + fmt.Sprintf("  - {key: c%d, value: '{{inputs.pin}}'}\n", n),
		"unknown endpoints": "nodes: [" + many(n, func(i int) string { return fmt.Sprintf("{id: n%d, type: input}, ", i) }) + "]\nedges: [" +
			many(n, func(i int) string { return fmt.Sprintf("{from: n%d, to: m%d}, ", i, i) }) + "]",
		"handles": "nodes: [{id: o, type: output}, {id: c, type: condition, expression: '1', branches: [" +
			many(n, func(i int) string { return fmt.Sprintf("{when: %d, target_node: o}, ", i) }) + "]}]\nedges: [" +
			many(n, func(i int) string { return fmt.Sprintf("{from: 'c:%d', to: o}, ", i) }) + "]",
		"cycles": "nodes: [" + many(n, func(i int) string { return fmt.Sprintf("{id: n%d, type: input}, ", i) }) + "]\nedges: [" +
			many(n, func(i int) string { return fmt.Sprintf("{from: n%d, to: n%d}, {from: n%d, to: n0}, ", i, (i+1)%n, i) }) + "]",
		"long prompt": "agents: [{id: a, provider: openai, model: m, system_prompt: '" + strings.Repeat("{{ x ", 40_000) + "}}'}]\nnodes: [" +
			many(n, func(i int) string { return fmt.Sprintf("{id: n%d, type: agent, agent_ref: a}, ", i) }) + "]\nedges: []",
		"schemas": "nodes: [" + many(n, func(i int) string {
			return fmt.Sprintf("{id: n%d, type: transform, transform: '1', output_schema: {const: %d}}, ", i, i)
		}) + "]\nedges: []",
	} {
		begin := time.Now()
		_, _, err := Parse("f", fragment(src), Options{})
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("Parse(%s) took %v", name, took)
		}
		if wantError := name != "context chain" && name != "long prompt" && name != "handles"; (err != nil) != wantError {
			t.Errorf("Parse(%s) = %v, want an error is %v", name, err, wantError)
		}
		t.Logf("%s: %v", name, time.Since(begin))
	}
}
