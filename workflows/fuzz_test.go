package workflows

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Whatever the bytes, Parse ends soon, fails with Problems only, and what it
// accepts comes back from its snapshot.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"good", "bad"} {
		names, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			src, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	for _, src := range []string{
		"", "\xff\xfe", "\uFEFF---\n", "%YAML 1.2\n---\na: 1\n", "[[[[", "{{{{", "? ? ?", "- - -", "&a *a", "!", "! !", "a: !\n", "|", ">9", "\"\\x", "\t",
		"a:\r\n b", "\u2028", "a: |\n\u0085b", "<<: a", "'<<': a", "? [a]\n: b", "{a, b}", "a: .5", "0x: 1", "---\n--- \n", "...\n", "a: \"\\ud800\"",
	} {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		begin := time.Now()
		w, warnings, err := Parse("f", src, testOptions("testdata/good"))
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("Parse took %v", took)
		}
		checkProblems(t, warnings, len(src))
		if err != nil {
			problems, ok := errors.AsType[Problems](err)
			if !ok || len(problems) == 0 || w != nil {
				t.Fatalf("Parse = %v, %v, want Problems alone", w, err)
			}
			checkProblems(t, problems, len(src))
			return
		}
		checkRoundTrip(t, w)
		if _, err := Compact(w.Snapshot()); err != nil {
			t.Errorf("Snapshot() is no strict JSON: %v", err)
		}
		if len(w.Topological()) != len(w.Nodes) {
			t.Errorf("Topological() = %v, want all %d nodes", w.Topological(), len(w.Nodes))
		}
		for _, n := range w.Nodes {
			w.MergeOrder(n.ID)
		}
	})
}

func checkProblems(t *testing.T, problems Problems, size int) {
	t.Helper()
	if len(problems) > maxProblems+1 {
		t.Errorf("%d problems", len(problems))
	}
	for _, p := range problems {
		if p.What == "" || p.Class == "" || p.Line < 1 && p.File == "f" || p.Col < 1 && p.File == "f" || p.Col > size+2 {
			t.Errorf("problem %+v is not whole", p)
		}
		if strings.ContainsAny(p.String(), "\n\r\x1b") {
			t.Errorf("problem %q holds a control character", p.String())
		}
	}
}

// FuzzFromSnapshot: a snapshot that is not ours is an error, never a panic.
func FuzzFromSnapshot(f *testing.F) {
	for _, src := range []string{"", "{}", `{"workflow":{},"agents":[]}`, `{"workflow":null,"agents":null}`} {
		f.Add([]byte(src))
	}
	names, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		src, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		if w, _, err := Parse(name, src, testOptions("testdata/good")); err == nil {
			f.Add([]byte(w.Snapshot()))
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if w, err := FromSnapshot(src); err == nil {
			checkRoundTrip(t, w)
		}
	})
}
