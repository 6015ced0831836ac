package models

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine/agent"
)

// drainLimit is how long the end of a complete stream is waited for, so that its
// connection can be used again.
const drainLimit = 250 * time.Millisecond

// An endpoint is one provider at its address.
type endpoint struct {
	provider string
	local    bool
	key      func(ctx context.Context, provider string) (string, error)
	client   *http.Client
	idle     time.Duration
	wire     wire
}

// address is where a provider is when nothing else is configured.
func address(provider string) string {
	switch provider {
	case Anthropic:
		return "https://api.anthropic.com"
	case Gemini:
		return "https://generativelanguage.googleapis.com"
	case DeepSeek:
		return "https://api.deepseek.com"
	}
	return "https://api.openai.com/v1"
}

func newEndpoint(name string, p Provider, opt *Options) (*endpoint, error) {
	base, own := p.BaseURL, p.BaseURL == ""
	if own {
		base = address(name)
	}
	target, err := egress.ParseTarget(base, p.AllowLocalEndpoint && !own)
	if err != nil {
		return nil, err
	}
	e := &endpoint{provider: name, local: target.Local(), key: opt.Key, idle: opt.Idle, client: egress.Client(target, opt.Egress)}
	e.client.Transport = &tether{next: e.client.Transport, auth: authHeader(name)}
	u := target.URL()
	u.RawQuery = ""
	base = strings.TrimSuffix(u.String(), "/")
	switch name {
	case Anthropic:
		e.wire = newAnthropic(base, e.client)
	case Gemini:
		e.wire = &gemini{base: base, client: e.client}
	default:
		e.wire = newOpenAI(name, base, own, e.client)
	}
	return e, nil
}

// authHeader is the header that carries the key, and what stands before the key in it.
func authHeader(provider string) [2]string {
	switch provider {
	case Anthropic:
		return [2]string{"X-Api-Key", ""}
	case Gemini:
		return [2]string{"X-Goog-Api-Key", ""}
	}
	return [2]string{"Authorization", "Bearer "}
}

// turn runs one turn and tells its failure in our own words.
func (e *endpoint) turn(ctx context.Context, req *agent.Request, delta func(agent.Delta)) (*agent.Turn, *agent.ModelError) {
	x := &exchange{idle: e.idle}
	a := &assembly{delta: delta, provider: req.Provider, seen: callIDs(req), x: x}
	key, err := e.key(ctx, e.provider)
	if (err != nil || key == "") && !e.local {
		f := failure{ctx: ctx, x: x, a: a}
		if f.cancelled() {
			return nil, f.tell(req, err)
		}
		return nil, &agent.ModelError{Kind: agent.Auth, Provider: req.Provider, Model: req.Model, Message: missingKey(e.provider), Err: err}
	}
	x.key = key
	inner, cancel := context.WithCancelCause(context.WithValue(ctx, exchangeKey{}, x))
	defer cancel(nil)
	x.cancel = cancel
	if err := e.wire.turn(inner, req, a); err != nil {
		return nil, failure{ctx: ctx, x: x, a: a}.tell(req, err)
	}
	return a.turn(), nil
}

// missingKey says where the key of a provider is expected.
func missingKey(provider string) string {
	return "no key is set: set " + KeyVariable(provider) + ", or run `relavium-serve secrets set provider/" + provider + "`"
}

// KeyVariable is the environment variable of a provider's key.
func KeyVariable(provider string) string {
	return "RELAVIUM_" + strings.ToUpper(provider) + "_API_KEY"
}

type exchangeKey struct{}

// An exchange is what one turn knows of its HTTP exchange that its SDK may not tell:
// the SDKs differ in what they keep of a status, a header and a broken body. A turn
// that asks again in another form begins it anew.
type exchange struct {
	key    string
	idle   time.Duration
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	status   int
	after    time.Duration
	said     string // the body of a status from 400 on
	broken   error  // that ended the request or its body
	complete bool   // the turn's last event has come
}

// errStalled is the cause of a stream that was silent for too long.
var errStalled = errors.New("the stream was silent for too long")

func (x *exchange) done() {
	x.mu.Lock()
	x.complete = true
	x.mu.Unlock()
}

func (x *exchange) isDone() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.complete
}

func (x *exchange) failed(err error) {
	x.mu.Lock()
	if x.broken == nil {
		x.broken = err
	}
	x.mu.Unlock()
}

// again forgets an answer that refused.
func (x *exchange) again() {
	x.mu.Lock()
	x.status, x.after, x.said, x.broken = 0, 0, "", nil
	x.mu.Unlock()
}

// A tether is the last hand on a request and the first on its answer: it lets only
// known headers out, attaches the key, and keeps in the exchange what happened.
type tether struct {
	next http.RoundTripper
	auth [2]string
}

// CloseIdleConnections lets http.Client's reach the transport.
func (t *tether) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip sends a request of a turn.
func (t *tether) RoundTrip(r *http.Request) (*http.Response, error) {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil, errors.New("models: a request outside a turn")
	}
	out := r.Clone(r.Context())
	out.Header = http.Header{"User-Agent": {"relavium-serve"}}
	for _, name := range []string{"Accept", "Content-Type", "Anthropic-Version"} {
		if v := r.Header.Get(name); v != "" {
			out.Header.Set(name, v)
		}
	}
	if x.key != "" {
		out.Header.Set(t.auth[0], t.auth[1]+x.key)
	}
	res, err := t.next.RoundTrip(out)
	if err != nil {
		x.failed(err)
		return nil, err
	}
	x.mu.Lock()
	x.status, x.after = res.StatusCode, retryAfter(res.Header, time.Now())
	x.mu.Unlock()
	if res.StatusCode >= http.StatusBadRequest {
		b, err := io.ReadAll(res.Body) // egress bounds it
		x.mu.Lock()
		x.said = string(b)
		x.mu.Unlock()
		if err = errors.Join(err, res.Body.Close()); err != nil && len(b) == 0 {
			x.failed(err)
		}
		res.Body = io.NopCloser(bytes.NewReader(b))
		return res, nil
	}
	res.Body = watch(res.Body, x)
	return res, nil
}

// A watched body tells its exchange how it ended and ends the turn when it is silent.
// A read error is kept there and told to the SDK as the end: what matters is whether
// the last event had come.
type watched struct {
	body  io.ReadCloser
	x     *exchange
	timer *time.Timer
	once  sync.Once
	ended bool
}

func watch(body io.ReadCloser, x *exchange) *watched {
	w := &watched{body: body, x: x}
	w.timer = time.AfterFunc(x.idle, func() {
		x.failed(errStalled)
		x.cancel(errStalled)
	})
	return w
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.body.Read(p)
	if n > 0 {
		w.timer.Reset(w.x.idle)
	}
	if err != nil {
		w.ended = true
		if !errors.Is(err, io.EOF) {
			w.x.failed(err)
		}
		err = io.EOF
	}
	return n, err
}

// Close ends the body. What is left of a complete one is read, if it comes at once.
func (w *watched) Close() error {
	w.once.Do(func() {
		if !w.ended && w.x.isDone() {
			w.timer.Reset(drainLimit)
			_, _ = io.CopyN(io.Discard, w.body, 4<<10)
		}
		w.timer.Stop()
		if err := w.body.Close(); err != nil {
			w.x.failed(err)
		}
	})
	return nil
}
