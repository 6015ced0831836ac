package conformance

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestSuiteTasks runs the scenarios of the tasks extension, which are in no requirement
// set, without a token and with one. A workflow takes the place of the suite's slow
// tool: its gate's time runs out.
func TestSuiteTasks(t *testing.T) {
	s := installed(t)
	flows, err := filepath.Abs(filepath.Join("testdata", "tasks"))
	if err != nil {
		t.Fatal(err)
	}
	i := install(t, unlimited)
	t.Run("without a token", func(t *testing.T) {
		s.checkTasks(t, i.serve(t, "--workflows", flows))
	})
	t.Run("with a token", func(t *testing.T) {
		token := i.token(t, "suite", "relavium:run")
		s.checkTasks(t, forward(t, i.serve(t, "--workflows", flows, "--auth", "token"), token).url)
	})
}

func (s suite) checkTasks(t *testing.T, url string) {
	t.Helper()
	// What is asked there and not done here, with the reason.
	expected := map[string]string{
		"sep-2663-tasks-get-status-failed":                         "no workflow fails inside of the server at its author's will",
		"sep-2663-server-returns-missing-capability-when-required": "no call needs a task: a client without them waits",
		"sep-2663-mrtr-synchronous-before-task-creation":           "all gates of a task are asked about by tasks/get",
	}
	for _, scenario := range []string{
		"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
		"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-required-task-error", "tasks-mrtr-composition",
	} {
		t.Run(scenario, func(t *testing.T) {
			got, text, _ := s.start(t, url, []string{"--scenario", scenario, "--spec-version", "2026-07-28", "--force"})
			failures, ran := got[scenario]
			if !ran {
				t.Fatalf("the scenario did not run: %s", text)
			}
			for _, failure := range failures {
				id, _, _ := strings.Cut(failure, ":")
				if expected[id] == "" {
					t.Error(failure)
				}
				delete(expected, id)
			}
		})
	}
	for id, why := range expected {
		t.Errorf("%s passes, though %s", id, why)
	}
}
