package models

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/genai"

	"github.com/relavium/relavium-serve/engine/agent"
)

// gemini is the Gemini API's streamGenerateContent.
type gemini struct {
	base   string
	client *http.Client

	mu  sync.Mutex
	sdk *genai.Client
}

// models returns the SDK's client, made when it is first needed: its constructor
// wants a context.
func (g *gemini) models(ctx context.Context) (*genai.Models, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sdk == nil {
		c, err := genai.NewClient(context.WithoutCancel(ctx), &genai.ClientConfig{
			APIKey: placeholder, Backend: genai.BackendGeminiAPI, HTTPClient: g.client,
			HTTPOptions: genai.HTTPOptions{BaseURL: g.base + "/", APIVersion: "v1beta"},
		})
		if err != nil {
			return nil, err
		}
		g.sdk = c
	}
	return g.sdk.Models, nil
}

// keptGemini is what of a part goes back to Gemini beside what it says.
type keptGemini struct {
	Signature []byte `json:"signature,omitempty"`
	ID        string `json:"id,omitempty"` // of a call, where Gemini gave one
	Text      bool   `json:"text,omitempty"`
}

func (g *gemini) turn(ctx context.Context, req *agent.Request, a *assembly) error {
	models, err := g.models(ctx)
	if err != nil {
		return err
	}
	config, err := geminiConfig(req)
	if err != nil {
		return err
	}
	finished := false
	for res, err := range models.GenerateContentStream(ctx, req.Model, geminiContents(req), config) {
		if err != nil {
			if finished {
				break
			}
			return geminiError(err, a)
		}
		ended, err := geminiTake(res, a)
		if err != nil {
			return err
		}
		finished = finished || ended
	}
	if !finished {
		return errCut
	}
	return nil
}

// geminiError tells an error event from the rest.
func geminiError(err error, a *assembly) error {
	if ae, ok := errors.AsType[genai.APIError](err); ok && !a.x.refused() {
		b, merr := json.Marshal(map[string]any{"error": ae})
		if merr != nil {
			return err
		}
		return event(string(b))
	}
	return err
}

// refused tells whether the answer was a status from 400 on.
func (x *exchange) refused() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.status >= http.StatusBadRequest
}

// geminiTake adds one response of a stream to the turn and tells whether it was the
// last that has content.
func geminiTake(res *genai.GenerateContentResponse, a *assembly) (bool, error) {
	if u := res.UsageMetadata; u != nil {
		a.usage = geminiUsage(u)
	}
	if f := res.PromptFeedback; f != nil && f.BlockReason != "" {
		a.ended(agent.StopFilter)
		return true, nil
	}
	ended := false
	for _, c := range res.Candidates {
		if c.Index != 0 {
			continue
		}
		if c.Content != nil {
			for _, p := range c.Content.Parts {
				if err := geminiPart(p, a); err != nil {
					return false, err
				}
			}
		}
		if c.FinishReason != "" && c.FinishReason != genai.FinishReasonUnspecified {
			stop, err := geminiStop(c.FinishReason, a)
			if err != nil {
				return false, err
			}
			a.ended(stop)
			ended = true
		}
	}
	return ended, nil
}

func geminiPart(p *genai.Part, a *assembly) error {
	switch {
	case p.FunctionCall != nil:
		args := json.RawMessage("{}")
		if len(p.FunctionCall.Args) > 0 {
			b, err := json.Marshal(p.FunctionCall.Args)
			if err != nil {
				return err
			}
			args = b
		}
		d, err := a.call(p.FunctionCall.ID, p.FunctionCall.Name)
		if err != nil {
			return err
		}
		if len(p.ThoughtSignature) > 0 || p.FunctionCall.ID != "" {
			d.opaque = keep(keptGemini{Signature: p.ThoughtSignature, ID: p.FunctionCall.ID})
		}
		return a.arguments(d, string(args))
	case p.Thought:
		if err := a.reasoning(p.Text); err != nil {
			return err
		}
	default:
		if err := a.text(p.Text); err != nil {
			return err
		}
	}
	if len(p.ThoughtSignature) == 0 {
		return nil
	}
	// A signature outside a call is kept beside the text before it, as a reasoning part
	// of its own that says nothing.
	a.parts = append(a.parts, &draft{kind: reasoningDraft, closed: true, opaque: keep(keptGemini{Signature: p.ThoughtSignature, Text: !p.Thought})})
	return a.grow(len(p.ThoughtSignature))
}

func geminiUsage(u *genai.GenerateContentResponseUsageMetadata) agent.Usage {
	in := int64(u.PromptTokenCount) + int64(u.ToolUsePromptTokenCount)
	read := min(max(int64(u.CachedContentTokenCount), 0), in)
	return agent.Usage{Input: in - read, Output: int64(u.CandidatesTokenCount) + int64(u.ThoughtsTokenCount), CacheRead: read}
}

func geminiStop(r genai.FinishReason, a *assembly) (agent.Stop, error) {
	switch r { //nolint:exhaustive // what is not here is told below
	case genai.FinishReasonStop:
		return agent.StopEnd, nil
	case genai.FinishReasonMaxTokens, genai.FinishReasonContinuation:
		return agent.StopLength, nil
	case genai.FinishReasonSafety, genai.FinishReasonRecitation, genai.FinishReasonBlocklist,
		genai.FinishReasonProhibitedContent, genai.FinishReasonSPII, genai.FinishReasonLanguage:
		return agent.StopFilter, nil
	case genai.FinishReasonMalformedFunctionCall, genai.FinishReasonUnexpectedToolCall, genai.FinishReasonTooManyToolCalls:
		return "", &agent.ModelError{Kind: agent.Transport, Message: "the model's tool call could not be read by its provider"}
	}
	if a.has(textDraft) || a.has(callDraft) {
		return agent.StopEnd, nil
	}
	return "", &agent.ModelError{Kind: agent.Overloaded, Message: "the provider ended the turn without an answer"}
}

// geminiConfig builds what is not the conversation.
func geminiConfig(req *agent.Request) (*genai.GenerateContentConfig, error) {
	c := &genai.GenerateContentConfig{MaxOutputTokens: int32(min(max(req.MaxTokens, 0), 1<<30)), AutomaticContinuation: new(bool)}
	if t, ok := number(req.Temperature); ok {
		c.Temperature = new(float32(t))
	}
	m := geminiName(req.Model)
	c.ThinkingConfig = m.think(req.Effort)
	system := req.System
	if req.Schema != nil {
		n, err := parseNode(req.Schema)
		if err != nil {
			return nil, &agent.ModelError{Kind: agent.BadRequest, Message: "the reply's schema is no JSON", Err: err}
		}
		// Before the third generation a schema and tools exclude each other.
		if (len(req.Tools) == 0 || m.version >= 3) && m.version >= 2.5-1e-9 && n.geminiSubset() {
			c.ResponseMIMEType, c.ResponseJsonSchema = "application/json", n
		} else {
			system = schemaPrompt(system, req.Schema)
		}
	}
	if system != "" {
		c.SystemInstruction = &genai.Content{Parts: []*genai.Part{{Text: system}}}
	}
	if len(req.Tools) > 0 {
		tool := &genai.Tool{}
		for _, t := range req.Tools {
			n := toolSchema(t.Schema)
			f := &genai.FunctionDeclaration{Name: t.Name, Description: t.Description}
			if n.get("properties") != nil { // one without parameters is declared without a schema
				n.geminiSubset()
				f.ParametersJsonSchema = n
			}
			tool.FunctionDeclarations = append(tool.FunctionDeclarations, f)
		}
		c.Tools = []*genai.Tool{tool}
	}
	return c, nil
}

// geminiContents lowers a conversation. Each role's neighbouring messages are one.
func geminiContents(req *agent.Request) []*genai.Content {
	var out []*genai.Content
	for _, m := range req.Messages {
		role := genai.RoleUser
		if m.Role == agent.Assistant {
			role = genai.RoleModel
		}
		var parts []*genai.Part
		for _, p := range m.Parts {
			parts = geminiLower(parts, p)
		}
		if len(parts) == 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].Role == role {
			out[n-1].Parts = append(out[n-1].Parts, parts...)
			continue
		}
		out = append(out, &genai.Content{Role: role, Parts: parts})
	}
	if geminiName(req.Model).version >= 3 {
		for _, c := range out {
			signCalls(c)
		}
	}
	return out
}

// unsigned stands for the signature of a call that another model made. The models of
// the third generation want one, and take this by their guide to thought signatures.
const unsigned = "skip_thought_signature_validator"

// signCalls gives a step's first call the placeholder if none of its calls is signed.
func signCalls(c *genai.Content) {
	var first *genai.Part
	for _, p := range c.Parts {
		switch {
		case p.FunctionCall == nil:
		case len(p.ThoughtSignature) > 0:
			return
		case first == nil:
			first = p
		}
	}
	if first != nil {
		first.ThoughtSignature = []byte(unsigned)
	}
}

func geminiLower(parts []*genai.Part, p agent.Part) []*genai.Part {
	var k keptGemini
	switch {
	case p.Reasoning != nil:
		if p.Reasoning.Provider != Gemini || json.Unmarshal(p.Reasoning.Opaque, &k) != nil || len(k.Signature) == 0 {
			return parts // thoughts go back by their signature alone
		}
		if n := len(parts); k.Text && n > 0 && parts[n-1].Text != "" {
			parts[n-1].ThoughtSignature = k.Signature
			return parts
		}
		return append(parts, &genai.Part{ThoughtSignature: k.Signature, Text: " "})
	case p.Call != nil:
		c := &genai.Part{FunctionCall: &genai.FunctionCall{Name: p.Call.Name}}
		if json.Unmarshal(object(p.Call.Arguments), &c.FunctionCall.Args) != nil {
			c.FunctionCall.Args = nil
		}
		if p.Call.Provider == Gemini && json.Unmarshal(p.Call.Opaque, &k) == nil {
			c.ThoughtSignature, c.FunctionCall.ID = k.Signature, k.ID
		}
		return append(parts, c)
	case p.Result != nil:
		member := "output"
		if p.Result.IsError {
			member = "error"
		}
		return append(parts, &genai.Part{FunctionResponse: &genai.FunctionResponse{Name: p.Result.Name, Response: map[string]any{member: p.Result.Text}}})
	case p.Text != "":
		return append(parts, &genai.Part{Text: p.Text})
	}
	return parts
}

// A geminiModel is what a model's name says of its generation.
type geminiModel struct {
	name    string
	version float64 // 0 if the name has none
}

func geminiName(model string) geminiModel {
	model = strings.TrimPrefix(model, "models/")
	v, _, _ := strings.Cut(strings.TrimPrefix(model, "gemini-"), "-")
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !strings.HasPrefix(model, "gemini-") {
		f = 0
	}
	if strings.HasPrefix(model, "gemini-") && strings.HasSuffix(model, "-latest") && f == 0 {
		f = 3.5
	}
	return geminiModel{model, f}
}

// think is the thinking of a request; nil leaves it to the model.
func (m geminiModel) think(effort string) *genai.ThinkingConfig {
	switch {
	case effort == "" || m.version < 2.5-1e-9:
		return nil
	case m.version < 3:
		return m.budget(effort)
	case effort == "off":
		return &genai.ThinkingConfig{ThinkingLevel: genai.ThinkingLevelLow} // the least that all of them have
	}
	c := &genai.ThinkingConfig{IncludeThoughts: true, ThinkingLevel: genai.ThinkingLevelHigh}
	switch {
	case effort == "low":
		c.ThinkingLevel = genai.ThinkingLevelLow
	case effort == "medium" && !strings.HasPrefix(m.name, "gemini-3-pro"): // which has two levels
		c.ThinkingLevel = genai.ThinkingLevelMedium
	}
	return c
}

// budget is the thinking of the 2.5 models, in tokens.
func (m geminiModel) budget(effort string) *genai.ThinkingConfig {
	pro := strings.Contains(m.name, "pro")
	tokens := map[string]int32{"low": 1 << 10, "medium": 8 << 10, "high": 16 << 10, "max": 24576}[effort]
	if effort == "max" && pro {
		tokens = 32 << 10
	}
	if effort == "off" && pro {
		tokens = 128 // it cannot be turned off
	}
	return &genai.ThinkingConfig{ThinkingBudget: &tokens, IncludeThoughts: effort != "off"}
}
