package fakemodel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// openaiWire is the Chat Completions API, as OpenAI, DeepSeek and local servers
// have it.
type openaiWire struct {
	provider string
	plain    bool // a local server without json_schema
}

func (openaiWire) key(r *http.Request) string {
	k, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return k
}

type openaiCall struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type openaiMessage struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	Refusal          *string         `json:"refusal"`
	ReasoningContent *string         `json:"reasoning_content"`
	ToolCalls        []openaiCall    `json:"tool_calls"`
	ToolCallID       string          `json:"tool_call_id"`
	Name             string          `json:"name"`
}

type openaiRequest struct {
	Model               string          `json:"model"`
	Messages            []openaiMessage `json:"messages"`
	MaxTokens           int             `json:"max_tokens"`
	MaxCompletionTokens int             `json:"max_completion_tokens"`
	Temperature         *float64        `json:"temperature"`
	ReasoningEffort     string          `json:"reasoning_effort"`
	Stream              bool            `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Thinking *struct {
		Type string `json:"type"`
	} `json:"thinking"`
	Tools []struct {
		Type     string `json:"type"`
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
			Strict     bool            `json:"strict"`
		} `json:"function"`
	} `json:"tools"`
	ResponseFormat *struct {
		Type       string `json:"type"`
		JSONSchema *struct {
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
			Strict bool            `json:"strict"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

// reasons tells whether a model of OpenAI reasons.
func reasons(model string) bool {
	for _, p := range []string{"o1", "o3", "o4", "gpt-5", "gpt-6"} {
		if strings.HasPrefix(model, p) {
			return !strings.Contains(model, "chat")
		}
	}
	return false
}

// newest tells whether a model takes tools on this API only without reasoning.
func newest(model string) bool {
	return strings.HasPrefix(model, "gpt-5.6") || strings.HasPrefix(model, "gpt-6")
}

func (o openaiWire) read(_ *http.Request, body []byte, q *Request) error {
	var top map[string]json.RawMessage
	var in openaiRequest
	if err := json.Unmarshal(body, &top); err != nil {
		return refuse("We could not parse the JSON body of your request.")
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return refuse("%v", err)
	}
	q.Model, q.Stream, q.Effort = in.Model, in.Stream, in.ReasoningEffort
	q.MaxTokens = max(in.MaxTokens, in.MaxCompletionTokens)
	names := "model messages max_completion_tokens max_tokens temperature top_p stop stream stream_options tools tool_choice parallel_tool_calls response_format reasoning_effort seed user n"
	switch o.provider {
	case "deepseek":
		names = "model messages max_tokens temperature top_p stop stream stream_options tools tool_choice response_format thinking reasoning_effort frequency_penalty presence_penalty"
	case "local":
		names += " think"
	}
	if k := unknown(top, names); k != "" {
		return refuse("Unrecognized request argument supplied: %s", k)
	}
	if in.Model == "" || len(in.Messages) == 0 {
		return refuse("you must provide a model and messages")
	}
	if o.provider == "openai" {
		switch {
		case reasons(in.Model) && in.MaxTokens != 0:
			return refuse("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.")
		case newest(in.Model) && len(in.Tools) > 0 && in.ReasoningEffort != "none":
			return refuse("Function tools with reasoning_effort are not supported for %s in /v1/chat/completions. Please use /v1/responses instead.", in.Model)
		case reasons(in.Model) && in.ReasoningEffort != "none" && in.Temperature != nil && *in.Temperature != 1:
			return refuse("Unsupported value: 'temperature' does not support %v with this model. Only the default (1) value is supported.", *in.Temperature)
		case !reasons(in.Model) && in.ReasoningEffort != "":
			return refuse("Unrecognized request argument supplied: reasoning_effort")
		}
	}
	for _, t := range in.Tools {
		if t.Type != "function" || !toolName(64).MatchString(t.Function.Name) {
			return refuse("Invalid 'tools[].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$' of at most 64 characters")
		}
		if !isObjectSchema(t.Function.Parameters) {
			return refuse("Invalid schema for function '%s': schema must be of type object", t.Function.Name)
		}
		q.Tools = append(q.Tools, t.Function.Name)
	}
	if err := o.format(&in, q); err != nil {
		return err
	}
	// DeepSeek's models think unless they are told not to; one old name never does.
	thinking := in.Model != "deepseek-chat" && (in.Thinking == nil || in.Thinking.Type != "disabled")
	return o.messages(in.Messages, thinking, q)
}

func (o openaiWire) format(in *openaiRequest, q *Request) error {
	f := in.ResponseFormat
	if f == nil || f.Type == "text" {
		return nil
	}
	q.Format = f.Type
	switch f.Type {
	case "json_object":
		for _, m := range in.Messages {
			if strings.Contains(strings.ToLower(string(m.Content)), "json") {
				return nil
			}
		}
		return refuse("'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.")
	case "json_schema":
		if o.provider == "deepseek" {
			return refuse("This response_format type is unavailable now")
		}
		if o.plain && o.provider == "local" {
			return refuse("response_format type json_schema is not supported")
		}
		if f.JSONSchema == nil || !toolName(64).MatchString(f.JSONSchema.Name) {
			return refuse("Missing required parameter: 'response_format.json_schema.name'.")
		}
		q.Schema = f.JSONSchema.Schema
		if f.JSONSchema.Strict {
			if at := openObject(q.Schema); at != "" {
				return refuse("Invalid schema for response_format '%s': In context=(%s), 'additionalProperties' is required to be supplied and to be false.", f.JSONSchema.Name, at)
			}
			if at := optional(q.Schema); at != "" {
				return refuse("Invalid schema for response_format '%s': 'required' is required to be supplied and to be an array including every key in properties. Missing '%s'.", f.JSONSchema.Name, at)
			}
		}
		return nil
	}
	return refuse("Invalid value for 'response_format.type': %q", f.Type)
}

// optional returns the first property of an object schema that is not required.
func optional(raw json.RawMessage) string {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return "schema"
	}
	return walkOptional(v)
}

func walkOptional(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		return ""
	}
	required := map[any]bool{}
	if list, ok := m["required"].([]any); ok {
		for _, r := range list {
			required[r] = true
		}
	}
	if props, ok := m["properties"].(map[string]any); ok {
		for k, p := range props {
			if !required[k] {
				return k
			}
			if s := walkOptional(p); s != "" {
				return s
			}
		}
	}
	return walkOptional(m["items"])
}

func (o openaiWire) messages(in []openaiMessage, thinking bool, q *Request) error {
	var open map[string]bool // calls that wait for their results
	for i, m := range in {
		text, err := openaiText(m.Content)
		if err != nil {
			return refuse("Invalid type for 'messages[%d].content'", i)
		}
		if m.Role != "tool" && len(open) > 0 {
			return refuse("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.")
		}
		switch m.Role {
		case "system", "developer":
			if o.provider == "deepseek" && m.Role == "developer" {
				return refuse("unknown variant `developer`, expected one of `system`, `user`, `assistant`, `tool`")
			}
			q.System += text
		case "user":
			q.Messages = append(q.Messages, Message{Role: "user", Text: text})
		case "assistant":
			if text == "" && len(m.ToolCalls) == 0 {
				return refuse("Invalid value for 'content' of messages[%d]: expected a string, got null.", i)
			}
			msg := Message{Role: "assistant", Text: text}
			switch {
			case m.ReasoningContent != nil && o.provider == "openai":
				return refuse("Unrecognized request argument supplied: messages[%d].reasoning_content", i)
			case m.ReasoningContent != nil:
				msg.Reasoning = *m.ReasoningContent
			case o.provider == "deepseek" && thinking && len(m.ToolCalls) > 0:
				return refuse("The reasoning_content in the thinking mode must be passed back to the API.")
			}
			open = map[string]bool{}
			for _, c := range m.ToolCalls {
				if c.ID == "" || c.Type != "function" {
					return refuse("Missing required parameter: 'messages[%d].tool_calls[].id'.", i)
				}
				open[c.ID] = true
				msg.Calls = append(msg.Calls, Call{ID: c.ID, Name: c.Function.Name, Raw: c.Function.Arguments})
			}
			q.Messages = append(q.Messages, msg)
		case "tool":
			if !open[m.ToolCallID] {
				return refuse("messages with role 'tool' must be a response to a preceding message with 'tool_calls'.")
			}
			delete(open, m.ToolCallID)
			r := Result{ID: m.ToolCallID, Text: text}
			if n := len(q.Messages); n > 0 && q.Messages[n-1].Role == "tool" {
				q.Messages[n-1].Results = append(q.Messages[n-1].Results, r)
			} else {
				q.Messages = append(q.Messages, Message{Role: "tool", Results: []Result{r}})
			}
		default:
			return refuse("Invalid value: '%s' for messages[%d].role", m.Role, i)
		}
	}
	if len(open) > 0 {
		return refuse("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.")
	}
	return nil
}

// openaiText reads content: null, text or a list of text parts.
func openaiText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Type, Text string
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", err
	}
	for _, p := range parts {
		s += p.Text
	}
	return s, nil
}

func (o openaiWire) fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, openaiFailure(status, message))
}

func openaiFailure(status int, message string) any {
	kind, code := "invalid_request_error", any(nil)
	switch status {
	case 401:
		code = "invalid_api_key"
	case 429:
		kind, code = "requests", "rate_limit_exceeded"
	case 500, 503:
		kind = "server_error"
	}
	return map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": code}}
}

func (o openaiWire) errorEvent(e *emitter) error {
	return e.event("", openaiFailure(503, "The server is overloaded"))
}

func (openaiWire) badEvent(e *emitter) error {
	return e.raw("", `{"id":"chatcmpl-fake","object":"chat.completion.chunk","choices":[{`)
}

func (openaiWire) stop(t *Turn) string {
	switch {
	case t.Stop != "":
		return t.Stop
	case len(t.Calls) > 0:
		return "tool_calls"
	}
	return "stop"
}

func (o openaiWire) usage(t *Turn, q *Request) map[string]any {
	u := t.usage(q)
	in, out := u.Input+u.CacheRead, u.Output+u.Reasoning
	m := map[string]any{
		"prompt_tokens": in, "completion_tokens": out, "total_tokens": in + out,
		"prompt_tokens_details":     map[string]any{"cached_tokens": u.CacheRead, "audio_tokens": 0},
		"completion_tokens_details": map[string]any{"reasoning_tokens": u.Reasoning, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
	}
	if o.provider == "deepseek" {
		m["prompt_cache_hit_tokens"], m["prompt_cache_miss_tokens"] = u.CacheRead, u.Input
	}
	return m
}

// reasoningMember is where the wire has the reasoning's text; OpenAI does not tell it.
func (o openaiWire) reasoningMember() string {
	switch o.provider {
	case "deepseek":
		return "reasoning_content"
	case "local":
		return "reasoning"
	}
	return ""
}

func (o openaiWire) call(c Call, q *Request, i int) openaiCall {
	x := openaiCall{ID: callID("call", c, q, i), Type: "function"}
	x.Function.Name, x.Function.Arguments = c.Name, c.arguments()
	return x
}

func (o openaiWire) whole(t *Turn, q *Request, w http.ResponseWriter) {
	msg := map[string]any{"role": "assistant", "content": t.text(), "refusal": nil}
	if m := o.reasoningMember(); m != "" && t.Reasoning != "" {
		msg[m] = t.Reasoning
	}
	var calls []openaiCall
	for i, c := range t.Calls {
		calls = append(calls, o.call(c, q, i))
	}
	if calls != nil {
		msg["tool_calls"] = calls
	}
	reply(w, http.StatusOK, map[string]any{
		"id": messageID("chatcmpl", q), "object": "chat.completion", "created": 1764460800, "model": q.Model,
		"choices": []any{map[string]any{"index": 0, "message": msg, "finish_reason": o.stop(t), "logprobs": nil}},
		"usage":   o.usage(t, q),
	})
}

func (o openaiWire) begin(t *Turn, q *Request, e *emitter) error {
	var opts openaiRequest
	_ = json.Unmarshal(q.Body, &opts) // read before
	id := messageID("chatcmpl", q)
	chunk := func(delta map[string]any, finish any) map[string]any {
		return map[string]any{
			"id": id, "object": "chat.completion.chunk", "created": 1764460800, "model": q.Model, "system_fingerprint": "fp_fake",
			"choices": []any{map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}},
		}
	}
	if err := e.event("", chunk(map[string]any{"role": "assistant", "content": "", "refusal": nil}, nil)); err != nil {
		return err
	}
	if m := o.reasoningMember(); m != "" {
		for _, p := range pieces(t.Reasoning) {
			if err := e.piece("", chunk(map[string]any{"content": nil, m: p}, nil)); err != nil {
				return err
			}
		}
	}
	for _, p := range pieces(t.text()) {
		if err := e.piece("", chunk(map[string]any{"content": p}, nil)); err != nil {
			return err
		}
	}
	for i, c := range t.Calls {
		x := o.call(c, q, i)
		arguments := x.Function.Arguments
		x.Index, x.Function.Arguments = &i, ""
		if err := e.event("", chunk(map[string]any{"tool_calls": []openaiCall{x}}, nil)); err != nil {
			return err
		}
		for _, p := range pieces(arguments) {
			part := openaiCall{Index: &i}
			part.Function.Arguments = p
			if err := e.piece("", chunk(map[string]any{"tool_calls": []openaiCall{part}}, nil)); err != nil {
				return err
			}
		}
	}
	if err := e.last(t); err != nil {
		return err
	}
	wanted := opts.StreamOptions != nil && opts.StreamOptions.IncludeUsage
	end := chunk(map[string]any{}, o.stop(t))
	if o.provider == "deepseek" && wanted {
		end["usage"] = o.usage(t, q)
	}
	if err := e.event("", end); err != nil {
		return err
	}
	if wanted && o.provider != "deepseek" {
		last := chunk(nil, nil)
		last["choices"], last["usage"] = []any{}, o.usage(t, q)
		if err := e.event("", last); err != nil {
			return err
		}
	}
	if err := e.raw("", "[DONE]"); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return e.flush()
}
