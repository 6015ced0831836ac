package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/access"
)

// metrics counts what runs of this process do. Labels carry the workflow, never a
// principal or a run.
type metrics struct {
	registry *prometheus.Registry

	runs, nodes, gates, decisions, turns, tokens, cost, tools *prometheus.CounterVec
	seconds                                                   *prometheus.HistogramVec
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "relavium", Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry:  prometheus.NewRegistry(),
		runs:      counter("runs_total", "Runs that ended, by how.", "workflow", "state"),
		nodes:     counter("nodes_total", "Nodes that settled, by how.", "workflow", "state"),
		gates:     counter("gates_opened_total", "Gates that opened; reason is empty for those of the file.", "workflow", "reason"),
		decisions: counter("gates_decided_total", "Gates that were decided, by what and where.", "workflow", "decision", "via"),
		turns:     counter("model_calls_total", "Calls of models, tries included.", "workflow", "model"),
		tokens:    counter("model_tokens_total", "Tokens of models.", "workflow", "model", "direction"),
		cost:      counter("model_cost_microcents_total", "Cost of model calls, in micro-cents (1e-8 USD).", "workflow", "model"),
		tools:     counter("tool_calls_total", "Tool calls of agents that returned.", "workflow", "tool", "success"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "relavium", Name: "run_seconds", Help: "How long runs took, waiting included.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 7200, 86400},
		}, []string{"workflow"}),
	}
	m.registry.MustRegister(m.runs, m.nodes, m.gates, m.decisions, m.turns, m.tokens, m.cost, m.tools, m.seconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watch adds what is measured when it is asked for.
func (m *metrics) watch(eng *engine.Engine) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "relavium", Name: "runs_active", Help: "Runs that execute in this process.",
	}, func() float64 { return float64(eng.Active()) }))
}

// observe is engine.Options.Observe.
func (m *metrics) observe(o engine.Observed) {
	ev := o.Event
	switch {
	case ev.Terminal():
		state := map[string]string{engine.RunCompleted: "completed", engine.RunFailed: "failed", engine.RunCancelled: "cancelled"}[ev.Type]
		m.runs.WithLabelValues(o.Workflow, state).Inc()
		if ev.DurationMS != nil {
			m.seconds.WithLabelValues(o.Workflow).Observe(float64(*ev.DurationMS) / 1000)
		}
	case ev.Settles():
		m.nodes.WithLabelValues(o.Workflow, ev.Type[len("node:"):]).Inc()
	case ev.Type == engine.GatePaused:
		m.gates.WithLabelValues(o.Workflow, ev.Reason).Inc()
	case ev.Type == engine.GateResumed:
		m.decisions.WithLabelValues(o.Workflow, ev.Decision, ev.Via).Inc()
	case ev.Type == engine.CostUpdated:
		m.turns.WithLabelValues(o.Workflow, ev.Model).Inc()
		m.tokens.WithLabelValues(o.Workflow, ev.Model, "input").Add(float64(value(ev.InputTokens)))
		m.tokens.WithLabelValues(o.Workflow, ev.Model, "output").Add(float64(value(ev.OutputTokens)))
		m.cost.WithLabelValues(o.Workflow, ev.Model).Add(float64(value(ev.Cost)))
	case ev.Type == engine.AgentToolResult && ev.Success != nil:
		m.tools.WithLabelValues(o.Workflow, ev.Tool, map[bool]string{true: "true", false: "false"}[*ev.Success]).Inc()
	}
}

// measure counts and serves metrics if there is an address for them. The caller calls
// stop, which waits until nothing is served any more.
func (a *app) measure(ctx context.Context, at *site, e *entrance, address string) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	m := newMetrics()
	ctx, cancel := context.WithCancel(ctx)
	done, err := a.serveMetrics(ctx, at, e, m, address)
	if err != nil {
		cancel()
		return nil, err
	}
	at.metrics = m
	return func() {
		cancel()
		<-done
	}, nil
}

// operators lets through who may read metrics.
func operators(who *access.Access, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i, refused := who.AdmitAny(r)
		if refused == nil && !i.Scopes.Ops() {
			refused = who.Forbidden(access.ScopeOps)
		}
		if refused == nil {
			next.ServeHTTP(w, r)
			return
		}
		if refused.Challenge != "" {
			w.Header().Set("WWW-Authenticate", refused.Challenge)
		}
		http.Error(w, refused.Text, refused.Status)
	})
}

// serveMetrics answers GET /metrics on an address of its own until ctx ends. Others
// than this machine's have to show that they may. done is closed when it has ended.
func (a *app) serveMetrics(ctx context.Context, at *site, e *entrance, m *metrics, address string) (done <-chan struct{}, err error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, invalid("", "--metrics-listen: expected HOST:PORT, such as 127.0.0.1:9464")
	}
	open := loopbackHost(host)
	switch {
	case open:
	case !e.known():
		return nil, invalid("listen on 127.0.0.1, or add --auth: then a token with "+access.ScopeOps+" reads metrics", "--metrics-listen: the address is not loopback and there is no authentication")
	case e.tls == nil && !e.behindProxy:
		return nil, invalid("add --tls-cert and --tls-key, or --behind-proxy where a proxy in front ends TLS", "--metrics-listen: the address is not loopback, and tokens would go over the network in clear")
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, invalid("choose another address for --metrics-listen", "metrics: %w", err)
	}
	shown := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
	scheme := "http"
	if !open {
		shown = operators(e.who, shown)
		if e.tls != nil {
			l, scheme = tls.NewListener(l, e.tls), "https"
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", shown)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		defer close(ended)
		defer stop()
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			at.log.WarnContext(ctx, "metrics are not served any more", "error", err)
		}
	}()
	at.log.InfoContext(ctx, "metrics", "url", scheme+"://"+l.Addr().String()+"/metrics")
	return ended, nil
}
