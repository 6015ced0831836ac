package publish_test

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/publish"
)

const listChanged = "notifications/tools/list_changed"

// listed are the names that tools/list shows, companions left out.
func (c *client) listed() []string {
	c.tb.Helper()
	c.send(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	var names []string
	for part := range strings.SplitSeq(string(c.response(`"list"`).Result), `"name":"`) {
		if name, _, ok := strings.Cut(part, `"`); ok && strings.HasPrefix(name, publish.DefaultPrefix) && !strings.HasPrefix(name, "relavium_run_") {
			names = append(names, name)
		}
	}
	return names
}

// quiet fails if anything but answers came since the last look.
func (c *client) quiet() {
	c.tb.Helper()
	c.send(`{"jsonrpc":"2.0","id":"still","method":"ping"}`)
	c.response(`"still"`)
	for _, m := range c.kept {
		if m.Method != "" {
			c.tb.Errorf("came unasked: %s", m.raw)
		}
	}
	c.kept = nil
}

func TestReplace(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "one", "", "1"))
	told, mute, modern := connect(t, s), connect(t, s), connect(t, s)
	told.initialize(legacy, "probe")
	told.listed() // notifications/initialized was read
	mute.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"probe","version":"0"}}}`, legacy)
	mute.response("1")
	modern.send(`{"jsonrpc":"2.0","id":"sub","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},%s}}`, modernMeta)
	modern.notification("notifications/subscriptions/acknowledged")

	steps := []struct {
		what string
		list []publish.Workflow
		want []string
		told bool
	}{
		{"the same again", []publish.Workflow{shaped(t, "one", "", "1")}, []string{"relavium_one"}, false},
		{"one more", []publish.Workflow{shaped(t, "one", "", "1"), shaped(t, "two", "", "2")}, []string{"relavium_one", "relavium_two"}, true},
		{"edited within", []publish.Workflow{shaped(t, "one", "", "11"), shaped(t, "two", "", "2")}, []string{"relavium_one", "relavium_two"}, true},
		{"one less", []publish.Workflow{shaped(t, "two", "", "2")}, []string{"relavium_two"}, true},
		{"nothing", nil, nil, true},
		{"back", []publish.Workflow{shaped(t, "one", "", "3")}, []string{"relavium_one"}, true},
	}
	for _, step := range steps {
		if err := s.Replace(step.list); err != nil {
			t.Fatalf("%s: Replace = %v", step.what, err)
		}
		if step.told {
			told.notification(listChanged)
			if m := modern.notification(listChanged); !strings.Contains(m.raw, `"io.modelcontextprotocol/subscriptionId":"sub"`) {
				t.Errorf("%s: the subscription is told %s, want its id in it", step.what, m.raw)
			}
		}
		if got := told.listed(); !slices.Equal(got, step.want) {
			t.Errorf("%s: tools = %v, want %v", step.what, got, step.want)
		}
		for _, c := range []*client{told, mute, modern} {
			c.quiet()
		}
	}
	if got, want := string(told.callResult("relavium_one", "").StructuredContent), `{"result":3}`; got != want {
		t.Errorf("structuredContent = %s, want %s", got, want)
	}
	twice := shaped(t, "two", "", "2")
	twice.Tool = "relavium-one"
	if err := s.Replace([]publish.Workflow{shaped(t, "one", "", "4"), twice}); err == nil || !strings.Contains(err.Error(), "reads like that of") {
		t.Errorf("Replace with names that clash = %v, want an error that says so", err)
	}
	told.quiet()
	if got, want := string(told.callResult("relavium_one", "").StructuredContent), `{"result":3}`; got != want {
		t.Errorf("after a list that clashes: structuredContent = %s, want %s", got, want)
	}
}

// What is under way goes on when its tool is edited or gone, and its run can be
// looked at.
func TestReplaceUnderWay(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, anyTime, chained(t, "deploy", "one"))
	c, modern := connect(t, s), connect(t, s)
	c.elicits(legacy, declaresForm)
	c.call("7", "relavium_deploy", "")
	q := c.asked()
	first, _ := modern.round("1", "relavium_deploy", "")
	if err := s.Replace([]publish.Workflow{chained(t, "deploy", "two", "three")}); err != nil {
		t.Fatal(err)
	}
	if err := s.Replace(nil); err != nil {
		t.Fatal(err)
	}
	c.says(q, approve)
	r := c.result(c.response("7"))
	if got, want := string(r.StructuredContent), `{"result":["approved"]}`; got != want {
		t.Errorf("the call under way: %s, want %s", got, want)
	}
	end, m := modern.round("2", "relavium_deploy", retry(first, `{"one":`+reject+`}`))
	if got, want := string(end.StructuredContent), `{"result":["rejected"]}`; got != want {
		t.Errorf("the retry: %s, want %s", m.raw, want)
	}
	if got := c.callResult("relavium_run_status", `,"arguments":{"run":"`+runOf(r)+`"}`); got.IsError {
		t.Errorf("status of the run: %+v, want it", got)
	}
}

// Whatever the requester may not do at a gate it may not once its tool is gone.
func TestReplaceKeepsRulesOfRuns(t *testing.T) {
	t.Parallel()
	w := chained(t, "deploy", "one")
	s, _, _ := newServer(t, anyTime, w)
	c := connect(t, s)
	first, _ := c.round("1", "relavium_deploy", "")
	w.NotRequester = true
	for _, list := range [][]publish.Workflow{{w}, nil} {
		if err := s.Replace(list); err != nil {
			t.Fatal(err)
		}
	}
	c.call("2", "relavium_run_status", `,"arguments":{"run":`+string(first.Meta["relavium/runId"])+`},`+modernForm)
	c.response("2")
	c.call("3", "relavium_deploy", `,`+modernForm+retry(first, `{"one":`+approve+`}`))
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	c.call("4", "relavium_run_status", `,"arguments":{"run":`+string(first.Meta["relavium/runId"])+`},`+modernForm)
	if m := c.response("4"); !strings.Contains(m.raw, `waiting`) {
		t.Errorf("the gate of a workflow with approver_not_requester is decided by its requester: %s", m.raw)
	}
}

func TestReplaceOverHTTP(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, nil, shaped(t, "one", "", "1"))
	at := listen(t, s, publish.HTTPOptions{WebSocket: true})
	old, second := at.initialize(legacy), at.initialize("2025-03-26")
	socket := at.dial()
	socket.initialize(legacy, "probe")
	socket.listed()
	stream := func(method, body string, header ...string) *events {
		t.Helper()
		ctx, done := context.WithTimeout(t.Context(), patience)
		t.Cleanup(done)
		resp, err := at.send(ctx, method, body, header...)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s = %v, %v", method, resp, err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return newEvents(resp.Body)
	}
	message := func(e *events) string {
		t.Helper()
		for {
			ev, err := e.next()
			if err != nil {
				t.Fatal(err)
			}
			if ev.data != "" {
				return ev.data
			}
		}
	}
	get := stream(http.MethodGet, "", old.header()...)
	subscribed := stream(http.MethodPost, modernBody("9", "subscriptions/listen", `"notifications":{"toolsListChanged":true}`), modernHeader("subscriptions/listen", "")...)
	message(subscribed) // the acknowledgement
	if err := s.Replace([]publish.Workflow{shaped(t, "two", "", "2")}); err != nil {
		t.Fatal(err)
	}
	if got, want := message(get), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}`; got != want {
		t.Errorf("GET stream says %s, want %s", got, want)
	}
	if got := message(subscribed); !strings.Contains(got, listChanged) || !strings.Contains(got, `"io.modelcontextprotocol/subscriptionId":9`) {
		t.Errorf("subscription says %s, want %s with its id", got, listChanged)
	}
	socket.notification(listChanged)
	socket.quiet()
	// A session hears what it missed on the stream that it opens later, once.
	if err := s.Replace([]publish.Workflow{shaped(t, "two", "", "22")}); err != nil {
		t.Fatal(err)
	}
	late := stream(http.MethodGet, "", second.header()...)
	if got := message(late); !strings.Contains(got, listChanged) {
		t.Errorf("a stream that was opened late says %s, want %s", got, listChanged)
	}
	message(get)
	// No answer of a call carries it.
	if a := old.post(toolCall("1", "relavium_two", "")); strings.Contains(a.body, listChanged) {
		t.Errorf("a call is answered %s", a.body)
	}
}

// Calls and lists go on while the tools are replaced, each by one list as a whole.
func TestReplaceAtOnce(t *testing.T) {
	t.Parallel()
	a := []publish.Workflow{shaped(t, "one", "", "1"), shaped(t, "left", "", "1")}
	b := []publish.Workflow{shaped(t, "one", "", "2"), shaped(t, "right", "", "2")}
	s, _, _ := newServer(t, nil, a...)
	var busy sync.WaitGroup
	for range 4 {
		c := connect(t, s)
		c.initialize(legacy, "probe")
		busy.Go(func() {
			for i := range 20 {
				names := c.listed()
				if len(names) != 2 || !slices.Contains(names, "relavium_one") {
					t.Errorf("tools = %v, want relavium_one and one of the others", names)
				}
				id := strconv.Itoa(i)
				c.call(id, "relavium_one", "")
				if m := c.response(id); !strings.Contains(m.raw, `{"result":1}`) && !strings.Contains(m.raw, `{"result":2}`) {
					t.Errorf("call = %s, want the result of either", m.raw)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		busy.Wait()
	}()
	for i := 0; ; i++ {
		if err := s.Replace([][]publish.Workflow{b, a}[i%2]); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			return
		case <-time.After(time.Millisecond):
		}
	}
}
