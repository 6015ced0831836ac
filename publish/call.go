package publish

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish/transport"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	// storeTimeout bounds what is done in the store after a request ended. It is long, as
	// nobody does it later: a run that keeps a caller which is gone is nobody's to join.
	storeTimeout = 30 * time.Second
	// startTimeout bounds what the store does for a call, which a cancel does not cut in half.
	startTimeout = 30 * time.Second
	// maxKey is the longest idempotency key.
	maxKey = 128
	// maxDepth is how many workflows may call one another in a row.
	maxDepth = 4
	// codeMissingCapability is MissingRequiredClientCapability of MCP 2026-07-28.
	codeMissingCapability = -32021
)

// A toolFunc answers one call of its tool. It may set the exchange's fault
// instead of returning a result.
type toolFunc func(ctx context.Context, x *exchange, t *tool) *mcp.CallToolResult

// callTool is the dispatcher's handler of every tool.
func (s *Server) callTool(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	x := exchangeOf(ctx)
	t := x.table.tools[req.Params.Name]
	result := t.call(ctx, x, t)
	if x.fault != nil {
		return nil, x.fault
	}
	x.returned(result)
	return result, nil
}

// arguments are the call's arguments as sent, or nil.
func (x *exchange) arguments() json.RawMessage {
	args := x.request.Param("arguments")
	if string(args) == "null" {
		return nil
	}
	return args
}

// call answers tools/call of a workflow: it checks everything that can be
// checked before a run exists, starts or joins a run, and waits for it.
func (s *Server) call(ctx context.Context, x *exchange, t *tool) *mcp.CallToolResult {
	received := time.Now()
	w := t.workflow
	if !t.allowed(x.caller.identity) { // it was published after the transport asked
		x.fault = &transport.Error{Code: codeForbidden, Message: "the token does not allow to call " + t.name}
		return nil
	}
	key, fault := idempotencyKey(x.request)
	if fault != nil {
		x.fault = fault
		return nil
	}
	depth, fault := depthOf(x.request)
	if fault != nil {
		x.fault = fault
		return nil
	}
	if depth > maxDepth {
		return refusal("workflows that call one another are %d deep here, at most %d are allowed", depth, maxDepth)
	}
	inputs, err := w.ResolveInputs(x.arguments())
	if err != nil {
		return s.badArguments(err)
	}
	if missing := s.missingSecrets(w); len(missing) > 0 {
		return refusal("the server has no value for the secret input %q; its operator has to set %s", missing[0], w.SecretEnv(missing[0]))
	}
	if s.opt.Refuse != nil {
		if err := s.opt.Refuse(ctx, w.Workflow); err != nil {
			return s.unexpected("look whether the workflow can start", "", err)
		}
	}
	if result := s.refuseUnanswerable(x, t); result != nil || x.fault != nil {
		return result
	}
	if ctx.Err() != nil { // cancelled before anything happened
		return stopping("")
	}
	slot := s.place(ctx, x)
	if slot == nil {
		return nil
	}
	defer slot.Done()
	asked, done := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	asTask := s.becomesTask(asked, x, w)
	done()
	sctx, done := s.starting(ctx)
	defer done()
	started, err := s.engine.Start(sctx, engine.StartRequest{
		Workflow:       w.Workflow,
		Project:        w.Project,
		Principal:      x.caller.principal,
		Arguments:      inputs,
		Variables:      s.opt.Variables,
		Source:         "mcp",
		Client:         oneLine(x.caller.client.Name, 128),
		IdempotencyKey: key,
		Join:           key == "",
		Trace:          engine.TraceOf(ctx),
		Depth:          int(depth),
	})
	if err != nil {
		if sctx.Err() != nil {
			return stopping("") // not written
		}
		if conflict, ok := errors.AsType[*engine.KeyConflictError](err); ok {
			return failure(&engine.RunError{Code: engine.CodeValidation, Message: "key already used with other arguments"}, conflict.Run)
		}
		return s.unexpected("start a run", "", err)
	}
	if started.Joined {
		slot.Joined()
	} else {
		slot.Starts(started.Run)
	}
	s.started(sctx, x, &started)
	if asTask {
		if err := s.createTask(ctx, x, w, &started); err != nil {
			return s.unexpected("make a task", started.Run, err)
		}
		return &mcp.CallToolResult{} // instead of which the task is written
	}
	wt := &wait{
		server:   s,
		x:        x,
		begun:    slot.Begun,
		workflow: w,
		run:      started.Run,
		joined:   started.Joined,
		late:     started.Joined,
		progress: newProgress(x, len(w.Nodes)),
		limit:    s.handoverAt(x, received),
		request:  x.requestOf(t.name, inputs),
	}
	actx, attached := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	err = wt.attach(actx)
	attached()
	if err != nil {
		return s.unexpected("attach to a run", started.Run, err)
	}
	if started.Joined {
		wt.progress.send("joined run " + started.Run + ", which goes since " + rfc3339(started.Since))
	}
	result, over := wt.result(ctx)
	if over {
		return x.handedOver(started.Run)
	}
	return result
}

// starting is the context of a run's start, which only the client's own cancel ends: a
// call that is lost, or given up by a clock, is joined by the next one. It has no
// deadline, since connecting servers has its own.
func (s *Server) starting(ctx context.Context) (context.Context, func()) {
	sctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		c, ok := errors.AsType[*transport.CancelledError](context.Cause(ctx))
		if ok && !s.clock.MatchString(c.Reason) {
			end(c)
		}
	})
	return sctx, func() {
		stop()
		end(nil)
	}
}

// badArguments names every argument that is wrong.
func (s *Server) badArguments(err error) *mcp.CallToolResult {
	wrong, ok := errors.AsType[*workflows.InputError](err)
	if !ok {
		return s.unexpected("resolve inputs", "", err)
	}
	lines := make([]string, len(wrong.Fields))
	for i, f := range wrong.Fields {
		lines[i] = f.String()
	}
	return refusal("%s of the arguments %s wrong: %s",
		count(len(lines)), plural(len(lines), "is", "are"), strings.Join(lines, "; "))
}

// idempotencyKey reads _meta["relavium/idempotencyKey"].
func idempotencyKey(req *transport.Request) (string, *transport.Error) {
	raw := req.Meta("relavium/idempotencyKey")
	if raw == nil {
		return "", nil
	}
	var key string
	if raw[0] != '"' || json.Unmarshal(raw, &key) != nil || key == "" || utf8.RuneCountInString(key) > maxKey {
		return "", &transport.Error{
			Code:    transport.CodeInvalidParams,
			Message: "invalid params: relavium/idempotencyKey is a string of 1 to 128 characters",
		}
	}
	return key, nil
}

// depthOf reads _meta["relavium/depth"]: how many runs of workflows that consume
// this server, or another one like it, the call comes from. Absent means none.
func depthOf(req *transport.Request) (int64, *transport.Error) {
	raw := req.Meta("relavium/depth")
	if raw == nil {
		return 0, nil
	}
	depth, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || depth < 0 {
		return 0, &transport.Error{
			Code:    transport.CodeInvalidParams,
			Message: "invalid params: relavium/depth is a whole number of at least 0",
		}
	}
	return depth, nil
}

// accepts lists the rungs that may answer the workflow's gates.
func (s *Server) accepts(w *Workflow) []string {
	all := s.opt.Accept
	if all == nil {
		all = []string{AcceptElicitation, AcceptConsole, AcceptCLI}
	}
	if w == nil || w.Accept == nil {
		return all
	}
	var both []string
	for _, rung := range all {
		if slices.Contains(w.Accept, rung) {
			both = append(both, rung)
		}
	}
	return both
}

// refuseUnanswerable refuses a call that could come to a gate which nobody may
// answer: the client's own person, or one at the console or the command line,
// which count whether or not one runs.
func (s *Server) refuseUnanswerable(x *exchange, t *tool) *mcp.CallToolResult {
	if !t.gated {
		return nil
	}
	client, policy := x.client(), s.policy(t.workflow)
	if gates.Reachable(&client, &policy) {
		return nil
	}
	const why = "the workflow waits for a person, and [gates] accept leaves no way to answer for this client"
	if x.caller.modern {
		x.fault = &transport.Error{
			Code:    codeMissingCapability,
			Message: "missing required client capability: " + why,
			Data:    json.RawMessage(`{"requiredCapabilities":{"elicitation":{"form":{}}}}`),
		}
		return nil
	}
	return refusal("%s; the operator of this server has to widen that setting", why)
}

// handoverAt is when the caller would drop the call, less the time to answer;
// zero means never. Without companion tools nothing could pick the run up.
func (s *Server) handoverAt(x *exchange, received time.Time) time.Time {
	limit := s.handover[x.caller.client.Name]
	if limit <= 0 || s.opt.NoRunTools {
		return time.Time{}
	}
	return received.Add(max(limit-5*time.Second, limit/2))
}

func count(n int) string {
	if n == 1 {
		return "one"
	}
	return "several"
}

// detached is for the store's work that a request's end must not cut short.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}
