package inbound

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/inbound/child"
)

// TestMain makes the test binary a supervisor, and the servers that the tests start.
func TestMain(m *testing.M) {
	if child.Supervising() {
		os.Exit(child.Supervise()) //nolint:forbidigo // TestMain is this package's main
	}
	if name := os.Getenv(serverVariable); name != "" {
		os.Exit(runServer(name)) //nolint:forbidigo // as above
	}
	goleak.VerifyTestMain(m)
}
