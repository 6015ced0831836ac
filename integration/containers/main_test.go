package containers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The images that the tests use.
const (
	product  = "relavium-serve:test"
	database = "relavium-postgres:test"
)

func TestMain(m *testing.M) {
	if private() {
		if err := images(); err != nil {
			fmt.Fprintln(os.Stderr, "containers:", err)
			os.Exit(1) //nolint:forbidigo // TestMain is this package's main
		}
	}
	os.Exit(m.Run()) //nolint:forbidigo // TestMain is this package's main
}

// private reports whether the tests have a container engine of their own.
func private() bool { return os.Getenv("NETNS") != "" }

// needEngine skips a test where there is no such engine; in CI that is a failure.
func needEngine(t *testing.T) {
	t.Helper()
	switch {
	case private():
	case os.Getenv("CI") != "":
		t.Fatal("no container engine of its own: start it with make test-containers")
	default:
		t.Skip("no container engine of its own: start it with make test-containers, which needs root, docker.io and postgresql")
	}
}

func images() error {
	for _, image := range [][2]string{{"image", product}, {"postgres-image", database}} {
		build := exec.Command(filepath.Join("..", "..", "scripts", image[0]), image[1])
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("scripts/%s: %w", image[0], err)
		}
	}
	return nil
}
