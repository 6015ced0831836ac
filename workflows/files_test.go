package workflows

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// testOptions knows a little of everything a loader could be told.
func testOptions(dir string) Options {
	registry := map[string]*Agent{
		"ranger": {
			ID: "ranger", Provider: "openai", Model: "m-7", SystemPrompt: `After {{ run.outputs["in"] }}.`,
			Servers: []ServerRef{{ID: "cam", Transport: "stdio", Command: "cam", Env: []EnvVar{{"A", "b"}}}},
			Retry:   &Retry{Max: 2, Backoff: "linear", Base: 1},
		},
		"leaky": {ID: "leaky", Provider: "openai", Model: "m-7", SystemPrompt: "Mind {{ inputs.pin }}."},
	}
	registry["ranger"].Retry = nil
	return Options{
		EnvDenied: func(name string) (string, bool) {
			return "it steers an interpreter", strings.EqualFold(name, "NODE_OPTIONS")
		},
		CheckURL: func(rawURL string, local bool) error {
			if strings.Contains(rawURL, "10.0.0.1") && !local {
				return errors.New("address is private")
			}
			return nil
		},
		Servers: []string{"cameras"},
		Registry: func(id string) (*Agent, bool) {
			a, ok := registry[id]
			return a, ok
		},
		ReadRef: func(path string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, path)) },
	}
}

// wanted are the lines after "# want: " at the head of a file.
func wanted(src []byte) string {
	var lines []string
	for line := range strings.Lines(string(src)) {
		text, ok := strings.CutPrefix(line, "# want: ")
		if !ok {
			break
		}
		lines = append(lines, strings.TrimSpace(text))
	}
	return strings.Join(lines, "\n")
}

// told are errors, then warnings, a line each with its rule.
func told(err error, warnings Problems) string {
	problems, _ := errors.AsType[Problems](err)
	var lines []string
	for _, p := range slices.Concat(problems, warnings) {
		lines = append(lines, p.Rule+" "+p.String())
	}
	return strings.Join(lines, "\n")
}

func testFiles(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", dir, "*.relavium.yaml"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no files in testdata/%s: %v", dir, err)
	}
	return names
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, name := range testFiles(t, "bad") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			w, warnings, err := Parse(filepath.Base(name), src, testOptions(filepath.Dir(name)))
			if w != nil || err == nil {
				t.Fatalf("Parse(%s) = %v, %v, want problems", name, w, err)
			}
			if diff := cmp.Diff(wanted(src), told(err, warnings)); diff != "" {
				t.Errorf("Parse(%s) (-want +got):\n%s", name, diff)
			}
		})
	}
}

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	for _, name := range testFiles(t, "good") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			w, warnings, err := Parse(filepath.Base(name), src, testOptions(filepath.Dir(name)))
			if err != nil {
				t.Fatalf("Parse(%s) = %v, want a workflow", name, err)
			}
			if diff := cmp.Diff(wanted(src), told(nil, warnings)); diff != "" {
				t.Errorf("Parse(%s) warnings (-want +got):\n%s", name, diff)
			}
			checkRoundTrip(t, w)
		})
	}
}

// checkRoundTrip demands that a snapshot holds all of a workflow.
func checkRoundTrip(t *testing.T, w *Workflow) {
	t.Helper()
	again, err := FromSnapshot(w.Snapshot())
	if err != nil {
		t.Fatalf("FromSnapshot(%s) = %v, want a workflow", w.Snapshot(), err)
	}
	if diff := cmp.Diff(withoutFile(w), withoutFile(again), workflowComparer()); diff != "" {
		t.Errorf("FromSnapshot(Snapshot()) (-want +got):\n%s", diff)
	}
	if w.Digest() != again.Digest() || string(w.Snapshot()) != string(again.Snapshot()) {
		t.Errorf("FromSnapshot(Snapshot()).Digest() = %s, want %s", again.Digest(), w.Digest())
	}
}

func withoutFile(w *Workflow) *Workflow {
	plain := *w
	plain.File = ""
	plain.expressions = slices.Clone(plain.expressions)
	for i := range plain.expressions { // a snapshot has no lines
		plain.expressions[i].Line, plain.expressions[i].Col = 0, 0
	}
	return &plain
}

func workflowComparer() cmp.Option {
	return cmp.Options{
		cmp.AllowUnexported(Workflow{}, graph{}),
		cmp.Comparer(func(a, b *Template) bool {
			return a == nil && b == nil || a != nil && b != nil && a.Source() == b.Source()
		}),
		cmp.Comparer(func(a, b *compiledSchema) bool { return (a == nil) == (b == nil) }),
	}
}

// Every rule of format 1.16 that can be told from a file alone has a bad file.
func TestEveryRuleHasAFile(t *testing.T) {
	t.Parallel()
	elsewhere := map[string]string{
		"P01": "decode_test.go: size",
		"P62": "needs a catalog of models",
		"P74": "needs the providers' keys",
	}
	seen := make(map[string]bool)
	for _, name := range testFiles(t, "bad") {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(wanted(src)) {
			rule, _, _ := strings.Cut(line, " ")
			seen[rule] = true
		}
	}
	for n := 1; n <= 75; n++ {
		rule := fmt.Sprintf("P%02d", n)
		if _, other := elsewhere[rule]; seen[rule] == other {
			t.Errorf("rule %s: has a file is %v, want %v", rule, seen[rule], !other)
		}
	}
}
