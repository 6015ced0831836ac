package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/shared"

	"github.com/relavium/relavium-serve/engine/agent"
)

// chat is the Chat Completions API: OpenAI's, DeepSeek's, and that of every server
// that speaks it.
type chat struct {
	provider string
	own      bool // OpenAI's or DeepSeek's own address
	service  openai.ChatCompletionService
	answers  *answers // of provider openai

	mu       sync.Mutex
	forms    map[string]replyForm // by model, of an endpoint that refused a better one
	chatOnly bool                 // the endpoint has no Responses API
}

// A replyForm is how a reply by a schema is asked for.
type replyForm uint8

const (
	bySchema replyForm = iota // response_format json_schema
	byObject                  // json_object, with the schema in the prompt
	byPrompt                  // in the prompt alone
)

// placeholder is the key that the SDKs are given. The real one is attached below them.
const placeholder = "unset"

func newOpenAI(provider, base string, own bool, client *http.Client) *chat {
	c := &chat{
		provider: provider, own: own, forms: map[string]replyForm{},
		service: openai.NewChatCompletionService(
			option.WithBaseURL(base+"/"), option.WithHTTPClient(client), option.WithMaxRetries(0), option.WithAPIKey(placeholder),
		),
	}
	if provider == OpenAI {
		c.answers = newAnswers(base, client)
	}
	return c
}

func (c *chat) turn(ctx context.Context, req *agent.Request, a *assembly) error {
	if c.answers != nil && effortOpenAI(req.Model).answers && !c.lacksAnswers() {
		err := c.answers.turn(ctx, req, a)
		if err == nil || c.own || a.streamed || !a.x.notFound() {
			return err
		}
		c.mu.Lock()
		c.chatOnly = true // an endpoint that speaks for OpenAI and has chat completions alone
		c.mu.Unlock()
		a.x.again()
	}
	form := c.form(req)
	for {
		err := c.ask(ctx, req, form, a)
		if err == nil || form == byPrompt || a.streamed || !a.x.refusesFormat() {
			return err
		}
		form++ // a server that knows no response_format of this kind: ask in a plainer way, and go on so
		c.mu.Lock()
		c.forms[req.Model] = form
		c.mu.Unlock()
		a.x.again()
	}
}

func (c *chat) lacksAnswers() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.chatOnly
}

// notFound tells whether a server has no such path. What answers in the API's own
// error shape has the path and not the model.
func (x *exchange) notFound() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if strings.Join(errorCode([]byte(x.said)).names, "") != "" {
		return false
	}
	return x.status == http.StatusNotFound || x.status == http.StatusMethodNotAllowed || x.status == http.StatusNotImplemented
}

// form is how a reply by the request's schema is asked for first.
func (c *chat) form(req *agent.Request) replyForm {
	if req.Schema == nil {
		return bySchema
	}
	c.mu.Lock()
	form := c.forms[req.Model]
	c.mu.Unlock()
	if c.provider == DeepSeek {
		form = max(form, byObject)
	}
	if n, err := parseNode(req.Schema); err != nil || !n.isObject() {
		form = byPrompt
	}
	return form
}

// refusesFormat tells whether a server refused the form in which a reply was asked for.
func (x *exchange) refusesFormat() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch x.status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusNotImplemented, http.StatusInternalServerError:
	default:
		return false
	}
	said := strings.ToLower(x.said)
	for _, word := range []string{"response_format", "json_schema", "json_object", "structured output", "guided", "grammar"} {
		if strings.Contains(said, word) {
			return true
		}
	}
	return false
}

func (c *chat) ask(ctx context.Context, req *agent.Request, form replyForm, a *assembly) error {
	p, err := c.params(req, form)
	if err != nil {
		return err
	}
	s := c.service.NewStreaming(ctx, *p)
	defer s.Close() //nolint:errcheck // the body tells the exchange how it ended
	calls := map[int64]*draft{}
	finish := ""
	for s.Next() {
		chunk := s.Current()
		if chunk.JSON.Usage.Valid() {
			a.usage = chatUsage(chunk.Usage)
		}
		for i := range chunk.Choices {
			choice := &chunk.Choices[i]
			if choice.Index != 0 {
				continue
			}
			if err := c.take(&choice.Delta, calls, a); err != nil {
				return err
			}
			if choice.Delta.Refusal != "" {
				finish = "content_filter"
			}
			if choice.FinishReason != "" {
				if finish == "" {
					finish = choice.FinishReason
				}
				a.ended(chatStop(finish))
			}
		}
	}
	if a.x.isDone() {
		return nil // a stream that was cut between its last choice and its end lacks nothing but the count
	}
	err = s.Err()
	if se, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return event(string(se.Event.Data))
	}
	if err == nil {
		return errCut
	}
	return err
}

// take adds one delta to the turn.
func (c *chat) take(d *openai.ChatCompletionChunkChoiceDelta, calls map[int64]*draft, a *assembly) error {
	for _, name := range []string{"reasoning_content", "reasoning"} {
		var s string
		if f, ok := d.JSON.ExtraFields[name]; ok && json.Unmarshal([]byte(f.Raw()), &s) == nil && s != "" {
			if err := a.reasoning(s); err != nil {
				return err
			}
			break // some servers send both
		}
	}
	if err := a.text(d.Content); err != nil {
		return err
	}
	if err := a.text(d.Refusal); err != nil {
		return err
	}
	for i := range d.ToolCalls {
		t := &d.ToolCalls[i]
		call := calls[t.Index]
		if call == nil || t.ID != "" && t.Function.Name != "" && call.text.Len() > 0 { // a server that gives all calls index 0
			var err error
			if call, err = a.call(t.ID, t.Function.Name); err != nil {
				return err
			}
			calls[t.Index] = call
		} else if call.name == "" {
			call.name = t.Function.Name
		}
		if err := a.arguments(call, t.Function.Arguments); err != nil {
			return err
		}
	}
	return nil
}

func chatStop(finish string) agent.Stop {
	switch finish {
	case "length":
		return agent.StopLength
	case "tool_calls", "function_call":
		return agent.StopToolUse
	case "content_filter":
		return agent.StopFilter
	}
	return agent.StopEnd
}

// chatUsage makes the counts disjoint: prompt_tokens has all of the input.
func chatUsage(u openai.CompletionUsage) agent.Usage {
	read := u.PromptTokensDetails.CachedTokens
	if f, ok := u.JSON.ExtraFields["prompt_cache_hit_tokens"]; ok && read == 0 { // DeepSeek
		if json.Unmarshal([]byte(f.Raw()), &read) != nil {
			read = 0
		}
	}
	read = min(max(read, 0), u.PromptTokens)
	write := min(max(u.PromptTokensDetails.CacheWriteTokens, 0), u.PromptTokens-read)
	return agent.Usage{Input: u.PromptTokens - read - write, Output: u.CompletionTokens, CacheRead: read, CacheWrite: write}
}

// params builds a request.
func (c *chat) params(req *agent.Request, form replyForm) (*openai.ChatCompletionNewParams, error) {
	p := &openai.ChatCompletionNewParams{
		Model:         req.Model,
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
	}
	system := req.System
	if req.Schema != nil {
		switch form {
		case bySchema:
			if err := jsonSchemaFormat(p, req); err != nil {
				return nil, err
			}
		case byObject:
			p.ResponseFormat.OfJSONObject = &shared.ResponseFormatJSONObjectParam{}
			system = schemaPrompt(system, req.Schema)
		case byPrompt:
			system = schemaPrompt(system, req.Schema)
		}
	}
	if system != "" {
		p.Messages = append(p.Messages, openai.SystemMessage(system))
	}
	keepReasoning := c.tune(p, req)
	for _, m := range req.Messages {
		p.Messages = append(p.Messages, chatMessages(m, req.Provider, keepReasoning)...)
	}
	for _, t := range req.Tools {
		f := shared.FunctionDefinitionParam{Name: t.Name, Parameters: toolSchema(t.Schema).top()}
		if t.Description != "" {
			f.Description = param.NewOpt(t.Description)
		}
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(f))
	}
	return p, nil
}

// tune sets temperature, limit and effort as the model takes them, and tells whether
// reasoning goes back with tool calls.
func (c *chat) tune(p *openai.ChatCompletionNewParams, req *agent.Request) (keepReasoning bool) {
	temperature, hasTemperature := number(req.Temperature)
	limit := param.NewOpt(int64(req.MaxTokens))
	if c.provider == DeepSeek {
		thinks := thinksDeepSeek(req.Model)
		if hasTemperature {
			p.Temperature = param.NewOpt(temperature)
		}
		if req.MaxTokens > 0 {
			p.MaxTokens = limit
		}
		if thinks && req.Effort != "" {
			if req.Effort == "off" {
				p.SetExtraFields(map[string]any{"thinking": map[string]string{"type": "disabled"}})
			} else {
				p.SetExtraFields(map[string]any{"thinking": map[string]string{"type": "enabled"}})
				p.ReasoningEffort = effortDeepSeek(req.Effort)
			}
		}
		return req.Model == "deepseek-reasoner" || thinks && req.Effort != "off"
	}
	e := effortOpenAI(req.Model)
	p.ReasoningEffort = shared.ReasoningEffort(e.value(req.Effort))
	if hasTemperature && (!e.reasons || p.ReasoningEffort == "none") {
		p.Temperature = param.NewOpt(temperature)
	}
	if req.MaxTokens > 0 {
		if c.own || e.openai {
			p.MaxCompletionTokens = limit
		} else {
			p.MaxTokens = limit
		}
	}
	return false
}

func jsonSchemaFormat(p *openai.ChatCompletionNewParams, req *agent.Request) error {
	n, err := parseNode(req.Schema)
	if err != nil {
		return &agent.ModelError{Kind: agent.BadRequest, Message: "the reply's schema is no JSON", Err: err}
	}
	f := shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: schemaName(req.SchemaName), Schema: n}
	f.Strict = param.NewOpt(n.strict())
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: f}
	return nil
}

func schemaName(name string) string {
	if portableID(name) {
		return name
	}
	return "reply"
}

// chatMessages lowers one message.
func chatMessages(m agent.Message, provider string, keepReasoning bool) []openai.ChatCompletionMessageParamUnion {
	var out []openai.ChatCompletionMessageParamUnion
	var text, reasoning strings.Builder
	var calls []openai.ChatCompletionMessageToolCallUnionParam
	for _, part := range m.Parts {
		switch {
		case part.Reasoning != nil:
			if part.Reasoning.Provider == provider {
				reasoning.WriteString(part.Reasoning.Text)
			}
		case part.Call != nil:
			calls = append(calls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
				ID: part.Call.ID,
				Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{
					Name: part.Call.Name, Arguments: string(object(part.Call.Arguments)),
				},
			}})
		case part.Result != nil:
			out = append(out, openai.ToolMessage(resultText(part.Result), part.Result.ID))
		default:
			text.WriteString(part.Text)
		}
	}
	switch m.Role {
	case agent.Assistant:
		if text.Len() == 0 && calls == nil {
			break
		}
		a := openai.ChatCompletionAssistantMessageParam{ToolCalls: calls}
		if text.Len() > 0 {
			a.Content.OfString = param.NewOpt(text.String())
		}
		if keepReasoning && calls != nil {
			a.SetExtraFields(map[string]any{"reasoning_content": reasoning.String()})
		}
		out = append(out, openai.ChatCompletionMessageParamUnion{OfAssistant: &a})
	case agent.User, agent.ToolRole:
		if text.Len() > 0 {
			out = append(out, openai.UserMessage(text.String()))
		}
	}
	return out
}

// resultText is a result where the wire has no mark for a failed one.
func resultText(r *agent.Result) string {
	switch {
	case r.IsError:
		return "error: " + r.Text
	case r.Text == "":
		return "(no output)"
	}
	return r.Text
}

func number(n json.Number) (float64, bool) {
	if n == "" {
		return 0, false
	}
	f, err := n.Float64()
	return f, err == nil
}
