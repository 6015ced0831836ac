package models

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine/agent"
)

func TestNodeKeepsOrderAndNumbers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"b":1,"a":[{"z":null,"y":true}],"c":"<é"}`: `{"b":1,"a":[{"z":null,"y":true}],"c":"\u003cé"}`,
		`{"n":9007199254740993,"f":1.50}`:            `{"n":9007199254740993,"f":1.50}`,
		`[]`:                                         `[]`,
		`"x"`:                                        `"x"`,
	} {
		n, err := parseNode(json.RawMessage(in))
		if err != nil {
			t.Errorf("parseNode(%s) = %v", in, err)
			continue
		}
		if got, err := json.Marshal(n); err != nil || string(got) != want {
			t.Errorf("parseNode(%s) writes %s, %v, want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{``, `{`, `{} x`, `{"a"}`, `[1,`, strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)} {
		if _, err := parseNode(json.RawMessage(bad)); err == nil {
			t.Errorf("parseNode(%.20s) is no error", bad)
		}
	}
}

func TestStrict(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`:                                             true,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":[],"additionalProperties":false}`:                                                false,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`:                                                                          false,
		`{"type":"object","properties":{"a":{"type":"string","minLength":2}},"required":["a"],"additionalProperties":false}`:                               false,
		`{"type":"object","properties":{"a":{"type":["object","null"]}},"required":["a"],"additionalProperties":false}`:                                    false,
		`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["a"],"additionalProperties":false}`:                 true,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{}}}},"required":["a"],"additionalProperties":false}`:    false,
		`{"type":"object","properties":{"a":true},"required":["a"],"additionalProperties":false}`:                                                          false,
		`{"type":"object","properties":{"a":{"oneOf":[{"type":"string"}]}},"required":["a"],"additionalProperties":false}`:                                 false,
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"required":["a"],"additionalProperties":false,"$defs":{"x":{"type":"string"}}}`:          true,
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"required":["a"],"additionalProperties":false,"$defs":{"x":{"type":"object"}}}`:          false,
		`{"type":"object","properties":{"a":{"type":"integer","minimum":0}},"required":["a"],"additionalProperties":false,"description":"what it is for"}`: true,
	} {
		n, err := parseNode(json.RawMessage(in))
		if err != nil || n.strict() != want {
			t.Errorf("strict(%s) = %v, %v, want %v", in, n.strict(), err, want)
		}
	}
}

// Whatever a schema is, lowering it ends and gives JSON, and a schema that is said to
// be closed is. (A fuzz target would have all the SDKs built with instrumentation.)
func TestLoweringOfAnything(t *testing.T) {
	t.Parallel()
	seeds := []string{
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`,
		`{"anyOf":[true,false,{"type":["object","null"]}],"$ref":"#/x"}`,
		`{"properties":[1],"items":[{}],"allOf":{"a":1},"enum":{},"const":{"type":"object"}}`,
		`{"type":{"type":"object"},"required":"a","additionalProperties":{"type":"object"}}`,
		`{"$defs":{"n":{"type":"object","properties":{"k":{"items":{"$ref":"#/$defs/n"}}}}},"minItems":7,"format":"x"}`,
		`[]`, `null`, `{"":{}}`,
	}
	r := rand.New(rand.NewPCG(1, 2))
	tried := 0
	for range 20_000 {
		raw := []byte(seeds[r.IntN(len(seeds))])
		other := seeds[r.IntN(len(seeds))]
		for range r.IntN(3) { // put a piece of one in another
			i, j := r.IntN(len(raw)+1), r.IntN(len(raw)+1)
			k, l := r.IntN(len(other)+1), r.IntN(len(other)+1)
			raw = slices.Concat(raw[:min(i, j)], []byte(other[min(k, l):max(k, l)]), raw[max(i, j):])
		}
		for name, lower := range map[string]func(*node) bool{"strict": (*node).strict, "closed": (*node).closed, "gemini": (*node).geminiSubset} {
			n, err := parseNode(raw)
			if err != nil {
				continue
			}
			tried++
			ok := lower(n)
			b, err := json.Marshal(n)
			if err != nil || !json.Valid(b) {
				t.Fatalf("%s(%q) writes %q, %v", name, raw, b, err)
			}
			if name == "closed" && ok && n.isObject() && !n.get("additionalProperties").is("false") {
				t.Errorf("closed(%q) = %s, which is open", raw, b)
			}
		}
		if n := toolSchema(raw); !n.isObject() {
			t.Errorf("toolSchema(%q) is not of objects", raw)
		}
	}
	if tried < 10_000 {
		t.Errorf("only %d of the tries were JSON", tried)
	}
}

func TestObject(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a":1}`: `{"a":1}`,
		`{}`:      `{}`,
		`null`:    `{"not_an_object":"null"}`,
		`{"a":`:   `{"not_an_object":"{\"a\":"}`,
		``:        `{"not_an_object":""}`,
	} {
		if got := string(object(json.RawMessage(in))); got != want {
			t.Errorf("object(%s) = %s, want %s", in, got, want)
		}
	}
	if got := object(json.RawMessage(strings.Repeat("é", 1<<20))); len(got) > 2<<10 || !json.Valid(got) {
		t.Errorf("object of 2 MiB is %d bytes", len(got))
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "7", 7 * time.Second},
		{"Retry-After", "0.5", 500 * time.Millisecond},
		{"Retry-After", "Mon, 30 Nov 2026 12:00:30 GMT", 30 * time.Second},
		{"Retry-After", "Mon, 30 Nov 2026 11:00:00 GMT", 0},
		{"Retry-After", "-3", 0},
		{"Retry-After", "soon", 0},
		{"Retry-After", "86400", time.Hour},
		{"Retry-After", "1e300", 0},
		{"Retry-After-Ms", "250", 250 * time.Millisecond},
		{"Retry-After-Ms", "NaN", 0},
	} {
		h := http.Header{}
		h.Set(tt.name, tt.value)
		if got := retryAfter(h, now); got != tt.want {
			t.Errorf("retryAfter(%s: %s) = %v, want %v", tt.name, tt.value, got, tt.want)
		}
	}
}

// What the providers say in their own error bodies.
func TestErrorBodies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		body   string
		want   agent.ErrorKind
		after  time.Duration
	}{
		{400, `{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}`, agent.Auth, 0},
		{429, `[{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}}]`, agent.RateLimit, 34 * time.Second},
		{400, `{"error":{"message":"too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, agent.BadRequest, 0},
		{400, `{"error":{"message":"no","type":"invalid_request_error","code":"content_policy_violation"}}`, agent.ContentFilter, 0},
		{429, `{"error":{"message":"pay","type":"insufficient_quota","code":"insufficient_quota"}}`, agent.RateLimit, 0},
		{529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded","details":{"error_code":"x"}}}`, agent.Overloaded, 0},
		{502, `<html>bad gateway</html>`, agent.Overloaded, 0},
		{418, ``, agent.BadRequest, 0},
	} {
		f := failure{ctx: t.Context(), x: &exchange{status: tt.status, said: tt.body}, a: &assembly{}}
		if e := f.tell(&agent.Request{}, errors.New("x")); e.Kind != tt.want || e.RetryAfter != tt.after || e.Status != tt.status {
			t.Errorf("%d %.60s = %+v, want %s after %v", tt.status, tt.body, e, tt.want, tt.after)
		}
	}
	for body, want := range map[string]agent.ErrorKind{
		`{"type":"error","error":{"type":"rate_limit_error","message":"x"}}`:      agent.RateLimit,
		`{"type":"error","error":{"type":"invalid_request_error","message":"x"}}`: agent.BadRequest,
		`{"type":"error","error":{"type":"authentication_error","message":"x"}}`:  agent.Auth,
		`{"type":"error","error":{"type":"timeout_error","message":"x"}}`:         agent.Timeout,
		`{"type":"error","error":{"type":"api_error","message":"x"}}`:             agent.Overloaded,
		`{"error":{"code":502,"message":"upstream"}}`:                             agent.Overloaded,
		`{"error":{"code":429,"message":"upstream"}}`:                             agent.RateLimit,
		`{"error":"only text"}`: agent.Overloaded,
		`no JSON`:               agent.Overloaded,
	} {
		if e := event(body); e.Kind != want {
			t.Errorf("event(%s) = %s, want %s", body, e.Kind, want)
		}
	}
}

func TestEndedIsToldByTheCause(t *testing.T) {
	t.Parallel()
	stop := errors.New("the run was cancelled")
	for name, tt := range map[string]struct {
		end  func(context.Context) (context.Context, context.CancelFunc)
		want agent.ErrorKind
	}{
		"cancel": {func(c context.Context) (context.Context, context.CancelFunc) {
			c, f := context.WithCancel(c)
			f()
			return c, f
		}, agent.Cancelled},
		"cancel with a cause": {func(c context.Context) (context.Context, context.CancelFunc) {
			c, f := context.WithCancelCause(c)
			f(stop)
			return c, func() {}
		}, agent.Cancelled},
		"a deadline as cause": {func(c context.Context) (context.Context, context.CancelFunc) {
			c, f := context.WithCancelCause(c)
			f(context.DeadlineExceeded)
			return c, func() {}
		}, agent.Timeout},
		"deadline": {func(c context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(c, time.Unix(0, 0))
		}, agent.Timeout},
		"deadline with a cause": {func(c context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadlineCause(c, time.Unix(0, 0), stop)
		}, agent.Timeout},
		"cancel, then a deadline": {func(c context.Context) (context.Context, context.CancelFunc) {
			c, f := context.WithCancelCause(c)
			f(stop)
			return context.WithDeadline(c, time.Unix(0, 0))
		}, agent.Cancelled},
	} {
		ctx, cancel := tt.end(t.Context())
		e := failure{ctx: ctx, x: &exchange{status: 500}, a: &assembly{}}.tell(&agent.Request{}, errors.New("x"))
		cancel()
		if e.Kind != tt.want || e.Err == nil {
			t.Errorf("%s: %+v, want %s", name, e, tt.want)
		}
	}
}
