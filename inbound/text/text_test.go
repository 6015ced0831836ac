package text

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

type cases struct {
	Clean []struct {
		ID, In, Out string
	}
	Semantic []struct {
		Value string
		Admit bool
	}
}

func readCases(tb testing.TB) (c cases) {
	tb.Helper()
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestCleanCases(t *testing.T) {
	t.Parallel()
	all := readCases(t).Clean
	if len(all) != 26 {
		t.Fatalf("%d cases, want 26", len(all))
	}
	for _, c := range all {
		if got := Clean(c.In); got != c.Out {
			t.Errorf("%s: Clean(%q) = %q, want %q", c.ID, c.In, got, c.Out)
		}
	}
}

func TestCheckCases(t *testing.T) {
	t.Parallel()
	all := readCases(t).Semantic
	if len(all) != 18 {
		t.Fatalf("%d cases, want 18", len(all))
	}
	for _, c := range all {
		err := Check(c.Value)
		if (err == nil) != c.Admit {
			t.Errorf("Check(%q) = %v, want admitted %t", c.Value, err, c.Admit)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", maxSequence)
	for in, want := range map[string]string{
		"":                                "",
		"\xff\xfea":                       "\uFFFDa",
		"a\x1b]0;seen\x1b[0mb":            "a0;seenb", // another sequence is no end
		"a\x1b]" + long + "\x07b":         "ab",
		"a\x1b]" + long + "é\x07b":        "a" + long + "éb",
		"\u009b\u009b1mx":                 "x",
		"a\r\x1b[0m\nb":                   "a\nb",
		"a\n\rb":                          "a\n\nb",
		"é\u2060\U000E0041\uFFFE":         "é",
		"\u3164\uFFA0\u115F\u1160":        "",
		"\x1b(Bx\x1b=y\x1b%/Gz":           "xyz",
		"a\x1bP1;2q\x1b\\b\u0090x\u009cc": "abc",
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%.80q) = %.80q, want %.80q", in, got, want)
		}
	}
}

// The time is linear in the length for each introducer without an end.
func TestCleanIsLinear(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"\x1b]", "\u009d", "\x1b[", "\x1b[1", "\x1bP\r", "\x1b", "\u0090a", "\x1b]\u2028é"} {
		in := strings.Repeat(unit, 4<<20/len(unit))
		began := time.Now()
		got := Clean(in)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("Clean of 4 MiB of %q takes %v, want linear time", unit, took)
		}
		if strings.ContainsRune(got, esc) {
			t.Errorf("Clean of 4 MiB of %q holds an ESC", unit)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	err := Check("é\u202e")
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || refused.Rune != 0x202E || refused.Offset != 2 {
		t.Errorf("Check = %v, want U+202E at byte 2", err)
	}
	if err := Check("a\xff"); err == nil || err.Error() != "not UTF-8 at byte 1" {
		t.Errorf("Check = %v, want not UTF-8 at byte 1", err)
	}
	if err := Check("\uFFFD"); err != nil {
		t.Errorf("Check(U+FFFD) = %v, want nil", err)
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{Line(" a\n\x1b[31mb\t c ", 100), "a b c"},
		{Line("ééééé", 7), "éé…"},
		{Cut("abcdef", 6), "abcdef"},
		{Cut("abcdefg", 6), "abc…"},
		{Cut("abc", 2), ""},
		{Cut("éé", 3), "…"},
		{Quote("a\u202e\n\"\\\xff", 100), `"a\u{202E}\u{A}\"\\\xff"`},
		{Quote("abcdefgh", 4), `"abcd…"`},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func FuzzClean(f *testing.F) {
	for _, c := range readCases(f).Clean {
		f.Add(c.In)
	}
	f.Add("\x1b]\x1b[\x1b\\\u009c\xff\r\x1b")
	f.Fuzz(func(t *testing.T, in string) {
		got := Clean(in)
		if !utf8.ValidString(got) {
			t.Fatalf("Clean(%q) = %q, want UTF-8", in, got)
		}
		for _, r := range got {
			if r != '\n' && r != '\t' && (steers(r) || unseen(r)) {
				t.Fatalf("Clean(%q) = %q holds %U", in, got, r)
			}
		}
		if again := Clean(got); again != got {
			t.Fatalf("Clean(Clean(%q)) = %q, want %q", in, again, got)
		}
		if Check(in) == nil && got != in {
			t.Fatalf("Clean(%q) = %q, want what Check admits as it is", in, got)
		}
		if quoted := Quote(in, 1<<20); Check(quoted) != nil {
			t.Fatalf("Quote(%q) = %q, want it to pass Check", in, quoted)
		}
	})
}

func BenchmarkClean(b *testing.B) {
	for name, unit := range map[string]string{
		"ascii":  "List the issues of a repository, newest first.\n",
		"accent": "Liste les tâches d’un dépôt, les plus récentes d’abord.\n",
		"escape": "\x1b[31mred\x1b[0m \x1b]8;;http://e\x1b\\link\x1b]8;;\x1b\\\r\n",
		"open":   "\x1b]",
	} {
		in := strings.Repeat(unit, 1<<20/len(unit))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				Clean(in)
			}
		})
	}
}
