package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// binary is the relavium-serve that every test starts, built once.
var binary string

func TestMain(m *testing.M) {
	if held() {
		return
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // TestMain is this package's main
}

// buildAndRun builds the binary as a user gets it (no cgo, no race detector), so
// that what is killed and measured is what is shipped.
func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "relavium-serve-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "relavium-serve")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	build := exec.Command("go", "build", "-trimpath", "-o", binary, "github.com/relavium/relavium-serve/cmd/relavium-serve")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return 0, fmt.Errorf("go build: %w", err)
	}
	return m.Run(), nil
}
