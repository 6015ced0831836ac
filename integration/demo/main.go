// Command demo shows relavium-serve from the other side: it starts the built
// binary as an MCP client does, lists the tools that the example workflows
// became, calls two of them with live progress, and answers the gate of the
// second from a command line, as a person would. It uses no key and no network,
// and keeps its runs in a temporary folder.
package main

import (
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
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"golang.org/x/term"
)

// limit bounds the whole demo.
const limit = time.Minute

// config lets the demo answer its own gate: a command line without a terminal
// counts as a person only where the user's configuration says so.
const config = `[gates]
accept = ["cli", "cli-noninteractive"]
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s := stage{w: os.Stdout, gates: make(chan string, 1), color: term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""}
	if err := s.play(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// A stage is where the demo plays: what it prints on, the binary, and the home
// of its run store.
type stage struct {
	w      io.Writer
	color  bool
	binary string
	home   string
	gates  chan string // runs whose gate has opened
	diag   tail
}

func (s *stage) play(ctx context.Context) (err error) {
	if s.binary, err = filepath.Abs(filepath.Join("bin", "relavium-serve")); err != nil {
		return err
	}
	if runtime.GOOS == "windows" {
		s.binary += ".exe"
	}
	if s.home, err = os.MkdirTemp("", "relavium-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.home)) }()
	if err := os.WriteFile(filepath.Join(s.home, "config.toml"), []byte(config), 0o600); err != nil {
		return err
	}

	args := []string{"serve", "--workflows", filepath.Join("examples", "workflows"), "--publish", "@mcp_call"}
	s.shell(args...)
	c := client.NewClient(transport.NewStdioWithOptions(s.binary, nil, args,
		transport.WithCommandFunc(s.command), transport.WithCommandStderrWriter(&s.diag)))
	c.OnNotification(s.notified)
	if err := c.Start(ctx); err != nil {
		return err
	}
	err = errors.Join(s.act(ctx, c), c.Close())
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, s.diag.String())
	}
	return err
}

// act is what a client does once it has a connection.
func (s *stage) act(ctx context.Context, c *client.Client) error {
	began := time.Now()
	hello, err := c.Initialize(ctx, mcp.InitializeRequest{Params: mcp.InitializeParams{
		ProtocolVersion: mcp.LATEST_PROTOCOL_VERSION,
		ClientInfo:      mcp.Implementation{Name: "demo", Version: "1"},
	}})
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	list, err := c.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		return fmt.Errorf("tools/list: %w", err)
	}
	s.say("\n%s, MCP %s: %d tools after %d ms\n", hello.ServerInfo.Name, hello.ProtocolVersion,
		len(list.Tools), time.Since(began).Milliseconds())
	for _, tool := range list.Tools {
		s.say("  %s %s\n", s.bold(fmt.Sprintf("%-28s", tool.Name)), cut(tool.Description, 80))
	}

	notes, err := s.call(ctx, c, "relavium_release-notes", map[string]any{
		"version": "1.4.0",
		"commits": "feat(gates): answer a gate from the command line\nfix: keep the digits of large numbers\n" +
			"chore: update linters\nperf(store): keep statements prepared",
	})
	if err != nil {
		return err
	}
	if _, err := s.call(ctx, c, "relavium_deploy", map[string]any{
		"version": "1.4.0", "environment": "production", "changes": notes,
	}); err != nil {
		return err
	}
	s.say("\nEvery run was durable and would have outlived kill -9. README.md has one page of use.\n")
	return nil
}

// call calls one tool, shows its progress as it comes, answers its gate and
// returns the text of the result.
func (s *stage) call(ctx context.Context, c *client.Client, tool string, args map[string]any) (string, error) {
	pretty, err := json.Marshal(args)
	if err != nil {
		return "", err
	}
	s.say("\n%s %s\n", s.bold("tools/call "+tool), s.dim(cut(string(pretty), 90)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- s.answer(ctx) }()

	req := mcp.CallToolRequest{Params: mcp.CallToolParams{
		Name: tool, Arguments: args, Meta: &mcp.Meta{ProgressToken: tool},
	}}
	result, err := c.CallTool(ctx, req)
	cancel()
	if wrong := <-answered; wrong != nil {
		return "", wrong
	}
	if err != nil {
		return "", fmt.Errorf("tools/call %s: %w", tool, err)
	}
	var text strings.Builder
	for _, part := range result.Content {
		if t, ok := part.(mcp.TextContent); ok {
			text.WriteString(t.Text)
		}
	}
	if result.IsError {
		return "", fmt.Errorf("tools/call %s: %s", tool, text.String())
	}
	s.result(text.String())
	return text.String(), nil
}

// notified shows one progress line, or passes on the run of a gate that opened.
func (s *stage) notified(n mcp.JSONRPCNotification) {
	fields := n.Params.AdditionalFields
	switch n.Method {
	case "notifications/progress":
		done, _ := fields["progress"].(float64)
		total, _ := fields["total"].(float64)
		message, _ := fields["message"].(string)
		s.say("  %s %s\n", s.dim(bar(done, total)), cut(message, 90))
	case "notifications/relavium/human_gate":
		message, _ := fields["message"].(string)
		s.say("%s\n", s.bold("a person is asked"))
		for line := range strings.Lines(strings.TrimSpace(message)) {
			s.say("  | %s\n", cut(strings.TrimRight(line, "\n"), 100))
		}
		if run, ok := fields["runId"].(string); ok {
			select {
			case s.gates <- run:
			default: // one answer at a time
			}
		}
	}
}

// answer approves the gates of the call under way, from another process.
func (s *stage) answer(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case run := <-s.gates:
			args := []string{"gate", "approve", run, "--comment", "looks good", "--yes"}
			s.shell(args...)
			cmd, err := s.command(ctx, s.binary, nil, args)
			if err != nil {
				return err
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("gate approve: %w: %s", err, bytes.TrimSpace(out))
			}
			for line := range strings.Lines(string(bytes.TrimSpace(out))) {
				s.say("  %s\n", strings.TrimSpace(line))
			}
		}
	}
}

// command is the binary with nothing of the caller's environment but PATH.
func (s *stage) command(ctx context.Context, command string, _, args []string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, command, args...) //nolint:gosec // our own binary, just built
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "SystemRoot=" + os.Getenv("SystemRoot"),
		"HOME=" + s.home, "USERPROFILE=" + s.home, "RELAVIUM_HOME=" + s.home,
	}
	return cmd, nil
}

func (s *stage) result(text string) {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, []byte(text), "  ", "  "); err == nil {
		text = pretty.String()
	} else {
		text = strings.ReplaceAll(text, "\n", "\n  ")
	}
	s.say("%s\n  %s\n", s.bold("result"), text)
}

// shell shows a command as a person would type it.
func (s *stage) shell(args ...string) {
	words := []string{"$ relavium-serve"}
	for _, arg := range args {
		if strings.Contains(arg, " ") {
			arg = "'" + arg + "'"
		}
		words = append(words, arg)
	}
	s.say("%s\n", s.bold(strings.Join(words, " ")))
}

func (s *stage) say(format string, args ...any) { _, _ = fmt.Fprintf(s.w, format, args...) }

func (s *stage) bold(text string) string { return s.paint("1", text) }

func (s *stage) dim(text string) string { return s.paint("2", text) }

func (s *stage) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// bar draws done of total in ten characters.
func bar(done, total float64) string {
	filled := 0
	if total > 0 {
		filled = min(10, int(10*done/total))
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", 10-filled) + "]"
}

// cut is the first line of a text, at most width characters of it.
func cut(text string, width int) string {
	line, _, _ := strings.Cut(text, "\n")
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

// A tail keeps the end of what the server logged, to be shown if the demo fails.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - 4096; over > 0 {
		t.buf = t.buf[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
