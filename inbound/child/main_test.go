package child

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if Supervising() {
		os.Exit(Supervise())
	}
	if name := os.Getenv(fixtureVariable); name != "" {
		os.Exit(runFixture(name))
	}
	goleak.VerifyTestMain(m)
}
