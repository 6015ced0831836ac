package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// holderVariable makes the test binary the MCP server of these tests.
const holderVariable = "MCP_HOLDER"

// held serves as that server, if this process is to be one.
func held() bool {
	if os.Getenv(holderVariable) == "" {
		return false
	}
	_ = serveHold(os.Stdin, os.Stdout) //nolint:forbidigo // the server of a test, in a process of its own
	return true
}

// serveHold is an MCP server with one tool, which is never answered. It ignores SIGTERM
// and leaves a process in a session of its own.
func serveHold(in io.Reader, out io.Writer) error {
	fmt.Fprintln(os.Stderr, "a server speaks to whoever is there")
	leave := exec.Command("/bin/sh", "-c", "trap '' TERM HUP; while :; do sleep 1; done")
	leave.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := leave.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return err
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			return err
		}
		switch {
		case m.ID == nil:
		case m.Method == "initialize":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"holder","version":"1"}}}`+"\n", m.ID)
		case m.Method == "tools/list":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"hold","description":"Holds.","inputSchema":{"type":"object"}}]}}`+"\n", m.ID)
		case m.Method == "tools/call":
			file, err := os.OpenFile("notes.txt", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			fmt.Fprintln(file, "held")
			file.Close()
		default:
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`+"\n", m.ID)
		}
	}
}

// holding is a project whose agent runs a command that waits and calls a tool that is
// never answered, in one turn, and the digest of its MCP server, which is granted.
func holding(t *testing.T) (project, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("mcp_servers: [{id: holder, transport: stdio, command: %q, env: {%s: '1'}}]", self, holderVariable)
	workflow := strings.Replace(toolUser, "tools: [run_command, read_file]", "tools: [run_command], "+server, 1)
	p, _ := agentProject(t, "", map[string]string{"tool-user": workflow}, fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Calls: []fakemodel.Call{
			{Name: "run_command", Arguments: json.RawMessage(`{"command":"sh","args":["note.sh","one"]}`)},
			{Name: "mcp_holder_hold", Arguments: json.RawMessage(`{}`)},
		}},
		{Text: "It was taken away."},
	}}}})
	if p.dir, err = filepath.EvalSymlinks(p.dir); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.dir, "note.sh"), note)
	write(t, filepath.Join(p.dir, "hold-one"), "")
	store, err := consent.Open(p.home, nil)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := store.Grant(t.Context(), &consent.Declaration{Command: self, Args: []string{}, Env: map[string]string{holderVariable: "1"}, Cwd: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	return p, digest
}

// held waits until command and tool call are under way.
func (p project) held(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, line := range []string{"begin one", "held"} {
		if err := p.noted(ctx, line); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
}

// TestNothingStays ends the process by each signal while an agent's command and server
// are at work: no process stays behind, be it one that ignores SIGTERM (report T11).
func TestNothingStays(t *testing.T) {
	t.Parallel()
	// Whoever started the tests may ignore a hang-up, as nohup does, and what they start
	// would too: a signal that is heard here is as it always is there.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			p, _ := holding(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := p.command(ctx, "run", "tool-user", "--json")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			var out, diag lockedBuffer
			cmd.Stdout, cmd.Stderr = &out, &diag
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			p.held(t)
			supervisors := below(t, cmd.Process.Pid)
			if len(supervisors) != 2 || len(p.inside(t)) < 4 {
				t.Errorf("%d supervisors, %d processes in the project; want one each for the server and the command, and their own", len(supervisors), len(p.inside(t)))
			}
			if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
			exit, _ := errors.AsType[*exec.ExitError](<-ended)
			if sig != syscall.SIGKILL && (exit == nil || exit.ExitCode() != 1 || !strings.Contains(out.String(), `"run:cancelled"`)) {
				t.Errorf("the run ended with %v, want exit 1 after run:cancelled\n%s\n%s", exit, out.String(), diag.String())
			}
			p.empties(t, supervisors)
		})
	}
}

// TestEOFLeavesNothing ends a server's input while a call's agent is at work, whose own
// server has written to stderr: that never comes to our stdout (report T01).
func TestEOFLeavesNothing(t *testing.T) {
	t.Parallel()
	p, _ := holding(t)
	s := p.serve(t, "--publish", "tool-user")
	s.initialize()
	s.request("1", "tools/call", `{"name":"relavium_tool-user","arguments":{}}`)
	p.held(t)
	supervisors := below(t, s.cmd.Process.Pid)
	if code := s.eof(); code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
	p.empties(t, supervisors)
}

// TestRevokeNow takes consent back in another process while a call is under way: the
// server is closed, the call of its tool fails, and the run goes on.
func TestRevokeNow(t *testing.T) {
	t.Parallel()
	p, digest := holding(t)
	s := p.serve(t, "--publish", "tool-user")
	s.initialize()
	reply := s.request("1", "tools/call", `{"name":"relavium_tool-user","arguments":{}}`)
	p.held(t)
	p.ok(t, "consent", "revoke", digest)
	if n := len(below(t, s.cmd.Process.Pid)); n != 2 {
		t.Errorf("%d supervisors after a revocation without --now, want 2", n)
	}
	p.ok(t, "consent", "revoke", "--now", digest)
	await(t, "the server is not closed", func() bool { return len(below(t, s.cmd.Process.Pid)) == 1 })
	if err := os.Remove(filepath.Join(p.dir, "hold-one")); err != nil {
		t.Fatal(err)
	}
	m := s.wait(reply)
	if m.Error != nil || !strings.Contains(s.diag.String(), digest) {
		t.Errorf("reply %s, %v; stderr %s", m.Result, m.Error, s.diag)
	}
	again := s.ask("2", "tools/call", `{"name":"relavium_tool-user","arguments":{}}`)
	if !strings.Contains(string(again.Result), digest) || !strings.Contains(string(again.Result), `"isError":true`) {
		t.Errorf("a call after the revocation = %s, want a refusal that names the digest", again.Result)
	}
	s.eof()
	p.empties(t, nil)
}

// inside lists the processes that stand in the project's folder.
func (p project) inside(t *testing.T) []int {
	t.Helper()
	var found []int
	for _, pid := range pids(t) {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err == nil && (cwd == p.dir || strings.HasPrefix(cwd, p.dir+"/")) {
			found = append(found, pid)
		}
	}
	return found
}

// empties waits until nothing stands in the project's folder and the supervisors are
// gone.
func (p project) empties(t *testing.T, supervisors []int) {
	t.Helper()
	await(t, "a process is left", func() bool {
		return len(p.inside(t)) == 0 && !slices.ContainsFunc(supervisors, isSupervisor)
	})
}

// below lists the supervisors that are children of a process.
func below(t *testing.T, parent int) []int {
	t.Helper()
	var found []int
	for _, pid := range pids(t) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if string(fields[1]) == strconv.Itoa(parent) && isSupervisor(pid) {
			found = append(found, pid)
		}
	}
	return found
}

func isSupervisor(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.HasPrefix(line, []byte("relavium-serve: supervisor"))
}

func pids(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// await waits until it is so.
func await(t *testing.T, otherwise string, so func() bool) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-timer.C:
			t.Fatal(otherwise)
		}
	}
}
