package publish_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/publish"
)

// long runs the tests that are scaled down by default at their full length.
var long = flag.Bool("long", false, "run scaled tests at full length")

// scaled is the one length or the other.
func scaled[T any](short, full T) T {
	if *long {
		return full
	}
	return short
}

// chain is a workflow of n transforms, which yields its input.
func chain(tb testing.TB, id string, n int) publish.Workflow {
	tb.Helper()
	var nodes, edges strings.Builder
	last := "start"
	for i := range n {
		fmt.Fprintf(&nodes, "    - { id: n%d, type: transform, transform: 'inputs.n' }\n", i)
		fmt.Fprintf(&edges, "    - { from: %s, to: n%d }\n", last, i)
		last = fmt.Sprintf("n%d", i)
	}
	return parse(tb, fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  description: test workflow
  trigger: { type: mcp_call }
  inputs:
    - { name: n, type: number }
  nodes:
    - { id: start, type: input }
%s    - { id: result, type: output }
  edges:
%s    - { from: %s, to: result }
`, id, id, nodes.String(), edges.String(), last))
}

// 32 callers at once, of both eras, all with the same few request ids: every
// call gets its own answer after all of its own progress, in order.
func TestHTTPManyCalls(t *testing.T) {
	t.Parallel()
	s, _, _ := newServer(t, func(o *publish.Options) { o.Heartbeat = time.Hour }, chain(t, "chain", 4))
	at := listen(t, s, publish.HTTPOptions{})
	calls := scaled(320, 10_000)

	// What one call is told, as the measure for all.
	told := func(a answer, token string) (list []string, fault string) {
		for i, m := range a.messages {
			switch m.Method {
			case "notifications/progress":
				var p struct {
					ProgressToken   json.RawMessage
					Progress, Total float64
					Message         string
				}
				if err := json.Unmarshal(m.Params, &p); err != nil || string(p.ProgressToken) != token {
					return list, fmt.Sprintf("progress of another call: %s, want token %s", m.raw, token)
				}
				list = append(list, fmt.Sprint(p.Progress, "/", p.Total, " ", p.Message))
			case "":
				if i != len(a.messages)-1 {
					return list, "a message after the answer: " + a.messages[i+1].raw
				}
			default:
				return list, "unasked: " + m.raw
			}
		}
		return list, ""
	}
	params := func(n int) string {
		return fmt.Sprintf(`"name":"relavium_chain","arguments":{"n":%d}`, n)
	}
	withToken := func(n int) string {
		return strings.Replace(modernBody("1", "tools/call", params(n)), `"_meta":{`, fmt.Sprintf(`"_meta":{"progressToken":"t%d",`, n), 1)
	}
	header := modernHeader("tools/call", "relavium_chain")
	want, fault := told(at.do(http.MethodPost, withToken(-1), header...), `"t-1"`)
	if fault != "" || len(want) < 4 {
		t.Fatalf("one call is told %q %s, want each node", want, fault)
	}

	var next atomic.Int64
	var callers sync.WaitGroup
	for i := range 32 {
		callers.Go(func() {
			var c *sessionClient
			if i%2 == 0 {
				c = at.initialize("2025-11-25")
			}
			for {
				n := int(next.Add(1))
				if n > calls || t.Failed() {
					return
				}
				body, h := withToken(n), header
				if c != nil {
					body = toolCall("1", "relavium_chain", fmt.Sprintf(`,"arguments":{"n":%d},"_meta":{"progressToken":"t%d"}`, n, n))
					h = c.header()
				}
				a := at.do(http.MethodPost, body, h...)
				got, fault := told(a, fmt.Sprintf(`"t%d"`, n))
				if fault != "" {
					t.Errorf("call %d: %s", n, fault)
					return
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("call %d is told something else (-want +got):\n%s", n, diff)
					return
				}
				if m := a.response(); string(m.ID) != "1" || !strings.Contains(string(m.Result), fmt.Sprintf(`"structuredContent":{"result":%d}`, n)) {
					t.Errorf("call %d: answer %s, want its own", n, m.raw)
					return
				}
			}
		})
	}
	callers.Wait()
}

// Report L06: an answer that is written after the write deadline of an ordinary
// server arrives whole in both forms, while what is not MCP keeps a deadline.
func TestHTTPLongCall(t *testing.T) {
	t.Parallel()
	wait := scaled(1500*time.Millisecond, 130*time.Second)
	s, _, _ := newServer(t, func(o *publish.Options) { o.Heartbeat = scaled(100*time.Millisecond, 15*time.Second) }, gated(t, "two-min", wait))
	at := listen(t, s, publish.HTTPOptions{})
	var both sync.WaitGroup
	for _, accept := range []string{"application/json, text/event-stream", "application/json"} {
		both.Go(func() {
			began := time.Now()
			resp, err := at.send(t.Context(), http.MethodPost, modernBody("1", "tools/call", `"name":"relavium_two-min","arguments":{}`),
				append(modernHeader("tools/call", "relavium_two-min"), "Accept", accept)...)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			a, err := read(resp)
			if took := time.Since(began); err != nil || took < wait || !strings.Contains(a.response().raw, `"decision":"approved"`) {
				t.Errorf("Accept %s after %v: %s, %v", accept, took, a.response().raw, err)
			}
		})
	}
	both.Wait()
}
