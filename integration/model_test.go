package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// A fakeModel is a model API on loopback that always does the same: offered the
// tool, it calls it once, and then repeats the tool's result as its answer.
type fakeModel struct {
	server *httptest.Server
	tool   string // the end of the tool's name
	args   string // the tool's arguments, JSON

	mu      sync.Mutex
	offered map[string]bool
}

func startModel(tb testing.TB, tool, args string) *fakeModel {
	tb.Helper()
	m := &fakeModel{tool: tool, args: args, offered: map[string]bool{}}
	m.server = httptest.NewServer(m)
	tb.Cleanup(m.server.Close)
	return m
}

// tools are the names that were offered so far.
func (m *fakeModel) tools() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.offered))
	for name := range m.offered {
		names = append(names, name)
	}
	return names
}

// A modelTurn is what is read of a request for the next message.
type modelTurn struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Content json.RawMessage `json:"content"` // a string or blocks
	} `json:"messages"`
	Tools []offeredTool `json:"tools"`
}

type offeredTool struct {
	Name string `json:"name"`
}

func (m *fakeModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var turn modelTurn
	switch {
	case strings.HasSuffix(r.URL.Path, "/responses"):
		m.respond(w, r)
		return
	case !strings.HasSuffix(r.URL.Path, "/messages"):
		http.NotFound(w, r)
		return
	case json.NewDecoder(r.Body).Decode(&turn) != nil:
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	block, stop := m.next(&turn)
	if turn.Stream {
		stream(w, turn.Model, block, stop)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"id": "msg_1", "type": "message", "role": "assistant", "model": turn.Model, "content": []any{block},
		"stop_reason": stop, "stop_sequence": nil, "usage": usage(),
	})
}

// next is the model's answer: one content block and why it stops.
func (m *fakeModel) next(turn *modelTurn) (block map[string]any, stop string) {
	result := ""
	for _, message := range turn.Messages {
		var blocks []struct {
			Type    string          `json:"type"`
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(message.Content, &blocks) != nil {
			continue // a plain string
		}
		for _, b := range blocks {
			if b.Type == "tool_result" {
				result = string(b.Content)
			}
		}
	}
	called := m.pick(turn.Tools)
	if called != "" && result == "" {
		return map[string]any{"type": "tool_use", "id": "toolu_1", "name": called, "input": json.RawMessage(m.args)}, "tool_use"
	}
	return map[string]any{"type": "text", "text": "The tool said: " + result}, "end_turn"
}

// pick notes what is offered and returns the full name of the tool to call, "" if
// it is not there.
func (m *fakeModel) pick(tools []offeredTool) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	called := ""
	for _, tool := range tools {
		m.offered[tool.Name] = true
		if strings.HasSuffix(tool.Name, m.tool) {
			called = tool.Name
		}
	}
	return called
}

// respond is the same model behind OpenAI's responses.
func (m *fakeModel) respond(w http.ResponseWriter, r *http.Request) {
	var turn struct {
		Input []struct {
			Type   string          `json:"type"`
			Output json.RawMessage `json:"output"`
		} `json:"input"`
		Tools []offeredTool `json:"tools"`
	}
	if err := json.NewDecoder(r.Body).Decode(&turn); err != nil {
		http.Error(w, "not JSON", http.StatusBadRequest)
		return
	}
	called, result := m.pick(turn.Tools), ""
	for _, item := range turn.Input {
		if item.Type == "function_call_output" {
			result = string(item.Output)
		}
	}
	item := map[string]any{"type": "message", "id": "msg_1", "role": "assistant", "content": []any{
		map[string]any{"type": "output_text", "text": "The tool said: " + result},
	}}
	if called != "" && result == "" {
		item = map[string]any{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": called, "arguments": m.args}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := event(w)
	send("response.created", map[string]any{"response": map[string]any{"id": "resp_1"}})
	send("response.output_item.done", map[string]any{"item": item})
	send("response.completed", map[string]any{"response": map[string]any{
		"id": "resp_1", "usage": map[string]any{"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
	}})
}

// event writes events whose data repeats their kind.
func event(w http.ResponseWriter) func(kind string, fields map[string]any) {
	return func(kind string, fields map[string]any) {
		fields["type"] = kind
		raw, err := json.Marshal(fields)
		if err != nil {
			raw = []byte(`{"type":"error"}`)
		}
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, raw)
	}
}

func usage() map[string]int { return map[string]int{"input_tokens": 10, "output_tokens": 5} }

// stream writes one message as server-sent events.
func stream(w http.ResponseWriter, model string, block map[string]any, stop string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := event(w)
	send("message_start", map[string]any{"message": map[string]any{
		"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": usage(),
	}})
	start, delta := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": block["text"]}
	if stop == "tool_use" {
		start = map[string]any{"type": "tool_use", "id": block["id"], "name": block["name"], "input": map[string]any{}}
		args, _ := block["input"].(json.RawMessage)
		delta = map[string]any{"type": "input_json_delta", "partial_json": string(args)}
	}
	send("content_block_start", map[string]any{"index": 0, "content_block": start})
	send("content_block_delta", map[string]any{"index": 0, "delta": delta})
	send("content_block_stop", map[string]any{"index": 0})
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": usage()})
	send("message_stop", map[string]any{})
}
