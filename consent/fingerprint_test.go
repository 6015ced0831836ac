package consent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

type vector struct {
	ID       string
	Command  string
	Args     []string
	Env      map[string]string
	Cwd      string
	Preimage string
	Digest   string
	Strict   string `json:"digest_if_strict"`
}

func (v *vector) declaration() Declaration {
	return Declaration{Command: v.Command, Args: v.Args, Env: v.Env, Cwd: v.Cwd}
}

type vectors struct {
	Golden, Extra []vector
	Refuse        []struct {
		ID, JSON string
		BytesHex map[string]string `json:"bytes_hex"`
	}
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	src, err := os.ReadFile("testdata/consent_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(src, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Golden) != 4 || len(v.Extra) != 12 || len(v.Refuse) != 5 {
		t.Fatalf("testdata has %d, %d and %d vectors", len(v.Golden), len(v.Extra), len(v.Refuse))
	}
	return v
}

// The golden vectors of the contract, written out: the file may not drift from it.
func TestDigestGolden(t *testing.T) {
	t.Parallel()
	for _, test := range []vector{
		{
			Command: "/bin/x", Cwd: "/w",
			Digest: "v1:50264fc33efd1056148d3d6642a98fcb74e03b214ed9c380feddb92f7e1714c2",
		}, {
			Command: "/bin/é☃", Args: []string{"ünïcode"}, Cwd: "/w/é",
			Digest: "v1:fcf2ed9b8fd9d97d5c948cbddbc105319c78c2e3b486e5c7e9d89d5d8661e220",
		}, {
			Command: "/bin/x", Args: []string{`a"b`, `c\d`}, Cwd: "/w",
			Digest: "v1:8b7c2b426792b5ca2364dc74e4c8b73c386aada84fb4745513b2a826ab92ed43",
		}, {
			Command: "/bin/x", Env: map[string]string{"A": "{{secrets.k}}", "B": "secret:k"}, Cwd: "/w",
			Digest: "v1:0a178265ba8310190e1cfe4e6e53e4797a4ffdea6768b8faa8ab70331f58431d",
		},
	} {
		d := test.declaration()
		if got, err := d.Digest(); got != test.Digest || err != nil {
			t.Errorf("Digest(%+v) = %s, %v, want %s", d, got, err, test.Digest)
		}
	}
}

func TestDigestVectors(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, test := range slices.Concat(v.Golden, v.Extra) {
		d := test.declaration()
		text, err := d.Canonical()
		if err != nil || test.Preimage != "" && string(text) != test.Preimage {
			t.Errorf("%s: Canonical = %s, %v, want %s", test.ID, text, err, test.Preimage)
		}
		got, err := d.Digest()
		if got != test.Digest || err != nil {
			t.Errorf("%s: Digest = %s, %v, want %s", test.ID, got, err, test.Digest)
		}
		if got == test.Strict {
			t.Errorf("%s: Digest is that of the strict reading", test.ID)
		}
		// The same through the JSON form.
		src, err := json.Marshal(map[string]any{"transport": "stdio", "command": d.Command, "args": d.Args, "env": d.Env, "cwd": d.Cwd})
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := ParseDeclaration(src)
		if err != nil {
			t.Errorf("%s: ParseDeclaration: %v", test.ID, err)
			continue
		}
		if got, err := parsed.Digest(); got != test.Digest || err != nil {
			t.Errorf("%s: Digest of the parsed = %s, %v, want %s", test.ID, got, err, test.Digest)
		}
	}
}

func TestDigestRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range readVectors(t).Refuse {
		if test.JSON != "" {
			src := `{"transport":"stdio",` + strings.TrimPrefix(test.JSON, "{")
			if d, err := ParseDeclaration([]byte(src)); !errors.Is(err, ErrNoFaithfulForm) {
				t.Errorf("%s: ParseDeclaration = %+v, %v, want ErrNoFaithfulForm", test.ID, d, err)
			}
			continue
		}
		d := Declaration{Command: "/bin/x", Cwd: "/w"}
		for field, digits := range test.BytesHex {
			raw, err := hex.DecodeString(digits)
			if err != nil {
				t.Fatal(err)
			}
			*map[string]*string{"command": &d.Command, "cwd": &d.Cwd}[field] = string(raw)
		}
		if got, err := d.Digest(); got != "" || !errors.Is(err, ErrNoFaithfulForm) {
			t.Errorf("%s: Digest = %q, %v, want ErrNoFaithfulForm", test.ID, got, err)
		}
	}
	for _, d := range []Declaration{
		{Command: "/x", Cwd: "/w", Args: []string{"", "\xff"}},
		{Command: "/x", Cwd: "/w", Env: map[string]string{"\xed\xa0\x80": ""}},
		{Command: "/x", Cwd: "/w", Env: map[string]string{"A": "\xc0\x80"}},
	} {
		if got, err := d.Digest(); got != "" || !errors.Is(err, ErrNoFaithfulForm) {
			t.Errorf("Digest(%q) = %q, %v, want ErrNoFaithfulForm", d, got, err)
		}
	}
}

// Format cases 37 to 40.
func TestDigestFormatCases(t *testing.T) {
	t.Parallel()
	env := map[string]string{"WREN_KEY": "{{secrets.owl}}", "WREN_MODE": "fast"}
	for _, test := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"37 reference", []string{"--nest", "dusk"}, env, "v1:1fdad4e7a47fb092c705693ced61cb849a6655c89e7259c263a881846bea1ee2"},
		{
			"37 literal",
			[]string{"--nest", "dusk"},
			map[string]string{"WREN_KEY": "Bearer {{secrets.owl}}", "WREN_MODE": "fast"},
			"v1:a2315a30d5ef1f6dc2cba0f463dd55f8e3c91c0f37534bd98baef6f2417ed346",
		},
		{"38", []string{"dusk", "--nest"}, env, "v1:17434668d2b4b95c93d2e5c72c8f4c0fb4d07ea2d68c17f03b95a7cafa3209ac"},
		{"39", []string{"<&>", "\u2028", "\b\x1f"}, nil, "v1:7649c7e32c347ba9242ab45f3971c63660a73d98c3540cc214b67f2df796d0de"},
		{"40", nil, map[string]string{"\uff5e": "1", "\U0001f426": "2"}, "v1:989d8f1b7eacc1e0367ce33ac2b3c9076081c72d60c32264b6ba92f1d9604f0b"},
	} {
		d := Declaration{Command: "/opt/aviary/bin/wren", Args: test.args, Env: test.env, Cwd: "/srv/aviary"}
		if got, err := d.Digest(); got != test.want || err != nil {
			t.Errorf("%s: Digest = %s, %v, want %s", test.name, got, err, test.want)
		}
	}
}

// One byte changed anywhere makes another digest.
func TestDigestEveryByteCounts(t *testing.T) {
	t.Parallel()
	base := func() Declaration {
		return Declaration{Command: "/bin/wren", Args: []string{"-y", "dusk"}, Env: map[string]string{"KEY": "{{secrets.owl}}", "MODE": "fast"}, Cwd: "/srv/a"}
	}
	first := base()
	seen := map[string]string{}
	add := func(what string, d *Declaration) {
		got, err := d.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := seen[got]; ok {
			t.Errorf("%s has the digest of %s", what, before)
		}
		seen[got] = what
	}
	add("the base", &first)
	change := func(what, text string, set func(d *Declaration, text string)) {
		for i := range len(text) {
			raw := []byte(text)
			raw[i] ^= 1
			d := base()
			set(&d, string(raw))
			add(what+" "+string(raw), &d)
		}
	}
	change("command", first.Command, func(d *Declaration, text string) { d.Command = text })
	change("cwd", first.Cwd, func(d *Declaration, text string) { d.Cwd = text })
	change("args[0]", first.Args[0], func(d *Declaration, text string) { d.Args[0] = text })
	change("args[1]", first.Args[1], func(d *Declaration, text string) { d.Args[1] = text })
	change("KEY", first.Env["KEY"], func(d *Declaration, text string) { d.Env["KEY"] = text })
	change("MODE", first.Env["MODE"], func(d *Declaration, text string) { d.Env["MODE"] = text })
	change("name", "MODE", func(d *Declaration, text string) { delete(d.Env, "MODE"); d.Env[text] = "fast" })
	for what, set := range map[string]func(d *Declaration){
		"one argument more":  func(d *Declaration) { d.Args = append(d.Args, "") },
		"arguments joined":   func(d *Declaration) { d.Args = []string{"-y dusk"} },
		"arguments swapped":  func(d *Declaration) { slices.Reverse(d.Args) },
		"one variable less":  func(d *Declaration) { delete(d.Env, "MODE") },
		"marker for the tag": func(d *Declaration) { d.Env["KEY"] = "secret:owl" },
	} {
		d := base()
		set(&d)
		add(what, &d)
	}
}

func TestParseDeclarationRefuses(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		``:        "not one JSON value",
		`[]`:      "not a JSON object",
		`{}`:      "transport is missing",
		`{} {}`:   "not one JSON value",
		`{"a":1}`: "transport is missing",
		`{"transport":"http","command":"/x","cwd":"/w"}`:                                   "expected \"stdio\"",
		`{"transport":null,"command":"/x","cwd":"/w"}`:                                     "transport: expected a string",
		`{"transport":"stdio","cwd":"/w"}`:                                                 "command is missing",
		`{"transport":"stdio","command":"/x"}`:                                             "cwd is missing",
		`{"transport":"stdio","command":"npx","cwd":"/w"}`:                                 "command: not an absolute path",
		`{"transport":"stdio","command":"/x","cwd":"w"}`:                                   "cwd: not an absolute path",
		`{"transport":"stdio","command":"/x","cwd":"/w","args":null}`:                      "args: expected an array of strings",
		`{"transport":"stdio","command":"/x","cwd":"/w","args":[null]}`:                    "args: expected an array of strings",
		`{"transport":"stdio","command":"/x","cwd":"/w","args":[1]}`:                       "args: expected an array of strings",
		`{"transport":"stdio","command":"/x","cwd":"/w","args":"a"}`:                       "args: expected an array of strings",
		`{"transport":"stdio","command":"/x","cwd":"/w","env":{"A":1}}`:                    "env: expected an object of strings",
		`{"transport":"stdio","command":"/x","cwd":"/w","env":{"A":null}}`:                 "env: expected an object of strings",
		`{"transport":"stdio","command":"/x","cwd":"/w","env":[]}`:                         "env: not a JSON object",
		`{"transport":"stdio","command":"/x","cwd":"/w","env":{"A":"1","A":"2"}}`:          "\"A\" stands twice",
		`{"transport":"stdio","command":"/x","cwd":"/w","env":{"A":"1","\u0041":"2"}}`:     "\"A\" stands twice",
		`{"transport":"stdio","command":"/x","cwd":"/w","command":"/y"}`:                   "\"command\" stands twice",
		`{"transport":"stdio","command":"/x","cwd":"/w","Command":"/y"}`:                   "unknown member \"Command\"",
		`{"transport":"stdio","command":"/x","cwd":"/w","shell":true}`:                     "unknown member \"shell\"",
		`{"transport":"stdio","command":"/x\ud83d","cwd":"/w"}`:                            "lone surrogate",
		`{"transport":"stdio","command":"/x\ud83d\ud83d\ude00","cwd":"/w"}`:                "lone surrogate",
		`{"transport":"stdio","command":"/x\\\udc00","cwd":"/w"}`:                          "lone surrogate",
		"{\"transport\":\"stdio\",\"command\":\"/x\xff\",\"cwd\":\"/w\"}":                  "not well-formed",
		`{"transport":"stdio","command":"/` + strings.Repeat("x", 1<<20) + `","cwd":"/w"}`: "more than 1048576 bytes",
	} {
		if d, err := ParseDeclaration([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseDeclaration(%.90s) = %+v, %v, want %s", src, d, err, want)
		}
	}
	// What only looks like a lone surrogate is none.
	for src, want := range map[string]string{`"/\\ud800"`: `/\ud800`, `"/\ud83d\ude00"`: "/😀", `"/\uD83D\uDE00\u0041"`: "/😀A"} {
		d, err := ParseDeclaration([]byte(`{"transport":"stdio","command":` + src + `,"cwd":"/w"}`))
		if err != nil || d.Command != want {
			t.Errorf("ParseDeclaration(%s) = %q, %v, want %q", src, d.Command, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Declaration{Command: "/bin/x", Args: []string{"{{inputs.a}}", "secrets."}, Env: map[string]string{"TOKEN": "x {{secrets.t}}"}, Cwd: "/w"}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate = %v", err)
	}
	for want, d := range map[string]Declaration{
		"command: not a clean": {Command: "/bin/../x", Cwd: "/w"},
		"cwd: not a clean":     {Command: "/bin/x", Cwd: "/w/"},
		"outside env":          {Command: "/bin/x", Cwd: "/w", Args: []string{"--k={{ secrets.t }}"}},
		"LD_PRELOAD":           {Command: "/bin/x", Cwd: "/w", Env: map[string]string{"LD_PRELOAD": ""}},
		"NUL":                  {Command: "/bin/x", Cwd: "/w", Env: map[string]string{"A": "\x00"}},
		"well-formed":          {Command: "/bin/x", Cwd: "/w", Args: []string{"\xff"}},
	} {
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate(%+v) = %v, want %s", d, err, want)
		}
	}
}

func TestSecretRef(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 128)
	for value, want := range map[string]string{
		"{{secrets.a}}": "a", "{{ \tsecrets.a\t }}": "a", "{{secrets.a-b_c.D9}}": "a-b_c.D9", "{{secrets." + long + "}}": long,
		"{{secrets." + long + "n}}": "", "{{secrets.}}": "", " {{secrets.a}}": "", "{{secrets.a}} ": "", "{{secrets.a}}\n": "", "{{\nsecrets.a}}": "",
		"{{secrets. a}}": "", "{{secrets.a}}{{secrets.b}}": "", "{{{secrets.a}}}": "", "{{secrets.a b}}": "", "{{secret.a}}": "", "{{}}": "", "{{": "", "": "",
		"{{Secrets.a}}": "", "{{secrets.é}}": "", "{{secrets.a|json}}": "",
	} {
		if got, ok := SecretRef(value); got != want || ok != (want != "") {
			t.Errorf("SecretRef(%q) = %q, %v, want %q", value, got, ok, want)
		}
	}
}

// unitsCompare is the order by its definition.
func unitsCompare(x, y string) int {
	return slices.Compare(utf16.Encode([]rune(x)), utf16.Encode([]rune(y)))
}

func FuzzCanonical(f *testing.F) {
	f.Add("/bin/x", "a\x00\u2028", "\uff5e", "\U0001f426", "{{secrets.k}}", "/w")
	f.Add("/\ud7ff", "\\", "\ue000", "\U0010ffff", "{{ secrets.k }}", "\x7f")
	f.Add("/", "<&>", "a", "a\xff", "", "")
	f.Fuzz(func(t *testing.T, command, arg, name1, name2, value, cwd string) {
		d := Declaration{Command: command, Args: []string{arg, value}, Env: map[string]string{name1: value, name2: arg}, Cwd: cwd}
		text, err := d.Canonical()
		valid := utf8.ValidString(command + " " + arg + " " + name1 + " " + name2 + " " + value + " " + cwd)
		if (err == nil) != valid {
			t.Fatalf("Canonical(%q) = %v, valid is %v", d, err, valid)
		}
		if err != nil {
			return
		}
		if got, want := cmp.Compare(compareUTF16(name1, name2), 0), unitsCompare(name1, name2); got != want {
			t.Errorf("compareUTF16(%q, %q) = %d, want %d", name1, name2, got, want)
		}
		// Another reader gets back what went in, in the same order.
		var back struct {
			Args         []string
			Command, Cwd string
			Env          map[string]struct{ Kind, Name, Value string }
			Transport    string
		}
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatalf("Canonical = %s: %v", text, err)
		}
		if back.Command != command || back.Cwd != cwd || !slices.Equal(back.Args, d.Args) || back.Transport != "stdio" || len(back.Env) != len(d.Env) {
			t.Errorf("Canonical = %s, want %+v", text, d)
		}
		for name, entry := range back.Env {
			ref, isRef := SecretRef(d.Env[name])
			if isRef && (entry.Kind != "secret-ref" || entry.Name != ref) || !isRef && (entry.Kind != "literal" || entry.Value != d.Env[name]) {
				t.Errorf("%q = %+v, want %q", name, entry, d.Env[name])
			}
		}
		sum := sha256.Sum256(text)
		if got, err := d.Digest(); err != nil || got != "v1:"+hex.EncodeToString(sum[:]) || !IsDigest(got) {
			t.Errorf("Digest = %s, %v", got, err)
		}
		if names := slices.SortedFunc(maps.Keys(d.Env), unitsCompare); len(names) == 2 &&
			strings.Index(string(text), string(appendQuoted(nil, names[0]))+`:{"kind"`) > strings.LastIndex(string(text), string(appendQuoted(nil, names[1]))+`:{"kind"`) {
			t.Errorf("Canonical = %s, want %q first", text, names[0])
		}
	})
}
