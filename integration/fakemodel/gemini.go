package fakemodel

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// geminiWire is the Gemini API's generateContent and streamGenerateContent, v1beta.
type geminiWire struct{}

func (geminiWire) key(r *http.Request) string { return r.Header.Get("X-Goog-Api-Key") }

type geminiPart struct {
	Text             string `json:"text,omitempty"`
	Thought          bool   `json:"thought,omitempty"`
	ThoughtSignature string `json:"thoughtSignature,omitempty"`
	FunctionCall     *struct {
		ID   string          `json:"id,omitempty"`
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	} `json:"functionCall,omitempty"`
	FunctionResponse *struct {
		ID       string          `json:"id"`
		Name     string          `json:"name"`
		Response json.RawMessage `json:"response"`
	} `json:"functionResponse,omitempty"`
}

type geminiContent struct {
	Role  string       `json:"role"`
	Parts []geminiPart `json:"parts"`
}

type geminiRequest struct {
	Contents          []geminiContent `json:"contents"`
	SystemInstruction *geminiContent  `json:"systemInstruction"`
	Tools             []struct {
		FunctionDeclarations []struct {
			Name                 string          `json:"name"`
			Description          string          `json:"description"`
			Parameters           json.RawMessage `json:"parameters"`
			ParametersJSONSchema json.RawMessage `json:"parametersJsonSchema"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
	ToolConfig       json.RawMessage            `json:"toolConfig"`
	SafetySettings   json.RawMessage            `json:"safetySettings"`
	GenerationConfig map[string]json.RawMessage `json:"generationConfig"`
}

// lacking reports the reason why a model cannot think in the way a request asks for.
func lacking(model string, thinking map[string]json.RawMessage) string {
	switch {
	case len(thinking) == 0:
	case strings.HasPrefix(model, "gemini-2.0"), strings.HasPrefix(model, "gemini-1."):
		return "Thinking is not enabled for " + model
	case strings.HasPrefix(model, "gemini-2.5") && thinking["thinkingLevel"] != nil:
		return "Thinking level is not supported for this model."
	case strings.HasPrefix(model, "gemini-2.5-pro") && string(thinking["thinkingBudget"]) == "0":
		return "Budget 0 is invalid. This model only works in thinking mode."
	}
	return ""
}

func (geminiWire) read(r *http.Request, body []byte, q *Request) error {
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	model, method, _ := strings.Cut(name, ":")
	q.Model, q.Stream = model, method == "streamGenerateContent"
	if method != "generateContent" && !q.Stream {
		return &refusal{http.StatusNotFound, "models/" + name + " is not found for API version v1beta"}
	}
	if q.Stream && r.URL.Query().Get("alt") != "sse" {
		return refuse("alt: only sse is spoken here")
	}
	var in geminiRequest
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return refuse("Invalid JSON payload received. %v", err)
	}
	if in.SystemInstruction != nil {
		for _, p := range in.SystemInstruction.Parts {
			q.System += p.Text
		}
	}
	for _, t := range in.Tools {
		for _, f := range t.FunctionDeclarations {
			if !toolName(64).MatchString(f.Name) {
				return refuse("Invalid function name %q", f.Name)
			}
			if f.Parameters != nil {
				if k := strange(f.Parameters); k != "" {
					return refuse("Invalid JSON payload received. Unknown name %q at 'tools[0].function_declarations[0].parameters': Cannot find field.", k)
				}
			}
			q.Tools = append(q.Tools, f.Name)
		}
	}
	if k := unknown(in.GenerationConfig, "temperature topP topK maxOutputTokens stopSequences candidateCount responseMimeType responseSchema responseJsonSchema thinkingConfig seed"); k != "" {
		return refuse("Invalid JSON payload received. Unknown name %q at 'generation_config': Cannot find field.", k)
	}
	if v := in.GenerationConfig["maxOutputTokens"]; v != nil {
		_ = json.Unmarshal(v, &q.MaxTokens)
	}
	if v := in.GenerationConfig["thinkingConfig"]; v != nil {
		var think map[string]json.RawMessage
		_ = json.Unmarshal(v, &think)
		if why := lacking(model, think); why != "" {
			return refuse("%s", why)
		}
		q.Effort = string(think["thinkingLevel"]) + string(think["thinkingBudget"])
	}
	if v := in.GenerationConfig["responseSchema"]; v != nil {
		q.Schema, q.Format = v, "json_schema"
		if k := strange(v); k != "" {
			return refuse("Invalid JSON payload received. Unknown name %q at 'generation_config.response_schema': Cannot find field.", k)
		}
	}
	if v := in.GenerationConfig["responseJsonSchema"]; v != nil {
		q.Schema, q.Format = v, "json_schema"
	}
	if mime := string(in.GenerationConfig["responseMimeType"]); q.Schema != nil && mime != `"application/json"` {
		return refuse("response_schema: only allowed with response_mime_type application/json")
	} else if q.Schema == nil && mime == `"application/json"` {
		q.Format = "json_object"
	}
	return geminiMessages(in.Contents, q)
}

// strange returns the first keyword of a schema that Gemini's Schema object lacks.
func strange(raw json.RawMessage) string {
	var v map[string]any
	if err := json.Unmarshal(raw, &v); err != nil {
		return "schema"
	}
	return walkStrange(v)
}

func walkStrange(v map[string]any) string {
	known := map[string]bool{}
	for k := range strings.FieldsSeq("type format title description nullable enum maxItems minItems properties required minProperties maxProperties minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum") {
		known[k] = true
	}
	for k, x := range v {
		if !known[k] {
			return k
		}
		switch k {
		case "properties":
			props, _ := x.(map[string]any)
			for _, p := range props {
				if m, ok := p.(map[string]any); ok {
					if s := walkStrange(m); s != "" {
						return s
					}
				}
			}
		case "items":
			if m, ok := x.(map[string]any); ok {
				if s := walkStrange(m); s != "" {
					return s
				}
			}
		case "anyOf":
			list, _ := x.([]any)
			for _, a := range list {
				if m, ok := a.(map[string]any); ok {
					if s := walkStrange(m); s != "" {
						return s
					}
				}
			}
		}
	}
	return ""
}

func geminiMessages(contents []geminiContent, q *Request) error {
	if len(contents) == 0 || contents[0].Role != "user" {
		return refuse("Please ensure that the first content has role user")
	}
	for i, c := range contents {
		var m Message
		var results []Result
		calls := 0
		switch c.Role {
		case "user":
			m.Role = "user"
		case "model":
			m.Role = "assistant"
		default:
			return refuse("Please use a valid role: user, model.")
		}
		if len(c.Parts) == 0 {
			return refuse("contents[%d].parts: must not be empty", i)
		}
		signed := false
		for _, p := range c.Parts {
			switch {
			case p.FunctionCall != nil:
				calls++
				signed = signed || p.ThoughtSignature == sign(p.FunctionCall.Name) || p.ThoughtSignature == unsigned()
				m.Calls = append(m.Calls, Call{Name: p.FunctionCall.Name, Arguments: p.FunctionCall.Args})
			case p.FunctionResponse != nil:
				var object map[string]any
				if err := json.Unmarshal(p.FunctionResponse.Response, &object); err != nil || object == nil {
					return refuse("function_response.response: must be an object")
				}
				results = append(results, Result{Name: p.FunctionResponse.Name, Text: string(p.FunctionResponse.Response), IsError: object["error"] != nil})
			case p.Thought:
				m.Reasoning += p.Text
			case p.Text == "" && p.ThoughtSignature == "":
				return refuse("contents[%d].parts: required oneof field 'data' must have one initialized field", i)
			default:
				m.Text += p.Text
			}
		}
		// Gemini 3 wants the signature of the first call of each step of the current turn.
		if calls > 0 && !signed && strings.HasPrefix(q.Model, "gemini-3") && currentTurn(contents, i) {
			return refuse("Function call is missing a thought_signature in functionCall parts.")
		}
		open := 0
		if i > 0 {
			for _, p := range contents[i-1].Parts {
				if p.FunctionCall != nil {
					open++
				}
			}
		}
		if open != len(results) {
			return refuse("Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.")
		}
		if results != nil {
			q.Messages = append(q.Messages, Message{Role: "tool", Results: results})
		}
		if results == nil || m.Text != "" {
			q.Messages = append(q.Messages, m)
		}
	}
	return nil
}

// unsigned is what the API takes for a signature in a history that another model began.
func unsigned() string {
	return base64.StdEncoding.EncodeToString([]byte("skip_thought_signature_validator"))
}

// currentTurn tells whether content i is after the last user text.
func currentTurn(contents []geminiContent, i int) bool {
	for _, c := range contents[i+1:] {
		for _, p := range c.Parts {
			if c.Role == "user" && p.FunctionResponse == nil {
				return false
			}
		}
	}
	return true
}

func (geminiWire) fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, geminiFailure(status, message))
}

func geminiFailure(status int, message string) any {
	name := map[int]string{
		400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
		429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
	}[status]
	return map[string]any{"error": map[string]any{"code": status, "message": message, "status": name}}
}

func (geminiWire) errorEvent(e *emitter) error {
	return e.event("", geminiFailure(503, "The model is overloaded. Please try again later."))
}

func (geminiWire) badEvent(e *emitter) error {
	return e.raw("", `{"candidates": [{"content": {"parts": [{"te`)
}

func (geminiWire) usage(t *Turn, q *Request) map[string]any {
	u := t.usage(q)
	m := map[string]any{
		"promptTokenCount": u.Input + u.CacheRead, "candidatesTokenCount": u.Output,
		"totalTokenCount": u.Input + u.CacheRead + u.Output + u.Reasoning,
	}
	if u.Reasoning > 0 {
		m["thoughtsTokenCount"] = u.Reasoning
	}
	if u.CacheRead > 0 {
		m["cachedContentTokenCount"] = u.CacheRead
	}
	return m
}

func (g geminiWire) chunk(t *Turn, q *Request, parts []geminiPart, finish string) map[string]any {
	c := map[string]any{"index": 0, "content": geminiContent{Role: "model", Parts: parts}}
	if finish != "" {
		c["finishReason"] = finish
	}
	if parts == nil {
		delete(c, "content")
	}
	return map[string]any{"candidates": []any{c}, "usageMetadata": g.usage(t, q), "modelVersion": q.Model, "responseId": messageID("resp", q)}
}

func (geminiWire) stop(t *Turn) string {
	switch t.Stop {
	case "length":
		return "MAX_TOKENS"
	case "content_filter":
		return "SAFETY"
	}
	return "STOP"
}

// calls are the parts of the turn's calls; the first of them is signed.
func (geminiWire) calls(t *Turn) []geminiPart {
	var out []geminiPart
	for i, c := range t.Calls {
		p, err := geminiCall(c)
		if err != nil {
			continue
		}
		if i == 0 {
			p.ThoughtSignature = sign(c.Name)
		}
		out = append(out, p)
	}
	return out
}

func geminiCall(c Call) (geminiPart, error) {
	var p geminiPart
	args := c.Arguments
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	b, err := json.Marshal(map[string]any{"functionCall": map[string]any{"name": c.Name, "args": args}})
	if err != nil {
		return p, fmt.Errorf("call: %w", err)
	}
	return p, json.Unmarshal(b, &p)
}

func (g geminiWire) whole(t *Turn, q *Request, w http.ResponseWriter) {
	var parts []geminiPart
	if t.Reasoning != "" {
		parts = append(parts, geminiPart{Text: t.Reasoning, Thought: true})
	}
	if s := t.text(); s != "" {
		parts = append(parts, geminiPart{Text: s})
	}
	reply(w, http.StatusOK, g.chunk(t, q, append(parts, g.calls(t)...), g.stop(t)))
}

func (g geminiWire) begin(t *Turn, q *Request, e *emitter) error {
	for _, p := range pieces(t.Reasoning) {
		if err := e.piece("", g.chunk(t, q, []geminiPart{{Text: p, Thought: true}}, "")); err != nil {
			return err
		}
	}
	for _, p := range pieces(t.text()) {
		if err := e.piece("", g.chunk(t, q, []geminiPart{{Text: p}}, "")); err != nil {
			return err
		}
	}
	for _, p := range g.calls(t) {
		if err := e.piece("", g.chunk(t, q, []geminiPart{p}, "")); err != nil {
			return err
		}
	}
	if err := e.last(t); err != nil {
		return err
	}
	if err := e.event("", g.chunk(t, q, nil, g.stop(t))); err != nil {
		return err
	}
	return e.flush()
}
