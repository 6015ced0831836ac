package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/relavium/relavium-serve/engine/agent"
)

// answers is OpenAI's Responses API, for its models that take tools by it alone or
// reason with tools by it alone. Nothing is stored there: what a model reasoned comes
// encrypted and goes back with the conversation.
type answers struct {
	service responses.ResponseService
}

func newAnswers(base string, client *http.Client) *answers {
	return &answers{responses.NewResponseService(
		option.WithBaseURL(base+"/"), option.WithHTTPClient(client), option.WithMaxRetries(0), option.WithAPIKey(placeholder),
	)}
}

// A keptReasoning is a reasoning item as it goes back, to the model that it is of.
type keptReasoning struct {
	Model     string `json:"model"`
	ID        string `json:"id"`
	Encrypted string `json:"encrypted"`
}

func (s *answers) turn(ctx context.Context, req *agent.Request, a *assembly) error {
	p, err := answersParams(req)
	if err != nil {
		return err
	}
	stream := s.service.NewStreaming(ctx, *p)
	defer stream.Close() //nolint:errcheck // the body tells the exchange how it ended
	t := answersTurn{a: a, model: req.Model, items: map[int64]*draft{}}
	for stream.Next() {
		ev := stream.Current()
		if err := t.take(&ev); err != nil {
			return err
		}
		if a.x.isDone() {
			return nil
		}
	}
	err = stream.Err()
	if se, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return event(string(se.Event.Data))
	}
	if err == nil {
		return errCut
	}
	return err
}

// An answersTurn follows the events of one response.
type answersTurn struct {
	a       *assembly
	model   string
	items   map[int64]*draft
	refused bool
}

func (t *answersTurn) take(ev *responses.ResponseStreamEventUnion) error {
	switch ev.Type {
	case "response.output_item.added":
		return t.begin(ev.OutputIndex, &ev.Item)
	case "response.output_text.delta":
		return t.a.text(ev.Delta)
	case "response.refusal.delta":
		t.refused = true
		return t.a.text(ev.Delta)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		return t.a.reasoning(ev.Delta)
	case "response.function_call_arguments.delta":
		if d := t.items[ev.OutputIndex]; d != nil && d.kind == callDraft {
			return t.a.arguments(d, ev.Delta)
		}
	case "response.output_item.done":
		return t.finish(t.items[ev.OutputIndex], &ev.Item)
	case "response.completed", "response.incomplete":
		t.count(&ev.Response.Usage)
		t.a.ended(t.stop(&ev.Response))
	case "response.failed":
		t.count(&ev.Response.Usage)
		return answersFailure(string(ev.Response.Error.Code), ev.Response.Error.Message)
	case "error":
		return answersFailure(ev.Code, ev.Message)
	}
	return nil
}

func answersFailure(code, message string) error {
	b, err := json.Marshal(map[string]any{"error": map[string]string{"code": code, "message": message}})
	if err != nil {
		return err
	}
	return event(string(b))
}

// begin starts an output item.
func (t *answersTurn) begin(index int64, item *responses.ResponseOutputItemUnion) error {
	switch item.Type {
	case "message":
	case "reasoning":
		d := &draft{kind: reasoningDraft}
		t.a.parts = append(t.a.parts, d)
		t.items[index] = d
	case "function_call":
		d, err := t.a.call(item.CallID, item.Name)
		if err != nil {
			return err
		}
		t.items[index] = d
	default: // a tool that the provider ran by itself
		d, err := t.a.call(item.ID, item.Type)
		if err != nil {
			return err
		}
		d.executed = true
	}
	return nil
}

// finish takes what an item is known to be only at its end.
func (t *answersTurn) finish(d *draft, item *responses.ResponseOutputItemUnion) error {
	if d == nil {
		return nil
	}
	d.closed = true
	if d.kind == callDraft {
		if whole := item.Arguments.OfString; d.text.Len() == 0 && whole != "" {
			return t.a.arguments(d, whole)
		}
		return nil
	}
	if item.EncryptedContent == "" {
		return nil
	}
	d.opaque = keep(keptReasoning{Model: t.model, ID: item.ID, Encrypted: item.EncryptedContent})
	return t.a.grow(len(item.EncryptedContent))
}

// count makes the counts disjoint: input_tokens has all of the input.
func (t *answersTurn) count(u *responses.ResponseUsage) {
	read := min(max(u.InputTokensDetails.CachedTokens, 0), u.InputTokens)
	write := min(max(u.InputTokensDetails.CacheWriteTokens, 0), u.InputTokens-read)
	t.a.usage = agent.Usage{Input: u.InputTokens - read - write, Output: u.OutputTokens, CacheRead: read, CacheWrite: write}
}

func (t *answersTurn) stop(r *responses.Response) agent.Stop {
	switch {
	case t.refused || r.IncompleteDetails.Reason == "content_filter":
		return agent.StopFilter
	case r.IncompleteDetails.Reason != "":
		return agent.StopLength
	}
	return agent.StopEnd
}

// answersParams builds a request.
func answersParams(req *agent.Request) (*responses.ResponseNewParams, error) {
	p := &responses.ResponseNewParams{
		Model: req.Model, Store: param.NewOpt(false),
		Include: []responses.ResponseIncludable{responses.ResponseIncludableReasoningEncryptedContent},
	}
	if req.MaxTokens > 0 {
		p.MaxOutputTokens = param.NewOpt(int64(req.MaxTokens))
	}
	effort := effortOpenAI(req.Model).value(req.Effort)
	p.Reasoning.Effort = shared.ReasoningEffort(effort)
	if t, ok := number(req.Temperature); ok && effort == "none" {
		p.Temperature = param.NewOpt(t)
	}
	system := req.System
	if req.Schema != nil {
		n, err := parseNode(req.Schema)
		if err != nil {
			return nil, &agent.ModelError{Kind: agent.BadRequest, Message: "the reply's schema is no JSON", Err: err}
		}
		if n.isObject() {
			p.Text.Format.OfJSONSchema = &responses.ResponseFormatTextJSONSchemaConfigParam{
				Name: schemaName(req.SchemaName), Schema: n.top(), Strict: param.NewOpt(n.strict()),
			}
		} else {
			system = schemaPrompt(system, req.Schema)
		}
	}
	if system != "" {
		p.Instructions = param.NewOpt(system)
	}
	for _, t := range req.Tools {
		f := &responses.FunctionToolParam{Name: t.Name, Parameters: toolSchema(t.Schema).top(), Strict: param.NewOpt(false)}
		if t.Description != "" {
			f.Description = param.NewOpt(t.Description)
		}
		p.Tools = append(p.Tools, responses.ToolUnionParam{OfFunction: f})
	}
	for _, m := range req.Messages {
		p.Input.OfInputItemList = append(p.Input.OfInputItemList, answersItems(m, req.Model)...)
	}
	return p, nil
}

// answersItems lowers one message to the items that it is there.
func answersItems(m agent.Message, model string) []responses.ResponseInputItemUnionParam {
	var out []responses.ResponseInputItemUnionParam
	var text strings.Builder
	say := func() {
		if text.Len() == 0 {
			return
		}
		role := responses.EasyInputMessageRoleUser
		if m.Role == agent.Assistant {
			role = responses.EasyInputMessageRoleAssistant
		}
		out = append(out, responses.ResponseInputItemParamOfMessage(text.String(), role))
		text.Reset()
	}
	for _, part := range m.Parts {
		switch {
		case part.Reasoning != nil:
			var k keptReasoning
			if part.Reasoning.Provider != OpenAI || json.Unmarshal(part.Reasoning.Opaque, &k) != nil || k.Model != model || k.Encrypted == "" {
				continue
			}
			say()
			item := responses.ResponseReasoningItemParam{ID: k.ID, EncryptedContent: param.NewOpt(k.Encrypted), Summary: []responses.ResponseReasoningItemSummaryParam{}}
			out = append(out, responses.ResponseInputItemUnionParam{OfReasoning: &item})
		case part.Call != nil:
			say()
			out = append(out, responses.ResponseInputItemParamOfFunctionCall(string(object(part.Call.Arguments)), part.Call.ID, part.Call.Name))
		case part.Result != nil:
			say()
			item := responses.ResponseInputItemFunctionCallOutputParam{CallID: param.NewOpt(part.Result.ID)}
			item.Output.OfString = param.NewOpt(resultText(part.Result))
			out = append(out, responses.ResponseInputItemUnionParam{OfFunctionCallOutput: &item})
		default:
			text.WriteString(part.Text)
		}
	}
	say()
	return out
}
