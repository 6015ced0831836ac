package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestTypeScriptSDK1WebSocket is the scenario over WebSocket: on loopback as the
// client comes, and with a token in the upgrade.
func TestTypeScriptSDK1WebSocket(t *testing.T) {
	t.Parallel()
	t.Run("on loopback", func(t *testing.T) {
		t.Parallel()
		p := scenarioProject(t)
		server := p.serveOver(t, "websocket", "--publish", "@mcp_call")
		checkScenario(t, p, startSocketClient(t, p, "sdk1.mjs", "--ws", server.url), "2025-11-25", "cancelled")
		p.ownedBy(t, "local")
	})
	t.Run("with a token", func(t *testing.T) {
		t.Parallel()
		p := scenarioProject(t)
		token := p.newToken(t, "socket", "relavium:run")
		server := p.serveOver(t, "websocket", "--publish", "@mcp_call", "--auth", "token")
		checkScenario(t, p, startSocketClient(t, p, "sdk1.mjs", "--ws", server.url, token), "2025-11-25", "cancelled")
		p.ownedBy(t, "token:socket")
		if strings.Contains(server.diag.String(), token) {
			t.Error("the log holds the token")
		}
	})
}

// TestTypeScriptSDK1WebSocketGates has the client's person answer the gates of a
// workflow over WebSocket, on loopback without a token, and with one beside HTTP.
func TestTypeScriptSDK1WebSocketGates(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "three-gates"))
	server := p.serveOver(t, "websocket", "--publish", "@mcp_call")
	checkGates(t, startSocketClient(t, p, "gates.mjs", "1", "--ws", server.url), "local")

	p = install(t, anyAnswer).project(t, "project", testdata(t, "three-gates"))
	token := p.newToken(t, "socket", "relavium:run")
	server = p.serveHTTP(t, "--transport", "websocket", "--publish", "@mcp_call", "--auth", "token")
	address := "ws" + strings.TrimSuffix(strings.TrimPrefix(server.url, "http"), "/mcp") + "/ws"
	checkGates(t, startSocketClient(t, p, "gates.mjs", "1", "--ws", address, token), "token:socket")
}

func startSocketClient(t *testing.T, p project, script string, args ...string) *clientSteps {
	t.Helper()
	node := clientRuntime(t)
	path, err := filepath.Abs(filepath.Join("clients", script))
	if err != nil {
		t.Fatal(err)
	}
	return startSteps(t, p, append([]string{node, path}, args...))
}
