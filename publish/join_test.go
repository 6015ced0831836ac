package publish_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
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

// gaveUp is how libraries cancel a request when their clock ends it.
const gaveUp = `McpError: MCP error -32001: Request timed out`

func cancelOf(id, reason string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":%q}}`, id, reason)
}

// A result that passed the word of the client's clock on the way was never read: the
// next equal call joins its run, once. A person who cancels what has ended wants no more.
func TestJoinAfterCrossing(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "echo", "", "1"))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	ws := listen(t, s, publish.HTTPOptions{WebSocket: true}).dial()
	ws.initialize(legacy, "probe")
	for name, c := range map[string]*client{"stdio": c, "websocket": ws} {
		c.call("10", "relavium_echo", "")
		first := c.result(c.response("10"))
		c.send("%s", cancelOf("11", gaveUp)) // of nothing
		c.send("%s", cancelOf("10", "the user pressed a key"))
		c.call("12", "relavium_echo", "")
		second := c.result(c.response("12"))
		if runOf(second) == runOf(first) {
			t.Errorf("%s: a call after a result was cancelled in vain joined its run", name)
		}
		c.send("%s", cancelOf("12", gaveUp))
		c.send("%s", cancelOf("12", gaveUp))
		c.call("13", "relavium_echo", "")
		if got := c.result(c.response("13")); runOf(got) != runOf(second) || string(got.Meta["relavium/joined"]) != "true" {
			t.Errorf("%s: the call again got run %s (%s), want %s, joined", name, runOf(got), got.Meta, runOf(second))
		}
		<-time.After(2 * claimed)
		c.call("14", "relavium_echo", "")
		if got := c.result(c.response("14")); runOf(got) == runOf(second) {
			t.Errorf("%s: a call after the result was read joined its run", name)
		}
	}
}

// claimed is the time within which the engine stores that a result was read.
const claimed = 250 * time.Millisecond

// The same over HTTP, at one replica and at two.
func TestReplicasCrossing(t *testing.T) {
	t.Parallel()
	a, b, _ := replicas(t, nil, publish.HTTPOptions{}, shaped(t, "echo", "", "1"))
	c := a.initialize("2025-06-18")
	for i, there := range []*sessionClient{c, c.on(b)} {
		id := strconv.Itoa(i + 1)
		first := textOfResult(t, c.post(toolCall(id, "relavium_echo", "")).response())
		there.post(cancelOf(id, gaveUp))
		got := textOfResult(t, there.post(toolCall(id+"01", "relavium_echo", "")).response())
		if runOf(got) != runOf(first) || string(got.Meta["relavium/joined"]) != "true" {
			t.Errorf("cancelled at replica %d: the call again got run %s (%s), want %s, joined", i, runOf(got), got.Meta, runOf(first))
		}
		<-time.After(2 * claimed)
		if got := textOfResult(t, there.post(toolCall(id+"02", "relavium_echo", "")).response()); runOf(got) == runOf(first) {
			t.Errorf("cancelled at replica %d: a call after the result was read joined its run", i)
		}
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
