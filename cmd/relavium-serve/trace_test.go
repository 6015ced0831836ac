package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

func TestCollector(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"http://127.0.0.1:4318":           "http://127.0.0.1:4318/v1/traces",
		"https://collector.example/":      "https://collector.example/v1/traces",
		"https://collector.example/in/it": "https://collector.example/in/it",
		"127.0.0.1:4318":                  "",
		"grpc://127.0.0.1:4317":           "",
		"http://":                         "",
		"http://user:pass@127.0.0.1:4318": "",
		"http://127.0.0.1:4318?key=1":     "",
		"http://127.0.0.1:4318#part":      "",
		"file:///etc/passwd":              "",
	} {
		got, err := collector(address, "--trace-endpoint")
		if got != want || (err != nil) != (want == "") {
			t.Errorf("collector(%q) = %q, %v, want %q", address, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "pass") {
			t.Errorf("collector(%q) tells the password: %v", address, err)
		}
	}
}

// lockedBuffer may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startTracer traces to an address; logged is what it says.
func startTracer(t *testing.T, ctx context.Context, address string, environ ...string) (at *site, stop func(), logged *lockedBuffer) { //nolint:revive // ctx is what the test ends
	t.Helper()
	logged = new(lockedBuffer)
	a := &app{shell: newShell(strings.NewReader(""), io.Discard, logged, environ)}
	at = &site{settings: &settings{}, log: a.logger(slog.LevelInfo)}
	stop, err := a.traceTo(ctx, at, address)
	if err != nil {
		t.Fatal(err)
	}
	return at, stop, logged
}

// The last spans have 2 s to go out, and less where the process was told to end before.
func TestTracerTime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end  func(*tracer)
		want time.Duration
	}{
		"of itself":           {func(*tracer) {}, flushGrace},
		"just after EOF":      {func(t *tracer) { _, _ = t.input(iotest.ErrReader(io.EOF)).Read(nil) }, eofLimit},
		"a second after":      {func(t *tracer) { _, _ = t.input(iotest.ErrReader(io.EOF)).Read(nil); <-time.After(time.Second) }, eofLimit - time.Second},
		"long after EOF":      {func(t *tracer) { _, _ = t.input(iotest.ErrReader(io.EOF)).Read(nil); <-time.After(time.Minute) }, leastFlush},
		"just after a signal": {func(t *tracer) { t.ending.begin(signalLimit) }, flushGrace},
		"long after a signal": {func(t *tracer) { t.ending.begin(signalLimit); <-time.After(9 * time.Second) }, signalLimit - 9*time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := new(tracer)
			tt.end(tr)
			if got := tr.ending.left(); got != tt.want {
				t.Errorf("%s: the last spans have %v, want %v", name, got, tt.want)
			}
		})
	}
}

// A collector that never answers holds nothing up for longer, and the log tells of it.
func TestTracerStops(t *testing.T) {
	release := make(chan struct{})
	mute := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer mute.Close()
	defer close(release)
	for name, tt := range map[string]struct {
		end   func(t *tracer)
		least time.Duration
	}{
		"of itself":      {func(*tracer) {}, flushGrace},
		"long after EOF": {func(t *tracer) { until := time.Now().Add(-time.Minute); t.ending.until.Store(&until) }, 0},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		at, stop, logged := startTracer(t, ctx, mute.URL)
		_, end := at.tracer.command(ctx, "run x", "x")
		end()
		tt.end(at.tracer)
		began := time.Now()
		stop()
		cancel()
		if took := time.Since(began); took < tt.least {
			t.Errorf("%s: stop took %v, want %v", name, took, tt.least)
		}
		if !strings.Contains(logged.String(), "the last spans were not sent in time") {
			t.Errorf("%s: the log does not tell that spans are lost: %s", name, logged)
		}
	}
}

// A collector may have a certificate of its own, by the variables of OpenTelemetry.
func TestTracerTLS(t *testing.T) {
	var got atomic.Bool
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Store(true) }))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, environ := range map[string][]string{
		"unknown": nil,
		"named":   {"OTEL_EXPORTER_OTLP_CERTIFICATE=" + file},
		"traces":  {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE=" + file, "OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere"},
	} {
		got.Store(false)
		at, stop, logged := startTracer(t, t.Context(), s.URL, environ...)
		_, end := at.tracer.command(t.Context(), "run x", "x")
		end()
		if err := at.tracer.provider.ForceFlush(t.Context()); err != nil { // stop has no time for a slow machine
			t.Errorf("%s: ForceFlush = %v", name, err)
		}
		stop()
		if sent := got.Load(); sent != (environ != nil) || sent == strings.Contains(logged.String(), "the collector does not take spans") {
			t.Errorf("%s: spans were sent: %v; %s", name, sent, logged)
		}
	}
	a := &app{shell: newShell(nil, nil, io.Discard, []string{"OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere"})}
	if _, err := a.collectorClient(); err == nil || strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("a certificate that is not there: %v, want an error without its path", err)
	}
}
