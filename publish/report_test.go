package publish_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// waitState waits until a run is in one of the given states.
func waitState(t *testing.T, e *engine.Engine, run string, want ...engine.State) *engine.Run {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		r, err := e.Run(t.Context(), run, engine.Local)
		if err != nil {
			t.Fatalf("Run(%s) = %v", run, err)
		}
		if slices.Contains(want, r.State) {
			return r
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("run %s is %s, want %v", run, r.State, want)
		}
	}
}

// L02: without a token no progress is sent; a client whose clock ran out leaves
// the run alone, and its outcome stays readable.
func TestClockDetaches(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "seventy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("10", "relavium_seventy", `,"arguments":{}`)
	run, gate := openGate(c)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10,"reason":"client timeout"}}`)
	c.send(`{"jsonrpc":"2.0","id":11,"method":"ping"}`)
	c.response("11")
	decide(t, e, gate, engine.Approved)
	waitState(t, e, run, engine.Completed)
	got := c.callResult("relavium_run_status", fmt.Sprintf(`,"arguments":{"run":%q}`, run))
	if !strings.Contains(string(got.StructuredContent), `"status":"completed"`) {
		t.Errorf("status after the clock ran out = %s, want completed", got.StructuredContent)
	}
	for _, m := range c.kept {
		if m.Method == "notifications/progress" || string(m.ID) == "10" {
			t.Errorf("without a token and after the cancel the server wrote %s", m.raw)
		}
	}
}

// The next equal call joins the run that the clock detached, once.
func TestClockDetachedRunIsJoined(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "seventy", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("10", "relavium_seventy", `,"arguments":{}`)
	openGate(c)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10,"reason":"McpError: MCP error -32001"}}`)
	c.call("11", "relavium_seventy", `,"_meta":{"progressToken":1}`)
	_, gate := openGate(c) // told again where the run was joined
	decide(t, e, gate, engine.Approved)
	m := c.response("11")
	joined := c.result(m)
	if string(joined.Meta["relavium/joined"]) != "true" {
		t.Fatalf("the second call's _meta = %s, want relavium/joined", joined.Meta)
	}
	var first string
	for _, k := range c.kept {
		if k.Method == "notifications/progress" {
			first = string(k.Params)
			break
		}
	}
	if !strings.Contains(first, "joined run "+runOf(joined)) || !strings.Contains(first, "since 20") {
		t.Errorf("first progress of a joined call = %s, want since when the run goes", first)
	}
	c.call("7", "relavium_seventy", "")
	_, gate = openGate(c)
	decide(t, e, gate, engine.Approved)
	again := c.result(c.response("7"))
	if runOf(again) == runOf(joined) || again.Meta["relavium/joined"] != nil {
		t.Errorf("a call after the result was delivered joined %s, want a run of its own", runOf(again))
	}
}

// L03: progress always grows, goes on while a gate waits, and ends before the result.
func TestProgressWhileWaiting(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) { o.Heartbeat = 40 * time.Millisecond }, gated(t, "beats", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("10", "relavium_beats", `,"arguments":{},"_meta":{"progressToken":"p"}`)
	_, gate := openGate(c)
	for range 3 {
		beat := c.until(func(m wire) bool { return strings.Contains(m.raw, "waiting for a person") })
		c.kept = append(c.kept, beat)
	}
	decide(t, e, gate, engine.Approved)
	res := c.result(c.response("10"))
	if got, want := string(res.StructuredContent), `{"result":{"decision":"approved"}}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
	last := -1.0
	for _, m := range c.kept {
		if m.Method != "notifications/progress" {
			continue
		}
		var p struct {
			ProgressToken   string
			Progress, Total float64
			Message         string
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			t.Fatal(err)
		}
		if p.ProgressToken != "p" || p.Progress <= last || p.Progress > p.Total || p.Total != 4 || p.Message == "" {
			t.Errorf("progress %s after %v: want it larger, at most a total of 4, with a message", m.Params, last)
		}
		last = p.Progress
	}
	if last != 4 {
		t.Errorf("last progress = %v, want 4 of 4", last)
	}
	c.send(`{"jsonrpc":"2.0","id":11,"method":"ping"}`)
	if m := c.next(); string(m.ID) != "11" {
		t.Errorf("after the result came %s, want nothing", m.raw)
	}
}

// L12: a cancel ends its own call and run, and nothing else.
func TestCancelOneOfTwo(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "pair", time.Hour))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	runs, gate := map[string]string{}, ""
	for _, id := range []string{"10", "11"} {
		c.call(id, "relavium_pair", `,"arguments":{}`)
		runs[id], gate = openGate(c)
	}
	if runs["10"] == runs["11"] {
		t.Fatalf("two calls beside each other share run %s, want two", runs["10"])
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10}}`)
	c.send(`{"jsonrpc":"2.0","id":12,"method":"tools/list"}`)
	c.response("12")
	waitState(t, e, runs["10"], engine.Cancelled)
	decide(t, e, gate, engine.Approved)
	if got := c.result(c.response("11")); runOf(got) != runs["11"] || got.IsError {
		t.Errorf("the other call = %+v, want the result of run %s", got, runs["11"])
	}
	for _, m := range c.kept {
		if string(m.ID) == "10" {
			t.Errorf("the cancelled call was answered: %s", m.raw)
		}
	}
}

// N05: no input, each type of input, and a call without arguments.
func TestInputSchemas(t *testing.T) {
	t.Parallel()
	all := shaped(t, "all-types", `  inputs:
    - { name: s, type: string, required: true }
    - { name: n, type: number }
    - { name: b, type: boolean, default: false }
    - { name: f, type: file_path, description: where }
    - { name: d, type: code_diff }
`, `({ ok: true })`)
	enums := shaped(t, "enums", `  inputs:
    - { name: lvl, type: number, required: true, validation: { enum: [1, 2, 3] } }
    - { name: code, type: string, required: true, default: '', validation: { enum: ['1', 'no', ''], max_length: 2 } }
    - { name: zero, type: number, default: 0, validation: { min: -1e2, max: 9007199254740993 } }
`, `({ ok: true })`)
	s, _, _ := newServer(t, nil, all, shaped(t, "no-inputs", "", `({ ok: true })`), enums)
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	var list struct {
		Tools []struct {
			Name                      string
			InputSchema, OutputSchema json.RawMessage
		}
	}
	if err := json.Unmarshal(c.response("2").Result, &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, tool := range list.Tools {
		got[tool.Name] = string(tool.InputSchema)
	}
	for name, want := range map[string]string{
		"relavium_no-inputs": `{"properties":{},"additionalProperties":false,"type":"object"}`,
		"relavium_all-types": `{"properties":{"s":{"type":"string"},"n":{"type":"number"},"b":{"type":"boolean","default":false},` +
			`"f":{"type":"string","description":"where (Path of a file below the workflow's project folder, on the server.)"},` +
			`"d":{"type":"string","description":"A unified diff."}},"additionalProperties":false,"type":"object","required":["s"]}`,
		"relavium_enums": `{"properties":{"lvl":{"type":"number","enum":[1,2,3]},"code":{"type":"string","enum":["1","no",""],"maxLength":2,"default":""},` +
			`"zero":{"type":"number","maximum":9007199254740993,"minimum":-1e2,"default":0}},"additionalProperties":false,"type":"object","required":["lvl"]}`,
	} {
		if got[name] != want {
			t.Errorf("inputSchema of %s = %s\nwant %s", name, got[name], want)
		}
	}
	if res := c.callResult("relavium_no-inputs", ""); res.IsError || string(res.StructuredContent) != `{"result":{"ok":true}}` {
		t.Errorf("a call without arguments = %+v, want its result", res)
	}
}

// N07, N10, R06: arguments are checked by exact type before a run exists, and
// every wrong one is named.
func TestWrongArguments(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil,
		shaped(t, "strs", "  inputs:\n    - { name: n, type: number }\n    - { name: b, type: boolean }\n", `({ n: inputs.n, b: inputs.b })`),
		shaped(t, "typo", "  inputs:\n    - { name: maxDepth, type: number, required: false, default: 3 }\n", `({ d: inputs.maxDepth })`),
		shaped(t, "err", "  inputs:\n    - { name: n, type: number, required: true, validation: { min: 0, max: 10 } }\n", `({ ok: true })`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	for _, tt := range []struct {
		tool, args string
		want       []string
	}{
		{"strs", `{"n":"5812"}`, []string{"n:", "number"}},
		{"strs", `{"n":"007"}`, []string{"n:", "number"}},
		{"strs", `{"n":"1e3"}`, []string{"n:", "number"}},
		{"strs", `{"n":""}`, []string{"n:", "number"}},
		{"strs", `{"n":true}`, []string{"n:", "number"}},
		{"strs", `{"n":" 5","b":"false"}`, []string{"n:", "number", "b:", "boolean"}},
		{"strs", `{"b":0}`, []string{"b:", "boolean"}},
		{"typo", `{"depth":1}`, []string{"depth", "maxDepth"}},
		{"typo", `{"maxDepth":1,"toolCallId":"z"}`, []string{"toolCallId", "maxDepth"}},
		{"err", `{}`, []string{"n:"}},
		{"err", `{"n":11}`, []string{"n:", "10"}},
		{"err", `[]`, []string{"object"}},
		{"err", `"n"`, []string{"object"}},
	} {
		res := c.callResult("relavium_"+tt.tool, `,"arguments":`+tt.args)
		if !res.IsError || res.StructuredContent != nil || !strings.HasPrefix(res.Content[0].Text, "validation") {
			t.Errorf("%s(%s) = %+v, want isError validation", tt.tool, tt.args, res)
		}
		for _, want := range tt.want {
			if !strings.Contains(res.Content[0].Text, want) {
				t.Errorf("%s(%s) says %q, want %q in it", tt.tool, tt.args, res.Content[0].Text, want)
			}
		}
	}
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(runs) != 0 {
		t.Errorf("refused calls left runs %v (%v), want none", runs, err)
	}
	if res := c.callResult("relavium_strs", `,"arguments":{"n":null,"b":null}`); res.IsError {
		t.Errorf("null for inputs that may be left out = %+v, want a result", res)
	}
	for _, tt := range []struct {
		params, want string
	}{
		{`{"name":"relavium_nope","arguments":{}}`, "unknown tool"},
		{`{"name":"relavium_strz"}`, "relavium_strs"},
		{`{"name":"typo"}`, "relavium_typo"},
		{`{}`, "no tool name"},
		{`{"name":7}`, "invalid params"},
		{`{"name":"relavium_strs","_meta":{"relavium/idempotencyKey":""}}`, "idempotencyKey"},
		{`{"name":"relavium_strs","_meta":{"relavium/idempotencyKey":7}}`, "idempotencyKey"},
	} {
		c.send(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":%s}`, tt.params)
		m := c.response("9")
		if m.Error == nil || m.Error.Code != -32602 || !strings.Contains(m.Error.Message, tt.want) {
			t.Errorf("tools/call %s = %s, want -32602 with %q", tt.params, m.raw, tt.want)
		}
	}
}

// N12: a secret input is no argument, and a workflow that needs one which is not
// there is not published.
func TestSecretInputs(t *testing.T) {
	t.Parallel()
	w := shaped(t, "files", `  inputs:
    - { name: path, type: file_path, required: true }
    - { name: diff, type: code_diff, required: true }
    - { name: key, type: secret, required: true }
`, `({ p: inputs.path })`)
	_, e, _ := newServer(t, nil)
	_, err := publish.New(publish.Options{Engine: e, Workflows: []publish.Workflow{w}, Logger: discard()})
	if err == nil || !strings.Contains(err.Error(), w.SecretEnv("key")) {
		t.Fatalf("New without the secret = %v, want an error that names %s", err, w.SecretEnv("key"))
	}
	present := true
	s, _, _ := newServer(t, func(o *publish.Options) {
		o.HasEnv = func(name string) bool { return present && name == w.SecretEnv("key")+"_FILE" }
	}, w)
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	list := string(c.response("2").Result)
	if strings.Contains(list, `"key"`) || !strings.Contains(list, `"required":["path","diff"]`) || !strings.Contains(list, "unified diff") {
		t.Errorf("tools/list = %s, want path and diff with hints and no key", list)
	}
	if res := c.callResult("relavium_files", `,"arguments":{"path":"a","diff":"b","key":"x"}`); !res.IsError || !strings.Contains(res.Content[0].Text, "key") {
		t.Errorf("a call that sends the secret = %+v, want it refused", res)
	}
	if res := c.callResult("relavium_files", `,"arguments":{"path":"a","diff":"b"}`); res.IsError {
		t.Errorf("a call without the secret = %+v, want its result", res)
	}
	present = false
	if res := c.callResult("relavium_files", `,"arguments":{"path":"a","diff":"b"}`); !res.IsError || !strings.Contains(res.Content[0].Text, w.SecretEnv("key")) {
		t.Errorf("a call when the secret is gone = %+v, want it refused", res)
	}
}

// R01: success has structure and the same JSON as text; failure has neither.
func TestSuccessAndFailure(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "good", "", `({ b: 2, a: 1, "<&>": "é" })`), shaped(t, "bad", "", `run.outputs['nope'].x.y`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	good := c.callResult("relavium_good", `,"arguments":{}`)
	want := `{"result":{"b":2,"a":1,"<&>":"é"}}`
	if good.IsError || len(good.Content) != 1 || good.Content[0].Text != string(good.StructuredContent) {
		t.Errorf("success = %+v, want text equal to structuredContent", good)
	}
	if string(good.StructuredContent) != want {
		t.Errorf("structuredContent = %s, want %s", good.StructuredContent, want)
	}
	for _, key := range []string{"relavium/runId", "relavium/costMicrocents", "relavium/durationMs"} {
		if good.Meta[key] == nil {
			t.Errorf("_meta = %v, want %s", good.Meta, key)
		}
	}
	bad := c.callResult("relavium_bad", `,"arguments":{}`)
	if !bad.IsError || bad.StructuredContent != nil || runOf(bad) == "" {
		t.Errorf("failure = %+v, want isError with a run id and no structuredContent", bad)
	}
	for _, want := range []string{"sandbox_error", `"shape"`, runOf(bad)} {
		if !strings.Contains(bad.Content[0].Text, want) {
			t.Errorf("failure says %q, want %q in it", bad.Content[0].Text, want)
		}
	}
}

// Digits, key order and a lone string come out as the workflow made them.
func TestExactValues(t *testing.T) {
	t.Parallel()
	digits := parse(t, `schema_version: '1.0'
workflow:
  id: digits
  version: '0.1.0'
  name: digits
  trigger: { type: mcp_call }
  inputs:
    - { name: n, type: number, required: true }
  nodes:
    - { id: start, type: input }
    - { id: result, type: output }
  edges:
    - { from: start, to: result }
`)
	s, _, _ := newServer(t, nil, digits, shaped(t, "text", "", `"plain\ntext"`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	for _, n := range []string{"9007199254740993", "1.50", "-0", "1e30", "12345678901234567890.12345678901234567890"} {
		res := c.callResult("relavium_digits", `,"arguments":{"n":`+n+`}`)
		if got, want := string(res.StructuredContent), `{"result":{"n":`+n+`}}`; got != want {
			t.Errorf("digits(%s) = %s %v, want %s", n, got, res.Content, want)
		}
	}
	res := c.callResult("relavium_text", "")
	if res.Content[0].Text != "plain\ntext" || string(res.StructuredContent) != `{"result":"plain\ntext"}` {
		t.Errorf("a lone string = %+v, want the text itself", res)
	}
}

// R03: nothing published lists nothing; empty values stay what they are.
func TestEmpty(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil)
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	if got, want := string(c.response("2").Result), `{"tools":[]}`; got != want {
		t.Errorf("tools/list with nothing published = %s, want %s", got, want)
	}
	s, _, _ = newServer(t, nil, shaped(t, "empties", "", `({ items: [], m: {} })`))
	c = connect(t, s)
	c.initialize(legacy, "probe")
	res := c.callResult("relavium_empties", "")
	if got, want := string(res.StructuredContent), `{"result":{"items":[],"m":{}}}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
}

// R09: a condition without a branch is a typed failure, and a gate that nobody
// could answer is refused before a run exists.
func TestNeverASuccess(t *testing.T) {
	t.Parallel()
	nobranch := parse(t, `schema_version: '1.0'
workflow:
  id: nobranch
  version: '0.1.0'
  name: nobranch
  trigger: { type: mcp_call }
  nodes:
    - { id: start, type: input }
    - id: pick
      type: condition
      expression: '"purple"'
      branches:
        - { when: red, target_node: result }
    - { id: result, type: output, output_format: json }
  edges:
    - { from: start, to: pick }
`)
	s, e, _ := newServer(t, func(o *publish.Options) { o.Accept = []string{publish.AcceptElicitation} }, nobranch, gated(t, "ask", time.Minute))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	res := c.callResult("relavium_nobranch", "")
	if !res.IsError || !strings.HasPrefix(res.Content[0].Text, `validation at node "pick"`) {
		t.Errorf("no branch = %+v, want isError validation at node pick", res)
	}
	res = c.callResult("relavium_ask", "")
	if !res.IsError || !strings.Contains(res.Content[0].Text, "accept") || runOf(res) != "" {
		t.Errorf("a gate without a rung = %+v, want isError that names the setting, without a run", res)
	}
	c.call("8", "relavium_ask", ","+modernMeta)
	m := c.response("8")
	if m.Error == nil || m.Error.Code != -32021 || string(m.Error.Data) != `{"requiredCapabilities":{"elicitation":{"form":{}}}}` {
		t.Errorf("the same on 2026-07-28 = %s, want -32021 with the capability", m.raw)
	}
	runs, err := e.Runs(t.Context(), engine.RunFilter{Workflow: "ask"})
	if err != nil || len(runs) != 0 {
		t.Errorf("refused calls left runs %v (%v), want none", runs, err)
	}
}

// N04: only what is listed is published; a long list has an order and a warning.
func TestManyWorkflows(t *testing.T) {
	t.Parallel()
	var list []publish.Workflow
	for i := range 300 {
		list = append(list, shaped(t, fmt.Sprintf("w%03d", (i*7)%300), "", `1`))
	}
	names := func(c *client) []string {
		var all []string
		cursor := ""
		for {
			c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{%s}}`, cursor)
			var page struct {
				Tools      []struct{ Name string }
				NextCursor string
			}
			if err := json.Unmarshal(c.response("2").Result, &page); err != nil {
				t.Fatal(err)
			}
			if len(page.Tools) == 0 {
				t.Fatal("a page holds no tool")
			}
			for _, tool := range page.Tools {
				all = append(all, tool.Name)
			}
			if page.NextCursor == "" {
				return all
			}
			cursor = fmt.Sprintf(`"cursor":%q`, page.NextCursor)
		}
	}
	three, _, log := newServer(t, func(o *publish.Options) { o.NoRunTools = true }, list[0], list[1], list[2])
	c := connect(t, three)
	c.initialize(legacy, "probe")
	if diff := cmp.Diff([]string{"relavium_w000", "relavium_w007", "relavium_w014"}, names(c)); diff != "" {
		t.Errorf("tools of three published workflows differ (-want +got):\n%s", diff)
	}
	if strings.Contains(log.String(), "many tools") {
		t.Errorf("three workflows are warned of: %s", log)
	}
	for _, size := range []int{0, 76, 100} { // 304 tools: the last page is full at 76
		all, _, log := newServer(t, func(o *publish.Options) { o.PageSize = size }, list...)
		c = connect(t, all)
		c.initialize(legacy, "probe")
		first := names(c)
		if len(first) != 304 {
			t.Errorf("300 workflows and 4 companions are listed as %d tools", len(first))
		}
		if diff := cmp.Diff(first, names(c)); diff != "" {
			t.Errorf("two lists differ:\n%s", diff)
		}
		if !strings.Contains(log.String(), "128") {
			t.Errorf("log of 300 workflows = %s, want a warning that names a client limit", log)
		}
	}
	c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"cursor":"*"}}`)
	if m := c.response("3"); m.Error == nil || m.Error.Code != -32602 {
		t.Errorf("an unknown cursor = %s, want -32602", m.raw)
	}
}

// T04, the inbound half: large arguments arrive whole.
func TestLargeArguments(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "bulk", "  inputs:\n    - { name: s, type: string }\n", `({ n: inputs.s.length })`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	res := c.callResult("relavium_bulk", `,"arguments":{"s":"`+strings.Repeat("x", 300_000)+`"}`)
	if got, want := string(res.StructuredContent), `{"result":{"n":300000}}`; got != want {
		t.Errorf("300 KB of arguments = %s, want %s", got, want)
	}
}

// T01: a panic becomes an error reply that tells nothing, and the server goes on.
func TestPanic(t *testing.T) {
	t.Parallel()
	w := shaped(t, "ok", "  inputs:\n    - { name: key, type: secret, required: true }\n", `({ ok: true })`)
	armed := false
	s, _, log := newServer(t, func(o *publish.Options) {
		o.HasEnv = func(string) bool {
			if armed {
				panic("hush 4711")
			}
			return true
		}
	}, w)
	armed = true
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("10", "relavium_ok", "")
	m := c.response("10")
	if m.Error == nil || m.Error.Code != -32603 || !strings.Contains(m.Error.Message, "correlation id") || strings.Contains(m.raw, "hush") {
		t.Errorf("a panic is answered %s, want -32603 with a correlation id and no detail", m.raw)
	}
	if !strings.Contains(log.String(), "hush 4711") {
		t.Errorf("log = %s, want the panic", log)
	}
	c.send(`{"jsonrpc":"2.0","id":11,"method":"ping"}`)
	c.response("11")
}

// T10: end of input with nothing to do, and with a call that waits.
func TestEndOfInput(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, func(o *publish.Options) { o.EOFGrace = 50 * time.Millisecond }, gated(t, "ask", time.Hour))
	for _, waiting := range []bool{false, true} {
		c := connect(t, s)
		c.initialize(legacy, "probe")
		if waiting {
			c.call("1", "relavium_ask", "")
			c.notification("notifications/relavium/human_gate")
		}
		c.in.Close()
		select {
		case err := <-c.done:
			if err != nil {
				t.Errorf("Serve at EOF = %v, want nil", err)
			}
		case <-time.After(patience):
			t.Fatal("Serve does not end at EOF")
		}
		c.done <- nil // for the cleanup
	}
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(runs) != 1 || runs[0].State != engine.Waiting {
		t.Errorf("runs after EOF = %v (%v), want one that waits", runs, err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	s, e, _ := newServer(t, nil, gated(t, "ask", time.Minute))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	c.call("1", "relavium_ask", "")
	c.notification("notifications/relavium/human_gate")
	c.stop()
	res := c.result(c.response("1"))
	if !res.IsError || !strings.Contains(res.Content[0].Text, "server is stopping") || !strings.Contains(res.Content[0].Text, runOf(res)) || runOf(res) == "" {
		t.Errorf("a call that waits at the stop = %+v, want isError with its run id", res)
	}
	waitState(t, e, runOf(res), engine.Waiting)
}
