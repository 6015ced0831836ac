package publish_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

// The results of runs that completed, failed and were cancelled all say how long
// the run lasted, waiting included.
func TestDurationOfEveryOutcome(t *testing.T) {
	t.Parallel()
	const wait = 120 * time.Millisecond
	rejected := gated(t, "rejected", wait)
	for i := range rejected.Nodes {
		if spec, ok := rejected.Nodes[i].Spec.(workflows.GateNode); ok {
			spec.TimeoutAction = "reject"
			rejected.Nodes[i].Spec = spec
		}
	}
	s, e, _ := newServer(t, func(o *publish.Options) { o.Prefix = "" },
		gated(t, "completed", wait), rejected, gated(t, "cancelled", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	for _, tt := range []struct {
		tool    string
		isError bool
	}{{"completed", false}, {"rejected", true}, {"cancelled", true}} {
		c.call("1", tt.tool, "")
		run, _ := openGate(c)
		if tt.tool == "cancelled" {
			<-time.After(wait)
			if err := e.Cancel(t.Context(), run, string(engine.Local), engine.ViaCLI, "enough"); err != nil {
				t.Fatal(err)
			}
		}
		got := c.result(c.response("1"))
		r, err := e.Run(t.Context(), run, engine.Local)
		if err != nil {
			t.Fatal(err)
		}
		ms, err := strconv.ParseInt(string(got.Meta["relavium/durationMs"]), 10, 64)
		if want := r.Ended.Sub(r.Created).Milliseconds(); err != nil || got.IsError != tt.isError || ms < wait.Milliseconds() || ms != want {
			t.Errorf("%s: isError %t, durationMs %s, want %t and %d, over %d", tt.tool, got.IsError, got.Meta["relavium/durationMs"], tt.isError, want, wait.Milliseconds())
		}
	}
}

// A refusal keeps the dots of what it refuses.
func TestRefusalKeepsDots(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "reads", "  inputs:\n    - { name: f, type: file_path }\n", `({ ok: true })`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	got := c.callResult("relavium_reads", `,"arguments":{"f":"../x"}`)
	const want = "validation: one of the arguments is wrong: f: want a file path relative to the workspace: the path leaves its folder with ..; correct the call and try again."
	if !got.IsError || got.Content[0].Text != want {
		t.Errorf("refusal = %q, want %q", got.Content[0].Text, want)
	}
}
