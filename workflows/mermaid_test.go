package workflows

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMermaid(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("testdata/good/ring-survey.relavium.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w, _, err := Parse("ring-survey.relavium.yaml", src, Options{})
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	golden := filepath.Join("testdata", "ring-survey.mermaid")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), w.Mermaid()); diff != "" {
		t.Errorf("Mermaid, against %s (-want +got)\n%s", golden, diff)
	}
}

func TestMermaidShapes(t *testing.T) {
	t.Parallel()
	w := &Workflow{
		Nodes: []Node{
			{ID: "in", Spec: InputNode{}},
			{ID: "ask", Label: "Ask me", Spec: AgentNode{}},
			{ID: "route", Spec: ConditionNode{Branches: []Branch{
				{When: json.RawMessage(`true`), Target: "t"},
				{When: json.RawMessage(`"a\"b"`), Target: "t"},
				{When: json.RawMessage(`1.50`), Target: "p"},
			}, Default: "p"}},
			{ID: "t", Spec: TransformNode{}},
			{ID: "p", Spec: ParallelNode{}},
			{ID: "m", Spec: MergeNode{}},
			{ID: "g", Spec: GateNode{}},
			{ID: "out", Spec: OutputNode{}},
		},
		Edges: []Edge{
			{From: "in", To: "ask"},
			{From: "ask", To: "route", Condition: `inputs.a > "1"`, Label: "big"},
			{From: "route", To: "t", Routed: true, Label: "yes"},
			{From: "route", To: "p", Routed: true},
			{From: "in", To: "g", Data: true},
			{From: "g", To: "nowhere"},
		},
	}
	want := strings.Join([]string{
		`flowchart TD`,
		`  n0(["in"])`,
		`  n1["Ask me (ask)"]`,
		`  n2{"route"}`,
		`  n3[["t"]]`,
		`  n4[/"p"\]`,
		`  n5[\"m"/]`,
		`  n6{{"g"}}`,
		`  n7(["out"])`,
		`  n0 --> n1`,
		`  n1 -->|"if inputs.a #62; #34;1#34;, big"| n2`,
		`  n2 -->|"true, #34;a#92;#34;b#34;, yes"| n3`,
		`  n2 -->|"1.50, default"| n4`,
		`  n0 -.-> n6`,
		``,
	}, "\n")
	if diff := cmp.Diff(want, w.Mermaid()); diff != "" {
		t.Errorf("Mermaid (-want +got)\n%s", diff)
	}
}

// Nothing that an author wrote can end a label, start a directive or become markup.
func TestMermaidText(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"", `""`},
		{"plain text, 1.2 (a/b) é", `"plain text, 1.2 (a/b) é"`},
		{`"]; click n0 "javascript:alert(1)"`, `"#34;#93;#59; click n0 #34;javascript:alert(1)#34;"`},
		{"<img src=x onerror=y>", `"#60;img src=x onerror=y#62;"`},
		{"#quot; %%{init: {}}%%", `"#35;quot#59; #37;#37;#123;init: #123;#125;#125;#37;#37;"`},
		{"`**md**`", `"#96;#42;#42;md#42;#42;#96;"`},
		{"a\n  b\r\n\tc", `"a b c"`},
		{"a\u202eb\u0007c\u200bd", `"a b c d"`},
		{"a\xffb", `"a#65533;b"`},
		{strings.Repeat("é", 81), `"` + strings.Repeat("é", 80) + `…"`},
	}
	for _, tt := range tests {
		got := mermaidText(tt.in)
		if got != tt.want {
			t.Errorf("mermaidText(%q) = %s, want %s", tt.in, got, tt.want)
		}
		inside := strings.TrimSuffix(strings.TrimPrefix(got, `"`), `"`)
		if strings.ContainsAny(inside, "\"`<>[]{}|\\%\n\r") {
			t.Errorf("mermaidText(%q) = %s holds a character of Mermaid's", tt.in, got)
		}
	}
}
