package expr

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if n, ok := os.LookupEnv(attackEnv); ok {
		childAttack(n)
		os.Exit(0) //nolint:forbidigo // the child is no test run
	}
	goleak.VerifyTestMain(m)
}

// testContext is for the child, which has no test.
func testContext() context.Context {
	return context.Background() //nolint:forbidigo // the child is no test run
}

// patient is a Sandbox whose time limit is out of reach, also under the race detector
// on a busy machine.
func patient(t *testing.T, concurrency int) *Sandbox {
	t.Helper()
	s := New(concurrency)
	t.Cleanup(s.Close)
	s.timeout = time.Minute
	return s
}
