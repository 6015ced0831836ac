package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/engine/expr"
	"github.com/relavium/relavium-serve/workflows"
)

// A Principal is who started a run, owns it and may read it: "local",
// "token:<name>" or "oauth:<issuer>#<sub>".
type Principal string

// Local is the principal of stdio, of loopback without auth, and of the command line.
const Local Principal = "local"

// A State is where a run stands.
type State string

// The states of a run. Parked is never stored: it is what Run shows for a
// running run that no live process executes.
const (
	Running   State = "running"
	Waiting   State = "waiting"
	Completed State = "completed"
	Failed    State = "failed"
	Cancelled State = "cancelled"
	Blocked   State = "blocked"
	Parked    State = "parked"
)

// Terminal reports whether a run in this state has ended.
func (s State) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// A Project is where a workflow file lives; its key scopes every run.
type Project struct {
	Key  string
	Root string // absolute real path; never leaves the process
}

// Options configure Open. Path is required.
type Options struct {
	Path       string   // the SQLite file, whose folder must exist, or a postgres:// URL
	Executor   bool     // run workflows; otherwise only list, decide and cancel
	Projects   []string // keys of the projects whose runs this process continues
	Durability string   // "normal" (default) or "full"

	Agent    AgentRunner                                        // required when Executor is set
	ReadFile func(root, path string) ([]byte, error)            // the read_file filter; nil fails it
	Clean    func(string) string                                // cleans gate text for people; nil keeps it
	Load     func(json.RawMessage) (*workflows.Workflow, error) // nil means workflows.FromSnapshot
	Ended    func(run string)                                   // called once a run has ended here; returns soon; may be nil
	Attend   func(ctx context.Context, a Attendance) (leave func(ended bool), err error)
	Observe  func(o Observed)                // told of each event that this process produces, in order within a run; returns soon; may be nil
	Tracer   trace.Tracer                    // makes the spans of runs; nil makes none
	CutOff   func()                          // called when this replica loses its database: what runs beside it ends, within seconds; may be nil
	Stopped  func(ctx context.Context) error // called by Close once nothing runs here any more, before the store closes; may be nil

	// For replicas on a database, nil where each has everything: what a new run needs;
	// what of that this process has; and what it has of all that its workflows need.
	Needs  func(p Project, w *workflows.Workflow) Needs
	Has    func(ctx context.Context, needs Needs) Needs
	Offers func(ctx context.Context) Needs
	Lease  time.Duration // how long a silent replica counts as alive; 0 means 10 s

	Keep        time.Duration // how long an ended run is kept; 0 means 30 days
	OrphanGrace time.Duration // 0 means 10 min
	CloseGrace  time.Duration // 0 means 2 min; negative means cancel at once
	JoinWindow  time.Duration // 0 means 10 min
	Concurrency int           // expressions at once in the process; 0 means 2

	// blockedAfter is how long a run that no living replica fits goes on to be shown as running.
	blockedAfter time.Duration

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // required
}

// An AgentRunner executes one dispatch of an agent node. The engine records its
// result as one durable step; it may be called again for the same node after a
// crash or a retry. A returned *RunError decides code and retryability; any
// other error is internal.
type AgentRunner interface {
	RunAgent(ctx context.Context, call AgentCall) (AgentResult, error)
}

// AgentCall is what an agent node needs to run.
type AgentCall struct {
	Run       string
	Project   Project
	Principal Principal
	Workflow  *workflows.Workflow
	Node      *workflows.Node
	Agent     *workflows.Agent
	Prompt    string // the rendered user message
	Attempt   int    // node dispatch, from 1
	// Key names this dispatch for whatever the agent calls: run/node/dispatch.
	Key string
	// Approvals are the gates whose approval by a person lets one commit of this node
	// pass: those before it by routing edges, oldest first.
	Approvals []string
	// Emit sends an agent event to the run's stream; Run, Time, N and Node are filled in.
	Emit func(Event)
	// Do makes one effect happen, once: see Effect. It is safe for concurrent use by
	// effects of different places.
	Do func(ctx context.Context, effect Effect, perform Perform) (EffectResult, error)
}

// An Attendance asks for what the agents of a run need beside them, such as sessions
// with the MCP servers that they declare (Options.Attend). It is asked for before the
// run exists, so that a fault there is a refusal of the call, and again by each of its
// segments that still has such agents; the same run may be attended several times at
// once. leave is called once for each; ended says that the run needs nothing more,
// otherwise it may go on soon. An error that is a *RunError fails the run, or is
// what Start returns.
type Attendance struct {
	Run       string
	Project   Project
	Principal Principal
	Workflow  *workflows.Workflow
	Agents    []*workflows.Agent // with servers, of nodes that may still run, each once
	Depth     int                // as StartRequest.Depth
}

// Observed is one event of a run that runs here, for metrics and traces. The event
// must not be changed.
type Observed struct {
	Run, Workflow, Source string
	Principal             Principal
	Event                 *Event
}

// AgentResult is what an agent node yields.
type AgentResult struct {
	Output json.RawMessage // the parsed value with a schema, else the text as a JSON string
	Tokens Tokens
}

// An Effect is one model turn or tool call of an agent node. Its place, Path and N,
// is the same each time the node is entered with the same history, and Do keeps
// what was done there: an effect that is done is not performed again, its result is
// returned; one that was under way when its process died is performed again where
// Repeatable says so, and otherwise a person is asked. Do then returns ErrParked.
type Effect struct {
	Path string // of the agents that stand between, "" for the node's own; see invoke_agent
	N    int    // from 0, in the order in which the effects begin
	Kind string // EffectTurn or EffectTool
	Name string // model or tool, for people
	// Server is the MCP server of the tool, or empty.
	Server string
	// Request is what decides the result; a difference between what was done at this
	// place and what is asked for now is an internal error.
	Request    json.RawMessage
	Repeatable bool
	Shown      json.RawMessage // the arguments as people may see them
	Hints      string          // what a server says of the tool's effects
	Approval   string          // the gate whose approval this effect uses up; "" for none
	// Estimate is what it costs at most, in micro-cents; it is set aside from the run's
	// budget first. Where that does not suffice the budget decides: Do fails with
	// CodeBudgetExceeded, warns, or asks a person and returns ErrParked.
	Estimate int64
	// Said are the events that go out when the effect begins.
	Said []Event
}

// The kinds of effects.
const (
	EffectTurn = "turn"
	EffectTool = "tool"
)

// Perform makes an effect happen; key is its idempotency key. What it cost counts
// also where it returns an error; the error is returned by Do as it is, and the
// effect is not done: it may be tried again at the same place.
type Perform func(ctx context.Context, key string) (EffectResult, error)

// An EffectResult is what an effect led to.
type EffectResult struct {
	Value    json.RawMessage // what is kept and returned when the node is entered again; at most 4 MiB
	Tokens   Tokens
	Cost     int64   // micro-cents
	Said     []Event // go out, stored, with the result; cost:updated gets its cumulative figure
	Replayed bool    // it was done before: nothing was performed and nothing is said
}

// What Do returns beside the errors of Perform and *RunError.
var (
	// ErrParked says that a person has to decide first: the runner ends what else it
	// does and returns it. The node is entered again when the gate is decided.
	ErrParked = errors.New("engine: the node waits for a decision")
	// ErrSkipped says that a person decided not to repeat the effect: its outcome stays
	// unknown, and Do returns this for its place from then on.
	ErrSkipped = errors.New("engine: the outcome of the effect stays unknown")
	// ErrUnsent, wrapped in what Perform returns, says that the effect provably did not
	// leave the process: it may be tried again whatever it does.
	ErrUnsent = errors.New("engine: the effect was not sent")
	// ErrApprovalUsed says that another effect has used up the approval.
	ErrApprovalUsed = errors.New("engine: the approval is used up")
)

// StartRequest asks for a run.
type StartRequest struct {
	Workflow  *workflows.Workflow
	Project   Project
	Principal Principal
	// Arguments are the inputs as Workflow.ResolveInputs returned them.
	Arguments json.RawMessage
	Variables map[string]string // [variables] of the config, below the workflow's context
	Source    string            // "mcp" or "cli"
	// Trace is the span that the run belongs to, "" for none; see TraceOf.
	Trace string
	// Depth is how many workflows of ours called one another before this run.
	Depth  int
	Client string // clientInfo.name, for people to read
	// IdempotencyKey joins whatever run has it (24 h, per project, workflow and
	// principal); "" means none.
	IdempotencyKey string
	// Join lets a call without a key attach to an orphan of equal arguments.
	Join bool
}

// Started tells which run answers a StartRequest.
type Started struct {
	Run    string
	Joined bool      // an existing run, by key or as an orphan
	Since  time.Time // when that run started
}

// Why a call stopped waiting for its run without an explicit cancel.
const (
	DetachClock = "clock" // the client's own time-out
	DetachClose = "close" // the caller closed its 2026-07-28 stream
	DetachDrop  = "drop"  // connection lost, EOF, SIGTERM, crash

	DetachHandOver = "handover" // its caller has the run's id and asks for it
	DetachAsked    = "asked"    // its caller was asked, and comes back with the answer
)

// Run is one run as the store has it.
type Run struct {
	ID        string          `json:"id"`
	Project   string          `json:"project"`
	Root      string          `json:"-"`
	Workflow  string          `json:"workflow"`
	Digest    string          `json:"digest"`
	Principal Principal       `json:"principal"`
	Source    string          `json:"source"`
	Client    string          `json:"client,omitempty"`
	State     State           `json:"state"`
	Reason    string          `json:"reason,omitempty"` // why it is blocked or parked
	Error     *RunError       `json:"error,omitempty"`
	Outputs   json.RawMessage `json:"outputs,omitempty"` // completed: object by output node id
	Inputs    json.RawMessage `json:"inputs,omitempty"`  // secrets masked
	Cost      int64           `json:"costMicrocents"`
	Created   time.Time       `json:"created"`
	Started   time.Time       `json:"started,omitzero"`
	Ended     time.Time       `json:"ended,omitzero"`
	Deadline  time.Time       `json:"deadline,omitzero"`
	Trace     string          `json:"-"`               // as StartRequest.Trace; see Span
	Depth     int             `json:"-"`               // as StartRequest.Depth
	Nodes     []NodeState     `json:"nodes,omitempty"` // authored order; filled by Engine.Run, not by Runs
}

// NodeState is one node of a run as people see it.
type NodeState struct {
	ID     string          `json:"id"`
	Type   string          `json:"type"`
	State  string          `json:"state"` // pending, running, waiting, completed, failed, skipped
	Output json.RawMessage `json:"output,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

// A Gate is where a run waits for a person (serving §3).
type Gate struct {
	ID            string          `json:"id"`
	Run           string          `json:"run"`
	Workflow      string          `json:"workflow"`
	Node          string          `json:"node"`
	Key           string          `json:"key,omitempty"`
	Reason        string          `json:"reason,omitempty"` // "" for an authored gate, else budget or outcome_unknown
	Type          string          `json:"type"`             // approval, review, input
	Message       string          `json:"message"`
	Assignee      string          `json:"assignee,omitempty"`
	Opened        time.Time       `json:"opened"`
	Expires       time.Time       `json:"expires,omitzero"` // the earlier of the gate's and the run's end
	TimeoutAction string          `json:"timeoutAction,omitempty"`
	Decision      string          `json:"decision,omitempty"` // approved, rejected, input_provided; "" while open
	Payload       json.RawMessage `json:"payload,omitempty"`
	Comment       string          `json:"comment,omitempty"`
	Decided       time.Time       `json:"decided,omitzero"`
	DecidedBy     string          `json:"decidedBy,omitempty"`
	Via           string          `json:"via,omitempty"`

	effect string // dispatch/path/n of the effect that waits; "" for an authored gate
}

// The reasons of gates that the engine opens inside a node. A budget gate is an
// approval: it lets exactly the call pass that waits. One of an outcome_unknown
// effect takes "repeat", "skip" or "fail" as its payload.
const (
	ReasonBudget  = "budget"
	ReasonUnknown = "outcome_unknown"
)

// The decisions and channels of serving §3.
const (
	Approved      = "approved"
	Rejected      = "rejected"
	InputProvided = "input_provided"

	ViaElicitation       = "elicitation"
	ViaConsole           = "console"
	ViaCLI               = "cli"
	ViaCLINonInteractive = "cli-noninteractive"
	ViaTimeout           = "timeout"
	ViaMCP               = "mcp" // of a cancel: the client, or one of our tools
)

// A Decision settles a gate. By is the principal, Via the channel.
type Decision struct {
	Decision string
	Payload  json.RawMessage
	Comment  string
	By       string
	Via      string
}

// RunFilter narrows Runs; zero fields do not filter.
type RunFilter struct {
	Project   string
	Principal Principal
	Workflow  string
	States    []State
	Before    string // page on from this run id, exclusive
	Limit     int    // 0 means 50
}

// GateFilter narrows Gates; zero fields do not filter.
type GateFilter struct {
	Project string
	Run     string
	Open    bool   // only those still waiting
	After   string // page on from this gate id, exclusive; one that is not there yields nothing
	Limit   int    // 0 means 200
}

// An Engine is one process's hold on the run store. It is safe for concurrent
// use. Whoever opened it closes it.
type Engine struct {
	opt      Options
	log      *slog.Logger
	now      func() time.Time
	store    *durable.Store
	executor atomic.Pointer[durable.Executor] // nil when only looking, and while cut off
	lost     chan struct{}                    // the executor was cut off from its database
	sandbox  *expr.Sandbox

	base    context.Context //nolint:containedctx // the life of the janitor and of every run here
	stop    context.CancelCauseFunc
	closing chan struct{}
	done    sync.WaitGroup
	closed  sync.Once
	failed  error

	claiming    sync.Mutex
	mu          sync.Mutex
	projects    map[string]bool
	definitions map[string]*workflows.Workflow
	streams     map[string]*stream
	fresh       map[string]*fresh
	calls       map[string]int        // attached calls by run
	executions  map[string]*execution // runs whose segment runs here
	claims      []string              // claimed runs, not yet stored; claiming is held while they are
	complained  map[string]time.Time  // when the janitor last complained of a part
	wake        chan struct{}         // asks the janitor to look now
}

var (
	errShutdown = errors.New("engine: shutting down")
	errTaken    = errors.New("engine: another process continues the run")
)

func taken(err error) error {
	if err != nil {
		return err
	}
	return errTaken
}

// Open opens or creates the store and, as an executor, starts to continue the
// runs of its projects. Errors: *SchemaError for a store that a newer binary
// wrote. The caller closes the Engine.
func Open(ctx context.Context, opt Options) (*Engine, error) {
	switch {
	case opt.Path == "":
		return nil, errors.New("engine: Options.Path is required")
	case opt.Logger == nil:
		return nil, errors.New("engine: Options.Logger is required")
	case opt.Executor && opt.Agent == nil:
		return nil, errors.New("engine: Options.Agent is required")
	case opt.Durability != "" && opt.Durability != "normal" && opt.Durability != "full":
		return nil, fmt.Errorf("engine: Options.Durability is %q, want normal or full", opt.Durability)
	}
	opt = opt.withDefaults()
	e := &Engine{
		opt: opt, log: opt.Logger, now: opt.Now, sandbox: expr.New(opt.Concurrency),
		closing:     make(chan struct{}),
		projects:    make(map[string]bool),
		definitions: make(map[string]*workflows.Workflow),
		streams:     make(map[string]*stream),
		fresh:       make(map[string]*fresh),
		calls:       make(map[string]int),
		executions:  make(map[string]*execution),
		complained:  make(map[string]time.Time),
		wake:        make(chan struct{}, 1),
		lost:        make(chan struct{}, 1),
	}
	for _, p := range opt.Projects {
		e.projects[p] = true
	}
	e.base, e.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	var err error
	if e.store, err = durable.Open(ctx, durable.Options{
		Place: opt.Path, Full: opt.Durability == "full", Lease: opt.Lease, Log: opt.Logger,
	}); err != nil {
		return nil, err
	}
	if err := migrate(ctx, e.store); err != nil {
		return nil, errors.Join(err, e.store.Close())
	}
	if opt.Executor {
		if err := e.launch(ctx); err != nil {
			return nil, errors.Join(err, e.store.Close())
		}
		// Before the first call: a retry must find the run that its dead server held.
		e.complain("takeover", e.takeOver(ctx))
		e.done.Go(e.heal)
	}
	e.done.Go(e.janitor)
	return e, nil
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Keep, 30*24*time.Hour)
	def(&o.OrphanGrace, 10*time.Minute)
	def(&o.CloseGrace, 2*time.Minute)
	def(&o.JoinWindow, 10*time.Minute)
	def(&o.blockedAfter, defaultBlocked)
	if o.Load == nil {
		o.Load = workflows.FromSnapshot
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Clean == nil {
		o.Clean = func(s string) string { return s }
	}
	return o
}

// Close parks what runs here, waits for every goroutine and closes the store,
// within ctx. Calling it again waits for the same end.
func (e *Engine) Close(ctx context.Context) error {
	e.closed.Do(func() {
		e.stop(errShutdown)
		close(e.closing)
		left := func() time.Duration {
			if d, ok := ctx.Deadline(); ok {
				return max(time.Until(d), 100*time.Millisecond)
			}
			return 10 * time.Second
		}
		timeout := left()
		var errs []error
		if x := e.executor.Load(); x != nil {
			errs = append(errs, x.Close(timeout))
		}
		e.done.Wait()
		if x := e.executor.Swap(nil); x != nil {
			errs = append(errs, x.Close(timeout)) // launched anew meanwhile, or closed above
		}
		if e.opt.Stopped != nil {
			errs = append(errs, e.opt.Stopped(ctx))
		}
		e.sandbox.Close()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), left()) // a database that is away may stay so
		errs = append(errs, e.storeClaims(last), e.store.Close())
		cancel()
		e.failed = errors.Join(errs...)
	})
	return e.failed
}

// Alive reports whether some process executes runs of the project now.
func (e *Engine) Alive(ctx context.Context, project string) (bool, error) {
	return e.store.ExecutorAlive(ctx, project)
}

// Adopt makes this process an executor of one more project, as run --resume does.
func (e *Engine) Adopt(project string) error {
	me, err := e.executes()
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.projects[project] = true
	e.mu.Unlock()
	if err := me.Adopt(e.base, project); err != nil {
		return err
	}
	err = e.takeOver(e.base)
	e.look()
	return err
}

// mine lists the projects whose runs this process continues.
func (e *Engine) mine() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.projects))
}

// write runs one statement that follows the chosen durability.
func (e *Engine) write(ctx context.Context, query string, args ...any) error {
	return e.writeRun(ctx, "", query, args...)
}

// writeRun is write for one run, between the transactions that decide by what they
// read of it.
func (e *Engine) writeRun(ctx context.Context, run, query string, args ...any) error {
	err := e.update(ctx, run, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("run store: %w", err)
	}
	return nil
}

// look asks the janitor to look at the store now.
func (e *Engine) look() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) live(run string) *execution {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.executions[run]
}

func errAttr(err error) slog.Attr { return slog.String("error", err.Error()) }

func levelOf(wait time.Duration) slog.Level {
	if wait < time.Second {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// pause waits, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
