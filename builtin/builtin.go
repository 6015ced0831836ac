package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Options configure New. Home and Logger are required.
type Options struct {
	// Home is the absolute path of RELAVIUM_HOME, which exists. No tool reads or
	// writes in it, but for the folder of the call's own run.
	Home string
	// Private are further files and folders that are never read or written.
	Private []string
	// Protected lists files and folders that may be read but never written: config
	// files, folders of workflows. It is asked before each write; nil is none.
	Protected func() []string
	// Loaded lists the workflows that are loaded: none of their files is written,
	// nor a file that one of their commands names. Nil is the call's own alone.
	Loaded func() []workflows.Loaded
	// ProjectWrites tells whether runs of the workflow write to the project also for
	// principals other than "local". Nil is no.
	ProjectWrites func(root, workflow string) bool
	// Author is who commits. Without it git_commit is unavailable.
	Author Identity
	// Children starts commands; nil makes run_command and the git tools unavailable.
	// Who made it closes it.
	Children *child.Table
	// Environ is the environment of this process as os.Environ gives it: commands get
	// what every program needs of it, and are looked for in its PATH.
	Environ []string
	// Pass names proxy and CA variables of Environ that commands get too.
	Pass []string
	// Egress tunes the client of http_request. Its bounds and what it does with
	// redirects are set here.
	Egress egress.Options
	// Logger gets what callers are not told.
	Logger *slog.Logger
}

// An Identity is the author and committer of commits.
type Identity struct{ Name, Email string }

// Tools are the built-in tools of one process. They satisfy the ToolHost of agents
// and are safe for concurrent use.
type Tools struct {
	opt      Options
	home     string // real path
	client   *http.Client
	inTime   func(parent context.Context) (context.Context, context.CancelFunc) // bounds one request
	patience time.Duration                                                      // with one command
	tools    []*tool
}

// A tool is one entry of the catalog.
type tool struct {
	id     string
	about  string
	params []param
	// plan checks the arguments and the policy, and does nothing else.
	plan func(ctx context.Context, c *workflows.ToolCall, args *arguments) (plan, error)
}

// A plan is a call that was admitted.
type plan struct {
	workflows.Admission
	perform func(ctx context.Context) (json.RawMessage, error)
}

// A report is an error of a tool that ran: the model is told, and may do better.
type report string

func (r report) Error() string { return string(r) }

// New returns the built-in tools. It makes nothing: run folders appear when they are
// first needed.
func New(opt Options) (*Tools, error) {
	switch {
	case opt.Logger == nil:
		return nil, errors.New("builtin: Options.Logger is required")
	case !filepath.IsAbs(opt.Home):
		return nil, errors.New("builtin: Options.Home must be an absolute path")
	}
	home, err := filepath.EvalSymlinks(opt.Home)
	if err != nil {
		return nil, errors.New("builtin: Options.Home cannot be opened")
	}
	t := &Tools{opt: opt, home: home, client: newHTTPClient(opt.Egress), inTime: inTime, patience: maxCommand}
	t.tools = []*tool{t.readFile(), t.writeFile(), t.listDirectory(), t.runCommand(), t.httpRequest(), t.gitStatus(), t.gitCommit()}
	return t, nil
}

// Tools lists all of them; grants are for others to apply.
func (t *Tools) Tools(string, *workflows.Agent) []workflows.Tool {
	out := make([]workflows.Tool, len(t.tools))
	for i, tool := range t.tools {
		out[i] = workflows.Tool{ID: tool.id, Name: tool.id, Description: tool.about, InputSchema: schemaOf(tool.params)}
	}
	return out
}

// Check decides whether the call may be made. It looks at files, never changes one,
// and sends nothing.
func (t *Tools) Check(ctx context.Context, call *workflows.ToolCall) (workflows.Admission, error) {
	p, err := t.plan(ctx, call)
	if err != nil {
		return workflows.Admission{}, err
	}
	return p.Admission, nil
}

// Call makes a call that Check admits; it checks anew. What a tool reports of its
// own work, such as that there is no such file, is a result with IsError.
func (t *Tools) Call(ctx context.Context, call *workflows.ToolCall) (workflows.ToolResult, error) {
	began := time.Now()
	p, err := t.plan(ctx, call)
	var out json.RawMessage
	if err == nil {
		out, err = p.perform(ctx)
	}
	if said, ok := errors.AsType[report](err); ok {
		return workflows.ToolResult{Text: string(said), IsError: true}, nil
	}
	if err != nil {
		return workflows.ToolResult{}, t.settle(ctx, call, err, time.Since(began))
	}
	return workflows.ToolResult{Text: string(out)}, nil
}

func (t *Tools) plan(ctx context.Context, call *workflows.ToolCall) (plan, error) {
	fail := func(err error) (plan, error) { return plan{}, t.settle(ctx, call, err, 0) }
	for _, tool := range t.tools {
		if tool.id != call.Tool {
			continue
		}
		args, err := parseArguments(tool.params, call.Arguments)
		if err != nil {
			return fail(err)
		}
		p, err := tool.plan(ctx, call, args)
		if said, ok := errors.AsType[report](err); ok {
			// What only a call would tell is told by Call.
			p.perform = func(context.Context) (json.RawMessage, error) { return nil, said }
			err = nil
		}
		if err != nil {
			return fail(err)
		}
		if p.Shown == nil {
			p.Shown = args.shown()
		}
		return p, nil
	}
	return fail(incorrect("no tool %s", text.Quote(call.Tool, 64)))
}

// settle makes a *workflows.ToolError of whatever ended a call.
func (t *Tools) settle(ctx context.Context, call *workflows.ToolCall, err error, took time.Duration) error {
	fault, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		fault = &workflows.ToolError{Fault: workflows.ToolFailed, Reason: "internal", Message: "internal error", Err: err}
	}
	if cause := context.Cause(ctx); cause != nil && fault.Fault == workflows.ToolFailed {
		fault = &workflows.ToolError{Fault: workflows.ToolCancelled, Reason: "cancelled", Message: "the call was cancelled", Err: err}
	}
	fault.Tool, fault.Elapsed = call.Tool, took
	if fault.Err != nil {
		t.opt.Logger.LogAttrs(ctx, slog.LevelDebug, "built-in tool", slog.String("run", call.Run), slog.String("node", call.Node),
			slog.String("tool", call.Tool), slog.String("reason", fault.Reason), slog.Any("error", fault.Err))
	}
	return fault
}

// Reasons of refusals. The first six are those of format 6.2.
const (
	reasonCommand    = "command_not_allowed"
	reasonDomain     = "domain_not_allowed"
	reasonInsecure   = "insecure_url"
	reasonGate       = "gate_required"
	reasonPath       = "path_not_allowed"
	reasonRepository = "repository_not_allowed"
	reasonArguments  = "invalid_arguments"
)

func denied(reason, format string, args ...any) error {
	return &workflows.ToolError{Fault: workflows.ToolDenied, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func incorrect(format string, args ...any) error {
	return &workflows.ToolError{Fault: workflows.ToolIncorrect, Reason: reasonArguments, Message: fmt.Sprintf(format, args...)}
}

func unavailable(reason, message string, err error) error {
	return &workflows.ToolError{Fault: workflows.ToolUnavailable, Reason: reason, Message: message, Err: err}
}

func failed(reason, message string, err error) error {
	return &workflows.ToolError{Fault: workflows.ToolFailed, Reason: reason, Message: message, Err: err}
}

// A field is one member of a result.
type field struct {
	key   string
	value any
}

// object writes a result. Text that is not UTF-8 gets U+FFFD.
func object(fields ...field) (json.RawMessage, error) {
	members := make([]workflows.Member, len(fields))
	for i, f := range fields {
		var value bytes.Buffer
		e := json.NewEncoder(&value)
		e.SetEscapeHTML(false) // a model reads this as text
		if err := e.Encode(f.value); err != nil {
			return nil, fmt.Errorf("builtin: a result: %w", err)
		}
		members[i] = workflows.Member{Key: f.key, Value: bytes.TrimRight(value.Bytes(), "\n")}
	}
	out := workflows.Object(members)
	if len(out) > maxResult {
		return nil, report(fmt.Sprintf("the result is larger than %d bytes; ask for less", maxResult))
	}
	return out, nil
}

// maxResult bounds the JSON text of one result.
const maxResult = 2 << 20

func (t *Tools) local(principal string) bool { return principal == "local" }

// projectWrites tells whether the call writes to the project; otherwise it writes to
// the run's own folder.
func (t *Tools) projectWrites(c *workflows.ToolCall) bool {
	if t.local(c.Principal) {
		return true
	}
	return t.opt.ProjectWrites != nil && c.Workflow != nil && t.opt.ProjectWrites(c.Root, c.Workflow.ID)
}

// getenv is a variable of this process.
func (t *Tools) getenv(name string) string {
	for _, entry := range t.opt.Environ {
		if have, value, ok := strings.Cut(entry, "="); ok && (have == name || runtime.GOOS == "windows" && strings.EqualFold(have, name)) {
			return value
		}
	}
	return ""
}
