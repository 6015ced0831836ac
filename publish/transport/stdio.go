package transport

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Bounds of a Stdio whose fields are zero.
const (
	DefaultMaxLine     = 4 << 20
	DefaultMaxInFlight = 1024
	DefaultMaxHeld     = 256 << 20
	DefaultEOFGrace    = 1500 * time.Millisecond
	DefaultStopGrace   = 8 * time.Second

	// leaveGrace is how long calls have to let go once their context ended and
	// nobody reads an answer. With DefaultEOFGrace it stays below the two
	// seconds in which a server has to be gone after its input ended.
	leaveGrace = 300 * time.Millisecond

	// settleGrace is how long a request waits for those cancelled before it.
	settleGrace = time.Second
)

// Stdio serves one client over a pair of streams, one message per line. Answer
// and Logger are required.
type Stdio struct {
	Answer    AnswerFunc
	Principal string
	Logger    *slog.Logger

	MaxLine     int           // bytes of one message; 0 means DefaultMaxLine
	MaxInFlight int           // requests at once; 0 means DefaultMaxInFlight
	MaxHeld     int           // bytes of their messages; 0 means DefaultMaxHeld
	EOFGrace    time.Duration // how long calls may still answer after EOF; 0 means DefaultEOFGrace
	StopGrace   time.Duration // how long they may after ctx ended; 0 means DefaultStopGrace
}

// Serve reads messages from in until it ends or ctx does, and writes answers to
// out and nothing else. At the end of in, or when out fails, requests in flight
// may answer for EOFGrace and are then ended with ErrClosed. When ctx ends they
// are ended at once with ErrStopping and may answer for StopGrace. All of these
// are a regular end: Serve returns nil. A read of in that is under way when ctx
// ends, and a write that the client does not take, are left behind; they end
// when the caller closes the streams or the process ends.
func (s *Stdio) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &conn{
		stdio:   s,
		session: &Session{},
		flights: map[string]*flight{},
		out:     make(chan outgoing, 64),
		broken:  make(chan struct{}),
		gone:    make(chan struct{}),
	}
	defer end(ErrClosed)
	defer close(c.gone)

	written := make(chan struct{})
	flush := make(chan struct{})
	go func() {
		defer close(written)
		c.writeAll(out, flush)
	}()
	read := make(chan incoming)
	go c.readAll(newLines(in, cmp.Or(s.MaxLine, DefaultMaxLine)), read)

	cause, grace := ErrClosed, cmp.Or(s.EOFGrace, DefaultEOFGrace)
loop:
	for {
		select {
		case <-ctx.Done():
			cause, grace = ErrStopping, cmp.Or(s.StopGrace, DefaultStopGrace)
			break loop
		case <-c.broken:
			grace = 0
			break loop
		case m := <-read:
			if !c.take(ctx, base, m) {
				break loop
			}
		}
	}
	if errors.Is(cause, ErrStopping) {
		end(cause)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.requests.Wait()
	}()
	if !within(grace, answered, c.broken) {
		end(cause)
		within(leaveGrace, answered, nil)
	}
	close(flush)
	within(leaveGrace/4, written, nil)
	return nil
}

// within waits for done, at most for d, and not after broken closed.
func within(d time.Duration, done, broken <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-broken:
		return false
	case <-t.C:
		return false
	}
}

// conn is the state of one client.
type conn struct {
	stdio    *Stdio
	session  *Session
	requests sync.WaitGroup
	asks     asks

	mu      sync.Mutex
	flights map[string]*flight // by idKey, until answered
	leaving []*flight          // cancelled and not yet ended
	running int                // requests, until their answer is written
	held    int                // bytes of their messages

	out    chan outgoing
	broken chan struct{} // closed when a write failed
	gone   chan struct{} // closed when Serve returns
}

// flight is one request that is being answered; done is closed when its
// AnswerFunc returned.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

type incoming struct {
	line []byte
	err  error
}

// outgoing is one line to write; sent, if not nil, gets the outcome.
type outgoing struct {
	line []byte
	sent chan<- error
}

func (c *conn) readAll(l *lines, to chan<- incoming) {
	for {
		line, err := l.next()
		select {
		case to <- incoming{line, err}:
		case <-c.gone:
			return
		}
		if err != nil && !errors.Is(err, errTooLong) {
			return
		}
	}
}

// writeAll is the only writer of the stream. After flush it writes what is
// queued and returns.
func (c *conn) writeAll(w io.Writer, flush <-chan struct{}) {
	var failed error
	write := func(o outgoing) {
		if failed == nil {
			if _, err := w.Write(o.line); err != nil {
				failed = err
				c.stdio.Logger.Warn("client does not read any more", "error", err)
				close(c.broken)
			}
		}
		if o.sent != nil {
			o.sent <- failed
		}
	}
	for {
		select {
		case o := <-c.out:
			write(o)
			continue
		case <-flush:
		}
		for {
			select {
			case o := <-c.out:
				write(o)
			default:
				return
			}
		}
	}
}

// take handles one line and reports whether reading goes on. ctx bounds the
// reading, base the requests.
func (c *conn) take(ctx, base context.Context, m incoming) bool {
	switch {
	case errors.Is(m.err, errTooLong):
		c.post(ctx, errorLine(nil, invalid("message too long")))
		return true
	case m.err != nil:
		if !errors.Is(m.err, io.EOF) {
			c.stdio.Logger.WarnContext(ctx, "read from client", "error", m.err)
		}
		return false
	case len(bytes.TrimSpace(m.line)) == 0:
		return true
	}
	msg, id, e := parse(m.line)
	switch {
	case e != nil:
		c.post(ctx, errorLine(id, e))
	case msg.method == "":
		if msg.reply != nil {
			c.asks.take(msg.reply, time.Now())
		}
	case msg.id == nil:
		if msg.method == "notifications/cancelled" {
			c.cancel(msg.params)
		}
	case msg.method == "initialize" || msg.method == "ping":
		// In line: what follows initialize depends on it, and a ping is answered
		// however many calls wait. Neither waits for anything.
		c.post(ctx, replyLine(msg.id, c.stdio.Answer(base, c.request(base, msg))))
	default:
		c.start(ctx, base, msg, len(m.line))
	}
	return true
}

// start runs one request in a goroutine of its own.
func (c *conn) start(ctx, base context.Context, msg message, size int) {
	rctx, end := context.WithCancelCause(base)
	f := &flight{cancel: end, done: make(chan struct{})}
	key := idKey(msg.id)
	c.mu.Lock()
	_, twice := c.flights[key]
	full := c.running >= cmp.Or(c.stdio.MaxInFlight, DefaultMaxInFlight) ||
		c.held+size > cmp.Or(c.stdio.MaxHeld, DefaultMaxHeld)
	if !twice && !full {
		c.flights[key] = f
		c.running++
		c.held += size
	}
	before := c.leaving
	c.mu.Unlock()
	if twice || full {
		end(nil)
		if twice {
			// With its id the error would settle the request that is under way.
			c.post(ctx, errorLine(nil, invalid("the id of a request in flight is used again")))
			return
		}
		c.post(ctx, errorLine(msg.id, &Error{Code: CodeInternal, Message: "too many requests in flight"}))
		return
	}
	c.requests.Go(func() {
		settle(rctx, before)
		reply := c.stdio.Answer(rctx, c.request(rctx, msg))
		c.mu.Lock()
		delete(c.flights, key)
		c.leaving = slices.DeleteFunc(slices.Clone(c.leaving), func(l *flight) bool { return l == f })
		c.mu.Unlock()
		close(f.done)
		line := replyLine(msg.id, reply)
		if line == nil || silenced(rctx) || c.send(line) != nil {
			lost(rctx, reply)
		} else if reply.Delivered != nil {
			reply.Delivered()
		}
		end(nil)
		c.mu.Lock()
		c.running--
		c.held -= size
		c.mu.Unlock()
	})
}

// settle lets the requests that were cancelled before this one was sent end
// first, so that it finds what their cancel did.
func settle(ctx context.Context, leaving []*flight) {
	if len(leaving) == 0 {
		return
	}
	t := time.NewTimer(settleGrace)
	defer t.Stop()
	for _, f := range leaving {
		select {
		case <-f.done:
		case <-ctx.Done():
			return
		case <-t.C:
			return
		}
	}
}

// silenced reports whether nothing may be written for a request any more:
// cancelled ones get no response (MCP, Cancellation), and a closed connection
// has no reader.
func silenced(ctx context.Context) bool {
	cause := context.Cause(ctx)
	_, cancelled := errors.AsType[*CancelledError](cause)
	return cancelled || errors.Is(cause, ErrClosed) || errors.Is(cause, ErrStreamClosed)
}

func (c *conn) request(rctx context.Context, msg message) *Request {
	return &Request{
		ID:        msg.id,
		Method:    msg.method,
		Params:    msg.params,
		Principal: c.stdio.Principal,
		Session:   c.session,
		Notify: func(method string, params json.RawMessage) error {
			if silenced(rctx) {
				return context.Cause(rctx)
			}
			return c.send(notificationLine(method, params))
		},
		Ask: func(ctx context.Context, id, method string, params json.RawMessage) (Answer, error) {
			return c.asks.ask(ctx, c.gone, id, method, params, c.send)
		},
	}
}

func (c *conn) cancel(params json.RawMessage) {
	var reason string
	if raw := field(params, "reason"); raw != nil && json.Unmarshal(raw, &reason) != nil {
		reason = ""
	}
	c.mu.Lock()
	f := c.flights[idKey(field(params, "requestId"))]
	if f != nil && !slices.Contains(c.leaving, f) {
		c.leaving = append(slices.Clone(c.leaving), f)
	}
	c.mu.Unlock()
	if f != nil {
		f.cancel(&CancelledError{Reason: reason})
	}
}

// post queues a line from the reading loop, which waits only while the client
// takes nothing.
func (c *conn) post(ctx context.Context, line []byte) {
	if line == nil {
		return
	}
	select {
	case c.out <- outgoing{line: line}:
	case <-c.broken:
	case <-ctx.Done():
	}
}

// send writes a line and returns when it is written.
func (c *conn) send(line []byte) error {
	sent := make(chan error, 1)
	select {
	case c.out <- outgoing{line: line, sent: sent}:
	case <-c.broken:
		return ErrClosed
	case <-c.gone:
		return ErrClosed
	}
	select {
	case err := <-sent:
		return err
	case <-c.gone:
		return ErrClosed
	}
}

func replyLine(id json.RawMessage, r Reply) []byte {
	switch {
	case r.Error != nil:
		return errorLine(id, r.Error)
	case r.Result != nil:
		return bytes.Join([][]byte{[]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), r.Result, []byte("}\n")}, nil)
	}
	return nil
}

func errorLine(id json.RawMessage, e *Error) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	body, err := json.Marshal(e)
	if err != nil {
		body = []byte(`{"code":-32603,"message":"internal error"}`)
	}
	return bytes.Join([][]byte{[]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"error":`), body, []byte("}\n")}, nil)
}

func notificationLine(method string, params json.RawMessage) []byte {
	name, err := json.Marshal(method)
	if err != nil {
		return nil
	}
	return bytes.Join([][]byte{[]byte(`{"jsonrpc":"2.0","method":`), name, []byte(`,"params":`), params, []byte("}\n")}, nil)
}
