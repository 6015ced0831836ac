package fakemodel

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
)

// responsesWire is OpenAI's Responses API, used without storage.
type responsesWire struct{}

func (responsesWire) key(r *http.Request) string { return openaiWire{}.key(r) }

type responsesItem struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ID        string          `json:"id"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Encrypted string          `json:"encrypted_content"`
	Summary   json.RawMessage `json:"summary"`
}

type responsesRequest struct {
	Model           string          `json:"model"`
	Instructions    string          `json:"instructions"`
	Input           json.RawMessage `json:"input"`
	MaxOutputTokens int             `json:"max_output_tokens"`
	Temperature     *float64        `json:"temperature"`
	Store           *bool           `json:"store"`
	Stream          bool            `json:"stream"`
	Include         []string        `json:"include"`
	Reasoning       struct {
		Effort  string `json:"effort"`
		Summary string `json:"summary"`
	} `json:"reasoning"`
	Text struct {
		Format *struct {
			Type   string          `json:"type"`
			Name   string          `json:"name"`
			Schema json.RawMessage `json:"schema"`
			Strict bool            `json:"strict"`
		} `json:"format"`
	} `json:"text"`
	Tools []struct {
		Type       string          `json:"type"`
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
		Strict     *bool           `json:"strict"`
	} `json:"tools"`
}

func (w responsesWire) read(_ *http.Request, body []byte, q *Request) error {
	var top map[string]json.RawMessage
	var in responsesRequest
	if err := json.Unmarshal(body, &top); err != nil {
		return refuse("We could not parse the JSON body of your request.")
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return refuse("%v", err)
	}
	q.Model, q.Stream, q.Effort, q.MaxTokens, q.System = in.Model, in.Stream, in.Reasoning.Effort, in.MaxOutputTokens, in.Instructions
	if k := unknown(top, "model instructions input max_output_tokens temperature top_p store stream include reasoning text tools tool_choice parallel_tool_calls"); k != "" {
		return refuse("Unknown parameter: '%s'.", k)
	}
	if in.Model == "" {
		return refuse("Missing required parameter: 'model'.")
	}
	if reasons(in.Model) && in.Reasoning.Effort != "none" && in.Temperature != nil {
		return refuse("Unsupported parameter: 'temperature' is not supported with this model.")
	}
	if !reasons(in.Model) && in.Reasoning.Effort != "" {
		return refuse("Unsupported parameter: 'reasoning.effort' is not supported with this model.")
	}
	for _, t := range in.Tools {
		if t.Type != "function" || !toolName(64).MatchString(t.Name) || t.Strict == nil || !isObjectSchema(t.Parameters) {
			return refuse("Invalid value for 'tools': a function needs a name, strict and parameters of type object")
		}
		q.Tools = append(q.Tools, t.Name)
	}
	if f := in.Text.Format; f != nil && f.Type == "json_schema" {
		q.Schema, q.Format = f.Schema, f.Type
		switch {
		case !toolName(64).MatchString(f.Name):
			return refuse("Missing required parameter: 'text.format.name'.")
		case !isObjectSchema(f.Schema):
			return refuse("Invalid schema for response_format '%s': schema must be a JSON Schema of 'type: \"object\"'.", f.Name)
		case f.Strict && (openObject(f.Schema) != "" || optional(f.Schema) != ""):
			return refuse("Invalid schema for response_format '%s': not strict", f.Name)
		}
	}
	return w.items(&in, q)
}

// items reads the input. What follows one another on the assistant's side is one
// message, as it was one response.
func (responsesWire) items(in *responsesRequest, q *Request) error {
	var text string
	if json.Unmarshal(in.Input, &text) == nil {
		q.Messages = []Message{{Role: "user", Text: text}}
		return nil
	}
	var items []responsesItem
	if err := json.Unmarshal(in.Input, &items); err != nil || len(items) == 0 {
		return refuse("Missing required parameter: 'input'.")
	}
	open := map[string]bool{}
	at := func(role string) *Message {
		if n := len(q.Messages); n == 0 || q.Messages[n-1].Role != role {
			q.Messages = append(q.Messages, Message{Role: role})
		}
		return &q.Messages[len(q.Messages)-1]
	}
	for i, it := range items {
		switch {
		case it.Type == "message" || it.Type == "" && it.Role != "":
			s, err := openaiText(it.Content)
			if err != nil || it.Role != "user" && it.Role != "assistant" {
				return refuse("Invalid value: 'input[%d]'", i)
			}
			m := at(it.Role)
			m.Text += s
		case it.Type == "reasoning":
			if it.Encrypted != sign(in.Model+"\x00"+it.ID) {
				return refuse("The encrypted content for item %s could not be verified.", it.ID)
			}
			if len(it.Summary) == 0 {
				return refuse("Missing required parameter: 'input[%d].summary'.", i)
			}
			if i+1 == len(items) || items[i+1].Type == "function_call_output" || items[i+1].Role == "user" {
				return refuse("Item '%s' of type 'reasoning' was provided without its required following item.", it.ID)
			}
			at("assistant").Reasoning += it.ID
		case it.Type == "function_call":
			open[it.CallID] = true
			m := at("assistant")
			m.Calls = append(m.Calls, Call{ID: it.CallID, Name: it.Name, Raw: it.Arguments})
		case it.Type == "function_call_output":
			if !open[it.CallID] {
				return refuse("No tool call found for function call output with call_id %s.", it.CallID)
			}
			delete(open, it.CallID)
			s, err := openaiText(it.Output)
			if err != nil {
				return refuse("Invalid type for 'input[%d].output'", i)
			}
			m := at("tool")
			m.Results = append(m.Results, Result{ID: it.CallID, Text: s})
		default:
			return refuse("Invalid value: '%s' for 'input[%d].type'", it.Type, i)
		}
	}
	for id := range open {
		return refuse("No tool output found for function call %s.", id)
	}
	return nil
}

func (responsesWire) fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, openaiFailure(status, message))
}

func (responsesWire) errorEvent(e *emitter) error {
	return e.event("error", map[string]any{"type": "error", "code": "server_error", "message": "The server is overloaded", "param": nil, "sequence_number": 99})
}

func (responsesWire) badEvent(e *emitter) error {
	return e.raw("response.output_text.delta", `{"type":"response.output_text.delta","delta":`)
}

// response is the response object, with output when it is whole.
func (w responsesWire) response(t *Turn, q *Request, status string, output []map[string]any) map[string]any {
	u := t.usage(q)
	r := map[string]any{
		"id": messageID("resp", q), "object": "response", "created_at": 1764460800, "model": q.Model, "status": status,
		"error": nil, "incomplete_details": nil, "output": output, "usage": nil,
	}
	switch t.Stop {
	case "length":
		r["incomplete_details"] = map[string]any{"reason": "max_output_tokens"}
	case "content_filter":
		r["incomplete_details"] = map[string]any{"reason": "content_filter"}
	}
	if status != "in_progress" {
		in, out := u.Input+u.CacheRead+u.CacheWrite, u.Output+u.Reasoning
		r["usage"] = map[string]any{
			"input_tokens": in, "output_tokens": out, "total_tokens": in + out,
			"input_tokens_details":  map[string]any{"cached_tokens": u.CacheRead, "cache_write_tokens": u.CacheWrite},
			"output_tokens_details": map[string]any{"reasoning_tokens": u.Reasoning},
		}
	} else {
		r["incomplete_details"] = nil
	}
	return r
}

func (responsesWire) status(t *Turn) string {
	if t.Stop != "" {
		return "incomplete"
	}
	return "completed"
}

// output are the items of an answer. Reasoning is encrypted, and told in a summary only
// if one was asked for.
func (responsesWire) output(t *Turn, q *Request) []map[string]any {
	var in responsesRequest
	_ = json.Unmarshal(q.Body, &in) // read before
	out := []map[string]any{}
	if t.Reasoning != "" {
		id := messageID("rs", q)
		item := map[string]any{"type": "reasoning", "id": id, "summary": []any{}}
		if in.Reasoning.Summary != "" {
			item["summary"] = []any{map[string]any{"type": "summary_text", "text": t.Reasoning}}
		}
		if strings.Contains(strings.Join(in.Include, " "), "reasoning.encrypted_content") {
			item["encrypted_content"] = sign(q.Model + "\x00" + id)
		}
		out = append(out, item)
	}
	if s := t.text(); s != "" {
		out = append(out, map[string]any{
			"type": "message", "id": messageID("msg", q), "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": s, "annotations": []any{}}},
		})
	}
	for i, c := range t.Calls {
		id := callID("call", c, q, i)
		out = append(out, map[string]any{"type": "function_call", "id": "fc_" + id, "call_id": id, "name": c.Name, "arguments": c.arguments(), "status": "completed"})
	}
	return out
}

func (w responsesWire) whole(t *Turn, q *Request, rw http.ResponseWriter) {
	reply(rw, http.StatusOK, w.response(t, q, w.status(t), w.output(t, q)))
}

func (w responsesWire) begin(t *Turn, q *Request, e *emitter) error {
	seq := 0
	send := func(piece bool, kind string, members map[string]any) error {
		members["type"], members["sequence_number"] = kind, seq
		seq++
		if piece {
			return e.piece(kind, members)
		}
		return e.event(kind, members)
	}
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := send(false, kind, map[string]any{"response": w.response(t, q, "in_progress", []map[string]any{})}); err != nil {
			return err
		}
	}
	if err := e.flush(); err != nil {
		return err
	}
	output := w.output(t, q)
	for i, item := range output {
		if err := w.item(i, item, t, send); err != nil {
			return err
		}
	}
	if err := e.last(t); err != nil {
		return err
	}
	status := w.status(t)
	if err := send(false, "response."+status, map[string]any{"response": w.response(t, q, status, output)}); err != nil {
		return err
	}
	return e.flush()
}

// item streams one output item.
func (responsesWire) item(i int, item map[string]any, t *Turn, send func(bool, string, map[string]any) error) error {
	begun := maps.Clone(item)
	kind, text := "", ""
	at := map[string]any{"item_id": item["id"], "output_index": i}
	switch item["type"] {
	case "reasoning":
		delete(begun, "encrypted_content")
		begun["summary"] = []any{}
		if list, ok := item["summary"].([]any); ok && len(list) > 0 {
			kind, text = "response.reasoning_summary_text", t.Reasoning
			at["summary_index"] = 0
		}
	case "message":
		begun["content"], begun["status"] = []any{}, "in_progress"
		kind, text = "response.output_text", t.text()
		at["content_index"] = 0
	case "function_call":
		begun["arguments"], begun["status"] = "", "in_progress"
		kind = "response.function_call_arguments"
		if s, ok := item["arguments"].(string); ok {
			text = s
		}
	}
	if err := send(false, "response.output_item.added", map[string]any{"output_index": i, "item": begun}); err != nil {
		return err
	}
	for _, p := range pieces(text) {
		members := map[string]any{"delta": p}
		maps.Copy(members, at)
		if err := send(true, kind+".delta", members); err != nil {
			return err
		}
	}
	return send(false, "response.output_item.done", map[string]any{"output_index": i, "item": item})
}
