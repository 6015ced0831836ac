package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	maxInline  = 64 << 10 // bytes of one output that travel in a result
	maxPreview = 1 << 10  // bytes of it that are shown of a larger one
)

// own is the member of structuredContent that is ours; no node id can be it.
const own = "_relavium"

// ended is the result of a run's terminal event.
func (s *Server) ended(ctx context.Context, x *exchange, run string, ev *engine.Event, joined bool) *mcp.CallToolResult {
	meta := &mcp.Meta{AdditionalFields: map[string]any{
		"relavium/runId":          run,
		"relavium/costMicrocents": number(ev.TotalCost, ev.CumulativeCost),
		"relavium/durationMs":     s.took(ctx, x, run, ev),
	}}
	if joined {
		meta.AdditionalFields["relavium/joined"] = true
	}
	var result *mcp.CallToolResult
	switch ev.Type {
	case engine.RunCompleted:
		result = s.outputs(x, run, ev.Outputs)
	case engine.RunCancelled:
		result = failure(&engine.RunError{Code: engine.CodeCancelled, Message: orElse(ev.Reason, "the run was cancelled")}, run)
	default:
		e := ev.Error
		if e == nil {
			e = &engine.RunError{Code: engine.CodeInternal, CorrelationID: s.logInternal("run failed without an error", slog.String("run", run))}
		}
		result = failure(e, run)
	}
	result.Meta = meta
	return result
}

// took is how long the run lasted, in milliseconds, waiting included. The event of
// a run that did not complete does not say it.
func (s *Server) took(ctx context.Context, x *exchange, run string, ev *engine.Event) int64 {
	if ev.DurationMS != nil {
		return *ev.DurationMS
	}
	sctx, done := detached(ctx)
	defer done()
	r, err := s.engine.Run(sctx, run, x.caller.principal)
	if err != nil {
		s.log.WarnContext(ctx, "read a run", slog.String("run", run), slog.Any("error", err))
		return 0
	}
	return r.Ended.Sub(r.Created).Milliseconds()
}

func number(values ...*int64) int64 {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return 0
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// outputs is the result of a run that completed: structuredContent by output
// node, and the same for readers. Some clients show a model only the one, some
// only the other, so an output that is too large stands in both, by its link.
func (s *Server) outputs(x *exchange, run string, outputs json.RawMessage) *mcp.CallToolResult {
	all, err := workflows.Members(outputs)
	if err != nil && len(outputs) > 0 {
		id := s.logInternal("outputs of a run are no object", slog.String("run", run), slog.Any("error", err))
		return failure(&engine.RunError{Code: engine.CodeInternal, CorrelationID: id}, run)
	}
	inline := make([]workflows.Member, 0, len(all))
	var links []workflows.Member
	var large []mcp.Content
	for _, m := range all {
		if len(m.Value) <= maxInline {
			inline = append(inline, m)
			continue
		}
		uri := outputURI(run, m.Key)
		links = append(links, workflows.Member{Key: m.Key, Value: quoted(uri)})
		large = append(large, mcp.NewTextContent(preview(m, uri)), x.link(m, uri))
	}
	if len(links) > 0 {
		inline = append(inline, workflows.Member{Key: own, Value: workflows.Object([]workflows.Member{
			{Key: "resources", Value: workflows.Object(links)},
		})})
	}
	structured := workflows.Object(inline)
	var content []mcp.Content
	var text string
	switch {
	case len(all) == 1 && len(links) == 0 && json.Unmarshal(all[0].Value, &text) == nil && all[0].Value[0] == '"':
		content = append(content, mcp.NewTextContent(text))
	case len(all) == 1 && len(links) == 1 && all[0].Value[0] == '"': // the preview of the one text comes first
	default:
		content = append(content, mcp.NewTextContent(string(structured)))
	}
	return x.result(structured, append(content, large...)...)
}

// result is a result without error, in the shape that the caller's revision
// knows. Each is a fresh value: the dispatcher writes into it.
func (x *exchange) result(structured json.RawMessage, content ...mcp.Content) *mcp.CallToolResult {
	r := &mcp.CallToolResult{Content: content}
	if x.caller.knows(mcp.ProtocolVersion20250618) {
		r.RawStructuredContent = structured
	}
	return r
}

// link points to an output; before 2025-06-18 there are no links in results.
func (x *exchange) link(m workflows.Member, uri string) mcp.Content {
	if !x.caller.knows(mcp.ProtocolVersion20250618) {
		return mcp.NewTextContent(uri)
	}
	l := mcp.NewResourceLink(uri, m.Key, "output of node "+m.Key, mimeType(m.Value))
	size := int64(len(m.Value))
	l.Size = &size
	return l
}

func preview(m workflows.Member, uri string) string {
	text := string(m.Value)
	if m.Value[0] == '"' && json.Unmarshal(m.Value, &text) != nil {
		text = string(m.Value)
	}
	return fmt.Sprintf("%s\n[output %s, %d bytes in all: %s]", clip(text, maxPreview), m.Key, len(m.Value), uri)
}

func mimeType(value json.RawMessage) string {
	if len(value) > 0 && value[0] == '"' {
		return "text/plain"
	}
	return "application/json"
}

// failure is an isError result: one sentence that a model can act on. run may
// be "" when none exists.
func failure(e *engine.RunError, run string) *mcp.CallToolResult {
	var b strings.Builder
	b.WriteString(string(e.Code))
	if e.Node != "" {
		fmt.Fprintf(&b, " at node %q", e.Node)
	}
	b.WriteString(": ")
	if e.Code == engine.CodeInternal {
		b.WriteString("internal error")
		if e.CorrelationID != "" {
			b.WriteString(" (correlation id " + e.CorrelationID + ")")
		}
	} else {
		b.WriteString(clause(orElse(e.Message, "no detail")))
	}
	if todo := advice(e); todo != "" {
		b.WriteString("; " + todo)
	}
	b.WriteString(".")
	if run != "" {
		b.WriteString(" Run " + run + ".")
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{mcp.NewTextContent(b.String())}}
}

// clause is a text without the full stop at its end, which may also be part of a
// path or of an ellipsis.
func clause(text string) string {
	if strings.HasSuffix(text, "..") || strings.HasSuffix(text, " .") || strings.HasSuffix(text, "/.") {
		return text
	}
	return strings.TrimSuffix(text, ".")
}

// advice says what a model can do about a failure.
func advice(e *engine.RunError) string {
	if e.Retryable {
		return "calling again later may help"
	}
	switch e.Code {
	case engine.CodeValidation:
		if e.Node == "" {
			return "correct the call and try again"
		}
		return "other arguments may lead elsewhere, else the workflow needs a correction by its author"
	case engine.CodeSandboxError:
		return "an expression of the workflow failed, which its author has to correct"
	case engine.CodeProviderAuth, engine.CodeToolDenied, engine.CodeToolUnavailable:
		return "the operator of this server has to see to it, calling again does not help"
	case engine.CodeProviderRateLimit, engine.CodeProviderUnavailable:
		return "calling again later may help"
	case engine.CodeContentFilter:
		return "the model refused the text, other arguments may help"
	case engine.CodeBudgetExceeded:
		return "the operator of this server sets the limit"
	case engine.CodeRunTimeout:
		if e.Node != "" {
			return "call again when somebody can answer"
		}
		return "the run took longer than the workflow allows"
	case engine.CodeTurnLimit:
		return "a smaller task may succeed"
	case engine.CodeCancelled:
		return "call again to start a new run"
	case engine.CodeToolFailed:
		return "see whether the tool did its work before calling again"
	case engine.CodeInternal:
		return "the operator finds the detail in the log"
	}
	return ""
}

// refusal is an isError result before any run exists.
func refusal(format string, args ...any) *mcp.CallToolResult {
	return failure(&engine.RunError{Code: engine.CodeValidation, Message: fmt.Sprintf(format, args...)}, "")
}

// unexpected is the result for an error that nothing else explains.
func (s *Server) unexpected(what, run string, err error) *mcp.CallToolResult {
	if e, ok := errors.AsType[*engine.RunError](err); ok {
		return failure(e, run)
	}
	if errors.Is(err, engine.ErrClosed) {
		return stopping(run)
	}
	if errors.Is(err, engine.ErrCutOff) {
		return failure(&engine.RunError{Code: engine.CodeToolUnavailable, Message: "the server has lost its database for now and started nothing", Retryable: true}, run)
	}
	id := s.logInternal(what, slog.String("run", run), slog.Any("error", err))
	return failure(&engine.RunError{Code: engine.CodeInternal, CorrelationID: id}, run)
}

// stopping answers a call that the server's end cut short.
func stopping(run string) *mcp.CallToolResult {
	text := "The server is stopping."
	if run != "" {
		text = fmt.Sprintf("The server is stopping; run %s goes on when it starts again. "+
			"The same call joins it then, and its run id stays good.", run)
	}
	r := &mcp.CallToolResult{IsError: true, Content: []mcp.Content{mcp.NewTextContent(text)}}
	if run != "" {
		r.Meta = &mcp.Meta{AdditionalFields: map[string]any{"relavium/runId": run}}
	}
	return r
}

// handedOver answers a client that would drop the call before the run ends.
func (x *exchange) handedOver(run string) *mcp.CallToolResult {
	structured := workflows.Object([]workflows.Member{{Key: own, Value: workflows.Object([]workflows.Member{
		{Key: "status", Value: quoted("running")},
		{Key: "run", Value: quoted(run)},
		{Key: "next", Value: quoted(waitName)},
	})}})
	r := x.result(structured, mcp.NewTextContent(string(structured)),
		mcp.NewTextContent("The run goes on. Call "+waitName+" with run "+run+" to get its result."))
	r.Meta = &mcp.Meta{AdditionalFields: map[string]any{"relavium/runId": run}}
	return r
}

// rfc3339 is a time for people and programs, or "" for none.
func rfc3339(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
