package publish_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// traced makes a server whose calls and runs are traced.
func traced(tb testing.TB, list ...publish.Workflow) (*publish.Server, *engine.Engine, *tracetest.SpanRecorder) {
	tb.Helper()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	s, e, _ := newServer(tb, func(o *publish.Options) {
		o.Tracer = tracer
		o.Engine = openEngine(tb, filepath.Join(tb.TempDir(), "traced.db"), func(o *engine.Options) { o.Tracer = tracer })
	}, list...)
	return s, e, spans
}

// awaitSpan waits for the n-th span of a name, from 1, to end.
func awaitSpan(tb testing.TB, spans *tracetest.SpanRecorder, name string, n int) sdktrace.ReadOnlySpan {
	tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		left := n
		var names []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
			if s.Name() == name {
				if left--; left == 0 {
					return s
				}
			}
		}
		select {
		case <-tick.C:
		case <-timer.C:
			tb.Fatalf("span %q is not ended %d times; ended are %q", name, n, names)
		}
	}
}

func attributeOf(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, kv := range s.Attributes() {
		if kv.Key == key {
			return kv.Value.String()
		}
	}
	return ""
}

// What a caller says of its trace is taken where it follows W3C Trace Context, and
// never fails a call.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	const id, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	long := strings.TrimSuffix(strings.Repeat("a=b,", 10)+strings.Repeat("c=d,", 200), ",")
	for name, tt := range map[string]struct {
		meta  string
		taken bool
		state string
	}{
		"as it should be":     {`"traceparent":"00-` + id + `-` + span + `-01"`, true, ""},
		"not sampled":         {`"traceparent":"00-` + id + `-` + span + `-00"`, true, ""},
		"with a state":        {`"traceparent":"00-` + id + `-` + span + `-01","tracestate":"a=b,c=d"`, true, "a=b,c=d"},
		"a state too long":    {`"traceparent":"00-` + id + `-` + span + `-01","tracestate":"` + long + `"`, true, ""},
		"a broken state":      {`"traceparent":"00-` + id + `-` + span + `-01","tracestate":"a b"`, true, ""},
		"a state alone":       {`"tracestate":"a=b"`, false, ""},
		"a later version":     {`"traceparent":"01-` + id + `-` + span + `-01-more"`, true, ""},
		"version ff":          {`"traceparent":"ff-` + id + `-` + span + `-01"`, false, ""},
		"upper case":          {`"traceparent":"00-` + strings.ToUpper(id) + `-` + span + `-01"`, false, ""},
		"a trace of zeros":    {`"traceparent":"00-` + strings.Repeat("0", 32) + `-` + span + `-01"`, false, ""},
		"a span of zeros":     {`"traceparent":"00-` + id + `-0000000000000000-01"`, false, ""},
		"too short":           {`"traceparent":"00-` + id[:31] + `-` + span + `-01"`, false, ""},
		"more than it may be": {`"traceparent":"00-` + id + `-` + span + `-01-more"`, false, ""},
		"far too long":        {`"traceparent":"01-` + id + `-` + span + `-01-` + strings.Repeat("x", 4096) + `"`, false, ""},
		"not a string":        {`"traceparent":["00-` + id + `-` + span + `-01"]`, false, ""},
		"another name":        {`"Traceparent":"00-` + id + `-` + span + `-01"`, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, e, spans := traced(t, shaped(t, "echo", "", "1"))
			c := connect(t, s)
			c.initialize(legacy, "probe")
			res := c.callResult("relavium_echo", `,"_meta":{`+tt.meta+`}`)
			if res.IsError {
				t.Fatalf("the call = %+v", res)
			}
			r, err := e.Run(t.Context(), runOf(res), "")
			if err != nil {
				t.Fatal(err)
			}
			of := r.Span()
			if got := of.TraceID().String() == id; got != tt.taken || of.TraceState().String() != tt.state {
				t.Errorf("the run is in trace %s with state %q, want taken: %v, state %q", of.TraceID(), of.TraceState(), tt.taken, tt.state)
			}
			if !tt.taken || of.IsSampled() {
				call := awaitSpan(t, spans, "tools/call relavium_echo", 1)
				if got := call.Parent().SpanID().String() == span; got != tt.taken {
					t.Errorf("the call is below %s, want below the caller's: %v", call.Parent().SpanID(), tt.taken)
				}
			} else if n := len(spans.Ended()); n != 0 {
				t.Errorf("%d spans of a trace that its caller does not sample, want none", n)
			}
		})
	}
}

// Calls that come to a run which another one started are linked to it, and what
// somebody decides there is a span of its own.
func TestTraceOfFollowers(t *testing.T) {
	t.Parallel()
	s, e, spans := traced(t, gated(t, "deploy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	key := `,"_meta":{"relavium/idempotencyKey":"k"}`
	c.call("1", "relavium_deploy", key)
	run, gate := openGate(c)
	c.call("2", "relavium_deploy", key)
	openGate(c)
	c.callResult("relavium_run_status", `,"arguments":{"run":"`+run+`"}`)
	decide(t, e, gate, engine.Approved)
	if _, err := e.Decide(t.Context(), gate, engine.Decision{Decision: engine.Rejected, By: "cli", Via: engine.ViaCLI}); err == nil {
		t.Error("a second decision was taken")
	}
	for range 2 {
		c.until(func(m wire) bool { return string(m.ID) == "1" || string(m.ID) == "2" })
	}

	r, err := e.Run(t.Context(), run, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"relavium_deploy", "relavium_run_status"} {
		for n := range 2 {
			span := awaitSpan(t, spans, "tools/call "+name, 1)
			if name == "relavium_deploy" {
				span = awaitSpan(t, spans, "tools/call "+name, n+1)
			}
			if attributeOf(span, engine.SpanRun) != run {
				t.Errorf("the span of %s names run %q, want %s", name, attributeOf(span, engine.SpanRun), run)
			}
			own := span.SpanContext().SpanID() == r.Span().SpanID()
			if linked := len(span.Links()) == 1 && span.Links()[0].SpanContext.TraceID() == r.Span().TraceID(); linked == own {
				t.Errorf("the span of %s is linked to its run: %v, and is its own: %v", name, linked, own)
			}
		}
	}
	taken, late := awaitSpan(t, spans, "decide gate", 1), awaitSpan(t, spans, "decide gate", 2)
	if taken.SpanContext().TraceID() != r.Span().TraceID() || attributeOf(taken, "relavium.gate.decision") != engine.Approved || attributeOf(taken, engine.SpanError) != "" {
		t.Errorf("the decision's span has %v", taken.Attributes())
	}
	if attributeOf(late, engine.SpanError) != "decided_before" {
		t.Errorf("the span of the decision that came late has %v", late.Attributes())
	}
	if got := awaitSpan(t, spans, "human_gate ask", 2); attributeOf(got, "relavium.gate.via") != engine.ViaCLI {
		t.Errorf("the gate's span has %v", got.Attributes())
	}
}

// A task is its run, and each request about it is linked to that.
func TestTraceOfTasks(t *testing.T) {
	t.Parallel()
	s, e, spans := traced(t, gated(t, "deploy", time.Hour))
	p := poller{site: listen(t, s, publish.HTTPOptions{}), declares: declaresBoth}
	id := p.create("relavium_deploy", "").TaskID
	p.get(id)
	p.cancel(id)
	r, err := e.Run(t.Context(), id, "")
	if err != nil {
		t.Fatal(err)
	}
	if call := awaitSpan(t, spans, "tools/call relavium_deploy", 1); call.SpanContext().SpanID() != r.Span().SpanID() || attributeOf(call, engine.SpanRun) != id {
		t.Errorf("the run belongs to %s, want to the call %s", r.Span().SpanID(), call.SpanContext().SpanID())
	}
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		span := awaitSpan(t, spans, method, 1)
		if attributeOf(span, engine.SpanRun) != id || len(span.Links()) != 1 || span.Links()[0].SpanContext.SpanID() != r.Span().SpanID() {
			t.Errorf("the span of %s names run %q with links %v", method, attributeOf(span, engine.SpanRun), span.Links())
		}
	}
}

// A call that goes wrong says so by its code, and by nothing that it was given.
func TestTraceOfFailures(t *testing.T) {
	t.Parallel()
	const told = "told-5b1e"
	s, _, spans := traced(t, shaped(t, "breaks", "  inputs:\n    - { name: n, type: string }\n", "missing.inputs"))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.callResult("relavium_breaks", `,"arguments":{"n":"`+told+`"}`)
	c.callResult("relavium_breaks", `,"arguments":{"`+told+`":1}`)
	c.call("8", told, "")
	c.response("8")
	if got := attributeOf(awaitSpan(t, spans, "tools/call relavium_breaks", 2), engine.SpanError); got != "tool_error" {
		t.Errorf("error.type of a refused call = %q, want tool_error", got)
	}
	if got := attributeOf(awaitSpan(t, spans, "tools/call", 1), "rpc.response.status_code"); got != "-32602" {
		t.Errorf("rpc.response.status_code of an unknown tool = %q, want -32602", got)
	}
	for _, name := range []string{"transform shape", "invoke_workflow breaks"} {
		span := awaitSpan(t, spans, name, 1)
		if got := attributeOf(span, engine.SpanError); got != string(engine.CodeSandboxError) || span.Status().Description != got {
			t.Errorf("the span %q has error.type %q and status %q, want sandbox_error", name, got, span.Status().Description)
		}
	}
	for _, span := range spans.Ended() {
		if text := fmt.Sprint(span.Name(), span.Attributes(), span.Status(), span.Events()); strings.Contains(text, told) {
			t.Errorf("the span %q tells %s", span.Name(), text)
		}
	}
}

// nowhere takes spans and forgets them.
type nowhere struct{}

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// BenchmarkTrace is a call of three pure nodes without traces, and with them.
func BenchmarkTrace(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(map[bool]string{false: "off", true: "on"}[on], func(b *testing.B) {
			s, _, _ := newServer(b, func(o *publish.Options) {
				if !on {
					return
				}
				provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}))
				b.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(b.Context())) })
				o.Tracer = provider.Tracer("bench")
				o.Engine = openEngine(b, filepath.Join(b.TempDir(), "traced.db"), func(o *engine.Options) { o.Tracer = provider.Tracer("bench") })
			}, shaped(b, "echo", "", "1"))
			c := connect(b, s)
			c.initialize(legacy, "probe")
			b.ReportAllocs()
			for b.Loop() {
				c.call("7", "relavium_echo", "")
				if c.response("7").Result == nil {
					b.Fatal("no result")
				}
			}
		})
	}
}
