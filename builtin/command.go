package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of one command.
const (
	maxWords      = 256
	maxWord       = 32 << 10
	maxCommand    = 10 * time.Minute
	maxOutput     = 256 << 10 // bytes kept of each stream
	maxOutputTold = 48 << 10  // where the result would pass its bound
)

func (t *Tools) runCommand() *tool {
	return &tool{
		id: "run_command",
		about: "Runs one program directly, without a shell: no pipes, no redirection, no variables, no quoting; give each argument as an element of args. " +
			"Only command lines that the workflow lists are allowed, to the letter: program and arguments must equal a listed line, and any other ends the run. " +
			"The program starts in the workspace with a minimal environment and no input, and is ended after 10 minutes. " +
			"Returns exitCode, stdout, stderr and durationMs; a long output loses its middle.",
		params: []param{
			{name: "command", schema: `{"type":"string"}`, about: "the program alone, such as go", required: true},
			{name: "args", schema: `{"type":"array","items":{"type":"string"}}`, about: `its arguments, such as ["test", "./..."]`},
		},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			argv := append([]string{a.text("command", maxWord)}, a.texts("args", maxWords)...)
			if a.err != nil {
				return plan{}, a.err
			}
			for _, word := range argv {
				if len(word) > maxWord {
					return plan{}, incorrect("an argument is longer than %d bytes", maxWord)
				}
			}
			if c.Workflow == nil || !allowed(c.Workflow.Tools, argv) {
				return plan{}, denied(reasonCommand, "the workflow does not list the command %s", quoteAll(argv))
			}
			if t.opt.Children == nil {
				return plan{}, unavailable("no_commands", "commands cannot be started here", nil)
			}
			path, err := t.program(c.Root, argv[0])
			if err != nil {
				return plan{}, err
			}
			if isBatch(path) && slices.ContainsFunc(argv[1:], func(word string) bool { return strings.ContainsAny(word, "\"&|<>^%!()") }) {
				return plan{}, denied(reasonCommand, "a batch file would read more than text in its arguments")
			}
			return plan{perform: func(ctx context.Context) (json.RawMessage, error) { return t.command(ctx, c, path, argv) }}, nil
		},
	}
}

// quoteAll shows a command line, cut to what a message can hold.
func quoteAll(argv []string) string {
	words := make([]string, 0, len(argv))
	for _, word := range argv {
		words = append(words, text.Quote(word, 100))
	}
	return text.Cut(strings.Join(words, " "), 500)
}

// program finds the program that the first word of a command line names: a bare
// word in PATH, one with a slash in the workspace alone.
func (t *Tools) program(root, word string) (string, error) {
	inside := strings.Contains(word, "/") || runtime.GOOS == "windows" && strings.ContainsAny(word, `\:`)
	path, err := consent.Resolve(word, root, t.getenv)
	if err == nil && inside {
		err = insideOf(root, path)
	}
	if err != nil {
		if inside && leaves(word) || errors.Is(err, errOutside) {
			return "", denied(reasonCommand, "the program %s is not inside the workspace", text.Quote(word, 100))
		}
		return "", unavailable("no_program", "there is no program "+text.Quote(word, 100), err)
	}
	return path, nil
}

// isBatch tells whether a program is a batch file of Windows: cmd.exe reads its
// arguments anew.
func isBatch(path string) bool {
	ext := filepath.Ext(path)
	return runtime.GOOS == "windows" && (strings.EqualFold(ext, ".bat") || strings.EqualFold(ext, ".cmd"))
}

var errOutside = errors.New("not inside the workspace")

// insideOf tells whether a path, all links followed, is below a folder.
func insideOf(root, path string) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return errOutside
	}
	if folder, err := filepath.EvalSymlinks(root); err != nil || !below(target, folder) {
		return errOutside
	}
	return nil
}

// command runs a command line that was allowed.
func (t *Tools) command(ctx context.Context, c *workflows.ToolCall, path string, argv []string) (json.RawMessage, error) {
	dir := c.Root
	if !t.projectWrites(c) {
		var err error
		if dir, err = t.Folder(c.Run); err != nil {
			return nil, failed("run_folder", "the run's own folder cannot be opened", err)
		}
	}
	recheck := func() error { return nil }
	if strings.ContainsAny(argv[0], `/\`) {
		recheck = func() error { return insideOf(c.Root, path) }
	}
	out, err := t.start(ctx, child.Spec{Path: path, Args: argv[1:], Dir: dir, Recheck: recheck},
		child.Bounds{Timeout: t.patience, Stdout: maxOutput, Stderr: maxOutput},
		child.Variable{Name: "RELAVIUM_IDEMPOTENCY_KEY", Value: []byte(c.Key)})
	if err != nil {
		return nil, err
	}
	for _, limit := range []int{maxOutput, maxOutputTold} {
		fields := []field{{"exitCode", out.Exit.Code}}
		if out.Exit.Signal != "" {
			fields = append(fields, field{"signal", out.Exit.Signal})
		}
		fields = append(fields, field{"stdout", written(out.Stdout, limit)}, field{"stderr", written(out.Stderr, limit)},
			field{"durationMs", out.Duration.Milliseconds()})
		result, err := object(fields...)
		if err == nil {
			return result, nil
		}
		if _, ok := errors.AsType[report](err); !ok {
			return nil, err
		}
	}
	return nil, report("the command ran, and its output is too large to show")
}

// start runs a program with the environment that every command gets, and own.
func (t *Tools) start(ctx context.Context, spec child.Spec, bounds child.Bounds, own ...child.Variable) (*child.Result, error) {
	var err error
	if spec.Env, err = child.NewEnvironment(child.Variables{Host: t.opt.Environ, Pass: t.opt.Pass, Own: own}); err != nil {
		return nil, failed("environment", "the command's environment cannot be made", err)
	}
	out, err := t.opt.Children.Run(ctx, spec, bounds)
	if err == nil {
		return out, nil
	}
	fault := &workflows.ToolError{Fault: workflows.ToolFailed, Reason: "command", Message: "the command did not end", Err: err}
	if late, ok := errors.AsType[*child.TimeoutError](err); ok {
		fault.Reason, fault.Limit = "deadline", late.After
		fault.Message = fmt.Sprintf("the command ran longer than %s and was ended", late.After)
	} else if unbegun, ok := errors.AsType[*child.StartError](err); ok {
		fault.Reason, fault.Message, fault.Retryable = "spawn", "the program did not start: "+unbegun.Reason, !unbegun.Begun
	}
	return nil, fault
}

// written is what a command wrote, as text of at most limit bytes, the middle left
// out where there is more.
func written(out child.Output, limit int) string {
	head, tail, omitted := out.Head, out.Tail, out.Omitted
	if over := len(head) + len(tail) - limit; over > 0 {
		all := append(append([]byte{}, head...), tail...)
		if omitted > 0 {
			head, tail = head[:min(len(head), limit/2)], tail[max(0, len(tail)-limit/2):]
		} else {
			head, tail = all[:limit/2], all[len(all)-limit/2:]
		}
		omitted += int64(len(all) - len(head) - len(tail))
	}
	said := strings.ToValidUTF8(string(head), "\uFFFD")
	if omitted > 0 {
		said += fmt.Sprintf("\n… %d bytes left out …\n", omitted)
	}
	return said + strings.ToValidUTF8(string(tail), "\uFFFD")
}
