package publish

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish/transport"
)

// client is the exchange's caller as the ladder of gates sees it: by what the
// request itself declares.
func (x *exchange) client() gates.Client {
	c := gates.Client{
		Principal:    x.caller.principal,
		Version:      x.caller.version,
		Capabilities: x.caller.capabilities,
		Connection:   x.request.Session,
		Session:      x.request.Session.Key(),
	}
	if x.request.OneBody {
		c.Capabilities.Elicitation = nil // it takes one response and cannot be asked
		return c
	}
	if ask := x.request.Ask; ask != nil {
		c.Ask = func(ctx context.Context, id, method string, params json.RawMessage) (gates.Reply, error) {
			a, err := ask(ctx, id, method, params)
			return replyOf(a), err
		}
	}
	return c
}

func replyOf(a transport.Answer) gates.Reply {
	return gates.Reply{Result: a.Result, Refused: a.Refused, Sent: a.Sent, Received: a.Received}
}

// policy is what the operator allows at the gates of a workflow, which is nil
// when it is not published any more.
func (s *Server) policy(w *Workflow) gates.Policy {
	p := gates.Policy{Accept: s.accepts(w), MinHuman: max(s.opt.MinHuman, 0)}
	if w != nil {
		p.MinHuman = max(p.MinHuman, w.MinHuman)
		p.Names, p.NotRequester = w.Gates, w.NotRequester
	}
	return p
}

// question returns the call for input, or nil when nothing is left to ask. over
// reports that it was asked for as often as clients bear.
func (w *wait) question(ctx context.Context) (result *mcp.CallToolResult, over bool) {
	q, err := w.call.Question(ctx, w.request)
	switch {
	case errors.Is(err, gates.ErrRounds):
		if !w.server.opt.NoRunTools {
			return nil, true
		}
		w.call.Shut() // nothing could pick the run up: the other rungs are left
		return nil, false
	case err != nil:
		if ctx.Err() == nil {
			w.server.log.WarnContext(ctx, "ask about gates", slog.String("run", w.run), slog.Any("error", err))
			w.call.Shut()
		}
		return nil, false
	case q == nil:
		return nil, false
	}
	w.x.lost = w.unasked
	return &mcp.CallToolResult{
		Result:               mcp.Result{ResultType: mcp.ResultTypeInputRequired, Meta: &mcp.Meta{AdditionalFields: map[string]any{"relavium/runId": w.run}}},
		MultiRoundTripResult: mcp.MultiRoundTripResult{InputRequests: q.Requests, RequestState: q.State},
	}, false
}

// unasked is for a question that did not arrive: the caller has left the run as one
// that waited, and the same call joins it again.
func (w *wait) unasked(ctx context.Context) {
	dctx, done := detached(ctx)
	defer done()
	a, err := w.server.engine.Attach(dctx, w.run, w.x.caller.principal)
	if err != nil {
		w.server.log.WarnContext(ctx, "detach from a run", slog.String("run", w.run), slog.Any("error", err))
		return
	}
	w.attachment = a
	w.interrupted(ctx)
}

// requestOf names the exchange's call for its state. definition is the one by
// which the arguments of a workflow's tool are read, or nil.
func (x *exchange) requestOf(tool string, resolved json.RawMessage) string {
	digest, err := gates.RequestDigest(x.request.Method, tool, resolved)
	if err != nil { // they were checked
		return ""
	}
	return digest
}

// retries reports whether the request brings a state back, and may be a retry.
// One that does not say what 2026-07-28 wants of every request is left to the
// dispatcher to refuse.
func (x *exchange) retries() bool {
	return x.caller.modern && x.request.Method == string(mcp.MethodToolsCall) &&
		x.request.Param("requestState") != nil && x.request.Meta(mcp.MetaKeyClientCapabilities) != nil
}

// refused is all that a caller learns of a state that is not of its call.
func refusedState() *transport.Error {
	return &transport.Error{Code: transport.CodeInvalidParams, Message: "invalid params: requestState is not one of this call"}
}

// retry answers a call that brings back a state: it is served from the
// definition that its run is pinned to, whatever became of the tool since.
func (s *Server) retry(ctx context.Context, x *exchange) transport.Reply {
	result := s.retried(ctx, x)
	if x.fault != nil {
		return transport.Reply{Error: x.fault}
	}
	x.returned(result)
	if result.ResultType == "" {
		result.ResultType = mcp.ResultTypeComplete
	}
	result.EnsureResultMeta().SetServerInfo(s.info)
	body, err := encode(result)
	if err != nil {
		return transport.Reply{Error: s.internalFault(x.request.Method, slog.Any("error", err))}
	}
	return x.carried(ctx, body)
}

func (s *Server) retried(ctx context.Context, x *exchange) *mcp.CallToolResult {
	received := time.Now()
	var sealed, tool string
	if json.Unmarshal(x.request.Param("requestState"), &sealed) != nil || json.Unmarshal(x.request.Param("name"), &tool) != nil {
		x.fault = refusedState()
		return nil
	}
	keys := s.ladder.Keys()
	state, err := keys.Open(sealed, x.caller.principal)
	if err != nil {
		x.fault = refusedState()
		return nil
	}
	sctx, done := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer done()
	r, err := s.engine.Run(sctx, state.Run, x.caller.principal)
	if errors.Is(err, engine.ErrRunNotFound) {
		return refusal("run %s is not kept any more; call again without the state to start another", state.Run)
	}
	if err != nil {
		return s.unexpected("read a run", state.Run, err)
	}
	x.about(r)
	w := &wait{
		server: s, x: x, workflow: x.table.published(r.Project, r.Workflow), run: r.ID, late: true,
		progress: newProgress(x, len(r.Nodes)), limit: s.handoverAt(x, received), state: state,
	}
	var timeout time.Duration
	if tool == waitName {
		_, timeout, _ = x.waitArguments()
		w.request = x.requestOf(tool, x.arguments())
	} else {
		definition, err := s.engine.Definition(sctx, r.ID)
		if err != nil {
			return s.unexpected("read a definition", r.ID, err)
		}
		// By the pinned definition the same arguments resolve to the same inputs.
		inputs, err := definition.ResolveInputs(x.arguments())
		if err == nil {
			w.request = x.requestOf(tool, inputs)
		}
	}
	if err := state.Of(w.request, r.Digest); err != nil {
		keys.Refused(state, x.caller.principal, err)
		x.fault = refusedState()
		return nil
	}
	if ctx.Err() != nil { // cancelled before anything happened
		return stopping(r.ID)
	}
	done()
	if tool == waitName {
		return s.waited(ctx, w, received, timeout)
	}
	result, over := w.attached(ctx)
	if over {
		return x.handedOver(r.ID)
	}
	return result
}

// answer gives the ladder what a retry brings. A store that cannot take it
// leaves the gates as they are: they are asked about anew.
func (w *wait) answer(ctx context.Context) {
	if w.state == nil {
		return
	}
	actx, done := detached(ctx)
	defer done()
	if err := w.call.Answer(actx, w.state, w.x.request.Param("inputResponses")); err != nil {
		w.server.log.WarnContext(ctx, "take the answers of a retry", slog.String("run", w.run), slog.Any("error", err))
	}
	w.state = nil
}
