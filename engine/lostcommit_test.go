package engine_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// forgetful passes on what is said between a process and its database, and of every
// few commits loses the answer, with the connection, though the commit was made.
type forgetful struct {
	net.Listener
	to      string
	every   int64
	begun   atomic.Bool
	commits atomic.Int64
	lost    atomic.Int64
	done    sync.WaitGroup
}

func newForgetful(t *testing.T, place string, every int64) (*forgetful, string) {
	t.Helper()
	u, err := url.Parse(place)
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forgetful{Listener: l, to: u.Host, every: every}
	f.done.Go(f.serve)
	t.Cleanup(func() {
		_ = l.Close()
		f.done.Wait()
	})
	u.Host = l.Addr().String()
	u.RawQuery = "sslmode=disable"
	return f, u.String()
}

func (f *forgetful) serve() {
	for {
		in, err := f.Accept()
		if err != nil {
			return
		}
		out, err := (&net.Dialer{}).Dial("tcp", f.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		var deaf atomic.Bool
		f.done.Go(func() {
			f.pass(in, out, func(said []byte) bool { // to the database
				if f.begun.Load() && bytes.Contains(said, []byte("commit\x00")) && f.commits.Add(1)%f.every == 0 {
					deaf.Store(true)
				}
				return true
			})
		})
		f.done.Go(func() {
			f.pass(out, in, func([]byte) bool {
				if deaf.Load() {
					f.lost.Add(1)
				}
				return !deaf.Load()
			})
		})
	}
}

// pass copies until a connection ends or hear says no.
func (f *forgetful) pass(from, to net.Conn, hear func(said []byte) bool) {
	defer func() { _ = from.Close() }()
	defer func() { _ = to.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !hear(buf[:n]) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// TestLostAnswerToCommit: where the database made a commit and could not say so, what
// it holds counts: agents are entered once, events and audit entries are there once,
// and costs are counted once.
func TestLostAnswerToCommit(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	way, through := newForgetful(t, place, 3)
	var entered, made atomic.Int64
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		entered.Add(1)
		for n := range 3 {
			_, err := call.Do(ctx, engine.Effect{Kind: engine.EffectTool, Name: "send_money", N: n, Request: []byte(`{}`)},
				func(context.Context, string) (engine.EffectResult, error) {
					made.Add(1)
					return engine.EffectResult{Value: []byte(`"sent"`), Cost: 10}, nil
				})
			if err != nil {
				return engine.AgentResult{}, err
			}
		}
		return engine.AgentResult{Output: []byte(`"done"`)}, nil
	})
	e := open(t, through, func(o *engine.Options) { o.Agent = agent })
	way.begun.Store(true)
	const runs = 10
	for range runs {
		s, err := e.Start(t.Context(), request(t, parse(t, slowFragment), `{}`))
		if err != nil {
			t.Fatal(err)
		}
		events := follow(t, e, s.Run)
		for i := range events {
			if events[i].N != int64(i) {
				t.Fatalf("event %d has number %d: %s", i, events[i].N, brief(events))
			}
		}
		if end := last(events); end.Type != engine.RunCompleted {
			t.Errorf("the run ended %s, want run:completed", end.Type)
		}
		run, err := e.Run(t.Context(), s.Run, "")
		if err != nil {
			t.Fatal(err)
		}
		if run.Cost != 30 {
			t.Errorf("the run's cost = %d, want 30", run.Cost)
		}
	}
	if entered.Load() != runs || made.Load() != 3*runs {
		t.Errorf("agents entered %d times, effects made %d times, want %d and %d", entered.Load(), made.Load(), runs, 3*runs)
	}
	db := durabletest.Open(t, place)
	var started, ended int
	if err := db.QueryRowContext(t.Context(), `select count(*) filter (where action='run.started'), count(*) filter (where action='run.ended') from relavium.audit`).Scan(&started, &ended); err != nil {
		t.Fatal(err)
	}
	if started != runs || ended != runs {
		t.Errorf("the audit log has %d starts and %d ends, want %d of each", started, ended, runs)
	}
	if way.lost.Load() == 0 {
		t.Error("no answer was lost")
	}
}

// TestFirstStarts: several processes that come to an empty database at the same time
// make its tables, and all of them run.
func TestFirstStarts(t *testing.T) {
	t.Parallel()
	place := durabletest.Shared(t)
	errs := make(chan error, 5)
	for range cap(errs) {
		go func() {
			e, err := engine.Open(t.Context(), engine.Options{
				Lease: lease, Path: place, Executor: true, Projects: []string{project}, Agent: agentFunc(echo), Logger: slog.New(slog.DiscardHandler),
			})
			if err == nil {
				err = e.Close(t.Context())
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Errorf("Open = %v", err)
		}
	}
}
