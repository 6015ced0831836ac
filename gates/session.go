package gates

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// standEvery and standTries bound how long an answer that another process took may
// need to become the gate's decision; after that the question is asked anew.
const (
	standEvery = 500 * time.Millisecond
	standTries = 10
)

// withdrawn means that the question was taken back by another process that had asked
// the same.
type withdrawn struct{}

func (withdrawn) outcome() {}

// An elsewhereError ends the asking of a question whose reply came through another
// process.
type elsewhereError struct{ outcome outcome }

func (*elsewhereError) Error() string { return "the question was answered through another process" }

// Left tells an AskFunc that nothing is to be said to the client.
func (*elsewhereError) Left() bool { return true }

// A putQuestion is a question in the store; kept says that it stood open at the
// client before.
type putQuestion struct {
	engine.Question

	kept bool
}

// put records the next question. One of the session that stands open at the client
// is asked again as it was, and counts from when it was asked first, so that either
// reply counts.
func (q *question) put(ctx context.Context, again bool) (putQuestion, error) {
	l, g, session := q.call.l, &q.form.gate, q.call.client.Session
	asked := engine.Question{
		ID: rand.Text(), Session: session, Run: q.call.run, Gate: g.ID, Sent: l.opt.Now(), URL: q.form.url != "", Again: again,
	}
	if q.form.renamed {
		asked.Field = q.form.field
	}
	if session == "" {
		return putQuestion{Question: asked}, l.opt.Engine.Ask(ctx, asked.ID, asked.Sent, g.ID)
	}
	was, ok, err := l.opt.Engine.QuestionAbout(ctx, session, g.ID)
	if err != nil {
		return putQuestion{}, err
	}
	if ok && was.URL == asked.URL && was.Field == asked.Field {
		return putQuestion{Question: was, kept: true}, nil
	}
	return putQuestion{Question: asked}, l.opt.Engine.AskSession(ctx, asked)
}

// hears notes what the client is asked now, and how that ends if another process has
// the reply.
func (q *question) hears(nonce string, end context.CancelCauseFunc) {
	l := q.call.l
	l.mu.Lock()
	defer l.mu.Unlock()
	q.nonce, q.hear = nonce, end
}

// spend uses up the question and returns the outcome that stands: another process
// may have taken a reply before.
func (q *question) spend(ctx context.Context, asked *putQuestion, o outcome) (outcome, error) {
	e := q.call.l.opt.Engine
	if asked.Session == "" {
		if _, ok := o.(decided); ok {
			return o, nil
		}
		_, err := e.Spend(ctx, asked.ID, asked.Gate)
		return o, err
	}
	good, err := e.SettleQuestion(ctx, asked.Question, written(o))
	if err != nil || good {
		return o, err
	}
	text, ok, err := e.Outcome(ctx, asked.ID)
	if err != nil || !ok {
		return o, err
	}
	return readOutcome(text), nil
}

// withdraw keeps a reply to a question that was taken back from counting.
func (q *question) withdraw(ctx context.Context, asked *putQuestion) {
	if asked.Session == "" {
		return
	}
	if _, err := q.call.l.opt.Engine.SettleQuestion(context.WithoutCancel(ctx), asked.Question, written(withdrawn{})); err != nil {
		q.lost(ctx, "take a question back", err)
	}
}

// close takes the question back since its gate is no longer open, without a word to
// a client whose own reply closed it. The ladder's lock is held.
func (q *question) close(ctx context.Context) {
	nonce := q.nonce
	if q.call.client.Session == "" || nonce == "" {
		q.cancel(errClosed)
		return
	}
	ctx = context.WithoutCancel(ctx)
	q.call.l.start(func() {
		if _, ok, err := q.call.l.opt.Engine.Outcome(ctx, nonce); err == nil && ok {
			q.cancel(&elsewhereError{answered{}})
			return
		}
		q.cancel(errClosed)
	})
}

// stands waits until the gate is decided whose answer another process took. It is
// false if that does not come to pass, as after a crash.
func (q *question) stands(ctx context.Context) bool {
	tick := time.NewTicker(standEvery)
	defer tick.Stop()
	for range standTries {
		g, err := q.call.l.opt.Engine.Gate(ctx, q.form.gate.ID)
		if err != nil || g.Decision != "" {
			return true
		}
		select {
		case <-ctx.Done():
			return true
		case <-tick.C:
		}
	}
	return false
}

// Hear tells the ladder how questions of sessions were settled in other processes,
// as the engine's SessionNews has it. What it knows already changes nothing.
func (l *Ladder) Hear(settled map[string]string) {
	if len(settled) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.questions {
		if text, ok := settled[q.nonce]; ok && q.hear != nil {
			q.hear(&elsewhereError{readOutcome(text)})
		}
	}
}

// Take takes the reply to a question of the client's session for which no call of
// this process waits. Every rule that holds where it was asked holds here; whoever
// waits for it hears of the outcome by the store. A question that is settled already
// is left as it is.
func (l *Ladder) Take(ctx context.Context, c Client, p Policy, asked engine.Question, r Reply) error {
	call := l.Begin(c, p, asked.Run, func(string) {})
	if !p.elicits() { // the operator may have closed the rung since
		l.opt.Logger.InfoContext(ctx, "answer of a client not taken", slog.String("run", asked.Run), slog.String("gate", asked.Gate))
		return nil
	}
	g, err := l.opt.Engine.Gate(ctx, asked.Gate)
	if err != nil {
		return err
	}
	f := newForm(&g, Name{Field: asked.Field}, "")
	if asked.URL {
		f.url = "asked"
	}
	r.Sent = asked.Sent
	o := f.reply(r, p.MinHuman)
	good, err := l.opt.Engine.SettleQuestion(ctx, asked, written(o))
	if err != nil || !good {
		return err
	}
	if d, ok := o.(decided); ok {
		call.decide(ctx, &g, d.decision)
		return nil
	}
	l.opt.Logger.InfoContext(ctx, "gate not answered by the client", slog.String("run", asked.Run), slog.String("gate", asked.Gate), slog.String("outcome", written(o)))
	return nil
}

// A record is an outcome as the store keeps it, for other processes.
type record struct {
	Kind  string `json:"kind"`
	Why   string `json:"why,omitempty"`
	After int64  `json:"afterMs,omitempty"`
}

func written(o outcome) string {
	var r record
	switch o := o.(type) {
	case decided, answered:
		r.Kind = "answered"
	case withdrawn:
		r.Kind = "withdrawn"
	case cancelled:
		r.Kind = "cancelled"
	case visited:
		r.Kind = "visited"
	case invalid:
		r.Kind, r.Why = "invalid", o.why
	case reflex:
		r.Kind, r.After = "reflex", o.after.Milliseconds()
	case broken:
		r.Kind, r.Why = "broken", o.why
	}
	b, err := json.Marshal(r)
	if err != nil { // a record always encodes
		return ""
	}
	return string(b)
}

func readOutcome(text string) outcome {
	var r record
	if json.Unmarshal([]byte(text), &r) != nil {
		return broken{"the reply is not known"}
	}
	switch r.Kind {
	case "answered":
		return answered{}
	case "withdrawn":
		return withdrawn{}
	case "cancelled":
		return cancelled{}
	case "visited":
		return visited{}
	case "invalid":
		return invalid{r.Why}
	case "reflex":
		return reflex{time.Duration(r.After) * time.Millisecond}
	}
	return broken{r.Why}
}
