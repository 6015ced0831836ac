package builtin

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/workflows"
)

var _ agent.ToolHost = (*Tools)(nil)

const testRun = "0197b7a2-5f3c-7c11-9d42-0d8a5f5f6a10"

// site is a workspace beside a folder that must stay as it is, and a home.
type site struct {
	root, outside, home string
	tools               *Tools
	workflow            *workflows.Workflow
}

// newSite makes the workspace of the tests of Reader, and tools for it.
func newSite(t *testing.T, change func(*Options)) *site {
	t.Helper()
	s := &site{root: workspace(t), home: t.TempDir(), workflow: &workflows.Workflow{ID: "tidy"}}
	s.outside = filepath.Join(filepath.Dir(s.root), "outside")
	opt := Options{
		Home: s.home, Private: []string{filepath.Join(s.root, "home")}, Logger: slog.New(slog.DiscardHandler),
		Environ: os.Environ(),
	}
	if change != nil {
		change(&opt)
	}
	var err error
	if s.tools, err = New(opt); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) request(tool string, args any) *workflows.ToolCall {
	raw, ok := args.(string)
	if !ok {
		out, err := json.Marshal(args)
		if err != nil {
			panic(err)
		}
		raw = string(out)
	}
	return &workflows.ToolCall{
		Run: testRun, Node: "write", Principal: "local", Root: s.root, Workflow: s.workflow, Agent: &workflows.Agent{ID: "scribe"},
		Tool: tool, Arguments: json.RawMessage(raw), Key: testRun + "/write/1//0",
	}
}

// outcome is a result as text, or what it failed with: "denied: …", "incorrect: …",
// "error: …" for a report.
func (s *site) outcome(t *testing.T, call *workflows.ToolCall) string {
	t.Helper()
	checked, checkErr := s.tools.Check(t.Context(), call)
	out, err := s.tools.Call(t.Context(), call)
	if checkErr != nil && (err == nil || err.Error() != checkErr.Error() && !errors.Is(err, t.Context().Err())) {
		var a, b *workflows.ToolError
		if !errors.As(checkErr, &a) || !errors.As(err, &b) || a.Message != b.Message {
			t.Fatalf("%s %s: Check = %v, Call = %v", call.Tool, call.Arguments, checkErr, err)
		}
	}
	if checkErr == nil && !json.Valid(checked.Shown) {
		t.Fatalf("%s %s: Shown = %s, want JSON", call.Tool, call.Arguments, checked.Shown)
	}
	var fault *workflows.ToolError
	switch {
	case err == nil && out.IsError:
		return "error: " + out.Text
	case err == nil:
		return out.Text
	case !errors.As(err, &fault):
		t.Fatalf("%s %s = %v, want a *workflows.ToolError", call.Tool, call.Arguments, err)
	}
	for _, leak := range []string{filepath.Dir(s.root), s.home, "canary"} {
		if strings.Contains(err.Error(), leak) {
			t.Errorf("%s %s: error %q holds %q", call.Tool, call.Arguments, err, leak)
		}
	}
	switch fault.Fault {
	case workflows.ToolDenied:
		return "denied: " + fault.Reason + ": " + fault.Message
	case workflows.ToolIncorrect:
		return "incorrect: " + fault.Message
	case workflows.ToolFailed, workflows.ToolUnavailable, workflows.ToolCancelled:
	}
	return string(fault.Fault) + ": " + fault.Reason + ": " + fault.Message
}

func TestNew(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for _, opt := range []Options{
		{Home: t.TempDir()},
		{Logger: log},
		{Logger: log, Home: "relative"},
		{Logger: log, Home: filepath.Join(t.TempDir(), "absent")},
	} {
		if _, err := New(opt); err == nil {
			t.Errorf("New(%+v) = nil error", opt)
		}
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	var ids []string
	for _, tool := range s.tools.Tools(testRun, nil) {
		ids = append(ids, tool.ID)
		var schema struct {
			Type       string                                     `json:"type"`
			Properties map[string]struct{ Type, Description any } `json:"properties"`
			Required   []string                                   `json:"required"`
			More       *bool                                      `json:"additionalProperties"`
		}
		if err := json.Unmarshal(tool.InputSchema, &schema); err != nil {
			t.Fatalf("%s: schema %s: %v", tool.ID, tool.InputSchema, err)
		}
		if schema.Type != "object" || schema.More == nil || *schema.More || schema.Required == nil {
			t.Errorf("%s: schema %s, want a closed object with required", tool.ID, tool.InputSchema)
		}
		for name, p := range schema.Properties {
			if p.Description == nil || p.Description == "" {
				t.Errorf("%s: argument %q has no description", tool.ID, name)
			}
		}
		for _, name := range schema.Required {
			if _, ok := schema.Properties[name]; !ok {
				t.Errorf("%s: required %q is no property", tool.ID, name)
			}
		}
		if len(tool.Description) < 80 || tool.Server != "" || tool.Name != tool.ID {
			t.Errorf("%s: %+v, want a description and no server", tool.ID, tool)
		}
	}
	want := []string{"read_file", "write_file", "list_directory", "run_command", "http_request", "git_status", "git_commit"}
	if !slices.Equal(ids, want) {
		t.Errorf("Tools = %q, want %q", ids, want)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	tests := []struct{ tool, args, want string }{
		{"read_file", `{`, "incorrect: the arguments: invalid JSON"},
		{"read_file", ``, `incorrect: argument "path" is missing`},
		{"read_file", `[]`, "incorrect: the arguments: invalid JSON at byte 0: not an object"},
		{"read_file", `{"path":"notes.txt","path":"notes.txt"}`, "incorrect: the arguments: invalid JSON"},
		{"read_file", `{"path":"notes.txt","Path":"x"}`, `incorrect: unknown argument "Path"; there are path, startLine, lineCount, startByte, byteCount`},
		{"read_file", `{"path":"notes.txt","n\u202ee":1}`, `incorrect: unknown argument "n\u{202E}e"`},
		{"read_file", `{"path":null}`, `incorrect: argument "path" is missing`},
		{"read_file", `{"path":1}`, `incorrect: argument "path": want a string`},
		{"read_file", `{"path":"\ud800"}`, "incorrect: the arguments: invalid JSON"},
		{"read_file", `{"path":"notes.txt","startLine":0}`, `incorrect: argument "startLine": want a whole number from 1`},
		{"read_file", `{"path":"notes.txt","startLine":1.5}`, `incorrect: argument "startLine": want a whole number from 1`},
		{"read_file", `{"path":"notes.txt","startLine":null}`, `{"content":"one, two"`},
		{"write_file", `{"path":"a.txt","content":"x","append":"yes"}`, `incorrect: argument "append": want true or false`},
		{"write_file", `{"path":"a.txt"}`, `incorrect: argument "content" is missing`},
		{"run_command", `{"command":"go","args":"x"}`, `incorrect: argument "args": want a list of strings`},
		{"run_command", `{"command":"go","args":["x",null]}`, `incorrect: argument "args": want a list of strings`},
		{"Read_File", `{"path":"notes.txt"}`, `incorrect: no tool "Read_File"`},
		{"read_file ", `{"path":"notes.txt"}`, `incorrect: no tool "read_file "`},
		{"mcp_call", `{}`, `incorrect: no tool "mcp_call"`},
	}
	for _, test := range tests {
		if got := s.outcome(t, s.request(test.tool, test.args)); !strings.HasPrefix(got, test.want) {
			t.Errorf("%s %s = %.200q, want %q", test.tool, test.args, got, test.want)
		}
	}
	huge := s.request("write_file", `{"path":"a.txt","content":"`+strings.Repeat("a", maxWrite+1)+`"}`)
	if got := s.outcome(t, huge); got != `incorrect: argument "content": want at most 4194304 bytes` {
		t.Errorf("write_file of too much = %q", got)
	}
	huge.Arguments = json.RawMessage(`{"path":"a.txt","content":"` + strings.Repeat("a", maxArguments) + `"}`)
	if got := s.outcome(t, huge); got != "incorrect: the arguments are larger than 8388608 bytes" {
		t.Errorf("write_file of far too much = %q", got)
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, test := range []struct{ tool, args, want string }{
		{"write_file", `{"content":"a\u202eb\u001b[31mc","path":"x.txt"}`, `{"path":"x.txt","content":"abc"}`},
		{"write_file", `{"path":"x.txt","content":"` + strings.Repeat("é", 600) + `"}`, `{"path":"x.txt","content":"` + strings.Repeat("é", 248) + `… (1200 bytes)"}`},
	} {
		got, err := s.tools.Check(t.Context(), s.request(test.tool, test.args))
		if err != nil || string(got.Shown) != test.want {
			t.Errorf("Check(%s) shows %s, %v, want %s", test.args, got.Shown, err, test.want)
		}
	}
}
