package workflows

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testScope() Scope {
	from := func(values map[string]string) func(string) (json.RawMessage, bool) {
		return func(name string) (json.RawMessage, bool) {
			v, ok := values[name]
			return json.RawMessage(v), ok
		}
	}
	return Scope{
		Inputs: from(map[string]string{
			"bird": `"tern"`, "n": `9007199254740993`, "yes": `true`, "none": `null`, "empty": `""`,
			"o": `{"b":{"list":[10,{"x":"deep"}]},"odd key":1,"7":"seven"}`, "file": `"notes.txt"`, "gone": `"gone.txt"`,
			"up": `"../x"`, "env": `"sub/.ENV"`, "bytes": `"bytes.bin"`, "quote": `"say \"hi\""`,
		}),
		Ctx: from(map[string]string{"site": `"a<b & c"`}),
		Output: from(map[string]string{
			"mk":   `{"z": 1, "a": "<&>", "kinds": ["x", "y"]}`,
			"text": `"{\"score\": 1.50}"`,
		}),
		View: from(map[string]string{
			"mk":   `{"z": 1, "a": "<&>", "kinds": ["x", "y"]}`,
			"text": `{"score": 1.50}`,
		}),
		ReadFile: func(path string) ([]byte, error) {
			switch path {
			case "notes.txt":
				return []byte("two\nlines"), nil
			case "bytes.bin":
				return []byte{0xff, 0xfe}, nil
			default:
				return nil, fs.ErrNotExist
			}
		},
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"no references", "plain } }} text", "plain } }} text"},
		{"empty", "", ""},
		{"string verbatim", "a {{ inputs.bird }} b", "a tern b"},
		{"no blanks", "{{inputs.bird}}{{inputs.bird}}", "terntern"},
		{"lines inside", "{{\n\tinputs.bird\r\n|\nlength }}", "4"},
		{"digits kept", "{{ inputs.n }}", "9007199254740993"},
		{"boolean", "{{ inputs.yes }}", "true"},
		{"null is text", "{{ inputs.none }}", "null"},
		{"null is not missing", `{{ inputs.none | default("x") }}`, "null"},
		{"empty is not missing", `[{{ inputs.empty | default("x") }}]`, "[]"},
		{"object", "{{ inputs.o.b }}", `{"list":[10,{"x":"deep"}]}`},
		{"context, not escaped", "{{ ctx.site }}", "a<b & c"},
		{"path", `{{ inputs.o.b.list[1]["x"] }}`, "deep"},
		{"path with a quoted key", `{{ inputs.o['odd key'] }}`, "1"},
		{"index on an object", `{{ inputs.o[7] }}`, "seven"},
		{"json and length", `{{ run.outputs["mk"] | json }} / {{ run.outputs["mk"].kinds | length }}`, `{"z":1,"a":"<&>","kinds":["x","y"]} / 2`},
		{"json of a string", `{{ inputs.quote | json }}`, `"say \"hi\""`},
		{"json, then length", `{{ inputs.bird | json | length }}`, "6"},
		{"length of an object", `{{ run.outputs['mk'] | length }}`, "3"},
		{"bare reference gives the text", `{{ run.outputs["text"] }}`, `{"score": 1.50}`},
		{"path gives the view", `{{ run.outputs["text"].score }}`, "1.50"},
		{"default of a missing node", `Note: {{ run.outputs["ghost"].text | default("none") }}`, "Note: none"},
		{"default of a missing key", `{{ inputs.o.nope | default('a "b" \'c\' \u00e9') }}`, `a "b" 'c' é`},
		{"default of a path below null", `{{ inputs.none.x | default("d") }}`, "d"},
		{"default of a path below text", `{{ inputs.bird.x | default("d") }}`, "d"},
		{"default of an index too far", `{{ inputs.o.b.list[9] | default("") }}`, ""},
		{"default goes on", `{{ inputs.nope | default("abc") | length }}`, "3"},
		{"filters skip what is missing", `{{ inputs.nope | json | length | default("abc") }}`, "abc"},
		{"default is not touched when set", `{{ inputs.bird | default("a") | default("b") }}`, "tern"},
		{"first default wins", `{{ inputs.nope | default("a") | default("b") }}`, "a"},
		{"read_file", "{{ inputs.file | read_file }}", "two\nlines"},
		{"read_file of a default", `{{ inputs.nope | default("notes.txt") | read_file | length }}`, "9"},
		{"stringification does not nest", `{{ ctx.site }}{{ inputs.nope | default("{{ inputs.bird }}") }}`, "a<b & c{{ inputs.bird }}"},
	}
	for _, tt := range tests {
		tmpl, err := parseTemplate(tt.in)
		if err != nil {
			t.Errorf("%s: parseTemplate(%s): %v", tt.name, tt.in, err)
			continue
		}
		if tmpl.Source() != tt.in {
			t.Errorf("%s: Source() = %s, want %s", tt.name, tmpl.Source(), tt.in)
		}
		got, err := tmpl.Render(testScope())
		if err != nil || got != tt.want {
			t.Errorf("%s: Render(%s) = %q, %v, want %q", tt.name, tt.in, got, err, tt.want)
		}
	}
}

func TestRenderUnresolved(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"x {{ inputs.nope }}", "unresolved_reference: inputs.nope"},
		{"{{ ctx.nope | length }}", "unresolved_reference: ctx.nope"},
		{`{{ run.outputs["ghost"] }}`, `unresolved_reference: run.outputs["ghost"]`},
		{`{{ inputs.o.b.list[4]["a b"].c | json }}`, `unresolved_reference: inputs.o.b.list[4]["a b"].c`},
		{"{{ run.id }}", "unresolved_reference: run.id"},
		{"{{ secrets.owl }}", "unresolved_reference: secrets.owl"},
	}
	for _, tt := range tests {
		tmpl := mustTemplate(t, tt.in)
		got, err := tmpl.Render(testScope())
		if _, ok := errors.AsType[*UnresolvedError](err); !ok || err.Error() != tt.want {
			t.Errorf("Render(%s) = %q, %v, want %s", tt.in, got, err, tt.want)
		}
		if got, err := tmpl.Render(Scope{}); err == nil {
			t.Errorf("Render(%s) without a scope = %q, want an error", tt.in, got)
		}
	}
}

func TestRenderRunID(t *testing.T) {
	t.Parallel()
	got, err := mustTemplate(t, "shots/{{ run.id }}/owl.png").Render(Scope{RunID: "r-1"})
	if want := "shots/r-1/owl.png"; err != nil || got != want {
		t.Errorf("Render = %q, %v, want %q", got, err, want)
	}
}

func TestRenderFilterErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"{{ inputs.n | length }}", "inputs.n | length: a value of type number has no length"},
		{"{{ inputs.none | length }}", "inputs.none | length: a value of type null has no length"},
		{"{{ inputs.n | read_file }}", "inputs.n | read_file: the path is of type number, not string"},
		{"{{ inputs.gone | read_file }}", "inputs.gone | read_file: file does not exist"},
		{`{{ inputs.gone | read_file | default("x") }}`, "inputs.gone | read_file: file does not exist"},
		{"{{ inputs.up | read_file }}", "inputs.up | read_file: the path leaves its folder with .."},
		{"{{ inputs.env | read_file }}", "inputs.env | read_file: files like .env may hold credentials and are never read"},
		{"{{ inputs.bytes | read_file }}", "inputs.bytes | read_file: the file is not UTF-8 text"},
	}
	for _, tt := range tests {
		got, err := mustTemplate(t, tt.in).Render(testScope())
		if _, ok := errors.AsType[*FilterError](err); !ok || err.Error() != tt.want {
			t.Errorf("Render(%s) = %q, %v, want %s", tt.in, got, err, tt.want)
		}
	}
	noReader := testScope()
	noReader.ReadFile = nil
	_, err := mustTemplate(t, "{{ inputs.file | read_file }}").Render(noReader)
	if want := "inputs.file | read_file: files cannot be read here"; err == nil || err.Error() != want {
		t.Errorf("Render without a reader: %v, want %s", err, want)
	}
	if _, err := mustTemplate(t, "{{ inputs.gone | read_file }}").Render(testScope()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Render: %v does not wrap fs.ErrNotExist", err)
	}
}

func TestRenderIsBounded(t *testing.T) {
	t.Parallel()
	big := quoteString(strings.Repeat("a", 1<<20))
	s := Scope{Ctx: func(string) (json.RawMessage, bool) { return big, true }}
	if _, err := mustTemplate(t, strings.Repeat("{{ctx.a}}", 4)).Render(s); err != nil {
		t.Errorf("Render of 4 MiB: %v", err)
	}
	if _, err := mustTemplate(t, strings.Repeat("{{ctx.a}}", 4)+"!").Render(s); err == nil {
		t.Error("Render of more than 4 MiB gave no error")
	}
}

func TestParseTemplateErrors(t *testing.T) {
	t.Parallel()
	const known = `; known are inputs.NAME, ctx.NAME, run.outputs["NODE"], run.id and secrets.NAME`
	tests := []struct {
		in     string
		offset int
		want   string
	}{
		{"a {{ inputs.x", 13, "{{ without }}"},
		{"{{", 2, "{{ without }}"},
		{"a {{ }}", 5, "empty reference" + known},
		{"{{ env.HOME }}", 3, "unknown namespace" + known},
		{"{{ nodes.x.output }}", 3, "unknown namespace" + known},
		{"{{ node.output }}", 3, "unknown namespace" + known},
		{"{{ run.name }}", 3, "unknown reference" + known},
		{"{{ run.idx }}", 3, "unknown reference" + known},
		{"{{ run.outputs.x }}", 3, "unknown reference" + known},
		{"{{ inputs. }}", 10, "expected a name of letters, digits, _ and -"},
		{"{{ inputs.a b }}", 12, "expected | and a filter, or }}"},
		{"{{ inputs.a. }}", 12, "expected a name after the dot"},
		{"{{ inputs.a[x] }}", 12, "expected a quoted string"},
		{"{{ inputs.a[-1] }}", 12, "expected a quoted string"},
		{"{{ inputs.a[01] }}", 14, "bad index"},
		{"{{ inputs.a[99999999999999999999] }}", 32, "bad index"},
		{"{{ inputs.a['x }}", 12, "a quoted string without its end"},
		{"{{ inputs.a['\\q'] }}", 12, "bad escape in a quoted string"},
		{`{{ run.outputs["a" }}`, 19, "expected ]"},
		{"{{ run.outputs[a] }}", 15, "expected a quoted string"},
		{"{{ inputs.a | upper }}", 14, `unknown filter; known are read_file, json, length and default("...")`},
		{"{{ inputs.a | }}", 14, `unknown filter; known are read_file, json, length and default("...")`},
		{"{{ inputs.a | default }}", 22, `the filter default needs a quoted string: default("...")`},
		{"{{ inputs.a | default(3) }}", 22, "expected a quoted string"},
		{`{{ inputs.a | default("x" }}`, 26, "expected )"},
		{"{{ inputs.a | json() }}", 18, "the filter json takes no argument"},
		{"{{ secrets.a.b[0] }}", 14, "expected | and a filter, or }}"},
		{"{{ run.id.x }}", 9, "expected | and a filter, or }}"},
		{"ok {{ inputs.a }} {{ inputs.b }", 30, "{{ without }}"},
	}
	for _, tt := range tests {
		_, err := parseTemplate(tt.in)
		parseErr, ok := errors.AsType[*templateError](err)
		if !ok || parseErr.offset != tt.offset || parseErr.what != tt.want {
			t.Errorf("parseTemplate(%s) = %+v, want offset %d: %s", tt.in, parseErr, tt.offset, tt.want)
		}
	}
}

func TestTemplateRefs(t *testing.T) {
	t.Parallel()
	tmpl := mustTemplate(t, `{{ inputs.a.b }} {{ctx.c|json|length}} {{ run.outputs["n-1"].x | default("") }} {{run.id}} {{ secrets.k.v }}`)
	want := []ref{
		{kind: refInputs, name: "a"},
		{kind: refCtx, name: "c", filters: []string{"json", "length"}, offset: 17},
		{kind: refOutput, name: "n-1", filters: []string{"default"}, offset: 39},
		{kind: refRun, name: "id", offset: 80},
		{kind: refSecrets, name: "k.v", offset: 91},
	}
	if diff := cmp.Diff(want, tmpl.refs(), cmp.AllowUnexported(ref{})); diff != "" {
		t.Errorf("refs (-want +got)\n%s", diff)
	}
	if got := mustTemplate(t, "plain").refs(); got != nil {
		t.Errorf("refs of a plain text = %v, want none", got)
	}
}

func mustTemplate(t *testing.T, src string) *Template {
	t.Helper()
	tmpl, err := parseTemplate(src)
	if err != nil {
		t.Fatalf("parseTemplate(%s): %v", src, err)
	}
	return tmpl
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{
		"plain", "{{ inputs.bird }}", `{{ run.outputs["x"].y[0]['z'] | default("\u00e9") | json | length }}`, "{{ run.id }}",
		"{{ secrets.a }}", "{{", "}}{{}}", `{{ inputs.o.b.list[1].x | default('\'') }}`, "{{ inputs.file | read_file }}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := parseTemplate(src)
		if err != nil {
			if e, ok := errors.AsType[*templateError](err); !ok || e.offset < 0 || e.offset > len(src) {
				t.Fatalf("parseTemplate(%q) = %v, want a *templateError inside the text", src, err)
			}
			return
		}
		refs := tmpl.refs()
		text, err := tmpl.Render(Scope{})
		if !strings.Contains(src, "{{") && (err != nil || text != src || len(refs) > 0) {
			t.Fatalf("Render(%q) = %q, %v, %v, want itself", src, text, err, refs)
		}
		bare := false
		for _, r := range refs {
			bare = bare || !strings.Contains(strings.Join(r.filters, " "), filterDefault)
		}
		if bare && err == nil {
			t.Fatalf("Render(%q) without a scope = %q, want an error: a reference has no value and no default", src, text)
		}
		if _, err := tmpl.Render(testScope()); err != nil {
			return
		}
		for _, r := range refs {
			if r.kind == refSecrets && !strings.Contains(strings.Join(r.filters, " "), filterDefault) {
				t.Fatalf("Render(%q) rendered a secret", src)
			}
		}
	})
}
