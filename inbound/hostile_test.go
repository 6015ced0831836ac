package inbound

import (
	"os"
	"testing"

	"github.com/relavium/relavium-serve/workflows"
)

// serverVariable names the server that the test binary is to be.
const serverVariable = "TEST_SERVER"

// helperRef declares the test binary as a server of the given kind.
func helperRef(t *testing.T, id, kind string) workflows.ServerRef {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return workflows.ServerRef{
		ID: id, Transport: "stdio", Command: exe, Env: []workflows.EnvVar{{Name: serverVariable, Value: kind}},
	}
}

// runServer is the main function of a server that a test started.
func runServer(kind string) int {
	s := newServer()
	switch kind {
	case "polite":
	default:
		return 2
	}
	s.serve(os.Stdin, os.Stdout) //nolint:forbidigo // this process is a stdio server
	return 0
}
