package publish_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// openGate is the gate of a human_gate notification.
func openGate(c *client) (run, gate string) {
	c.tb.Helper()
	var g struct{ RunID, GateID string }
	if err := json.Unmarshal(c.notification("notifications/relavium/human_gate").Params, &g); err != nil {
		c.tb.Fatal(err)
	}
	return g.RunID, g.GateID
}

func decide(t *testing.T, e *engine.Engine, gate, decision string) {
	t.Helper()
	if _, err := e.Decide(t.Context(), gate, engine.Decision{Decision: decision, By: "cli", Via: engine.ViaCLI}); err != nil {
		t.Fatalf("Decide(%s) = %v", gate, err)
	}
}

// A person answers while the call waits, on both eras.
func TestGateAnsweredWhileWaiting(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "deploy", time.Hour))
	for _, meta := range []string{`"_meta":{}`, modernMeta} {
		c := connect(t, s)
		if meta != modernMeta {
			c.initialize(legacy, "probe")
		}
		c.call("1", "relavium_deploy", `,"arguments":{},`+meta)
		_, gate := openGate(c)
		decide(t, e, gate, engine.Approved)
		res := c.result(c.response("1"))
		if got, want := string(res.StructuredContent), `{"result":{"decision":"approved"}}`; res.IsError || got != want {
			t.Errorf("result after the decision = %s, want %s", got, want)
		}
	}
}

// Thirty-two calls at once: every progress notification arrives, in order, before
// its own result, and each call gets the result of its own run.
func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	const calls = 32
	s, _, _ := newServer(t, nil, shaped(t, "echo", "  inputs:\n    - { name: n, type: number, required: true }\n", `({ n: inputs.n })`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	var sending sync.WaitGroup
	sending.Go(func() {
		for n := range calls {
			c.call(fmt.Sprint(n), "relavium_echo", fmt.Sprintf(`,"arguments":{"n":%d},"_meta":{"progressToken":%d}`, n, n))
		}
	})
	last := map[int]float64{}
	count := map[int]int{}
	for answered := 0; answered < calls; {
		m := c.next()
		if m.Method == "notifications/progress" {
			var p struct {
				ProgressToken int
				Progress      float64
			}
			if err := json.Unmarshal(m.Params, &p); err != nil {
				t.Fatal(err)
			}
			if p.Progress <= last[p.ProgressToken] {
				t.Errorf("call %d: progress %v after %v", p.ProgressToken, p.Progress, last[p.ProgressToken])
			}
			last[p.ProgressToken] = p.Progress
			count[p.ProgressToken]++
			continue
		}
		answered++
		var n int
		if err := json.Unmarshal(m.ID, &n); err != nil {
			t.Fatal(err)
		}
		if got, want := string(c.result(m).StructuredContent), fmt.Sprintf(`{"result":{"n":%d}}`, n); got != want {
			t.Errorf("call %d = %s, want %s", n, got, want)
		}
		if last[n] != 3 || count[n] != 3 {
			t.Errorf("call %d: %d notifications up to %v before its result, want 3 up to 3", n, count[n], last[n])
		}
	}
	sending.Wait()
}

// A client that drops calls at a known age gets its run's id before, and the
// result by relavium_run_wait; such a run is no orphan and is never joined.
func TestHandover(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) {
		o.Handover = map[string]time.Duration{"short": 300 * time.Millisecond, "claude-ai": 0}
	}, gated(t, "deploy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "short")
	res := c.callResult("relavium_deploy", "")
	run := runOf(res)
	want := fmt.Sprintf(`{"_relavium":{"status":"running","run":%q,"next":"relavium_run_wait"}}`, run)
	if res.IsError || run == "" || string(res.StructuredContent) != want || res.Content[0].Text != want {
		t.Fatalf("hand-over = %+v, want %s as structure and text", res, want)
	}
	if again := c.callResult("relavium_deploy", ""); runOf(again) == run {
		t.Errorf("an equal call joined the handed-over run %s, want a run of its own", run)
	}

	waitState(t, e, run, engine.Waiting)
	res = c.callResult("relavium_run_wait", fmt.Sprintf(`,"arguments":{"run":%q,"timeout_s":1}`, run))
	var state struct {
		Run, Status string
		Waiting     []struct{ Gate, Message, Expires string }
	}
	if err := json.Unmarshal(res.StructuredContent, &state); err != nil {
		t.Fatal(err)
	}
	if state.Run != run || state.Status != "waiting" || len(state.Waiting) != 1 || state.Waiting[0].Message != "Proceed?" || state.Waiting[0].Expires == "" {
		t.Fatalf("run_wait when time is up = %s, want the open gate", res.StructuredContent)
	}
	decide(t, e, state.Waiting[0].Gate, engine.Rejected)
	waitState(t, e, run, engine.Completed, engine.Failed)
	res = c.callResult("relavium_run_wait", fmt.Sprintf(`,"arguments":{"run":%q}`, run))
	if runOf(res) != run || !res.IsError && !strings.Contains(string(res.StructuredContent), "rejected") {
		t.Errorf("run_wait at the end = %+v, want the workflow's own result", res)
	}
}

// run_wait tells of the gate that waits now, and of its end while it waits.
func TestWaitTellsOfOpenGate(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) {
		o.Handover = map[string]time.Duration{"short": 200 * time.Millisecond}
		o.Heartbeat = 50 * time.Millisecond
	}, gated(t, "deploy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "short")
	run := runOf(c.callResult("relavium_deploy", ""))
	other := connect(t, s)
	other.initialize(legacy, "patient")
	other.call("1", "relavium_run_wait", fmt.Sprintf(`,"arguments":{"run":%q,"timeout_s":600},"_meta":{"progressToken":"w"}`, run))
	waits, gate := openGate(other)
	if waits != run {
		t.Errorf("run_wait tells of run %s, want %s", waits, run)
	}
	decide(t, e, gate, engine.Approved)
	if res := other.result(other.response("1")); string(res.StructuredContent) != `{"result":{"decision":"approved"}}` {
		t.Errorf("run_wait = %+v, want the workflow's result", res)
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil,
		shaped(t, "echo", "  inputs:\n    - { name: n, type: number, required: true }\n    - { name: m, type: number, default: 1 }\n", `({ n: inputs.n })`),
		shaped(t, "bad", "", `run.outputs['nope'].x.y`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	key := `"_meta":{"relavium/idempotencyKey":"k1"}`
	first := c.callResult("relavium_echo", `,"arguments":{"n":1},`+key)
	same := c.callResult("relavium_echo", `,"arguments":{ "m": 1, "n":1},`+key)
	if runOf(first) == "" || runOf(first) != runOf(same) || string(same.Meta["relavium/joined"]) != "true" {
		t.Errorf("the same key and arguments = run %s and %s, want one run", runOf(first), runOf(same))
	}
	if diff := cmp.Diff(string(first.StructuredContent), string(same.StructuredContent)); diff != "" {
		t.Errorf("the same key yields another result:\n%s", diff)
	}
	other := c.callResult("relavium_echo", `,"arguments":{"n":2},`+key)
	if !other.IsError || !strings.Contains(other.Content[0].Text, "key already used") {
		t.Errorf("the same key with other arguments = %+v, want it refused", other)
	}
	if plain := c.callResult("relavium_echo", `,"arguments":{"n":1}`); runOf(plain) == runOf(first) {
		t.Error("a call without a key joined a run that was delivered")
	}
	bad := c.callResult("relavium_bad", ","+key)
	again := c.callResult("relavium_bad", ","+key)
	if !bad.IsError || !again.IsError || runOf(bad) != runOf(again) || bad.Content[0].Text != again.Content[0].Text {
		t.Errorf("a failure under a key comes back as %+v, want %+v", again, bad)
	}
}

func TestCompanions(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "deploy", time.Hour), shaped(t, "good", "", `({ secret: "outputs" })`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	good := runOf(c.callResult("relavium_good", ""))
	c.call("1", "relavium_deploy", "")
	run, gate := openGate(c)
	waitState(t, e, run, engine.Waiting)

	status := c.callResult("relavium_run_status", fmt.Sprintf(`,"arguments":{"run":%q}`, run))
	for _, want := range []string{`"status":"waiting"`, `"id":"ask"`, `"waiting":[{"gate":"` + gate, `"message":"Proceed?"`} {
		if !strings.Contains(string(status.StructuredContent), want) {
			t.Errorf("status = %s, want %s in it", status.StructuredContent, want)
		}
	}
	list := c.callResult("relavium_run_list", "")
	var page struct {
		Runs []struct{ Run, Workflow, Status string }
		Next string
	}
	if err := json.Unmarshal(list.StructuredContent, &page); err != nil {
		t.Fatal(err)
	}
	if len(page.Runs) != 2 || page.Runs[0].Run != run || page.Runs[1].Run != good || page.Next != "" {
		t.Errorf("list = %s, want the two runs, newest first", list.StructuredContent)
	}
	page.Runs = nil
	if err := json.Unmarshal(c.callResult("relavium_run_list", fmt.Sprintf(`,"arguments":{"before":%q}`, run)).StructuredContent, &page); err != nil {
		t.Fatal(err)
	}
	if len(page.Runs) != 1 || page.Runs[0].Run != good {
		t.Errorf("list before %s = %v, want %s", run, page.Runs, good)
	}
	cancel := c.callResult("relavium_run_cancel", fmt.Sprintf(`,"arguments":{"run":%q}`, run))
	if cancel.IsError || !strings.Contains(string(cancel.StructuredContent), `"cancelRequested":true`) {
		t.Errorf("cancel = %+v, want it asked for", cancel)
	}
	waitState(t, e, run, engine.Cancelled)
	res := c.result(c.response("1"))
	if !res.IsError || !strings.HasPrefix(res.Content[0].Text, "cancelled") || runOf(res) != run {
		t.Errorf("the call of a cancelled run = %+v, want isError cancelled", res)
	}
	for _, tt := range []struct{ tool, args, want string }{
		{"relavium_run_status", `{}`, "required"},
		{"relavium_run_status", `{"run":7}`, "string"},
		{"relavium_run_status", `{"run":"none"}`, "no run"},
		{"relavium_run_cancel", `{"run":"none"}`, "no run"},
		{"relavium_run_wait", fmt.Sprintf(`{"run":%q,"timeout_s":601}`, good), "600"},
		{"relavium_run_wait", fmt.Sprintf(`{"run":%q,"timeout_s":"5"}`, good), "600"},
		{"relavium_run_wait", fmt.Sprintf(`{"run":%q,"decision":"approve"}`, good), "unknown argument"},
		{"relavium_run_list", `{"before":"none"}`, "no run"},
	} {
		res := c.callResult(tt.tool, `,"arguments":`+tt.args)
		if !res.IsError || !strings.Contains(res.Content[0].Text, tt.want) {
			t.Errorf("%s(%s) = %+v, want it refused with %q", tt.tool, tt.args, res, tt.want)
		}
	}
}

// Runs of another project or principal do not exist for a caller, as resources
// or by the companion tools.
func TestForeignRuns(t *testing.T) {
	t.Parallel()
	e := openEngine(t, filepath.Join(t.TempDir(), "serve.db"), func(o *engine.Options) { o.Projects = []string{projectKey, "p-other"} })
	mine := shaped(t, "good", "", `({ a: 1 })`)
	theirs := mine
	theirs.Project.Key = "p-other"
	var runs []string
	for _, req := range []engine.StartRequest{
		{Workflow: theirs.Workflow, Project: theirs.Project, Principal: engine.Local},
		{Workflow: mine.Workflow, Project: mine.Project, Principal: "token:else"},
	} {
		req.Arguments, req.Source = json.RawMessage(`{}`), "mcp"
		st, err := e.Start(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, st.Run)
	}
	s, err := publish.New(publish.Options{Engine: e, Workflows: []publish.Workflow{mine}, Logger: discard()})
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, s)
	c.initialize(legacy, "probe")
	for _, run := range runs {
		for _, tool := range []string{"relavium_run_status", "relavium_run_wait", "relavium_run_cancel"} {
			res := c.callResult(tool, fmt.Sprintf(`,"arguments":{"run":%q}`, run))
			if !res.IsError || !strings.Contains(res.Content[0].Text, "no run") {
				t.Errorf("%s of a foreign run = %+v, want no such run", tool, res)
			}
		}
		for _, uri := range []string{"relavium://runs/" + run, "relavium://runs/" + run + "/outputs/result"} {
			c.send(`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":%q}}`, uri)
			if m := c.response("3"); m.Error == nil || m.Error.Code != -32002 {
				t.Errorf("read %s = %s, want -32002", uri, m.raw)
			}
			c.send(`{"jsonrpc":"2.0","id":4,"method":"resources/read","params":{"uri":%q,%s}}`, uri, modernMeta)
			if m := c.response("4"); m.Error == nil || m.Error.Code != -32602 {
				t.Errorf("read %s on 2026-07-28 = %s, want -32602", uri, m.raw)
			}
		}
	}
	if got, want := string(c.callResult("relavium_run_list", "").StructuredContent), `{"runs":[]}`; got != want {
		t.Errorf("run_list = %s, want %s", got, want)
	}
}

// A large output is named by its link where a model may look, and can be read.
func TestLargeOutput(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "large", "", `"é".repeat(40000)`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	res := c.callResult("relavium_large", "")
	uri := "relavium://runs/" + runOf(res) + "/outputs/result"
	if got, want := string(res.StructuredContent), fmt.Sprintf(`{"_relavium":{"resources":{"result":%q}}}`, uri); got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
	if len(res.Content) != 2 || !strings.HasPrefix(res.Content[0].Text, "éé") || !strings.Contains(res.Content[0].Text, uri) ||
		res.Content[1].Type != "resource_link" || res.Content[1].URI != uri {
		t.Errorf("content = %.300v, want a preview and a link", res.Content)
	}
	c.send(`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":%q}}`, uri)
	var read struct {
		Contents []struct{ URI, MIMEType, Text string }
	}
	if err := json.Unmarshal(c.response("3").Result, &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Contents) != 1 || read.Contents[0].MIMEType != "text/plain" || read.Contents[0].Text != strings.Repeat("é", 40000) {
		t.Errorf("reading the link yields %.100v, want the whole text", read.Contents)
	}
}

// A subscription is acknowledged and ends with a result when the server stops;
// the client's id comes back as it was.
func TestSubscription(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "good", "", `1`))
	c := connect(t, s)
	c.send(`{"jsonrpc":"2.0","id":9007199254740993,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},%s}}`, modernMeta)
	ack := c.next()
	if ack.Method != "notifications/subscriptions/acknowledged" || !strings.Contains(ack.raw, `"io.modelcontextprotocol/subscriptionId":9007199254740993`) {
		t.Errorf("first message = %s, want the acknowledgement with the request's id", ack.raw)
	}
	c.stop()
	end := c.next()
	if string(end.ID) != "9007199254740993" || !strings.Contains(end.raw, `"io.modelcontextprotocol/subscriptionId":9007199254740993`) || end.Error != nil {
		t.Errorf("end of the subscription = %s, want a result with the request's id", end.raw)
	}
}
