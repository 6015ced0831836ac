package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

const (
	// leaveGrace is how long calls have to let go once their context ended and
	// nobody reads an answer. With DefaultEOFGrace it stays below the two
	// seconds in which a server has to be gone after its input ended.
	leaveGrace = 300 * time.Millisecond

	// settleGrace is how long a request waits for those cancelled before it, and
	// cancelGrace how long one does that may join the run of such a call. A busy store
	// takes its time to note that a caller is gone; longer wait calls that let go late.
	settleGrace = time.Second
	cancelGrace = 5 * time.Second

	// expiryGrace is how long the calls of a caller may go on whose admission
	// expired; with what is needed to close it stays below a minute.
	expiryGrace = 50 * time.Second
)

// errExpired is the cause when a caller's admission expired.
var errExpired = errors.New("transport: the caller's admission expired")

// conn is a connection that carries one message after the other, for as long as
// the client stays: a session of its own.
type conn struct {
	answer      AnswerFunc
	permit      func(*Request) *Error // nil permits all
	notices     *Notices              // nil means that there are none
	caller      *Caller
	log         *slog.Logger
	maxInFlight int
	maxHeld     int
	endGrace    time.Duration // how long calls may answer after the messages ended
	stopGrace   time.Duration // how long they may after the server was told to stop
	expiryGrace time.Duration // how long they may after the caller's admission expired

	read  func() incoming         // one message; an error but errTooLong is the last
	write func(line []byte) error // one message, which ends with a newline
	enter func() bool             // takes a place for a request; nil means that there is one
	leave func()                  // gives it back

	session  *Session
	ear      *ear
	requests sync.WaitGroup
	asks     asks
	expired  bool // the loop's own

	mu      sync.Mutex
	flights map[string]*flight // by idKey, until answered
	leaving []*flight          // cancelled and not yet ended
	answers []answer           // written last, oldest first
	running int                // requests, until their answer is written
	held    int                // bytes of their messages

	out    chan outgoing
	broken chan struct{} // closed when a write failed
	gone   chan struct{} // closed when serve returns
}

// flight is one request that is being answered; done is closed when its
// AnswerFunc returned.
type flight struct {
	began  time.Time
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// answer is what Reply.Unread of a request is that was answered.
type answer struct {
	key    string // of its id
	unread func(context.Context, string)
}

// incoming is one message; free, if not nil, is called when nothing needs its
// bytes any more.
type incoming struct {
	line []byte
	err  error
	free func()
}

// outgoing is one line to write; sent, if not nil, gets the outcome.
type outgoing struct {
	line []byte
	sent chan<- error
}

func newConn(answer AnswerFunc, caller *Caller, log *slog.Logger) *conn {
	return &conn{
		answer:      answer,
		caller:      caller,
		log:         log,
		expiryGrace: expiryGrace,
		enter:       func() bool { return true },
		leave:       func() {},
		session:     &Session{},
		ear:         newEar(),
		flights:     map[string]*flight{},
		out:         make(chan outgoing, 64),
		broken:      make(chan struct{}),
		gone:        make(chan struct{}),
	}
}

// serve answers until the messages end, the client takes none, the caller's
// admission expired, or ctx ends, and says which of them it was. What read and
// write have under way then is left behind.
func (c *conn) serve(ctx context.Context) error {
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(ErrClosed)
	defer close(c.gone)
	defer c.notices.leave(c.ear)

	written := make(chan struct{})
	flush := make(chan struct{})
	go func() {
		defer close(written)
		c.writeAll(flush)
	}()
	read := make(chan incoming)
	go c.readAll(read)

	grace, why := c.loop(ctx, base, read)
	cause := ErrClosed
	if errors.Is(why, ErrStopping) || errors.Is(why, errRevoked) {
		cause = why
		end(cause)
	}
	answered := c.answered()
	if !within(grace, answered, c.broken) {
		end(cause)
		within(leaveGrace, answered, nil)
	}
	close(flush)
	within(leaveGrace/4, written, nil)
	return why
}

// loop takes messages until something ends that, and says what did and how long
// calls may answer then. ctx bounds the reading, base the requests.
func (c *conn) loop(ctx, base context.Context, read <-chan incoming) (grace time.Duration, why error) {
	expiry, stop := c.caller.expiry()
	defer stop()
	var quiet <-chan struct{}
	var late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if why = hangup(ctx, ErrStopping); errors.Is(why, ErrStopping) {
				grace = c.stopGrace
			}
			return grace, why
		case <-c.broken:
			return 0, ErrClosed
		case <-expiry:
			// An admitted call may finish; nothing new is answered.
			c.expired, expiry = true, nil
			quiet = c.answered()
			t := time.NewTimer(c.expiryGrace)
			defer t.Stop()
			late = t.C
		case <-quiet:
			return 0, errExpired
		case <-late:
			return 0, errExpired
		case m := <-read:
			if !c.take(ctx, base, m) {
				return c.endGrace, m.err
			}
		}
	}
}

// answered is closed once every request is; none may start any more.
func (c *conn) answered() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.requests.Wait()
	}()
	return done
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

func (c *conn) readAll(to chan<- incoming) {
	for {
		m := c.read()
		select {
		case to <- m:
		case <-c.gone:
			m.done()
			return
		}
		if m.err != nil && !errors.Is(m.err, errTooLong) {
			return
		}
	}
}

func (m *incoming) done() {
	if m.free != nil {
		m.free()
	}
}

// writeAll is the only writer of the stream. After flush it writes what is
// queued and returns.
func (c *conn) writeAll(flush <-chan struct{}) {
	var failed error
	write := func(o outgoing) {
		if failed == nil {
			if failed = c.write(o.line); failed != nil {
				c.log.Warn("client does not read any more", "error", failed)
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
		case line := <-c.ear.lines:
			write(outgoing{line: line})
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

// take handles one message and reports whether reading goes on. ctx bounds the
// reading, base the requests.
func (c *conn) take(ctx, base context.Context, m incoming) bool {
	kept := false
	defer func() {
		if !kept {
			m.done()
		}
	}()
	switch {
	case errors.Is(m.err, errTooLong):
		c.post(ctx, errorLine(nil, invalid("message too long")))
		return true
	case m.err != nil:
		if !errors.Is(m.err, io.EOF) {
			c.log.WarnContext(ctx, "read from client", "error", m.err)
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
		c.hear(base, msg)
	case c.expired:
		c.post(ctx, errorLine(msg.id, invalid("the token has expired; connect again with a new one")))
	case msg.method == "initialize" || msg.method == "ping":
		// In line: what follows initialize depends on it, and a ping is answered
		// however many calls wait. Neither waits for anything.
		c.post(ctx, replyLine(msg.id, c.answer(base, c.request(base, msg))))
	default:
		kept = c.start(ctx, base, msg, &m)
	}
	return true
}

// hear takes a notification.
func (c *conn) hear(base context.Context, msg message) {
	switch msg.method {
	case "notifications/cancelled":
		c.cancel(base, msg.params)
	case initialized:
		if version, _, _ := c.session.Settled(); version != "" {
			c.notices.join(c.ear)
		}
	}
}

// start runs one request in a goroutine of its own, which then has the message.
func (c *conn) start(ctx, base context.Context, msg message, m *incoming) bool {
	rctx, end := context.WithCancelCause(base)
	f := &flight{cancel: end, done: make(chan struct{})}
	key, size := idKey(msg.id), len(m.line)
	c.mu.Lock()
	_, twice := c.flights[key]
	full := c.running >= c.maxInFlight || c.held+size > c.maxHeld
	if !twice && !full {
		full = !c.enter()
	}
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
			return false
		}
		c.post(ctx, errorLine(msg.id, &Error{Code: CodeInternal, Message: "too many requests in flight"}))
		return false
	}
	c.requests.Go(func() {
		grace := settleGrace
		if msg.method == string(mcp.MethodToolsCall) {
			grace = cancelGrace
		}
		settle(rctx, before, grace)
		reply := c.permitted(rctx, msg)
		if c.landed(rctx, key, reply) {
			lost(reply)
			reply = Reply{}
		}
		c.left(f)
		line := replyLine(msg.id, reply)
		if line == nil || silenced(rctx) || c.send(line) != nil {
			lost(reply)
		} else if reply.Delivered != nil {
			reply.Delivered()
		}
		end(nil)
		m.done()
		c.leave()
		c.mu.Lock()
		c.running--
		c.held -= size
		c.mu.Unlock()
	})
	return true
}

// landed takes a request off those that can be cancelled; true means that it was.
func (c *conn) landed(ctx context.Context, key string, reply Reply) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, key)
	if silenced(ctx) {
		return true
	}
	if reply.Unread != nil {
		c.answers = append(c.answers[max(len(c.answers)-maxCalls+1, 0):], answer{key, reply.Unread})
	}
	return false
}

// left says that a request has ended to those that came after its cancel.
func (c *conn) left(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = slices.DeleteFunc(slices.Clone(c.leaving), func(l *flight) bool { return l == f })
	close(f.done)
}

// permitted answers a request that the caller may make.
func (c *conn) permitted(ctx context.Context, msg message) Reply {
	req := c.request(ctx, msg)
	if c.permit != nil {
		if fault := c.permit(req); fault != nil {
			return Reply{Error: fault}
		}
	}
	return c.answer(ctx, req)
}

// settle lets the requests that were cancelled before this one was sent end
// first, so that it finds what their cancel did.
func settle(ctx context.Context, leaving []*flight, grace time.Duration) {
	if len(leaving) == 0 {
		return
	}
	t := time.NewTimer(grace)
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
		Principal: c.caller.Principal,
		Grant:     c.caller.Grant,
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

func (c *conn) cancel(base context.Context, params json.RawMessage) {
	var reason string
	if raw := field(params, "reason"); raw != nil && json.Unmarshal(raw, &reason) != nil {
		reason = ""
	}
	c.mu.Lock()
	key := idKey(field(params, "requestId"))
	f := c.flights[key]
	if f != nil {
		if !slices.Contains(c.leaving, f) {
			c.leaving = append(slices.Clone(c.leaving), f)
		}
		f.cancel(&CancelledError{Reason: reason})
		c.mu.Unlock()
		return
	}
	var unread func(context.Context, string)
	if i := slices.IndexFunc(c.answers, func(a answer) bool { return a.key == key }); i >= 0 {
		unread = c.answers[i].unread
		c.answers = slices.Delete(c.answers, i, i+1)
	}
	c.mu.Unlock()
	if unread != nil { // the answer and the cancel passed each other
		unread(base, reason) // before what comes next
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
