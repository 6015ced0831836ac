package secrets

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv("RELAVIUM_TEST_SESSION") != "" {
		m.Run() // the keychain's library keeps its connection; the process takes the code from m
		return
	}
	goleak.VerifyTestMain(m)
}
