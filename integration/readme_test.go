package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// TestReadme runs the README's shell blocks one after the other, as a reader who
// pastes them into one shell would, and reads its JSON. A block says "exit=N"
// behind its language if it ends with another code than 0.
func TestReadme(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the README's blocks are for a POSIX shell")
	}
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := install(t, "").project(t, "reader", nil)
	blocks := regexp.MustCompile("(?ms)^```(\\w+)([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(string(raw), -1)
	script, ran := new(strings.Builder), 0
	for _, b := range blocks {
		switch language, rest, text := b[1], strings.TrimSpace(b[2]), b[3]; language {
		case "json":
			if !json.Valid([]byte(text)) {
				t.Errorf("README block is no JSON:\n%s", text)
			}
		case "sh":
			want := 0
			if _, err := fmt.Sscanf(rest, "exit=%d", &want); rest != "" && err != nil {
				t.Fatalf("README block has the mark %q, want exit=N", rest)
			}
			fmt.Fprintf(script, "set -e\n")
			if want != 0 {
				fmt.Fprintf(script, "set +e\n")
			}
			fmt.Fprintf(script, "echo '--- block %d' >&2\n%s", ran, text)
			if want != 0 {
				fmt.Fprintf(script, "code=$?\n[ $code = %d ] || { echo \"exit code $code, want %d\" >&2; exit 1; }\n", want, want)
			}
			ran++
		}
	}
	if ran < 4 {
		t.Fatalf("%d shell blocks found in README.md, want at least 4", ran)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", script.String())
	cmd.Dir = p.installation.dir
	cmd.Env = append(p.environment(), "PATH="+filepath.Dir(binary)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() < 0 {
			t.Fatal(err)
		}
		t.Fatalf("README: %v\nstdout:\n%s\nstderr:\n%s", err, out.String(), diag.String())
	}
	for _, want := range []string{"flowchart", "Publish this?", `"published": true`, "whistles"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("README's commands print\n%s\nwant %q in it", out.String(), want)
		}
	}
}
