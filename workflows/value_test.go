package workflows

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompact(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	tests := []struct{ name, in, want string }{
		{"order and digits", " { \"z\" : 1.10 ,\n\"a\":[ 9007199254740993 , 1e3, -0 , 1E+20 ] } ", `{"z":1.10,"a":[9007199254740993,1e3,-0,1E+20]}`},
		{"escapes are ECMAScript's", `"\u003c&>\u2028\u0008\u001F\/\u00e9"`, "\"<&>\u2028\\b\\u001f/é\""},
		{"surrogate pair", `"\ud83d\udc26"`, "\"\U0001F426\""},
		{"escaped backslash before u", `"\\ud800"`, `"\\ud800"`},
		{"empty things", ` {"":{},"b":[]} `, `{"":{},"b":[]}`},
		{"words", `[true,false,null]`, `[true,false,null]`},
		{"64 levels", deep, deep},
		{"prototype is a key", `{"__proto__":1}`, `{"__proto__":1}`},
		{"zero with any exponent", `0e999999`, `0e999999`},
		{"largest double", `1.7976931348623157e308`, `1.7976931348623157e308`},
		{"smallest double", `-5e-324`, `-5e-324`},
	}
	for _, tt := range tests {
		got, err := Compact(json.RawMessage(tt.in))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: Compact(%s) = %s, %v, want %s", tt.name, tt.in, got, err, tt.want)
		}
	}
}

func TestCompactRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"nothing", "", "invalid JSON at byte 0: unexpected end"},
		{"not UTF-8", "\"a\xff\"", "invalid JSON at byte 2: not UTF-8"},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", "invalid JSON at byte 1: not UTF-8"},
		{"lone high surrogate", `"\ud800x"`, "invalid JSON at byte 1: a lone surrogate"},
		{"lone low surrogate", `"\udc26"`, "invalid JSON at byte 1: a lone surrogate"},
		{"two high surrogates", `"\ud83d\ud83d"`, "invalid JSON at byte 1: a lone surrogate"},
		{"repeated key", `{"a":1,"a":2}`, "invalid JSON at byte 7: repeated key"},
		{"repeated key by escape", `{"a":1,"\u0061":2}`, "invalid JSON at byte 7: repeated key"},
		{"repeated key below", `[{"x":{"b":1,"b":1}}]`, "invalid JSON at byte 13: repeated key"},
		{"65 levels", strings.Repeat("[", 65) + strings.Repeat("]", 65), "invalid JSON at byte 64: more than 64 levels"},
		{"long number", strings.Repeat("1", 65), "invalid JSON at byte 0: a number of more than 64 characters"},
		{"huge number", "1e10000000", "invalid JSON at byte 0: a number beyond what a double holds"},
		{"over the bound", "1.8e308", "invalid JSON at byte 0: a number beyond what a double holds"},
		{"tiny number", "-1e-325", "invalid JSON at byte 0: a number beyond what a double holds"},
		{"underflow to zero", "1e-5000", "invalid JSON at byte 0: a number beyond what a double holds"},
		{"leading zero", "[01]", "invalid JSON at byte 1: not a number"},
		{"plus", "+1", "invalid JSON at byte 0: unexpected character"},
		{"bare fraction", "1.", "invalid JSON at byte 0: not a number"},
		{"bare exponent", "1e", "invalid JSON at byte 0: not a number"},
		{"infinity", "Infinity", "invalid JSON at byte 0: unexpected character"},
		{"trailing comma in object", `{"a":1,}`, "invalid JSON at byte 7: expected a key"},
		{"trailing comma in array", `[1,]`, "invalid JSON at byte 3: unexpected character"},
		{"two values", `1 2`, "invalid JSON at byte 2: more than one value"},
		{"control character", "\"a\nb\"", "invalid JSON at byte 2: a control character in a string"},
		{"control character after an escape", "\"\\t\n\"", "invalid JSON at byte 3: a control character in a string"},
		{"unknown escape", `"\x41"`, "invalid JSON at byte 1: unknown escape"},
		{"short escape", `"\u12"`, "invalid JSON at byte 1: unknown escape"},
		{"unterminated", `"abc`, "invalid JSON at byte 4: unterminated string"},
		{"unterminated escape", `"abc\`, "invalid JSON at byte 4: unterminated string"},
		{"comment", `1 // one`, "invalid JSON at byte 2: more than one value"},
		{"over 4 MiB", `"` + strings.Repeat("a", 4<<20) + `"`, "invalid JSON at byte 4194304: more than 4 MiB"},
	}
	for _, tt := range tests {
		got, err := Compact(json.RawMessage(tt.in))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: Compact = %.40s, %v, want error %s", tt.name, got, err, tt.want)
		}
		if _, err := Canonical(json.RawMessage(tt.in)); err == nil {
			t.Errorf("%s: Canonical gave no error", tt.name)
		}
	}
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"sorted at every level", `{"b":1,"a":[{"d":1,"c":{"y":0,"x":0}}]}`, `{"a":[{"c":{"x":0,"y":0},"d":1}],"b":1}`},
		{"UTF-16 order", `{"` + "\uff5e" + `":1,"` + "\U0001F426" + `":2}`, `{"` + "\U0001F426" + `":2,"` + "\uff5e" + `":1}`},
		{"two above U+FFFF", `{"` + "\U0001F427" + `":1,"` + "\U0001F426" + `":2}`, `{"` + "\U0001F426" + `":2,"` + "\U0001F427" + `":1}`},
		{"a prefix first", `{"ab":1,"a":2,"":3}`, `{"":3,"a":2,"ab":1}`},
		{"literals as they stand", `{"n":[1.0,1,1e0,10e-1]}`, `{"n":[1.0,1,1e0,10e-1]}`},
		{"equal strings, equal bytes", `{"a":"\u003c\u0041"}`, `{"a":"<A"}`},
		{"already sorted", `{"a":1,"b":2}`, `{"a":1,"b":2}`},
	}
	for _, tt := range tests {
		got, err := Canonical(json.RawMessage(tt.in))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: Canonical(%s) = %s, %v, want %s", tt.name, tt.in, got, err, tt.want)
		}
	}
}

func TestMembers(t *testing.T) {
	t.Parallel()
	got, err := Members(json.RawMessage(` {"b": {"x" : 1}, "a\u0062":[1, 2] , "10":"t","9":null}`))
	want := []Member{
		{"b", json.RawMessage(`{"x":1}`)},
		{"ab", json.RawMessage(`[1,2]`)},
		{"10", json.RawMessage(`"t"`)},
		{"9", json.RawMessage(`null`)},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Members: %v, (-want +got)\n%s", err, diff)
	}
	if got, want := string(Object(got)), `{"b":{"x":1},"ab":[1,2],"10":"t","9":null}`; got != want {
		t.Errorf("Object(Members) = %s, want %s", got, want)
	}
	for _, bad := range []string{`[1]`, `"a"`, `null`, ``, `{"a":1}{`, `{"a":1,"a":1}`} {
		if got, err := Members(json.RawMessage(bad)); err == nil {
			t.Errorf("Members(%s) = %v, want an error", bad, got)
		}
	}
	if got, err := Members(json.RawMessage(`{}`)); err != nil || len(got) != 0 {
		t.Errorf("Members({}) = %v, %v, want none", got, err)
	}
}

// What holds the largest values can still be split, and shown in a template.
func TestMembersAreWide(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	big := `"` + strings.Repeat("a", 3<<20) + `"`
	object := Object([]Member{{"deep", json.RawMessage(deep)}, {"a", json.RawMessage(big)}, {"b", json.RawMessage(big)}})
	got, err := Members(object)
	if err != nil || len(got) != 3 || string(got[0].Value) != deep || string(got[2].Value) != big {
		t.Errorf("Members of a large object: %d, %v", len(got), err)
	}
	s := Scope{Output: func(string) (json.RawMessage, bool) { return object, true }}
	text, err := mustTemplate(t, `{{ run.outputs["n"].b }}{{ run.outputs["n"].deep }}`).Render(s)
	if want := strings.Trim(big, `"`) + deep; err != nil || text != want {
		t.Errorf("Render = %d bytes, %v, want %d", len(text), err, len(want))
	}
	tooDeep := strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129)
	if _, err := Members(json.RawMessage(tooDeep)); err == nil || !strings.Contains(err.Error(), "more than 128 levels") {
		t.Errorf("Members of 129 levels: %v", err)
	}
	args := Object([]Member{{"a", json.RawMessage("[" + deep + "]")}})
	if _, err := (&Workflow{ID: "w"}).ResolveInputs(args); err == nil || !strings.Contains(err.Error(), "more than 64 levels") {
		t.Errorf("ResolveInputs of 66 levels: %v", err)
	}
}

func TestObject(t *testing.T) {
	t.Parallel()
	got := string(Object([]Member{{`a"<`, json.RawMessage(`1.0`)}, {"b\xff", nil}}))
	if want := "{\"a\\\"<\":1.0,\"b\uFFFD\":null}"; got != want {
		t.Errorf("Object = %s, want %s", got, want)
	}
	if got := string(Object(nil)); got != "{}" {
		t.Errorf("Object(nil) = %s, want {}", got)
	}
}

func TestElements(t *testing.T) {
	t.Parallel()
	got, err := elements(json.RawMessage(`[ [1, 2], {"a" : 1}, "x" ]`))
	want := []json.RawMessage{json.RawMessage(`[1,2]`), json.RawMessage(`{"a":1}`), json.RawMessage(`"x"`)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("elements: %v, (-want +got)\n%s", err, diff)
	}
	if _, err := elements(json.RawMessage(`{}`)); err == nil {
		t.Error("elements({}) gave no error")
	}
}

func FuzzCompact(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.50,{"b":null}],"é":"\ud83d\udc26"}`, `"\ud800"`, `{"a":1,"a":2}`, `1e400`, `[[[[]]]]`,
		"\"\xff\"", `-0`, `{"":""}`, ` [ true , false ] `, `"\\\"\/\b\f\n\r\t\u0000"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		compact, err := Compact(src)
		canonical, errCanonical := Canonical(src)
		if (err == nil) != (errCanonical == nil) {
			t.Fatalf("Compact: %v, Canonical: %v", err, errCanonical)
		}
		if err != nil {
			return
		}
		if !json.Valid(src) || !json.Valid(compact) {
			t.Fatalf("accepted %q as %q, which is not JSON", src, compact)
		}
		if again, err := Compact(compact); err != nil || string(again) != string(compact) {
			t.Fatalf("Compact(%q) = %q, %v, not itself", compact, again, err)
		}
		if again, err := Canonical(compact); err != nil || string(again) != string(canonical) {
			t.Fatalf("Canonical(Compact) = %q, %v, want %q", again, err, canonical)
		}
		if diff := cmp.Diff(decoded(t, src), decoded(t, compact)); diff != "" {
			t.Fatalf("Compact changed the value (-src +compact)\n%s", diff)
		}
		if diff := cmp.Diff(decoded(t, src), decoded(t, canonical)); diff != "" {
			t.Fatalf("Canonical changed the value (-src +canonical)\n%s", diff)
		}
	})
}

func decoded(t *testing.T, src []byte) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(src)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("Decode(%q): %v", src, err)
	}
	return v
}
