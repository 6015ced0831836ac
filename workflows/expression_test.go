package workflows

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Expressions know where they stand, also behind wide characters and in blocks.
func TestExpressions(t *testing.T) {
	t.Parallel()
	const src = `schema_version: '1.0'
workflow:
  id: places
  nodes:
    - {id: in, type: input}
    - {id: pick, label: "ä😀", type: condition, expression: 'inputs', branches: [{when: true, target_node: t}], default: s}
    - id: t
      type: transform
      transform: 1;2
    - id: s
      type: transform
      transform: |
        ({
          a: 1,
        })
    - {id: m, type: merge, merge_strategy: custom, merge_fn: branches}
    - {id: n, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges:
    - {from: in, to: pick}
    - {from: t, to: m, condition: 'ctx'}
    - {from: s, to: n}
    - {from: m, to: out}
    - {from: n, to: out}
`
	w, _, err := Parse("places.relavium.yaml", []byte(src), Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Expression{
		{"workflow.nodes[1].expression", 6, 60, "inputs"},
		{"workflow.nodes[2].transform", 9, 18, "1;2"},
		{"workflow.nodes[3].transform", 12, 18, "({\n  a: 1,\n})\n"},
		{"workflow.nodes[4].merge_fn", 16, 62, "branches"},
		{"workflow.edges[1].condition", 21, 35, "ctx"},
	}
	if diff := cmp.Diff(want, w.Expressions()); diff != "" {
		t.Errorf("Expressions() (-want +got):\n%s", diff)
	}
}
