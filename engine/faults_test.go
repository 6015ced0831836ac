package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/workflows"
)

func TestRetention(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	first := open(t, path, nil)
	done := last(finish(t, first, request(t, parse(t, pureCase), `{}`))).Run
	waiting, _ := untilPaused(t, first, request(t, parse(t, gateFragment), `{}`))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	later := open(t, path, func(o *engine.Options) { o.Now = func() time.Time { return time.Now().Add(31 * 24 * time.Hour) } })
	eventually(t, "a run that ended 31 days ago is deleted", func() bool {
		_, err := later.Run(t.Context(), done, "")
		return errors.Is(err, engine.ErrRunNotFound)
	})
	if _, err := later.Run(t.Context(), waiting, ""); err != nil {
		t.Errorf("the unfinished run: %v", err)
	}
	db := durabletest.Open(t, path)
	for table, want := range map[string]int{"definitions": 1, "workflow_status": 1} {
		// They follow the runs, in transactions of their own.
		eventually(t, fmt.Sprintf("%s holds %d rows", table, want), func() bool {
			var n int
			if err := db.QueryRowContext(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n == want
		})
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	if err := open(t, path, nil).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := durabletest.Open(t, path).ExecContext(t.Context(), `update meta set schema=99`); err != nil {
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
	path := durabletest.Place(t, t.TempDir())
	run := endInsideAnEffect(t, path)
	if _, err := durabletest.Open(t, path).ExecContext(t.Context(), `update workflow_status set application_version='wf-0'`); err != nil {
		t.Fatal(err)
	}
	second := open(t, path, nil)
	eventually(t, "the run is blocked with a reason", func() bool { return blocked(t, second, run) })
}

// TestRunWhoseMakerDied begins a run that was made durable by a process that died
// before it could begin it, though nothing else ever happens in the store.
func TestRunWhoseMakerDied(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	first := open(t, path, nil)
	run := last(finish(t, first, request(t, parse(t, pureCase), `{}`))).Run
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What such a process leaves: the row, and nothing of its segment.
	db := durabletest.Open(t, path)
	for _, query := range []string{
		`update runs set state='running', ended=null, outputs=null, last_event=-1, created=` + strconv.FormatInt(time.Now().UnixMilli(), 10),
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

// TestPanicInTheAgentRoom fails the node as internal; the process lives.
func TestPanicInTheAgentRoom(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), func(o *engine.Options) {
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
	path := durabletest.Place(t, t.TempDir())
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
	eventually(t, "the run is blocked with a reason", func() bool { return blocked(t, blind, run) })
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
	path := durabletest.Place(t, t.TempDir())
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
	db := durabletest.Open(t, path)
	breaks, mends := `create trigger broken before insert on events begin select raise(abort, 'broken'); end`, `drop trigger broken`
	if durable.Remote(path) {
		breaks, mends = `alter table events add constraint broken check(n<0) not valid`, `alter table events drop constraint broken`
	}
	if _, err := db.ExecContext(t.Context(), breaks); err != nil {
		t.Fatal(err)
	}
	close(b.release)
	<-time.After(2500 * time.Millisecond)
	if r, err := e.Run(t.Context(), s.Run, ""); err != nil || r.State != engine.Running {
		t.Errorf("while the store fails the run is %v, %v, want running", r, err)
	}
	if _, err := db.ExecContext(t.Context(), mends); err != nil {
		t.Fatal(err)
	}
	if got, want := string(last(follow(t, e, s.Run)).Outputs), `{"out":"two"}`; got != want {
		t.Errorf("outputs = %s, want %s", got, want)
	}
	if n := b.calls.Load(); n != 2 && n != 3 {
		t.Errorf("the effects were done %d times, want each once, and again only the one that was in flight", n)
	}
}

// blocked reports whether the run is shown as blocked, with a reason.
func blocked(t *testing.T, e *engine.Engine, run string) bool {
	t.Helper()
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.ID == run {
			return r.State == engine.Blocked && r.Reason != ""
		}
	}
	return false
}

// TestUnreadableDefinitionCanBeShownAndCancelled: what a newer process wrote keeps
// nobody from ending the run here.
func TestUnreadableDefinitionCanBeShownAndCancelled(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	e := open(t, path, nil)
	run, _ := untilPaused(t, e, request(t, parse(t, gateFragment), `{}`))
	if _, err := durabletest.Open(t, path).ExecContext(t.Context(), `update definitions set json='{broken'`); err != nil {
		t.Fatal(err)
	}
	cli := open(t, path, onlyLook)
	r, err := cli.Run(t.Context(), run, "")
	if err != nil || r.State != engine.Waiting || r.Nodes != nil {
		t.Errorf("Run = %+v, %v, want it waiting without nodes", r, err)
	}
	if err := cli.Cancel(t.Context(), run, "cli", engine.ViaCLI, ""); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	if r, err := cli.Run(t.Context(), run, ""); err != nil || r.State != engine.Cancelled {
		t.Errorf("after the cancel Run = %+v, %v, want it cancelled", r, err)
	}
}

// TestCancelThatNobodyHeard has a cancel written in the moment in which the segment
// comes to its gate: the run does not wait for a person any more.
func TestCancelThatNobodyHeard(t *testing.T) {
	t.Parallel()
	path := durabletest.Place(t, t.TempDir())
	db := durabletest.Open(t, path)
	agent := agentFunc(func(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
		_, err := db.ExecContext(ctx, `update runs set cancel_by='somebody', cancel_reason='' where id=?`, call.Run)
		return engine.AgentResult{Output: json.RawMessage(`"x"`)}, err
	})
	e := open(t, path, func(o *engine.Options) { o.Agent = agent })
	w := parse(t, `
		agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'}]
		nodes:
		  - {id: in, type: input}
		  - {id: dig, type: agent, agent_ref: wader, prompt_template: 'dig'}
		  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go?'}
		  - {id: out, type: output}
		edges: [{from: in, to: dig}, {from: dig, to: ask}, {from: ask, to: out}]`)
	events := finish(t, e, request(t, w, `{}`))
	if got := last(events).Type; got != engine.RunCancelled {
		t.Errorf("the run ended with %s, want %s", got, engine.RunCancelled)
	}
}
