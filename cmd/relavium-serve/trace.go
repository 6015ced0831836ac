package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// flushGrace bounds the sending of the last spans.
	flushGrace = 2 * time.Second
	// eofLimit and signalLimit are how soon the process is gone after the end of the
	// input and after a signal.
	eofLimit, signalLimit = 1980 * time.Millisecond, 9900 * time.Millisecond
	// leastFlush is what is left for the last spans where everything else took its time.
	leastFlush = 30 * time.Millisecond
	// batchDelay is how long spans wait for more of them, unless OTEL_BSP_SCHEDULE_DELAY says so.
	batchDelay = time.Second
	// exportTimeout bounds one request to the collector, unless OTEL_EXPORTER_OTLP_TIMEOUT does.
	exportTimeout = 10 * time.Second
	// complainEvery is how often the log tells that spans are lost.
	complainEvery = time.Minute
)

const traceFlag = "trace-endpoint"

const traceHelp = "send traces to this OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318"

// A tracer makes spans and sends them.
type tracer struct {
	trace.Tracer

	provider *sdktrace.TracerProvider
	end      context.CancelFunc // of whatever still exports
	client   *http.Client
	log      *slog.Logger
	ending   ending
}

// traceTo makes the site trace if there is an address to send traces to. The caller
// calls stop when nothing is traced any more.
func (a *app) traceTo(ctx context.Context, at *site, flag string) (stop func(), err error) {
	address, from := flag, "--"+traceFlag
	if address == "" {
		address, from = value(at.Serve.TraceEndpoint), "[serve] trace_endpoint"
	}
	if address == "" {
		return func() {}, nil
	}
	endpoint, err := collector(address, from)
	if err != nil {
		return nil, err
	}
	client, err := a.collectorClient()
	if err != nil {
		return nil, err
	}
	otel.SetLogger(logr.Discard()) // it would write values of the environment to the standard error
	log := at.log
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.WarnContext(ctx, "tracing", "error", oneLine(err.Error(), maxTold))
	}))
	t := &tracer{client: client, log: log}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	t.end = end
	sender, err := otlptracehttp.New(life, otlptracehttp.WithEndpointURL(endpoint), otlptracehttp.WithHTTPClient(client))
	if err != nil {
		end()
		return nil, invalid("", "%s: %w", from, err)
	}
	told, err := resource.New(life, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "relavium-serve"), attribute.String("service.version", readVersion().Version),
		attribute.String("service.instance.id", uuid.NewString()),
	), resource.WithFromEnv())
	if err != nil {
		at.log.WarnContext(ctx, "OTEL_RESOURCE_ATTRIBUTES is not taken as it is", "error", oneLine(err.Error(), maxTold))
	}
	var batch []sdktrace.BatchSpanProcessorOption
	if a.env["OTEL_BSP_SCHEDULE_DELAY"] == "" {
		batch = append(batch, sdktrace.WithBatchTimeout(batchDelay))
	}
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithResource(told),
		sdktrace.WithBatcher(&exporter{SpanExporter: sender, life: life, log: at.log}, batch...),
	)
	t.Tracer = t.provider.Tracer("github.com/relavium/relavium-serve", trace.WithInstrumentationVersion(readVersion().Version))
	context.AfterFunc(ctx, func() { t.ending.begin(signalLimit) })
	at.log = slog.New(spanHandler{at.log.Handler()})
	at.tracer = t
	at.log.InfoContext(ctx, "traces are sent", "to", endpoint)
	return func() { t.stop(context.WithoutCancel(ctx)) }, nil
}

// collector is the URL that spans are posted to.
func collector(address, from string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", invalid("", "%s: expected the URL of a collector, such as http://127.0.0.1:4318", from)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", invalid("set OTEL_EXPORTER_OTLP_HEADERS for what the collector wants to know", "%s: expected a URL without user, query and fragment", from)
	case u.Path == "" || u.Path == "/":
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

// collectorClient reaches the address that the operator set and no other: it follows
// no redirect. What OTEL_EXPORTER_OTLP_* say of TLS and time holds.
func (a *app) collectorClient() (*http.Client, error) {
	said := func(name string) string {
		return cmp.Or(a.env["OTEL_EXPORTER_OTLP_TRACES_"+name], a.env["OTEL_EXPORTER_OTLP_"+name])
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := said("CERTIFICATE"); file != "" {
		config.RootCAs = x509.NewCertPool()
		if pem, err := os.ReadFile(file); err != nil || !config.RootCAs.AppendCertsFromPEM(pem) { //nolint:gosec // the operator's own file
			return nil, invalid("", "OTEL_EXPORTER_OTLP_CERTIFICATE: not a file of certificates in PEM")
		}
	}
	if cert, key := said("CLIENT_CERTIFICATE"), said("CLIENT_KEY"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, invalid("", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, OTEL_EXPORTER_OTLP_CLIENT_KEY: not a certificate in PEM with its key")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	timeout := exportTimeout
	if ms, err := strconv.Atoi(said("TIMEOUT")); err == nil && ms > 0 {
		timeout = time.Duration(ms) * time.Millisecond
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 5 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       timeout,
	}, nil
}

// stop sends what is left, as far as the time of a process goes that ends.
func (t *tracer) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, t.ending.left())
	defer cancel()
	defer context.AfterFunc(ctx, t.end)() // what would still export gives up
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.WarnContext(ctx, "the last spans were not sent in time", "error", oneLine(err.Error(), maxTold))
	}
	t.end()
	t.client.CloseIdleConnections()
}

// An ending knows until when the process has to be gone.
type ending struct{ until atomic.Pointer[time.Time] }

func (e *ending) begin(limit time.Duration) {
	until := time.Now().Add(limit)
	e.until.CompareAndSwap(nil, &until)
}

// left is the time for sending the last spans.
func (e *ending) left() time.Duration {
	until := e.until.Load()
	if until == nil {
		return flushGrace
	}
	return min(flushGrace, max(time.Until(*until), leastFlush))
}

// input notes when the input ends.
func (t *tracer) input(in io.Reader) io.Reader {
	if t == nil {
		return in
	}
	return &endingInput{Reader: in, ending: &t.ending}
}

type endingInput struct {
	io.Reader
	ending *ending
}

func (in *endingInput) Read(p []byte) (int, error) {
	n, err := in.Reader.Read(p)
	if err != nil {
		in.ending.begin(eofLimit)
	}
	return n, err //nolint:wrapcheck // the reader's own
}

// spans is what makes spans for those who know nothing of sending them; nil makes none.
func (t *tracer) spans() trace.Tracer {
	if t == nil {
		return nil
	}
	return t.Tracer
}

// maxTold bounds what the log tells of a failure, in characters: a collector's answer
// is part of it.
const maxTold = 300

// An exporter sends spans; where that fails they are lost, which the log tells now
// and then. It never fails and ends with life.
type exporter struct {
	sdktrace.SpanExporter
	life context.Context //nolint:containedctx // what still exports when the time is up has no other
	log  *slog.Logger

	mu   sync.Mutex
	told time.Time
	lost int
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)() //nolint:contextcheck // it ends ctx, which comes from the caller
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		if e.lost > 0 && !e.told.IsZero() {
			e.log.InfoContext(ctx, "the collector takes spans again", "lost", e.lost)
		}
		e.lost, e.told = 0, time.Time{}
		return nil
	}
	e.lost += len(spans)
	if now := time.Now(); now.Sub(e.told) >= complainEvery {
		e.told = now
		e.log.WarnContext(ctx, "the collector does not take spans", "lost", e.lost, "error", oneLine(err.Error(), maxTold))
	}
	return nil
}

// spanHandler adds to log lines in which trace they stand.
type spanHandler struct{ slog.Handler }

func (h spanHandler) Handle(ctx context.Context, r slog.Record) error { //nolint:gocritic // as slog wants it
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h spanHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return spanHandler{h.Handler.WithAttrs(attrs)}
}

func (h spanHandler) WithGroup(name string) slog.Handler {
	return spanHandler{h.Handler.WithGroup(name)}
}

// command begins the span of a command that starts a run; the caller ends it.
func (t *tracer) command(ctx context.Context, name, workflow string) (traced context.Context, end func()) {
	if t == nil {
		return ctx, func() {}
	}
	ctx, span := t.Start(ctx, name, trace.WithAttributes(attribute.String("gen_ai.workflow.name", workflow)))
	return ctx, func() { span.End() }
}
