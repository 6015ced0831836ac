package integration

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"
)

// An httpServer is one running server and its endpoint.
type httpServer struct {
	url    string
	diag   *lockedBuffer
	end    func(os.Signal) // asks the process to end, and waits until it has
	killed bool
}

// serveHTTP starts a server of the project on a free port. At the end of the
// test it is asked to stop, and has to do so in order.
func (p project) serveHTTP(tb testing.TB, args ...string) *httpServer {
	tb.Helper()
	return p.serveOver(tb, "http", args...)
}

// serveOver is serveHTTP over that transport.
func (p project) serveOver(tb testing.TB, transport string, args ...string) *httpServer {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	cmd := p.command(ctx, append([]string{"serve", "--transport", transport, "--listen", "127.0.0.1:0"}, args...)...)
	if runtime.GOOS != "windows" {
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	cmd.WaitDelay = 20 * time.Second // the server has 10 s to stop in
	s := &httpServer{diag: new(lockedBuffer)}
	cmd.Stderr = s.diag
	if err := cmd.Start(); err != nil {
		cancel()
		tb.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.end = func(by os.Signal) {
		tb.Helper()
		s.killed = by == os.Kill
		if err := cmd.Process.Signal(by); err != nil {
			tb.Errorf("signal %v: %v", by, err)
		}
		err := <-ended
		ended <- err
	}
	tb.Cleanup(func() {
		cancel()
		<-ended
		if s.killed {
			return
		}
		if code := cmd.ProcessState.ExitCode(); code != 0 && runtime.GOOS != "windows" {
			tb.Errorf("serve over a socket ended with %d, want 0", code)
		}
		if tb.Failed() {
			tb.Logf("stderr of serve over a socket:\n%s", s.diag)
		}
	})
	address := regexp.MustCompile(`msg=listening url=(\S+)`)
	tick, timer := time.NewTicker(20*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timer.Stop()
	for {
		if m := address.FindStringSubmatch(s.diag.String()); m != nil {
			s.url = m[1]
			return s
		}
		select {
		case <-tick.C:
		case err := <-ended:
			ended <- err
			tb.Fatalf("serve over a socket ended (%v) before it listened:\n%s", err, s.diag)
		case <-timer.C:
			tb.Fatalf("serve over a socket does not listen within %v:\n%s", patience, s.diag)
		}
	}
}

// TestTypeScriptSDK1HTTP and TestTypeScriptSDK2HTTP are the scenario over
// Streamable HTTP: with a session, and stateless.
func TestTypeScriptSDK1HTTP(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	checkScenario(t, p, startHTTPClient(t, p, "sdk1.mjs"), "2025-11-25", "cancelled")
}

// On 2026-07-28 a client cancels by closing the stream, which a lost connection
// does too: the run is detached, and one that waits for a person goes on waiting.
func TestTypeScriptSDK2HTTP(t *testing.T) {
	t.Parallel()
	p := scenarioProject(t)
	checkScenario(t, p, startHTTPClient(t, p, "sdk2.mjs"), "2026-07-28", "waiting")
}

// startHTTPClient runs a script of clients/ against the endpoint of a server of
// the project.
func startHTTPClient(t *testing.T, p project, script string) *clientSteps {
	t.Helper()
	node := clientRuntime(t)
	path, err := filepath.Abs(filepath.Join("clients", script))
	if err != nil {
		t.Fatal(err)
	}
	server := p.serveHTTP(t, "--publish", "@mcp_call")
	return startSteps(t, p, []string{node, path, "--http", server.url})
}
