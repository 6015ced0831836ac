package engine_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
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
	path := storePath(t)
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
	path := storePath(t)
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

// TestShutdownInsideAnEffect interrupts an effect; the next process does it again
// and the run ends as if nothing had happened.
func TestShutdownInsideAnEffect(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	b := newBlocking()
	first := open(t, path, func(o *engine.Options) { o.Agent = b })
	started, err := first.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-b.begun
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := open(t, path, nil)
	said := make(map[string]int)
	for _, ev := range follow(t, second, started.Run) {
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
	path := storePath(t)
	b := newBlocking()
	a := open(t, path, func(o *engine.Options) { o.Agent = b })
	started, err := a.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-b.begun
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	r, err := other.Run(t.Context(), started.Run, "")
	if err != nil || r.State != engine.Parked {
		t.Fatalf("A's run is %s, %v; want it parked while only B lives", r.State, err)
	}
	again := open(t, path, nil)
	if end := last(follow(t, again, started.Run)); end.Type != engine.RunCompleted {
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
	path := storePath(t)
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

func TestCancel(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"this process", "another process"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			path := storePath(t)
			b := newBlocking()
			e := open(t, path, func(o *engine.Options) { o.Agent = b })
			by := e
			if from != "this process" {
				by = open(t, path, onlyLook)
			}
			started, err := e.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
			if err != nil {
				t.Fatal(err)
			}
			<-b.begun
			if err := by.Cancel(t.Context(), started.Run, "local", "enough"); err != nil {
				t.Fatal(err)
			}
			events := follow(t, e, started.Run)
			if last(events).Type != engine.RunCancelled {
				t.Errorf("ended %s, want run:cancelled", brief(events))
			}
			waiting, _ := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
			if err := by.Cancel(t.Context(), waiting, "local", "enough"); err != nil {
				t.Fatal(err)
			}
			if end := last(follow(t, e, waiting)); end.Type != engine.RunCancelled {
				t.Errorf("a waiting run ended %s, want run:cancelled", end.Type)
			}
			if err := by.Cancel(t.Context(), waiting, "local", "again"); err != nil {
				t.Errorf("cancel of an ended run: %v, want success", err)
			}
			gates, err := e.Gates(t.Context(), engine.GateFilter{Run: waiting})
			if err != nil || len(gates) != 1 {
				t.Fatal(gates, err)
			}
			_, err = e.Decide(t.Context(), gates[0].ID, engine.Decision{Decision: engine.Approved, By: "x", Via: engine.ViaCLI})
			if _, ok := errors.AsType[*engine.DecidedError](err); !ok {
				t.Errorf("deciding a gate of a cancelled run: %v, want a DecidedError", err)
			}
		})
	}
}

// TestCancelWinsOverFailure: once a cancel is asked for, run:cancelled ends the run.
func TestCancelWinsOverFailure(t *testing.T) {
	t.Parallel()
	begun := make(chan string, 1)
	e := open(t, storePath(t), func(o *engine.Options) {
		o.Agent = agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
			begun <- call.Run
			<-ctx.Done()
			return engine.AgentResult{}, &engine.RunError{Code: engine.CodeProviderAuth, Message: "no key"}
		})
	})
	started, err := e.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := e.Cancel(t.Context(), started.Run, "local", ""); err != nil {
		t.Fatal(err)
	}
	if end := last(follow(t, e, started.Run)); end.Type != engine.RunCancelled {
		t.Errorf("ended %s, want run:cancelled", end.Type)
	}
}

func TestAttachmentCancelSparesOtherCalls(t *testing.T) {
	t.Parallel()
	b := newBlocking()
	e := open(t, storePath(t), func(o *engine.Options) { o.Agent = b })
	req := request(t, parse(t, slowFragment), `{}`)
	req.IdempotencyKey = "k"
	started, err := e.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	<-b.begun
	one, err := e.Attach(t.Context(), started.Run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	two, err := e.Attach(t.Context(), started.Run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	if cancelled, err := one.Cancel(t.Context(), "local", ""); err != nil || cancelled {
		t.Errorf("Cancel beside another call = %v, %v, want false", cancelled, err)
	}
	if cancelled, err := two.Cancel(t.Context(), "local", ""); err != nil || !cancelled {
		t.Errorf("Cancel of the last call = %v, %v, want true", cancelled, err)
	}
	if end := last(follow(t, e, started.Run)); end.Type != engine.RunCancelled {
		t.Errorf("ended %s, want run:cancelled", end.Type)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), nil)
	w := parse(t, `
		inputs: [{name: bird, type: string}]`+pureCase)
	req := request(t, w, `{"bird":"tern"}`)
	req.IdempotencyKey = "k-1"
	var wg sync.WaitGroup
	runs := make([]engine.Started, 8)
	for i := range runs {
		wg.Go(func() {
			var err error
			if runs[i], err = e.Start(t.Context(), req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	fresh := 0
	for _, s := range runs {
		if s.Run != runs[0].Run {
			t.Errorf("one key made runs %s and %s", runs[0].Run, s.Run)
		}
		if !s.Joined {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d calls made the run, want 1", fresh)
	}
	other := request(t, w, `{"bird":"gull"}`)
	other.IdempotencyKey = "k-1"
	if _, err := e.Start(t.Context(), other); err == nil {
		t.Error("the same key with other arguments was accepted")
	} else if _, ok := errors.AsType[*engine.KeyConflictError](err); !ok {
		t.Errorf("other arguments: %v, want a KeyConflictError", err)
	}
}

// TestJoin walks the rules by which a call finds the run that lost its caller.
func TestJoin(t *testing.T) {
	t.Parallel()
	b := newBlocking()
	e := open(t, storePath(t), func(o *engine.Options) { o.Agent = b })
	w := parse(t, `
		inputs: [{name: bird, type: string}]
		`+slowFragment)
	start := func(args string) engine.Started {
		t.Helper()
		req := request(t, w, args)
		req.Join = true
		s, err := e.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	attach := func(run string) *engine.Attachment {
		t.Helper()
		a, err := e.Attach(t.Context(), run, engine.Local)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	detach := func(a *engine.Attachment, reason string) {
		t.Helper()
		if err := a.Detach(t.Context(), reason); err != nil {
			t.Fatal(err)
		}
	}
	first := start(`{"bird":"tern"}`)
	a := attach(first.Run)
	if second := start(`{"bird":"tern"}`); second.Joined {
		t.Error("a deliberate second call joined an attached run")
	}
	detach(a, engine.DetachClock)
	if other := start(`{"bird":"gull"}`); other.Joined {
		t.Error("a call with other arguments joined")
	}
	again := start(`{"bird":"tern"}`)
	if !again.Joined || again.Run != first.Run {
		t.Fatalf("the retry got run %s (joined %v), want %s", again.Run, again.Joined, first.Run)
	}
	a = attach(again.Run)
	close(b.release)
	if end := last(follow(t, e, first.Run)); end.Type != engine.RunCompleted {
		t.Fatalf("ended %s", end.Type)
	}
	detach(a, engine.DetachDrop) // its result was lost on the way
	unclaimed := start(`{"bird":"tern"}`)
	if !unclaimed.Joined || unclaimed.Run != first.Run {
		t.Errorf("a completed, unclaimed run was not joined: %+v", unclaimed)
	}
	if err := e.Claim(t.Context(), first.Run); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if s := start(`{"bird":"tern"}`); !s.Joined {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a claimed run is joined still")
		}
		<-time.After(20 * time.Millisecond)
	}
}

// TestOrphan ends a run that lost its caller after its grace of execution, and
// leaves one alone that was handed over.
func TestOrphan(t *testing.T) {
	t.Parallel()
	b := newBlocking()
	e := open(t, storePath(t), func(o *engine.Options) { o.Agent, o.OrphanGrace = b, 1500*time.Millisecond })
	w := parse(t, slowFragment)
	runs := make(map[string]string)
	for _, reason := range []string{engine.DetachDrop, ""} {
		s, err := e.Start(t.Context(), request(t, w, `{}`))
		if err != nil {
			t.Fatal(err)
		}
		<-b.begun
		a, err := e.Attach(t.Context(), s.Run, engine.Local)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Detach(t.Context(), reason); err != nil {
			t.Fatal(err)
		}
		runs[reason] = s.Run
	}
	cli := func(run string) engine.State {
		r, err := e.Run(t.Context(), run, "")
		if err != nil {
			t.Fatal(err)
		}
		return r.State
	}
	for deadline := time.Now().Add(20 * time.Second); cli(runs[engine.DetachDrop]) != engine.Cancelled; <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the orphan lives on")
		}
	}
	if s := cli(runs[""]); s != engine.Running {
		t.Errorf("the handed-over run is %s, want running", s)
	}
}

// TestExpiryWhileNoProcessLives applies a gate's expiry at the next start, with the
// time at which it fell due.
func TestExpiryWhileNoProcessLives(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	first := open(t, path, nil)
	w := parse(t, `
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, timeout_ms: 400, timeout_action: approve}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: out}]`)
	run, gates := untilPaused(t, first, request(t, w, `{}`))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-time.After(600 * time.Millisecond)
	second := open(t, path, nil)
	if end := last(follow(t, second, run)); end.Type != engine.RunCompleted {
		t.Fatalf("ended %s", end.Type)
	}
	g, err := second.Gate(t.Context(), gates[0])
	if err != nil || !g.Decided.Equal(g.Expires) || g.Via != engine.ViaTimeout {
		t.Errorf("gate = %+v, %v; want it decided at its expiry", g, err)
	}
}

func TestConcurrentDecisions(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), nil)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			d := engine.Decision{Decision: engine.Approved, By: fmt.Sprintf("p%d", i), Via: engine.ViaConsole}
			if i%2 == 1 {
				d.Decision = engine.Rejected
			}
			g, err := e.Decide(t.Context(), gates[0], d)
			switch _, decided := errors.AsType[*engine.DecidedError](err); {
			case err == nil && g.DecidedBy == d.By:
				won.Add(1)
			case decided, err == nil:
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 49 {
		t.Errorf("%d decisions won and %d lost, want 1 and 49", won.Load(), lost.Load())
	}
	resumed := 0
	for _, ev := range follow(t, e, run) {
		if ev.Type == engine.GateResumed {
			resumed++
		}
	}
	if resumed != 1 {
		t.Errorf("human_gate:resumed was said %d times, want once", resumed)
	}
}

func TestGateBesideARunningBranch(t *testing.T) {
	t.Parallel()
	b := newBlocking()
	e := open(t, storePath(t), func(o *engine.Options) { o.Agent = b })
	w := parse(t, agents+`
		nodes:
		  - {id: in, type: input}
		  - {id: work, type: agent, agent_ref: wader, prompt_template: 'w'}
		  - {id: ask, type: human_gate, gate_type: approval}
		  - {id: after, type: transform, transform: 'run.outputs["ask"].decision'}
		  - {id: out, type: output}
		edges: [{from: in, to: work}, {from: in, to: ask}, {from: ask, to: after}, {from: work, to: out}, {from: after, to: out}]`)
	started, err := e.Start(t.Context(), request(t, w, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	a, err := e.Attach(t.Context(), started.Run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for {
		ev, err := a.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == engine.GatePaused {
			if _, err := e.Decide(t.Context(), ev.Gate, engine.Decision{Decision: engine.Approved, By: "x", Via: engine.ViaConsole}); err != nil {
				t.Fatal(err)
			}
		}
		if ev.Type == engine.NodeCompleted && ev.Node == "after" {
			break // while the agent still works: the gate did not wait for the segment's end
		}
	}
	close(b.release)
	if end := last(follow(t, e, started.Run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s", end.Type)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	first := open(t, path, nil)
	done := last(finish(t, first, request(t, parse(t, pureCase), `{}`))).Run
	waiting, _ := untilPaused(t, first, request(t, parse(t, gateFragment), `{}`))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := open(t, path, func(o *engine.Options) { o.Now = func() time.Time { return time.Now().Add(31 * 24 * time.Hour) } })
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
		if _, err := later.Run(t.Context(), done, ""); errors.Is(err, engine.ErrRunNotFound) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a run that ended 31 days ago is kept still")
		}
	}
	if _, err := later.Run(t.Context(), waiting, ""); err != nil {
		t.Errorf("the unfinished run: %v", err)
	}
	db := openSQL(t, path)
	for table, want := range map[string]int{"definitions": 1, "workflow_status": 1} {
		// They follow the runs, in transactions of their own.
		for deadline := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
			var n int
			if err := db.QueryRowContext(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			if n == want {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s holds %d rows, want %d", table, n, want)
				break
			}
		}
	}
}

func openSQL(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path)+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	if err := open(t, path, nil).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := openSQL(t, path).ExecContext(t.Context(), `update meta set schema=99`); err != nil {
		t.Fatal(err)
	}
	_, err := engine.Open(t.Context(), engine.Options{Path: path, Logger: discard()})
	if refused, ok := errors.AsType[*engine.SchemaError](err); !ok || refused.Found != 99 {
		t.Errorf("Open = %v, want a SchemaError that names 99", err)
	}
}

// TestOtherEngineVersionIsBlocked leaves a segment of another version alone and
// shows why; it never fails for that.
func TestOtherEngineVersionIsBlocked(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	b := newBlocking()
	first := open(t, path, func(o *engine.Options) { o.Agent = b })
	s, err := first.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-b.begun
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := openSQL(t, path).ExecContext(t.Context(), `update workflow_status set application_version='wf-0'`); err != nil {
		t.Fatal(err)
	}
	second := open(t, path, nil)
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
		r, err := second.Run(t.Context(), s.Run, "")
		if err != nil {
			t.Fatal(err)
		}
		if r.State == engine.Blocked {
			if r.Reason == "" {
				t.Error("a blocked run gives no reason")
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("run is %s, want blocked", r.State)
		}
	}
}

// TestPrincipals keeps one principal's runs from another.
func TestPrincipals(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), nil)
	run := last(finish(t, e, request(t, parse(t, pureCase), `{}`))).Run
	if _, err := e.Run(t.Context(), run, "token:other"); !errors.Is(err, engine.ErrRunNotFound) {
		t.Errorf("Run for another principal: %v, want ErrRunNotFound", err)
	}
	if _, err := e.Attach(t.Context(), run, "token:other"); !errors.Is(err, engine.ErrRunNotFound) {
		t.Errorf("Attach for another principal: %v, want ErrRunNotFound", err)
	}
	if _, err := e.Output(t.Context(), run, "out", "token:other"); !errors.Is(err, engine.ErrRunNotFound) {
		t.Errorf("Output for another principal: %v, want ErrRunNotFound", err)
	}
}

// TestRunWhoseMakerDied begins a run that was made durable by a process that died
// before it could begin it, though nothing else ever happens in the store.
func TestRunWhoseMakerDied(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	first := open(t, path, nil)
	run := last(finish(t, first, request(t, parse(t, pureCase), `{}`))).Run
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What such a process leaves: the row, and nothing of its segment.
	db := openSQL(t, path)
	for _, query := range []string{
		`update runs set state='running', ended=null, outputs=null, last_event=-1, created=unixepoch('subsec')*1000`,
		`delete from events`, `delete from workflow_status`,
	} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	second := open(t, path, nil)
	if end := last(follow(t, second, run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", end.Type)
	}
}

// TestRetriesJoinAfterTheServerDied lets the calls of a dead process be made again:
// each finds its run, at a gate, in an effect, or completed with its result unheard.
func TestRetriesJoinAfterTheServerDied(t *testing.T) {
	t.Parallel()
	path := storePath(t)
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

// TestDecisionsRaceWithTheEndOfTheSegment decides each gate in the moment it opens,
// while the segment that opened it is about to close.
func TestDecisionsRaceWithTheEndOfTheSegment(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), nil)
	w := parse(t, gateFragment)
	req := request(t, w, `{}`)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				s, err := e.Start(t.Context(), req)
				if err != nil {
					t.Error(err)
					return
				}
				a, err := e.Attach(t.Context(), s.Run, engine.Local)
				if err != nil {
					t.Error(err)
					return
				}
				for {
					ev, err := a.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					if ev.Type == engine.GatePaused {
						if _, err := e.Decide(t.Context(), ev.Gate, engine.Decision{Decision: engine.Approved, By: "x", Via: engine.ViaConsole}); err != nil {
							t.Error(err)
							return
						}
					}
					if ev.Terminal() {
						if ev.Type != engine.RunCompleted {
							t.Errorf("run %s ended %s: %v", s.Run, ev.Type, ev.Error)
						}
						break
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestPanicInTheAgentRoom fails the node as internal; the process lives.
func TestPanicInTheAgentRoom(t *testing.T) {
	t.Parallel()
	e := open(t, storePath(t), func(o *engine.Options) {
		o.Agent = agentFunc(func(context.Context, engine.AgentCall) (engine.AgentResult, error) { panic("secret detail") })
	})
	end := last(finish(t, e, request(t, parse(t, slowFragment), `{}`)))
	if end.Type != engine.RunFailed || end.Error.Code != engine.CodeInternal || end.Error.CorrelationID == "" {
		t.Fatalf("ended %s with %+v, want an internal failure with a correlation id", end.Type, end.Error)
	}
	if strings.Contains(end.Error.Message, "secret") {
		t.Errorf("the message tells %q", end.Error.Message)
	}
}

// TestUnreadableDefinitionIsBlocked keeps a run whose definition this process cannot
// read, and lets it go on in one that can.
func TestUnreadableDefinitionIsBlocked(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	first := open(t, path, nil)
	run, gates := untilPaused(t, first, request(t, parse(t, gateFragment), `{}`))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	blind := open(t, path, func(o *engine.Options) {
		o.Load = func(json.RawMessage) (*workflows.Workflow, error) { return nil, errors.New("unknown node type") }
	})
	if _, err := blind.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "x", Via: engine.ViaConsole}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
		r, err := blind.Runs(t.Context(), engine.RunFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if r[0].State == engine.Blocked && r[0].Reason != "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("run is %s (%q), want blocked with a reason", r[0].State, r[0].Reason)
		}
	}
	if err := blind.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := open(t, path, nil)
	if end := last(follow(t, again, run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", end.Type)
	}
}

// TestStoreThatFailsForAWhile lets every write of events fail, effects under way,
// and then mends the store: the run ends as if nothing had happened.
func TestStoreThatFailsForAWhile(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	b := newBlocking()
	e := open(t, path, func(o *engine.Options) { o.Agent = b })
	s, err := e.Start(t.Context(), request(t, parse(t, agents+`
		nodes:
		  - {id: in, type: input}
		  - {id: one, type: agent, agent_ref: wader, prompt_template: 'one'}
		  - {id: two, type: agent, agent_ref: wader, prompt_template: 'two'}
		  - {id: out, type: output}
		edges: [{from: in, to: one}, {from: one, to: two}, {from: two, to: out}]`), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-b.begun
	db := openSQL(t, path)
	if _, err := db.ExecContext(t.Context(), `create trigger broken before insert on events begin select raise(abort, 'broken'); end`); err != nil {
		t.Fatal(err)
	}
	close(b.release)
	<-time.After(2500 * time.Millisecond)
	if r, err := e.Run(t.Context(), s.Run, ""); err != nil || r.State != engine.Running {
		t.Errorf("while the store fails the run is %v, %v, want running", r, err)
	}
	if _, err := db.ExecContext(t.Context(), `drop trigger broken`); err != nil {
		t.Fatal(err)
	}
	if got, want := string(last(follow(t, e, s.Run)).Outputs), `{"out":"two"}`; got != want {
		t.Errorf("outputs = %s, want %s", got, want)
	}
	if n := b.calls.Load(); n != 2 && n != 3 {
		t.Errorf("the effects were done %d times, want each once, and again only the one that was in flight", n)
	}
}

// TestCancelSparesCallsOfOtherProcesses: a call that ends takes the run along only if
// no call waits for it, in whichever process.
func TestCancelSparesCallsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	a, b := open(t, path, nil), open(t, path, nil)
	run, gates := untilPaused(t, a, request(t, parse(t, gateFragment), `{}`))
	one, err := a.Attach(t.Context(), run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	two, err := b.Attach(t.Context(), run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	if cancelled, err := one.Cancel(t.Context(), "local", ""); err != nil || cancelled {
		t.Errorf("Cancel beside a call of another process = %v, %v, want false", cancelled, err)
	}
	if cancelled, err := two.Cancel(t.Context(), "local", ""); err != nil || !cancelled {
		t.Errorf("Cancel of the last call = %v, %v, want true", cancelled, err)
	}
	if end := last(follow(t, b, run)); end.Type != engine.RunCancelled {
		t.Errorf("ended %s, want run:cancelled", end.Type)
	}
	_ = gates
}

// TestDeadHolderIsLeftToItsProject: a process of another project that finds a dead
// one forgets nothing of it that its own project needs.
func TestDeadHolderIsLeftToItsProject(t *testing.T) {
	t.Parallel()
	path := storePath(t)
	first := open(t, path, nil)
	req := request(t, parse(t, gateFragment), `{}`)
	s, err := first.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	untilPausedRun(t, first, s.Run)
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

func untilPausedRun(t *testing.T, e *engine.Engine, run string) {
	t.Helper()
	for {
		r, err := e.Run(t.Context(), run, "")
		if err != nil {
			t.Fatal(err)
		}
		if r.State == engine.Waiting {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}
