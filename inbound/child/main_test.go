package child

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the test binary what the product's binary is, a supervisor, and what
// the tests start: programs that behave badly, and hosts that end badly.
func TestMain(m *testing.M) {
	if Supervising() {
		os.Exit(Supervise()) //nolint:forbidigo // this is main
	}
	if name := os.Getenv(fixtureVariable); name != "" {
		os.Exit(runFixture(name, os.Stdout)) //nolint:forbidigo // this is main
	}
	goleak.VerifyTestMain(m)
}
