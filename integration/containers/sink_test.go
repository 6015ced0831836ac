package containers

import (
	"context"
	"encoding/json"
	"fmt"
	stdnet "net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// errand is a workflow of two agents in a row, each of which leaves one note in the
// sink. Nobody said that a note may be made twice.
const errand = `schema_version: '1.0'
workflow:
  id: errand
  version: '1.0.0'
  name: Errand
  description: Leaves two notes.
  trigger: {type: mcp_call}
  inputs: [{name: label, type: string, required: true}]
  agents:
    - id: clerk
      provider: anthropic
      model: claude-sonnet-4-6
      system_prompt: 'You leave notes.'
      max_tokens: 500
      mcp_servers:
        - {id: sink, transport: http, url: '%s/mcp', allow_local_endpoint: true}
  nodes:
    - {id: start, type: input}
    - {id: one, type: agent, agent_ref: clerk, prompt_template: 'Note {{ inputs.label }}/1 please.'}
    - {id: two, type: agent, agent_ref: clerk, prompt_template: 'Note {{ inputs.label }}/2 please.'}
    - {id: result, type: output}
  edges: [{from: start, to: one}, {from: one, to: two}, {from: two, to: result}]
`

// A sink is a server outside of the containers: an MCP server with one tool whose effect
// is a line in a journal, and the model of whom calls it.
type sink struct {
	url string

	mu    sync.Mutex
	notes map[string]int
	total int
	hold  chan struct{} // if not nil, whoever leaves a note waits until it is closed
}

// startSink starts a sink where the containers of a network reach it.
func startSink(t *testing.T, front net) *sink {
	t.Helper()
	s := &sink{notes: map[string]int{}}
	m := server.NewMCPServer("sink", "1", server.WithToolCapabilities(false))
	m.AddTool(mcp.NewTool("note", mcp.WithDescription("Leaves a note."), mcp.WithString("label", mcp.Required())), s.note)
	asked := regexp.MustCompile(`Note (\S+) please`)
	model := fakemodel.New(fakemodel.Options{Answer: func(q *fakemodel.Request) (fakemodel.Turn, bool) {
		for _, message := range q.Messages {
			if match := asked.FindStringSubmatch(message.Text); match != nil {
				if q.Turn > 0 {
					return fakemodel.Turn{Text: "noted " + match[1]}, true
				}
				raw, err := json.Marshal(map[string]string{"label": match[1]})
				return fakemodel.Turn{Calls: []fakemodel.Call{{Name: "mcp_sink_note", Arguments: raw}}}, err == nil
			}
		}
		return fakemodel.Turn{}, false
	}})
	mux := http.NewServeMux()
	mux.Handle("/mcp", server.NewStreamableHTTPServer(m))
	mux.Handle("/", model)
	var config stdnet.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", stdnet.JoinHostPort(front.gateway, "0"))
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewUnstartedServer(mux)
	_ = h.Listener.Close()
	h.Listener = listener
	h.Start()
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	s.url = h.URL
	return s
}

// note writes the label down and takes a moment.
func (s *sink) note(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	label, err := req.RequireString("label")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.notes[label]++
	s.total++
	hold := s.hold
	s.mu.Unlock()
	if hold == nil {
		moment := make(chan struct{})
		time.AfterFunc(100*time.Millisecond, func() { close(moment) })
		hold = moment
	}
	select {
	case <-hold:
		return mcp.NewToolResultText("noted " + label), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// count is how often a note was left; "" is all.
func (s *sink) count(label string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if label == "" {
		return s.total
	}
	return s.notes[label]
}

// holding makes notes take until release is called.
func (s *sink) holding() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{})
	s.hold = hold
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.hold = nil
		s.mu.Unlock()
		close(hold)
	})
}

// site is the site of replicas whose agents use the sink.
func (s *sink) site(t *testing.T) site {
	t.Helper()
	config := answerable + fmt.Sprintf("[providers.anthropic]\nbase_url = %q\nallow_local_endpoint = true\n[serve.workflow.errand]\nreach = [\"local\"]\n",
		fakemodel.URL(s.url, "anthropic"))
	return newSite(t, config, map[string]string{"asking": asking, "errand": fmt.Sprintf(errand, s.url)})
}
