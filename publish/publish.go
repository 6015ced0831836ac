package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish/access"
	"github.com/relavium/relavium-serve/publish/transport"
	"github.com/relavium/relavium-serve/workflows"
)

// DefaultPrefix stands before a workflow's id in the name of its tool unless
// the operator says otherwise.
const DefaultPrefix = "relavium_"

// The rungs by which a gate may be answered; see Options.Accept.
const (
	AcceptElicitation       = "elicitation"
	AcceptConsole           = "console"
	AcceptCLI               = "cli"
	AcceptCLINonInteractive = "cli-noninteractive"
)

// A Workflow is one workflow to publish.
type Workflow struct {
	*workflows.Workflow

	Project engine.Project
	Tool    string   // the whole tool name; "" means the prefix and the id
	Accept  []string // narrows Options.Accept for this workflow; nil means not

	MinHuman     time.Duration         // where longer than Options.MinHuman, it counts
	Gates        map[string]gates.Name // by node id; those that are not named have the usual names
	NotRequester bool                  // whoever started a run may not answer its gates
	VisibleTo    []string              // subjects, clients and names of tokens for which it exists; nil means all
}

// Options configure New. Engine and Logger are required.
type Options struct {
	Engine    *engine.Engine
	Workflows []Workflow // what to publish; none lists no tool at all; see Replace
	Logger    *slog.Logger

	Prefix     string   // before the id in a tool's name, may be ""
	NoRunTools bool     // leaves out the relavium_run_* tools, and hand-over with them
	Accept     []string // rungs that may answer gates; nil means elicitation, console and cli

	Keys     *gates.Keys              // seal the states of questions; nil means one that ends with the process
	MinHuman time.Duration            // an answer that comes sooner is no person's; 0 means 500 ms, negative none
	Page     func(gate string) string // address of the console's page of a gate, or ""; nil means that there is none

	// Handover is how long a client, by its clientInfo.name, may be held before
	// a call is handed over; it is laid over the shipped table. 0 means never.
	Handover map[string]time.Duration

	// HasEnv reports whether a secret input has a value, from a variable or whatever
	// else supplies it; nil means none has. It is asked by the input's variable, and by
	// that with _FILE appended.
	HasEnv func(name string) bool
	// Refuse is asked before a call starts a run. A *engine.RunError is what the caller
	// is told, another error is an internal one; nil refuses none.
	Refuse    func(ctx context.Context, w *workflows.Workflow) error
	Variables map[string]string // [variables] of the config, for runs

	Tasks string        // which calls of clients that declare the tasks extension become tasks; "" means TasksAuto
	Keep  time.Duration // how long an ended run is kept, as clients are told of tasks; 0 does not tell

	Heartbeat time.Duration // between progress notifications of a quiet run; 0 means 15 s
	PageSize  int           // tools per page of tools/list; 0 means 250
	Version   string        // of this binary, for serverInfo
	Tracer    trace.Tracer  // makes the spans of calls; nil makes none

	Limits access.Limits // of the calls that start runs

	EOFGrace  time.Duration // see transport.Stdio
	StopGrace time.Duration // see transport.Stdio
}

// A Server answers MCP requests for a set of published workflows. It is safe
// for concurrent use and holds nothing that must be closed.
type Server struct {
	opt      Options
	engine   *engine.Engine
	log      *slog.Logger
	limiter  *access.Limiter
	ladder   *gates.Ladder
	info     mcp.Implementation
	can      []server.ServerOption
	handover map[string]time.Duration
	clock    *regexp.Regexp // reasons that are a client's clock
	sessions atomic.Int64

	replacing sync.Mutex // held while the table is replaced
	table     atomic.Pointer[table]
	notices   transport.Notices // to sessions
	listening sync.Map          // sessions of open subscriptions
}

// New builds the tool table. The error lists every workflow that cannot be
// published, with the remedy; it holds no value of the environment.
func New(opt Options) (*Server, error) {
	switch {
	case opt.Engine == nil:
		return nil, errors.New("publish: Options.Engine is required")
	case opt.Logger == nil:
		return nil, errors.New("publish: Options.Logger is required")
	}
	opt.Heartbeat = cmp.Or(opt.Heartbeat, 15*time.Second)
	opt.PageSize = cmp.Or(opt.PageSize, 250)
	opt.MinHuman = cmp.Or(opt.MinHuman, 500*time.Millisecond)
	if opt.Keys == nil {
		var err error
		if opt.Keys, err = gates.NewKeys(opt.Logger); err != nil {
			return nil, err
		}
	}
	ladder, err := gates.New(gates.Options{Engine: opt.Engine, Keys: opt.Keys, Logger: opt.Logger, Page: opt.Page})
	if err != nil {
		return nil, err
	}
	s := &Server{
		opt:      opt,
		engine:   opt.Engine,
		log:      opt.Logger,
		limiter:  access.NewLimiter(opt.Limits, opt.Engine.Active),
		ladder:   ladder,
		info:     mcp.Implementation{Name: "relavium-serve", Version: cmp.Or(opt.Version, "devel")},
		handover: handoverLimits(opt.Handover),
		clock:    regexp.MustCompile(clockReason),
	}
	s.can = []server.ServerOption{
		server.WithToolCapabilities(true),
		server.WithResourceCapabilities(false, false),
		server.WithPaginationLimit(opt.PageSize),
		server.WithToolFilter(filter),
	}
	switch opt.Tasks {
	case "", TasksAuto, TasksAlways:
		s.can = append(s.can, server.WithExtensions(map[string]any{taskExtension: map[string]any{}}))
	case TasksNever:
	default:
		return nil, fmt.Errorf("publish: Options.Tasks is %q", opt.Tasks)
	}
	t, err := s.newTable(opt.Workflows, nil)
	if err != nil {
		return nil, err
	}
	s.table.Store(t)
	return s, nil
}

// Serve answers one client over a pair of streams, as stdio does, for the
// principal local. It returns nil at the end of in and when ctx ends; see
// transport.Stdio.Serve.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	loop := transport.Stdio{
		Answer:    s.Answer,
		Principal: string(engine.Local),
		Logger:    s.log,
		Notices:   &s.notices,
		EOFGrace:  s.opt.EOFGrace,
		StopGrace: s.opt.StopGrace,
	}
	err := loop.Serve(ctx, in, out)
	wctx, done := context.WithTimeout(context.WithoutCancel(ctx), askedGrace)
	defer done()
	s.ladder.Wait(wctx)
	return err
}

// askedGrace is how long an answer that just came may take to be stored when
// its connection ends.
const askedGrace = 100 * time.Millisecond

// ToolNames returns the names of the published workflows' tools, sorted, by
// workflow id.
func (s *Server) ToolNames() map[string]string {
	tools := s.table.Load().tools
	names := make(map[string]string, len(tools))
	for name, t := range tools {
		if t.workflow != nil {
			names[t.workflow.ID] = name
		}
	}
	return names
}

// Limit puts other limits in place of Options.Limits. What callers did so far
// counts on.
func (s *Server) Limit(limits access.Limits) { s.limiter.Set(limits) }

// handoverLimits is the shipped table of clients that drop a call at a fixed
// age, measured, with the operator's entries over it. Zero means never.
func handoverLimits(over map[string]time.Duration) map[string]time.Duration {
	limits := map[string]time.Duration{"claude-ai": 3*time.Minute + 45*time.Second}
	maps.Copy(limits, over)
	return limits
}
