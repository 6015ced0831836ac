package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/engine"
)

// An interrupted run drains to run:cancelled, as the last line, and ends with 1
// (format 5.5); the store says so too.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	project := filepath.Join(t.TempDir(), "p")
	if err := os.MkdirAll(filepath.Join(project, ".relavium"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `schema_version: '1.0'
workflow:
  id: slow
  nodes:
    - {id: in, type: input}
    - {id: spin, type: transform, transform: '(() => { for (;;); })()', retry: {max: 3, backoff: linear, backoff_ms: 600000}}
    - {id: out, type: output}
  edges: [{from: in, to: spin}, {from: spin, to: out}]
`
	if err := os.WriteFile(filepath.Join(project, ".relavium", "slow.relavium.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=" + filepath.Dir(project), "RELAVIUM_HOME=" + filepath.Join(filepath.Dir(project), "home")}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	read, write := io.Pipe()
	var diag bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"run", "slow", "--json", "--cwd", project}, strings.NewReader(""), write, &diag, environ)
		_ = write.Close()
	}()
	var last engine.Event
	lines := bufio.NewScanner(read)
	for n := int64(0); lines.Scan(); n++ {
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			t.Fatal(err)
		}
		if last.N != n {
			t.Errorf("event %d has number %d", n, last.N)
		}
		if last.Type == engine.NodeRetrying {
			interrupt()
		}
	}
	if got := <-code; got != exitFailed || last.Type != engine.RunCancelled {
		t.Fatalf("run = exit %d after %s, want 1 after run:cancelled\n%s", got, last.Type, &diag)
	}
	if diag.Len() > 0 {
		t.Errorf("standard error = %q, want nothing", &diag)
	}
	var shown bytes.Buffer
	args := []string{"runs", "show", last.Run, "--json", "--cwd", project}
	if got := run(t.Context(), args, strings.NewReader(""), &shown, &diag, environ); got != exitDone || !strings.Contains(shown.String(), `"state": "cancelled"`) {
		t.Errorf("runs show = exit %d, %s, want the cancelled run", got, &shown)
	}
}
