package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/workflows"
)

// project is the key of all runs here.
const project = "bench"

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// journal is the least that a durable run of that many nodes could do: a row when
// it starts, one for each node, an update at its end, each its own commit.
func journal(nodes int) system {
	return system{
		name: fmt.Sprintf("journal by hand, %d nodes", nodes),
		open: func(ctx context.Context, dir string) (*opened, error) {
			db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "journal.db"))+
				"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)")
			if err != nil {
				return nil, err
			}
			db.SetMaxOpenConns(1)
			if _, err := db.ExecContext(ctx, `create table runs(id text primary key, status text, input blob, output blob, created int) without rowid;
				create table nodes(run text, id text, output blob, at int, primary key(run, id)) without rowid`); err != nil {
				return nil, errors.Join(err, db.Close())
			}
			var stmts [3]*sql.Stmt
			for i, query := range []string{
				`insert into runs(id, status, input, created) values(?, 'PENDING', ?, ?)`,
				`insert into nodes(run, id, output, at) values(?, ?, ?, ?)`,
				`update runs set status='SUCCESS', output=? where id=?`,
			} {
				if stmts[i], err = db.PrepareContext(ctx, query); err != nil { //nolint:sqlclosecheck // closed with db
					return nil, errors.Join(err, db.Close())
				}
			}
			var n atomic.Int64
			value := []byte(`{"node":"n","ok":true,"text":"result of node"}`)
			once := func(ctx context.Context) error {
				id := fmt.Sprintf("r%d", n.Add(1))
				_, err := stmts[0].ExecContext(ctx, id, value, time.Now().UnixMilli())
				for node := range nodes {
					if err == nil {
						_, err = stmts[1].ExecContext(ctx, id, fmt.Sprintf("n%d", node), value, time.Now().UnixMilli())
					}
				}
				if err == nil {
					_, err = stmts[2].ExecContext(ctx, value, id)
				}
				return err
			}
			return &opened{once: once, close: db.Close}, nil
		},
	}
}

type reader interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// unrecorded counts the segments whose end DBOS has not written.
func unrecorded(db reader) func(context.Context) (int, error) {
	return func(ctx context.Context) (n int, err error) {
		err = db.QueryRowContext(ctx, `select count(*) from workflow_status where status in ('PENDING','ENQUEUED')`).Scan(&n)
		return n, err
	}
}

// bare is a durable segment that does nothing: what DBOS costs with our pools and
// our statement cache.
func bare() system {
	return segment("bare DBOS run, no step", func(*durable.Segment) error { return nil })
}

// bareSteps is sixteen steps that do nothing, in four chains of four: what DBOS costs
// where the engine records sixteen effects.
func bareSteps() system {
	return segment("bare DBOS run, 16 steps", func(s *durable.Segment) error {
		var last []<-chan durable.Step
		for range 4 {
			before := make(chan struct{})
			close(before)
			for step := range 4 {
				start, end := before, make(chan struct{})
				out, err := s.Go(fmt.Sprintf("s%d", step), func(ctx context.Context) (string, error) {
					select {
					case <-start:
						return "{}", nil
					case <-ctx.Done():
						return "", context.Cause(ctx)
					}
				})
				if err != nil {
					return err
				}
				if step == 3 {
					last = append(last, out)
					break
				}
				go func() { // it ends with the step
					<-out
					close(end)
				}()
				before = end
			}
		}
		for _, out := range last {
			if step := <-out; step.Err != nil {
				return step.Err
			}
		}
		return nil
	})
}

// segment is a durable segment that runs body.
func segment(name string, body func(*durable.Segment) error) system {
	return system{
		name: name, recorded: true,
		open: func(ctx context.Context, dir string) (*opened, error) {
			file, err := durable.Open(ctx, durable.Options{Place: filepath.Join(dir, "bare.db"), Log: quiet()})
			if err != nil {
				return nil, err
			}
			var mu sync.Mutex
			ran := map[string]chan struct{}{}
			x, err := durable.Launch(ctx, file, durable.LaunchOptions{Projects: []string{project}, Log: quiet(), Run: func(s *durable.Segment) error {
				mu.Lock()
				done := ran[s.Run]
				mu.Unlock()
				defer close(done)
				return body(s)
			}})
			if err != nil {
				return nil, errors.Join(err, file.Close())
			}
			var n atomic.Int64
			once := func(ctx context.Context) error {
				id, done := fmt.Sprintf("r%d", n.Add(1)), make(chan struct{})
				mu.Lock()
				ran[id] = done
				mu.Unlock()
				defer func() {
					mu.Lock()
					delete(ran, id)
					mu.Unlock()
				}()
				if err := x.Start(durable.Ref{Run: id}); err != nil {
					return err
				}
				select {
				case <-done:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			end := func() error { return errors.Join(x.Close(5*time.Second), file.Close()) }
			return &opened{once: once, close: end, pending: unrecorded(file.Read)}, nil
		},
	}
}

// fullCommit is one commit that waits for the disk.
func fullCommit() system {
	return system{
		name: "one FULL commit", serial: true,
		open: func(ctx context.Context, dir string) (*opened, error) {
			file, err := durable.Open(ctx, durable.Options{Place: filepath.Join(dir, "full.db"), Log: quiet()})
			if err != nil {
				return nil, err
			}
			if _, err := file.Full.ExecContext(ctx, `create table t(id integer primary key, at int)`); err != nil {
				return nil, errors.Join(err, file.Close())
			}
			once := func(ctx context.Context) error {
				_, err := file.Full.ExecContext(ctx, `insert into t(at) values(?)`, time.Now().UnixMilli())
				return err
			}
			return &opened{once: once, close: file.Close}, nil
		},
	}
}

// echo is an agent that answers at once.
type echo struct{}

func (echo) RunAgent(_ context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	out, err := json.Marshal(call.Node.ID)
	return engine.AgentResult{Output: out}, err
}

// openEngine is an engine in dir and the workflow that it runs.
func openEngine(ctx context.Context, dir, fragment string) (*engine.Engine, *workflows.Workflow, error) {
	w, _, err := workflows.Parse("bench.relavium.yaml", []byte("schema_version: '1.0'\nworkflow:\n  id: bench\n"+fragment), workflows.Options{})
	if err != nil {
		return nil, nil, err
	}
	e, err := engine.Open(ctx, engine.Options{
		Path: filepath.Join(dir, "serve.db"), Executor: true, Projects: []string{project}, Agent: echo{}, Logger: quiet(),
	})
	return e, w, err
}

func begin(ctx context.Context, e *engine.Engine, w *workflows.Workflow) (*engine.Attachment, error) {
	args, err := w.ResolveInputs(nil)
	if err != nil {
		return nil, err
	}
	started, err := e.Start(ctx, engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: project, Root: "/"}, Principal: engine.Local, Arguments: args, Source: "mcp",
	})
	if err != nil {
		return nil, err
	}
	return e.Attach(ctx, started.Run, engine.Local)
}

// await reads to the first event of a type; "" means to the end.
func await(ctx context.Context, a *engine.Attachment, kind string) (engine.Event, error) {
	for {
		ev, err := a.Next(ctx)
		if errors.Is(err, io.EOF) && kind == "" {
			return ev, nil
		}
		if err != nil {
			return ev, err
		}
		if ev.Type == kind {
			return ev, nil
		}
		if ev.Type == engine.RunFailed {
			return ev, ev.Error
		}
	}
}

// ours runs a workflow to its end.
func ours(name, fragment string) system {
	return system{
		name: name,
		open: func(ctx context.Context, dir string) (*opened, error) {
			e, w, err := openEngine(ctx, dir, fragment)
			if err != nil {
				return nil, err
			}
			once := func(ctx context.Context) error {
				a, err := begin(ctx, e, w)
				if err != nil {
					return err
				}
				_, err = await(ctx, a, "")
				return errors.Join(err, a.Detach(ctx, engine.DetachHandOver))
			}
			db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "serve.db"))+"?_pragma=query_only(ON)")
			if err != nil {
				return nil, errors.Join(err, e.Close(ctx))
			}
			end := func() error { return errors.Join(db.Close(), e.Close(context.WithoutCancel(ctx))) }
			return &opened{once: once, close: end, pending: unrecorded(db)}, nil
		},
	}
}

// unexpressed is three nodes without an expression.
const unexpressed = `
  nodes:
    - {id: in, type: input}
    - {id: join, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges: [{from: in, to: join}, {from: join, to: out}]
`

func pure() system {
	return ours("3 nodes, no expression", unexpressed)
}

func transform() system {
	return ours("3 nodes, one transform", `
  inputs: [{name: bird, type: string, default: tern}]
  nodes:
    - {id: in, type: input}
    - {id: shout, type: transform, transform: 'inputs.bird + "!"'}
    - {id: out, type: output}
  edges: [{from: in, to: shout}, {from: shout, to: out}]
`)
}

// effects is four branches of four agents each: twenty nodes, sixteen effects.
func effects() system {
	var nodes, edges strings.Builder
	var heads []string
	for branch := range 4 {
		for step := range 4 {
			fmt.Fprintf(&nodes, "    - {id: a%d%d, type: agent, agent_ref: bird, prompt_template: go}\n", branch, step)
			if step > 0 {
				fmt.Fprintf(&edges, "    - {from: a%d%d, to: a%d%d}\n", branch, step-1, branch, step)
			}
		}
		heads = append(heads, fmt.Sprintf("a%d0", branch))
		fmt.Fprintf(&edges, "    - {from: a%d3, to: join}\n", branch)
	}
	return ours("20 nodes, 16 effects", `
  agents: [{id: bird, model: m, provider: anthropic, system_prompt: s}]
  nodes:
    - {id: in, type: input}
    - {id: fan, type: parallel, parallel_of: [`+strings.Join(heads, ", ")+`]}
`+nodes.String()+`    - {id: join, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges:
    - {from: in, to: fan}
    - {from: join, to: out}
`+edges.String())
}

const gated = `
  nodes:
    - {id: in, type: input}
    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go on?'}
    - {id: next, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges: [{from: in, to: ask}, {from: ask, to: next}, {from: next, to: out}]
`

// gate is the time from a person's answer, the run having been put away, to the
// node behind the gate. The runs of all units are brought to their gates ahead.
func gate(units int) system {
	return system{
		name: "answer to next node", serial: true,
		open: func(ctx context.Context, dir string) (*opened, error) {
			e, w, err := openEngine(ctx, dir, gated)
			if err != nil {
				return nil, err
			}
			type waiting struct {
				a  *engine.Attachment
				id string
			}
			ready := make([]waiting, 0, units)
			for range units {
				a, err := begin(ctx, e, w)
				if err != nil {
					return nil, err
				}
				ev, err := await(ctx, a, engine.GatePaused)
				if err != nil {
					return nil, err
				}
				if _, err := await(ctx, a, engine.RunPaused); err != nil {
					return nil, err
				}
				ready = append(ready, waiting{a, ev.Gate})
			}
			once := func(ctx context.Context) error {
				if len(ready) == 0 {
					return errors.New("no run waits any more")
				}
				g := ready[0]
				ready = ready[1:]
				if _, err := e.Decide(ctx, g.id, engine.Decision{Decision: engine.Approved, By: "bench", Via: engine.ViaCLI}); err != nil {
					return err
				}
				for {
					ev, err := await(ctx, g.a, engine.NodeStarted)
					if err != nil {
						return err
					}
					if ev.Node == "next" {
						return nil
					}
				}
			}
			return &opened{once: once, close: func() error { return e.Close(context.WithoutCancel(ctx)) }}, nil
		},
	}
}
