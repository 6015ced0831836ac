package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// How long the chain waits (format 2.3, 12.4).
const (
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = 30 * time.Second
	parkFor      = time.Second      // a rate-limited provider that does not say how long
	maxPark      = 30 * time.Second // whatever it says
)

// maxReply bounds a turn as it is kept; the engine keeps no larger value.
const maxReply = 4 << 20

// A candidate is one model of the chain.
type candidate struct {
	provider, model string
	tries           int
}

// chainOf lists the models in the order in which they are tried: the primary once,
// then each fallback as often as it says (format 2.3).
func (l *loop) chainOf() []candidate {
	primary := candidate{provider: l.agent.Provider, model: l.agent.Model, tries: 1}
	if l.spec.Model != "" {
		primary.model = l.spec.Model
	}
	chain := []candidate{primary}
	for _, f := range l.agent.Fallback {
		chain = append(chain, candidate{provider: f.Provider, model: f.Model, tries: max(f.MaxAttempts, 1)})
	}
	return chain
}

// turn runs one model turn on the first model of the chain that answers. All tries
// have the same place and ask for the same thing.
func (l *loop) turn(ctx context.Context) (*reply, error) {
	if l.turns == maxTurns {
		return nil, &engine.RunError{Code: engine.CodeTurnLimit, Message: fmt.Sprintf("the agent took %d model turns without an answer", maxTurns)}
	}
	l.turns++
	request, err := l.talk.request()
	if err != nil {
		return nil, err
	}
	place, attempt := l.take(1), 0
	var last *ModelError
	for i, c := range l.chain {
		if l.d.parkedFor(c.provider) > 0 && l.othersAfter(i) {
			continue
		}
		for try := range c.tries {
			wait := l.d.parkedFor(c.provider)
			if try > 0 {
				wait = max(l.asked(last), backoff(try))
			}
			if err := pause(ctx, wait); err != nil {
				return nil, err
			}
			attempt++
			r, err := l.try(ctx, place, attempt, c, request)
			if err == nil {
				return r, nil
			}
			failed, ok := errors.AsType[*ModelError](err)
			if !ok || ctx.Err() != nil {
				return nil, err
			}
			last = failed
			if failed.Kind == RateLimit {
				l.d.park(c.provider, failed.RetryAfter)
			}
			if failed.Streamed || !failed.Kind.Retryable() {
				return nil, failed
			}
		}
	}
	return nil, last
}

// backoff is the wait before the n-th repetition of one model.
func backoff(n int) time.Duration {
	if n > 8 {
		return maxBackoff
	}
	return min(firstBackoff<<(n-1), maxBackoff)
}

// asked is how long the provider of the last failure wants to be left alone.
func (l *loop) asked(last *ModelError) time.Duration {
	if last == nil {
		return 0
	}
	return min(last.RetryAfter, maxPark)
}

// othersAfter reports whether a model behind i in the chain may be asked now.
func (l *loop) othersAfter(i int) bool {
	for _, c := range l.chain[i+1:] {
		if l.d.parkedFor(c.provider) == 0 {
			return true
		}
	}
	return false
}

// park leaves a provider alone for as long as it asks, within bounds.
func (d *dispatch) park(provider string, asked time.Duration) {
	if asked <= 0 {
		asked = parkFor
	}
	d.parked[provider] = d.opt.Now().Add(min(asked, maxPark))
}

func (d *dispatch) parkedFor(provider string) time.Duration {
	until, ok := d.parked[provider]
	if !ok {
		return 0
	}
	return max(until.Sub(d.opt.Now()), 0)
}

// try asks one model once.
func (l *loop) try(ctx context.Context, place, attempt int, c candidate, request json.RawMessage) (*reply, error) {
	req := &Request{
		Provider: c.provider, Model: c.model, System: l.system, Messages: l.talk.forProvider(c.provider), Tools: l.grant.specs,
		Temperature: l.agent.Temperature, MaxTokens: l.agent.MaxTokens, Effort: l.agent.ReasoningEffort,
		Schema: l.schema, SchemaName: l.node.ID,
	}
	if l.spec.Temperature != "" {
		req.Temperature = l.spec.Temperature
	}
	if l.spec.MaxTokens > 0 {
		req.MaxTokens = l.spec.MaxTokens
	}
	if l.schema == nil {
		req.SchemaName = ""
	}
	price, priced := l.d.opt.Models.Price(c.provider, c.model)
	sent := l.talk.size + l.grant.size + len(l.schema)
	effect := engine.Effect{
		Path: l.path, N: place, Kind: engine.EffectTurn, Name: c.model, Request: request, Repeatable: true,
	}
	if priced {
		answer := req.MaxTokens
		if answer == 0 {
			answer = l.d.opt.MaxTokensEstimate
		}
		effect.Estimate = estimate(sent, answer, price)
	}
	res, err := l.d.call.Do(ctx, effect, func(ctx context.Context, _ string) (engine.EffectResult, error) {
		if !priced {
			l.d.warnUnpriced(ctx, c.model)
		}
		out := newStream(l.d.call.Emit, l.d.opt.ScrubStream, c.model, attempt)
		defer func() { out.close() }()
		turn, err := l.d.opt.Models.Turn(ctx, req, out.delta)
		came := out.close()
		if failed, ok := errors.AsType[*ModelError](err); ok {
			failed.Usage = failed.Usage.atLeast(sent, came)
		}
		traceTurn(ctx, req, attempt, turn, err)
		return l.d.turned(ctx, turn, err, c, attempt, price, priced)
	})
	l.d.count(res.Tokens)
	if err != nil {
		return nil, err
	}
	r := new(reply)
	if err := json.Unmarshal(res.Value, r); err != nil {
		return nil, fmt.Errorf("agent: recorded turn: %w", err)
	}
	r.identify(l.path, place+1, l.ids)
	return r, nil
}

// turned is what a try comes to: its reply, or why it has none, and what it used.
func (d *dispatch) turned(ctx context.Context, turn *Turn, err error, c candidate, attempt int, price Price, priced bool) (engine.EffectResult, error) {
	var used Usage
	failed, isModel := errors.AsType[*ModelError](err)
	switch {
	case isModel:
		used = failed.Usage
	case err == nil && turn == nil:
		err = errors.New("agent: the model returned no turn")
	case err == nil:
		used = turn.Usage
	}
	result := engine.EffectResult{Tokens: used.tokens(c.model)}
	if priced {
		result.Cost = cost(used, price)
	}
	said := engine.Event{
		Type: engine.CostUpdated, Model: c.model, Attempt: later(attempt),
		InputTokens: &result.Tokens.Input, OutputTokens: &result.Tokens.Output, Cost: &result.Cost,
	}
	if !priced {
		said.Priced = new(false)
	}
	result.Said = []engine.Event{said}
	if err != nil {
		level := slog.LevelWarn
		if ctx.Err() != nil {
			level = slog.LevelDebug // it was given up
		}
		d.log.LogAttrs(ctx, level, "model turn failed", slog.String("provider", c.provider), slog.String("model", c.model),
			slog.Int("attempt", attempt), slog.String("error", d.causes(err)))
		return result, err
	}
	r := newReply(turn, d.opt.Scrub)
	r.Provider, r.Model, r.Attempt = c.provider, c.model, attempt
	if result.Value, err = encode(r); err != nil {
		return result, fmt.Errorf("agent: turn: %w", err)
	}
	if len(result.Value) > maxReply {
		return result, &engine.RunError{Code: engine.CodeValidation, Message: "the model's reply is larger than 4 MiB"}
	}
	return result, nil
}

// causes is an error with what lies below it, for the log.
func (d *dispatch) causes(err error) string {
	text := err.Error()
	if m, ok := errors.AsType[*ModelError](err); ok && m.Err != nil {
		text += ": " + m.Err.Error()
	}
	return d.safe(text)
}

// warnUnpriced says once in a dispatch that a model's cost is not known.
func (d *dispatch) warnUnpriced(ctx context.Context, model string) {
	d.mu.Lock()
	seen := d.warned[model]
	d.warned[model] = true
	d.mu.Unlock()
	if !seen {
		d.log.LogAttrs(ctx, slog.LevelWarn, "the price of the model is not known: its cost counts as 0 and no budget holds it; set [prices] for it",
			slog.String("model", model))
	}
}
