package child

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

var long = flag.Bool("long", false, "run scaled tests at full length")

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
