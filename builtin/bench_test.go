package builtin

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/workflows"
)

// BenchmarkCall is what one call costs over the system calls that it must make.
func BenchmarkCall(b *testing.B) {
	root, home := b.TempDir(), b.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.txt"), []byte(strings.Repeat("x", 4096)), 0o600); err != nil {
		b.Fatal(err)
	}
	tools, err := New(Options{Home: home, Logger: slog.New(slog.DiscardHandler), Environ: os.Environ()})
	if err != nil {
		b.Fatal(err)
	}
	s := &site{root: root, home: home, tools: tools, workflow: &workflows.Workflow{ID: "tidy"}}
	for name, call := range map[string]*workflows.ToolCall{
		"read_file":      s.request("read_file", `{"path":"a.txt"}`),
		"write_file":     s.request("write_file", `{"path":"run:b.txt","content":"x"}`),
		"list_directory": s.request("list_directory", `{"path":"."}`),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := tools.Call(b.Context(), call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
