// Package transport holds the message loops of a Model Context Protocol server:
// it reads bounded JSON-RPC messages, keeps ids, tokens and arguments exactly
// as they were sent, runs each request under a context of its own, and writes
// every notification of a request before its response. It knows no tools: what
// a request means is the business of the AnswerFunc that it is given.
package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// JSON-RPC 2.0 error codes that the loops use themselves.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602
	CodeInternal       = -32603
)

// Causes with which a loop ends a request's context; context.Cause finds them.
var (
	// ErrClosed says that the connection is gone and nobody reads an answer.
	ErrClosed = errors.New("transport: connection closed")
	// ErrStreamClosed says that the client closed the stream of this request,
	// which on 2026-07-28 is how it cancels; nobody reads an answer.
	ErrStreamClosed = errors.New("transport: stream closed")
	// ErrStopping says that the server is stopping; an answer is still written.
	ErrStopping = errors.New("transport: server is stopping")
)

// A CancelledError is the cause when the client cancelled the request itself.
// No response is written for such a request. Reason is what the client said.
type CancelledError struct{ Reason string }

func (e *CancelledError) Error() string { return "transport: cancelled by the client" }

// An Error is a JSON-RPC error object.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`

	Refusal *Refusal `json:"-"` // what HTTP says of it; nil means what goes with the code
}

func (e *Error) Error() string { return fmt.Sprintf("json-rpc %d: %s", e.Code, e.Message) }

// A Reply answers one request: Result or Error. With neither, nothing is
// written. Of Delivered and Lost, if set, one is called, once, and only that tells what
// became of the reply, since ctx ends in both cases: Delivered after it was written to
// an open connection without error; Lost where it was not, which the cause of ctx
// explains. Unread, if set, is called when a cancel of the request comes after that,
// which the client sent before it read the reply.
type Reply struct {
	Result    json.RawMessage
	Error     *Error
	Delivered func()
	Lost      func()
	Unread    func(ctx context.Context, reason string)
}

// An AnswerFunc answers one request. It is called from many goroutines, must
// not panic, and returns soon after ctx ends. ctx bounds the request only.
type AnswerFunc func(ctx context.Context, req *Request) Reply

// A Request is one JSON-RPC request as the client sent it.
type Request struct {
	// ID is the id byte for byte: a JSON string or an integer.
	ID     json.RawMessage
	Method string
	// Params is an object, or nil. Members that differ from a name of the
	// protocol only in case are gone; everything else is as it was sent.
	Params json.RawMessage
	// Principal is who sent it.
	Principal string
	// Grant is what came with the Caller that sent it.
	Grant any
	// Session is what the client's initialize settled.
	Session *Session
	// Notify writes a notification that belongs to this request, ahead of its
	// response. It fails once the request was cancelled or the connection is
	// gone; nothing is written then. Params must encode to a JSON object.
	Notify func(method string, params json.RawMessage) error
	// Ask sends a request to the client; nil means that the transport cannot. It
	// may be used after the request was answered, as long as the connection is.
	Ask AskFunc
	// OneBody says that the client takes one response and nothing else: what
	// Notify is given goes nowhere, and the client cannot be asked anything.
	OneBody bool
	// Track, if set, is told the run that the request waits for and the number
	// of the run's event that the next message tells of, so that a client that
	// comes back can say how far it heard.
	Track func(run string, n int64)
}

// Param returns one member of the request's params, as sent, or nil.
func (r *Request) Param(name string) json.RawMessage { return field(r.Params, name) }

// Meta returns one member of the request's _meta, as sent, or nil.
func (r *Request) Meta(name string) json.RawMessage { return field(field(r.Params, "_meta"), name) }

func field(object json.RawMessage, name string) json.RawMessage {
	ms, ok := members(object)
	if !ok {
		return nil
	}
	for _, m := range ms {
		if m.key == name {
			return m.value
		}
	}
	return nil
}

// WithoutParam returns the params without one member, or nil if there are none.
func (r *Request) WithoutParam(name string) json.RawMessage {
	ms, ok := members(r.Params)
	if !ok {
		return nil
	}
	kept := make([]member, 0, len(ms))
	for _, m := range ms {
		if m.key != name {
			kept = append(kept, m)
		}
	}
	if len(kept) == len(ms) {
		return r.Params
	}
	return object(kept)
}

// A Caller is who sends requests.
type Caller struct {
	Principal string
	// Grant is passed on with each request; the transport does not look at it.
	Grant any
	// Expires is when streams that wait for no call end, since the caller has to
	// show again who it is; zero means never.
	Expires time.Time
	// Watch calls end when the caller is not admitted any more, upon which all of
	// its streams end at once; stop takes that back. Nil means that it stays.
	Watch func(end func()) (stop func() bool)
}

// A Refusal is how a request is refused over HTTP.
type Refusal struct {
	Status    int
	Challenge string        // of WWW-Authenticate, or ""
	After     time.Duration // of Retry-After, in whole seconds; 0 means none
	Text      string        // for people
}

// A Session is what a client's initialize settled for its connection. Clients
// of revision 2026-07-28 have none: they say the same with each request. It is
// safe for concurrent use.
type Session struct {
	key string // see Key; set before the session is known

	mu           sync.Mutex
	version      string
	client       mcp.Implementation
	capabilities mcp.ClientCapabilities
}

// Settle records the outcome of initialize.
func (s *Session) Settle(version string, client mcp.Implementation, capabilities mcp.ClientCapabilities) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.client, s.capabilities = version, client, capabilities
}

// Settled returns what initialize settled; the version is "" before that.
func (s *Session) Settled() (version string, client mcp.Implementation, capabilities mcp.ClientCapabilities) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, s.client, s.capabilities
}

// Key names the session in every process that shares it, and is no secret; it is ""
// for one that a connection or a process has for itself.
func (s *Session) Key() string { return s.key }
