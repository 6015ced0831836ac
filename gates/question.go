package gates

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
)

// watchEvery is how often a question that its call left behind looks whether
// its gate is still open.
const watchEvery = 500 * time.Millisecond

// endPatience bounds how long the end of a call waits for a client to be told
// that its question is taken back.
const endPatience = time.Second

// Why a question is taken back. The client is told the reason.
var (
	errClosed = errors.New("the gate was decided elsewhere")
	errOver   = errors.New("the call that asked is over")
)

// A leftError ends the asking of a question that stays open at the client: its
// stream broke, and it may come back.
type leftError struct{}

func (leftError) Error() string { return "the stream of the question broke" }

// Left tells an AskFunc that nothing is to be said to the client.
func (leftError) Left() bool { return true }

// A question is one open elicitation request to a client of 2025. It belongs to
// the calls of its connection that wait for its gate, and stays when they were
// handed over.
type question struct {
	call   *Call // that asked: its client, policy and run
	form   form
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing more is said to the client

	// Under the ladder's lock:
	calls map[*Call]bool
	kept  bool                    // a call was handed over
	nonce string                  // of what the client is asked now, or ""
	hear  context.CancelCauseFunc // ends the asking of that
}

// next asks about the oldest open gate, if the client can be asked and no other
// question of the call is open. The ladder's lock is held.
func (c *Call) next(ctx context.Context) {
	if c.over || c.shut || c.asking != nil || c.client.modern() || len(c.open) == 0 {
		return
	}
	g := &c.open[0]
	r := c.rung(g)
	if r == noRung {
		return
	}
	at := place{c.client.Connection, g.ID}
	if q := c.l.questions[at]; q != nil {
		q.calls[c] = true
		c.asking = q
		return
	}
	qctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	q := &question{call: c, form: c.form(g, r), cancel: cancel, done: make(chan struct{}), calls: map[*Call]bool{c: true}}
	c.l.questions[at], c.asking = q, q
	c.l.start(func() {
		defer cancel(nil)
		defer close(q.done)
		q.ask(qctx)
		q.end(qctx, at)
	})
}

// end takes the question out of the world; its calls go on to their next gate.
func (q *question) end(ctx context.Context, at place) {
	l := q.call.l
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.questions, at)
	for c := range q.calls {
		if c.asking != q {
			continue
		}
		c.asking = nil
		if len(c.open) > 0 && c.open[0].ID == at.gate {
			c.open = c.open[1:] // asked and done with: the run tells when it is decided
		}
		c.next(ctx)
	}
}

// ask asks, once more if the answer was none, and does what the reply wants.
func (q *question) ask(ctx context.Context) {
	again := false
	for {
		asked, err := q.put(ctx, again)
		if err != nil {
			q.lost(ctx, "record a question", err)
			return
		}
		again = asked.Again
		o, err := q.await(ctx, &asked)
		if err != nil {
			// Taken back, or the connection is gone: nothing was said about the gate.
			q.lost(ctx, "ask", err)
			return
		}
		if _, ok := o.(withdrawn); ok {
			continue
		}
		if _, ok := o.(answered); ok {
			if q.stands(ctx) {
				return
			}
			continue
		}
		if !q.settle(ctx, o, again) {
			return
		}
		again = true
	}
}

// await sends the question that was put and returns what its reply means.
func (q *question) await(ctx context.Context, asked *putQuestion) (outcome, error) {
	l := q.call.l
	params, err := json.Marshal(q.form.params(q.call.client.Version, asked.ID, l.opt.Clean))
	if err != nil {
		return nil, err
	}
	actx, end := context.WithCancelCause(ctx)
	defer end(nil)
	q.hears(asked.ID, end)
	defer q.hears("", nil)
	reply, err := q.call.client.Ask(actx, asked.ID, string(mcp.MethodElicitationCreate), params)
	if elsewhere, ok := errors.AsType[*elsewhereError](err); ok {
		return elsewhere.outcome, nil
	}
	if err != nil {
		if errors.Is(err, errOver) {
			q.withdraw(ctx, asked)
		}
		return nil, err
	}
	if asked.kept {
		reply.Sent = asked.Sent
	}
	return q.spend(context.WithoutCancel(ctx), asked, q.read(reply))
}

func (q *question) read(r Reply) outcome {
	return q.form.reply(r, q.call.policy.MinHuman)
}

// reply tells what a client's response to the form means.
func (f *form) reply(r Reply, least time.Duration) outcome {
	if r.Refused {
		return broken{"the client answered with an error"}
	}
	return f.read(r.Result, r.Received.Sub(r.Sent), least)
}

// settle hands the outcome to the calls that wait, or to the one that asked if
// all of them are over.
func (q *question) settle(ctx context.Context, o outcome, again bool) (more bool) {
	l := q.call.l
	first := q.call
	var others []*Call
	l.mu.Lock()
	for c := range q.calls {
		if c != q.call {
			others = append(others, c)
		}
	}
	if !q.calls[q.call] && len(others) > 0 {
		first, others = others[0], others[1:]
	}
	l.mu.Unlock()
	more = first.settle(ctx, &q.form, o, again)
	if _, ok := o.(decided); !ok && !more {
		for _, c := range others {
			c.shutFor(q.form.gate.Node, "the question was not answered")
		}
	}
	return more
}

func (q *question) lost(ctx context.Context, what string, err error) {
	level := slog.LevelDebug
	if ctx.Err() == nil {
		level = slog.LevelInfo
	}
	q.call.l.opt.Logger.Log(ctx, level, "question to a client ended", slog.String("what", what),
		slog.String("run", q.call.run), slog.String("gate", q.form.gate.ID), slog.String("error", err.Error()))
}

// End is for a call that is over: a question of its own is taken back unless
// another call waits for it. When End returns the client was told, so that what
// is taken back is so before the call's response ends its stream.
func (c *Call) End() { c.end(errOver) }

// Leave is for a call whose stream broke. The question of a session stays open at
// the client: if the client comes back it is asked again under the same id, and its
// reply counts whenever and wherever it comes.
func (c *Call) Leave() { c.end(leftError{}) }

func (c *Call) end(cause error) {
	c.l.mu.Lock()
	c.leave(func(q *question) {
		if len(q.calls) == 0 && !q.kept {
			q.cancel(cause)
			c.taken = append(c.taken, q)
		}
	})
	taken := c.taken
	c.taken = nil
	c.l.mu.Unlock()
	if len(taken) == 0 {
		return
	}
	t := time.NewTimer(endPatience)
	defer t.Stop()
	for _, q := range taken {
		select {
		case <-q.done:
		case <-t.C:
			return // the client reads nothing
		}
	}
}

// HandOver is for a call that returns before its run does. A question that is
// open stays good: its answer decides the gate, and it is taken back when the
// gate closes.
func (c *Call) HandOver(ctx context.Context) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.leave(func(q *question) {
		if q.kept {
			return
		}
		q.kept = true
		wctx := context.WithoutCancel(ctx)
		c.l.start(func() { q.watch(wctx, place{c.client.Connection, q.form.gate.ID}) })
	})
}

// leave ends the call's part in its question; the ladder's lock is held.
func (c *Call) leave(then func(q *question)) {
	if c.over {
		return
	}
	c.over = true
	if q := c.asking; q != nil {
		c.asking = nil
		delete(q.calls, c)
		then(q)
	}
}

// watch takes the question back when its gate is no longer open.
func (q *question) watch(ctx context.Context, at place) {
	l := q.call.l
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for range tick.C {
		l.mu.Lock()
		there := l.questions[at] == q
		l.mu.Unlock()
		if !there {
			return
		}
		open, err := l.opt.Engine.Gates(ctx, engine.GateFilter{Run: q.call.run, Open: true, Limit: 1000})
		if err != nil {
			continue // a store that is closed ends the connections too
		}
		still := false
		for i := range open {
			still = still || open[i].ID == at.gate
		}
		if !still {
			l.mu.Lock()
			q.close(ctx)
			l.mu.Unlock()
			return
		}
	}
}
