package publish

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"maps"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/access"
	"github.com/relavium/relavium-serve/publish/transport"
)

// A caller is who sent a request and what its revision of the protocol knows.
type caller struct {
	principal    engine.Principal
	identity     *access.Identity // nil for one that may do everything
	version      string           // the revision in effect
	modern       bool             // 2026-07-28 or later: everything stands in the request
	client       mcp.Implementation
	capabilities mcp.ClientCapabilities
}

// knows reports whether the caller's revision is at least the given one.
func (c *caller) knows(version string) bool { return c.version >= version }

// An exchange is one request while it is answered.
type exchange struct {
	request   *transport.Request
	caller    caller
	table     *table                        // what was published when it came
	fault     *transport.Error              // the JSON-RPC error to answer with, set by a handler
	instead   json.RawMessage               // the result to answer with, instead of what the handler returns
	delivered func()                        // to call once the answer reached the client
	lost      func(context.Context)         // to call when it could not, with the context of the request
	unread    func(context.Context, string) // to call when the client had given up before, for a reason
	span      trace.Span                    // nil where it is not traced
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok { // only Answer dispatches
		panic("publish: a handler was called without its request")
	}
	return x
}

// Answer answers one request of any transport; it is a transport.AnswerFunc.
func (s *Server) Answer(ctx context.Context, req *transport.Request) (reply transport.Reply) {
	defer func() {
		if p := recover(); p != nil {
			reply = transport.Reply{Error: s.internalFault(req.Method, slog.Any("panic", p), slog.String("stack", string(debug.Stack())))}
		}
	}()
	x := &exchange{request: req, caller: callerOf(req), table: s.table.Load()}
	ctx, end := s.traceCall(ctx, x)
	defer func() { end(reply) }()
	if x.retries() {
		return s.retry(ctx, x)
	}
	if s.asksTask(x) {
		return s.task(ctx, x)
	}
	session := newSession(x, s.sessions.Add(1))
	ctx = context.WithValue(ctx, exchangeKey{}, x)
	ctx = server.WithSupportedProtocolVersions(x.table.mcp.WithContext(ctx, session), mcp.ValidProtocolVersions)
	if req.Method == string(mcp.MethodSubscriptionsListen) && x.caller.modern {
		return s.reply(ctx, x, s.listen(ctx, x, session))
	}
	response := x.table.mcp.HandleMessage(ctx, x.message())
	if req.Method == string(mcp.MethodInitialize) {
		if r, ok := response.(mcp.JSONRPCResponse); ok {
			if result, ok := r.Result.(mcp.InitializeResult); ok {
				req.Session.Settle(result.ProtocolVersion, session.GetClientInfo(), session.GetClientCapabilities())
			}
		}
	}
	return s.reply(ctx, x, response)
}

// callerOf reads what 2026-07-28 says with each request, or what initialize
// settled. A client that never said is taken for 2025-03-26, as the
// specification does where a version is missing.
func callerOf(req *transport.Request) caller {
	c := caller{principal: engine.Principal(req.Principal)}
	if id, ok := req.Grant.(*access.Identity); ok {
		c.identity = id
	}
	var version string
	if json.Unmarshal(req.Meta(mcp.MetaKeyProtocolVersion), &version) == nil && mcp.IsModernProtocol(version) {
		c.version, c.modern = version, true
		if raw := req.Meta(mcp.MetaKeyClientInfo); raw != nil && json.Unmarshal(raw, &c.client) != nil {
			c.client = mcp.Implementation{}
		}
		if raw := req.Meta(mcp.MetaKeyClientCapabilities); raw != nil && json.Unmarshal(raw, &c.capabilities) != nil {
			c.capabilities = mcp.ClientCapabilities{}
		}
		return c
	}
	c.version, c.client, c.capabilities = req.Session.Settled()
	if c.version == "" {
		c.version = mcp.ProtocolVersion20250326
	}
	return c
}

// message is the copy of the request that the dispatcher sees: with an id of
// ours, since it would decode the client's to a float, and without the
// arguments of a call, which are read from the request itself, and without what
// only a retry has: answers that come without a state are ignored.
func (x *exchange) message() json.RawMessage {
	params := x.request.Params
	if x.request.Method == string(mcp.MethodToolsCall) {
		for _, name := range []string{"arguments", "inputResponses", "requestState"} {
			params = (&transport.Request{Params: params}).WithoutParam(name)
		}
	}
	m := append([]byte(`{"jsonrpc":"2.0","id":1,"method":`), quoted(x.request.Method)...)
	if params != nil {
		m = append(append(m, `,"params":`...), params...)
	}
	return append(m, '}')
}

// carried is the reply that carries a result of the exchange; ctx is the request's own,
// whose cause tells why it was lost.
func (x *exchange) carried(ctx context.Context, result json.RawMessage) transport.Reply {
	r := transport.Reply{Result: readable(result), Delivered: x.delivered, Unread: x.unread}
	if lost := x.lost; lost != nil {
		r.Lost = func() { lost(ctx) }
	}
	return r
}

// reply turns what the dispatcher says into what is written.
func (s *Server) reply(ctx context.Context, x *exchange, response mcp.JSONRPCMessage) transport.Reply {
	if x.fault != nil {
		return transport.Reply{Error: x.fault}
	}
	if x.instead != nil {
		return x.carried(ctx, x.instead)
	}
	switch r := response.(type) {
	case mcp.JSONRPCResponse:
		result := r.Result
		switch r := r.Result.(type) {
		case mcp.ListToolsResult:
			result = x.listed(r)
		case mcp.InitializeResult: // of revisions that know no extensions
			r.Capabilities.Extensions = nil
			result = r
		}
		body, err := encode(result)
		if err != nil {
			return transport.Reply{Error: s.internalFault(x.request.Method, slog.Any("error", err))}
		}
		return x.carried(ctx, body)
	case mcp.JSONRPCError:
		return transport.Reply{Error: s.faultOf(x, r.Error)}
	}
	return transport.Reply{Error: s.internalFault(x.request.Method, slog.Any("response", response))}
}

// faultOf is the one place where the dispatcher's errors become ours: codes are
// kept where the specification names them, texts are our own.
func (s *Server) faultOf(x *exchange, e mcp.JSONRPCErrorDetails) *transport.Error {
	fault := &transport.Error{Code: e.Code, Message: e.Message}
	if e.Data != nil {
		data, err := encode(e.Data)
		if err != nil {
			return s.internalFault(x.request.Method, slog.Any("error", err))
		}
		fault.Data = data
	}
	method := mcp.MCPMethod(x.request.Method)
	switch {
	case e.Code == transport.CodeInternal:
		return s.internalFault(x.request.Method, slog.String("error", e.Message))
	case e.Code == transport.CodeMethodNotFound:
		fault.Message = "method not found: " + clip(x.request.Method, 64)
	case e.Code == transport.CodeInvalidRequest: // the loop checked the envelope: a param has a wrong type
		fault.Code, fault.Message = transport.CodeInvalidParams, "invalid params"
	case strings.HasPrefix(e.Message, "missing or invalid _meta"): // of 2026-07-28; the text names the member
	case e.Code == transport.CodeInvalidParams && method == mcp.MethodToolsList:
		fault.Message = "invalid params: unknown cursor"
	case e.Code == transport.CodeInvalidParams && method == mcp.MethodToolsCall:
		var name string
		switch raw := x.request.Param("name"); {
		case raw == nil:
			fault.Message = "invalid params: no tool name"
		case json.Unmarshal(raw, &name) == nil && (x.table.tools[name] == nil || !x.shows(x.table.tools[name])):
			fault.Message = s.unknownTool(x, name)
		}
	case method == mcp.MethodResourcesRead:
		fault.Message, fault.Data = "resource not found", x.unknownURI()
	}
	return fault
}

func (s *Server) unknownTool(x *exchange, name string) string {
	text := "unknown tool: " + clip(name, 64)
	if near := s.closest(x, name); near != "" {
		text += "; the closest one is " + near
	}
	return text
}

// internalFault logs what happened and returns an error that names only the
// line of the log.
func (s *Server) internalFault(method string, detail ...slog.Attr) *transport.Error {
	id := s.logInternal("request failed", append(detail, slog.String("method", clip(method, 64)))...)
	return &transport.Error{Code: transport.CodeInternal, Message: "internal error (correlation id " + id + ")"}
}

func (s *Server) logInternal(what string, detail ...slog.Attr) string {
	id := rand.Text()[:12]
	args := make([]any, 0, len(detail)+2)
	args = append(args, slog.String("correlationId", id), slog.String("what", what))
	for _, d := range detail {
		args = append(args, d)
	}
	s.log.Error("internal error", args...)
	return id
}

// listTools is the result of tools/list with our own tool objects in it.
type listTools struct {
	mcp.PaginatedResult

	Tools []json.RawMessage `json:"tools"`
}

func (x *exchange) listed(page mcp.ListToolsResult) listTools {
	list := listTools{PaginatedResult: page.PaginatedResult, Tools: []json.RawMessage{}}
	for i := range page.Tools {
		list.Tools = append(list.Tools, x.table.tools[page.Tools[i].Name].body(x.caller.version))
	}
	if n := len(page.Tools); n > 0 && page.Tools[n-1].Name == x.last() {
		list.NextCursor = "" // the dispatcher announces an empty page after a full last one
	}
	return list
}

// listen serves subscriptions/listen (2026-07-28): the acknowledgement, then
// what was subscribed to, until the request ends. Every message carries the id
// of the request as the client wrote it.
func (s *Server) listen(ctx context.Context, x *exchange, session *session) mcp.JSONRPCMessage {
	s.listening.Store(session, nil)
	defer s.listening.Delete(session)
	acknowledged, early := false, false
	var forward func(mcp.JSONRPCNotification)
	forward = func(n mcp.JSONRPCNotification) {
		if !acknowledged && n.Method == mcp.MethodNotificationToolsListChanged {
			early = true // the acknowledgement comes first
			return
		}
		meta := maps.Clone(n.Params.Meta)
		if meta == nil {
			meta = map[string]any{}
		}
		meta[mcp.MetaKeySubscriptionID] = x.request.ID
		n.Params.Meta = meta
		params, err := encode(n.Params)
		if err == nil {
			err = x.request.Notify(n.Method, params)
		}
		if err != nil {
			s.log.DebugContext(ctx, "notification not delivered", "method", n.Method, "error", err)
		}
		acknowledged = true
		if early {
			early = false
			forward(listChanged())
		}
	}
	ended := make(chan struct{})
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			select {
			case n := <-session.notifications:
				forward(n)
				continue
			case <-ended:
			}
			for {
				select {
				case n := <-session.notifications:
					forward(n)
				default:
					return
				}
			}
		}
	})
	response := x.table.mcp.HandleMessage(ctx, x.message())
	close(ended)
	forwarding.Wait()
	if r, ok := response.(mcp.JSONRPCResponse); ok {
		if result, ok := r.Result.(mcp.SubscriptionsListenResult); ok {
			result.EnsureResultMeta().SetSubscriptionID(x.request.ID)
		}
	}
	return response
}

// A session is what the dispatcher knows of one request: it lives as long as
// the request does, so that nothing of one request reaches another.
type session struct {
	id            string
	notifications chan mcp.JSONRPCNotification
	listening     bool

	mu           sync.Mutex
	version      string
	client       mcp.Implementation
	capabilities mcp.ClientCapabilities
	filter       mcp.SubscriptionFilter
}

// The optional abilities by which the dispatcher finds what it needs.
var (
	_ server.SessionWithClientInfo         = (*session)(nil)
	_ server.SessionWithProtocolVersion    = (*session)(nil)
	_ server.SessionWithSubscriptionFilter = (*session)(nil)
)

func newSession(x *exchange, n int64) *session {
	return &session{
		id:            "r" + strconv.FormatInt(n, 10),
		notifications: make(chan mcp.JSONRPCNotification, 64),
		listening:     x.request.Method == string(mcp.MethodSubscriptionsListen),
		version:       x.caller.version,
		client:        x.caller.client,
		capabilities:  x.caller.capabilities,
	}
}

func (s *session) Initialize()       {}
func (s *session) Initialized() bool { return true }
func (s *session) SessionID() string { return s.id }
func (s *session) NotificationChannel() chan<- mcp.JSONRPCNotification {
	return s.notifications
}

func (s *session) ProtocolVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// SetProtocolVersion records what initialize negotiated.
func (s *session) SetProtocolVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

func (s *session) GetClientInfo() mcp.Implementation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

func (s *session) SetClientInfo(client mcp.Implementation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.client = client
}

func (s *session) GetClientCapabilities() mcp.ClientCapabilities {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capabilities
}

func (s *session) SetClientCapabilities(capabilities mcp.ClientCapabilities) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.capabilities = capabilities
}

func (s *session) SetSubscriptionFilter(filter mcp.SubscriptionFilter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filter = filter
}

func (s *session) SubscriptionFilter() (mcp.SubscriptionFilter, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filter, s.listening
}
