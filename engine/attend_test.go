package engine_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

const servedAgent = `
	agents:
	  - id: wader
	    provider: anthropic
	    model: m-1
	    system_prompt: 'Be brief.'
	    mcp_servers: [{id: s, transport: stdio, command: x}]
	nodes:
	  - {id: in, type: input}
	  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go?'}
	  - {id: dig, type: agent, agent_ref: wader, prompt_template: 'dig'}
	  - {id: out, type: output}
	edges: [{from: in, to: ask}, {from: ask, to: dig}, {from: dig, to: out}]`

// TestAttend counts who attends a run with servers: the call before it exists and
// each segment; all leave, and the run's end is told once.
func TestAttend(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var log []string
	say := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		log = append(log, what)
	}
	ended := make(chan struct{})
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) {
		o.Attend = func(_ context.Context, a engine.Attendance) (func(bool), error) {
			say("attend " + a.Agents[0].ID)
			return func(over bool) { say(map[bool]string{true: "end", false: "leave"}[over]) }, nil
		}
		o.Ended = func(string) { close(ended) }
	})
	started, err := e.Start(t.Context(), request(t, parse(t, servedAgent), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	decide(t, e, parkedAt(t, e, started.Run)[0].ID, engine.Decision{Decision: engine.Approved})
	follow(t, e, started.Run)
	<-ended
	if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	slices.Sort(log) // the call and the first segment are there at once
	if got, want := strings.Join(log, ", "), "attend wader, attend wader, attend wader, end, leave, leave"; got != want {
		t.Errorf("attended %s, want %s", got, want)
	}
}

// TestAttendRefused refuses a run before it exists, and one that goes on after its
// gate: what the person decided stands in its events.
func TestAttendRefused(t *testing.T) {
	t.Parallel()
	refusal := &engine.RunError{Code: engine.CodeToolUnavailable, Message: "MCP server s: gone"}
	var mu sync.Mutex
	up := false
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) {
		o.Attend = func(context.Context, engine.Attendance) (func(bool), error) {
			mu.Lock()
			defer mu.Unlock()
			if !up {
				return nil, refusal
			}
			return func(bool) {}, nil
		}
	})
	req := request(t, parse(t, servedAgent), `{}`)
	if _, err := e.Start(t.Context(), req); err == nil || !strings.Contains(err.Error(), "s: gone") {
		t.Errorf("Start = %v, want the refusal", err)
	}
	if runs, err := e.Runs(t.Context(), engine.RunFilter{}); err != nil || len(runs) != 0 {
		t.Errorf("%d runs, %v; want none", len(runs), err)
	}
	mu.Lock()
	up = true
	mu.Unlock()
	started, err := e.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	gate := parkedAt(t, e, started.Run)[0].ID
	mu.Lock()
	up = false
	mu.Unlock()
	decide(t, e, gate, engine.Decision{Decision: engine.Approved})
	events := follow(t, e, started.Run)
	if f := last(events).Error; f == nil || f.Code != engine.CodeToolUnavailable {
		t.Errorf("the run ended with %v, want tool_unavailable", f)
	}
	if got := brief(events); !strings.Contains(got, "human_gate:resumed ask, node:completed ask, run:failed") {
		t.Errorf("events %s, want the decision before the end", got)
	}
}
