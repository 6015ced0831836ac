package agent_test

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if point, ok := os.LookupEnv(childPoint); ok {
		if err := child(context.Background(), os.Getenv(childDir), point); err != nil { //nolint:forbidigo // The child's main.
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
