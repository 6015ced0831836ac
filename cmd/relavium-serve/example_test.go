package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestExamplesRun runs every example of every help text that names no run, gate,
// server, secret or digest of a grant, in the repository's root, without a person: it ends
// well, or at a gate.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=" + t.TempDir(), "RELAVIUM_HOME=" + t.TempDir()}
	a := &app{shell: newShell(strings.NewReader(""), new(bytes.Buffer), new(bytes.Buffer), environ)}
	names := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-`) // a run or a gate
	ran := 0
	each(a.command(), func(cmd *cobra.Command) {
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " >")
			if strings.HasPrefix(line, "relavium-serve secrets ") && !strings.Contains(line, " list") {
				continue
			}
			line, input, hasInput := strings.Cut(line, " < ")
			var stdin []byte
			if hasInput {
				if stdin, err = os.ReadFile(filepath.Join(root, input)); err != nil {
					t.Error(err)
				}
			}
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "relavium-serve" {
				t.Errorf("%s: example %q is no command line", cmd.CommandPath(), line)
				continue
			}
			waits := words[1] == "console" || words[1] == "health" || strings.Contains(line, "--transport http")
			if waits || strings.Contains(line, "RUN") || strings.Contains(line, "DIGEST") || strings.Contains(line, "SERVER") || strings.HasSuffix(line, " ID") || names.MatchString(line) {
				continue
			}
			ran++
			stderr := new(bytes.Buffer)
			code := run(t.Context(), append(words[1:], "--cwd", root), bytes.NewReader(stdin), new(bytes.Buffer), stderr, environ)
			if code != exitDone && code != exitWaiting {
				t.Errorf("%s = exit %d, want 0 or 3\n%s", line, code, stderr)
			}
		}
	})
	if ran < 10 {
		t.Errorf("%d examples ran, want those of most commands", ran)
	}
}

// each visits a command and all below it.
func each(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, visit)
	}
}
