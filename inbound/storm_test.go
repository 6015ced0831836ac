package inbound

import (
	"context"
	"flag"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

var long = flag.Bool("long", false, "run scaled tests at full length")

// Every one of many cancels is seen by the server, on every transport.
func TestManyCancels(t *testing.T) {
	n := 50
	if *long {
		n = 1000
	}
	for _, transport := range []string{"stdio", "old http", "new http", "sse", "websocket"} {
		t.Run(transport, func(t *testing.T) {
			s := newServer()
			s.answer = hangs
			var servers map[string]*server
			ref := stdioRef("s")
			seen := "notifications/cancelled"
			switch transport {
			case "stdio":
				servers = map[string]*server{"s": s}
			case "old http":
				ref = (&httpServer{server: s, session: "x"}).listen(t)
			case "new http":
				s.modern, seen = true, "gone tools/call"
				ref = (&httpServer{server: s}).listen(t)
			case "sse":
				web := httptest.NewServer(&oldServer{server: s, status: 404})
				t.Cleanup(web.Close)
				ref = workflows.ServerRef{ID: "s", Transport: "sse", URL: web.URL + "/sse", AllowLocalEndpoint: true}
			case "websocket":
				web := httptest.NewServer(&socketServer{s})
				t.Cleanup(web.Close)
				ref = workflows.ServerRef{ID: "s", Transport: "websocket", URL: "ws" + strings.TrimPrefix(web.URL, "http"), AllowLocalEndpoint: true}
			}
			w, f := newWorld(t, servers, nil), flow(ref)
			w.mustOpen(t, f)
			for i := range n {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					_, err := w.say(ctx, f, "s", "hang")
					ended <- err
				}()
				s.wait(t, "tools/call", i+1)
				cancel()
				wantFault(t, <-ended, workflows.ToolCancelled, ReasonCancelled, false)
			}
			s.wait(t, seen, n)
			w.shutdown(t)
			if pending, claimed := s.count(seen), n; pending != claimed {
				t.Errorf("the server saw %d cancels, want %d", pending, claimed)
			}
		})
	}
}

// Many runs at once, each with calls, parks and ends of its own, leave nothing.
func TestChurn(t *testing.T) {
	n := 24
	if *long {
		n = 500
	}
	h := &httpServer{server: newServer(), session: "x"}
	w := newWorld(t, nil, nil)
	f, root := flow(helperRef(t, "s", "polite"), h.listen(t)), t.TempDir()
	f.Agents[0].Servers[1].ID = "web"
	gate := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			id := fmt.Sprint(i)
			if err := w.Open(t.Context(), Run{ID: id, Workflow: f, Principal: id, Root: root}); err != nil {
				t.Errorf("Open(%s) = %v", id, err)
				return
			}
			for _, server := range []string{"s", "web"} {
				call := &workflows.ToolCall{Run: id, Agent: &f.Agents[0], Tool: "mcp_" + server + "_echo", Arguments: []byte(`{"text":"` + id + `"}`)}
				if got, err := w.Call(t.Context(), call); err != nil || got.Text != id {
					t.Errorf("Call(%s, %s) = %v, %v, want %s", id, server, got, err, id)
				}
			}
			switch i % 4 {
			case 0: // ends in mid-call
				ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
				defer stop()
				_, _ = w.Call(ctx, &workflows.ToolCall{Run: id, Agent: &f.Agents[0], Tool: "mcp_s_echo", Arguments: []byte(`{"text":"deaf"}`)})
			case 1:
				w.Park(t.Context(), id)
				if i%8 == 1 {
					return // the shutdown ends it
				}
			}
			if err := w.Close(t.Context(), id); err != nil {
				t.Errorf("Close(%s) = %v", id, err)
			}
		})
	}
	wg.Wait()
	w.shutdown(t)
	if n := len(w.children.Living()); n != 0 {
		t.Errorf("%d children live", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.runs)+len(w.parked)+w.owed != 0 {
		t.Errorf("%d runs, %d parked, %d owed are left", len(w.runs), len(w.parked), w.owed)
	}
}
