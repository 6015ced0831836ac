package engine

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

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
	Path       string   // the SQLite file; its folder must exist
	Executor   bool     // run workflows; otherwise only list, decide and cancel
	Projects   []string // keys of the projects whose runs this process continues
	Durability string   // "normal" (default) or "full"

	Agent    AgentRunner                                        // required when Executor is set
	ReadFile func(root, path string) ([]byte, error)            // the read_file filter; nil fails it
	Clean    func(string) string                                // cleans gate text for people; nil keeps it
	Load     func(json.RawMessage) (*workflows.Workflow, error) // nil means workflows.FromSnapshot

	Keep        time.Duration // how long an ended run is kept; 0 means 30 days
	OrphanGrace time.Duration // 0 means 10 min
	CloseGrace  time.Duration // 0 means 2 min; negative means cancel at once
	JoinWindow  time.Duration // 0 means 10 min
	Concurrency int           // expressions at once in the process; 0 means 2

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
	// Key names this effect for whatever the agent calls: run/node/dispatch.
	Key string
	// Emit sends an agent or cost event to the run's stream; Run, Time, N and Node are filled in.
	Emit func(Event)
}

// AgentResult is what an agent node yields.
type AgentResult struct {
	Output json.RawMessage // the parsed value with a schema, else the text as a JSON string
	Tokens Tokens
	Cost   int64 // micro-cents
}

// StartRequest asks for a run.
type StartRequest struct {
	Workflow  *workflows.Workflow
	Project   Project
	Principal Principal
	// Arguments are the inputs as Workflow.ResolveInputs returned them.
	Arguments json.RawMessage
	Variables map[string]string // [variables] of the config, below the workflow's context
	Source    string            // "mcp" or "cli"
	Client    string            // clientInfo.name, for people to read
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
}

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
	Open    bool // only those still waiting
	Limit   int  // 0 means 200
}

// An Engine is one process's hold on the run store. It is safe for concurrent
// use. Whoever opened it closes it.
type Engine struct{}

var errSkeleton = errors.New("engine: not built yet")

// Open opens or creates the store and, as an executor, starts to continue the
// runs of its projects. The caller closes the Engine.
func Open(ctx context.Context, opt Options) (*Engine, error) { return nil, errSkeleton }

// Close parks what runs, waits for every goroutine and closes the store, within
// ctx. Calling it again waits for the same end.
func (e *Engine) Close(ctx context.Context) error { return errSkeleton }

// Start makes a run durable and begins it, or names the run that the request
// joins. Errors: *KeyConflictError, *RunError with code validation (context
// values that cannot be resolved; no run exists then), ErrClosed.
func (e *Engine) Start(ctx context.Context, req StartRequest) (Started, error) {
	return Started{}, errSkeleton
}

// Attach makes the caller a waiter of the run, which ends its life as an orphan.
// Another principal's run is ErrRunNotFound. The caller ends the attachment by
// Detach or Cancel, or by reading to the terminal event.
func (e *Engine) Attach(ctx context.Context, run string, p Principal) (*Attachment, error) {
	return nil, errSkeleton
}

// Run returns one run with its node states. p "" means any principal.
func (e *Engine) Run(ctx context.Context, id string, p Principal) (*Run, error) {
	return nil, errSkeleton
}

// Runs lists runs, newest first.
func (e *Engine) Runs(ctx context.Context, f RunFilter) ([]Run, error) { return nil, errSkeleton }

// Events returns the stored events of a run from sequence number from on.
func (e *Engine) Events(ctx context.Context, run string, from int64) ([]Event, error) {
	return nil, errSkeleton
}

// Output returns the settled output of one node; p "" means any principal.
func (e *Engine) Output(ctx context.Context, run, node string, p Principal) (json.RawMessage, error) {
	return nil, errSkeleton
}

// Definition returns the workflow that the run is pinned to.
func (e *Engine) Definition(ctx context.Context, run string) (*workflows.Workflow, error) {
	return nil, errSkeleton
}

// Cancel asks for the end of a run; by and reason are recorded. A run that has
// ended is left alone. It returns before the run has drained.
func (e *Engine) Cancel(ctx context.Context, run, by, reason string) error { return errSkeleton }

// Claim records that the terminal result reached its caller, so that no later
// call joins the run.
func (e *Engine) Claim(ctx context.Context, run string) error { return errSkeleton }

// Gates lists gates, oldest first.
func (e *Engine) Gates(ctx context.Context, f GateFilter) ([]Gate, error) { return nil, errSkeleton }

// Gate returns one gate by its id.
func (e *Engine) Gate(ctx context.Context, id string) (Gate, error) { return Gate{}, errSkeleton }

// Decide settles a gate, once, for whoever is first. The same decision again is
// a success that changes nothing; another one is a *DecidedError.
func (e *Engine) Decide(ctx context.Context, gate string, d Decision) (Gate, error) {
	return Gate{}, errSkeleton
}

// Alive reports whether some process executes runs of the project now.
func (e *Engine) Alive(ctx context.Context, project string) (bool, error) { return false, errSkeleton }

// Adopt makes this process an executor of one more project, as run --resume does.
func (e *Engine) Adopt(project string) {}

// An Attachment is one waiting call. Its methods may be called from several
// goroutines; Detach and Cancel are safe to repeat.
type Attachment struct{}

// Next returns the run's events in order, from the first, live ones as they
// happen, and io.EOF after the terminal one. ctx bounds the wait only.
func (a *Attachment) Next(ctx context.Context) (Event, error) { return Event{}, errSkeleton }

// Detach leaves the run to go on. reason is DetachClock, DetachClose or
// DetachDrop, which make it an orphan if nobody else waits, or "" (hand-over).
func (a *Attachment) Detach(ctx context.Context, reason string) error { return errSkeleton }

// Cancel ends the wait, and the run too unless another call is attached to it;
// it reports whether the run was cancelled.
func (a *Attachment) Cancel(ctx context.Context, by, reason string) (bool, error) {
	return false, errSkeleton
}
