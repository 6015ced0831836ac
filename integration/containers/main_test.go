package containers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/testcontainers/testcontainers-go/log"
)

// The images that the tests use.
const (
	product  = "relavium-serve:test"
	database = "relavium-postgres:test"
)

func TestMain(m *testing.M) {
	log.SetDefault(quiet{})
	if private() {
		if err := images(); err != nil {
			fmt.Fprintln(os.Stderr, "containers:", err)
			os.Exit(1) //nolint:forbidigo // TestMain is this package's main
		}
	}
	os.Exit(m.Run()) //nolint:forbidigo // TestMain is this package's main
}

// quiet drops what testcontainers tells of each step.
type quiet struct{}

// Printf does nothing.
func (quiet) Printf(string, ...any) {}

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
		t.Skip("no container engine of its own: start it with make test-containers, which needs root, and Debian's docker.io, docker-compose, postgresql and haproxy")
	}
}

func images() error {
	for _, image := range [][2]string{{"image", product}, {"postgres-image", database}} {
		build := exec.Command(filepath.Join("..", "..", "scripts", image[0]), image[1])
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("scripts/%s: %w\n%s", image[0], err, out)
		}
	}
	return nil
}
