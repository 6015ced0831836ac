package servers

import (
	"bufio"
	"context"
	"encoding/json"
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
func script(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs(filepath.Join("node_modules", path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(full); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("servers are not installed: run npm ci in integration/servers")
		}
		t.Skip("servers are not installed: run npm ci in integration/servers")
	}
	return full
}

func newHost(t *testing.T) (*inbound.Host, *child.Table) {
	t.Helper()
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
	children := child.NewTable(child.TableOptions{})
	host, err := inbound.New(inbound.Options{
		Name: "relavium-serve", Version: "test", Home: t.TempDir(), Children: children, Environ: os.Environ(), Getenv: os.Getenv,
		Granted: func(context.Context, string) error { return nil }, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Second)
		defer stop()
		if err := host.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
		if err := children.Close(ctx); err != nil {
			t.Errorf("children.Close() = %v", err)
		}
		if living := children.Living(); len(living) > 0 {
			t.Errorf("%d children live after Close", len(living))
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

func open(t *testing.T, host *inbound.Host, w *workflows.Workflow) []workflows.Tool {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Open(t.Context(), inbound.Run{ID: t.Name(), Workflow: w, Principal: "local", Root: root}); err != nil {
		t.Fatalf("Open() = %v", err)
	}
	return host.Tools(t.Name(), &w.Agents[0])
}

func call(t *testing.T, host *inbound.Host, w *workflows.Workflow, tool string, args any) workflows.ToolResult {
	t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	result, err := host.Call(t.Context(), &workflows.ToolCall{
		Run: t.Name(), Workflow: w, Agent: &w.Agents[0], Tool: tool, Arguments: raw,
	})
	if err != nil {
		t.Fatalf("Call(%s) = %v", tool, err)
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
func startHTTP(t *testing.T, mode string) int {
	t.Helper()
	path := script(t, "@modelcontextprotocol/server-everything/dist/index.js")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	cmd := exec.Command("node", path, mode)
	cmd.Env = append(os.Environ(), "PORT="+strconv.Itoa(port))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
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
		t.Fatal("server-everything does not listen")
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
