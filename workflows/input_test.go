package workflows

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func literal(s string) *Field { return &Field{Literal: json.RawMessage(s)} }

func raws(values ...string) []json.RawMessage {
	out := make([]json.RawMessage, len(values))
	for i, v := range values {
		out[i] = json.RawMessage(v)
	}
	return out
}

// survey is a workflow with an input of every kind.
func survey(t *testing.T) *Workflow {
	t.Helper()
	return &Workflow{ID: "ring-survey", Inputs: []Input{
		{Name: "bird", Type: TypeString, Required: true},
		{Name: "count", Type: TypeNumber, Default: literal("3.0"), Validation: Validation{Min: "0", Max: "9007199254740993"}},
		{Name: "wet", Type: TypeBoolean},
		{Name: "notes", Type: TypeFilePath},
		{Name: "diff", Type: TypeCodeDiff, Validation: Validation{MaxLength: new(4)}},
		{Name: "pin-code", Type: TypeSecret, Required: true},
		{Name: "title", Type: TypeString, Default: &Field{Template: mustTemplate(t, "On {{ inputs.bird }}")}},
		{Name: "level", Type: TypeNumber, Validation: Validation{Enum: raws("1", "2", "3.50")}},
		{Name: "code", Type: TypeString, Validation: Validation{Enum: raws(`"1"`, `"no"`)}},
		{Name: "tag", Type: TypeString, Validation: Validation{Pattern: `^[a-z]+$`, MinLength: new(2), MaxLength: new(8)}},
	}}
}

const pinMask = `"pin-code":{"secret":true,"ref":"env:RELAVIUM_INPUT_RING_SURVEY_PIN_CODE"}`

func TestResolveInputs(t *testing.T) {
	t.Parallel()
	w := survey(t)
	tests := []struct{ name, args, want string }{
		{"defaults", `{"bird":"tern"}`, `{"bird":"tern","count":3.0,` + pinMask + `,"title":"On tern"}`},
		{"declared order, digits kept", `{"count":9007199254740993,"bird":"a"}`, `{"bird":"a","count":9007199254740993,` + pinMask + `,"title":"On a"}`},
		{"null means absent", `{"bird":"a","count":null,"wet":null,"title":null}`, `{"bird":"a","count":3.0,` + pinMask + `,"title":"On a"}`},
		{"zero-like values count", `{"bird":"","count":0,"wet":false,"title":""}`, `{"bird":"","count":0,"wet":false,` + pinMask + `,"title":""}`},
		{"text is normalised", ` { "bird" : "\u003cb\u003e" } `, `{"bird":"<b>","count":3.0,` + pinMask + `,"title":"On <b>"}`},
		{"file and diff", `{"bird":"a","notes":"docs/a.md","diff":"+a\n"}`, `{"bird":"a","count":3.0,"notes":"docs/a.md","diff":"+a\n",` + pinMask + `,"title":"On a"}`},
		{"equal numbers of an enum", `{"bird":"a","level":3.5}`, `{"bird":"a","count":3.0,` + pinMask + `,"title":"On a","level":3.5}`},
		{"enum of text", `{"bird":"a","code":"1","tag":"abc"}`, `{"bird":"a","count":3.0,` + pinMask + `,"title":"On a","code":"1","tag":"abc"}`},
		{"four units in two characters", `{"bird":"a","diff":"\ud83d\udc26\ud83d\udc26"}`, `{"bird":"a","count":3.0,"diff":"` + "\U0001F426\U0001F426" + `",` + pinMask + `,"title":"On a"}`},
	}
	for _, tt := range tests {
		got, err := w.ResolveInputs(json.RawMessage(tt.args))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: ResolveInputs(%s) = %s, %v, want %s", tt.name, tt.args, got, err, tt.want)
		}
	}
	empty := &Workflow{ID: "e"}
	if got, err := empty.ResolveInputs(nil); err != nil || string(got) != "{}" {
		t.Errorf("ResolveInputs(nil) = %s, %v, want {}", got, err)
	}
}

func TestResolveInputsRefuses(t *testing.T) {
	t.Parallel()
	w := survey(t)
	const known = "no such input; known are bird, count, wet, notes, diff, title, level, code, tag"
	tests := []struct {
		name, args string
		want       []FieldError
	}{
		{"nothing", ``, []FieldError{{"bird", "a string, got nothing"}, {"title", "a string, because its default needs inputs.bird"}}},
		{"null for a required one", `{"bird":null,"title":"t"}`, []FieldError{{"bird", "a string, got null"}}},
		{"not an object", `[]`, []FieldError{{"", "a JSON object of arguments: invalid JSON at byte 0: not an object"}}},
		{"repeated", `{"bird":"a","bird":"b"}`, []FieldError{{"", "a JSON object of arguments: invalid JSON at byte 12: repeated key"}}},
		{"unknown", `{"bird":"a","depth":1,"count":"x"}`, []FieldError{{"depth", known}, {"count", "a number from 0 to 9007199254740993, got a string"}}},
		{"a made-up name is shown safely", `{"bird":"a","\u0007<b>":1}`, []FieldError{{`"\a<b>"`, known}}},
		{"a name in another case", `{"bird":"a","Bird":"b"}`, []FieldError{{"Bird", known}}},
		{"a secret", `{"bird":"a","pin-code":"hunter2"}`, []FieldError{{"pin-code", "no value: a secret input is read from RELAVIUM_INPUT_RING_SURVEY_PIN_CODE where the server runs"}}},
		{"a secret as null", `{"bird":"a","pin-code":null}`, []FieldError{{"pin-code", "no value: a secret input is read from RELAVIUM_INPUT_RING_SURVEY_PIN_CODE where the server runs"}}},
		{"one above 2^53", `{"bird":"a","count":9007199254740994}`, []FieldError{{"count", "a number from 0 to 9007199254740993"}}},
		{"a hair below 0", `{"bird":"a","count":-1e-299}`, []FieldError{{"count", "a number from 0 to 9007199254740993"}}},
		{"absolute path", `{"bird":"a","notes":"/etc/passwd"}`, []FieldError{{"notes", "a file path relative to the workspace: the path is absolute"}}},
		{"floor path", `{"bird":"a","notes":"a/.env"}`, []FieldError{{"notes", "a file path relative to the workspace: files like .env may hold credentials and are never read"}}},
		{"too long", `{"bird":"a","diff":"\ud83d\udc26\ud83d\udc26x"}`, []FieldError{{"diff", "a diff as a string of at most 4 characters"}}},
		{"number enum", `{"bird":"a","level":4}`, []FieldError{{"level", "a number, one of 1, 2, 3.50"}}},
		{"number enum takes no text", `{"bird":"a","level":"1"}`, []FieldError{{"level", "a number, one of 1, 2, 3.50, got a string"}}},
		{"text enum takes no number", `{"bird":"a","code":1}`, []FieldError{{"code", `a string, one of "1", "no", got a number`}}},
		{"text enum", `{"bird":"a","code":"yes"}`, []FieldError{{"code", `a string, one of "1", "no"`}}},
		{"pattern", `{"bird":"a","tag":"ab1"}`, []FieldError{{"tag", "a string of 2 to 8 characters that matches ^[a-z]+$"}}},
		{"too short", `{"bird":"a","tag":"a"}`, []FieldError{{"tag", "a string of 2 to 8 characters that matches ^[a-z]+$"}}},
		{"types", `{"bird":["a"],"count":true,"wet":"false","notes":1,"diff":{},"title":2}`, []FieldError{
			{"bird", "a string, got an array"},
			{"count", "a number from 0 to 9007199254740993, got a boolean"},
			{"wet", "a boolean, got a string"},
			{"notes", "a file path relative to the workspace, got a number"},
			{"diff", "a diff as a string of at most 4 characters, got an object"},
			{"title", "a string, got a number"},
		}},
	}
	for _, tt := range tests {
		var args json.RawMessage
		if tt.args != "" {
			args = json.RawMessage(tt.args)
		}
		got, err := w.ResolveInputs(args)
		inputErr, ok := errors.AsType[*InputError](err)
		if !ok {
			t.Errorf("%s: ResolveInputs(%s) = %s, %v, want an *InputError", tt.name, tt.args, got, err)
			continue
		}
		if diff := cmp.Diff(tt.want, inputErr.Fields); diff != "" {
			t.Errorf("%s: ResolveInputs(%s) (-want +got)\n%s", tt.name, tt.args, diff)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error %q holds the value", tt.name, err)
		}
	}
}

// Text is never taken for a number or a boolean, nor a number for a boolean.
func TestResolveInputsNeverCoerces(t *testing.T) {
	t.Parallel()
	w := &Workflow{ID: "strs", Inputs: []Input{{Name: "n", Type: TypeNumber}, {Name: "b", Type: TypeBoolean}}}
	for _, args := range []string{
		`{"n":"5812"}`, `{"n":"007"}`, `{"n":"1e3"}`, `{"n":" 5"}`, `{"n":""}`, `{"n":true}`, `{"n":[5]}`,
		`{"b":"false"}`, `{"b":"true"}`, `{"b":0}`, `{"b":1}`, `{"b":""}`,
	} {
		got, err := w.ResolveInputs(json.RawMessage(args))
		inputErr, ok := errors.AsType[*InputError](err)
		if !ok || len(inputErr.Fields) != 1 || inputErr.Fields[0].Field != args[2:3] {
			t.Errorf("ResolveInputs(%s) = %s, %v, want an error for %s alone", args, got, err, args[2:3])
		}
	}
}

func TestInputErrorIsBounded(t *testing.T) {
	t.Parallel()
	var members []Member
	for i := range 5000 {
		members = append(members, Member{Key: strings.Repeat("k", i+1), Value: json.RawMessage("1")})
	}
	_, err := (&Workflow{ID: "e"}).ResolveInputs(Object(members[:1500]))
	inputErr, ok := errors.AsType[*InputError](err)
	if !ok || len(inputErr.Fields) != 50 {
		t.Fatalf("ResolveInputs = %.100v, want 50 fields", err)
	}
	if want := "kk: want no such input; this workflow takes none"; !strings.Contains(err.Error(), want) {
		t.Errorf("Error() = %.200s, want it to contain %s", err, want)
	}
	if len(err.Error()) > 50*200 {
		t.Errorf("Error() is %d bytes long", len(err.Error()))
	}
}

func TestResolveInputsTemplateDefaults(t *testing.T) {
	t.Parallel()
	w := &Workflow{ID: "d", Inputs: []Input{
		{Name: "low", Type: TypeNumber, Default: literal("1")},
		{Name: "high", Type: TypeNumber, Default: &Field{Template: mustTemplate(t, "{{ inputs.low }}0")}, Validation: Validation{Max: "50"}},
		{Name: "dir", Type: TypeString, Default: literal(`"docs"`)},
		{Name: "file", Type: TypeFilePath, Default: &Field{Template: mustTemplate(t, "{{ inputs.dir }}/a.md")}},
		{Name: "on", Type: TypeBoolean, Default: &Field{Template: mustTemplate(t, `{{ inputs.nope | default("true") }}`)}},
	}}
	got, err := w.ResolveInputs(nil)
	if want := `{"low":1,"high":10,"dir":"docs","file":"docs/a.md","on":true}`; err != nil || string(got) != want {
		t.Errorf("ResolveInputs = %s, %v, want %s", got, err, want)
	}
	_, err = w.ResolveInputs(json.RawMessage(`{"low":6,"dir":"../.."}`))
	want := "high: want a number of at most 50; file: want a file path relative to the workspace: the path leaves its folder with .."
	if err == nil || err.Error() != want {
		t.Errorf("ResolveInputs = %v, want %s", err, want)
	}
	_, err = w.ResolveInputs(json.RawMessage(`{"low":-1.5e299}`))
	if want := "high: want a number of at most 50, because its default yields another type"; err == nil || err.Error() != want {
		t.Errorf("ResolveInputs = %v, want %s", err, want)
	}
}

func TestCoerceInputs(t *testing.T) {
	t.Parallel()
	w := survey(t)
	got, err := w.CoerceInputs([]string{"count=9007199254740993", "bird=a=b", "wet=true", "tag=", "notes=x\"y"})
	if want := `{"count":9007199254740993,"bird":"a=b","wet":true,"tag":"","notes":"x\"y"}`; err != nil || string(got) != want {
		t.Errorf("CoerceInputs = %s, %v, want %s", got, err, want)
	}
	if got, err := w.CoerceInputs(nil); err != nil || string(got) != "{}" {
		t.Errorf("CoerceInputs(nil) = %s, %v, want {}", got, err)
	}
	_, err = w.CoerceInputs([]string{
		"bird=a", "bird=b", "fish=cod", "count=lots", "wet=yes", "pin-code=hunter2", "alone", "level=007", "level=1_000", "level= 5", "title=\xff",
	})
	want := []FieldError{
		{"bird", "one value, got it twice"},
		{"fish", "no such input; known are bird, count, wet, notes, diff, title, level, code, tag"},
		{"count", "a number from 0 to 9007199254740993"},
		{"wet", "a boolean"},
		{"pin-code", "no value: a secret input is read from RELAVIUM_INPUT_RING_SURVEY_PIN_CODE where the server runs"},
		{"alone", "name=value, after --input"},
		{"level", "a number, one of 1, 2, 3.50"},
		{"level", "one value, got it twice"},
		{"level", "one value, got it twice"},
		{"title", "a string"},
	}
	inputErr, ok := errors.AsType[*InputError](err)
	if !ok {
		t.Fatalf("CoerceInputs: %v, want an *InputError", err)
	}
	if diff := cmp.Diff(want, inputErr.Fields); diff != "" {
		t.Errorf("CoerceInputs (-want +got)\n%s", diff)
	}
}

func TestCheckInput(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   Input
		want []string // "field rule"
	}{
		{"plain", Input{Type: TypeString}, nil},
		{"unknown type", Input{Type: "int", Validation: Validation{Min: "1"}}, []string{"type P21"}},
		{"length of a number", Input{Type: TypeNumber, Validation: Validation{MaxLength: new(3)}}, []string{"validation.max_length P22"}},
		{"min of a string", Input{Type: TypeString, Validation: Validation{Min: "1"}}, []string{"validation.min P22"}},
		{"enum of a boolean", Input{Type: TypeBoolean, Validation: Validation{Enum: raws("true")}}, []string{"validation.enum P22"}},
		{"several keys of a secret", Input{Type: TypeSecret, Validation: Validation{Min: "1", Max: "2", Pattern: "a"}}, []string{"validation.min P22", "validation.max P22"}},
		{"min above max", Input{Type: TypeNumber, Validation: Validation{Min: "9", Max: "2"}}, []string{"validation.min P23"}},
		{"min above max in the last digit", Input{Type: TypeNumber, Validation: Validation{Min: "9007199254740993", Max: "9007199254740992"}}, []string{"validation.min P23"}},
		{"equal bounds", Input{Type: TypeNumber, Validation: Validation{Min: "1.0", Max: "1"}}, nil},
		{"lengths swapped", Input{Type: TypeString, Validation: Validation{MinLength: new(3), MaxLength: new(2)}}, []string{"validation.min_length P23"}},
		{"length below 0", Input{Type: TypeString, Validation: Validation{MinLength: new(-1)}}, []string{"validation.min_length P13"}},
		{"unknown format", Input{Type: TypeString, Validation: Validation{Format: "ipv4"}}, []string{"validation.format P24"}},
		{"look-ahead", Input{Type: TypeString, Validation: Validation{Pattern: "^(?=.*[0-9]).+$"}}, []string{"validation.pattern P24"}},
		{"bad pattern", Input{Type: TypeString, Validation: Validation{Pattern: "("}}, []string{"validation.pattern P24"}},
		{"empty enum", Input{Type: TypeString, Validation: Validation{Enum: raws()}}, []string{"validation.enum P13"}},
		{"enum of another type", Input{Type: TypeString, Validation: Validation{Enum: raws(`"a"`, "1", "2")}}, []string{"validation.enum P13"}},
		{"default of the type", Input{Type: TypeNumber, Default: literal("1e3")}, nil},
		{"text for a number", Input{Type: TypeNumber, Default: literal(`"1_000"`)}, []string{"default P25"}},
		{"number for text", Input{Type: TypeString, Default: literal("1.10")}, []string{"default P25"}},
		{"null", Input{Type: TypeString, Default: literal("null")}, []string{"default P25"}},
		{"default outside its own bounds", Input{Type: TypeNumber, Default: literal("-1"), Validation: Validation{Min: "0"}}, []string{"default P25 warning"}},
		{"default outside its own enum", Input{Type: TypeString, Default: literal(`"z"`), Validation: Validation{Enum: raws(`"a"`)}}, []string{"default P25 warning"}},
		{"default in its own format", Input{Type: TypeString, Default: literal(`"a@b.example"`), Validation: Validation{Format: "email"}}, nil},
		{"path that escapes", Input{Type: TypeFilePath, Default: literal(`"../a"`)}, []string{"default P25"}},
		{"secret with a default", Input{Type: TypeSecret, Default: literal(`"x"`)}, []string{"default P25"}},
		{"template", Input{Type: TypeNumber, Default: &Field{Template: mustTemplate(t, "{{ inputs.a }}")}}, nil},
	}
	for _, tt := range tests {
		var got []string
		for _, p := range checkInput(&tt.in) {
			line := p.field + " " + p.rule
			if p.warning {
				line += " warning"
			}
			got = append(got, line)
			if p.what == "" || p.remedy == "" {
				t.Errorf("%s: checkInput: %s has no text or no remedy", tt.name, p.field)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: checkInput (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestHasFormat(t *testing.T) {
	t.Parallel()
	tests := []struct {
		format    string
		good, bad []string
	}{
		{"email", []string{"a@b.example", "a.b+c@localhost"}, []string{"", "a", "@b", "a@", "A <a@b.example>", "a@b.example, c@d.example", "a b@c.example", " a@b.example"}},
		{"uri", []string{"https://a.example/x?y#z", "mailto:a@b.example", "urn:isbn:1"}, []string{"", "/a", "a.example", "https://a b", "https://a/<x>", "http://a/é"}},
		{"url", []string{"https://a.example", "http://127.0.0.1:80/x"}, []string{"mailto:a@b.example", "//a.example", "https:///x"}},
		{"uuid", []string{"123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000"}, []string{"", "123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g", "123e4567-e89b-12d3-a456_426614174000"}},
		{"date", []string{"2024-02-29"}, []string{"2023-02-29", "2024-2-9", "2024-02-29T00:00:00Z", "today"}},
		{"date-time", []string{"2024-02-29T10:00:00Z", "2024-02-29t10:00:00.123z", "2024-02-29T10:00:00+02:00"}, []string{"2024-02-29", "2024-02-29T10:00:00", "2024-02-29 10:00:00Z", "2024-02-29T10:00:00,5Z", "2024-02-29T25:00:00Z", "2024-02-29T1:00:00Z"}},
	}
	for _, tt := range tests {
		for _, text := range tt.good {
			if !hasFormat(text, tt.format) {
				t.Errorf("hasFormat(%q, %s) = false, want true", text, tt.format)
			}
		}
		for _, text := range tt.bad {
			if hasFormat(text, tt.format) {
				t.Errorf("hasFormat(%q, %s) = true, want false", text, tt.format)
			}
		}
	}
}

func TestCompilePattern(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pattern   string
		good, bad []string
	}{
		{"b", []string{"abc"}, []string{"ac"}},
		{`^\d{2}-\w+$`, []string{"12-ab"}, []string{"1-ab", "12-", "x12-ab"}},
		{`^a.c$`, []string{"abc", "aéc"}, []string{"a\nc", "a\rc", "a\u2028c"}},
		{`^\s$`, []string{" ", "\u00a0", "\ufeff"}, []string{"a", ""}},
		{`^\S$`, []string{"a"}, []string{" ", "\u00a0"}},
		{`^[\s\d]+$`, []string{"1 \u00a02"}, []string{"a"}},
		{`^\u0041\u{1F426}\/\cA$`, []string{"A\U0001F426/\x01"}, []string{"A"}},
		{`^[^]$`, []string{"\n", "a"}, []string{""}},
		{`a[]`, nil, []string{"a", "a]"}},
		{`^[[:a]$`, []string{"[", ":", "a"}, []string{"b"}},
		{`^[\]\-\\]$`, []string{"]", "-", `\`}, []string{"a"}},
		{`^(?<y>\d)(?:a|b)$`, []string{"1a"}, []string{"1c"}},
		{`^\p{L}+$`, []string{"né"}, []string{"1"}},
		{`^[\b]\0$`, []string{"\b\x00"}, []string{"b0"}},
		{`a$`, []string{"a"}, []string{"a\n"}},
	}
	for _, tt := range tests {
		re, err := compilePattern(tt.pattern)
		if err != nil {
			t.Errorf("compilePattern(%s): %v", tt.pattern, err)
			continue
		}
		for _, text := range tt.good {
			if !re.MatchString(text) {
				t.Errorf("%s does not match %q", tt.pattern, text)
			}
		}
		for _, text := range tt.bad {
			if re.MatchString(text) {
				t.Errorf("%s matches %q", tt.pattern, text)
			}
		}
	}
	bad := []struct{ pattern, want string }{
		{`(?=a)`, "look-around is not supported"},
		{`(?<!a)b`, "look-around is not supported"},
		{`(a)\1`, "back-references are not supported"},
		{`(?<x>a)\k<x>`, "back-references are not supported"},
		{`(?i)a`, "flags inside a pattern are not supported"},
		{`(?P<x>a)`, "flags inside a pattern are not supported"},
		{`\Aa\z`, "an escape that is not known"},
		{`\u12`, "an escape that is not known"},
		{`\ud800`, "an escape that is not known"},
		{`\c1`, "an escape that is not known"},
		{`[a`, "a [ without its ]"},
		{`a\`, `a \ at the end`},
		{`(`, "not a regular expression that is supported here"},
		{`a{2000}`, "not a regular expression that is supported here"},
		{strings.Repeat("a", 2049), "a pattern of more than 2048 bytes"},
	}
	for _, tt := range bad {
		if _, err := compilePattern(tt.pattern); err == nil || err.Error() != tt.want {
			t.Errorf("compilePattern(%.30s) = %v, want %s", tt.pattern, err, tt.want)
		}
	}
}

func FuzzPattern(f *testing.F) {
	for _, seed := range []string{`^[a-z]+$`, `[^]\u{1F426}\cA\0`, `(?<n>a)|[\s\d]{2,3}`, `[[:alpha:]]`, `\`, `[]a]`, `(?=`, `a{1001}`} {
		f.Add(seed, "text")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		re, err := compilePattern(pattern)
		if err != nil {
			return
		}
		re.MatchString(text)
		// A group of its own must not change what the pattern means.
		grouped, err := compilePattern("(?:" + pattern + ")")
		if err != nil {
			return // at the bound of length or of size
		}
		if re.MatchString(text) != grouped.MatchString(text) {
			t.Fatalf("%q and the same in a group differ on %q", pattern, text)
		}
	})
}

// fileWith is a whole file around some inputs.
func fileWith(inputs string) []byte {
	return []byte("schema_version: '1.0'\nworkflow:\n  id: w\n  inputs:\n" + inputs +
		"  nodes: [{id: start, type: input}]\n  edges: []\n")
}

// A number keeps its literal from the file to the resolved inputs.
func TestDefaultsKeepTheirLiterals(t *testing.T) {
	t.Parallel()
	w, _, err := Parse("w", fileWith(`    - {name: a, type: number, default: 9007199254740993}
    - {name: b, type: number, default: 1e3}
    - {name: c, type: number, default: 1e+20}
    - {name: d, type: number, default: 123456789123456789123}
    - {name: e, type: number, default: 1.10}
    - {name: f, type: string, default: 'no'}
    - {name: g, type: boolean, default: false}
`), Options{})
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	got, err := w.ResolveInputs(nil)
	want := `{"a":9007199254740993,"b":1e3,"c":1e+20,"d":123456789123456789123,"e":1.10,"f":"no","g":false}`
	if err != nil || string(got) != want {
		t.Errorf("ResolveInputs = %s, %v, want %s", got, err, want)
	}
	for _, bad := range []string{".inf", "-.inf", ".nan", "1_000", "'1'", "true", "0b11"} {
		if _, _, err := Parse("w", fileWith("    - {name: a, type: number, default: "+bad+"}\n"), Options{}); err == nil {
			t.Errorf("Parse accepts %s as the default of a number", bad)
		}
	}
}

// A literal default is checked like any other value: the run does not begin.
func TestDefaultsAreChecked(t *testing.T) {
	t.Parallel()
	w, warnings, err := Parse("w", fileWith(`    - {name: n, type: number, default: 11, validation: {max: 3}}
    - {name: e, type: string, default: 'z', validation: {enum: [a, b]}}
    - {name: s, type: string, default: 'not-mail', validation: {format: email}}
`), Options{})
	if err != nil || len(warnings) != 3 || warnings[0].Where != "workflow.inputs[0].default" || warnings[0].Rule != "P25" {
		t.Fatalf("Parse = %v, %v, want a warning of each default", warnings, err)
	}
	got, err := w.ResolveInputs(json.RawMessage(`{"s":"a@b.example"}`))
	want := `n: want a number of at most 3, because its default is not; e: want a string, one of "a", "b", because its default is not`
	if err == nil || err.Error() != want {
		t.Errorf("ResolveInputs of bad defaults = %s, %v, want %s", got, err, want)
	}
	if got, err = w.ResolveInputs(json.RawMessage(`{"n":3,"e":"a","s":"a@b.example"}`)); err != nil {
		t.Errorf("ResolveInputs of values instead = %s, %v, want them", got, err)
	}
}

// What a snapshot restores answers as the file did.
func TestInputsOfASnapshot(t *testing.T) {
	t.Parallel()
	w, _, err := Parse("w", fileWith(`    - {name: lvl, type: number, required: true, validation: {enum: [1, 2, 3.50]}}
    - {name: code, type: string, default: '{{ inputs.lvl }}', validation: {enum: ['1', 'no'], pattern: '^\w+$', max_length: 4}}
    - {name: key, type: secret, required: true}
`), Options{})
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	restored, err := FromSnapshot(w.Snapshot())
	if err != nil {
		t.Fatalf("FromSnapshot: %v", err)
	}
	for _, args := range []string{`{"lvl":1}`, `{"lvl":3.5,"code":"no"}`, `{"lvl":2}`, `{"lvl":"1"}`, `{"lvl":1,"maxDepth":1}`, `{}`} {
		got, err := w.ResolveInputs(json.RawMessage(args))
		again, errAgain := restored.ResolveInputs(json.RawMessage(args))
		if string(got) != string(again) || (err == nil) != (errAgain == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Errorf("ResolveInputs(%s) = %s, %v; of the snapshot %s, %v", args, got, err, again, errAgain)
		}
	}
	got, err := restored.ResolveInputs(json.RawMessage(`{"lvl":1}`))
	if want := `{"lvl":1,"code":"1","key":{"secret":true,"ref":"env:RELAVIUM_INPUT_W_KEY"}}`; err != nil || string(got) != want {
		t.Errorf("ResolveInputs = %s, %v, want %s", got, err, want)
	}
}
