//go:build unix

package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// A traceCollector takes spans as OTLP over HTTP sends them.
type traceCollector struct {
	tb  testing.TB
	url string

	mu      sync.Mutex
	headers []http.Header
	bodies  [][]byte
	service []*commonpb.KeyValue
	spans   []*tracepb.Span
}

func collect(tb testing.TB) *traceCollector {
	tb.Helper()
	c := &traceCollector{tb: tb}
	s := httptest.NewServer(c)
	tb.Cleanup(s.Close)
	c.url = s.URL
	return c
}

func (c *traceCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			c.tb.Error(err)
			return
		}
		body = unzipped
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		c.tb.Error(err)
		return
	}
	var sent collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(raw, &sent); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" {
		c.tb.Errorf("the collector got %s %s: %v", r.Method, r.URL, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers, c.bodies = append(c.headers, r.Header), append(c.bodies, raw)
	for _, of := range sent.ResourceSpans {
		c.service = of.Resource.Attributes
		for _, scope := range of.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// all are the spans of a trace, or every one if it is nil.
func (c *traceCollector) all(trace []byte) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*tracepb.Span
	for _, s := range c.spans {
		if trace == nil || bytes.Equal(s.TraceId, trace) {
			out = append(out, s)
		}
	}
	return out
}

// one is the one span of a name.
func (c *traceCollector) one(name string) *tracepb.Span {
	c.tb.Helper()
	var found []*tracepb.Span
	for _, s := range c.all(nil) {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		c.tb.Fatalf("%d spans %q, want 1; there are %q", len(found), name, c.names())
	}
	return found[0]
}

func (c *traceCollector) names() []string {
	var out []string
	for _, s := range c.all(nil) {
		out = append(out, s.Name)
	}
	return out
}

// await waits for a span of a name, the n-th from 1.
func (c *traceCollector) await(name string, n int) {
	c.tb.Helper()
	tick, timer := time.NewTicker(20*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timer.Stop()
	for {
		found := 0
		for _, have := range c.names() {
			if have == name {
				found++
			}
		}
		if found >= n {
			return
		}
		select {
		case <-tick.C:
		case <-timer.C:
			c.tb.Fatalf("%d spans %q within %v, want %d; there are %q", found, name, patience, n, c.names())
		}
	}
}

func attributes(s *tracepb.Span) map[string]string {
	out := make(map[string]string)
	for _, kv := range s.Attributes {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.Key] = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_BoolValue:
			out[kv.Key] = fmt.Sprint(v.BoolValue)
		default:
			out[kv.Key] = kv.Value.String()
		}
	}
	return out
}

// A tracedServer is an MCP server that remembers the bodies that it got.
type tracedServer struct {
	url string

	mu     sync.Mutex
	bodies []string
}

func serveTraced(tb testing.TB, result string) *tracedServer {
	tb.Helper()
	s := new(tracedServer)
	m := server.NewMCPServer("shelf", "1", server.WithToolCapabilities(false))
	m.AddTool(mcp.NewTool("look", mcp.WithDescription("Looks.")), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText(result), nil
	})
	next := server.NewStreamableHTTPServer(m)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			tb.Error(err)
		}
		s.mu.Lock()
		s.bodies = append(s.bodies, string(raw))
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(raw))
		next.ServeHTTP(w, r)
	}))
	tb.Cleanup(h.Close)
	s.url = h.URL
	return s
}

// meta is the _meta of the requests of a method that the server got.
func (s *tracedServer) meta(tb testing.TB, method string) []map[string]any {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []map[string]any
	for _, body := range s.bodies {
		var r struct {
			Method string
			Params struct {
				Meta map[string]any `json:"_meta"`
			}
		}
		if body != "" && json.Unmarshal([]byte(body), &r) != nil {
			tb.Errorf("the server got %q", body)
		}
		if r.Method == method {
			out = append(out, r.Params.Meta)
		}
	}
	return out
}

const scout = `schema_version: '1.0'
workflow:
  id: scout
  version: '1.0.0'
  name: Scout
  description: Looks.
  trigger: {type: mcp_call}
  inputs: [{name: topic, type: string, required: true}]
  agents:
    - id: reader
      provider: anthropic
      model: claude-sonnet-4-6
      system_prompt: 'SECRET You look.'
      max_tokens: 500
      tools: [read_file]
      mcp_servers:
        - {id: shelf, transport: http, url: 'URL', allow_local_endpoint: true}
  nodes:
    - {id: start, type: input}
    - {id: look, type: agent, agent_ref: reader, prompt_template: 'What is there about {{ inputs.topic }}?'}
    - {id: shout, type: transform, transform: 'run.outputs["look"] + "!"'}
    - {id: result, type: output}
  edges: [{from: start, to: look}, {from: look, to: shout}, {from: shout, to: result}]
`

const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
	callersMeta  = `"traceparent":"00-` + callersTrace + `-` + callersSpan + `-01","tracestate":"congo=t61rcWkgMzE","baggage":"who=` + told + `"`
	// told stands in everything that is no name: it may be in no span.
	told = "told-9c1f4e7b"
)

// scoutProject is a project whose agent calls a server, a built-in tool and a tool that
// there is not.
func scoutProject(t *testing.T) (project, *tracedServer) {
	t.Helper()
	shelf := serveTraced(t, "the tern "+told)
	script := fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Text: "I look " + told, Calls: []fakemodel.Call{
			{Name: "mcp_shelf_look", Arguments: json.RawMessage(`{}`)},
			{Name: "read_file", Arguments: json.RawMessage(`{"path":"` + told + `.txt"}`)},
			{Name: told, Arguments: json.RawMessage(`{"a":"` + told + `"}`)},
		}},
		{Text: "It is a tern " + told},
	}}}}
	text := strings.NewReplacer("URL", shelf.url, "SECRET", told).Replace(scout)
	p, _ := agentProject(t, anyAnswer, map[string]string{"scout": text}, script)
	p.env = append(p.env, "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20"+told, "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test",
		"OTEL_SERVICE_NAME=scouts")
	return p, shelf
}

// TestTrace calls a workflow with an agent by a client that traces: one tree from the
// client's span over call, run, nodes, model turns and tool calls to the server that
// the agent uses.
func TestTrace(t *testing.T) {
	t.Parallel()
	p, shelf := scoutProject(t)
	c := collect(t)
	s := p.serve(t, "--publish", "scout", "--trace-endpoint", c.url)
	s.initialize()
	m := s.ask("1", "tools/call", `{"name":"relavium_scout","arguments":{"topic":"`+told+`"},"_meta":{`+callersMeta+`}}`)
	if m.Error != nil || !strings.Contains(string(m.Result), "It is a tern") {
		t.Fatalf("the call = %s, %+v", m.Result, m.Error)
	}
	if code := s.eof(); code != 0 {
		t.Errorf("after EOF the server ended with %d, want 0", code)
	}

	trace, err := hex.DecodeString(callersTrace)
	if err != nil {
		t.Fatal(err)
	}
	if all, of := c.all(nil), c.all(trace); len(all) != len(of) {
		t.Errorf("%d of %d spans are in the client's trace, want all: %q", len(of), len(all), c.names())
	}
	call := c.one("tools/call relavium_scout")
	if got := hex.EncodeToString(call.ParentSpanId); got != callersSpan || call.Kind != tracepb.Span_SPAN_KIND_SERVER || call.TraceState != "congo=t61rcWkgMzE" {
		t.Errorf("the call's span is below %s, of kind %v with state %q, want below the client's %s, a server's, with its state", got, call.Kind, call.TraceState, callersSpan)
	}
	run := c.one("invoke_workflow scout")
	look := c.one("invoke_agent reader")
	tree := map[string]*tracepb.Span{
		"invoke_workflow scout": call, "input start": run, "invoke_agent reader": run, "transform shout": run, "output result": run,
		"execute_tool mcp_shelf_look": look, "execute_tool read_file": look, "execute_tool": look,
	}
	for name, parent := range tree {
		child := c.one(name)
		if !bytes.Equal(child.ParentSpanId, parent.SpanId) {
			t.Errorf("the span %q is not below %q", name, parent.Name)
		}
		// A run may be a moment longer than the call that got its result.
		if child.StartTimeUnixNano < parent.StartTimeUnixNano || child.EndTimeUnixNano > parent.EndTimeUnixNano && parent != call {
			t.Errorf("the span %q is not within %q", name, parent.Name)
		}
	}
	turns := 0
	for _, span := range c.all(trace) {
		if span.Name != "chat claude-sonnet-4-6" {
			continue
		}
		turns++
		got := attributes(span)
		if !bytes.Equal(span.ParentSpanId, look.SpanId) || span.Kind != tracepb.Span_SPAN_KIND_CLIENT || got["gen_ai.operation.name"] != "chat" ||
			got["gen_ai.provider.name"] != "anthropic" || got["gen_ai.request.model"] != "claude-sonnet-4-6" || got["gen_ai.usage.input_tokens"] == "0" {
			t.Errorf("a turn's span: kind %v, %v", span.Kind, got)
		}
	}
	if turns != 2 || len(c.all(trace)) != len(tree)+1+turns {
		t.Errorf("%d turns among the spans %q, want 2 and nothing else", turns, c.names())
	}

	tool := c.one("execute_tool mcp_shelf_look")
	want := fmt.Sprintf("00-%s-%x-01", callersTrace, tool.SpanId)
	if metas := shelf.meta(t, "tools/call"); len(metas) != 1 || metas[0]["traceparent"] != want || metas[0]["tracestate"] != "congo=t61rcWkgMzE" || metas[0]["baggage"] != nil {
		t.Errorf("the server that the agent uses got _meta %v, want the traceparent %s and no baggage", metas, want)
	}
	if metas := shelf.meta(t, "tools/list"); len(metas) != 1 || !strings.HasPrefix(fmt.Sprint(metas[0]["traceparent"]), "00-"+callersTrace) {
		t.Errorf("the server was asked for its tools with _meta %v, want the client's trace", metas)
	}
	if got := attributes(tool); got["mcp.method.name"] != "tools/call" || got["gen_ai.tool.name"] != "mcp_shelf_look" || got["relavium.run.id"] != attributes(run)["relavium.run.id"] {
		t.Errorf("the tool's span has %v", got)
	}
	if got := attributes(c.one("execute_tool read_file")); got["error.type"] != "tool_error" {
		t.Errorf("the span of the tool that found no file has %v, want the error.type tool_error", got)
	}
	if got := attributes(c.one("execute_tool")); got["error.type"] != "incorrect" || got["relavium.error.reason"] != "unknown_tool" {
		t.Errorf("the span of the tool that there is not has %v, want error.type and reason", got)
	}
	if got := attributes(run); got["relavium.run.state"] != "completed" || got["gen_ai.usage.output_tokens"] == "0" {
		t.Errorf("the run's span has %v", got)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	for _, body := range c.bodies {
		if at := bytes.Index(body, []byte(told)); at >= 0 {
			t.Errorf("a span tells: …%q…", body[max(0, at-60):min(len(body), at+40)])
		}
	}
	service := attributes(&tracepb.Span{Attributes: c.service})
	if service["service.name"] != "scouts" || service["deployment.environment.name"] != "test" || service["service.version"] == "" {
		t.Errorf("the service is %v", service)
	}
	if got := c.headers[0].Get("Authorization"); got != "Bearer "+told {
		t.Errorf("the collector got Authorization %q, want that of OTEL_EXPORTER_OTLP_HEADERS", got)
	}
	if log := s.diag.String(); !strings.Contains(log, "trace_id="+callersTrace) || strings.Contains(log, told+"\n") {
		t.Errorf("no line of the log names the trace: %s", log)
	}
}

// TestTraceOfStranger calls with a token: the caller's span is linked, whether or not
// it is sampled, and decides nothing.
func TestTraceOfStranger(t *testing.T) {
	t.Parallel()
	c := collect(t)
	p := scenarioProject(t)
	token := p.newToken(t, "sdk", "relavium:run")
	s := p.serveHTTP(t, "--publish", "@mcp_call", "--auth", "token", "--trace-endpoint", c.url)
	b := bearer{t, s.url, token, plainClient(t, nil)}
	for n, flags := range []string{"01", "00"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		resp := b.send(ctx, "tools/call", "relavium_greet", `"name":"relavium_greet","arguments":{"name":"Ada"},`,
			`"traceparent":"00-`+callersTrace+`-`+callersSpan+`-`+flags+`","baggage":"who=`+told+`",`)
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		cancel()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(raw), "Ada") {
			t.Fatalf("the call = %d %s, %v", resp.StatusCode, raw, err)
		}
		c.await("tools/call relavium_greet", n+1)
	}
	traces := make(map[string]bool)
	for _, span := range c.all(nil) {
		traces[string(span.TraceId)] = true
		if hex.EncodeToString(span.TraceId) == callersTrace {
			t.Errorf("the span %q is in the stranger's trace", span.Name)
		}
		if span.Name != "tools/call relavium_greet" {
			continue
		}
		if len(span.ParentSpanId) != 0 || len(span.Links) != 1 || hex.EncodeToString(span.Links[0].TraceId) != callersTrace || hex.EncodeToString(span.Links[0].SpanId) != callersSpan {
			t.Errorf("the call's span has the parent %x and the links %v, want none and one to the caller's", span.ParentSpanId, span.Links)
		}
	}
	if len(traces) != 2 {
		t.Errorf("%d traces, want one for each call", len(traces))
	}
}

// TestTraceThroughKill kills a server whose run waits, and continues the run by another
// process: what that does is in the client's trace too.
func TestTraceThroughKill(t *testing.T) {
	t.Parallel()
	c := collect(t)
	p := scenarioProject(t)
	s := p.serve(t, "--publish", "@mcp_call", "--trace-endpoint", c.url)
	s.initialize()
	s.request("1", "tools/call", `{"name":"relavium_deploy","arguments":{"version":"1.4.2"},"_meta":{`+callersMeta+`}}`)
	id := s.gate(0)
	s.kill()
	before := len(c.all(nil))
	p.ok(t, "gate", "approve", id, "--yes")
	p.ok(t, "run", "--resume", id, "--trace-endpoint", c.url)
	all := c.all(nil)
	if len(all) == before {
		t.Fatal("the second process sent no span")
	}
	for _, span := range all[before:] {
		if hex.EncodeToString(span.TraceId) != callersTrace || attributes(span)["relavium.run.id"] != id {
			t.Errorf("the span %q is of the trace %x and the run %s, want the client's and %s", span.Name, span.TraceId, attributes(span)["relavium.run.id"], id)
		}
	}
}

// TestTraceGoesOn parks a run with its server and continues it by another process: it
// stays one trace, below the call that started it.
func TestTraceGoesOn(t *testing.T) {
	t.Parallel()
	c := collect(t)
	p := scenarioProject(t)
	s := p.serve(t, "--publish", "@mcp_call", "--trace-endpoint", c.url)
	s.initialize()
	s.request("1", "tools/call", `{"name":"relavium_deploy","arguments":{"version":"1.4.2"},"_meta":{`+callersMeta+`}}`)
	id := s.gate(0)
	p.await(t, id, "waiting")
	if code := s.eof(); code != 0 {
		t.Errorf("the first server ended with %d", code)
	}
	p.ok(t, "gate", "approve", id, "--yes")
	if out, stderr, code := p.cli(t, "run", "--resume", id, "--trace-endpoint", c.url+"/"); code != 0 {
		t.Fatalf("run --resume = %d: %s%s", code, out, stderr)
	}
	call := c.one("tools/call relavium_deploy")
	var states []string
	for _, span := range c.all(call.TraceId) {
		if span.Name == "invoke_workflow deploy" {
			if !bytes.Equal(span.ParentSpanId, call.SpanId) {
				t.Errorf("an execution of the run is not below the call")
			}
			states = append(states, attributes(span)["relavium.run.state"])
		}
	}
	slices.Sort(states)
	if hex.EncodeToString(call.TraceId) != callersTrace || !slices.Equal(states, []string{"completed", "waiting"}) {
		t.Errorf("the trace %x holds executions that ended %q, want the client's with one that waits and one that completed", call.TraceId, states)
	}
	var decided bool
	for _, span := range c.all(call.TraceId) {
		got := attributes(span)
		decided = decided || span.Name == "human_gate sign-off" && got["relavium.gate.decision"] == "approved" && got["relavium.gate.via"] == "cli-noninteractive"
	}
	if !decided {
		t.Errorf("no span of the gate names the decision: %q", c.names())
	}
}

// TestTraceEndpointAway serves with a collector that is not there, one that never
// answers, and one that sends elsewhere: calls do not wait for it, the log tells of it
// once, and the end takes no longer than it may.
func TestTraceEndpointAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := "http://" + l.Addr().String()
	l.Close()
	release := make(chan struct{})
	mute := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(mute.Close)
	t.Cleanup(func() { close(release) })
	other := collect(t)
	elsewhere := httptest.NewServer(http.RedirectHandler(other.url+"/v1/traces", http.StatusTemporaryRedirect))
	t.Cleanup(elsewhere.Close)
	for name, endpoint := range map[string]string{"away": away, "mute": mute.URL, "elsewhere": elsewhere.URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := scenarioProject(t)
			s := p.serve(t, "--publish", "@mcp_call", "--trace-endpoint", endpoint)
			s.initialize()
			for n := range 20 {
				if m := s.ask(fmt.Sprint(n), "tools/call", `{"name":"relavium_greet","arguments":{"name":"Ada"}}`); m.Error != nil || !strings.Contains(string(m.Result), "Ada") {
					t.Fatalf("call %d = %s, %+v", n, m.Result, m.Error)
				}
			}
			if code := s.eof(); code != 0 {
				t.Errorf("after EOF the server ended with %d, want 0", code)
			}
			// Where the end comes first it is all that is told.
			failed, late := strings.Count(s.diag.String(), "the collector does not take spans"), strings.Count(s.diag.String(), "the last spans were not sent in time")
			if failed > 1 || late > 1 || failed+late == 0 || failed == 0 && name != "mute" {
				t.Errorf("the log tells %d times that spans are lost and %d times that the last are, want once: %s", failed, late, s.diag)
			}
		})
	}
	t.Cleanup(func() {
		if n := len(other.all(nil)); n != 0 {
			t.Errorf("%d spans followed a redirect", n)
		}
	})
}

// TestTraceOff passes nothing on where nothing is traced.
func TestTraceOff(t *testing.T) {
	t.Parallel()
	p, shelf := scoutProject(t)
	c := collect(t)
	p.env = append(p.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.url)
	s := p.serve(t, "--publish", "scout")
	s.initialize()
	if m := s.ask("1", "tools/call", `{"name":"relavium_scout","arguments":{"topic":"x"},"_meta":{`+callersMeta+`}}`); m.Error != nil {
		t.Fatalf("the call = %+v", m.Error)
	}
	s.eof()
	if metas := shelf.meta(t, "tools/call"); len(metas) != 1 || metas[0]["traceparent"] != nil {
		t.Errorf("the server that the agent uses got _meta %v, want no traceparent", metas)
	}
	if names := c.names(); len(names) != 0 {
		t.Errorf("the collector of the environment got %q, want nothing without --trace-endpoint", names)
	}
}

// TestTraceOfCommand traces a run that a command starts, by the key of the configuration.
func TestTraceOfCommand(t *testing.T) {
	t.Parallel()
	c := collect(t)
	p := scenarioProject(t)
	text, err := os.ReadFile(filepath.Join(p.home, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.home, "config.toml"), "[serve]\ntrace_endpoint = \""+c.url+"\"\n"+string(text))
	p.ok(t, "run", "greet", "--input", "name=Ada")
	if root, run := c.one("run greet"), c.one("invoke_workflow greet"); len(root.ParentSpanId) != 0 || !bytes.Equal(run.ParentSpanId, root.SpanId) {
		t.Errorf("the run's span is not below the command's")
	}
	if _, stderr, code := p.cli(t, "run", "greet", "--input", "name=Ada", "--trace-endpoint", "http://u:p@127.0.0.1:4318"); code != 2 || !strings.Contains(stderr, "OTEL_EXPORTER_OTLP_HEADERS") {
		t.Errorf("credentials in the URL: exit %d, %s", code, stderr)
	}
}
