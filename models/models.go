package models

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine/agent"
)

// The providers.
const (
	Anthropic = "anthropic"
	OpenAI    = "openai"
	Gemini    = "gemini"
	DeepSeek  = "deepseek"
)

// Names returns the providers in the order of the alphabet.
func Names() []string { return []string{Anthropic, DeepSeek, Gemini, OpenAI} }

const (
	headerLimit = 10 * time.Minute // until an answer begins, for a turn without a deadline
	idleLimit   = 5 * time.Minute  // without a byte of a stream
	maxTurn     = 4 << 20          // bytes of one turn's content; no more of one is kept
	maxCalls    = 256              // tool calls of one turn
	maxText     = 2 << 10          // bytes of a provider's text in an error
)

// A Provider is where a provider is reached.
type Provider struct {
	// BaseURL is that of the API; "" is the provider's own. For anthropic and gemini
	// it is without the version, for the others with it if there is one.
	BaseURL string
	// AllowLocalEndpoint lets BaseURL be plain http and local, and then it must be
	// local. Such an endpoint is also asked without a key if there is none.
	AllowLocalEndpoint bool
}

// Options configure Models.
type Options struct {
	// Providers holds what differs from the provider's own address.
	Providers map[string]Provider
	// Key returns a provider's key when a turn needs it. "" and an error both mean
	// that there is none. Required.
	Key func(ctx context.Context, provider string) (string, error)
	// Prices are added to the table, by model id, and win over it.
	Prices map[string]agent.Price
	// Egress tunes the clients. Its Timeout is for turns without a deadline: until the
	// answer begins; zero is ten minutes.
	Egress egress.Options
	// Idle is how long a stream may be silent. Zero is five minutes.
	Idle time.Duration
	// Log gets what providers said when a turn failed, at debug. Nil drops it.
	Log *slog.Logger
}

// Models runs model turns. It is safe for concurrent use and has nothing to close but
// idle connections; see CloseIdle.
type Models struct {
	endpoints map[string]*endpoint
	prices    atomic.Pointer[map[string]agent.Price]
	log       *slog.Logger
}

// A wire asks one endpoint for a turn. What it collected of the answer is in a also
// when it returns an error, which is as the SDK gave it or a *agent.ModelError
// without provider and model.
type wire interface {
	turn(ctx context.Context, req *agent.Request, a *assembly) error
}

// New returns Models. It opens no connection. An address that the policy refuses is
// an error that names the provider.
func New(opt Options) (*Models, error) {
	if opt.Key == nil {
		return nil, errors.New("models: Options.Key is required")
	}
	for name := range opt.Providers {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("models: no provider %q: there are %s", name, strings.Join(Names(), ", "))
		}
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Egress.Timeout <= 0 {
		opt.Egress.Timeout = headerLimit
	}
	if opt.Idle <= 0 {
		opt.Idle = idleLimit
	}
	m := &Models{endpoints: map[string]*endpoint{}, log: opt.Log}
	m.SetPrices(opt.Prices)
	for _, name := range Names() {
		e, err := newEndpoint(name, opt.Providers[name], &opt)
		if err != nil {
			return nil, fmt.Errorf("models: %s: %w", name, err)
		}
		m.endpoints[name] = e
	}
	return m, nil
}

// SetPrices puts other prices in place of Options.Prices. Turns that end from now on
// cost by them.
func (m *Models) SetPrices(prices map[string]agent.Price) {
	table := priceTable()
	maps.Copy(table, prices)
	m.prices.Store(&table)
}

// CloseIdle ends the connections that no turn holds.
func (m *Models) CloseIdle() {
	for _, e := range m.endpoints {
		e.client.CloseIdleConnections()
	}
}

// Turn runs one turn of one model; see agent.Models.
func (m *Models) Turn(ctx context.Context, req *agent.Request, delta func(agent.Delta)) (*agent.Turn, error) {
	e, ok := m.endpoints[req.Provider]
	if !ok {
		return nil, &agent.ModelError{Kind: agent.BadRequest, Provider: req.Provider, Model: req.Model, Message: "there is no such provider"}
	}
	turn, err := e.turn(ctx, req, delta)
	if err != nil {
		m.log.DebugContext(ctx, "model turn failed", "provider", req.Provider, "model", req.Model,
			"kind", err.Kind, "status", err.Status, "streamed", err.Streamed, "said", err.Err)
		return nil, err
	}
	return turn, nil
}
