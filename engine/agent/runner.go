package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// The bounds of one dispatch. A callee of invoke_agent has turns and corrections of
// its own.
const (
	maxTurns       = 25 // model turns of one loop, the repair included
	maxCorrections = 3  // turns after which the model was told of a mistake
	maxDepth       = 3  // callees one below another
	maxCallees     = 8  // invoke_agent calls in one dispatch, nested ones included
	maxCalls       = 64 // tool calls of one turn
	maxAtOnce      = 16 // of them under way together
)

// Options configure New. Models is required.
type Options struct {
	Models  Models
	Builtin ToolHost // nil means no built-in tools but invoke_agent and mcp_call
	Servers ToolHost // the MCP servers that agents declare; nil means none

	// Clean makes text fit for people: no control or bidi characters. Nil keeps it.
	Clean func(string) string
	// Scrub takes secrets out of text before it is stored, evented or sent. Nil keeps it.
	Scrub func(string) string
	// ScrubStream is Scrub for text that comes in pieces: what the returned function
	// has not given back yet may be the start of a secret; last makes it give all.
	// Nil means that pieces are scrubbed one by one.
	ScrubStream func() func(piece string, last bool) string
	// Spill keeps a large tool result for the rest of the run and returns how the
	// model may name it. Nil keeps none.
	Spill func(run, name string, content []byte) (path string, err error)

	MaxTokensEstimate int // what a turn without max_tokens is reckoned to answer; 0 means 4096
	Logger            *slog.Logger
	Now               func() time.Time // nil means time.Now
}

// A Runner runs the dispatches of agent nodes. It keeps nothing between them and is
// safe for concurrent use. Make one with New.
type Runner struct{ opt Options }

var _ engine.AgentRunner = (*Runner)(nil)

// New returns a Runner.
func New(opt Options) *Runner {
	if opt.Clean == nil {
		opt.Clean = same
	}
	if opt.Scrub == nil {
		opt.Scrub = same
	}
	if opt.ScrubStream == nil {
		opt.ScrubStream = func() func(string, bool) string {
			return func(piece string, _ bool) string { return opt.Scrub(piece) }
		}
	}
	if opt.MaxTokensEstimate <= 0 {
		opt.MaxTokensEstimate = 4096
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	return &Runner{opt: opt}
}

func same(s string) string { return s }

// errTimeout is why a dispatch ends that took longer than its node allows.
var errTimeout = errors.New("agent: timeout_ms passed")

// RunAgent runs one dispatch: the model loop of the node's agent until it answers.
// It returns engine.ErrParked where a person has to decide first; entered again
// with the same history it takes the same places and asks for the same things.
func (r *Runner) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	spec, ok := call.Node.Spec.(workflows.AgentNode)
	if !ok {
		return engine.AgentResult{}, fmt.Errorf("agent: node of type %s", call.Node.Type())
	}
	d := &dispatch{
		opt: r.opt, call: call,
		log:    r.opt.Logger.With(slog.String("run", call.Run), slog.String("node", call.Node.ID)),
		parked: map[string]time.Time{}, warned: map[string]bool{},
	}
	within := ctx
	if spec.Timeout > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeoutCause(ctx, spec.Timeout, errTimeout)
		defer cancel()
	}
	l, err := d.loop(call.Node, spec, call.Agent)
	if err != nil {
		return engine.AgentResult{}, err
	}
	out, err := l.run(within, call.Prompt)
	if err != nil {
		return engine.AgentResult{}, d.failure(ctx, within, spec.Timeout, err)
	}
	return engine.AgentResult{Output: out.value, Tokens: d.tokens}, nil
}

// A dispatch is one execution of an agent node, with the callees of its agent.
type dispatch struct {
	opt  Options
	call engine.AgentCall
	log  *slog.Logger

	parked  map[string]time.Time // providers that asked for a pause, until when
	callees int                  // invoke_agent calls so far; they run one at a time

	mu     sync.Mutex
	tokens engine.Tokens
	warned map[string]bool // models without a price
}

// count adds what an effect used.
func (d *dispatch) count(t engine.Tokens) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens.Input += t.Input
	d.tokens.Output += t.Output
	if t.Model != "" {
		d.tokens.Model = t.Model
	}
}

// failure says why a dispatch ended, by the first cause: the run's own end, then the
// node's deadline, then what was met.
func (d *dispatch) failure(ctx, within context.Context, limit time.Duration, err error) error {
	switch {
	case ctx.Err() != nil:
		return &engine.RunError{Code: engine.CodeCancelled, Message: "the run ended while the agent ran"}
	case errors.Is(err, engine.ErrParked):
		return engine.ErrParked
	case errors.Is(context.Cause(within), errTimeout):
		return &engine.RunError{
			Code: engine.CodeProviderUnavailable, Retryable: true,
			Message: fmt.Sprintf("the agent did not end within its timeout_ms of %d", limit.Milliseconds()),
		}
	}
	if m, ok := errors.AsType[*ModelError](err); ok {
		return d.modelFailure(m)
	}
	if t, ok := errors.AsType[*workflows.ToolError](err); ok {
		return d.toolFailure(t)
	}
	return err
}

// modelFailure maps the kinds of format 12.4 to codes.
func (d *dispatch) modelFailure(m *ModelError) error {
	failure := &engine.RunError{
		Message:   d.safe(fmt.Sprintf("%s %s: %s", m.Provider, m.Model, m.Message)),
		Retryable: m.Kind.Retryable(),
	}
	switch m.Kind {
	case RateLimit:
		failure.Code = engine.CodeProviderRateLimit
	case Overloaded, Timeout, Transport:
		failure.Code = engine.CodeProviderUnavailable
	case Auth:
		failure.Code = engine.CodeProviderAuth
	case BadRequest:
		failure.Code = engine.CodeValidation
	case ContentFilter:
		failure.Code = engine.CodeContentFilter
	case Cancelled:
		failure.Code = engine.CodeCancelled
	case Unknown:
		failure.Code = engine.CodeInternal
	default:
		return m
	}
	return failure
}

// toolFailure maps what a tool call ended with.
func (d *dispatch) toolFailure(t *workflows.ToolError) *engine.RunError {
	failure := &engine.RunError{Message: d.safe(describe(t))}
	switch t.Fault {
	case workflows.ToolDenied:
		failure.Code = engine.CodeToolDenied
	case workflows.ToolUnavailable:
		failure.Code = engine.CodeToolUnavailable
	case workflows.ToolCancelled:
		failure.Code = engine.CodeCancelled
	case workflows.ToolIncorrect, workflows.ToolFailed:
		failure.Code, failure.Retryable = engine.CodeToolFailed, t.Retryable
	default:
		failure.Code = engine.CodeToolFailed
	}
	return failure
}

// describe says in one line which tool failed, how and why.
func describe(t *workflows.ToolError) string {
	what := fmt.Sprintf("tool %q", t.Tool)
	if t.Server != "" {
		what = fmt.Sprintf("MCP server %q, %s", t.Server, what)
	}
	why := t.Reason
	if t.Limit > 0 {
		why += fmt.Sprintf(", after %s of %s", t.Elapsed.Round(time.Millisecond), t.Limit)
	}
	if why == "" {
		return what + ": " + t.Message
	}
	return what + ": " + t.Message + " (" + why + ")"
}

// safe makes text fit for an error, an event or a log line.
func (d *dispatch) safe(s string) string {
	return clip(d.opt.Clean(d.opt.Scrub(s)), maxSummary)
}

// pause waits, or returns why ctx ended.
func pause(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
