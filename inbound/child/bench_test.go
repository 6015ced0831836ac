package child

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// BenchmarkRun is what a command costs from start to end, beside the same command without
// a supervisor.
func BenchmarkRun(b *testing.B) {
	if runtime.GOOS == "windows" {
		b.Skip("there is no /bin/true")
	}
	b.Run("supervised", func(b *testing.B) {
		table := NewTable(TableOptions{})
		for b.Loop() {
			if _, err := table.Run(b.Context(), Spec{Path: "/bin/true", Dir: "/"}, Bounds{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if err := exec.CommandContext(b.Context(), "/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkStart is the same for a server that is started and closed.
func BenchmarkStart(b *testing.B) {
	if _, err := os.Stat("/bin/cat"); err != nil {
		b.Skip("there is no /bin/cat")
	}
	table := NewTable(TableOptions{})
	for b.Loop() {
		p, err := table.Start(b.Context(), Spec{Path: "/bin/cat", Dir: "/"})
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
