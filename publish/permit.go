package publish

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/access"
	"github.com/relavium/relavium-serve/publish/transport"
)

const (
	// codeForbidden is a call that the caller's token does not allow.
	codeForbidden = -32001
	// codeLimit is a call that the limits do not allow now.
	codeLimit = -32029
)

// shows reports whether a tool exists for the caller. Companion tools do while
// some workflow does.
func (x *exchange) shows(t *tool) bool {
	id := x.caller.identity
	if w := t.workflow; w != nil {
		return id == nil || id.Sees(w.ID, w.VisibleTo)
	}
	return slices.ContainsFunc(x.table.workflows, func(w Workflow) bool {
		return id == nil || id.Sees(w.ID, w.VisibleTo) && id.Scopes.Run(w.ID)
	})
}

// filter leaves the caller the tools that exist for it; the dispatcher asks it
// for tools/list and for each call.
func filter(ctx context.Context, tools []mcp.Tool) []mcp.Tool {
	x := exchangeOf(ctx)
	called := x.request.Method == string(mcp.MethodToolsCall)
	kept := make([]mcp.Tool, 0, len(tools))
	for i := range tools {
		t := x.table.tools[tools[i].Name]
		// What a caller's own runs did may always be read, whatever is listed now.
		if called && t.workflow == nil || x.shows(t) {
			kept = append(kept, tools[i])
		}
	}
	return kept
}

// last is the last tool that is listed to the caller, or "".
func (x *exchange) last() string {
	for _, name := range slices.Backward(x.table.order) {
		if x.shows(x.table.tools[name]) {
			return name
		}
	}
	return ""
}

// permit refuses a call of a workflow that exists for the caller and that its
// token does not allow; it is a function of transport.HTTP.
func (s *Server) permit(a *access.Access) func(req *transport.Request) *transport.Error {
	return func(req *transport.Request) *transport.Error {
		id, ok := req.Grant.(*access.Identity)
		if !ok || req.Method != string(mcp.MethodToolsCall) {
			return nil
		}
		t := s.called(req)
		if t == nil || t.workflow == nil || t.allowed(id) || !id.Sees(t.workflow.ID, t.workflow.VisibleTo) {
			return nil
		}
		refused := a.Forbidden(access.ScopeRunOne + t.workflow.ID)
		return &transport.Error{Code: codeForbidden, Message: refused.Text, Refusal: refusalOf(refused)}
	}
}

// allowed reports whether the caller's token allows to call a workflow's tool.
func (t *tool) allowed(id *access.Identity) bool {
	return id == nil || t.workflow == nil || id.Scopes.Run(t.workflow.ID)
}

// called is the tool that a tools/call names, or nil; the dispatcher says what is
// wrong then.
func (s *Server) called(req *transport.Request) *tool {
	var name string
	if json.Unmarshal(req.Param("name"), &name) == nil {
		return s.table.Load().tools[name]
	}
	return nil
}

// admit is how the transport learns who sends a request.
func admit(a *access.Access) func(r *http.Request) (transport.Caller, *transport.Refusal) {
	return func(r *http.Request) (transport.Caller, *transport.Refusal) {
		id, refused := a.Admit(r)
		if refused != nil {
			return transport.Caller{}, refusalOf(refused)
		}
		return transport.Caller{Principal: string(id.Principal), Grant: id, Expires: id.Expires, Watch: id.Watch}, nil
	}
}

func refusalOf(r *access.Refusal) *transport.Refusal {
	return &transport.Refusal{Status: r.Status, Challenge: r.Challenge, After: r.After, Text: r.Text}
}

// afford reports with a *access.LimitError that the caller's runs have cost what
// they may. The other errors are the store's.
func (s *Server) afford(ctx context.Context, p engine.Principal) error {
	most := s.limiter.Limits().CostPerDay
	if most <= 0 || p == engine.Local {
		return nil
	}
	spent, err := s.engine.Spent(ctx, p, time.Now().Add(-24*time.Hour))
	if err == nil && spent >= most {
		err = &access.LimitError{Limit: "cost_per_day_microcents", Most: most, After: 10 * time.Minute}
	}
	return err
}

// place takes the call's place within the limits; where there is none the
// exchange's fault says so.
func (s *Server) place(ctx context.Context, x *exchange) *access.Slot {
	var slot *access.Slot
	err := s.afford(ctx, x.caller.principal)
	if err == nil {
		slot, err = s.limiter.Take(x.caller.principal)
	}
	if err == nil {
		return slot
	}
	limit, ok := errors.AsType[*access.LimitError](err)
	if !ok {
		x.fault = s.internalFault(x.request.Method, slog.Any("error", err))
		return nil
	}
	status := http.StatusTooManyRequests
	if limit.Limit == "runs" {
		status = http.StatusServiceUnavailable
	}
	text := limit.Error()
	data, err := encode(struct {
		Limit string `json:"limit"`
		Most  int64  `json:"most"`
		After int64  `json:"retryAfterMs"`
	}{limit.Limit, limit.Most, limit.After.Milliseconds()})
	if err != nil {
		data = nil
	}
	x.fault = &transport.Error{
		Code: codeLimit, Message: text, Data: data,
		Refusal: &transport.Refusal{Status: status, After: limit.After, Text: text},
	}
	return nil
}
