//go:build unix

package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/engine"
)

// A client that closes its end of the pipe and keeps the other open ends the
// server as the end of the input does: by an exit, with its runs parked and
// detached, not by SIGPIPE.
func TestClientThatStopsReading(t *testing.T) {
	t.Parallel()
	project := projectWith(t, shipOnce)
	environ := []string{"HOME=" + filepath.Dir(project), "RELAVIUM_HOME=" + filepath.Join(filepath.Dir(project), "home")}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), self)
	server.Args = []string{"relavium-serve", "serve", "--publish", "ship", "--cwd", project}
	server.Env = environ
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"0"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"relavium_ship"}}
`)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "human_gate") {
		continue
	}
	_ = out.Close()
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","id":3,"method":"ping"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	err = server.Wait()
	if ended, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || !ended.Exited()) {
		t.Errorf("serve ended with %v, want an exit", err)
	}
	var listed strings.Builder
	if code := run(t.Context(), []string{"runs", "list", "--json", "--cwd", project}, strings.NewReader(""), &listed, io.Discard, environ); code != exitDone || !strings.Contains(listed.String(), `"state": "`+string(engine.Waiting)) {
		t.Errorf("runs list = exit %d, %s, want the run that waits", code, listed.String())
	}
}
