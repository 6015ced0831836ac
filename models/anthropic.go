package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	anthropicsdk "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"

	"github.com/relavium/relavium-serve/engine/agent"
)

// messages is Anthropic's Messages API.
type messages struct {
	service anthropicsdk.MessageService
}

func newAnthropic(base string, client *http.Client) *messages {
	return &messages{anthropicsdk.NewMessageService(
		option.WithBaseURL(base+"/"), option.WithHTTPClient(client), option.WithMaxRetries(0), option.WithAPIKey(placeholder),
		option.WithoutOpenTelemetry(), option.WithOpenTelemetryPropagation(false),
	)}
}

// What a thinking block is kept as, to be sent back as it came: to the model that
// thought it and to no other, since the blocks are bound to it.
type keptThinking struct {
	Type      string `json:"type"` // thinking or redacted_thinking
	Model     string `json:"model"`
	Signature string `json:"signature,omitempty"`
	Data      string `json:"data,omitempty"`
}

func (s *messages) turn(ctx context.Context, req *agent.Request, a *assembly) error {
	p, err := anthropicParams(req)
	if err != nil {
		return err
	}
	stream := s.service.NewStreaming(ctx, *p)
	defer stream.Close() //nolint:errcheck // the body tells the exchange how it ended
	t := anthropicTurn{a: a, model: req.Model, blocks: map[int64]*draft{}}
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
	if ae, ok := errors.AsType[*anthropicsdk.Error](err); ok && ae.StatusCode < http.StatusBadRequest {
		return event(ae.RawJSON())
	}
	if err == nil {
		return errCut
	}
	return err
}

// An anthropicTurn follows the events of one message.
type anthropicTurn struct {
	a      *assembly
	model  string
	blocks map[int64]*draft
	stop   anthropicsdk.StopReason
}

func (t *anthropicTurn) take(ev *anthropicsdk.MessageStreamEventUnion) error {
	switch ev.Type {
	case "message_start":
		u := ev.Message.Usage
		t.a.usage = agent.Usage{Input: u.InputTokens, Output: u.OutputTokens, CacheRead: u.CacheReadInputTokens, CacheWrite: u.CacheCreationInputTokens}
	case "content_block_start":
		return t.begin(ev.Index, &ev.ContentBlock)
	case "content_block_delta":
		return t.grow(t.blocks[ev.Index], &ev.Delta)
	case "content_block_stop":
		if d := t.blocks[ev.Index]; d != nil {
			d.closed = true
		}
	case "message_delta":
		t.stop = ev.Delta.StopReason
		u := ev.Usage
		t.a.usage.Output = max(t.a.usage.Output, u.OutputTokens)
		if u.JSON.InputTokens.Valid() { // the counts of a delta are cumulative
			t.a.usage.Input = max(t.a.usage.Input, u.InputTokens)
			t.a.usage.CacheRead = max(t.a.usage.CacheRead, u.CacheReadInputTokens)
			t.a.usage.CacheWrite = max(t.a.usage.CacheWrite, u.CacheCreationInputTokens)
		}
	case "message_stop":
		t.a.ended(anthropicStop(t.stop))
	}
	return nil
}

// begin starts a content block.
func (t *anthropicTurn) begin(index int64, b *anthropicsdk.ContentBlockStartEventContentBlockUnion) error {
	a := t.a
	switch b.Type {
	case "text", "thinking", "redacted_thinking":
		kind := textDraft
		if b.Type != "text" {
			kind = reasoningDraft
		}
		d := &draft{kind: kind}
		if kind == reasoningDraft {
			d.opaque = keep(keptThinking{Type: b.Type, Model: t.model, Signature: b.Signature, Data: b.Data})
			if err := a.grow(len(b.Data)); err != nil {
				return err
			}
		}
		a.parts = append(a.parts, d)
		t.blocks[index] = d
		if err := a.text(b.Text); err != nil {
			return err
		}
		return a.reasoning(b.Thinking)
	case "tool_use", "server_tool_use":
		d, err := a.call(b.ID, b.Name)
		if err != nil {
			return err
		}
		d.executed = b.Type == "server_tool_use"
		t.blocks[index] = d
	}
	return nil
}

// grow adds a delta to its block.
func (t *anthropicTurn) grow(d *draft, delta *anthropicsdk.MessageStreamEventUnionDelta) error {
	if d == nil {
		return nil // of a block that is not kept
	}
	switch delta.Type {
	case "text_delta":
		return t.a.text(delta.Text)
	case "thinking_delta":
		return t.a.reasoning(delta.Thinking)
	case "signature_delta":
		var k keptThinking
		if err := json.Unmarshal(d.opaque, &k); err != nil {
			return err
		}
		k.Signature += delta.Signature
		d.opaque = keep(k)
		return t.a.grow(len(delta.Signature))
	case "input_json_delta":
		return t.a.arguments(d, delta.PartialJSON)
	}
	return nil
}

// keep encodes what goes back to the provider.
func keep(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return b
}

func anthropicStop(r anthropicsdk.StopReason) agent.Stop {
	switch string(r) {
	case "max_tokens", "model_context_window_exceeded":
		return agent.StopLength
	case "tool_use":
		return agent.StopToolUse
	case "refusal":
		return agent.StopFilter
	}
	return agent.StopEnd
}

// anthropicParams builds a request. Temperature is not a parameter of this version of
// the API and is left out.
func anthropicParams(req *agent.Request) (*anthropicsdk.MessageNewParams, error) {
	m := claude(req.Model)
	p := &anthropicsdk.MessageNewParams{Model: req.Model, MaxTokens: int64(req.MaxTokens)}
	if p.MaxTokens <= 0 {
		p.MaxTokens = m.limit()
	}
	m.think(p, req.Effort)
	system := req.System
	if req.Schema != nil {
		n, err := parseNode(req.Schema)
		if err != nil {
			return nil, &agent.ModelError{Kind: agent.BadRequest, Message: "the reply's schema is no JSON", Err: err}
		}
		if n.isObject() && n.closed() {
			p.OutputConfig.Format = anthropicsdk.JSONOutputFormatParam{Schema: n.top()}
		} else {
			system = schemaPrompt(system, req.Schema)
		}
	}
	if system != "" {
		p.System = []anthropicsdk.TextBlockParam{{Text: system}}
	}
	for _, t := range req.Tools {
		n := toolSchema(t.Schema)
		n.drop("type")
		tool := anthropicsdk.ToolParam{Name: t.Name, InputSchema: anthropicsdk.ToolInputSchemaParam{ExtraFields: n.top()}}
		if t.Description != "" {
			tool.Description = param.NewOpt(t.Description)
		}
		p.Tools = append(p.Tools, anthropicsdk.ToolUnionParam{OfTool: &tool})
	}
	p.Messages = anthropicMessages(req.Messages, req.Model)
	if p.Thinking.OfEnabled != nil && thoughtless(req.Messages, req.Model) {
		p.Thinking = anthropicsdk.ThinkingConfigParamUnion{}
	}
	return p, nil
}

// anthropicMessages lowers a conversation: the API has user and assistant take turns,
// and wants the results of tools at the head of the user's.
func anthropicMessages(in []agent.Message, model string) []anthropicsdk.MessageParam {
	var out []anthropicsdk.MessageParam
	var said []anthropicsdk.ContentBlockParamUnion
	flush := func(assistant bool) {
		switch {
		case len(said) == 0:
			return
		case assistant:
			out = append(out, anthropicsdk.NewAssistantMessage(said...))
		default:
			out = append(out, anthropicsdk.NewUserMessage(said...))
		}
		said = nil
	}
	assistant := false
	for _, m := range in {
		if now := m.Role == agent.Assistant; now != assistant {
			flush(assistant)
			assistant = now
		}
		for _, part := range m.Parts {
			if b, ok := anthropicBlock(part, model); ok {
				said = append(said, b)
			}
		}
	}
	flush(assistant)
	return out
}

// thoughtless tells whether the tool loop goes on from a turn without thinking, as
// after a fallback: a budget of thinking is refused then, until the loop ends.
func thoughtless(in []agent.Message, model string) bool {
	for i := len(in) - 1; i >= 0 && in[i].Role != agent.User; i-- {
		if in[i].Role != agent.Assistant {
			continue
		}
		for _, part := range in[i].Parts {
			if b, ok := anthropicBlock(part, model); ok {
				return b.OfThinking == nil && b.OfRedactedThinking == nil
			}
		}
	}
	return false
}

func anthropicBlock(part agent.Part, model string) (anthropicsdk.ContentBlockParamUnion, bool) {
	switch {
	case part.Reasoning != nil:
		var k keptThinking
		if part.Reasoning.Provider != Anthropic || json.Unmarshal(part.Reasoning.Opaque, &k) != nil || k.Model != model {
			break
		}
		if k.Type == "redacted_thinking" {
			return anthropicsdk.NewRedactedThinkingBlock(k.Data), true
		}
		if k.Signature != "" { // one that was cut before its signature is not taken back
			return anthropicsdk.NewThinkingBlock(k.Signature, part.Reasoning.Text), true
		}
	case part.Call != nil:
		return anthropicsdk.NewToolUseBlock(part.Call.ID, object(part.Call.Arguments), part.Call.Name), true
	case part.Result != nil:
		r := anthropicsdk.ToolResultBlockParam{ToolUseID: part.Result.ID}
		if part.Result.IsError {
			r.IsError = param.NewOpt(true)
		}
		if strings.TrimSpace(part.Result.Text) != "" {
			r.Content = []anthropicsdk.ToolResultBlockParamContentUnion{{OfText: &anthropicsdk.TextBlockParam{Text: part.Result.Text}}}
		}
		return anthropicsdk.ContentBlockParamUnion{OfToolResult: &r}, true
	case strings.TrimSpace(part.Text) != "":
		return anthropicsdk.NewTextBlock(part.Text), true
	}
	return anthropicsdk.ContentBlockParamUnion{}, false
}

// A claudeModel is what a model's name says of its generation.
type claudeModel struct {
	family       string
	major, minor int // 4 and 5 for claude-haiku-4-5-20251001; 0 if the name has none
}

// claude reads a name in either order: claude-sonnet-4-5, claude-3-7-sonnet.
func claude(model string) claudeModel {
	var m claudeModel
	for part := range strings.SplitSeq(strings.TrimPrefix(model, "claude-"), "-") {
		n, err := strconv.Atoi(part)
		switch {
		case err != nil && m.family == "":
			m.family = part
		case err != nil || n > 99: // a date
		case m.major == 0:
			m.major = n
		case m.minor == 0:
			m.minor = n
		}
	}
	return m
}

// since tells whether a model is of that generation or a later one; one without a
// number is new.
func (m claudeModel) since(major, minor int) bool {
	return m.major == 0 || m.major > major || m.major == major && m.minor >= minor
}

// adaptive models choose how much they think, within an effort; the older ones take a
// budget of tokens.
func (m claudeModel) adaptive() bool {
	return m.since(4, 6)
}

// limit is max_tokens where the request has none.
func (m claudeModel) limit() int64 {
	switch {
	case m.adaptive():
		return 16 << 10 // thinking counts
	case !m.since(3, 7):
		return 4 << 10
	}
	return 8 << 10
}

// think sets thinking and effort.
func (m claudeModel) think(p *anthropicsdk.MessageNewParams, effort string) {
	switch {
	case effort == "" || !m.since(3, 7):
	case !m.adaptive():
		m.budget(p, effort)
	case effort == "off":
		switch {
		case m.family == "fable" || m.family == "mythos" || m.major == 0:
			p.OutputConfig.Effort = anthropicsdk.OutputConfigEffortLow // they always think
		case m.since(5, 0):
			d := anthropicsdk.NewThinkingConfigDisabledParam()
			p.Thinking.OfDisabled = &d
		} // the 4.6 to 4.8 do not think unless asked
	default:
		p.Thinking.OfAdaptive = &anthropicsdk.ThinkingConfigAdaptiveParam{Display: anthropicsdk.ThinkingConfigAdaptiveDisplaySummarized}
		p.OutputConfig.Effort = anthropicsdk.OutputConfigEffort(effort)
		if effort == "max" && m.family == "sonnet" && !m.since(5, 0) {
			p.OutputConfig.Effort = anthropicsdk.OutputConfigEffortHigh
		}
	}
}

// budget sets a thinking budget, which must be at least 1024 and leave room in
// max_tokens.
func (m claudeModel) budget(p *anthropicsdk.MessageNewParams, effort string) {
	const least = 1024
	tokens := map[string]int64{"low": 2 << 10, "medium": 8 << 10, "high": 16 << 10, "max": 31 << 10}[effort]
	if tokens == 0 {
		return
	}
	if p.MaxTokens == m.limit() { // ours, so it may grow
		p.MaxTokens += tokens
	}
	if tokens = min(tokens, p.MaxTokens/2); tokens >= least {
		p.Thinking = anthropicsdk.ThinkingConfigParamOfEnabled(tokens)
	}
}
