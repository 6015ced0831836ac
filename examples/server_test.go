package examples_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
)

// npmServer is the program that npx is asked for in examples. Here npx is this
// binary, which serves as that server: nothing is downloaded.
const npmServer = "@modelcontextprotocol/server-filesystem@"

// servers connects the MCP servers of the examples.
func servers(t *testing.T) *inbound.Host {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, name := t.TempDir(), "npx"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if err := os.Symlink(exe, filepath.Join(bin, name)); err != nil {
		t.Fatal(err)
	}
	children := child.NewTable(child.TableOptions{})
	host, err := inbound.New(inbound.Options{
		Name: "examples", Version: "1", Home: t.TempDir(), Children: children, Log: slog.New(slog.DiscardHandler),
		Environ: []string{"PATH=" + bin},
		Getenv: func(name string) string {
			if name == "PATH" {
				return bin
			}
			return os.Getenv(name)
		},
		Granted: func(context.Context, string) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := host.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := children.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return host
}

// attend opens the servers of a run for its length.
func attend(host *inbound.Host) func(context.Context, engine.Attendance) (func(bool), error) {
	return func(ctx context.Context, a engine.Attendance) (func(bool), error) {
		err := host.Open(ctx, inbound.Run{ID: a.Run, Workflow: a.Workflow, Principal: string(a.Principal), Root: a.Project.Root})
		return func(ended bool) {
			if ended {
				_ = host.Close(context.WithoutCancel(ctx), a.Run) // the end of the test tells what is left
			}
		}, err
	}
}

// serveFiles is the server: it lists and reads what is below the folder that it was
// given last.
func serveFiles(args []string, in io.Reader, out io.Writer) error {
	root, err := os.OpenRoot(args[len(args)-1])
	if err != nil {
		return err
	}
	defer root.Close()
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // its input has ended: so does it
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments struct{ Path string }
			}
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return err
		}
		if m.ID == nil {
			continue
		}
		if answer := fileAnswer(root, m.Method, m.Params.Name, m.Params.Arguments.Path); answer != nil {
			line, err = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": answer})
		} else {
			line, err = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": "no such method"}})
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
			return err
		}
	}
}

func fileAnswer(root *os.Root, method, tool, path string) map[string]any {
	switch method {
	case "initialize":
		return map[string]any{
			"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": "files", "version": "1"},
		}
	case "tools/list":
		schema := map[string]any{"type": "object", "properties": map[string]any{"path": map[string]any{"type": "string"}}, "required": []string{"path"}}
		var tools []any
		for _, name := range []string{"list_directory", "read_text_file", "write_file"} {
			tools = append(tools, map[string]any{"name": name, "description": "Does as it is named.", "inputSchema": schema})
		}
		return map[string]any{"tools": tools}
	case "tools/call":
		text, err := fileText(root, tool, path)
		if err != nil {
			text = err.Error()
		}
		return map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}, "isError": err != nil}
	default:
		return nil
	}
}

func fileText(root *os.Root, tool, path string) (string, error) {
	if tool == "read_text_file" {
		text, err := root.ReadFile(path)
		return string(text), err
	}
	folder, err := root.Open(path)
	if err != nil {
		return "", err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	slices.Sort(names)
	return strings.Join(names, "\n"), err
}
