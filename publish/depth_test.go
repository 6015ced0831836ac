package publish_test

import (
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/engine"
)

// A workflow that consumes its own server is stopped before it recurses for ever.
func TestDepth(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, shaped(t, "echo", "", `({ ok: true })`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	for _, depth := range []string{`{}`, `{"relavium/depth":0}`, `{"relavium/depth":4}`} {
		if got := c.callResult("relavium_echo", `,"_meta":`+depth); got.IsError {
			t.Errorf("call with _meta %s = %s, want a result", depth, got.Content[0].Text)
		}
	}
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, depth := range []string{`5`, `9223372036854775807`} {
		got := c.callResult("relavium_echo", `,"_meta":{"relavium/depth":`+depth+`}`)
		if !got.IsError || !strings.HasPrefix(got.Content[0].Text, "validation: workflows that call one another are "+depth+" deep") || runOf(got) != "" {
			t.Errorf("call at depth %s = %q, want a refusal without a run", depth, got.Content[0].Text)
		}
	}
	for _, depth := range []string{`"5"`, `-1`, `1.5`, `null`, `9223372036854775808`} {
		c.call("1", "relavium_echo", `,"_meta":{"relavium/depth":`+depth+`}`)
		if m := c.response("1"); m.Error == nil || m.Error.Code != -32602 {
			t.Errorf("call at depth %s = %s, want -32602", depth, m.raw)
		}
	}
	after, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(after) != len(runs) || len(runs) != 3 {
		t.Errorf("%d runs, then %d, %v: want 3 and none of a refused call", len(runs), len(after), err)
	}
}
