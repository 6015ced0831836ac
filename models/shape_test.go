package models_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
)

// sent runs one turn and returns the members of the request's body that are asked for.
func sent(t *testing.T, v voice, tune func(*agent.Request)) map[string]any {
	t.Helper()
	w := v.world(t, script(fakemodel.Turn{Text: "ok"}))
	req := v.request("x")
	tune(req)
	if _, err := w.models.Turn(t.Context(), req, nil); err != nil {
		t.Fatalf("%s: %v", req.Model, err)
	}
	var body map[string]any
	if err := json.Unmarshal(w.fake.Entries()[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	return body
}

func TestEffort(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		voice  string
		model  string
		effort string
		tools  bool
		want   string // of the members below, as JSON
	}{
		{"anthropic", "claude-sonnet-5-5", "", false, `{}`},
		{"anthropic", "claude-sonnet-5-5", "medium", false, `{"output_config":{"effort":"medium"},"thinking":{"display":"summarized","type":"adaptive"}}`},
		{"anthropic", "claude-opus-5-5", "max", false, `{"output_config":{"effort":"max"},"thinking":{"display":"summarized","type":"adaptive"}}`},
		{"anthropic", "claude-opus-5-5", "off", false, `{"thinking":{"type":"disabled"}}`},
		{"anthropic", "claude-opus-4-8", "off", false, `{}`},
		{"anthropic", "claude-fable-5-1", "off", false, `{"output_config":{"effort":"low"}}`},
		{"anthropic", "claude-sonnet-4-6", "max", false, `{"output_config":{"effort":"high"},"thinking":{"display":"summarized","type":"adaptive"}}`},
		{"anthropic", "claude-haiku-4-5-20251001", "medium", false, `{"thinking":{"budget_tokens":8192,"type":"enabled"}}`},
		{"anthropic", "claude-haiku-4-5-20251001", "off", false, `{}`},
		{"anthropic", "claude-3-5-haiku-20241022", "high", false, `{}`},
		{"openai", "gpt-4.1", "high", false, `{}`},
		{"openai", "gpt-5", "off", false, `{"reasoning_effort":"minimal"}`},
		{"openai", "gpt-5-mini-2025-08-07", "max", false, `{"reasoning_effort":"high"}`},
		{"openai", "gpt-5.2", "max", true, `{"reasoning_effort":"xhigh"}`},
		{"openai", "gpt-5.2", "off", true, `{"reasoning_effort":"none"}`},
		{"openai", "gpt-5-chat-latest", "high", false, `{}`},
		{"openai", "o3", "off", false, `{"reasoning_effort":"low"}`},
		{"openai", "o1-mini", "high", false, `{}`},
		{"responses", "gpt-6-sol", "max", true, `{"reasoning":{"effort":"max"}}`},
		{"responses", "gpt-6-luna", "", true, `{}`},
		{"responses", "gpt-5.6-terra", "off", true, `{"reasoning":{"effort":"none"}}`},
		{"deepseek", "deepseek-flash", "", false, `{}`},
		{"deepseek", "deepseek-flash", "off", false, `{"thinking":{"type":"disabled"}}`},
		{"deepseek", "deepseek-v4-pro", "medium", false, `{"reasoning_effort":"high","thinking":{"type":"enabled"}}`},
		{"deepseek", "deepseek-v4-pro", "max", false, `{"reasoning_effort":"max","thinking":{"type":"enabled"}}`},
		{"deepseek", "deepseek-chat", "high", false, `{}`},
		{"gemini", "gemini-3.8-flash", "low", false, `{"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"LOW"}}`},
		{"gemini", "gemini-4-argon", "max", false, `{"thinkingConfig":{"includeThoughts":true,"thinkingLevel":"HIGH"}}`},
		{"gemini", "gemini-3.8-flash", "off", false, `{"thinkingConfig":{"thinkingLevel":"LOW"}}`},
		{"gemini", "gemini-2.5-flash", "off", false, `{"thinkingConfig":{"thinkingBudget":0}}`},
		{"gemini", "gemini-2.5-pro", "off", false, `{"thinkingConfig":{"thinkingBudget":128}}`},
		{"gemini", "gemini-2.5-pro", "max", false, `{"thinkingConfig":{"includeThoughts":true,"thinkingBudget":32768}}`},
		{"gemini", "gemini-2.0-flash", "high", false, `{}`},
		{"local", "qwen3:8b", "high", false, `{}`},
		{"local", "gpt-oss:20b", "max", false, `{"reasoning_effort":"high"}`},
	} {
		t.Run(tt.model+" "+tt.effort, func(t *testing.T) {
			t.Parallel()
			v := byName(tt.voice)
			v.model = tt.model
			body := sent(t, v, func(r *agent.Request) {
				r.Effort = tt.effort
				if tt.tools {
					r.Tools = []agent.ToolSpec{{Name: "f", Schema: json.RawMessage(`{"type":"object"}`)}}
				}
			})
			got := map[string]any{}
			if g, ok := body["generationConfig"].(map[string]any); ok {
				body = g
			}
			for _, k := range []string{"thinking", "output_config", "reasoning_effort", "reasoning", "thinkingConfig"} {
				if v, ok := body[k]; ok {
					got[k] = v
				}
			}
			if b, err := json.Marshal(got); err != nil || string(b) != tt.want {
				t.Errorf("sent %s, %v, want %s", b, err, tt.want)
			}
		})
	}
}

func byName(name string) voice {
	for _, v := range voices {
		if v.name == name {
			return v
		}
	}
	panic(name)
}

func TestLimitAndTemperature(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		voice, model string
		max          int
		want         string
	}{
		{"anthropic", "claude-sonnet-5-5", 0, `{"max_tokens":16384}`},
		{"anthropic", "claude-sonnet-4-5", 0, `{"max_tokens":8192}`},
		{"anthropic", "claude-3-haiku-20240307", 0, `{"max_tokens":4096}`},
		{"anthropic", "claude-sonnet-5-5", 77, `{"max_tokens":77}`},
		{"openai", "gpt-5.2", 77, `{"max_completion_tokens":77}`},
		{"openai", "gpt-4.1", 77, `{"max_completion_tokens":77,"temperature":0.5}`},
		{"openai", "gpt-4.1", 0, `{"temperature":0.5}`},
		{"responses", "gpt-6-sol", 77, `{"max_output_tokens":77}`},
		{"deepseek", "deepseek-flash", 77, `{"max_tokens":77,"temperature":0.5}`},
		{"gemini", "gemini-3.8-flash", 77, `{"maxOutputTokens":77,"temperature":0.5}`},
		{"gemini", "gemini-3.8-flash", 0, `{"temperature":0.5}`},
		{"local", "qwen3:8b", 77, `{"max_tokens":77,"temperature":0.5}`},
	} {
		v := byName(tt.voice)
		v.model = tt.model
		body := sent(t, v, func(r *agent.Request) { r.MaxTokens, r.Temperature = tt.max, "0.5" })
		if g, ok := body["generationConfig"].(map[string]any); ok {
			body = g
		}
		got := map[string]any{}
		for _, k := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "temperature"} {
			if v, ok := body[k]; ok {
				got[k] = v
			}
		}
		if b, err := json.Marshal(got); err != nil || string(b) != tt.want {
			t.Errorf("%s with %d: sent %s, %v, want %s", tt.model, tt.max, b, err, tt.want)
		}
	}
}

// Schemas that the providers take in part or not at all. The fake refuses what they
// would refuse.
func TestSchemaIsLowered(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		schema string
		prompt string // the voices that get it in the prompt
	}{
		"open, with options": {`{"type":"object","properties":{"a":{"type":"string","pattern":"^x","maxLength":4},"b":{"type":"array","minItems":3,"items":{"type":"object","properties":{"c":{"const":"k"}}}}},"required":["a"]}`, "deepseek"},
		"a map":              {`{"type":"object","additionalProperties":{"type":"integer"}}`, "anthropic deepseek"},
		"a list":             {`{"type":"array","items":{"type":"string"}}`, "anthropic deepseek local openai responses"},
		"references":         {`{"type":"object","properties":{"tree":{"$ref":"#/$defs/n"}},"required":["tree"],"$defs":{"n":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["kids"]}}}`, "deepseek"},
		"anything":           {`{"type":"object","properties":{"x":true},"required":["x"]}`, "anthropic deepseek"},
		"choice":             {`{"type":"object","properties":{"x":{"oneOf":[{"type":"string"},{"type":"null"}]}},"required":["x"],"additionalProperties":false,"minProperties":1}`, "anthropic deepseek"},
	} {
		each(t, func(t *testing.T, v voice) {
			t.Helper()
			var seen *fakemodel.Request
			w := v.world(t, fakemodel.Options{Answer: func(q *fakemodel.Request) (fakemodel.Turn, bool) {
				seen = q
				return fakemodel.Turn{Text: "{}"}, true
			}})
			req := v.request("x")
			req.Schema = json.RawMessage(tt.schema)
			if _, err := w.models.Turn(t.Context(), req, nil); err != nil {
				t.Fatalf("%s: %v: %v", name, err, errors.Unwrap(err))
			}
			inPrompt := strings.Contains(tt.prompt, v.name)
			if got := strings.Contains(seen.System, "JSON Schema"); got != inPrompt || inPrompt == (seen.Schema != nil) {
				t.Errorf("%s: in the prompt %v, schema %s, want in the prompt %v", name, got, seen.Schema, inPrompt)
			}
		})
	}
}

func TestSchemaWithToolsBeforeGemini3(t *testing.T) {
	t.Parallel()
	v := byName("gemini")
	for model, want := range map[string]bool{"gemini-2.5-pro": true, "gemini-3.8-flash": false} {
		v.model = model
		body := sent(t, v, func(r *agent.Request) {
			r.Schema = json.RawMessage(personSchema)
			r.Tools = []agent.ToolSpec{{Name: "f", Schema: json.RawMessage(`{"type":"object"}`)}}
		})
		b, err := json.Marshal(body["systemInstruction"])
		if err != nil || strings.Contains(string(b), "JSON Schema") != want {
			t.Errorf("%s: system = %s, want the schema in it: %v", model, b, want)
		}
	}
}

// A conversation that one model began can be carried on by any other: what is the
// first one's own stays behind.
func TestFallbackCarriesTheConversationOn(t *testing.T) {
	t.Parallel()
	turns := []fakemodel.Turn{
		{Reasoning: "First I look.", Redacted: "x", Text: "Looking.", Calls: []fakemodel.Call{{Name: "look", ID: "odd id: 1"}, {Name: "look", ID: "odd id: 1"}}},
		{Reasoning: "Then I see.", Calls: []fakemodel.Call{{Name: "look"}}},
		{Text: "done"},
	}
	each(t, func(t *testing.T, first voice) {
		t.Helper()
		older := []voice{{"anthropic", models.Anthropic, "claude-sonnet-4-5"}, {"gemini", models.Gemini, "gemini-2.5-flash"}}
		for _, second := range append(older, voices...) {
			a, b := first.world(t, script(turns...)), second.world(t, script(turns...))
			req := first.request("x")
			req.Tools = []agent.ToolSpec{{Name: "look", Schema: json.RawMessage(`{"type":"object"}`)}}
			req.Effort = "high"
			turn, err := a.models.Turn(t.Context(), req, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer(req, turn, "a", "b")
			req.Provider, req.Model = second.provider, second.model
			if turn, err = b.models.Turn(t.Context(), req, nil); err != nil {
				t.Errorf("from %s to %s: %v: %v", first.model, second.model, err, errors.Unwrap(err))
				continue
			}
			answer(req, turn, "c")
			if turn, err = b.models.Turn(t.Context(), req, nil); err != nil || text(turn) != "done" {
				t.Errorf("from %s to %s, then on: %v", first.model, second.model, err)
			}
		}
	})
}

func TestSilentStream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, script(fakemodel.Turn{Text: "one two three", Cut: fakemodel.CutHold, After: 2}), func(o *models.Options) { o.Idle = time.Second })
		if e := failed(t, w, v.request("x")); e.Kind != agent.Timeout || !e.Streamed || !strings.Contains(e.Message, "silent") {
			t.Errorf("Turn = %+v, want a timeout for silence", e)
		}
		await(t, w, fakemodel.Ended("gone", 1))
	})
}

func TestConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		fake := fakemodel.New(script(fakemodel.Turn{Text: "ok"}))
		srv := httptest.NewUnstartedServer(fake)
		var opened atomic.Int64
		srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				opened.Add(1)
			}
		}
		srv.Start()
		defer srv.Close()
		m, err := models.New(models.Options{
			Providers: map[string]models.Provider{v.provider: {BaseURL: fakemodel.URL(srv.URL, v.name), AllowLocalEndpoint: true}},
			Key:       func(context.Context, string) (string, error) { return testKey, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.CloseIdle()
		for range 5 {
			if _, err := m.Turn(t.Context(), v.request("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if n := opened.Load(); n != 1 {
			t.Errorf("%d connections for five turns, want one", n)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, fakemodel.Options{Answer: func(q *fakemodel.Request) (fakemodel.Turn, bool) {
			return fakemodel.Turn{Text: "answer to " + q.Prompt()}, true
		}})
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				prompt := fmt.Sprint("question ", i)
				turn, err := w.models.Turn(t.Context(), v.request(prompt), nil)
				if err != nil || text(turn) != "answer to "+prompt {
					t.Errorf("Turn = %+v, %v", turn, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestBounds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		many := make([]fakemodel.Call, 300)
		for i := range many {
			many[i] = fakemodel.Call{Name: "f"}
		}
		w := v.world(t, script(fakemodel.Turn{Calls: many}))
		if e := failed(t, w, v.request("x")); e.Kind != agent.Unknown || !strings.Contains(e.Message, "256 tool calls") {
			t.Errorf("with 300 calls: %+v", e)
		}
		w = v.world(t, script(fakemodel.Turn{Text: "x"}), func(o *models.Options) { o.Egress.MaxMessage = 40 })
		if e := failed(t, w, v.request("x")); e.Kind != agent.Unknown {
			t.Errorf("with a message over the bound: %+v (%v)", e, e.Err)
		}
	})
}

// What servers of open models send, which differs in places from what OpenAI does.
func TestLocalServers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stream []string
		want   *agent.Turn
	}{
		// Ollama: whole calls in one chunk, ids that are no ids, "stop" after calls, reasoning.
		"ollama": {[]string{
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"qwen3:8b","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Hm."},"finish_reason":null}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"qwen3:8b","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call a","index":0,"type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"call a","index":0,"type":"function","function":{"name":"g","arguments":"{}"}}]},"finish_reason":null}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"qwen3:8b","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop"}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"qwen3:8b","system_fingerprint":"fp_ollama","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}`,
			`[DONE]`,
		}, &agent.Turn{Stop: agent.StopToolUse, Usage: agent.Usage{Input: 9, Output: 4}, Parts: []agent.Part{
			{Reasoning: &agent.Reasoning{Text: "Hm.", Provider: "openai"}},
			{Call: &agent.Call{ID: "call_0", Name: "f", Arguments: json.RawMessage(`{"x":1}`)}},
			{Call: &agent.Call{ID: "call_1", Name: "g", Arguments: json.RawMessage(`{}`)}},
		}}},
		// vLLM: reasoning_content, arguments in pieces, usage in every chunk.
		"vllm": {[]string{
			`{"id":"chatcmpl-2","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0}}`,
			`{"id":"chatcmpl-2","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"Hm."},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1}}`,
			`{"id":"chatcmpl-2","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-2","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\""}}]},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-2","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null}]}`,
			`{"id":"chatcmpl-2","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":15,"completion_tokens":6}}`,
			`[DONE]`,
		}, &agent.Turn{Stop: agent.StopToolUse, Usage: agent.Usage{Input: 9, Output: 6}, Parts: []agent.Part{
			{Reasoning: &agent.Reasoning{Text: "Hm.", Provider: "openai"}},
			{Call: &agent.Call{ID: "chatcmpl-tool-1", Name: "f", Arguments: json.RawMessage(`{"x":1}`)}},
		}}},
		// LM Studio: ids of digits alone; a server that never says [DONE].
		"lm studio": {[]string{
			`{"id":"chatcmpl-3","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-3","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"m","choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"365174485","type":"function","function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}`,
			`{"id":"chatcmpl-3","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}`,
		}, &agent.Turn{Stop: agent.StopToolUse, Parts: []agent.Part{
			{Text: "Hi"},
			{Call: &agent.Call{ID: "365174485", Name: "f", Arguments: json.RawMessage(`{}`)}},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if h := r.Header.Get("Authorization"); h != "" {
					t.Errorf("Authorization = %q, want none", h)
				}
				w.Header().Set("Content-Type", "text/event-stream")
				for _, line := range tt.stream {
					_, _ = fmt.Fprintf(w, "data: %s\n\n", line)
				}
			}))
			defer srv.Close()
			m, err := models.New(models.Options{
				Providers: map[string]models.Provider{models.OpenAI: {BaseURL: srv.URL + "/v1/", AllowLocalEndpoint: true}},
				Key:       func(context.Context, string) (string, error) { return "", errors.New("none") },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer m.CloseIdle()
			turn, err := m.Turn(t.Context(), byName("local").request("x"), nil)
			if diff := cmp.Diff(tt.want, turn); err != nil || diff != "" {
				t.Errorf("Turn = %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
