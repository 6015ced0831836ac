package workflows

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const envelope = "schema_version: '1.0'\nworkflow:\n  id: heron-case\n"

const twoNodes = "  nodes: [{id: in, type: input}, {id: out, type: output}]\n  edges: [{from: in, to: out}]\n"

// fragment puts lines of a workflow under the envelope, and two nodes below them
// unless they bring nodes of their own.
func fragment(lines string) []byte {
	out := []byte(envelope)
	for line := range strings.Lines(strings.TrimSpace(lines) + "\n") {
		out = append(append(out, "  "...), line...)
	}
	if !strings.Contains(lines, "nodes:") {
		out = append(out, twoNodes...)
	}
	return out
}

// rules are the rules of an error's problems, in order.
func rules(t *testing.T, err error) []string {
	t.Helper()
	problems, ok := errors.AsType[Problems](err)
	if err != nil && !ok {
		t.Fatalf("error %v is no Problems", err)
	}
	out := []string{}
	for _, p := range problems {
		out = append(out, p.Rule)
		if p.Class != classOf(p.Rule) {
			t.Errorf("class of %s = %s, want %s", p.Rule, p.Class, classOf(p.Rule))
		}
	}
	return out
}

func parse(t *testing.T, src []byte) *Workflow {
	t.Helper()
	w, _, err := Parse("case.relavium.yaml", src, testOptions("testdata/good"))
	if err != nil {
		t.Fatalf("Parse(%s) = %v, want a workflow", src, err)
	}
	return w
}

func TestScalarsFollowYAML12(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("testdata/good/formats.relavium.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w := parse(t, src)
	want := `{"mode":777,"hatched":"2024-05-01","eggs":"1_000","ringed":"yes","mask":"0b11","oct":15,"hex":31,` +
		`"plus":1,"point":0.5,"long":123456789123456789123,"exp":1e+20,"true":"key","<<":"quoted","nothing":null,` +
		`"":"empty","big":9007199254740993,"price":1.10}`
	if got := string(w.Metadata); got != want {
		t.Errorf("Metadata = %s, want %s", got, want)
	}
}

func TestResolveScalar(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		kind itemKind
		text string
	}{
		{"", nullItem, ""},
		{"NULL", nullItem, ""},
		{"nULL", stringItem, "nULL"},
		{"TRUE", boolItem, "true"},
		{"False", boolItem, "false"},
		{"on", stringItem, "on"},
		{"-0", numberItem, "-0"},
		{"+12", numberItem, "12"},
		{"-007", numberItem, "-7"},
		{"00", numberItem, "0"},
		{"1.", numberItem, "1"},
		{"1.e3", numberItem, "1e3"},
		{"-.5E-2", numberItem, "-0.5E-2"},
		{"1e+20", numberItem, "1e+20"},
		{"0o0", numberItem, "0"},
		{"0o8", stringItem, "0o8"},
		{"0xfF", numberItem, "255"},
		{"-0x1", stringItem, "-0x1"},
		{"0x", stringItem, "0x"},
		{".", stringItem, "."},
		{"+", stringItem, "+"},
		{"1e", stringItem, "1e"},
		{"1e+", stringItem, "1e+"},
		{"1.2.3", stringItem, "1.2.3"},
		{"12:30", stringItem, "12:30"},
		{"2024-05-01", stringItem, "2024-05-01"},
		{"+.inf1", stringItem, "+.inf1"},
	} {
		kind, text, finite := resolveScalar(tt.in)
		if kind != tt.kind || text != tt.text || !finite {
			t.Errorf("resolveScalar(%q) = %v, %q, %v, want %v, %q, true", tt.in, kind, text, finite, tt.kind, tt.text)
		}
		if kind == numberItem && !json.Valid([]byte(text)) {
			t.Errorf("resolveScalar(%q) = %q, want JSON", tt.in, text)
		}
	}
	for _, in := range []string{".inf", "-.Inf", "+.INF", ".nan", ".NaN"} {
		if _, _, finite := resolveScalar(in); finite {
			t.Errorf("resolveScalar(%q) is finite, want not", in)
		}
	}
}

func TestEncodings(t *testing.T) {
	t.Parallel()
	const plain = "schema_version: '1.0'\nworkflow:\n  id: crake\n  description: |\n    first\n    second\n  name: \"a\n    b\"\n" + twoNodes
	want := parse(t, []byte(plain))
	crlf := strings.ReplaceAll(plain, "\n", "\r\n")
	for name, src := range map[string]string{
		"byte order mark":          "\uFEFF" + plain,
		"CRLF":                     crlf,
		"mark and CRLF":            "\uFEFF" + crlf,
		"mark and document":        "\uFEFF---\n" + plain,
		"document end":             plain + "...\n",
		"version directive 1.2":    "%YAML 1.2\n---\n" + plain,
		"version directive 1.1":    "# old\n%YAML 1.1\n---\n" + plain,
		"comments and blank lines": "# a\n\n" + strings.ReplaceAll(plain, "  name", "\n  # why\n  name"),
	} {
		got := parse(t, []byte(src))
		if got.Description != "first\nsecond\n" {
			t.Errorf("%s: Description = %q, want %q", name, got.Description, "first\nsecond\n")
		}
		if got.Digest() != want.Digest() {
			t.Errorf("%s: Digest() = %s, want %s", name, got.Digest(), want.Digest())
		}
	}
}

func TestRareSeparatorsAreText(t *testing.T) {
	t.Parallel()
	const text = "a\u0085b\u2028c\u2029d\uE000e"
	for _, style := range []string{"%s", "'%s'", "\"%s\"", "|-\n    %s", ">-\n    %s"} {
		w := parse(t, fragment("description: "+strings.Replace(style, "%s", text, 1)))
		if w.Description != text {
			t.Errorf("Description of %q = %q, want %q", style, w.Description, text)
		}
	}
}

func TestBrokenEncodings(t *testing.T) {
	t.Parallel()
	good := envelope + twoNodes
	var wide []byte
	for _, r := range good {
		wide = append(wide, byte(r), 0)
	}
	tab := strings.Replace(good, "  nodes", "\tnodes", 1)
	for _, tt := range []struct{ name, src, want string }{
		{"UTF-16 with mark", "\xff\xfe" + string(wide), "f:1:1: file is UTF-16: save it as UTF-8"},
		{"UTF-16 big endian", "\xfe\xff\x00s", "f:1:1: file is UTF-16: save it as UTF-8"},
		{"UTF-16 without mark", string(wide), "f:1:2: file is UTF-16 or UTF-32: save it as UTF-8"},
		{"Latin-1", envelope + "  name: caf\xe9\n", "f:4:12: byte is not UTF-8, as in a Latin-1 file: save it as UTF-8"},
		{"Latin-1 after wide characters", "# žž \xe9", "f:1:6: byte is not UTF-8, as in a Latin-1 file: save it as UTF-8"},
		{"tab", tab, "f:4:1: tab used for indentation: indent with spaces"},
		{"tab in block text", envelope + "  name: |\n\tx\n", "f:5:1: tab used for indentation: indent with spaces"},
		{"control character", envelope + "  name: 'a\x07'\n", "f:4:11: control character in the file: escape it in double quotes"},
		{"NUL", envelope + "  name: 'a\x00'\n", "f:4:11: control character in the file: escape it in double quotes"},
		{"DEL", "a: \x7f", "f:1:4: control character in the file: escape it in double quotes"},
		{"empty", "", "f:1:1: file holds no document"},
		{"too large", strings.Repeat("#", maxFileBytes+1), "f:1:1: file is larger than 1 MiB: split it, or read long texts with read_file"},
		{"second document that is broken", good + "--- [\n", "f:6:1: a bracket without its other half, or a value is missing"},
	} {
		_, _, err := Parse("f", []byte(tt.src), Options{})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Parse(%s) = %v, want %s", tt.name, err, tt.want)
		}
	}
}

// A message may name keys; it never holds what a file says (format 1.1).
func TestMessagesHoldNoText(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-xyzzy"
	for _, src := range []string{
		"a: *" + secret, "a: &" + secret + " b", "a: !" + secret + " b", "a: !" + secret + "!x b", "a: \"" + secret + "\n",
		"a: '" + secret + "\\q", "a: @" + secret, "a: " + secret + ": b", "[" + secret, "{" + secret + ": }}", "%" + secret + "\n---\na",
		"a: |9" + secret, "- " + secret + "\nb: c", "? " + secret + "\n" + secret,
		string(fragment("inputs: [{name: a, type: " + secret + ", default: {x: " + secret + "}}]\ntrigger: {type: " + secret + "}\ntimeout_ms: " + secret +
			"\ncontext: [{key: '" + secret + "!', value: '{{ " + secret + " }}'}]\nnodes: [{id: '" + secret + " ', type: " + secret + "}]\nedges: [{from: '" +
			secret + " x', to: '" + secret + " x'}]")),
	} {
		_, warnings, err := Parse("f", []byte(src), testOptions("testdata/good"))
		if err == nil {
			t.Errorf("Parse(%q) = nil, want problems", src)
			continue
		}
		if text := err.Error() + warnings.Error(); strings.Contains(text, "hunter2") {
			t.Errorf("Parse(%q) = %s, want no text of the file", src, text)
		}
	}
}

func TestReportedFiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		src  string
		want []string
	}{
		{"name: a\nnodes: []\nnodes: []", []string{"P05"}},
		{"inputs: []\ninputs: []", []string{"P05"}},
		{"name: a\n\"name\": b", []string{"P05"}},
		{"inputs: [{name: n, type: number, validation: {min: 1, min: 2}}]", []string{"P05"}},
		{"nodes: [{id: in, type: input}, {id: in, type: output}]\nedges: []", []string{"P50"}},
		{"metadata: {base: &base {a: 1}}\nbudget: {<<: *base, max_cost_microcents: 1}", []string{"P03", "P04"}},
		{"budget: {max_cost_microcents: 1, <<: {on_exceed: fail}}", []string{"P04"}},
		{"helper: &h {a: 1}", []string{"P03"}},
		{"inputs: [{name: a, type: number, default: .inf}]", []string{"P13"}},
		{"inputs: [{name: a, type: number, default: .nan}]", []string{"P13"}},
		{"inputs: [{name: a, type: number, default: 1_000}]", []string{"P25"}},
	} {
		_, _, err := Parse("f", fragment(tt.src), Options{})
		if diff := cmp.Diff(tt.want, rules(t, err)); diff != "" {
			t.Errorf("rules of %q (-want +got):\n%s", tt.src, diff)
		}
	}
	w := parse(t, fragment(`inputs:
  - {name: a, type: number, default: 123456789123456789123}
  - {name: b, type: number, default: 9007199254740993}
  - {name: c, type: number, default: 1e3}
  - {name: d, type: number, default: 1e+20}
  - {name: e, type: number, default: 1.10}`))
	for i, want := range []string{"123456789123456789123", "9007199254740993", "1e3", "1e+20", "1.10"} {
		if got := string(w.Inputs[i].Default.Literal); got != want {
			t.Errorf("default of %s = %s, want %s", w.Inputs[i].Name, got, want)
		}
	}
}

// Whatever the bytes, decoding ends soon and reports in a few words.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	const size = 256 << 10
	for _, unit := range []string{
		"[", "{", "[[],", "{a: ", "- ", "-\n", "? ", "?\n", ": ", "a,", "a: b\n", "#\n", " #\n", "&a ", "*a ", "!a ", "\"", "'", "|\n", ">\n",
		"--- a\n", "%YAML 1.1\n", "a: ", "\r", "\u2028", "\uFEFF", "- #\n", "{a, ", "\"\" : ", "x\n", "<<: ",
	} {
		begin := time.Now()
		src := bytes.Repeat([]byte(unit), size/len(unit))
		_, _, err := Parse("f", src, Options{})
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("Parse(%q repeated) took %v, want less", unit, took)
		}
		if err == nil {
			t.Errorf("Parse(%q repeated) = nil, want problems", unit)
		}
	}
	deep := fragment("metadata: " + strings.Repeat("{a: ", maxDepth) + "1" + strings.Repeat("}", maxDepth))
	_, _, err := Parse("f", deep, Options{})
	if diff := cmp.Diff([]string{"P02"}, rules(t, err)); diff != "" {
		t.Errorf("rules of deep nesting (-want +got):\n%s", diff)
	}
}

func TestManyProblemsAreBounded(t *testing.T) {
	t.Parallel()
	src := fragment("tags: [" + strings.Repeat("1, ", 50_000) + "]")
	_, _, err := Parse("f", src, Options{})
	if got := len(rules(t, err)); got == 0 || got > maxProblems+1 {
		t.Errorf("Parse reports %d problems, want at most %d", got, maxProblems+1)
	}
}

func TestSnapshotIgnoresLayout(t *testing.T) {
	t.Parallel()
	a := parse(t, fragment("name: Heron # tall\ntags: [marsh, mud]"))
	b := parse(t, fragment("\"name\": 'Heron'\ntags:\n  - marsh\n  - >-\n    mud"))
	c := parse(t, fragment("tags: [marsh, mud]\nname: Heron"))
	if a.Digest() != b.Digest() {
		t.Errorf("Digest() = %s after a change of layout, want %s", b.Digest(), a.Digest())
	}
	if a.Digest() == c.Digest() {
		t.Errorf("Digest() = %s after keys changed places, want another", c.Digest())
	}
	if !strings.HasPrefix(a.Digest(), "sha256:") || len(a.Digest()) != 71 {
		t.Errorf("Digest() = %s, want sha256: and 64 hex digits", a.Digest())
	}
}

func TestFromSnapshotRefuses(t *testing.T) {
	t.Parallel()
	for _, src := range []string{
		"", "null", "[]", "{}", `{"workflow":{}}`, `{"workflow":{},"agents":[]}`, `{"workflow":[],"agents":[]} x`, `{"workflow":`,
		`{"workflow":{"schema_version":"1.0","workflow":{"id":"a","nodes":[{"id":"n","type":"input"}],"edges":[{"from":"n","to":"m"}]}},"agents":[]}`,
		`{"workflow":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `,"agents":[]}`,
	} {
		if w, err := FromSnapshot(json.RawMessage(src)); err == nil {
			t.Errorf("FromSnapshot(%.60s) = %v, want an error", src, w)
		}
	}
}

func TestAgentSurvivesSnapshot(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile(filepath.Join("testdata", "good", "agents.relavium.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w := parse(t, src)
	for i := range w.Agents {
		a := &w.Agents[i]
		c := &checker{}
		got := c.agent(agentItem(a), "")
		if diff := cmp.Diff(*a, got); diff != "" || len(c.problems) > 0 {
			t.Errorf("agent %s read back (-want +got):\n%s%s", a.ID, diff, c.problems)
		}
	}
}
