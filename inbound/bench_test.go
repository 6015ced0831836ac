package inbound

import (
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/workflows"
)

// percentile reports the median of the times of single calls.
func percentile(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkCall compares a tool call through the host with the bare client of mcp-go on
// the same server.
func BenchmarkCall(b *testing.B) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	h := &httpServer{server: newServer(), json: true}
	web := httptest.NewServer(h)
	defer web.Close()
	stdio := workflows.ServerRef{ID: "s", Transport: "stdio", Command: exe, Env: []workflows.EnvVar{{Name: serverVariable, Value: "polite"}}}
	overHTTP := workflows.ServerRef{ID: "s", Transport: "http", URL: web.URL, AllowLocalEndpoint: true}
	for name, ref := range map[string]workflows.ServerRef{"stdio": stdio, "http": overHTTP} {
		b.Run(name+"/host", func(b *testing.B) {
			w, f := newWorld(b, nil, nil), flow(ref)
			w.mustOpen(b, f)
			defer w.shutdown(b)
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				began := time.Now()
				if _, err := w.say(b.Context(), f, "s", "owls"); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			percentile(b, took)
		})
		b.Run(name+"/bare", func(b *testing.B) {
			c := bare(b, exe, ref)
			defer c.Close()
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				began := time.Now()
				request := mcp.CallToolRequest{}
				request.Params.Name, request.Params.Arguments = "echo", map[string]any{"text": "owls"}
				if _, err := c.CallTool(b.Context(), request); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			percentile(b, took)
		})
	}
}

func bare(b *testing.B, exe string, ref workflows.ServerRef) *client.Client {
	b.Helper()
	var c *client.Client
	if ref.Transport == "stdio" {
		c = client.NewClient(transport.NewStdio(exe, []string{serverVariable + "=polite"}))
	} else {
		over, err := transport.NewStreamableHTTP(ref.URL)
		if err != nil {
			b.Fatal(err)
		}
		c = client.NewClient(over)
	}
	if err := c.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	if _, err := c.Initialize(b.Context(), mcp.InitializeRequest{}); err != nil {
		b.Fatal(err)
	}
	return c
}

// BenchmarkListing lists 256 tools of 3.5 KiB each, in pages of 32.
func BenchmarkListing(b *testing.B) {
	s := newServer()
	s.pages = nil
	const perPage = 32
	for page := range 256 / perPage {
		tools := make([]string, 0, perPage)
		for i := range perPage {
			tools = append(tools, fmt.Sprintf(`{"name":"tool_%d","description":%q,"inputSchema":{"type":"object","properties":{"a":{"type":"string","description":%q},`+
				`"b":{"type":"array","items":{"type":"object","properties":{"c":{"enum":["x","y"]},"d":{"type":"integer","minimum":1}}}}},"required":["a"]}}`,
				page*perPage+i, strings.Repeat("word ", 300), strings.Repeat("text ", 350)))
		}
		next := ""
		if page < 256/perPage-1 {
			next = fmt.Sprintf(`,"nextCursor":"%d"`, page+1)
		}
		s.pages = append(s.pages, `{"tools":[`+strings.Join(tools, ",")+`]`+next+`}`)
	}
	f := flow(stdioRef("s"))
	for b.Loop() {
		w := newWorld(b, map[string]*server{"s": s}, nil)
		w.mustOpen(b, f)
		if n := len(w.Tools("r", &f.Agents[0])); n != 256 {
			b.Fatalf("%d tools, want 256", n)
		}
		b.ReportMetric(float64(w.Reports("r")[0].Took.Discovery.Milliseconds()), "walk-ms")
		w.shutdown(b)
	}
}

// BenchmarkConnect connects eight programs at once, and one.
func BenchmarkConnect(b *testing.B) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			refs := make([]workflows.ServerRef, 0, n)
			for i := range n {
				refs = append(refs, workflows.ServerRef{
					ID: fmt.Sprintf("s%d", i), Transport: "stdio", Command: exe, Args: []string{fmt.Sprint(i)},
					Env: []workflows.EnvVar{{Name: serverVariable, Value: "polite"}},
				})
			}
			f := flow(refs...)
			for b.Loop() {
				w := newWorld(b, nil, nil)
				began := time.Now()
				w.mustOpen(b, f)
				total := time.Since(began)
				var slowest time.Duration
				for _, r := range w.Reports("r") {
					slowest = max(slowest, r.Took.Start+r.Took.Handshake+r.Took.Discovery)
				}
				b.ReportMetric(float64(total)/float64(slowest), "of-slowest")
				w.shutdown(b)
			}
		})
	}
}
