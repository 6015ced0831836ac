package servers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/workflows"
)

func TestMain(m *testing.M) {
	if child.Supervising() {
		os.Exit(child.Supervise()) //nolint:forbidigo // TestMain is this package's main
	}
	os.Exit(m.Run()) //nolint:forbidigo // as above
}

// script returns the path of a server's program below node_modules, or skips.
func script(tb testing.TB, path string) string {
	tb.Helper()
	full, err := filepath.Abs(filepath.Join("node_modules", path))
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(full); err != nil {
		if os.Getenv("CI") != "" {
			tb.Fatal("servers are not installed: run npm ci in integration/servers")
		}
		tb.Skip("servers are not installed: run npm ci in integration/servers")
	}
	return full
}

func newHost(tb testing.TB) (*inbound.Host, *child.Table) {
	tb.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: level}))
	children := child.NewTable(child.TableOptions{})
	host, err := inbound.New(inbound.Options{
		Name: "relavium-serve", Version: "test", Home: tb.TempDir(), Children: children, Environ: os.Environ(), Getenv: os.Getenv,
		Granted: func(context.Context, string) error { return nil }, Log: log,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(tb.Context()), 20*time.Second)
		defer stop()
		if err := host.Shutdown(ctx); err != nil {
			tb.Errorf("Shutdown() = %v", err)
		}
		if err := children.Close(ctx); err != nil {
			tb.Errorf("children.Close() = %v", err)
		}
		if living := children.Living(); len(living) > 0 {
			tb.Errorf("%d children live after Close", len(living))
		}
	})
	return host, children
}

// workflow has one agent with the given servers.
func workflow(servers ...workflows.ServerRef) *workflows.Workflow {
	return &workflows.Workflow{
		ID: "w", Agents: []workflows.Agent{{ID: "a", Servers: servers}},
		Nodes: []workflows.Node{{ID: "n", Spec: workflows.AgentNode{AgentRef: "a"}}},
	}
}

func open(tb testing.TB, host *inbound.Host, w *workflows.Workflow) []workflows.Tool {
	tb.Helper()
	root, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	if err := host.Open(tb.Context(), inbound.Run{ID: tb.Name(), Workflow: w, Principal: "local", Root: root}); err != nil {
		tb.Fatalf("Open() = %v", err)
	}
	return host.Tools(tb.Name(), &w.Agents[0])
}

func call(tb testing.TB, host *inbound.Host, w *workflows.Workflow, tool string, args any) workflows.ToolResult {
	tb.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		tb.Fatal(err)
	}
	result, err := host.Call(tb.Context(), &workflows.ToolCall{
		Run: tb.Name(), Workflow: w, Agent: &w.Agents[0], Tool: tool, Arguments: raw,
	})
	if err != nil {
		tb.Fatalf("Call(%s) = %v", tool, err)
	}
	return result
}

func TestRealServersOverStdio(t *testing.T) {
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "note.txt"), []byte("seven owls"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		script  string
		args    []string
		tools   int // at least
		tool    string
		input   any
		contain string
	}{
		{
			"filesystem", "@modelcontextprotocol/server-filesystem/dist/index.js",
			[]string{folder},
			10,
			"mcp_it_read_text_file",
			map[string]any{"path": filepath.Join(folder, "note.txt")},
			"seven owls",
		},
		{
			"everything", "@modelcontextprotocol/server-everything/dist/index.js", nil, 5,
			"mcp_it_echo",
			map[string]any{"message": "seven owls"},
			"seven owls",
		},
		{
			"memory", "@modelcontextprotocol/server-memory/dist/index.js", nil, 5,
			"mcp_it_create_entities",
			map[string]any{"entities": []any{map[string]any{"name": "owl", "entityType": "bird", "observations": []string{"seven owls"}}}},
			"seven owls",
		},
		{
			"sequential thinking", "@modelcontextprotocol/server-sequential-thinking/dist/index.js", nil, 1,
			"mcp_it_sequentialthinking",
			map[string]any{"thought": "owls", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1},
			"thoughtNumber",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			host, _ := newHost(t)
			server := workflows.ServerRef{ID: "it", Transport: "stdio", Command: "node", Args: append([]string{script(t, test.script)}, test.args...)}
			if test.name == "memory" {
				server.Env = []workflows.EnvVar{{Name: "MEMORY_FILE_PATH", Value: filepath.Join(t.TempDir(), "memory.jsonl")}}
			}
			w := workflow(server)
			tools := open(t, host, w)
			for _, drop := range host.Reports(t.Name())[0].Dropped {
				if test.name != "everything" || drop.Name != "simulate-research-query" || drop.Reason != inbound.DropTask {
					t.Errorf("dropped %+v, want nothing but what can be called as a task only", drop)
				}
			}
			if len(tools) < test.tools {
				t.Errorf("%d tools, want at least %d", len(tools), test.tools)
			}
			if got := call(t, host, w, test.tool, test.input); got.IsError || !strings.Contains(got.Text, test.contain) {
				t.Errorf("Call(%s) = %+v, want text with %q", test.tool, got, test.contain)
			}
		})
	}
}

// startHTTP starts server-everything in one of its HTTP modes and returns its port.
func startHTTP(tb testing.TB, mode string) int {
	tb.Helper()
	path := script(tb, "@modelcontextprotocol/server-everything/dist/index.js")
	return startNode(tb, func(port string) []string { return []string{path, mode} })
}

// startNode starts a server that tells of its port on stderr, and returns the port.
func startNode(tb testing.TB, args func(port string) []string, env ...string) int {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	cmd := exec.Command("node", args(strconv.Itoa(port))...)
	cmd.Env = append(append(os.Environ(), "PORT="+strconv.Itoa(port)), env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	up := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if strings.Contains(lines.Text(), strconv.Itoa(port)) {
				close(up)
				break
			}
		}
		for lines.Scan() {
			continue
		}
	}()
	select {
	case <-up:
	case <-time.After(30 * time.Second):
		tb.Fatal("the server does not listen")
	}
	return port
}

func TestRealServersOverHTTP(t *testing.T) {
	for mode, server := range map[string]workflows.ServerRef{
		"streamableHttp": {ID: "it", Transport: "http", URL: "/mcp", AllowLocalEndpoint: true},
		"sse":            {ID: "it", Transport: "sse", URL: "/sse", AllowLocalEndpoint: true},
	} {
		t.Run(mode, func(t *testing.T) {
			port := startHTTP(t, mode)
			host, _ := newHost(t)
			server.URL = "http://127.0.0.1:" + strconv.Itoa(port) + server.URL
			w := workflow(server)
			if tools := open(t, host, w); len(tools) < 5 {
				t.Errorf("%d tools, want at least 5", len(tools))
			}
			if got := call(t, host, w, "mcp_it_echo", map[string]any{"message": "owls"}); got.IsError || !strings.Contains(got.Text, "owls") {
				t.Errorf("Call(echo) = %+v, want text with owls", got)
			}
		})
	}
}

// notes reads what a server wrote of itself, until it holds a line.
func notes(t *testing.T, file, line string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, _ := os.ReadFile(file)
		if strings.Contains("\n"+string(text), "\n"+line+"\n") {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("the server notes %q, want %q among it", text, line)
		}
	}
}

// A server of the TypeScript SDK 2 speaks 2026-07-28, and a cancel reaches it.
func TestTypeScript2(t *testing.T) {
	script(t, "@modelcontextprotocol/server/package.json")
	path, err := filepath.Abs("typescript2.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			host, _ := newHost(t)
			file := filepath.Join(t.TempDir(), "notes")
			server := workflows.ServerRef{
				ID: "it", Transport: "stdio", Command: "node", Args: []string{path, "stdio"}, Env: []workflows.EnvVar{{Name: "NOTES", Value: file}},
			}
			if transport == "http" {
				port := startNode(t, func(port string) []string { return []string{path, "http", port} }, "NOTES="+file)
				server = workflows.ServerRef{ID: "it", Transport: "http", URL: "http://127.0.0.1:" + strconv.Itoa(port) + "/mcp", AllowLocalEndpoint: true}
			}
			w := workflow(server)
			if tools := open(t, host, w); len(tools) != 3 {
				t.Errorf("%d tools, want 3", len(tools))
			}
			if report := host.Reports(t.Name())[0]; report.Revision != "2026-07-28" || report.Name != "typescript-2" || len(report.Dropped) != 0 {
				t.Errorf("report = %+v, want revision 2026-07-28 and nothing dropped", report)
			}
			if got := call(t, host, w, "mcp_it_echo", map[string]any{"text": "owls"}); got.IsError || got.Text != `{"text":"owls"}` {
				t.Errorf("Call(echo) = %+v, want the text once", got)
			}
			if got := call(t, host, w, "mcp_it_fail", map[string]any{}); !got.IsError || !strings.Contains(got.Text, "no owls today") {
				t.Errorf("Call(fail) = %+v, want the tool's error", got)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := host.Call(ctx, &workflows.ToolCall{Run: t.Name(), Agent: &w.Agents[0], Tool: "mcp_it_wait", Arguments: []byte(`{}`)})
				ended <- err
			}()
			notes(t, file, "wait")
			cancel()
			if fault, ok := errors.AsType[*workflows.ToolError](<-ended); !ok || fault.Fault != workflows.ToolCancelled {
				t.Errorf("Call(wait) = %v, want cancelled", fault)
			}
			notes(t, file, "cancelled")
		})
	}
}

// Nothing of what these servers offer is dropped; Chromium is driven where it is there.
func TestPlaywrightAndNotion(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		chromium = "/nonexistent"
	}
	for name, server := range map[string]workflows.ServerRef{
		"playwright": {
			ID: "it", Transport: "stdio", Command: "node",
			Args: []string{script(t, "@playwright/mcp/cli.js"), "--headless", "--isolated", "--no-sandbox", "--executable-path", chromium},
		},
		"notion": {
			ID: "it", Transport: "stdio", Command: "node", Args: []string{script(t, "@notionhq/notion-mcp-server/bin/cli.mjs")},
			Env: []workflows.EnvVar{{Name: "NOTION_TOKEN", Value: "ntn_none"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			host, _ := newHost(t)
			w := workflow(server)
			tools := open(t, host, w)
			report := host.Reports(t.Name())[0]
			t.Logf("%d tools of %d bytes, revision %s, start %v, handshake %v, discovery %v",
				len(tools), report.Bytes, report.Revision, report.Took.Start, report.Took.Handshake, report.Took.Discovery)
			if len(tools) < 10 || len(report.Dropped) != 0 {
				t.Errorf("%d tools and dropped %+v, want all of at least 10", len(tools), report.Dropped)
			}
			if name != "playwright" || err != nil {
				return
			}
			got := call(t, host, w, "mcp_it_browser_navigate", map[string]any{"url": "data:text/html,<title>owls</title><h1>seven owls</h1>"})
			if got.IsError || !strings.Contains(got.Text, "owls") {
				t.Errorf("Call(browser_navigate) = %.500q, want the page", got.Text)
			}
		})
	}
}
