package servers

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/workflows"
)

// BenchmarkEcho compares a call of server-everything through the host with one by the
// bare client of mcp-go: the median and the 99th percentile of single calls.
func BenchmarkEcho(b *testing.B) {
	path := script(b, "@modelcontextprotocol/server-everything/dist/index.js")
	url := "http://127.0.0.1:" + strconv.Itoa(startHTTP(b, "streamableHttp")) + "/mcp"
	overHTTP, err := transport.NewStreamableHTTP(url)
	if err != nil {
		b.Fatal(err)
	}
	for _, side := range []struct {
		name string
		ref  workflows.ServerRef
		bare transport.Interface
	}{
		{"stdio", workflows.ServerRef{ID: "it", Transport: "stdio", Command: "node", Args: []string{path}}, transport.NewStdio("node", os.Environ(), path)},
		{"http", workflows.ServerRef{ID: "it", Transport: "http", URL: url, AllowLocalEndpoint: true}, overHTTP},
	} {
		b.Run(side.name+"/host", func(b *testing.B) {
			host, _ := newHost(b)
			w := workflow(side.ref)
			open(b, host, w)
			measure(b, func() { call(b, host, w, "mcp_it_echo", map[string]any{"message": "owls"}) })
		})
		b.Run(side.name+"/bare", func(b *testing.B) {
			c := client.NewClient(side.bare)
			defer c.Close()
			if err := c.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			if _, err := c.Initialize(b.Context(), mcp.InitializeRequest{}); err != nil {
				b.Fatal(err)
			}
			request := mcp.CallToolRequest{}
			request.Params.Name, request.Params.Arguments = "echo", map[string]any{"message": "owls"}
			measure(b, func() {
				if _, err := c.CallTool(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func measure(b *testing.B, do func()) {
	b.Helper()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		do()
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
