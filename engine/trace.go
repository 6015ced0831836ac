package engine

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/workflows"
)

// Attributes that spans of more than one room have. Names, ids, codes and numbers
// stand in spans; values, texts of people, models and tools never do.
const (
	SpanRun  = attribute.Key("relavium.run.id")
	SpanGate = attribute.Key("relavium.gate.id")
	SpanNode = attribute.Key("relavium.node.id")
	// SpanError is the error.type of OpenTelemetry's conventions.
	SpanError = attribute.Key("error.type")
)

// TraceOf is the span of a context as StartRequest.Trace takes it: a traceparent and,
// after a space, a tracestate. It is empty where there is no span.
func TraceOf(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if state := carrier["tracestate"]; state != "" {
		return carrier["traceparent"] + " " + state
	}
	return carrier["traceparent"]
}

// spanOf is the span that a run belongs to, in whatever process that was made: stored
// is what TraceOf returned where the run was started. The trace of a run whose start
// nobody traced has the run's own id.
func spanOf(run, stored string) trace.SpanContext {
	if parent, state, _ := strings.Cut(stored, " "); len(parent) == len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") {
		id, errID := trace.TraceIDFromHex(parent[3:35])
		span, errSpan := trace.SpanIDFromHex(parent[36:52])
		flags, errFlags := strconv.ParseUint(parent[53:], 16, 8)
		if errID == nil && errSpan == nil && errFlags == nil {
			kept, err := trace.ParseTraceState(state)
			if err != nil {
				kept = trace.TraceState{}
			}
			return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags), TraceState: kept, Remote: true})
		}
	}
	id, err := uuid.Parse(run)
	if err != nil {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(id), SpanID: trace.SpanID(id[8:]), TraceFlags: trace.FlagsSampled, Remote: true,
	})
}

// Span is the span that the run belongs to, such as that of the call that started it.
func (r *Run) Span() trace.SpanContext { return spanOf(r.ID, r.Trace) }

// traceRun begins the span of this execution of the run; the caller calls end once
// nothing of it runs any more.
func (x *execution) traceRun(ctx context.Context) (traced context.Context, end func()) {
	t := x.e.opt.Tracer
	if t == nil {
		return ctx, func() {}
	}
	ctx, x.span = t.Start(trace.ContextWithRemoteSpanContext(ctx, spanOf(x.row.id, x.row.trace)), "invoke_workflow "+x.row.workflow, trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "invoke_workflow"), attribute.String("gen_ai.workflow.name", x.row.workflow),
		SpanRun.String(x.row.id), attribute.String("relavium.workflow.digest", x.row.digest), attribute.String("relavium.run.source", x.row.source),
		attribute.Int("relavium.run.segment", x.row.seg), attribute.Bool("relavium.run.again", x.seg.Again),
	))
	return ctx, func() {
		for _, v := range x.nodes {
			v.endSpan()
		}
		x.span.End()
	}
}

// traceClosed notes how this execution ended.
func (x *execution) traceClosed(state State, failure *RunError) {
	if x.span == nil {
		return
	}
	x.span.SetAttributes(
		attribute.String("relavium.run.state", string(state)), attribute.Int64("relavium.run.cost_microcents", x.cost),
		attribute.Int64("gen_ai.usage.input_tokens", x.tokens.Input), attribute.Int64("gen_ai.usage.output_tokens", x.tokens.Output),
	)
	if failure != nil && state == Failed {
		traceFailure(x.span, failure)
	}
}

// traceNode begins the span of a node that is dispatched. An agent node whose result
// is recorded does nothing again and has none.
func (x *execution) traceNode(ctx context.Context, id string, v *vertex) {
	if x.span == nil || v.slot != nil && v.slot.result != nil {
		return
	}
	name := v.node.Type() + " " + id
	attrs := []attribute.KeyValue{SpanRun.String(x.row.id), SpanNode.String(id), attribute.String("relavium.node.type", v.node.Type())}
	if spec, ok := v.node.Spec.(workflows.AgentNode); ok {
		name = "invoke_agent " + spec.AgentRef
		attrs = append(attrs, attribute.String("gen_ai.operation.name", "invoke_agent"), attribute.String("gen_ai.agent.name", spec.AgentRef))
	}
	_, v.span = x.e.opt.Tracer.Start(ctx, name, trace.WithAttributes(attrs...))
}

// traceSettled ends the span of a node, with its decision if it is a gate.
func (x *execution) traceSettled(id string) {
	v := x.nodes[id]
	if v == nil || v.span == nil {
		return
	}
	if g, ok := x.gates[id]; ok && g.Decision != "" {
		v.span.SetAttributes(SpanGate.String(g.ID), attribute.String("relavium.gate.decision", g.Decision), attribute.String("relavium.gate.via", g.Via))
	}
	v.endSpan()
}

// traceFailed ends the span of the node that an error names.
func (x *execution) traceFailed(err *RunError) {
	v := x.nodes[err.Node]
	if v == nil || v.span == nil {
		return
	}
	traceFailure(v.span, err)
	v.endSpan()
}

// endSpan ends the node's span, if it has one, with the state that the node has.
func (v *vertex) endSpan() {
	if v.span == nil {
		return
	}
	v.span.SetAttributes(attribute.String("relavium.node.state", v.state))
	if v.tokens != nil {
		v.span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", v.tokens.Input), attribute.Int64("gen_ai.usage.output_tokens", v.tokens.Output))
	}
	v.span.End()
	v.span = nil
}

// inSpan puts what is done under ctx below a span, which may be nil.
func inSpan(ctx context.Context, span trace.Span) context.Context {
	if span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, span)
}

// traced performs an effect in a span of its own: a model turn or a tool call. The
// agent adds what it knows of it; the name of a tool is one of these, since a model
// may ask for a tool that there is not.
func (d *dispatch) traced(ctx context.Context, at string, ef *Effect, perform Perform) (EffectResult, error) {
	key, t := d.key(at), d.x.e.opt.Tracer
	if t == nil {
		return perform(ctx, key)
	}
	name, kind := "execute_tool", trace.SpanKindInternal
	attrs := []attribute.KeyValue{SpanRun.String(d.x.row.id), SpanNode.String(d.node), attribute.String("relavium.effect.key", key)}
	switch {
	case ef.Kind == EffectTurn:
		name, kind = "chat "+ef.Name, trace.SpanKindClient
		attrs = append(attrs, attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.request.model", ef.Name))
	case ef.Server != "":
		kind = trace.SpanKindClient
		attrs = append(attrs, attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("mcp.method.name", "tools/call"), attribute.String("relavium.mcp.server", ef.Server))
	default:
		attrs = append(attrs, attribute.String("gen_ai.operation.name", "execute_tool"))
	}
	ctx, span := t.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
	defer func() { span.End() }() // End called by defer itself would put the text of a panic into the span
	out, err := perform(ctx, key)
	if out.Cost != 0 {
		span.SetAttributes(attribute.Int64("relavium.cost_microcents", out.Cost))
	}
	failure, ok := errors.AsType[*RunError](err)
	switch {
	case ok:
		traceFailure(span, failure)
	case errors.Is(err, ErrParked):
		span.SetAttributes(attribute.Bool("relavium.parked", true))
	case err != nil:
		span.SetStatus(codes.Error, "")
	}
	return out, err
}

// traceFailure marks a span as failed: by the code, where it has one by the id of the
// log line that says more, and by no text of anybody else.
func traceFailure(span trace.Span, err *RunError) {
	span.SetAttributes(SpanError.String(string(err.Code)))
	if err.CorrelationID != "" {
		span.SetAttributes(attribute.String("relavium.correlation.id", err.CorrelationID))
	}
	span.SetStatus(codes.Error, string(err.Code))
}

// traceDecision makes the span of a decision that somebody made, in the trace of the
// request that brought it, or else in that of the run.
func (e *Engine) traceDecision(ctx context.Context, began time.Time, g *Gate, err error) {
	t := e.opt.Tracer
	if t == nil || g.Run == "" {
		return
	}
	stored := ""
	if r, err := e.row(ctx, g.Run); err == nil {
		stored = r.trace
	}
	opts := []trace.SpanStartOption{trace.WithTimestamp(began), trace.WithAttributes(
		SpanRun.String(g.Run), SpanGate.String(g.ID), SpanNode.String(g.Node),
		attribute.String("relavium.gate.decision", g.Decision), attribute.String("relavium.gate.via", g.Via),
	)}
	if of := spanOf(g.Run, stored); trace.SpanContextFromContext(ctx).IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: of}))
	} else {
		ctx = trace.ContextWithRemoteSpanContext(ctx, of)
	}
	_, span := t.Start(ctx, "decide gate", opts...)
	if err != nil {
		late, is := errors.AsType[*DecidedError](err)
		switch {
		case is && late.Gate.Decision != "":
			span.SetAttributes(SpanError.String("decided_before"))
		case is:
			span.SetAttributes(SpanError.String("expired"))
		default:
			span.SetAttributes(SpanError.String("refused"))
		}
		span.SetStatus(codes.Error, "")
	}
	span.End()
}
