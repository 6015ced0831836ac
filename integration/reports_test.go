package integration

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // a second program that holds the store's lock
)

// T10: a server whose stdin ends, or never was, ends too, at once and quietly.
func TestEndOfInput(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "ok", "stranded"))

	t.Run("dev null", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := p.command(ctx, "serve", "--publish", "ok")
		var out, diag lockedBuffer
		cmd.Stdout, cmd.Stderr = &out, &diag
		if err := cmd.Run(); err != nil {
			t.Fatalf("serve </dev/null = %v, want exit 0\n%s", err, &diag)
		}
		if busy := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); busy > time.Second {
			t.Errorf("serve </dev/null burned %v, want less than 1s", busy)
		}
		if out.String() != "" {
			t.Errorf("stdout without a request = %q, want nothing", out.String())
		}
	})

	t.Run("after initialize", func(t *testing.T) {
		s := p.serve(t, "--publish", "ok")
		s.initialize()
		if code := s.eof(); code != 0 {
			t.Errorf("EOF = exit %d, want 0", code)
		}
	})

	t.Run("answers first", func(t *testing.T) {
		s := p.serve(t, "--publish", "ok")
		s.initialize()
		reply := s.request("1", "tools/call", `{"name":"relavium_ok","arguments":{}}`)
		if code := s.eof(); code != 0 {
			t.Errorf("EOF = exit %d, want 0", code)
		}
		if m := s.wait(reply); m.Error != nil || !strings.Contains(string(m.Result), `"ok":true`) {
			t.Errorf("reply to a call before EOF = %s, want its result", m.Result)
		}
	})

	t.Run("a call at a gate", func(t *testing.T) {
		s := p.serve(t, "--publish", "stranded")
		s.initialize()
		s.request("1", "tools/call", `{"name":"relavium_stranded","arguments":{}}`)
		id := s.gate(0)
		if code := s.eof(); code != 0 {
			t.Errorf("EOF with a waiting call = exit %d, want 0", code)
		}
		if r := p.show(t, id); r.State != "waiting" {
			t.Errorf("run of a lost call is %q, want waiting", r.State)
		}
	})
}

// T01: whatever goes wrong, stdout carries JSON-RPC and nothing else. Each line is
// checked as it is read.
func TestStdoutIsTheProtocol(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "ok", "breaks"))
	write(t, p.file("broken"), "schema_version: '1.0'\nworkflow: { id: broken, nodes: [ }\n")

	s := p.serve(t, "--publish", "ok", "--publish", "breaks", "--log-level", "debug")
	s.initialize()
	if m := s.ask("1", "tools/call", `{"name":"relavium_ok","arguments":{},"_meta":{"progressToken":"p"}}`); !strings.Contains(string(m.Result), `"ok":true`) {
		t.Errorf("tools/call = %s, want its result", m.Result)
	}
	if m := s.ask("2", "tools/call", `{"name":"relavium_breaks","arguments":{}}`); !strings.Contains(string(m.Result), "sandbox_error") {
		t.Errorf("failing run = %s, want sandbox_error", m.Result)
	}
	if m := s.ask("3", "no/such/method", `{}`); m.Error == nil {
		t.Error("unknown method has no error")
	}
	if m := s.ask("4", "tools/list", `{}`); !strings.Contains(string(m.Result), "relavium_ok") {
		t.Errorf("tools/list = %s, want relavium_ok", m.Result)
	}
	if code := s.eof(); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	if diag := s.diag.String(); !strings.Contains(diag, "broken.relavium.yaml") {
		t.Errorf("stderr = %q, want a word on broken.relavium.yaml", diag)
	}
}

// T04, the inbound half: 300 KB of arguments are no more than a long line.
func TestLongArguments(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "ok"))
	s := p.serve(t, "--publish", "ok")
	s.initialize()
	const size = 300_000
	m := s.ask("1", "tools/call", fmt.Sprintf(`{"name":"relavium_ok","arguments":{"text":%q}}`, strings.Repeat("x", size)))
	if want := fmt.Sprintf(`"length":%d`, size); !strings.Contains(string(m.Result), want) {
		t.Errorf("call with 300 KB = %.200s, want %s", m.Result, want)
	}
	// Over the bound of a line: that call is lost, the session is not.
	refused := s.expectNull()
	s.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"relavium_ok","arguments":{"text":"` + strings.Repeat("x", 5<<20) + `"}}}`)
	if m := s.wait(refused); m.Error == nil || m.Error.Code != -32600 {
		t.Errorf("line of 5 MiB = %+v, want error -32600 with id null", m)
	}
	if m := s.ask("3", "tools/list", `{}`); m.Error != nil {
		t.Errorf("tools/list after it = %v, want tools", m.Error)
	}
}

// E02: a run that a kill left behind goes on with the definition it started
// with, whatever became of its file, or it says why it does not.
func TestStrandedRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(file, text string) error
	}{
		{"file unchanged", func(string, string) error { return nil }},
		{"file edited", func(file, text string) error {
			edited := strings.Replace(text, "({decision:", "({edited: true, decision:", 1)
			return os.WriteFile(file, []byte(edited), 0o600)
		}},
		{"file broken", func(file, _ string) error { return os.WriteFile(file, []byte("workflow: ["), 0o600) }},
		{"file deleted", func(file, _ string) error { return os.Remove(file) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files := testdata(t, "ok", "stranded")
			p := install(t, anyAnswer).project(t, "project", files)
			s := p.serve(t, "--publish", "stranded")
			s.initialize()
			s.request("1", "tools/call", `{"name":"relavium_stranded","arguments":{}}`)
			atGate := s.gate(0)
			s.request("2", "tools/call", `{"name":"relavium_stranded","arguments":{}}`)
			decided := s.gate(1)
			s.kill()

			if r := p.show(t, atGate); r.State != "waiting" {
				t.Errorf("run at its gate after kill -9 is %q, want waiting", r.State)
			}
			// Decided while nobody lives: it is parked, and the command says what to do.
			stdout, stderr, code := p.cli(t, "gate", "approve", decided, "--yes")
			if code != 0 || !strings.Contains(stdout+stderr, "run --resume "+decided) {
				t.Errorf("gate approve without a server = exit %d, %q, want 0 and a word on run --resume", code, stdout+stderr)
			}
			if r := p.show(t, decided); r.State != "parked" {
				t.Errorf("decided run that nobody executes is %q, want parked", r.State)
			}

			if err := tt.change(p.file("stranded"), files["stranded"]); err != nil {
				t.Fatal(err)
			}
			again := p.serve(t, "--publish", "ok")
			again.initialize()
			p.approve(t, atGate)
			for _, id := range []string{atGate, decided} {
				r := p.await(t, id, "completed", "failed", "blocked")
				if want := `{"result":{"decision":"approved"}}`; r.State != "completed" || string(r.Outputs) != want {
					t.Errorf("run %s = %s %s (%s), want completed %s", id, r.State, r.Outputs, r.Reason, want)
				}
			}
		})
	}
}

// E02: the store is locked by somebody else for two seconds while a server that
// has a run to continue starts.
func TestStoreLockedAtStart(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "stranded"))
	s := p.serve(t, "--publish", "stranded")
	s.initialize()
	s.request("1", "tools/call", `{"name":"relavium_stranded","arguments":{}}`)
	id := s.gate(0)
	s.kill()
	p.approve(t, id)

	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(p.home, "serve.db"))+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN EXCLUSIVE"); err != nil {
		t.Fatal(err)
	}
	again := p.serve(t, "--publish", "stranded")
	held := time.NewTimer(2 * time.Second)
	defer held.Stop()
	select {
	case <-held.C:
	case <-again.exited:
		t.Fatalf("the server gave up on a locked store: %v\n%s", again.cmd.ProcessState, again.diag)
	}
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	again.initialize()
	if r := p.await(t, id, "completed", "failed", "blocked"); r.State != "completed" {
		t.Errorf("run after the lock = %s (%s), want completed", r.State, r.Reason)
	}
}
