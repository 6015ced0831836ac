package fakemodel_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// path and body of a first request, by provider; {S} is whether it streams.
var first = map[string][2]string{
	"anthropic": {"/v1/messages", `{"model":"m","max_tokens":10,"stream":{S},"messages":[{"role":"user","content":"hello"}]}`},
	"openai":    {"/chat/completions", `{"model":"m","stream":{S},"messages":[{"role":"user","content":"hello"}]}`},
	"deepseek":  {"/chat/completions", `{"model":"m","stream":{S},"messages":[{"role":"user","content":"hello"}]}`},
	"local":     {"/chat/completions", `{"model":"m","stream":{S},"messages":[{"role":"user","content":"hello"}]}`},
	"gemini":    {"/v1beta/models/m:{M}", `{"contents":[{"role":"user","parts":[{"text":"hello"}]}]}`},
}

func ask(ctx context.Context, t *testing.T, srv *httptest.Server, provider, path, body, key string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fakemodel.URL(srv.URL, provider)+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	switch provider {
	case "anthropic":
		req.Header.Set("X-Api-Key", key)
		req.Header.Set("Anthropic-Version", "2023-06-01")
	case "gemini":
		req.Header.Set("X-Goog-Api-Key", key)
	default:
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return srv.Client().Do(req)
}

// hello asks for the first turn and returns status and body.
func hello(t *testing.T, srv *httptest.Server, provider string, stream bool) (int, string) {
	t.Helper()
	path, body := first[provider][0], first[provider][1]
	if stream {
		path, body = strings.Replace(path, "{M}", "streamGenerateContent?alt=sse", 1), strings.Replace(body, "{S}", "true", 1)
	} else {
		path, body = strings.Replace(path, "{M}", "generateContent", 1), strings.Replace(body, "{S}", "false", 1)
	}
	res, err := ask(t.Context(), t, srv, provider, path, body, "k")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, "cut off"
	}
	return res.StatusCode, string(b)
}

func TestEveryWire(t *testing.T) {
	t.Parallel()
	for provider := range first {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			var journal bytes.Buffer
			fake := fakemodel.New(fakemodel.Options{Journal: &journal, Script: fakemodel.Script{Conversations: []fakemodel.Conversation{
				{User: "goodbye", Turns: []fakemodel.Turn{{Text: "no"}}},
				{Provider: provider, Turns: []fakemodel.Turn{{
					Text:  "seen twice",
					Calls: []fakemodel.Call{{Name: "look", Arguments: json.RawMessage(`{"at":"the map"}`)}},
					Fail:  []fakemodel.Fail{{Status: 429, RetryAfter: "3"}, {Cut: fakemodel.CutDisconnect, After: 1}},
				}}},
			}}})
			srv := httptest.NewServer(fake)
			defer srv.Close()
			if status, body := hello(t, srv, provider, true); status != 429 || !strings.Contains(body, "error") {
				t.Errorf("first request = %d %s, want 429 with an error", status, body)
			}
			if status, body := hello(t, srv, provider, true); status != 200 || body != "cut off" {
				t.Errorf("second request = %d %s, want 200, cut off", status, body)
			}
			for _, stream := range []bool{true, false} {
				status, body := hello(t, srv, provider, stream)
				if status != 200 || !strings.Contains(body, `"look"`) || strings.HasPrefix(body, "data: ") != (stream && provider != "anthropic") {
					t.Errorf("request with stream %v = %d %s", stream, status, body)
				}
			}
			var got []string
			for line := range strings.Lines(journal.String()) {
				var e fakemodel.Entry
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatal(err)
				}
				if e.Event == "end" {
					got = append(got, e.Outcome)
				}
			}
			if diff := cmp.Diff([]string{"failed", "cut", "done", "done"}, got); diff != "" {
				t.Errorf("journal (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTurnIsReadFromTheRequest(t *testing.T) {
	t.Parallel()
	fake := fakemodel.New(fakemodel.Options{Script: fakemodel.Script{Conversations: []fakemodel.Conversation{
		{Turns: []fakemodel.Turn{{Text: "one"}, {Text: "two"}}},
	}}})
	srv := httptest.NewServer(fake)
	defer srv.Close()
	for _, tt := range []struct{ history, want string }{
		{``, `"content":"one"`},
		{`,{"role":"assistant","content":"one"},{"role":"user","content":"go on"}`, `"content":"two"`},
		{`,{"role":"assistant","content":"one"},{"role":"user","content":"go on"}`, `"content":"two"`},
		{`,{"role":"assistant","content":"1"},{"role":"assistant","content":"2"}`, `no answer for turn 2`},
	} {
		res, err := ask(t.Context(), t, srv, "openai", "/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}`+tt.history+`]}`, "k")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil || !strings.Contains(string(b), tt.want) {
			t.Errorf("answer to %q = %s, %v, want %s in it", tt.history, b, err, tt.want)
		}
	}
}

func TestHoldEndsWithTheClient(t *testing.T) {
	t.Parallel()
	fake := fakemodel.New(fakemodel.Options{Answer: func(*fakemodel.Request) (fakemodel.Turn, bool) {
		return fakemodel.Turn{Text: "one two three", Cut: fakemodel.CutHold, After: 2}, true
	}})
	srv := httptest.NewServer(fake)
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	res, err := ask(ctx, t, srv, "openai", "/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`, "k")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 300)); err != nil {
		t.Fatal(err)
	}
	if got := len(fake.Entries()); got != 1 {
		t.Fatalf("entries before the client goes = %d, want 1", got)
	}
	cancel()
	wait, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	if err := fake.Wait(wait, fakemodel.Ended("gone", 1)); err != nil {
		t.Errorf("Wait(gone) = %v", err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(fakemodel.New(fakemodel.Options{Key: "right"}))
	t.Cleanup(srv.Close)
	for name, tt := range map[string]struct {
		provider, path, body, key string
		status                    int
		want                      string
	}{
		"key":                     {"openai", "/chat/completions", first["openai"][1], "wrong", 401, "invalid api key"},
		"unknown member":          {"openai", "/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"top_k":1}`, "right", 400, "top_k"},
		"unanswered call":         {"openai", "/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"user","content":"x"}]}`, "right", 400, "must be followed by tool messages"},
		"reasoning model's limit": {"openai", "/chat/completions", `{"model":"gpt-5","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, "right", 400, "max_completion_tokens"},
		"loose strict schema":     {"openai", "/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"r","strict":true,"schema":{"type":"object"}}}}`, "right", 400, "additionalProperties"},
		"deepseek schema":         {"deepseek", "/chat/completions", `{"model":"m","messages":[{"role":"user","content":"json"}],"response_format":{"type":"json_schema"}}`, "right", 400, "unavailable"},
		"no max_tokens":           {"anthropic", "/v1/messages", `{"model":"m","messages":[{"role":"user","content":"x"}]}`, "right", 400, "max_tokens"},
		"forged signature":        {"anthropic", "/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"}]}]}`, "right", 400, "signature"},
		"unanswered tool_use":     {"anthropic", "/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":"y"}]}`, "right", 400, "tool_result"},
		"schema keyword":          {"gemini", "/v1beta/models/m:generateContent", `{"contents":[{"role":"user","parts":[{"text":"x"}]}],"generationConfig":{"responseMimeType":"application/json","responseSchema":{"type":"OBJECT","additionalProperties":false}}}`, "right", 400, "additionalProperties"},
		"no signature":            {"gemini", "/v1beta/models/gemini-3-pro:generateContent", `{"contents":[{"role":"user","parts":[{"text":"x"}]},{"role":"model","parts":[{"functionCall":{"name":"f","args":{}}}]},{"role":"user","parts":[{"functionResponse":{"name":"f","response":{}}}]}]}`, "right", 400, "thought_signature"},
		"path":                    {"openai", "/completions", `{}`, "right", 404, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := strings.Replace(tt.body, "{S}", "false", 1)
			res, err := ask(t.Context(), t, srv, tt.provider, tt.path, body, tt.key)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != tt.status || !strings.Contains(string(b), tt.want) {
				t.Errorf("answer = %d %s, %v, want %d with %q", res.StatusCode, b, err, tt.status, tt.want)
			}
		})
	}
}

func TestReadScript(t *testing.T) {
	t.Parallel()
	got, err := fakemodel.ReadScript(strings.NewReader(`{"conversations":[{"user":"hi","turns":[{"text":"x","delay":"20ms","fail":[{"status":529}]}]}]}`))
	want := fakemodel.Script{Conversations: []fakemodel.Conversation{{User: "hi", Turns: []fakemodel.Turn{
		{Text: "x", Delay: fakemodel.Duration(20 * time.Millisecond), Fail: []fakemodel.Fail{{Status: 529}}},
	}}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("ReadScript = %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{`{"conversation":[]}`, `{} {}`, `{"conversations":[{"turns":[{"delay":"soon"}]}]}`} {
		if _, err := fakemodel.ReadScript(strings.NewReader(bad)); err == nil {
			t.Errorf("ReadScript(%s) is no error", bad)
		}
	}
}
