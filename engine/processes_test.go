package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

const gateFragment = `
	nodes:
	  - {id: in, type: input}
	  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go?'}
	  - {id: out, type: output}
	edges: [{from: in, to: ask}, {from: ask, to: out}]`

const slowFragment = agents + `
	nodes:
	  - {id: in, type: input}
	  - {id: work, type: agent, agent_ref: wader, prompt_template: 'w'}
	  - {id: out, type: output}
	edges: [{from: in, to: work}, {from: work, to: out}]`

// blocking is an agent that waits until it is released or its run ends.
type blocking struct {
	begun   chan string
	release chan struct{}
	calls   atomic.Int64
}

func newBlocking() *blocking {
	return &blocking{begun: make(chan string, 64), release: make(chan struct{})}
}

func (b *blocking) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	b.calls.Add(1)
	b.begun <- call.Run
	select {
	case <-b.release:
		return echo(ctx, call)
	case <-ctx.Done():
		return engine.AgentResult{}, ctx.Err()
	}
}

func onlyLook(o *engine.Options) { o.Executor = false }

// TestDecisionByAnotherProcess decides through a handle that executes nothing, as
// the command line does: the executor goes on by itself.
func TestDecisionByAnotherProcess(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	e := open(t, path, nil)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	cli := open(t, path, onlyLook)
	if alive, err := cli.Alive(t.Context(), project); err != nil || !alive {
		t.Errorf("Alive = %v, %v, want true", alive, err)
	}
	if _, err := cli.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "cli", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	if end := last(follow(t, e, run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", end.Type)
	}
	// The looking process sees the same, from the store.
	if end := last(follow(t, cli, run)); end.Type != engine.RunCompleted {
		t.Errorf("the other process saw %s, want run:completed", end.Type)
	}
}

// TestParkedRunGoesOnAtNextStart leaves a gate open over a restart; it is decided
// while nobody lives.
func TestParkedRunGoesOnAtNextStart(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	first := open(t, path, nil)
	run, gates := untilPaused(t, first, request(t, parse(t, gateFragment), `{}`))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	cli := open(t, path, onlyLook)
	if alive, err := cli.Alive(t.Context(), project); err != nil || alive {
		t.Errorf("Alive = %v, %v, want false", alive, err)
	}
	if _, err := cli.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Rejected, By: "cli", Via: engine.ViaCLI}); err != nil {
		t.Fatal(err)
	}
	r, err := cli.Run(t.Context(), run, "")
	if err != nil || r.State != engine.Parked {
		t.Errorf("state = %s, %v, want parked", r.State, err)
	}
	second := open(t, path, nil)
	if got, want := string(last(follow(t, second, run)).Outputs), `{"out":{"decision":"rejected","decidedBy":"cli"}}`; got != want {
		t.Errorf("outputs = %s, want %s", got, want)
	}
}

// endInsideAnEffect leaves a run on the store whose process ended in mid-effect.
func endInsideAnEffect(t *testing.T, path string) (run string) {
	t.Helper()
	b := newBlocking()
	e := open(t, path, func(o *engine.Options) { o.Agent = b })
	started, err := e.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-b.begun
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return started.Run
}

// TestShutdownInsideAnEffect interrupts an effect; the next process does it again
// and the run ends as if nothing had happened.
func TestShutdownInsideAnEffect(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	run := endInsideAnEffect(t, path)
	second := open(t, path, nil)
	said := make(map[string]int)
	for _, ev := range follow(t, second, run) {
		said[strings.TrimSpace(ev.Type+" "+ev.Node)]++
	}
	for _, once := range []string{"node:started work", "node:completed work", "node:completed out", "run:completed"} {
		if said[once] != 1 {
			t.Errorf("%s was said %d times, want once: %v", once, said[once], said)
		}
	}
}

// TestTwoProjectsOnOneStore kills nothing of the other project: B leaves A's runs
// alone, though A is dead, and A' continues them.
func TestTwoProjectsOnOneStore(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	run := endInsideAnEffect(t, path)
	var foreign atomic.Int64
	other := open(t, path, func(o *engine.Options) {
		o.Projects = []string{"p-other"}
		o.Agent = agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
			foreign.Add(1)
			return echo(ctx, call)
		})
	})
	// B looks for the dead when it starts; give it a run of its own to be sure it has.
	req := request(t, parse(t, pureCase), `{}`)
	req.Project.Key = "p-other"
	finish(t, other, req)
	r, err := other.Run(t.Context(), run, "")
	if err != nil || r.State != engine.Parked {
		t.Fatalf("A's run is %s, %v; want it parked while only B lives", r.State, err)
	}
	again := open(t, path, nil)
	if end := last(follow(t, again, run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", end.Type)
	}
	if n := foreign.Load(); n != 0 {
		t.Errorf("the other project's process ran %d effects of A", n)
	}
}

const pureCase = `
	nodes: [{id: in, type: input}, {id: out, type: output}]
	edges: [{from: in, to: out}]`

// TestTwoProcessesOfOneProject share the work of one store: each run is executed
// once, whichever process began it.
func TestTwoProcessesOfOneProject(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	var mu sync.Mutex
	done := make(map[string]int)
	count := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		mu.Lock()
		done[call.Run]++
		mu.Unlock()
		return echo(ctx, call)
	})
	set := func(o *engine.Options) { o.Agent = count }
	engines := []*engine.Engine{open(t, path, set), open(t, path, set)}
	w := parse(t, agents+`
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval}
		  - {id: work, type: agent, agent_ref: wader, prompt_template: 'w'}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: work}, {from: work, to: out}]`)
	cli := open(t, path, onlyLook)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			e := engines[i%2]
			run, gates := untilPaused(t, e, request(t, w, `{}`))
			if _, err := cli.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "cli", Via: engine.ViaCLI}); err != nil {
				t.Error(err)
				return
			}
			if end := last(follow(t, engines[(i+1)%2], run)); end.Type != engine.RunCompleted {
				t.Errorf("run %d ended %s", i, end.Type)
			}
		})
	}
	wg.Wait()
	if len(done) != 8 {
		t.Errorf("%d runs did their effect, want 8", len(done))
	}
	for run, n := range done {
		if n != 1 {
			t.Errorf("run %s did its effect %d times", run, n)
		}
	}
}

// TestExpiryWhileNoProcessLives applies a gate's expiry at the next start, with the
// time at which it fell due.
func TestExpiryWhileNoProcessLives(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	first := open(t, path, nil)
	w := parse(t, `
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, timeout_ms: 3600000, timeout_action: approve}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: out}]`)
	run, gates := untilPaused(t, first, request(t, w, `{}`))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := open(t, path, func(o *engine.Options) { o.Now = func() time.Time { return time.Now().Add(2 * time.Hour) } })
	if end := last(follow(t, second, run)); end.Type != engine.RunCompleted {
		t.Fatalf("ended %s", end.Type)
	}
	g, err := second.Gate(t.Context(), gates[0])
	if err != nil || !g.Decided.Equal(g.Expires) || g.Via != engine.ViaTimeout {
		t.Errorf("gate = %+v, %v; want it decided at its expiry", g, err)
	}
}

// TestRetriesJoinAfterTheServerDied lets the calls of a dead process be made again:
// each finds its run, at a gate, in an effect, or completed with its result unheard.
func TestRetriesJoinAfterTheServerDied(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	b := newBlocking()
	first := open(t, path, func(o *engine.Options) { o.Agent = b })
	gate, slow, pure := parse(t, gateFragment), parse(t, slowFragment), parse(t, pureCase)
	requests := []engine.StartRequest{request(t, gate, `{}`), request(t, slow, `{}`), request(t, pure, `{}`)}
	runs := make([]string, len(requests))
	for i, req := range requests {
		s, err := first.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		runs[i] = s.Run
		// The call waits; nobody detaches it: its process dies.
		if _, err := first.Attach(t.Context(), s.Run, engine.Local); err != nil {
			t.Fatal(err)
		}
	}
	<-b.begun
	follow(t, first, runs[2])
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := open(t, path, nil)
	for i, req := range requests {
		req.Join = true
		s, err := second.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Joined || s.Run != runs[i] {
			t.Errorf("request %d: the retry got run %s (joined %v), want %s", i, s.Run, s.Joined, runs[i])
		}
	}
}

// TestDeadHolderIsLeftToItsProject: a process of another project that finds a dead
// one forgets nothing of it that its own project needs.
func TestDeadHolderIsLeftToItsProject(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	first := open(t, path, nil)
	req := request(t, parse(t, gateFragment), `{}`)
	s, err := first.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run waits", func() bool {
		r, err := first.Run(t.Context(), s.Run, "")
		return err == nil && r.State == engine.Waiting
	})
	if _, err := first.Attach(t.Context(), s.Run, engine.Local); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	open(t, path, func(o *engine.Options) { o.Projects = []string{"p-other"} })
	late := open(t, path, func(o *engine.Options) { o.Projects = nil })
	if err := late.Adopt(project); err != nil {
		t.Fatal(err)
	}
	req.Join = true
	again, err := late.Start(t.Context(), req)
	if err != nil || !again.Joined || again.Run != s.Run {
		t.Errorf("the retry got %+v, %v, want run %s joined", again, err, s.Run)
	}
}

// eventually waits until what is said holds, or fails the test.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// TestGateKeepsItsClock stops the server at a third of a gate's time (report G18): an
// answer after the restart counts, and without one the gate ends when it was to end,
// not a gate's time after the restart.
func TestGateKeepsItsClock(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprintf("answered=%v", answered), func(t *testing.T) {
			t.Parallel()
			path := durabletest.Place(t, t.TempDir())
			first := open(t, path, nil)
			w := parse(t, `
				nodes:
				  - {id: in, type: input}
				  - {id: ask, type: human_gate, gate_type: approval, timeout_ms: 3600000, timeout_action: reject}
				  - {id: out, type: output}
				edges: [{from: in, to: ask}, {from: ask, to: out}]`)
			run, gates := untilPaused(t, first, request(t, w, `{}`))
			before, err := first.Gate(t.Context(), gates[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			var late atomic.Int64
			late.Store(int64(20 * time.Minute))
			second := open(t, path, func(o *engine.Options) {
				o.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
			})
			if answered {
				if _, err := second.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "x", Via: engine.ViaConsole}); err != nil {
					t.Fatal(err)
				}
			} else {
				late.Store(int64(61 * time.Minute))
			}
			end := last(follow(t, second, run))
			after, err := second.Gate(t.Context(), gates[0])
			if err != nil || !after.Expires.Equal(before.Expires) {
				t.Errorf("the gate expires at %s, %v; want %s as before", after.Expires, err, before.Expires)
			}
			if answered && end.Type != engine.RunCompleted {
				t.Errorf("answered, the run ended %s", end.Type)
			}
			if !answered && (end.Type != engine.RunFailed || end.Error.Code != engine.CodeRunTimeout || !after.Decided.Equal(before.Expires)) {
				t.Errorf("unanswered, the run ended %s (%v), the gate at %s; want run_timeout at %s", end.Type, end.Error, after.Decided, before.Expires)
			}
		})
	}
}

// TestWaitingRunsAreNotSwept keeps a gate open over restarts with every limit that
// ends runs at its least (report G08): a run that waits for a person ends by nothing else.
func TestWaitingRunsAreNotSwept(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	least := func(o *engine.Options) { o.OrphanGrace, o.JoinWindow, o.Keep = 1, 1, 1 }
	e := open(t, path, least)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	for range 3 {
		<-time.After(1200 * time.Millisecond) // several rounds of the janitor
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		e = open(t, path, least)
	}
	if r, err := e.Run(t.Context(), run, ""); err != nil || r.State != engine.Waiting {
		t.Fatalf("the run is %+v, %v, want waiting", r, err)
	}
	if _, err := e.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "x", Via: engine.ViaConsole}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the run completes", func() bool {
		r, err := e.Run(t.Context(), run, "")
		return errors.Is(err, engine.ErrRunNotFound) || err == nil && r.State == engine.Completed // retention is at its least too
	})
}
