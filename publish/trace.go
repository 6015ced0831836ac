package publish

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/transport"
)

// Bounds of what a caller says of its trace, in bytes. A traceparent of version 00
// has 55; later ones may be longer (W3C Trace Context 3.2).
const (
	maxTraceparent = 128
	maxTracestate  = 512
)

// callerSpan is the span that the request comes from, by its _meta (SEP-414). What
// does not follow W3C Trace Context counts as absent. Baggage is not read.
func callerSpan(ctx context.Context, req *transport.Request) trace.SpanContext {
	carrier := propagation.MapCarrier{}
	for name, limit := range map[string]int{"traceparent": maxTraceparent, "tracestate": maxTracestate} {
		var value string
		raw := req.Meta(name)
		if len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &value) == nil && len(value) <= limit {
			carrier[name] = value
		}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, carrier))
}

// traceCall begins the span of a request that calls a tool or is about a task; end
// is called with what is answered. The span of a local caller is its parent. That of
// anybody else is only linked: a stranger decides neither where our spans stand nor
// whether they are kept.
func (s *Server) traceCall(ctx context.Context, x *exchange) (traced context.Context, end func(transport.Reply)) {
	method := x.request.Method
	if s.opt.Tracer == nil || method != string(mcp.MethodToolsCall) && !strings.HasPrefix(method, "tasks/") {
		return ctx, func(transport.Reply) {}
	}
	name := method
	attrs := []attribute.KeyValue{
		attribute.String("mcp.method.name", method), attribute.String("mcp.protocol.version", x.caller.version),
		attribute.Int("relavium.params.bytes", len(x.request.Params)),
	}
	if method == string(mcp.MethodToolsCall) {
		attrs = append(attrs, attribute.String("gen_ai.operation.name", "execute_tool"))
		var tool string
		if json.Unmarshal(x.request.Param("name"), &tool) == nil && x.table.tools[tool] != nil {
			name += " " + tool
			attrs = append(attrs, attribute.String("gen_ai.tool.name", tool))
			if w := x.table.tools[tool].workflow; w != nil {
				attrs = append(attrs, attribute.String("gen_ai.workflow.name", w.ID))
			}
		}
	}
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attrs...)}
	switch from := callerSpan(ctx, x.request); {
	case !from.IsValid():
	case x.caller.principal == engine.Local:
		ctx = trace.ContextWithRemoteSpanContext(ctx, from)
	default:
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
	}
	ctx, x.span = s.opt.Tracer.Start(ctx, name, opts...)
	return ctx, func(reply transport.Reply) {
		if by := endedBy(ctx); by != "" {
			x.span.SetAttributes(attribute.String("relavium.call.ended_by", by))
		}
		switch {
		case reply.Error != nil:
			code := strconv.Itoa(reply.Error.Code)
			x.span.SetAttributes(engine.SpanError.String(code), attribute.String("rpc.response.status_code", code))
			x.span.SetStatus(codes.Error, "")
		case reply.Result == nil: // a panic
			x.span.SetAttributes(engine.SpanError.String("internal"))
			x.span.SetStatus(codes.Error, "")
		default:
			x.span.SetAttributes(attribute.Int("relavium.result.bytes", len(reply.Result)))
		}
		x.span.End()
	}
}

// endedBy says what ended a request before its answer, or "".
func endedBy(ctx context.Context) string {
	if ctx.Err() == nil {
		return ""
	}
	cause := context.Cause(ctx)
	if _, ok := errors.AsType[*transport.CancelledError](cause); ok {
		return "cancel"
	}
	switch {
	case errors.Is(cause, transport.ErrStreamClosed):
		return "stream_closed"
	case errors.Is(cause, transport.ErrStopping):
		return "stopping"
	}
	return "connection_lost"
}

// started tells the call's span which run it waits for, with a link to that of another
// call.
func (s *Server) started(ctx context.Context, x *exchange, started *engine.Started) {
	if x.span == nil {
		return
	}
	if !started.Joined {
		x.span.SetAttributes(engine.SpanRun.String(started.Run))
		return
	}
	x.span.SetAttributes(attribute.Bool("relavium.run.joined", true))
	if r, err := s.engine.Run(ctx, started.Run, x.caller.principal); err == nil {
		x.about(r)
	}
}

// about tells the request's span which run it is about, which another call started.
func (x *exchange) about(r *engine.Run) {
	if x.span == nil {
		return
	}
	x.span.SetAttributes(engine.SpanRun.String(r.ID))
	x.span.AddLink(trace.Link{SpanContext: r.Span()})
}

// returned tells the call's span what kind of result it returns.
func (x *exchange) returned(result *mcp.CallToolResult) {
	switch {
	case x.span == nil || result == nil:
	case result.IsError:
		x.span.SetAttributes(engine.SpanError.String("tool_error"))
		x.span.SetStatus(codes.Error, "")
	case result.ResultType != "" && result.ResultType != mcp.ResultTypeComplete:
		x.span.SetAttributes(attribute.String("relavium.result.type", string(result.ResultType)))
	}
}
