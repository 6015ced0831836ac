package publish_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// Two calls that share a run: the cancel of one leaves it to the other, and the
// cancel of the last ends it.
func TestCancelOfSharedRun(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "deploy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	key := `,"_meta":{"relavium/idempotencyKey":"k"}`
	c.call("1", "relavium_deploy", key)
	run, _ := openGate(c)
	c.call("2", "relavium_deploy", key)
	if joined, _ := openGate(c); joined != run {
		t.Fatalf("the second call with the key waits for %s, want %s", joined, run)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`) // comes after what the cancel did
	c.response("3")
	if r := waitState(t, e, run, engine.Waiting, engine.Cancelled); r.State != engine.Waiting {
		t.Fatalf("run after one of two calls was cancelled is %s, want waiting", r.State)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"the user pressed a key"}}`)
	waitState(t, e, run, engine.Cancelled)
}

// A connection that is lost leaves its run to the next equal call.
func TestJoinAfterEOF(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) { o.EOFGrace = 20 * time.Millisecond }, gated(t, "deploy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("1", "relavium_deploy", "")
	run, _ := openGate(c)
	c.in.Close()
	c.done <- <-c.done // wait for it, and leave it for the cleanup

	c = connect(t, s)
	c.initialize(legacy, "probe")
	c.call("1", "relavium_deploy", `,"arguments":{}`)
	joined, gate := openGate(c)
	if joined != run {
		t.Errorf("the call after EOF waits for run %s, want %s", joined, run)
	}
	decide(t, e, gate, engine.Approved)
	if res := c.result(c.response("1")); string(res.Meta["relavium/joined"]) != "true" || res.IsError {
		t.Errorf("the joined call = %+v, want a result with relavium/joined", res)
	}
}

// A server that stopped leaves the run to the next process, whose equal call
// joins it.
func TestJoinAfterRestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "serve.db")
	w := gated(t, "deploy", time.Hour)
	opt := publish.Options{Workflows: []publish.Workflow{w}, Prefix: publish.DefaultPrefix, Logger: discard()}

	first, err := engine.Open(t.Context(), engine.Options{
		Path: path, Executor: true, Projects: []string{projectKey}, Agent: noAgents{}, Logger: discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	opt.Engine = first
	s, err := publish.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("1", "relavium_deploy", "")
	run, _ := openGate(c)
	c.stop()
	if res := c.result(c.response("1")); runOf(res) != run || !res.IsError {
		t.Errorf("the call at the stop = %+v, want isError with run %s", res, run)
	}
	c.done <- <-c.done // wait for it, and leave it for the cleanup
	ctx, done := context.WithTimeout(t.Context(), patience)
	defer done()
	if err := first.Close(ctx); err != nil {
		t.Fatal(err)
	}

	opt.Engine = openEngine(t, path, nil)
	if s, err = publish.New(opt); err != nil {
		t.Fatal(err)
	}
	c = connect(t, s)
	c.initialize(legacy, "probe")
	c.call("1", "relavium_deploy", "")
	joined, gate := openGate(c)
	if joined != run {
		t.Errorf("the call after the restart waits for run %s, want %s", joined, run)
	}
	decide(t, opt.Engine, gate, engine.Approved)
	if res := c.result(c.response("1")); runOf(res) != run || res.IsError {
		t.Errorf("the joined call = %+v, want the result of run %s", res, run)
	}
}
