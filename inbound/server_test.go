package inbound

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/workflows"
)

// A server is an MCP server of the tests' own: polite where a test does not make it
// otherwise. It reads lines and writes lines, and notes every message that it got.
type server struct {
	modern bool // it knows server/discover and nothing of initialize
	silent bool // it answers nothing that Answer does not
	// answer may answer a message in its own way, and says whether it did.
	answer func(s *serving, m message) bool
	pages  []string // results of tools/list, by cursor "1", "2", …
	slow   time.Duration
	ended  chan struct{} // its process ends only when this is closed, if not nil
	ending func()        // called when its process is to end
	before func()        // called before it reads anything

	mu   sync.Mutex
	got  []string // method and id or requestId
	drop []func() // end the pipes, whoever was to end them
	news chan struct{}
}

const echoTool = `{"name":"echo","description":"says it again","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}`

func newServer() *server {
	return &server{pages: []string{`{"tools":[` + echoTool + `]}`}, news: make(chan struct{}, 1)}
}

func (s *server) note(what string) {
	s.mu.Lock()
	s.got = append(s.got, what)
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *server) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.got...)
}

// count counts the messages that begin with the given word.
func (s *server) count(what string) int {
	n := 0
	for _, got := range s.log() {
		if got == what || strings.HasPrefix(got, what+" ") {
			n++
		}
	}
	return n
}

// wait waits until the server has got n messages of the given kind.
func (s *server) wait(t *testing.T, what string, n int) {
	t.Helper()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for s.count(what) < n {
		select {
		case <-s.news:
		case <-limit.C:
			t.Fatalf("the server got %d of %q, want %d; it got %q", s.count(what), what, n, s.log())
		}
	}
}

// serving is one connection of a server.
type serving struct {
	*server
	mu   sync.Mutex
	out  io.Writer
	sent func(line string) // told of each line that was sent, if not nil
}

func (s *serving) send(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...)
	if s.sent != nil {
		s.sent(fmt.Sprintf(format, args...))
	}
}

func (s *serving) reply(id json.RawMessage, result string) {
	s.send("%s", `{"jsonrpc":"2.0","id":`+string(id)+`,"result":`+result+`}`)
}

func (s *serving) fail(id json.RawMessage, code int, text string) {
	s.send(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, id, code, text)
}

// serve reads until the input ends.
func (s *server) serve(in io.Reader, out io.Writer) {
	conn := &serving{server: s, out: out}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		m, err := parseMessage(line)
		if err != nil {
			s.note("bad " + string(line))
			continue
		}
		conn.handle(m)
	}
}

func (s *serving) handle(m message) {
	switch m.method {
	case "notifications/cancelled":
		s.note(m.method + " " + string(member(m.params, "requestId")) + " " + textOf(member(m.params, "reason")))
	case "":
		s.note("response " + string(m.id))
	default:
		s.note(m.method)
	}
	if s.answer != nil && s.answer(s, m) || s.silent || m.id == nil || m.method == "" {
		return
	}
	switch m.method {
	case "server/discover":
		if !s.modern {
			s.fail(m.id, -32601, "method not found")
			return
		}
		s.reply(m.id, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
	case "initialize":
		if s.modern {
			s.fail(m.id, -32601, "method not found")
			return
		}
		s.reply(m.id, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"test","version":"1"}}`)
	case "tools/list":
		page := 0
		if cursor := textOf(member(m.params, "cursor")); cursor != "" {
			page, _ = strconv.Atoi(cursor)
		}
		if s.slow > 0 {
			time.Sleep(s.slow) //nolint:forbidigo // in a bubble this is the server's own time
		}
		s.reply(m.id, s.pages[page])
	case "tools/call":
		s.reply(m.id, `{"content":[{"type":"text","text":`+string(member(member(m.params, "arguments"), "text"))+`}]}`)
	default:
		s.fail(m.id, -32601, "method not found")
	}
}

// dialed is a wire to a server in this process, over pipes as a child's are.
func (s *server) dialed(p *peer) wire {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	over := make(chan struct{})
	s.mu.Lock()
	s.drop = append(s.drop, func() { _ = inW.Close() })
	s.mu.Unlock()
	go func() {
		defer close(over)
		if s.before != nil {
			s.before()
		}
		s.serve(inR, outW)
		if s.ended != nil {
			<-s.ended
		}
		_ = outW.Close()
		_ = inR.Close()
	}()
	w := newStream(inW, func(ctx context.Context) error {
		s.note("end")
		if s.ending != nil {
			s.ending()
		}
		_ = inW.Close()
		_ = inR.Close()
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return errors.New("it lives")
		}
	})
	go w.read(outR, p)
	return w
}

// A world is a host with servers of the tests' own.
type world struct {
	*Host
	children *child.Table
	logs     *logLines
}

// logLines keeps what was logged.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *logLines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// newWorld makes a host; with servers, by id, it starts and dials nothing but them.
func newWorld(tb testing.TB, servers map[string]*server, change func(*Options)) *world {
	tb.Helper()
	w := &world{children: child.NewTable(child.TableOptions{
		Ladder: child.Ladder{Stdin: 100 * time.Millisecond, Term: 100 * time.Millisecond, Kill: 30 * time.Second},
	}), logs: &logLines{}}
	opt := Options{
		Name: "test-client", Version: "1", Home: tb.TempDir(), Children: w.children,
		Getenv:  func(string) string { return "/usr/bin:/bin" },
		Granted: func(context.Context, string) error { return nil },
		Log:     slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	if change != nil {
		change(&opt)
	}
	host, err := New(opt)
	if err != nil {
		tb.Fatal(err)
	}
	w.Host = host
	if servers != nil {
		host.wires = func(d *declared, to *peer) (wire, error) { return servers[d.name].dialed(to), nil }
	}
	return w
}

// shutdown ends the world and tells if anything is left.
func (w *world) shutdown(tb testing.TB) {
	tb.Helper()
	ctx, stop := context.WithTimeout(context.WithoutCancel(tb.Context()), 30*time.Second)
	defer stop()
	if err := w.Shutdown(ctx); err != nil {
		tb.Errorf("Shutdown() = %v", err)
	}
	if err := w.children.Close(ctx); err != nil {
		tb.Errorf("children.Close() = %v", err)
	}
}

// stdioRef declares a program that is on every machine: it is not started where the
// world has servers of its own.
func stdioRef(id string) workflows.ServerRef {
	return workflows.ServerRef{ID: id, Transport: "stdio", Command: "/bin/sh", Args: []string{id}}
}

// flow has one agent "a" with the given servers.
func flow(servers ...workflows.ServerRef) *workflows.Workflow {
	return &workflows.Workflow{
		ID: "w", Agents: []workflows.Agent{{ID: "a", Servers: servers}},
		Nodes: []workflows.Node{{ID: "n", Spec: workflows.AgentNode{AgentRef: "a"}}},
	}
}

func (w *world) open(tb testing.TB, f *workflows.Workflow) error {
	tb.Helper()
	return w.Open(tb.Context(), Run{ID: "r", Workflow: f, Principal: "local", Root: tb.TempDir()})
}

func (w *world) mustOpen(tb testing.TB, f *workflows.Workflow) {
	tb.Helper()
	if err := w.open(tb, f); err != nil {
		tb.Fatalf("Open() = %v", err)
	}
}

// say calls the tool echo of a server.
func (w *world) say(ctx context.Context, f *workflows.Workflow, server, text string) (workflows.ToolResult, error) {
	args, err := json.Marshal(map[string]string{"text": text})
	if err != nil {
		return workflows.ToolResult{}, err
	}
	return w.Call(ctx, &workflows.ToolCall{
		Run: "r", Workflow: f, Agent: &f.Agents[0], Tool: "mcp_" + server + "_echo", Arguments: args,
	})
}

// faultOf returns the typed error in err, or fails.
func faultOf(t *testing.T, err error) *workflows.ToolError {
	t.Helper()
	fault, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		t.Fatalf("error = %v, want a *workflows.ToolError", err)
	}
	return fault
}

// wantFault checks what an error says, and that its text is bounded.
func wantFault(t *testing.T, err error, kind workflows.ToolFault, reason string, retryable bool) *workflows.ToolError {
	t.Helper()
	f := faultOf(t, err)
	if f.Fault != kind || f.Reason != reason || f.Retryable != retryable {
		t.Errorf("error = %s (%s) retryable %t: %s, want %s (%s) retryable %t", f.Fault, f.Reason, f.Retryable, f.Message, kind, reason, retryable)
	}
	if len(f.Message) > maxServerText+256 {
		t.Errorf("message of %d bytes, want at most %d", len(f.Message), maxServerText+256)
	}
	return f
}
