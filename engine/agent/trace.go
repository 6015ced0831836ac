package agent

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// The engine makes the span of each model turn and tool call; here it is told what
// the conventions of OpenTelemetry for generative AI and MCP say of it. Arguments,
// prompts, results and the texts of errors stay out.

// traceTurn tells the turn's span of the request, what it used and why it failed.
func traceTurn(ctx context.Context, req *Request, attempt int, turn *Turn, err error) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("gen_ai.provider.name", providerName(req.Provider)), attribute.Int("relavium.attempt", attempt),
		attribute.Int("relavium.request.messages", len(req.Messages)), attribute.Int("relavium.request.tools", len(req.Tools)))
	if req.MaxTokens > 0 {
		span.SetAttributes(attribute.Int("gen_ai.request.max_tokens", req.MaxTokens))
	}
	var used Usage
	failed, isModel := errors.AsType[*ModelError](err)
	switch {
	case isModel:
		used = failed.Usage
		span.SetAttributes(engine.SpanError.String(string(failed.Kind)))
		if failed.Status != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", failed.Status))
		}
	case err == nil && turn != nil:
		used = turn.Usage
		span.SetAttributes(attribute.StringSlice("gen_ai.response.finish_reasons", []string{string(turn.Stop)}))
	}
	tokens := used.tokens("")
	span.SetAttributes(attribute.Int64("gen_ai.usage.input_tokens", tokens.Input), attribute.Int64("gen_ai.usage.output_tokens", tokens.Output))
	if used.CacheRead > 0 || used.CacheWrite > 0 {
		span.SetAttributes(attribute.Int64("gen_ai.usage.cache_read.input_tokens", used.CacheRead), attribute.Int64("gen_ai.usage.cache_creation.input_tokens", used.CacheWrite))
	}
}

// providerName is what the conventions call a provider.
func providerName(provider string) string {
	if provider == "gemini" {
		return "gcp.gemini"
	}
	return provider
}

// traceBegun tells the call's span which tool it is for. A name that no tool has is
// the model's own text.
func (c *toolCall) traceBegun(ctx context.Context) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("relavium.arguments.bytes", len(c.call.Arguments)))
	if c.entry.host == nil && c.entry.delegate == "" && !c.l.grant.known[c.id] {
		return
	}
	span.SetName("execute_tool " + c.id)
	span.SetAttributes(attribute.String("gen_ai.tool.name", c.id))
	if c.callee != nil {
		span.SetAttributes(attribute.String("relavium.callee.node", c.callee.ID))
	}
}

// traceResult tells the call's span of its result.
func traceResult(ctx context.Context, res workflows.ToolResult) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("relavium.result.bytes", len(res.Text)))
	if res.IsError {
		span.SetAttributes(engine.SpanError.String("tool_error"))
		span.SetStatus(codes.Error, "")
	}
}

// traceFault tells the call's span why there is no result.
func traceFault(ctx context.Context, t *workflows.ToolError) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(engine.SpanError.String(string(t.Fault)), attribute.String("relavium.error.reason", t.Reason))
	span.SetStatus(codes.Error, string(t.Fault))
}
