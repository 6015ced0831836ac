package models_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
)

func TestText(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, script(fakemodel.Turn{
			Text:  "Grüße aus 東京, and nothing more.",
			Usage: &fakemodel.Usage{Input: 100, Output: 20, CacheRead: 30},
		}))
		var d deltas
		turn, err := w.models.Turn(t.Context(), v.request("hello"), d.add)
		if err != nil {
			t.Fatal(err)
		}
		want := &agent.Turn{
			Parts: []agent.Part{{Text: "Grüße aus 東京, and nothing more."}},
			Stop:  agent.StopEnd,
			Usage: agent.Usage{Input: 100, Output: 20, CacheRead: 30},
		}
		if diff := cmp.Diff(want, turn); diff != "" {
			t.Errorf("turn (-want +got):\n%s", diff)
		}
		if d.text != text(turn) {
			t.Errorf("deltas = %q, want the text of the turn", d.text)
		}
		if got := w.fake.Entries()[0].Key; got != testKey {
			t.Errorf("key = %q, want %q", got, testKey)
		}
	})
}

func TestReasoningIsCountedAndReplayed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, script(
			fakemodel.Turn{
				Reasoning: "First I look.", Redacted: "hidden",
				Calls: []fakemodel.Call{{Name: "look"}},
				Usage: &fakemodel.Usage{Input: 10, Output: 5, Reasoning: 7},
			},
			fakemodel.Turn{Text: "done"},
		))
		req := v.request("hello")
		req.Tools = []agent.ToolSpec{{Name: "look", Schema: json.RawMessage(`{"type":"object"}`)}}
		req.Effort = "medium"
		var d deltas
		turn, err := w.models.Turn(t.Context(), req, d.add)
		if err != nil {
			t.Fatal(err)
		}
		want := "First I look."
		if v.provider == "openai" && v.name != "local" {
			want = "" // it does not tell
		}
		if d.reasoning != want {
			t.Errorf("reasoning = %q, want %q", d.reasoning, want)
		}
		if got := (agent.Usage{Input: 10, Output: 12}); turn.Usage != got {
			t.Errorf("usage = %+v, want %+v", turn.Usage, got)
		}
		// The fake checks signatures, and that they are there.
		answer(req, turn, "nothing")
		if turn, err = w.models.Turn(t.Context(), req, nil); err != nil || text(turn) != "done" {
			t.Errorf("Turn after the tool = %+v, %v, want done", turn, err)
		}
	})
}

// answer adds a turn and the results of its calls to the conversation, by way of JSON,
// as one that was stored.
func answer(req *agent.Request, turn *agent.Turn, results ...string) {
	b, err := json.Marshal(turn)
	if err != nil {
		panic(err)
	}
	var kept agent.Turn
	if err := json.Unmarshal(b, &kept); err != nil {
		panic(err)
	}
	req.Messages = append(req.Messages, agent.Message{Role: agent.Assistant, Parts: kept.Parts})
	m := agent.Message{Role: agent.ToolRole}
	for i, c := range calls(&kept) {
		m.Parts = append(m.Parts, agent.Part{Result: &agent.Result{ID: c.ID, Name: c.Name, Text: results[i]}})
	}
	req.Messages = append(req.Messages, m)
}

func TestToolLoopWithParallelCalls(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, script(
			fakemodel.Turn{Text: "Looking.", Calls: []fakemodel.Call{
				{Name: "weather", Arguments: json.RawMessage(`{"city":"Oslo","days":2}`)},
				{Name: "weather", Arguments: json.RawMessage(`{"city":"Rome","days":1}`)},
				{Name: "now"},
			}},
			fakemodel.Turn{Calls: []fakemodel.Call{{Name: "now"}}},
			fakemodel.Turn{Text: "Rome is warmer."},
		))
		req := v.request("where is it warmer?")
		req.Tools = []agent.ToolSpec{
			{Name: "weather", Description: "of a city", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1}},"required":["city"],"additionalProperties":false}`)},
			{Name: "now", Schema: json.RawMessage(`{"type":"object","properties":{}}`)},
		}
		turn, err := w.models.Turn(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if turn.Stop != agent.StopToolUse || text(turn) != "Looking." {
			t.Errorf("turn = %q, %s, want Looking. and tool_use", text(turn), turn.Stop)
		}
		var got []string
		ids := map[string]bool{}
		for _, c := range calls(turn) {
			got = append(got, c.Name+string(c.Arguments))
			ids[c.ID] = true
		}
		if diff := cmp.Diff([]string{`weather{"city":"Oslo","days":2}`, `weather{"city":"Rome","days":1}`, `now{}`}, got); diff != "" || len(ids) != 3 {
			t.Errorf("calls with %d ids (-want +got):\n%s", len(ids), diff)
		}
		answer(req, turn, "3 degrees", "", "noon")
		if turn, err = w.models.Turn(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		if c := calls(turn); len(c) != 1 || ids[c[0].ID] {
			t.Errorf("calls of the second turn = %+v, want one with a new id", c)
		}
		answer(req, turn, "one")
		if turn, err = w.models.Turn(t.Context(), req, nil); err != nil || turn.Stop != agent.StopEnd || text(turn) != "Rome is warmer." {
			t.Errorf("last turn = %+v, %v", turn, err)
		}
	})
}

func TestArgumentsThatAreNoObjectComeAsWritten(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		if v.name == "gemini" {
			return // its arguments are an object on the wire
		}
		w := v.world(t, script(fakemodel.Turn{Calls: []fakemodel.Call{{Name: "f", Raw: `["a"]`}}}, fakemodel.Turn{Text: "sorry"}))
		req := v.request("x")
		req.Tools = []agent.ToolSpec{{Name: "f", Schema: json.RawMessage(`{"type":"object"}`)}}
		turn, err := w.models.Turn(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(calls(turn)[0].Arguments); got != `["a"]` {
			t.Errorf("arguments = %s, want them as written", got)
		}
		answer(req, turn, "arguments must be an object")
		if _, err = w.models.Turn(t.Context(), req, nil); err != nil {
			t.Errorf("Turn with such a call behind it = %v", err)
		}
	})
}

const personSchema = `{"type":"object","properties":{"name":{"type":"string","minLength":1},"age":{"type":"integer","minimum":0}},"required":["name","age"],"additionalProperties":false}`

func TestSchema(t *testing.T) {
	t.Parallel()
	want := map[string]struct{ format, prompt string }{
		"anthropic": {"json_schema", ""},
		"openai":    {"json_schema", ""},
		"deepseek":  {"json_object", "JSON Schema"},
		"gemini":    {"json_schema", ""},
		"local":     {"json_schema", ""},
		"responses": {"json_schema", ""},
	}
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		var seen *fakemodel.Request
		w := v.world(t, fakemodel.Options{Answer: func(q *fakemodel.Request) (fakemodel.Turn, bool) {
			seen = q
			return fakemodel.Turn{Text: `{"name":"Ada","age":36}`}, true
		}})
		req := v.request("who?")
		req.Schema, req.SchemaName = json.RawMessage(personSchema), "person"
		turn, err := w.models.Turn(t.Context(), req, nil)
		if err != nil || text(turn) != `{"name":"Ada","age":36}` {
			t.Fatalf("Turn = %+v, %v", turn, err)
		}
		if seen.Format != want[v.name].format || !strings.Contains(seen.System, want[v.name].prompt) {
			t.Errorf("format = %q with system %q, want %q with %q in it", seen.Format, seen.System, want[v.name].format, want[v.name].prompt)
		}
		if want[v.name].prompt == "" {
			if i, j := strings.Index(string(seen.Schema), `"name"`), strings.Index(string(seen.Schema), `"age"`); i < 0 || j < i && v.name != "gemini" {
				t.Errorf("schema = %s, want the members in their order", seen.Schema)
			}
		}
	})
}

func TestServerWithoutSchemasIsAskedPlainly(t *testing.T) {
	t.Parallel()
	v := voices[4]
	opt := script(fakemodel.Turn{Text: `{"name":"Ada","age":36}`})
	opt.PlainLocal = true
	w := v.world(t, opt)
	for i, want := range []string{"refused done", "refused done done"} { // the second knows
		req := v.request("who?")
		req.Schema = json.RawMessage(personSchema)
		if turn, err := w.models.Turn(t.Context(), req, nil); err != nil || !json.Valid([]byte(text(turn))) {
			t.Fatalf("Turn %d = %+v, %v", i, turn, err)
		}
		var got []string
		for _, e := range w.fake.Entries() {
			if e.Event == "end" {
				got = append(got, e.Outcome)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("outcomes after turn %d = %v, want %s", i, got, want)
		}
	}
}

func TestServerWithoutResponsesIsAskedByChat(t *testing.T) {
	t.Parallel()
	v := byName("local")
	v.model = "gpt-6-sol"
	w := v.world(t, script(fakemodel.Turn{Text: "ok"}))
	for i, want := range []string{"refused done", "refused done done"} { // the second knows
		if turn, err := w.models.Turn(t.Context(), v.request("x"), nil); err != nil || text(turn) != "ok" {
			t.Fatalf("Turn %d = %+v, %v", i, turn, err)
		}
		var got []string
		for _, e := range w.fake.Entries() {
			if e.Event == "end" {
				got = append(got, e.Outcome)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("outcomes after turn %d = %v, want %s", i, got, want)
		}
	}
}

func TestStops(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		for stop, want := range map[string]agent.Stop{"length": agent.StopLength, "content_filter": agent.StopFilter} {
			w := v.world(t, script(fakemodel.Turn{Text: "so far", Stop: stop}))
			turn, err := w.models.Turn(t.Context(), v.request("x"), nil)
			if err != nil || turn.Stop != want || text(turn) != "so far" {
				t.Errorf("Turn = %+v, %v, want stop %s", turn, err, want)
			}
		}
	})
}

func TestStatuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		want   agent.ErrorKind
	}{
		{400, agent.BadRequest},
		{401, agent.Auth},
		{402, agent.Auth},
		{403, agent.Auth},
		{404, agent.BadRequest},
		{413, agent.BadRequest},
		{422, agent.BadRequest},
		{429, agent.RateLimit},
		{500, agent.Overloaded},
		{503, agent.Overloaded},
		{504, agent.Timeout},
		{529, agent.Overloaded},
	} {
		each(t, func(t *testing.T, v voice) {
			t.Helper()
			w := v.world(t, script(fakemodel.Turn{Text: "ok", Fail: []fakemodel.Fail{
				{Status: tt.status, RetryAfter: "7", Message: "provider's words about " + testKey + strings.Repeat(" long", 1000)},
			}}))
			e := failed(t, w, v.request("x"))
			if e.Kind != tt.want || e.Status != tt.status || e.RetryAfter != 7*time.Second || e.Streamed {
				t.Errorf("status %d = %+v, want %s and 7s", tt.status, e, tt.want)
			}
			if strings.Contains(e.Error(), "provider's words") || strings.Contains(e.Error(), testKey) || e.Message == "" {
				t.Errorf("message = %q, want one of ours", e.Error())
			}
			if s := e.Err.Error(); !strings.Contains(s, "provider's words") || strings.Contains(s, testKey) || len(s) > 2<<10+8 {
				t.Errorf("Err = %d bytes %.80q, want the provider's words, bounded and without the key", len(s), s)
			}
			if n := len(w.fake.Entries()); n != 2 {
				t.Errorf("journal has %d entries, want one request: nothing is tried twice", n)
			}
		})
	}
}

func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cut   fakemodel.Cut
		after int
		want  agent.ErrorKind
	}{
		{fakemodel.CutDisconnect, 2, agent.Transport},
		{fakemodel.CutDisconnect, 0, agent.Transport},
		{fakemodel.CutTruncated, 2, agent.Transport},
		{fakemodel.CutTruncated, -1, agent.Transport},
		{fakemodel.CutMalformed, 2, agent.Transport},
		{fakemodel.CutError, 2, agent.Overloaded},
		{fakemodel.CutError, 0, agent.Overloaded},
	} {
		each(t, func(t *testing.T, v voice) {
			t.Helper()
			w := v.world(t, script(fakemodel.Turn{Text: "one two three four five", Cut: tt.cut, After: tt.after}))
			var d deltas
			turn, err := w.models.Turn(t.Context(), v.request("x"), d.add)
			e, ok := errors.AsType[*agent.ModelError](err)
			if !ok {
				t.Fatalf("%s after %d: Turn = %+v, %v, want an error", tt.cut, tt.after, turn, err)
			}
			if e.Kind != tt.want || e.Streamed != (tt.after != 0) || (d.text != "") != e.Streamed {
				t.Errorf("%s after %d: %+v (%v) with deltas %q, want %s", tt.cut, tt.after, e, e.Err, d.text, tt.want)
			}
			if v.name == "anthropic" && e.Usage.Input == 0 {
				t.Errorf("%s: usage = %+v, want the input that was told at the start", tt.cut, e.Usage)
			}
		})
	}
}

func TestCancelInMidStreamIsSeenByTheServer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, script(fakemodel.Turn{Text: "one two three", Cut: fakemodel.CutHold, After: 2}))
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("the run was cancelled")
		_, err := w.models.Turn(ctx, v.request("x"), func(agent.Delta) { cancel(stop) })
		e, ok := errors.AsType[*agent.ModelError](err)
		if !ok || e.Kind != agent.Cancelled || !e.Streamed || !errors.Is(err, stop) {
			t.Errorf("Turn = %v, want cancelled with its cause", err)
		}
		await(t, w, fakemodel.Ended("gone", 1))
	})
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		for name, turn := range map[string]fakemodel.Turn{
			"before the header": {Text: "x", Delay: fakemodel.Duration(time.Minute)},
			"in mid-stream":     {Text: "one two three", Cut: fakemodel.CutHold, After: 2},
		} {
			w := v.world(t, script(turn))
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := w.models.Turn(ctx, v.request("x"), nil)
			cancel()
			if e, ok := errors.AsType[*agent.ModelError](err); !ok || e.Kind != agent.Timeout {
				t.Errorf("%s: Turn = %v, want timeout", name, err)
			}
			if len(w.fake.Entries()) > 0 { // it came as far as the fake
				await(t, w, fakemodel.Ended("gone", 1))
			}
		}
	})
}

func TestCancelBeforeTheHeaderIsNoTimeout(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		w := v.world(t, script(fakemodel.Turn{Text: "x", Delay: fakemodel.Duration(time.Minute)}))
		outer, cancel := context.WithCancel(t.Context())
		ctx, stop := context.WithTimeout(outer, time.Minute)
		defer stop()
		go func() {
			defer cancel()
			if err := w.fake.Wait(ctx, fakemodel.Arrived(1)); err != nil {
				t.Error(err)
			}
		}()
		_, err := w.models.Turn(ctx, v.request("x"), nil)
		if e, ok := errors.AsType[*agent.ModelError](err); !ok || e.Kind != agent.Cancelled || e.Streamed {
			t.Errorf("Turn = %v, want cancelled", err)
		}
		await(t, w, fakemodel.Ended("gone", 1))
	})
}
