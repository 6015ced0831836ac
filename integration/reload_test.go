package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestReload edits the files of a running server: its client is told and sees the
// tools of now.
func TestReload(t *testing.T) {
	t.Parallel()
	node := clientRuntime(t)
	p := install(t, "").project(t, "reload", testdata(t, "ok"))
	greet, err := os.ReadFile(filepath.Join("testdata", "greet.relavium.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join("clients", "reload.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	steps := startSteps(t, p, []string{node, script, "2", binary, "serve", "--publish", "@mcp_call", "--no-run-tools"})
	var declared struct{ ListChanged bool }
	if steps.next("declared", &declared); !declared.ListChanged {
		t.Error("listChanged is not declared")
	}
	shows := func(want ...string) {
		t.Helper()
		var got struct{ Tools []string }
		if steps.next("tools", &got); !slices.Equal(got.Tools, want) {
			t.Errorf("tools = %v, want %v", got.Tools, want)
		}
	}
	shows("relavium_ok")
	if err := os.WriteFile(p.file("greet"), greet, 0o600); err != nil {
		t.Fatal(err)
	}
	shows("relavium_greet", "relavium_ok")
	if err := os.Remove(p.file("ok")); err != nil {
		t.Fatal(err)
	}
	shows("relavium_greet")
	steps.end()
}
