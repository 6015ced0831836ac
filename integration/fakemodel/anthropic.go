package fakemodel

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// anthropicWire is the Messages API, versions 2023-06-01 and 2026-10-21.
type anthropicWire struct{}

func (anthropicWire) key(r *http.Request) string { return r.Header.Get("X-Api-Key") }

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
}

type anthropicRequest struct {
	Model     string          `json:"model"`
	MaxTokens int             `json:"max_tokens"`
	System    json.RawMessage `json:"system"`
	Stream    bool            `json:"stream"`
	Messages  []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
	Tools []struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
	Temperature *float64 `json:"temperature"`
	Thinking    *struct {
		Type   string `json:"type"`
		Budget int    `json:"budget_tokens"`
	} `json:"thinking"`
	OutputConfig *struct {
		Effort string `json:"effort"`
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

// sign is what this fake signs a thinking block with.
func sign(text string) string {
	sum := sha256.Sum256([]byte("fakemodel\x00" + text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (anthropicWire) read(r *http.Request, body []byte, q *Request) error {
	version := r.Header.Get("Anthropic-Version")
	if version != "2023-06-01" && version != "2026-10-21" {
		return refuse("anthropic-version: %q is not a version", version)
	}
	var top map[string]json.RawMessage
	var in anthropicRequest
	if err := json.Unmarshal(body, &top); err != nil {
		return refuse("body is no JSON object")
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return refuse("%v", err)
	}
	q.Model, q.MaxTokens, q.Stream = in.Model, in.MaxTokens, in.Stream
	names := "model max_tokens system messages tools tool_choice stop_sequences stream thinking output_config metadata service_tier"
	if version == "2023-06-01" {
		names += " temperature top_p top_k"
	}
	if k := unknown(top, names); k != "" {
		return refuse("%s: Extra inputs are not permitted", k)
	}
	var err error
	if q.System, err = anthropicText(in.System); err != nil {
		return refuse("system: %v", err)
	}
	for _, t := range in.Tools {
		if !toolName(128).MatchString(t.Name) {
			return refuse("tools: name %q does not match ^[a-zA-Z0-9_-]{1,128}$", t.Name)
		}
		if !isObjectSchema(t.Schema) {
			return refuse("tools: input_schema.type must be object")
		}
		q.Tools = append(q.Tools, t.Name)
	}
	thinking := in.Thinking != nil && in.Thinking.Type != "disabled"
	if in.OutputConfig != nil {
		q.Effort = in.OutputConfig.Effort
		if f := in.OutputConfig.Format; f != nil {
			if f.Type != "json_schema" {
				return refuse("output_config.format.type: %q", f.Type)
			}
			q.Schema, q.Format = f.Schema, f.Type
			if at := openObject(f.Schema); at != "" {
				return refuse("output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false (%s)", at)
			}
		}
	}
	for i, m := range in.Messages {
		blocks, err := anthropicBlocks(m.Content)
		if err != nil {
			return refuse("messages.%d: %v", i, err)
		}
		msg, err := anthropicMessage(in.Model, m.Role, blocks)
		if err != nil {
			return refuse("messages.%d: %v", i, err)
		}
		q.Messages = append(q.Messages, msg...)
		// With adaptive thinking earlier turns need not begin with it.
		if thinking && in.Thinking.Type == "enabled" && m.Role == "assistant" && i == len(in.Messages)-2 && hasToolUse(blocks) && !strings.HasSuffix(blocks[0].Type, "thinking") {
			return refuse("messages.%d.content.0.type: Expected `thinking` or `redacted_thinking`, but found `%s`", i, blocks[0].Type)
		}
		if i > 0 {
			before, _ := anthropicBlocks(in.Messages[i-1].Content)
			if err := answered(before, blocks); err != nil {
				return refuse("messages.%d: %v", i, err)
			}
		}
	}
	switch {
	case in.Model == "":
		return refuse("model: Field required")
	case in.MaxTokens <= 0:
		return refuse("max_tokens: Field required")
	case len(in.Messages) == 0 || in.Messages[0].Role != "user":
		return refuse("messages: first message must use the user role")
	case thinking && in.Temperature != nil && *in.Temperature != 1:
		return refuse("`temperature` may only be set to 1 when thinking is enabled")
	case thinking && in.Thinking.Type == "enabled" && (in.Thinking.Budget < 1024 || in.Thinking.Budget >= in.MaxTokens):
		return refuse("thinking.enabled.budget_tokens: must be at least 1024 and less than max_tokens")
	}
	if thinking && in.Thinking.Type == "enabled" {
		q.Effort = fmt.Sprint(in.Thinking.Budget)
	}
	return nil
}

// answered checks that the tool calls of one message are answered by the next.
func answered(before, blocks []anthropicBlock) error {
	open := map[string]bool{}
	for _, b := range before {
		if b.Type == "tool_use" {
			open[b.ID] = true
		}
	}
	for _, b := range blocks {
		if b.Type == "tool_result" {
			if !open[b.ToolUseID] {
				return fmt.Errorf("unexpected `tool_use_id` found in `tool_result` blocks: %s", b.ToolUseID)
			}
			delete(open, b.ToolUseID)
		}
	}
	for id := range open {
		return fmt.Errorf("`tool_use` ids were found without `tool_result` blocks immediately after: %s", id)
	}
	return nil
}

func hasToolUse(blocks []anthropicBlock) bool {
	for _, b := range blocks {
		if b.Type == "tool_use" {
			return true
		}
	}
	return false
}

func anthropicText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	blocks, err := anthropicBlocks(raw)
	var b strings.Builder
	for _, x := range blocks {
		b.WriteString(x.Text)
	}
	return b.String(), err
}

// anthropicBlocks reads content, which is text or a list of blocks.
func anthropicBlocks(raw json.RawMessage) ([]anthropicBlock, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []anthropicBlock{{Type: "text", Text: text}}, nil
	}
	var blocks []anthropicBlock
	if err := json.Unmarshal(raw, &blocks); err != nil {
		return nil, err
	}
	if len(blocks) == 0 {
		return nil, fmt.Errorf("content: must not be empty")
	}
	return blocks, nil
}

// anthropicMessage reads one message; its tool results become a message of their own.
func anthropicMessage(model, role string, blocks []anthropicBlock) ([]Message, error) {
	m, results := Message{Role: role}, Message{Role: "tool"}
	for _, b := range blocks {
		user := role == "user"
		switch {
		case role != "user" && role != "assistant":
			return nil, fmt.Errorf("role: %q", role)
		case b.Type == "text":
			if strings.TrimSpace(b.Text) == "" {
				return nil, fmt.Errorf("text content blocks must contain non-whitespace text")
			}
			m.Text += b.Text
		case b.Type == "thinking" && !user:
			if b.Signature != sign(model+"\x00"+b.Thinking) { // the models' own blocks alone
				return nil, fmt.Errorf("invalid `signature` in `thinking` block")
			}
			m.Reasoning += b.Thinking
		case b.Type == "redacted_thinking" && !user:
			if !strings.HasPrefix(b.Data, "redacted:") {
				return nil, fmt.Errorf("invalid `data` in `redacted_thinking` block")
			}
		case b.Type == "tool_use" && !user:
			var object map[string]any
			if err := json.Unmarshal(b.Input, &object); err != nil || object == nil {
				return nil, fmt.Errorf("tool_use.input: Input should be a valid dictionary")
			}
			m.Calls = append(m.Calls, Call{ID: b.ID, Name: b.Name, Arguments: b.Input})
		case b.Type == "tool_result" && user:
			if m.Text != "" {
				return nil, fmt.Errorf("`tool_result` blocks must come first")
			}
			text, err := anthropicText(b.Content)
			if err != nil {
				return nil, err
			}
			results.Results = append(results.Results, Result{ID: b.ToolUseID, Text: text, IsError: b.IsError})
		default:
			return nil, fmt.Errorf("content: %q of a %s is not expected", b.Type, role)
		}
	}
	var out []Message
	if results.Results != nil {
		out = append(out, results)
	}
	if m.Text != "" || m.Reasoning != "" || m.Calls != nil || out == nil {
		out = append(out, m)
	}
	return out, nil
}

func (anthropicWire) fail(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Request-Id", "req_fake")
	reply(w, status, anthropicFailure(status, message))
}

func anthropicFailure(status int, message string) any {
	kind := map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
		404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error", 529: "overloaded_error",
	}[status]
	if kind == "" {
		kind = "api_error"
	}
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": message}, "request_id": "req_fake"}
}

func (anthropicWire) errorEvent(e *emitter) error {
	return e.event("error", anthropicFailure(529, "Overloaded"))
}

func (anthropicWire) badEvent(e *emitter) error {
	return e.raw("content_block_delta", `{"type":"content_block_delta","index":`)
}

// blocks is the content of an answer.
func (anthropicWire) blocks(t *Turn, q *Request) []map[string]any {
	var out []map[string]any
	if t.Reasoning != "" {
		out = append(out, map[string]any{"type": "thinking", "thinking": t.Reasoning, "signature": sign(q.Model + "\x00" + t.Reasoning)})
	}
	if t.Redacted != "" {
		out = append(out, map[string]any{"type": "redacted_thinking", "data": "redacted:" + t.Redacted})
	}
	if s := t.text(); s != "" {
		out = append(out, map[string]any{"type": "text", "text": s})
	}
	for i, c := range t.Calls {
		out = append(out, map[string]any{"type": "tool_use", "id": callID("toolu", c, q, i), "name": c.Name, "input": json.RawMessage(c.arguments())})
	}
	return out
}

func (anthropicWire) stop(t *Turn) string {
	switch {
	case t.Stop == "length":
		return "max_tokens"
	case t.Stop == "content_filter":
		return "refusal"
	case len(t.Calls) > 0:
		return "tool_use"
	}
	return "end_turn"
}

func (a anthropicWire) message(t *Turn, q *Request, content []map[string]any, stop any, output int) map[string]any {
	u := t.usage(q)
	return map[string]any{
		"id": messageID("msg", q), "type": "message", "role": "assistant", "model": q.Model, "content": content,
		"stop_reason": stop, "stop_sequence": nil,
		"usage": map[string]any{
			"input_tokens": u.Input, "output_tokens": output, "service_tier": "standard",
			"cache_creation_input_tokens": u.CacheWrite, "cache_read_input_tokens": u.CacheRead,
		},
	}
}

func (a anthropicWire) whole(t *Turn, q *Request, w http.ResponseWriter) {
	u := t.usage(q)
	reply(w, http.StatusOK, a.message(t, q, a.blocks(t, q), a.stop(t), u.Output+u.Reasoning))
}

func (a anthropicWire) begin(t *Turn, q *Request, e *emitter) error {
	start := map[string]any{"type": "message_start", "message": a.message(t, q, []map[string]any{}, nil, 1)}
	if err := e.event("message_start", start); err != nil {
		return err
	}
	if err := e.event("ping", map[string]any{"type": "ping"}); err != nil {
		return err
	}
	if err := e.flush(); err != nil {
		return err
	}
	for i, b := range a.blocks(t, q) {
		if err := a.block(i, b, e); err != nil {
			return err
		}
	}
	if err := e.last(t); err != nil {
		return err
	}
	u := t.usage(q)
	if err := e.event("message_delta", map[string]any{
		"type": "message_delta", "delta": map[string]any{"stop_reason": a.stop(t), "stop_sequence": nil},
		"usage": map[string]any{"output_tokens": u.Output + u.Reasoning},
	}); err != nil {
		return err
	}
	if err := e.event("message_stop", map[string]any{"type": "message_stop"}); err != nil {
		return err
	}
	return e.flush()
}

// block streams one content block.
func (anthropicWire) block(i int, b map[string]any, e *emitter) error {
	first := map[string]any{"type": b["type"]}
	var kind, member, text string
	switch b["type"] {
	case "thinking":
		first["thinking"], first["signature"] = "", ""
		kind, member, text = "thinking_delta", "thinking", fmt.Sprint(b["thinking"])
	case "redacted_thinking":
		first = b
	case "text":
		first["text"] = ""
		kind, member, text = "text_delta", "text", fmt.Sprint(b["text"])
	case "tool_use":
		first["id"], first["name"], first["input"] = b["id"], b["name"], map[string]any{}
		kind, member, text = "input_json_delta", "partial_json", fmt.Sprintf("%s", b["input"])
	}
	if err := e.event("content_block_start", map[string]any{"type": "content_block_start", "index": i, "content_block": first}); err != nil {
		return err
	}
	delta := func(kind, member, text string) any {
		return map[string]any{"type": "content_block_delta", "index": i, "delta": map[string]any{"type": kind, member: text}}
	}
	for _, p := range pieces(text) {
		if err := e.piece("content_block_delta", delta(kind, member, p)); err != nil {
			return err
		}
	}
	if b["type"] == "thinking" {
		if err := e.event("content_block_delta", delta("signature_delta", "signature", fmt.Sprint(b["signature"]))); err != nil {
			return err
		}
	}
	if err := e.event("content_block_stop", map[string]any{"type": "content_block_stop", "index": i}); err != nil {
		return err
	}
	return e.flush()
}

// toolName is what names of tools match, up to n characters.
func toolName(n int) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`^[a-zA-Z0-9_-]{1,%d}$`, n))
}

func isObjectSchema(raw json.RawMessage) bool {
	var s struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(raw, &s) == nil && s.Type == "object"
}

// openObject returns the place of the first object in a schema that does not say
// additionalProperties: false.
func openObject(raw json.RawMessage) string {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return "not a schema"
	}
	return walkOpen(v, "#")
}

func walkOpen(v any, at string) string {
	switch v := v.(type) {
	case []any:
		for i, x := range v {
			if s := walkOpen(x, fmt.Sprintf("%s/%d", at, i)); s != "" {
				return s
			}
		}
	case map[string]any:
		if v["type"] == "object" && v["additionalProperties"] != false {
			return at
		}
		for k, x := range v {
			if k == "enum" || k == "const" || k == "required" {
				continue
			}
			if s := walkOpen(x, at+"/"+k); s != "" {
				return s
			}
		}
	}
	return ""
}

// callID is the id of the i-th call of a turn, the same whenever it is asked for.
func callID(prefix string, c Call, q *Request, i int) string {
	if c.ID != "" {
		return c.ID
	}
	return fmt.Sprintf("%s_%s_%d", prefix, q.digest(), i)
}

func messageID(prefix string, q *Request) string { return prefix + "_" + q.digest() }
