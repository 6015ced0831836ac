package engine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/workflows"
)

// replica opens an engine that has what it is said to have; every run asks for needs.
func replica(t *testing.T, place string, needs engine.Needs, has func() engine.Needs, change func(*engine.Options)) *engine.Engine {
	t.Helper()
	return open(t, place, func(o *engine.Options) {
		o.Needs = func(engine.Project, *workflows.Workflow) engine.Needs { return needs }
		o.Has = func(context.Context, engine.Needs) engine.Needs { return has() }
		o.Offers = func(context.Context) engine.Needs { return has() }
		if change != nil {
			change(o)
		}
	})
}

func nothing() engine.Needs { return engine.Needs{} }

// shortLease is for replicas that lose it: a test of that does not wait long.
const shortLease = 4 * time.Second

// TestReplicaThatDoesNotFit: a run is not taken over by a replica that lacks what it
// needs; it shows as blocked, with what is missing, stays answerable, and goes on in a
// replica that fits.
func TestReplicaThatDoesNotFit(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	needs := engine.Needs{Consents: []string{"sha256:abc"}, Secrets: []string{"mcp.token"}, Files: true, Workspace: "w1"}
	all := func() engine.Needs { return needs }
	agent := newBlocking()
	a := replica(t, place, needs, all, func(o *engine.Options) { o.Agent = agent })
	b := replica(t, place, needs, nothing, func(o *engine.Options) {
		o.Lease = shortLease // a run that nobody begins shows as blocked after that, too
		o.SetBlockedAfter(time.Second)
	})
	s, err := a.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-agent.begun
	waiting, gates := untilPaused(t, a, request(t, parse(t, gateFragment), `{}`))
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Decide(t.Context(), gates[0], engine.Decision{Decision: engine.Approved, By: "somebody", Via: engine.ViaConsole}); err != nil {
		t.Errorf("a gate of a run that does not fit: %v", err)
	}
	for _, run := range []string{s.Run, waiting} {
		eventually(t, "the run is blocked and says what is missing", func() bool {
			r, err := b.Run(t.Context(), run, "")
			if err != nil {
				t.Fatal(err)
			}
			return r.State == engine.Blocked && strings.Contains(r.Reason, "consent to sha256:abc, the secret mcp.token, the workspace")
		})
	}
	close(agent.release)
	c := replica(t, place, needs, all, func(o *engine.Options) { o.Agent = agent })
	for _, run := range []string{s.Run, waiting} {
		if end := last(follow(t, c, run)); end.Type != engine.RunCompleted {
			t.Errorf("ended %s, want run:completed", end.Type)
		}
	}
}

// TestCallThatOnlyAnotherReplicaCanRun is answered all the same.
func TestCallThatOnlyAnotherReplicaCanRun(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	needs := engine.Needs{Consents: []string{"sha256:abc"}}
	here, there := newBlocking(), newBlocking()
	close(here.release)
	close(there.release)
	a := replica(t, place, needs, nothing, func(o *engine.Options) { o.Agent = here })
	replica(t, place, needs, func() engine.Needs { return needs }, func(o *engine.Options) { o.Agent = there })
	if end := last(finish(t, a, request(t, parse(t, slowFragment), `{}`))); end.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", end.Type)
	}
	if here.calls.Load() != 0 || there.calls.Load() != 1 {
		t.Errorf("the agent ran %d times here and %d times there, want 0 and 1", here.calls.Load(), there.calls.Load())
	}
}

// network is a way to a database that can be cut: connections stay open, and nothing
// passes.
type network struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	whole    chan struct{} // closed while bytes pass
	over     atomic.Bool
	away     atomic.Bool // every connection is closed, and new ones are too
	done     sync.WaitGroup
}

func newNetwork(t *testing.T, place string) (*network, string) {
	t.Helper()
	u, err := url.Parse(place)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{listener: l, to: u.Host, whole: make(chan struct{})}
	close(n.whole)
	n.done.Go(n.serve)
	t.Cleanup(func() {
		n.over.Store(true)
		n.heal()
		_ = l.Close()
		n.done.Wait()
	})
	u.Host = l.Addr().String()
	return n, u.String()
}

func (n *network) serve() {
	for {
		in, err := n.listener.Accept()
		if err != nil {
			return
		}
		if n.away.Load() {
			_ = in.Close()
			continue
		}
		out, err := (&net.Dialer{}).Dial("tcp", n.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		n.done.Go(func() { n.pass(in, out) })
		n.done.Go(func() { n.pass(out, in) })
	}
}

func (n *network) pass(from, to net.Conn) {
	defer func() { _ = from.Close() }()
	defer func() { _ = to.Close() }()
	buf := make([]byte, 64<<10)
	for {
		_ = from.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		k, err := from.Read(buf)
		n.mu.Lock()
		whole := n.whole
		n.mu.Unlock()
		<-whole
		if k > 0 {
			if _, err := to.Write(buf[:k]); err != nil {
				return
			}
		}
		if n.over.Load() || n.away.Load() || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
			return
		}
	}
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.whole = make(chan struct{})
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.whole:
	default:
		close(n.whole)
	}
}

// TestCallWhileDatabaseIsAway: a call that comes while the database starts again waits
// for it, as do the calls that look.
func TestCallWhileDatabaseIsAway(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	way, through := newNetwork(t, place)
	needs := engine.Needs{Secrets: []string{"mcp.token"}}
	e := replica(t, through, needs, nothing, func(o *engine.Options) {
		o.Lease = time.Minute // it is not cut off so soon
		o.Attend = func(context.Context, engine.Attendance) (func(bool), error) { return func(bool) {}, nil }
	})
	done := last(finish(t, e, request(t, parse(t, pureCase), `{}`))).Run
	way.away.Store(true)
	back := time.AfterFunc(time.Second, func() { way.away.Store(false) })
	defer back.Stop()
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			req := request(t, parse(t, pureCase), `{}`)
			req.Join = true
			if _, err := e.Start(t.Context(), req); err != nil {
				t.Errorf("Start while the database is away: %v", err)
			}
			if _, err := e.Run(t.Context(), done, ""); err != nil {
				t.Errorf("Run while the database is away: %v", err)
			}
			if _, err := e.Gates(t.Context(), engine.GateFilter{Open: true}); err != nil {
				t.Errorf("Gates while the database is away: %v", err)
			}
		})
	}
	calls.Wait()
}

// TestCloseWhileDatabaseIsAway: a close ends with its context, though there is something
// left to store that cannot be.
func TestCloseWhileDatabaseIsAway(t *testing.T) {
	t.Parallel()
	way, through := newNetwork(t, durabletest.Shared(t))
	e, err := engine.Open(t.Context(), engine.Options{
		Path: through, Executor: true, Projects: []string{project}, Agent: agentFunc(echo), Logger: discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := last(finish(t, e, request(t, parse(t, pureCase), `{}`))).Run
	way.away.Store(true)
	if err := e.Claim(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := e.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want that not all could be stored in time", err)
	}
}

// TestCutOffReplica cuts a replica off from its database while an effect that may not
// be repeated is under way, and heals the network: the effect was made once, a person
// is asked, and the replica is back under another id.
func TestCutOffReplica(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	way, through := newNetwork(t, place)
	var entered, made atomic.Int64
	var ended atomic.Bool
	under := make(chan struct{}, 1)
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		if entered.Add(1) > 1 && !ended.Load() {
			t.Error("the run goes on elsewhere before it ended where it was cut off")
		}
		_, err := call.Do(ctx, engine.Effect{Kind: engine.EffectTool, Name: "send_money", Request: []byte(`{}`)},
			func(ctx context.Context, _ string) (engine.EffectResult, error) {
				made.Add(1)
				under <- struct{}{}
				<-ctx.Done() // slow; only the end of the run's life here ends it
				ended.Store(true)
				return engine.EffectResult{}, ctx.Err()
			})
		return engine.AgentResult{Output: []byte(`"done"`)}, err
	})
	var cut atomic.Bool
	a := open(t, through, func(o *engine.Options) {
		o.Agent, o.CutOff, o.Lease = agent, func() { cut.Store(true) }, 4*shortLease
	})
	b := open(t, place, func(o *engine.Options) { o.Agent = agent })
	s, err := a.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-under
	way.cut()
	eventually(t, "the cut-off replica is not ready", func() bool { return errors.Is(a.Ready(), engine.ErrCutOff) })
	eventually(t, "what ran there has ended", ended.Load)
	eventually(t, "Options.CutOff is called", cut.Load)
	if _, err := a.Start(t.Context(), request(t, parse(t, pureCase), `{}`)); !errors.Is(err, engine.ErrCutOff) {
		t.Errorf("Start of the cut-off replica = %v, want %v", err, engine.ErrCutOff)
	}
	// The other replica takes the run over and asks.
	var gate engine.Gate
	eventually(t, "a person is asked", func() bool {
		gates, err := b.Gates(t.Context(), engine.GateFilter{Run: s.Run, Open: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(gates) == 1 {
			gate = gates[0]
		}
		return len(gates) == 1
	})
	if gate.Reason != engine.ReasonUnknown {
		t.Errorf("the gate asks for %q, want %q", gate.Reason, engine.ReasonUnknown)
	}
	way.heal()
	eventually(t, "the replica is back", func() bool { return a.Ready() == nil })
	// What it ran before is not its any more; the answer through it counts.
	decide(t, a, gate.ID, engine.Decision{Decision: engine.InputProvided, Payload: []byte(`"skip"`)})
	for _, e := range []*engine.Engine{a, b} {
		events := follow(t, e, s.Run)
		for i := range events {
			if events[i].N != int64(i) {
				t.Fatalf("event %d has number %d: %s", i, events[i].N, brief(events))
			}
		}
	}
	if made.Load() != 1 {
		t.Errorf("the effect was made %d times, want once", made.Load())
	}
	if end := last(finish(t, a, request(t, parse(t, pureCase), `{}`))); end.Type != engine.RunCompleted {
		t.Errorf("a run after the cut ended %s, want run:completed", end.Type)
	}
}

// TestCutOffIsNoFailure: what a run loses because its replica counts as dead, such as
// the sessions that it used, is no failure of the run, though the database can be
// reached still; it goes on elsewhere.
func TestCutOffIsNoFailure(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	begun, lost := make(chan struct{}), make(chan struct{})
	a := open(t, place, func(o *engine.Options) {
		o.CutOff = sync.OnceFunc(func() {
			close(lost)
			<-time.After(time.Second) // programs take their time to end
		})
		var calls atomic.Int32
		o.Agent = agentFunc(func(context.Context, engine.AgentCall) (engine.AgentResult, error) {
			if calls.Add(1) > 1 { // it is back, and took the run over itself
				return engine.AgentResult{Output: []byte(`"done"`)}, nil
			}
			close(begun)
			<-lost
			return engine.AgentResult{}, &engine.RunError{Code: engine.CodeToolDenied, Message: "the session is closed"}
		})
	})
	s, err := a.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	b := open(t, place, nil)
	// Another replica has claimed it, as one that was stopped for a while finds out.
	if _, err := durabletest.Open(t, place).ExecContext(t.Context(), `update executors set claimant='another', claimed=0
		where id=(select holder from runs where id=?)`, s.Run); err != nil {
		t.Fatal(err)
	}
	<-lost
	if end := last(follow(t, b, s.Run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s (%+v), want run:completed", end.Type, end.Error)
	}
}

// TestTransactionOfCutOffReplica: a transaction about a run that its replica cannot end
// any more holds the others up for less than the lease.
func TestTransactionOfCutOffReplica(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	way, through := newNetwork(t, place)
	e := open(t, place, nil)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	other, err := durable.Open(t.Context(), durable.Options{Place: through, Lease: shortLease, Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	inside, end := make(chan struct{}), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		_ = other.Update(context.WithoutCancel(t.Context()), run, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(t.Context(), `update runs set cost=cost where id=?`, run); err != nil {
				t.Error(err)
			}
			var ms int64
			if err := tx.QueryRowContext(t.Context(), `select cast(extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval)*1000 as bigint)`).Scan(&ms); err != nil ||
				ms <= 0 || ms >= shortLease.Milliseconds() {
				t.Errorf("a transaction may rest for %d ms, %v, want less than the lease of %v", ms, err, shortLease)
			}
			close(inside)
			<-end
			return nil
		})
	})
	<-inside
	way.cut()
	decide(t, e, gates[0], engine.Decision{Decision: engine.Approved}) // though nobody ended the transaction
	close(end)
	way.heal()
	done.Wait()
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if last := last(follow(t, e, run)); last.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", last.Type)
	}
}

// TestBusyReplicaKeepsItsLease: a replica whose connections are all taken, such as by
// transactions that wait for that of a replica which was cut off, is not cut off too.
func TestBusyReplicaKeepsItsLease(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	const connections = 4
	e := open(t, fmt.Sprintf("%s?pool_max_conns=%d&idle_in_transaction_session_timeout=0", place, connections), func(o *engine.Options) {
		o.CutOff = func() { t.Error("a busy replica was cut off") }
	})
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	var busy sync.WaitGroup
	var taken atomic.Int64
	for n := range connections {
		busy.Go(func() {
			if err := e.ReplaceDocument(t.Context(), fmt.Sprint(n), func(old []byte) ([]byte, error) {
				taken.Add(1)
				<-free
				return old, nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all connections are taken", func() bool { return taken.Load() == connections })
	db := durabletest.Open(t, place)
	until := func() (ms int64) {
		if err := db.QueryRowContext(t.Context(), `select until from executors`).Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	for first := until(); until() < first+lease.Milliseconds() && !t.Failed(); {
		<-time.After(50 * time.Millisecond)
	}
	release()
	busy.Wait()
}

// TestRepliesAcrossReplicas: whichever replica is asked follows, decides and cancels
// runs of the other.
func TestRepliesAcrossReplicas(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	agent := newBlocking()
	a := open(t, place, func(o *engine.Options) { o.Agent = agent })
	b := open(t, place, func(o *engine.Options) { o.Agent = agent })
	run, gates := untilPaused(t, a, request(t, parse(t, gateFragment), `{}`))
	decide(t, b, gates[0], engine.Decision{Decision: engine.Approved})
	for _, e := range []*engine.Engine{a, b} {
		if end := last(follow(t, e, run)); end.Type != engine.RunCompleted {
			t.Errorf("ended %s, want run:completed", end.Type)
		}
	}
	s, err := a.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-agent.begun
	if err := b.Cancel(t.Context(), s.Run, "somebody", engine.ViaCLI, "enough"); err != nil {
		t.Fatal(err)
	}
	if end := last(follow(t, b, s.Run)); end.Type != engine.RunCancelled {
		t.Errorf("ended %s, want run:cancelled", end.Type)
	}
}

// TestKeysAcrossReplicas: first calls with one key at both replicas make one run.
func TestKeysAcrossReplicas(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	engines := []*engine.Engine{open(t, place, nil), open(t, place, nil)}
	req := request(t, parse(t, pureCase), `{}`)
	req.IdempotencyKey = "one"
	runs := make([]string, 20)
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() {
			s, err := engines[i%2].Start(t.Context(), req)
			if err != nil {
				t.Error(err)
			}
			runs[i] = s.Run
		})
	}
	wg.Wait()
	if len(slices.Compact(slices.Sorted(slices.Values(runs)))) != 1 {
		t.Errorf("runs %v, want one", runs)
	}
}

// TestNewerSchemaBesideOlderProcess: a newer version adds to the database while this
// one runs on; this one goes on working, and does not start anew.
func TestNewerSchemaBesideOlderProcess(t *testing.T) {
	t.Parallel()
	place := durabletest.Place(t, t.TempDir())
	e := open(t, place, nil)
	run, gates := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	db := durabletest.Open(t, place)
	for _, query := range []string{
		`alter table runs add column later text`, `alter table gates add column later integer not null default 0`,
		`create table newer(id text primary key)`, `update meta set schema=99`,
	} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	decide(t, e, gates[0], engine.Decision{Decision: engine.Approved})
	if end := last(follow(t, e, run)); end.Type != engine.RunCompleted {
		t.Errorf("ended %s, want run:completed", end.Type)
	}
	if end := last(finish(t, e, request(t, parse(t, pureCase), `{}`))); end.Type != engine.RunCompleted {
		t.Errorf("a new run ended %s, want run:completed", end.Type)
	}
	_, err := engine.Open(t.Context(), engine.Options{Path: place, Logger: discard()})
	if s, ok := errors.AsType[*engine.SchemaError](err); !ok || s.Found != 99 {
		t.Errorf("Open = %v, want a schema that is too new", err)
	}
	if found, _, err := engine.Migrate(t.Context(), place, "", discard()); err == nil || found != 99 {
		t.Errorf("Migrate = %d, %v, want a refusal", found, err)
	}
}

// TestTwoEngineVersions: segments of another engine version are left to replicas of
// that version, while those live.
func TestTwoEngineVersions(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	agent := newBlocking()
	a := open(t, place, func(o *engine.Options) { o.Agent = agent })
	s, err := a.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
	if err != nil {
		t.Fatal(err)
	}
	<-agent.begun
	if _, err := durabletest.Open(t, place).ExecContext(t.Context(), `update workflow_status set application_version='wf-0'`); err != nil {
		t.Fatal(err)
	}
	b := open(t, place, nil)
	if end := last(finish(t, b, request(t, parse(t, pureCase), `{}`))); end.Type != engine.RunCompleted {
		t.Errorf("a new run beside an older version ended %s, want run:completed", end.Type)
	}
	close(agent.release)
	if end := last(follow(t, b, s.Run)); end.Type != engine.RunCompleted {
		t.Errorf("the run of the older version ended %s, want run:completed", end.Type)
	}
}

// TestUnreachableDatabase names no password, and says what is wrong.
func TestUnreachableDatabase(t *testing.T) {
	t.Parallel()
	for place, want := range map[string]string{
		"postgres://me:hunter22@127.0.0.1:1/x?connect_timeout=2": "cannot be reached",
		"postgres://me:hunter22@[::bad/x":                        "cannot be read",
	} {
		_, err := durable.Open(t.Context(), durable.Options{Place: place, Log: discard()})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("Open = %v, want %q and no password", err, want)
		}
		if got := durable.Redacted(place); strings.Contains(got, "hunter22") && strings.Contains(want, "reached") {
			t.Errorf("Redacted = %s", got)
		}
	}
}
