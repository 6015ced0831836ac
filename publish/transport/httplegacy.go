package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// legacy answers one message of a revision before 2026-07-28.
func (e *endpoint) legacy(w http.ResponseWriter, r *http.Request, c *Caller, f forms, msg message, version string) {
	if !knownVersion(w, version) {
		return
	}
	switch {
	case msg.method == string(mcp.MethodInitialize) && msg.id != nil:
		e.initialize(w, r, c, f, msg)
		return
	case msg.method == string(mcp.MethodPing) && msg.id != nil && r.Header.Get(mcp.HeaderSessionID) == "":
		// Pings may come before initialize.
		e.inline(w, r, c, f, msg, &Session{})
		return
	}
	s := e.session(w, r, c)
	if s == nil {
		return
	}
	defer s.leave()
	switch {
	case msg.id == nil:
		e.hear(r.Context(), c, s, msg)
		w.WriteHeader(http.StatusAccepted)
	case msg.method == string(mcp.MethodPing):
		e.inline(w, r, c, f, msg, &s.Session)
	default:
		e.call(w, r, c, f, s, msg)
	}
}

// knownVersion refuses a revision that there is not: "If the server receives a
// request with an invalid or unsupported MCP-Protocol-Version, it MUST respond
// with 400 Bad Request" (MCP 2025-11-25, Streamable HTTP).
func knownVersion(w http.ResponseWriter, version string) bool {
	if version == "" || mcp.IsValidProtocolVersion(version) {
		return true
	}
	failed(w, http.StatusBadRequest, nil, invalid("unsupported "+mcp.HeaderProtocolVersion))
	return false
}

// initialize makes a session.
func (e *endpoint) initialize(w http.ResponseWriter, r *http.Request, c *Caller, f forms, msg message) {
	s := newSession(c.Principal)
	st := e.quick(w, f)
	reply := e.http.Answer(r.Context(), answered(e.request(c, msg, &s.Session), st))
	if version, _, _ := s.Settled(); reply.Error == nil && version != "" {
		switch err := e.name(s); {
		case err != nil:
			e.http.Logger.ErrorContext(r.Context(), "make a session", "error", err)
			reply = Reply{Error: &Error{Code: CodeInternal, Message: "internal error"}}
		case e.add(s) == nil:
			reply = Reply{Error: &Error{Code: CodeInternal, Message: "too many sessions"}}
		default:
			w.Header().Set(mcp.HeaderSessionID, s.id)
		}
	}
	deliver(r.Context(), st, msg.id, reply, false)
}

// inline answers what waits for nothing.
func (e *endpoint) inline(w http.ResponseWriter, r *http.Request, c *Caller, f forms, msg message, session *Session) {
	st := e.quick(w, f)
	deliver(r.Context(), st, msg.id, e.http.Answer(r.Context(), answered(e.request(c, msg, session), st)), false)
}

// quick is an answer that needs no sign of life.
func (e *endpoint) quick(w http.ResponseWriter, f forms) *stream {
	return &stream{w: w, flush: http.NewResponseController(w), events: f.events, onlyEvent: !f.json}
}

// call answers one request of a session. A connection that drops only ends the
// wait: "Disconnection MAY occur at any time … SHOULD NOT be interpreted as the
// client cancelling its request" (MCP 2025-11-25, Streamable HTTP).
func (e *endpoint) call(w http.ResponseWriter, r *http.Request, by *Caller, f forms, s *httpSession, msg message) {
	req := e.request(by, msg, &s.Session)
	if !e.permitted(w, req) {
		return
	}
	ctx, end := requestContext(r.Context(), ErrClosed)
	defer end(nil)
	s.want(msg.id)
	fl := s.begin(msg.id, end)
	defer s.finish(msg.id, fl)
	version, _, _ := s.Settled()
	st := e.stream(w, f.events, f)
	defer st.drop()
	st.number(version >= mcp.ProtocolVersion20251125)
	c := &call{id: msg.id, method: msg.method, name: field(msg.params, "name"), token: req.Meta(progressToken), final: -1, by: fl}
	s.asking(answered(req, st), st)
	req.Track = s.tracks(c, st, 0)
	if msg.method == string(mcp.MethodToolsCall) {
		settle(ctx, s.heeding(), cancelGrace)
		e.afterCancels(ctx, s)
	}
	reply := e.http.Answer(ctx, req)
	if !silenced(ctx) {
		s.answering(c, fl, false, reply.Unread)
		st.last()
	}
	s.settled(c, fl, deliver(ctx, st, msg.id, reply, false))
}

// hear takes what needs no answer: a response to a question of ours, which may
// be one that nobody waits for, or a notification.
func (e *endpoint) hear(ctx context.Context, by *Caller, s *httpSession, msg message) {
	switch {
	case msg.reply != nil:
		if at := time.Now(); !s.asks.take(msg.reply, at) {
			e.passReply(ctx, by, s, msg.reply, at)
		}
	case msg.method == "notifications/cancelled":
		e.cancel(ctx, by, s, msg.params)
	case msg.method == initialized:
		e.joined(s)
	}
}

// cancel ends the session's own request, and lets what it does be done before
// the notification is answered. One whose connection dropped before is found by
// its run, and one that another process answers is told of there.
func (e *endpoint) cancel(ctx context.Context, by *Caller, s *httpSession, params json.RawMessage) {
	defer s.heed()()
	var reason string
	if raw := field(params, "reason"); raw != nil && json.Unmarshal(raw, &reason) != nil {
		reason = ""
	}
	id := field(params, "requestId")
	e.passCancel(ctx, s, id, reason, e.cancelled(ctx, by, s, id, reason, time.Time{}))
}

// cancelled does what cancel does in this process, to a request that began before a
// time, if that is not zero. It is false if there is and was none here.
func (e *endpoint) cancelled(ctx context.Context, by *Caller, s *httpSession, id json.RawMessage, reason string, before time.Time) bool {
	cause := &CancelledError{Reason: reason}
	flights := s.flying(id)
	later := func(f *flight) bool { return !before.IsZero() && f.began.After(before) }
	if !slices.ContainsFunc(flights, later) { // of another call with the id
		s.giveUp(id)
	}
	flights = slices.DeleteFunc(flights, later)
	if len(flights) > 0 {
		for _, f := range flights {
			f.cancel(cause)
		}
		settle(ctx, flights, cancelGrace)
	}
	if unread := s.crossed(id); unread != nil { // the answer and the cancel passed each other
		unread(ctx, reason)
		return true
	}
	if len(flights) > 0 {
		return true
	}
	c, run, n := s.dropped(id)
	if c == nil {
		return s.finished(id) // too late, and nobody need wait for another process
	}
	cctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	end(cause)
	e.http.Resume(cctx, e.again(by, c, s, func(string, json.RawMessage) error { return cause }), run, n)
	return true
}

// progressToken is the member of _meta by which a client names the progress of a
// request.
const progressToken = "progressToken"

// again is a call's request as far as it is kept.
func (e *endpoint) again(by *Caller, c *call, s *httpSession, notify func(string, json.RawMessage) error) *Request {
	req := &Request{ID: c.id, Method: c.method, Principal: by.Principal, Grant: by.Grant, Session: &s.Session, Notify: notify}
	var params []member
	if c.name != nil {
		params = append(params, member{key: "name", raw: []byte(`"name"`), value: c.name})
	}
	if c.token != nil {
		meta := object([]member{{key: progressToken, raw: quote(progressToken), value: c.token}})
		params = append(params, member{key: "_meta", raw: []byte(`"_meta"`), value: meta})
	}
	if params != nil {
		req.Params = object(params)
	}
	return req
}

// array answers a batch, which 2025-03-26 alone has, member by member.
func (e *endpoint) array(w http.ResponseWriter, r *http.Request, by *Caller, f forms, version string, body []byte) {
	refuse := func(text string) { failed(w, http.StatusBadRequest, nil, invalid(text)) }
	if mcp.IsModernProtocol(version) || r.Header.Get(mcp.HeaderSessionID) == "" {
		refuse("a message is one JSON object")
		return
	}
	var members []json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		failed(w, http.StatusBadRequest, nil, &Error{Code: CodeParse, Message: "parse error: not a JSON text in UTF-8"})
		return
	}
	if !knownVersion(w, version) {
		return
	}
	s := e.session(w, r, by)
	if s == nil {
		return
	}
	defer s.leave()
	negotiated, _, _ := s.Settled()
	switch {
	case negotiated != mcp.ProtocolVersion20250326:
		refuse("a message is one JSON object")
		return
	case len(members) == 0 || len(members) > maxBatch:
		refuse("an array has 1 to 64 messages")
		return
	}
	e.batch(w, r, by, f, s, members)
}

func (e *endpoint) batch(w http.ResponseWriter, r *http.Request, by *Caller, f forms, s *httpSession, members []json.RawMessage) {
	ctx, end := requestContext(r.Context(), ErrClosed)
	defer end(nil)
	st := e.stream(w, f.events, f)
	defer st.drop()
	var lines [][]byte
	var replies []Reply
	for _, raw := range members {
		msg, id, fault := parse(raw)
		var reply Reply
		switch {
		case fault != nil:
			reply.Error = fault
		case msg.id == nil:
			e.hear(r.Context(), by, s, msg)
			continue
		case msg.method == string(mcp.MethodInitialize):
			id, reply.Error = msg.id, invalid("initialize is no part of an array")
		default:
			id, reply = msg.id, e.member(ctx, by, s, st, msg)
		}
		if reply.Error != nil || !silenced(ctx) {
			if line := bytes.TrimSpace(orNull(id, reply)); line != nil {
				lines, replies = append(lines, line), append(replies, reply)
				continue
			}
		}
		lost(reply)
	}
	if len(lines) == 0 {
		st.accept()
		return
	}
	ok := st.finishAll(lines)
	for _, reply := range replies {
		switch {
		case !ok:
			lost(reply)
		case reply.Delivered != nil:
			reply.Delivered()
		}
	}
}

// member answers one request of a batch, which may be cancelled by itself.
func (e *endpoint) member(ctx context.Context, by *Caller, s *httpSession, st *stream, msg message) Reply {
	req := e.request(by, msg, &s.Session)
	if e.http.Permit != nil {
		if fault := e.http.Permit(req); fault != nil {
			return Reply{Error: fault}
		}
	}
	mctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	fl := s.begin(msg.id, end)
	defer s.finish(msg.id, fl)
	reply := e.http.Answer(mctx, answered(req, st))
	if silenced(mctx) {
		lost(reply)
		return Reply{}
	}
	return reply
}

func orNull(id json.RawMessage, r Reply) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return replyLine(id, r)
}
