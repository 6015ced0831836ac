package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/relavium/relavium-serve/engine"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	for _, ev := range append(agentEvents(),
		engine.Event{Type: engine.AgentToolResult, Tool: "read_file", Success: new(true)},
		engine.Event{Type: engine.GatePaused, Reason: engine.ReasonBudget},
		engine.Event{Type: engine.GateResumed, Decision: engine.Approved, Via: engine.ViaCLI},
		engine.Event{Type: engine.RunFailed, DurationMS: new(int64(20))},
	) {
		m.observe(engine.Observed{Run: "r1", Workflow: "dig", Principal: "token:ada", Event: &ev})
	}
	w := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	got := w.Body.String()
	for _, want := range []string{
		`relavium_gates_decided_total{decision="approved",via="cli",workflow="dig"} 1`,
		`relavium_gates_opened_total{reason="budget",workflow="dig"} 1`,
		`relavium_model_calls_total{model="m",workflow="dig"} 2`,
		`relavium_model_tokens_total{direction="input",model="m",workflow="dig"} 1500`,
		`relavium_model_tokens_total{direction="output",model="m",workflow="dig"} 42`,
		`relavium_runs_total{state="completed",workflow="dig"} 1`,
		`relavium_runs_total{state="failed",workflow="dig"} 1`,
		`relavium_tool_calls_total{success="true",tool="read_file",workflow="dig"} 1`,
		`relavium_nodes_total{state="completed",workflow="dig"} 1`,
		`relavium_run_seconds_count{workflow="dig"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	if strings.Contains(got, "token:ada") || strings.Contains(got, `"r1"`) {
		t.Error("a principal or a run is among the labels")
	}
	if t.Failed() {
		t.Log(got)
	}
}
