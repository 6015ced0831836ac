package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"this process", "another process"} {
		t.Run(from, func(t *testing.T) {
			t.Parallel()
			path := durabletest.Place(t, t.TempDir())
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
			if err := by.Cancel(t.Context(), started.Run, "local", engine.ViaCLI, "enough"); err != nil {
				t.Fatal(err)
			}
			events := follow(t, e, started.Run)
			if last(events).Type != engine.RunCancelled {
				t.Errorf("ended %s, want run:cancelled", brief(events))
			}
			waiting, _ := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
			if err := by.Cancel(t.Context(), waiting, "local", engine.ViaCLI, "enough"); err != nil {
				t.Fatal(err)
			}
			if end := last(follow(t, e, waiting)); end.Type != engine.RunCancelled {
				t.Errorf("a waiting run ended %s, want run:cancelled", end.Type)
			}
			if err := by.Cancel(t.Context(), waiting, "local", engine.ViaCLI, "again"); err != nil {
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
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) {
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
	if err := e.Cancel(t.Context(), started.Run, "local", engine.ViaCLI, ""); err != nil {
		t.Fatal(err)
	}
	if end := last(follow(t, e, started.Run)); end.Type != engine.RunCancelled {
		t.Errorf("ended %s, want run:cancelled", end.Type)
	}
	log, err := e.Audit(t.Context(), engine.AuditFilter{Run: started.Run})
	if err != nil {
		t.Fatal(err)
	}
	via := ""
	for _, a := range log {
		if a.Action == engine.AuditRunCancel {
			via = a.Via
		}
	}
	if via != engine.ViaCLI {
		t.Errorf("the audit log says that the run was cancelled via %q, want %q", via, engine.ViaCLI)
	}
}

func TestAttachmentCancelSparesOtherCalls(t *testing.T) {
	t.Parallel()
	b := newBlocking()
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = b })
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
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
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
	place := durabletest.Place(t, t.TempDir())
	e := open(t, place, func(o *engine.Options) { o.Agent = b })
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
	handed := start(`{"bird":"auk"}`)
	detach(attach(handed.Run), engine.DetachHandOver)
	asked := start(`{"bird":"owl"}`)
	detach(attach(asked.Run), engine.DetachAsked)
	attach(handed.Run).Close()
	attach(asked.Run).Close()
	for run, want := range map[string]string{handed.Run: engine.DetachHandOver, asked.Run: ""} {
		var mark string
		if err := durabletest.Open(t, place).QueryRowContext(t.Context(), `select coalesce(detach_reason, '') from runs where id=?`, run).Scan(&mark); err != nil || mark != want {
			t.Errorf("after another call came the mark is %q (%v), want %q", mark, err, want)
		}
	}
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
	eventually(t, "a claimed run is not joined", func() bool { return !start(`{"bird":"tern"}`).Joined })

	later := attach(handed.Run)
	if end := last(follow(t, e, handed.Run)); end.Type != engine.RunCompleted {
		t.Fatalf("ended %s", end.Type)
	}
	detach(later, engine.DetachDrop)
	if s := start(`{"bird":"auk"}`); s.Joined {
		t.Error("a call joined a run that was handed over, whose result was lost later")
	}

	// Whether the claim is stored yet or not: its caller had given up before.
	for _, stored := range []bool{true, false} {
		if !stored {
			if err := e.Claim(t.Context(), first.Run); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Disclaim(t.Context(), first.Run); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * claimed) // were it to be stored yet
		if retry := start(`{"bird":"tern"}`); !retry.Joined || retry.Run != first.Run {
			t.Errorf("claim stored %t: a retry of what its caller never read got %+v, want run %s", stored, retry, first.Run)
		}
	}
}

// claimed is the time within which a claim is stored.
const claimed = 250 * time.Millisecond

// TestOrphan ends a run that lost its caller after its grace of execution, and
// leaves one alone that was handed over.
func TestOrphan(t *testing.T) {
	t.Parallel()
	b := newBlocking()
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent, o.OrphanGrace = b, 1500*time.Millisecond })
	w := parse(t, slowFragment)
	runs := make(map[string]string)
	for _, reason := range []string{engine.DetachDrop, engine.DetachHandOver} {
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
	eventually(t, "the orphan is cancelled", func() bool { return cli(runs[engine.DetachDrop]) == engine.Cancelled })
	if s := cli(runs[engine.DetachHandOver]); s != engine.Running {
		t.Errorf("the handed-over run is %s, want running", s)
	}
}

func TestConcurrentDecisions(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
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
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.Agent = b })
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

// TestPrincipals keeps one principal's runs from another.
func TestPrincipals(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
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

// TestDecisionsRaceWithTheEndOfTheSegment decides each gate in the moment it opens,
// while the segment that opened it is about to close.
func TestDecisionsRaceWithTheEndOfTheSegment(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
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

// TestCancelSparesCallsOfOtherProcesses: a call that ends takes the run along only if
// no call waits for it, in whichever process.
func TestCancelSparesCallsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
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

// TestCloseWithoutGrace cancels at once what its caller closed, at a gate too.
func TestCloseWithoutGrace(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) { o.CloseGrace = -1 })
	run, _ := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	a, err := e.Attach(t.Context(), run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Detach(t.Context(), engine.DetachClose); err != nil {
		t.Fatal(err)
	}
	if r, err := e.Run(t.Context(), run, ""); err != nil || r.State != engine.Cancelled {
		t.Errorf("the run is %+v, %v, want cancelled", r, err)
	}
}
