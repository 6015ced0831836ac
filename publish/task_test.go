package publish_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
	"github.com/relavium/relavium-serve/publish/transport"
)

const (
	declaresTasks = `"extensions":{"io.modelcontextprotocol/tasks":{}}`
	declaresBoth  = `"elicitation":{},` + declaresTasks
)

// A poller is a client of 2026-07-28 that declares capabilities.
type poller struct {
	*site
	declares string
	header   []string
}

// A task is what a client sees of one.
type task struct {
	ResultType    string
	TaskID        string
	Status        string
	StatusMessage string
	CreatedAt     string
	LastUpdatedAt string
	TTLMs         *int64
	PollInterval  int `json:"pollIntervalMs"`
	InputRequests map[string]struct {
		Method string
		Params struct {
			Message   string
			Requested json.RawMessage `json:"requestedSchema"`
		}
	}
	Result *result
	Error  *struct {
		Code    int
		Message string
	}
	raw string
}

func (p poller) request(method, name, params string) answer {
	p.tb.Helper()
	meta := strings.Replace(modernMeta, `Capabilities":{}`, `Capabilities":{`+p.declares+`}`, 1)
	if params != "" {
		params += ","
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, method, params, meta)
	return p.do(http.MethodPost, body, append(modernHeader(method, name), p.header...)...)
}

func (p poller) task(a answer) task {
	p.tb.Helper()
	m := a.response()
	if a.status != http.StatusOK || m.Error != nil {
		p.tb.Fatalf("status %d, %s", a.status, m.raw)
	}
	got := task{raw: m.raw}
	if err := json.Unmarshal(m.Result, &got); err != nil {
		p.tb.Fatalf("%s: %v", m.raw, err)
	}
	return got
}

func (p poller) create(tool, rest string) task {
	p.tb.Helper()
	return p.task(p.request("tools/call", tool, fmt.Sprintf(`"name":%q%s`, tool, rest)))
}

func (p poller) get(id string) task {
	p.tb.Helper()
	return p.task(p.request("tasks/get", id, fmt.Sprintf(`"taskId":%q`, id)))
}

// until polls a task until it is in that state.
func (p poller) until(id, status string) task {
	p.tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		got := p.get(id)
		if got.Status == status {
			return got
		}
		select {
		case <-tick.C:
		case <-deadline:
			p.tb.Fatalf("the task is %s, want %s", got.raw, status)
		}
	}
}

// asks polls a task until it shows n questions, and returns their keys.
func (p poller) asks(id string, n int) []string {
	p.tb.Helper()
	for {
		got := p.until(id, "input_required")
		if len(got.InputRequests) != n {
			continue
		}
		var keys []string
		for key, r := range got.InputRequests {
			if r.Method != "elicitation/create" || len(r.Params.Requested) == 0 {
				p.tb.Errorf("input request %s = %+v, want a form", key, r)
			}
			keys = append(keys, key)
		}
		slices.Sort(keys)
		return keys
	}
}

func (p poller) update(id, responses string) {
	p.tb.Helper()
	p.acknowledged(p.request("tasks/update", id, fmt.Sprintf(`"taskId":%q,"inputResponses":{%s}`, id, responses)))
}

func (p poller) cancel(id string) {
	p.tb.Helper()
	p.acknowledged(p.request("tasks/cancel", id, fmt.Sprintf(`"taskId":%q`, id)))
}

func (p poller) acknowledged(a answer) {
	p.tb.Helper()
	var got map[string]json.RawMessage
	if err := json.Unmarshal(a.response().Result, &got); err != nil || a.status != http.StatusOK {
		p.tb.Fatalf("status %d, %s", a.status, a.body)
	}
	delete(got, "_meta")
	if string(got["resultType"]) != `"complete"` || len(got) != 1 {
		p.tb.Errorf("acknowledgement = %s, want resultType alone", a.body)
	}
}

func startPoller(t *testing.T, declares string, change func(*publish.Options), list ...publish.Workflow) (poller, *engine.Engine, *publish.Server) {
	t.Helper()
	s, eng, _ := newServer(t, change, list...)
	return poller{site: listen(t, s, publish.HTTPOptions{}), declares: declares}, eng, s
}

// A run is a task: it is durable when it is answered, asks through tasks/get, and
// holds the workflow's own result at its end.
func TestTask(t *testing.T) {
	t.Parallel()
	p, _, _ := startPoller(t, declaresBoth, func(o *publish.Options) { o.MinHuman, o.Keep = -1, time.Hour }, chained(t, "deploy", "one", "two:input"))
	made := p.create("relavium_deploy", `,"arguments":{"who":"ann"}`)
	for _, absent := range []string{"requestState", "inputRequests", `"result"`, `"error"`, "ttl\"", "content"} {
		if strings.Contains(strings.Replace(made.raw, `"result":`, "", 1), absent) {
			t.Errorf("the new task holds %s: %s", absent, made.raw)
		}
	}
	if _, err := time.Parse(time.RFC3339, made.CreatedAt); err != nil || made.ResultType != "task" || made.Status != "working" || made.TTLMs != nil || made.PollInterval != 2000 || !strings.Contains(made.raw, `"ttlMs":null`) {
		t.Errorf("the new task = %s", made.raw)
	}
	id := made.TaskID
	first := p.asks(id, 1)
	shown := p.get(id)
	if got, want := shown.InputRequests[first[0]].Params.Message, "Proceed at one for ann?"; got != want || shown.ResultType != "complete" {
		t.Errorf("the question = %q, want %q: %s", got, want, shown.raw)
	}
	p.update(id, `"`+first[0]+`":`+approve)
	second := p.asks(id, 1)
	if first[0] == second[0] {
		t.Errorf("two gates share the key %s", first[0])
	}
	p.update(id, `"`+first[0]+`":`+reject+`,"`+second[0]+`":{"action":"accept","content":{"value":"blue"}}`)
	done := p.until(id, "completed")
	if got, want := string(done.Result.StructuredContent), `{"result":["approved","blue"]}`; got != want || done.Result.IsError || done.InputRequests != nil {
		t.Errorf("the result is %s, want %s: %s", got, want, done.raw)
	}
	if got := runOf(*done.Result); got != id {
		t.Errorf("the result is of run %s, want %s", got, id)
	}
	if done.TTLMs == nil || *done.TTLMs != time.Hour.Milliseconds() {
		t.Errorf("ttlMs of an ended task = %v, want an hour", done.TTLMs)
	}
	p.cancel(id) // changes nothing
	p.update(id, `"`+second[0]+`":`+approve)
	if again := p.get(id); again.Status != "completed" {
		t.Errorf("after a late cancel: %s", again.raw)
	}
}

// Which calls become tasks: those of a client that says it knows them, as the
// operator wants.
func TestTaskWhen(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, tasks, declares, tool string
		want                        string // resultType
	}{
		{"gated, declared", "", declaresBoth, "relavium_deploy", "task"},
		{"pure, declared", "", declaresBoth, "relavium_pure", "complete"},
		{"always", publish.TasksAlways, declaresTasks, "relavium_pure", "task"},
		{"always, not declared", publish.TasksAlways, "", "relavium_pure", "complete"},
		{"never", publish.TasksNever, declaresBoth, "relavium_deploy", "input_required"},
		{"not declared", "", `"elicitation":{}`, "relavium_deploy", "input_required"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _, _ := startPoller(t, tt.declares, func(o *publish.Options) { o.Tasks = tt.tasks }, chained(t, "deploy", "one"), shaped(t, "pure", "", "1"))
			if got := p.create(tt.tool, `,"task":{"ttl":60000}`); got.ResultType != tt.want {
				t.Errorf("a call is answered by %q, want %q: %s", got.ResultType, tt.want, got.raw)
			}
			discovered := p.request("server/discover", "", "").body
			if got, want := strings.Contains(discovered, `"io.modelcontextprotocol/tasks":{}`), tt.tasks != publish.TasksNever; got != want {
				t.Errorf("server/discover names the extension: %t, want %t: %s", got, want, discovered)
			}
			c := p.initialize("2025-11-25")
			if a := c.post(`{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":"x"}}`); a.response().Error == nil || a.response().Error.Code != -32601 {
				t.Errorf("tasks/get of 2025-11-25 = %s, want -32601", a.body)
			}
		})
	}
	t.Run("slower than the client bears", func(t *testing.T) {
		t.Parallel()
		p, _, _ := startPoller(t, declaresTasks, func(o *publish.Options) { o.Handover = map[string]time.Duration{"probe": time.Nanosecond} }, shaped(t, "pure", "", "1"))
		if got := p.create("relavium_pure", ""); got.ResultType != "complete" {
			t.Fatalf("the first call = %s, want no task: nothing is known of the workflow", got.raw)
		}
		for deadline := time.Now().Add(patience); p.create("relavium_pure", "").ResultType != "task"; {
			if time.Now().After(deadline) {
				t.Fatal("no call becomes a task")
			}
		}
	})
}

// initialize tells no extension to revisions that know none.
func TestTaskNotInOlderRevisions(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, chained(t, "deploy", "one"))
	if m := connect(t, s).initialize(legacy, "probe"); strings.Contains(m.raw, "extensions") {
		t.Errorf("initialize = %s", m.raw)
	}
}

func TestTaskRefused(t *testing.T) {
	t.Parallel()
	l := openLobby(t, access.ModeToken)
	ann, _ := l.token("ann", "relavium:run")
	bob, _ := l.token("bob", "relavium:run", "relavium:gate", "relavium:ops")
	s, eng, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	at := listen(t, s, l.options())
	as := func(token, declares string) poller {
		return poller{site: at, declares: declares, header: []string{"Authorization", "Bearer " + token}}
	}
	mine, other := as(ann, declaresBoth), as(bob, declaresBoth)
	id := mine.create("relavium_deploy", "").TaskID
	key := mine.asks(id, 1)[0]
	answers := fmt.Sprintf(`"taskId":%q,"inputResponses":{%q:%s}`, id, key, approve)
	tests := []struct {
		name         string
		by           poller
		method, head string
		params       string
		want, status int
	}{
		{"get of another", other, "tasks/get", id, fmt.Sprintf(`"taskId":%q`, id), -32602, 400},
		{"update of another", other, "tasks/update", id, answers, -32602, 400},
		{"cancel of another", other, "tasks/cancel", id, fmt.Sprintf(`"taskId":%q`, id), -32602, 400},
		{"get of none", mine, "tasks/get", "none", `"taskId":"none"`, -32602, 400},
		{"cancel of none", mine, "tasks/cancel", "none", `"taskId":"none"`, -32602, 400},
		{"an id that is no string", mine, "tasks/get", "7", `"taskId":7`, -32020, 400},
		{"no id", mine, "tasks/get", "", ``, -32020, 400},
		{"another id in the header", mine, "tasks/get", "other", fmt.Sprintf(`"taskId":%q`, id), -32020, 400},
		{"another id in the header of update", mine, "tasks/update", "other", answers, -32020, 400},
		{"not declared", as(ann, `"elicitation":{}`), "tasks/get", id, fmt.Sprintf(`"taskId":%q`, id), -32021, 400},
		{"update, not declared", as(ann, `"elicitation":{}`), "tasks/update", id, answers, -32021, 400},
		{"cancel, not declared", as(ann, `"elicitation":{},"extensions":{"other":{}}`), "tasks/cancel", id, fmt.Sprintf(`"taskId":%q`, id), -32021, 400},
		{"list", mine, "tasks/list", "", ``, -32601, 404},
		{"result", mine, "tasks/result", "", fmt.Sprintf(`"taskId":%q`, id), -32601, 404},
	}
	for _, tt := range tests {
		a := tt.by.request(tt.method, tt.head, tt.params)
		m := a.response()
		if m.Error == nil || m.Error.Code != tt.want || a.status != tt.status {
			t.Errorf("%s: %d %s, want %d and status %d", tt.name, a.status, m.raw, tt.want, tt.status)
			continue
		}
		if tt.want == -32021 && !strings.Contains(m.raw, `"data":{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`) {
			t.Errorf("%s: %s, want the capability named", tt.name, m.raw)
		}
	}
	if r, err := eng.Run(t.Context(), id, "token:ann"); err != nil || r.State != engine.Waiting {
		t.Errorf("the run is %+v, %v; want it waiting", r, err)
	}
	mine.cancel(id)
	mine.until(id, "cancelled")
}

// What a reply means for the gate, and for the asking: of a task as of a call.
func TestTaskReplies(t *testing.T) {
	t.Parallel()
	const empty = `{"action":"accept","content":{}}`
	tests := []struct {
		name     string
		minHuman time.Duration
		replies  []string // %s of the key, each to the question that stands then
		status   string   // after them
		decision string
		key      string // suffix of the key that stands then
	}{
		{"approve", -1, []string{approve}, "completed", "approved", ""},
		{"decline", -1, []string{`{"action":"decline"}`}, "completed", "rejected", ""},
		{"too soon", time.Hour, []string{approve}, "working", "", ""},
		{"cancel", -1, []string{`{"action":"cancel"}`}, "working", "", ""},
		{"an error", -1, []string{`{"code":-1,"message":"no"}`}, "working", "", ""},
		{"no object", -1, []string{`7`}, "working", "", ""},
		{"invalid", -1, []string{empty}, "input_required", "", ".2"},
		{"invalid, then approve", -1, []string{empty, approve}, "completed", "approved", ""},
		{"invalid twice", -1, []string{empty, empty}, "working", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, eng, _ := startPoller(t, declaresBoth, func(o *publish.Options) { o.MinHuman = tt.minHuman }, chained(t, "deploy", "one"))
			id := p.create("relavium_deploy", "").TaskID
			for _, reply := range tt.replies {
				p.update(id, `"other":`+approve) // no question of that key
				p.update(id, `"`+p.asks(id, 1)[0]+`":`+reply)
			}
			got := p.until(id, tt.status)
			all, err := eng.Gates(t.Context(), engine.GateFilter{Run: id})
			if err != nil || len(all) != 1 || all[0].Decision != tt.decision {
				t.Fatalf("the gate is %+v, %v; want the decision %q", all, err, tt.decision)
			}
			if tt.decision != "" {
				return
			}
			if tt.status == "input_required" {
				if _, ok := got.InputRequests[all[0].ID+tt.key]; !ok {
					t.Errorf("the second question is %s, want it under a key of its own", got.raw)
				}
				return
			}
			// It is not asked again, whoever polls; another way answers.
			p.update(id, `"`+all[0].ID+`":`+approve+`,"`+all[0].ID+`.2":`+approve)
			if got := p.get(id); got.Status != "working" || !strings.Contains(got.StatusMessage, "relavium-serve gate approve "+id) {
				t.Errorf("the task is %s, want it to say where the gate is answered", got.raw)
			}
			if _, err := eng.Decide(t.Context(), all[0].ID, engine.Decision{Decision: engine.Approved, By: "cli", Via: engine.ViaCLI}); err != nil {
				t.Fatal(err)
			}
			p.until(id, "completed")
		})
	}
}

// An answer to a question that was never shown is nobody's.
func TestTaskUnseen(t *testing.T) {
	t.Parallel()
	p, eng, _ := startPoller(t, declaresBoth, anyTime, chained(t, "deploy", "one"))
	id := p.create("relavium_deploy", "").TaskID
	runState(t, eng, id, engine.Waiting)
	open, err := eng.Gates(t.Context(), engine.GateFilter{Run: id})
	if err != nil || len(open) != 1 {
		t.Fatalf("Gates = %v, %v", open, err)
	}
	p.update(id, `"`+open[0].ID+`":`+approve)
	if keys := p.asks(id, 1); keys[0] != open[0].ID {
		t.Errorf("the key is %s, want the gate's id %s", keys[0], open[0].ID)
	}
}

// Several questions stand at once and are answered one by one, in any process.
func TestTaskPartial(t *testing.T) {
	t.Parallel()
	p, eng, _ := startPoller(t, declaresBoth, anyTime, beside(t))
	id := p.create("relavium_beside", "").TaskID
	keys := p.asks(id, 2)
	p.update(id, `"`+keys[0]+`":`+approve)
	if left := p.asks(id, 1); left[0] != keys[1] {
		t.Errorf("left is %s, want %s", left[0], keys[1])
	}
	second, err := publish.New(publish.Options{Engine: eng, Logger: discard(), Prefix: publish.DefaultPrefix, MinHuman: -1, Workflows: []publish.Workflow{beside(t)}})
	if err != nil {
		t.Fatal(err)
	}
	q := poller{site: listen(t, second, publish.HTTPOptions{}), declares: declaresBoth}
	q.update(id, `"`+keys[1]+`":`+approve) // shown by the other
	q.until(id, "completed")
}

// beside is a workflow whose two gates open at once.
func beside(tb testing.TB) publish.Workflow {
	tb.Helper()
	return parse(tb, `schema_version: '1.0'
workflow:
  id: beside
  version: '0.1.0'
  name: beside
  description: two gates at once
  trigger: { type: mcp_call }
  nodes:
    - { id: start, type: input }
    - { id: fan, type: parallel, parallel_of: [a, b] }
    - { id: a, type: human_gate, gate_type: approval, message_template: "A?" }
    - { id: b, type: human_gate, gate_type: approval, message_template: "B?" }
    - { id: join, type: merge, merge_strategy: object_merge }
    - { id: result, type: output, output_format: json }
  edges:
    - { from: start, to: fan }
    - { from: fan, to: a }
    - { from: fan, to: b }
    - { from: a, to: join }
    - { from: b, to: join }
    - { from: join, to: result }
`)
}

// A run that fails is a task that completed, by an error; a key names one task.
func TestTaskEnds(t *testing.T) {
	t.Parallel()
	p, _, _ := startPoller(t, declaresTasks, func(o *publish.Options) { o.Tasks = publish.TasksAlways },
		shaped(t, "breaks", "", `(() => { throw new Error("no") })()`), shaped(t, "pure", "", "1"))
	got := p.until(p.create("relavium_breaks", "").TaskID, "completed")
	if got.Result == nil || !got.Result.IsError || got.Error != nil || !strings.Contains(got.Result.Content[0].Text, "sandbox_error") {
		t.Errorf("a run that failed = %s, want a completed task with isError", got.raw)
	}
	keyed := strings.Replace(modernMeta, `"_meta":{`, `"_meta":{"relavium/idempotencyKey":"k",`, 1)
	var ids []string
	for range 2 {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_pure",%s}}`,
			strings.Replace(keyed, `Capabilities":{}`, `Capabilities":{`+declaresTasks+`}`, 1))
		made := p.task(p.do(http.MethodPost, body, modernHeader("tools/call", "relavium_pure")...))
		ids = append(ids, made.TaskID)
		p.until(made.TaskID, "completed")
	}
	if diff := cmp.Diff(ids[0], ids[1]); diff != "" {
		t.Errorf("the same key made two tasks (-first +second):\n%s", diff)
	}
}

// A task of a client that cannot be asked says where its gate is answered; one
// whose requester may not answer does too.
func TestTaskNotAsked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		declares string
		change   func(*publish.Workflow)
	}{
		"no elicitation":         {declaresTasks, func(*publish.Workflow) {}},
		"elicitation not taken":  {declaresBoth, func(w *publish.Workflow) { w.Accept = []string{gates.AcceptCLI} }},
		"not by the requester":   {declaresBoth, func(w *publish.Workflow) { w.NotRequester = true }},
		"an old way to say both": {`"elicitation":{"url":{}},` + declaresTasks, func(*publish.Workflow) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := chained(t, "deploy", "one")
			tt.change(&w)
			p, eng, _ := startPoller(t, tt.declares, anyTime, w)
			id := p.create("relavium_deploy", "").TaskID
			runState(t, eng, id, engine.Waiting)
			if got := p.get(id); got.Status != "working" || got.InputRequests != nil || !strings.Contains(got.StatusMessage, "gate approve") {
				t.Errorf("the task is %s, want it working and telling where", got.raw)
			}
		})
	}
}

// A call that is cancelled before its client has the task ends the run like one
// that waits; over a connection that carries several it is found by its id.
func TestTaskOverStdio(t *testing.T) {
	t.Parallel()
	s, eng, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	c := connect(t, s)
	meta := strings.Replace(modernMeta, `Capabilities":{}`, `Capabilities":{`+declaresBoth+`}`, 1)
	c.call("1", "relavium_deploy", ","+meta)
	var made struct{ TaskID string }
	if err := json.Unmarshal(c.response("1").Result, &made); err != nil || made.TaskID == "" {
		t.Fatalf("the call is answered by no task: %v", err)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`) // too late
	runState(t, eng, made.TaskID, engine.Waiting)
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":%q,%s}}`, made.TaskID, meta)
	if m := c.response("2"); !strings.Contains(m.raw, `"status":"input_required"`) {
		t.Errorf("tasks/get = %s", m.raw)
	}
	for range 20 {
		c.call("3", "relavium_deploy", `,"arguments":{"who":"bob"},`+meta)
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	}
	c.send(`{"jsonrpc":"2.0","id":4,"method":"tools/list","params":{%s}}`, meta)
	c.response("4") // the last of them began
	answered := map[string]bool{made.TaskID: true}
	for _, m := range c.kept {
		if string(m.ID) == "3" && json.Unmarshal(m.Result, &made) == nil {
			answered[made.TaskID] = true
		}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		runs, err := eng.Runs(t.Context(), engine.RunFilter{})
		if err != nil {
			t.Fatal(err)
		}
		stray := slices.DeleteFunc(runs, func(r engine.Run) bool { return answered[r.ID] || r.State == engine.Cancelled })
		if len(stray) == 0 {
			return
		}
		select {
		case <-tick.C:
		case m := <-c.lines: // a task that the client got nevertheless
			if string(m.ID) == "3" && json.Unmarshal(m.Result, &made) == nil {
				answered[made.TaskID] = true
			}
		case <-deadline:
			t.Fatalf("%d runs go on whose call was cancelled, such as %+v", len(stray), stray[0])
		}
	}
}

// A client may close its connection as soon as it has the task, which ends the
// request's context: the run is nobody's orphan all the same. One that never got the
// task leaves an orphan, or, if it cancelled the call, a run that ends.
func TestTaskIsHeldByItsAnswer(t *testing.T) {
	t.Parallel()
	s, e, st := newStoredServer(t, nil, gated(t, "deploy", time.Hour))
	create := func() (reply transport.Reply, run string, end context.CancelCauseFunc) {
		ctx, end := context.WithCancelCause(t.Context())
		reply = s.Answer(ctx, &transport.Request{
			ID: json.RawMessage("1"), Method: "tools/call", Principal: "local", Session: &transport.Session{},
			Params: json.RawMessage(`{"name":"relavium_deploy",` + strings.Replace(modernForm, `"elicitation":{"form":{}}`, declaresBoth, 1) + `}`),
			Notify: func(string, json.RawMessage) error { return nil },
		})
		var made task
		if err := json.Unmarshal(reply.Result, &made); reply.Error != nil || err != nil || made.TaskID == "" {
			t.Fatalf("answer = %s %v, want a task", reply.Result, reply.Error)
		}
		return reply, made.TaskID, end
	}
	reply, run, end := create()
	end(transport.ErrStreamClosed)
	<-time.After(50 * time.Millisecond) // for what might follow the context
	reply.Delivered()
	var at sql.NullInt64
	var reason string
	if err := st.db.QueryRowContext(t.Context(), `select detached, detach_reason from runs where id=?`, run).Scan(&at, &reason); err != nil || at.Valid || reason != engine.DetachHandOver {
		t.Errorf("the run of a delivered task is detached %t by %q (%v), want it handed over", at.Valid, reason, err)
	}

	reply, run, end = create()
	end(transport.ErrStreamClosed)
	reply.Lost()
	st.waitDetached(t, run, engine.DetachClose)

	reply, run, end = create()
	end(&transport.CancelledError{Reason: "enough"})
	reply.Lost()
	waitState(t, e, run, engine.Cancelled)
}
