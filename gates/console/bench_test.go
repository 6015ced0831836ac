package console

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// BenchmarkInbox is the first page of the inbox over 10,000 open gates.
func BenchmarkInbox(b *testing.B) {
	const open = 10_000
	e, err := engine.Open(b.Context(), engine.Options{
		Path: filepath.Join(b.TempDir(), "serve.db"), Executor: true, Projects: []string{projectKey}, Agent: noAgents{},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, done := context.WithTimeout(context.WithoutCancel(b.Context()), patience)
		defer done()
		if err := e.Close(ctx); err != nil {
			b.Errorf("Close = %v", err)
		}
	})
	w, _, err := workflows.Parse("heron.relavium.yaml", []byte(`schema_version: '1.0'
workflow:
  id: heron
  nodes:
    - { id: start, type: input }
    - { id: check, type: human_gate, gate_type: approval, message_template: 'Go on?' }
    - { id: result, type: output }
  edges: [{ from: start, to: check }, { from: check, to: result }]
`), workflows.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for range open {
		if _, err := e.Start(b.Context(), engine.StartRequest{
			Workflow: w, Project: engine.Project{Key: projectKey}, Principal: engine.Local, Arguments: json.RawMessage(`{}`), Source: "mcp",
		}); err != nil {
			b.Fatal(err)
		}
	}
	for {
		gates, err := e.Gates(b.Context(), engine.GateFilter{Open: true, Limit: open})
		if err != nil {
			b.Fatal(err)
		}
		if len(gates) == open {
			break
		}
	}
	c, err := New(Options{Engine: e, Login: StartToken{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	cookie := &http.Cookie{Name: "relavium_7412", Value: c.sessions.begin(&Visitor{Principal: engine.Local, Runs: true})}
	for b.Loop() {
		req := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://127.0.0.1:7412/", http.NoBody)
		req.AddCookie(cookie)
		w := httptest.NewRecorder()
		c.ServeHTTP(w, req)
		if w.Code != http.StatusOK {
			b.Fatalf("GET / = %d", w.Code)
		}
	}
}
