package integration

import "testing"

// TestSessionOnDatabase is one session at replicas that have a home each: they share
// a database and the keys. The clients' requests go to either.
func TestSessionOnDatabase(t *testing.T) {
	t.Parallel()
	pair := func(t *testing.T) (project, *httpServer, *httpServer) {
		t.Helper()
		a, b := replicas(t, install(t, anyAnswer).project(t, "project", testdata(t, "deploy", "three-gates")))
		first := a.serveHTTP(t, "--publish", "@mcp_call")
		shareKeys(t, a, b)
		return a, first, b.serveHTTP(t, "--publish", "@mcp_call")
	}
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		_, a, b := pair(t)
		checkSession(t, a, b)
	})
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		_, a, b := pair(t)
		checkSessionOfKilled(t, a, b)
	})
	t.Run("sdk 1 gates", func(t *testing.T) {
		t.Parallel()
		p, a, b := pair(t)
		rr, at := balance(t, a, b)
		checkGates(t, startGates(t, p, "1", "--http", at), "local")
		rr.both(t)
	})
	t.Run("sdk 1 killed", func(t *testing.T) {
		t.Parallel()
		p, a, b := pair(t)
		checkClientOfKilled(t, p, a, b)
	})
}
