package inbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

const (
	// cancelLimit is how long a notice of cancellation may take to be sent.
	cancelLimit = 5 * time.Second
	// answerLimit is how long the answer to a server's request may take to be sent.
	answerLimit = 10 * time.Second
	// maxAnswers bounds the requests of a server that wait for their answer.
	maxAnswers = 64
)

// A wire carries messages to one server and hands those from it to its sink. A wire of
// HTTP has a lane for each request: its own exchange, on which alone its response may
// come.
type wire interface {
	// send sends one message and returns when no more of it will be sent or, on a
	// lane, received. It sets out.begun before the first byte may have left. When ctx
	// ends it sends nothing more of what has not begun.
	send(ctx context.Context, out *outgoing) error
	// cancelByEnd tells whether ending a lane tells the server that the request is
	// cancelled, so that no notice is to be sent.
	cancelByEnd() bool
	// close ends the connection and returns when nothing of it is left, or ctx ends.
	close(ctx context.Context) error
}

// A sink takes what a wire reads.
type sink interface {
	// deliver takes the bytes of one message, and reports whether it was the response
	// to the request of the lane. lane is the request whose exchange the message came
	// on, standing for a stream of no request, or 0 if the connection has no lanes.
	deliver(lane int64, raw []byte) bool
	// oversized takes what is known of a message that was over the bound.
	oversized(o *oversize)
	// lost says that the connection has ended. Only the first cause counts.
	lost(cause error)
}

// outgoing is a message on its way to the server.
type outgoing struct {
	id     int64 // of a request, else 0
	method string
	params json.RawMessage // as in body, for what a transport says of them beside it
	body   []byte
	header map[string]string // of an exchange over HTTP
	begun  atomic.Bool       // some byte of it may have left
	status atomic.Int32      // that an exchange over HTTP was answered with
}

// Why a request has no result, beside *rpcError and what a wire's send returns.
var (
	errClosed    = errors.New("the session is closed")
	errEnded     = errors.New("the connection to the server has ended")
	errTooLarge  = errors.New("a message of the server is over the bound")
	errNoReply   = errors.New("the exchange ended without a response")
	errBadReply  = errors.New("the response cannot be read")
	errUnsent    = errors.New("the request was not sent")
	errCancelled = errors.New("the request was cancelled")
)

// A peer is one side of a JSON-RPC connection: ours. It owns every request from its
// number to the end of its raw work.
type peer struct {
	wire   wire
	report func(what string, args ...any)

	mu      sync.Mutex
	last    int64
	pending map[int64]*request
	claimed map[string]*answer // requests of the server, by id as written
	queue   chan *answer
	ended   error // why the connection ended, nil while it lives
	closing bool
	work    int           // sends, answers and notices that are owed
	idle    chan struct{} // closed when closing and work is 0
	isIdle  bool
	quit    chan struct{} // closed when the connection has ended or the peer closes
	hasQuit bool
}

// A request is one of ours that has not ended.
type request struct {
	out   *outgoing
	done  chan struct{} // closed when reply or err is set
	reply json.RawMessage
	err   error
}

func newPeer(report func(what string, args ...any)) *peer {
	return &peer{
		report: report, pending: make(map[int64]*request), claimed: make(map[string]*answer),
		queue: make(chan *answer, maxAnswers), idle: make(chan struct{}), quit: make(chan struct{}),
	}
}

// start lets the peer answer what the server asks, over w, until it is closed.
func (p *peer) start(ctx context.Context, w wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wire = w
	if p.ended == nil && p.enter() {
		go p.answerAll(context.WithoutCancel(ctx))
	}
}

// stopAnswers revokes what was not begun and ends answerAll. The caller holds the lock.
func (p *peer) stopAnswers() {
	p.revokeAll()
	if !p.hasQuit {
		p.hasQuit = true
		close(p.quit)
	}
}

// enter takes on one piece of owed work, unless the peer is closing.
func (p *peer) enter() bool {
	if p.closing {
		return false
	}
	p.work++
	return true
}

func (p *peer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.work--
	p.settleIdle()
}

func (p *peer) settleIdle() {
	if p.closing && p.work == 0 && !p.isIdle {
		p.isIdle = true
		close(p.idle)
	}
}

// An outcome is how a request ended.
type outcome struct {
	result json.RawMessage
	begun  bool // it may have left
	status int  // of its exchange over HTTP, 0 if there was none
}

// call sends a request and waits for its result. It returns when ctx ends, whatever
// the connection does; the server is told then, unless the request never left.
func (p *peer) call(ctx context.Context, method string, params json.RawMessage, header map[string]string) (outcome, error) {
	r, err := p.register(method, params, header)
	if err != nil {
		return outcome{}, err
	}
	sendCtx, endSend := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		defer p.leave()
		defer endSend(nil)
		err := p.wire.send(sendCtx, r.out)
		if err != nil {
			p.settle(r.out.id, nil, err)
		}
	}()
	select {
	case <-r.done:
	case <-ctx.Done():
		if p.retire(r) {
			p.abandon(ctx, r, endSend)
			return r.outcome(), errCancelled
		}
		<-r.done // it was settled meanwhile
	}
	if _, answered := errors.AsType[*rpcError](r.err); r.err != nil && !answered {
		endSend(r.err) // nothing more of its exchange is wanted
	}
	return r.outcome(), r.err
}

func (r *request) outcome() outcome {
	return outcome{result: r.reply, begun: r.out.begun.Load(), status: int(r.out.status.Load())}
}

func (p *peer) register(method string, params json.RawMessage, header map[string]string) (*request, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended != nil:
		return nil, p.ended
	case !p.enter():
		return nil, errClosed
	}
	p.last++
	out := &outgoing{id: p.last, method: method, params: params, header: header}
	body, err := encode(out.id, method, params)
	if err != nil {
		p.work--
		return nil, err
	}
	out.body = body
	r := &request{out: out, done: make(chan struct{})}
	p.pending[out.id] = r
	return r, nil
}

// encode writes a request, or a notification if id is 0.
func encode(id int64, method string, params json.RawMessage) ([]byte, error) {
	m := struct {
		Version string          `json:"jsonrpc"`
		ID      int64           `json:"id,omitempty"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params,omitempty"`
	}{"2.0", id, method, params}
	return marshal(m)
}

// marshal writes JSON without white space, and leaves texts as they are: what a model
// wrote goes out as it stands.
func marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// settle ends a request that is pending. A request ends once: what comes later for it
// finds nothing.
func (p *peer) settle(id int64, reply json.RawMessage, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.pending[id]
	if !ok {
		return false
	}
	delete(p.pending, id)
	r.reply, r.err = reply, err
	close(r.done)
	return true
}

// retire takes a request out of what may be answered, and reports whether it was still
// to be.
func (p *peer) retire(r *request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending[r.out.id] != r {
		return false
	}
	delete(p.pending, r.out.id)
	return true
}

// abandon ends what is left of a retired request, and tells the server of it.
func (p *peer) abandon(ctx context.Context, r *request, endSend context.CancelCauseFunc) {
	// "The initialize request MUST NOT be cancelled by clients" (2025-11-25, Cancellation).
	if !r.out.begun.Load() || p.wire.cancelByEnd() || r.out.method == string(mcp.MethodInitialize) {
		endSend(errCancelled)
		return
	}
	reason := "cancelled"
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		reason = "deadline"
	}
	p.mu.Lock()
	late := p.isIdle // the connection has ended under the request
	if !late {
		p.work++ // also while the peer closes
	}
	p.mu.Unlock()
	if late {
		endSend(errCancelled)
		return
	}
	noticeCtx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
	go func() {
		defer p.leave()
		defer stop()
		defer endSend(errCancelled)
		params, err := json.Marshal(map[string]any{"requestId": r.out.id, "reason": reason})
		if err == nil {
			err = p.notify(noticeCtx, string(mcp.MethodNotificationCancelled), params)
		}
		if err != nil {
			p.report("notice of cancellation not sent", "err", err)
		}
	}()
}

// notify sends a notification, as part of work that the caller has entered.
func (p *peer) notify(ctx context.Context, method string, params json.RawMessage) error {
	body, err := encode(0, method, params)
	if err != nil {
		return err
	}
	return p.wire.send(ctx, &outgoing{method: method, params: params, body: body})
}

// tell sends a notification as work of its own.
func (p *peer) tell(ctx context.Context, method string, params json.RawMessage) error {
	p.mu.Lock()
	err := p.ended
	if err == nil && !p.enter() {
		err = errClosed
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	defer p.leave()
	return p.notify(ctx, method, params)
}

// deliver takes one message of the server.
func (p *peer) deliver(lane int64, raw []byte) bool {
	m, err := parseMessage(raw)
	switch {
	case err != nil:
		p.report("message of the server refused", "err", err)
		return p.unreadable(lane, raw)
	case m.method != "" && m.id != nil:
		p.requested(m)
	case m.method != "":
		p.notified(m)
	default:
		return p.answered(lane, m)
	}
	return false
}

// unreadable fails the request whose response was refused, if it is still told which one
// it was for: nothing else will come for it. It reports whether there was one.
func (p *peer) unreadable(lane int64, raw []byte) bool {
	var known oversize
	known.scan.feed(raw)
	known.known()
	id, ok := ownID(known.id)
	return ok && !known.method && (lane == 0 || id == lane) && p.settle(id, nil, errBadReply)
}

func (p *peer) answered(lane int64, m message) bool {
	id, ok := ownID(m.id)
	if !ok && lane != 0 && string(m.id) == "null" && m.fault != nil {
		id, ok = lane, true // what a server answers with that could not read the request
	}
	if !ok || lane != 0 && id != lane {
		p.report("response to no request of ours dropped")
		return false
	}
	var err error
	if m.fault != nil {
		var fault *rpcError
		if fault, err = parseRPCError(m.fault); err == nil {
			err = fault
		} else {
			err = errBadReply
		}
	}
	if !p.settle(id, m.result, err) {
		p.report("response to a request that has ended dropped")
	}
	return true
}

// Error is for logs: what it holds of the server's text is quoted by whoever shows it.
func (e *rpcError) Error() string { return "the server answered with an error" }

// oversized fails the request whose response was over the bound or, if the message
// names none, all of them: one of them has lost its response.
func (p *peer) oversized(o *oversize) {
	if o.method {
		p.report("request or notification over the bound dropped")
		return
	}
	if id, ok := ownID(o.id); ok {
		p.settle(id, nil, errTooLarge)
		return
	}
	p.failAll(errTooLarge)
}

func (p *peer) failAll(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, r := range p.pending {
		delete(p.pending, id)
		r.err = err
		close(r.done)
	}
}

// lost ends the connection for good.
func (p *peer) lost(cause error) {
	p.mu.Lock()
	if p.ended == nil {
		if cause == nil {
			cause = errEnded
		}
		p.ended = cause
	}
	err := p.ended
	p.stopAnswers()
	p.mu.Unlock()
	p.failAll(err)
}

// alive returns nil while the connection lives, else why it ended.
func (p *peer) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// close refuses new work and ends the connection once the notices that are owed were
// sent, at most within their limit. It returns when all work has ended, or ctx did.
func (p *peer) close(ctx context.Context) error {
	p.mu.Lock()
	p.closing = true
	p.stopAnswers()
	p.settleIdle()
	p.mu.Unlock()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-p.idle:
	case <-grace.C:
	case <-ctx.Done():
	}
	err := p.wire.close(ctx)
	p.lost(errClosed)
	select {
	case <-p.idle:
	case <-ctx.Done():
		err = errors.Join(err, errOwed)
	}
	return err
}

// closeGrace is how long a close waits for notices before it ends the connection that
// they go over.
const closeGrace = time.Second

// errOwed says that a close ended before what it waited for did.
var errOwed = errors.New("work of the session has not ended")
