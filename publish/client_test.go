package publish_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; it is never what passes.
const patience = 60 * time.Second

const projectKey = "p-test"

// noAgents is the seam of agent nodes in a build without them.
type noAgents struct{}

func (noAgents) RunAgent(context.Context, engine.AgentCall) (engine.AgentResult, error) {
	return engine.AgentResult{}, &engine.RunError{Code: engine.CodeToolUnavailable, Message: "agent nodes are not part of this build"}
}

// logged collects what a server logs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// openEngine opens an engine on a new store.
func openEngine(tb testing.TB, path string, change func(*engine.Options)) *engine.Engine {
	tb.Helper()
	opt := engine.Options{
		Path: path, Executor: true, Projects: []string{projectKey}, Agent: noAgents{},
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&opt)
	}
	e, err := engine.Open(tb.Context(), opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer done()
		if err := e.Close(ctx); err != nil {
			tb.Errorf("Close = %v", err)
		}
	})
	return e
}

// parse reads a workflow whose nodes and edges are given, or a whole file.
func parse(tb testing.TB, src string) publish.Workflow {
	tb.Helper()
	w, _, err := workflows.Parse("test.relavium.yaml", []byte(src), workflows.Options{})
	if err != nil {
		tb.Fatalf("%v\n%s", err, src)
	}
	return publish.Workflow{Workflow: w, Project: engine.Project{Key: projectKey}}
}

// shaped is a workflow that yields the value of one expression.
func shaped(tb testing.TB, id, inputs, expression string) publish.Workflow {
	tb.Helper()
	return parse(tb, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  description: test workflow %s
  trigger: { type: mcp_call }
%s  nodes:
    - { id: start, type: input }
    - id: shape
      type: transform
      transform: %s
    - { id: result, type: output, output_format: json }
  edges:
    - { from: start, to: shape }
    - { from: shape, to: result }
`, id, id, id, inputs, strconv.Quote(expression)))
}

// gated is a workflow that waits for a person, and is approved when the time is up.
func gated(tb testing.TB, id string, timeout time.Duration) publish.Workflow {
	tb.Helper()
	return parse(tb, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  description: test workflow %s
  trigger: { type: mcp_call }
  nodes:
    - { id: start, type: input }
    - id: ask
      type: human_gate
      gate_type: approval
      message_template: "Proceed?"
      timeout_ms: %d
      timeout_action: approve
    - id: shape
      type: transform
      transform: '({ decision: run.outputs["ask"].decision })'
    - { id: result, type: output, output_format: json }
  edges:
    - { from: start, to: ask }
    - { from: ask, to: shape }
    - { from: shape, to: result }
`, id, id, id, timeout.Milliseconds()))
}

// newServer makes a server on a new store.
func newServer(tb testing.TB, change func(*publish.Options), list ...publish.Workflow) (*publish.Server, *engine.Engine, *logged) {
	tb.Helper()
	log := &logged{}
	opt := publish.Options{
		Engine:    openEngine(tb, filepath.Join(tb.TempDir(), "serve.db"), nil),
		Workflows: list,
		Prefix:    publish.DefaultPrefix,
		Logger:    slog.New(slog.NewTextHandler(log, nil)),
		Version:   "test",
	}
	if change != nil {
		change(&opt)
	}
	s, err := publish.New(opt)
	if err != nil {
		tb.Fatal(err)
	}
	return s, opt.Engine, log
}

// A wire is one line of the server: a response or a notification.
type wire struct {
	raw    string
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
}

// raws are the lines as they came.
func raws(list []wire) string {
	lines := make([]string, len(list))
	for i := range list {
		lines[i] = list[i].raw
	}
	return strings.Join(lines, "\n")
}

// A client is connected to a server over a pair of pipes, as on stdio.
type client struct {
	tb    testing.TB
	in    *io.PipeWriter
	lines chan wire
	kept  []wire // read while waiting for something else
	done  chan error
	stop  context.CancelFunc
}

func connect(tb testing.TB, s *publish.Server) *client {
	tb.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	c := &client{tb: tb, in: inW, lines: make(chan wire, 4096), done: make(chan error, 1), stop: stop}
	go func() {
		c.done <- s.Serve(ctx, inR, outW)
		outW.Close()
	}()
	go func() {
		defer close(c.lines)
		r := bufio.NewReader(outR)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			m := wire{raw: strings.TrimSuffix(line, "\n")}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				tb.Errorf("the server wrote %q: %v", line, err)
				return
			}
			c.lines <- m
		}
	}()
	tb.Cleanup(func() {
		inW.Close()
		stop()
		select {
		case <-c.done:
		case <-time.After(patience):
			tb.Error("Serve does not end")
		}
		outR.Close()
	})
	return c
}

func (c *client) send(format string, args ...any) {
	c.tb.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.tb.Fatalf("send: %v", err)
	}
}

// next is the next line of the server.
func (c *client) next() wire {
	c.tb.Helper()
	select {
	case m, ok := <-c.lines:
		if !ok {
			c.tb.Fatal("the server closed the stream")
		}
		return m
	case <-time.After(patience):
		c.tb.Fatalf("no line from the server; before: %s", raws(c.kept))
	}
	return wire{}
}

// until returns the first line that matches, and keeps the others in c.kept.
func (c *client) until(match func(wire) bool) wire {
	c.tb.Helper()
	for {
		m := c.next()
		if match(m) {
			return m
		}
		c.kept = append(c.kept, m)
	}
}

func (c *client) response(id string) wire {
	c.tb.Helper()
	return c.until(func(m wire) bool { return string(m.ID) == id })
}

func (c *client) notification(method string) wire {
	c.tb.Helper()
	return c.until(func(m wire) bool { return m.Method == method })
}

// initialize shakes hands as a client of that revision.
func (c *client) initialize(version, name string) wire {
	c.tb.Helper()
	c.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":%q,"version":"0"}}}`, version, name)
	m := c.response(`"init"`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return m
}

// call sends a tools/call whose params are given after the name.
func (c *client) call(id, tool, rest string) {
	c.tb.Helper()
	c.send(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q%s}}`, id, tool, rest)
}

// A result is what a tools/call yields.
type result struct {
	Content           []content
	StructuredContent json.RawMessage
	IsError           bool
	Meta              map[string]json.RawMessage `json:"_meta"`
}

type content struct{ Type, Text, URI, MIMEType string }

func (c *client) result(m wire) result {
	c.tb.Helper()
	if m.Error != nil {
		c.tb.Fatalf("response is an error: %s", m.raw)
	}
	var r result
	if err := json.Unmarshal(m.Result, &r); err != nil {
		c.tb.Fatalf("result %s: %v", m.Result, err)
	}
	if len(r.Content) == 0 {
		c.tb.Fatalf("result without content: %s", m.raw)
	}
	return r
}

// callResult calls and waits.
func (c *client) callResult(tool, rest string) result {
	c.tb.Helper()
	c.call("7", tool, rest)
	return c.result(c.response("7"))
}

func runOf(r result) string {
	var id string
	if json.Unmarshal(r.Meta["relavium/runId"], &id) != nil {
		return ""
	}
	return id
}

const legacy = "2025-11-25"

// modernMeta is what a client of 2026-07-28 says with each request.
const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"probe","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}`

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
