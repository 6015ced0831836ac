package workflows

import (
	"slices"
	"testing"
)

// A file is given when its path comes from whoever calls, or from what ran.
func TestReadsGiven(t *testing.T) {
	t.Parallel()
	template := func(src string) *Template {
		t.Helper()
		parsed, err := parseTemplate(src)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	field := func(src string) Field { return Field{Template: template(src)} }
	w := &Workflow{Context: []ContextEntry{
		{Key: "fixed", Value: field("README.md")},
		{Key: "given", Value: field("{{ inputs.path }}")},
		{Key: "through", Value: field("docs/{{ ctx.given }}")},
		{Key: "apart", Value: field("docs/{{ ctx.fixed }}")},
	}}
	for src, want := range map[string]bool{
		"no reference":                               false,
		"{{ inputs.path }}":                          false,
		"{{ inputs.path | read_file }}":              true,
		`{{ run.outputs["a"] | read_file }}`:         true,
		"{{ ctx.fixed | read_file }}":                false,
		"{{ ctx.apart | read_file }}":                false,
		"{{ ctx.given | read_file }}":                true,
		"{{ ctx.through | read_file }}":              true,
		"{{ ctx.variable | read_file }}":             false,
		"{{ inputs.a }} {{ ctx.fixed | read_file }}": false,
	} {
		if got := w.ReadsGiven(template(src)); got != want {
			t.Errorf("ReadsGiven(%s) = %t, want %t", src, got, want)
		}
	}
	if w.ReadsGiven(nil) {
		t.Error("ReadsGiven(nil) = true")
	}
}

func TestTemplateOutputs(t *testing.T) {
	t.Parallel()
	parsed, err := parseTemplate(`Deploy {{ run.outputs["plan"].target }} of {{ inputs.x }}: {{ run.outputs["review"] }}, {{ run.outputs["plan"].steps | json }}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := parsed.Outputs(), []string{"plan", "review"}; !slices.Equal(got, want) {
		t.Errorf("Outputs() = %q, want %q", got, want)
	}
}
