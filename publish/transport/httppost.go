package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

const (
	// codeSession is how a request of an unknown session is answered; clients
	// go by the status 404 and initialize again.
	codeSession = -32001

	// maxBatch bounds the members of an array, which 2025-03-26 has.
	maxBatch = 64
)

// post answers POST of either era. "Every JSON-RPC message sent from the client
// MUST be a new HTTP POST request to the MCP endpoint" (MCP, Streamable HTTP).
func (e *endpoint) post(w http.ResponseWriter, r *http.Request, c *Caller) {
	forms, ok := accepted(r.Header)
	if !ok {
		failed(w, http.StatusNotAcceptable, nil, invalid("the answer is application/json or text/event-stream, and Accept takes neither"))
		return
	}
	if !jsonBody(r.Header) {
		failed(w, http.StatusUnsupportedMediaType, nil, invalid("the content type is not application/json"))
		return
	}
	body, held, ok := e.body(w, r, c)
	if !ok {
		return
	}
	defer e.letGo(c.Principal, held)
	version := r.Header.Get(mcp.HeaderProtocolVersion)
	if text := bytes.TrimLeft(body, " \t\r\n"); len(text) > 0 && text[0] == '[' {
		e.array(w, r, c, forms, version, body)
		return
	}
	msg, id, fault := parse(body)
	if fault != nil {
		failed(w, http.StatusBadRequest, id, fault)
		return
	}
	stated := statedVersion(msg.params)
	if mcp.IsModernProtocol(version) || mcp.IsModernProtocol(stated) {
		e.modern(w, r, c, forms, msg, version, stated)
		return
	}
	e.legacy(w, r, c, forms, msg, version)
}

// statedVersion is the revision that the message itself names, as those of
// 2026-07-28 do.
func statedVersion(params json.RawMessage) string {
	var version string
	if raw := field(field(params, "_meta"), mcp.MetaKeyProtocolVersion); raw == nil || json.Unmarshal(raw, &version) != nil {
		return ""
	}
	return version
}

// body reads a bounded body within a bounded time; held is what it takes of the
// bytes that all bodies may have. When ok is false the answer is written.
func (e *endpoint) body(w http.ResponseWriter, r *http.Request, c *Caller) (body []byte, held int, ok bool) {
	most := cmp.Or(e.http.MaxBody, DefaultMaxBody)
	if r.ContentLength > int64(most) {
		tooLarge(w, most)
		return nil, 0, false
	}
	held = most
	if r.ContentLength >= 0 {
		held = int(r.ContentLength)
	}
	if !e.hold(c.Principal, held) {
		w.Header().Set("Retry-After", "1")
		failed(w, http.StatusServiceUnavailable, nil, &Error{Code: CodeInternal, Message: "too many requests in flight"})
		return nil, 0, false
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(cmp.Or(e.http.BodyTimeout, DefaultBodyTimeout)))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(most)))
	if err != nil { // the deadline stays: net/http reads what is left of the body
		e.letGo(c.Principal, held)
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			tooLarge(w, most)
			return nil, 0, false
		}
		w.Header().Set("Connection", "close")
		failed(w, http.StatusRequestTimeout, nil, invalid("the body did not arrive"))
		return nil, 0, false
	}
	_ = control.SetReadDeadline(time.Time{})
	e.letGo(c.Principal, held-len(body))
	return body, len(body), true
}

func tooLarge(w http.ResponseWriter, most int) {
	w.Header().Set("Connection", "close")
	failed(w, http.StatusRequestEntityTooLarge, nil, invalid("the body is larger than "+strconv.Itoa(most)+" bytes"))
}

// forms are the forms of an answer that a client takes.
type forms struct {
	json   bool
	events bool // named: text/event-stream or text/*
	any    bool // */*, or nothing said
}

// accepted reads Accept. A client that takes anything but does not name event
// streams gets one JSON body where that is possible: it is no MCP client that
// keeps to the letter, which "MUST list both", and may not read the other form.
func accepted(h http.Header) (f forms, ok bool) {
	list := strings.Join(h.Values("Accept"), ",")
	if strings.TrimSpace(list) == "" {
		return forms{json: true, any: true}, true
	}
	for part := range strings.SplitSeq(list, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if q, parseErr := strconv.ParseFloat(cmp.Or(params["q"], "1"), 64); err != nil || parseErr == nil && q == 0 {
			continue
		}
		switch kind {
		case "application/json", "application/*":
			f.json = true
		case "text/event-stream", "text/*":
			f.events = true
		case "*/*":
			f.json, f.any = true, true
		}
	}
	return f, f.json || f.events
}

func jsonBody(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && kind == "application/json"
}

// modern answers a message of 2026-07-28, which knows no sessions: their header
// and Last-Event-ID are ignored.
func (e *endpoint) modern(w http.ResponseWriter, r *http.Request, c *Caller, f forms, msg message, version, stated string) {
	if msg.id == nil {
		// No notification of a client is defined here. A cancel above all must
		// not be heard: it could name the request of anybody.
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if fault := modernFault(r.Header, msg, version, stated); fault != nil {
		failed(w, statusOf(fault.Code), msg.id, fault)
		return
	}
	events := f.events
	listens := msg.method == string(mcp.MethodSubscriptionsListen)
	if listens {
		if events = f.events || f.any; !events {
			failed(w, http.StatusNotAcceptable, msg.id, invalid("subscriptions/listen is answered by text/event-stream, which Accept does not take"))
			return
		}
	}
	// "Closing the SSE response stream MUST be treated as cancellation of that
	// request" (MCP 2026-07-28, Streamable HTTP).
	ctx, end := requestContext(r.Context(), ErrStreamClosed)
	defer end(nil)
	if listens && !c.Expires.IsZero() {
		defer time.AfterFunc(time.Until(c.Expires), func() { end(ErrStopping) }).Stop()
	}
	req := e.request(c, msg, &Session{})
	if !e.permitted(w, req) {
		return
	}
	st := e.stream(w, events, f)
	defer st.drop()
	reply := e.http.Answer(ctx, answered(req, st))
	deliver(ctx, st, msg.id, reply, true)
}

// modernFault is what is wrong with the headers of a request of 2026-07-28.
func modernFault(h http.Header, msg message, version, stated string) *Error {
	mismatch := func(text string) *Error { return &Error{Code: mcp.HEADER_MISMATCH, Message: shorten(text)} }
	switch {
	case version == "":
		return mismatch("header mismatch: no " + mcp.HeaderProtocolVersion)
	case stated == "":
		return &Error{Code: CodeInvalidParams, Message: "invalid params: no _meta member " + mcp.MetaKeyProtocolVersion}
	case version != stated:
		return mismatch("header mismatch: " + mcp.HeaderProtocolVersion + " is not the version that _meta names")
	case !mcp.IsValidProtocolVersion(stated):
		data, err := json.Marshal(mcp.UnsupportedProtocolVersionData{Supported: mcp.ValidProtocolVersions, Requested: shorten(stated)})
		if err != nil {
			data = nil
		}
		return &Error{Code: mcp.UNSUPPORTED_PROTOCOL_VERSION, Message: "unsupported protocol version", Data: data}
	}
	if err := mcp.ValidateStandardHeaders(h.Get, stated, mcp.MCPMethod(msg.method), msg.params); err != nil {
		return mismatch(err.Error())
	}
	switch msg.method {
	case "tasks/get", "tasks/update", "tasks/cancel": // of an extension, which the library does not know
		if !named(h, field(msg.params, "taskId")) {
			return mismatch("header mismatch: " + mcp.HeaderName + " is not the taskId of the body")
		}
	}
	return nil
}

// named reports whether Mcp-Name is a member of the body.
func named(h http.Header, member json.RawMessage) bool {
	name, ok := mcp.DecodeHeaderValue(h.Get(mcp.HeaderName))
	var id string
	return ok && name != "" && json.Unmarshal(member, &id) == nil && id == name
}

// shorten keeps what a client sent from filling an answer.
func shorten(text string) string {
	const most = 256
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// statusOf is the HTTP status of a JSON-RPC error on 2026-07-28.
func statusOf(code int) int {
	switch code {
	case CodeMethodNotFound:
		return http.StatusNotFound
	case CodeParse, CodeInvalidRequest, CodeInvalidParams,
		mcp.HEADER_MISMATCH, mcp.MISSING_REQUIRED_CLIENT_CAPABILITY, mcp.UNSUPPORTED_PROTOCOL_VERSION:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// requestContext is the context of a request: it ends with the usual cause when
// the client closes the connection or the stream, and with ErrStopping.
func requestContext(base context.Context, usual error) (context.Context, context.CancelCauseFunc) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(base))
	stop := context.AfterFunc(base, func() { end(hangup(base, usual)) })
	return ctx, func(cause error) {
		end(cause)
		stop()
	}
}

// stream is the answer of one POST.
func (e *endpoint) stream(w http.ResponseWriter, events bool, f forms) *stream {
	st := &stream{w: w, flush: http.NewResponseController(w), events: events, onlyEvent: !f.json}
	beat := cmp.Or(e.http.Heartbeat, DefaultHeartbeat)
	st.keep(min(cmp.Or(e.http.Hold, DefaultHold), beat), beat)
	return st
}

func (e *endpoint) request(c *Caller, msg message, session *Session) *Request {
	return &Request{
		ID:        msg.id,
		Method:    msg.method,
		Params:    msg.params,
		Principal: c.Principal,
		Grant:     c.Grant,
		Session:   session,
	}
}

// answered is the request with what is answered on st.
func answered(req *Request, st *stream) *Request {
	req.OneBody = !st.events
	req.Notify = func(method string, params json.RawMessage) error {
		return st.notify(notificationLine(method, params))
	}
	return req
}

// deliver writes a reply, if anybody is there to read it, and says whether that
// went well.
func deliver(ctx context.Context, st *stream, id json.RawMessage, reply Reply, modern bool) bool {
	line := replyLine(id, reply)
	if line == nil || silenced(ctx) {
		if errors.Is(context.Cause(ctx), errRevoked) {
			st.refuse(http.StatusUnauthorized)
		}
		st.drop()
		lost(reply)
		return false
	}
	status := http.StatusOK
	switch {
	case reply.Error != nil && reply.Error.Refusal != nil:
		status = reply.Error.Refusal.Status
		st.head(reply.Error.Refusal.head)
	case modern && reply.Error != nil:
		status = statusOf(reply.Error.Code)
	}
	if st.finish(status, line) != nil {
		lost(reply)
		return false
	}
	if reply.Delivered != nil {
		reply.Delivered()
	}
	return true
}

// lost says that the reply was not written.
func lost(reply Reply) {
	if reply.Lost != nil {
		reply.Lost()
	}
}
