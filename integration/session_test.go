package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// A message is one line of the server's stdout.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// A session is one running server and the lines that go in and out of it. Every
// line on stdout has to be a JSON-RPC message; the test fails otherwise.
type session struct {
	tb     testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	diag   *lockedBuffer
	exited chan struct{} // closed when the process is gone and its stdout is read

	mu      sync.Mutex
	replies map[string]chan message // by id
	notes   []message
	changed chan struct{} // closed and renewed when notes grows
}

// lockedBuffer is what the server wrote to stderr so far.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// serve starts a server in the project. It is killed with the test at the latest.
func (p project) serve(tb testing.TB, args ...string) *session {
	tb.Helper()
	s := &session{
		tb: tb, diag: new(lockedBuffer), exited: make(chan struct{}),
		replies: map[string]chan message{}, changed: make(chan struct{}),
	}
	s.cmd = p.command(context.WithoutCancel(tb.Context()), append([]string{"serve"}, args...)...)
	s.cmd.Stderr = s.diag
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go s.read(out)
	tb.Cleanup(func() {
		s.kill()
		if tb.Failed() {
			tb.Logf("stderr of serve %q:\n%s", args, s.diag)
		}
	})
	return s
}

func (s *session) read(out io.Reader) {
	defer close(s.exited)
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 && err == nil { // a line that a kill cut off is no line
			s.receive(line)
		}
		if err != nil {
			break
		}
	}
	_ = s.cmd.Wait() // the exit code is read from ProcessState
}

func (s *session) receive(line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil || m.JSONRPC != "2.0" {
		s.tb.Errorf("stdout line is no JSON-RPC message: %q", line)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Method != "" {
		s.notes = append(s.notes, m)
		close(s.changed)
		s.changed = make(chan struct{})
		return
	}
	ch, ok := s.replies[string(m.ID)]
	if !ok {
		s.tb.Errorf("reply to an id that nobody waits for: %s", line)
		return
	}
	delete(s.replies, string(m.ID))
	ch <- m
}

// send writes one line as it stands. A server that is gone is no failure here.
func (s *session) send(line string) {
	_, _ = io.WriteString(s.in, line+"\n")
}

// request sends a request and returns where its reply will arrive; nothing comes
// when the server is gone before. id and params are JSON.
func (s *session) request(id, method, params string) <-chan message {
	ch := make(chan message, 1)
	s.mu.Lock()
	s.replies[id] = ch
	s.mu.Unlock()
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	return ch
}

// expectNull returns where the next error reply with id null will arrive.
func (s *session) expectNull() <-chan message {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch, ok := s.replies["null"]
	if !ok {
		ch = make(chan message, 1)
		s.replies["null"] = ch
	}
	return ch
}

// ask is request and the wait for its reply.
func (s *session) ask(id, method, params string) message {
	s.tb.Helper()
	return s.wait(s.request(id, method, params))
}

func (s *session) wait(reply <-chan message) message {
	s.tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case m := <-reply:
		return m
	case <-s.exited:
		select {
		case m := <-reply:
			return m
		default:
			s.tb.Fatalf("the server ended (%v) without a reply", s.cmd.ProcessState)
		}
	case <-timer.C:
		s.tb.Fatalf("no reply within %v", patience)
	}
	return message{}
}

// initialize opens a session of revision 2025-11-25.
func (s *session) initialize() {
	s.tb.Helper()
	m := s.ask(`"init"`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"0"}}`)
	if m.Error != nil {
		s.tb.Fatalf("initialize = %s", m.Error.Message)
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// notification waits for the n-th notification of a method, from 0.
func (s *session) notification(method string, n int) message {
	s.tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		s.mu.Lock()
		changed, seen := s.changed, 0
		for _, m := range s.notes {
			if m.Method != method {
				continue
			}
			if seen == n {
				s.mu.Unlock()
				return m
			}
			seen++
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.exited:
			s.tb.Fatalf("the server ended (%v) before notification %d of %s", s.cmd.ProcessState, n, method)
		case <-timer.C:
			s.tb.Fatalf("%d notifications of %s within %v, want %d", seen, method, patience, n+1)
		}
	}
}

// gate waits for the n-th announcement of a gate and returns its run.
func (s *session) gate(n int) string {
	s.tb.Helper()
	var p struct {
		Run string `json:"runId"`
	}
	m := s.notification("notifications/relavium/human_gate", n)
	decode(s.tb, m.Params, &p)
	if p.Run == "" {
		s.tb.Fatalf("human_gate notification names no run: %s", m.Params)
	}
	return p.Run
}

// kill ends the server as a crash would and waits until it is gone.
func (s *session) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// eof closes stdin, waits for the server to end and returns its exit code.
func (s *session) eof() int {
	s.tb.Helper()
	_ = s.in.Close()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.exited:
	case <-timer.C:
		s.tb.Fatalf("the server still runs %v after EOF", patience)
	}
	return s.cmd.ProcessState.ExitCode()
}
