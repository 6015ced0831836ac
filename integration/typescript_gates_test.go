package integration

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTypeScriptSDKGates has the elicitation handlers of both generations of the
// most used client answer gates: by server-initiated requests in revision
// 2025-11-25, by input_required results in 2026-07-28.
func TestTypeScriptSDKGates(t *testing.T) {
	t.Parallel()
	for _, generation := range []string{"1", "2"} {
		t.Run("sdk"+generation+" over stdio", func(t *testing.T) {
			t.Parallel()
			p := install(t, anyAnswer).project(t, "project", testdata(t, "three-gates"))
			checkGates(t, startGates(t, p, generation, binary, "serve", "--publish", "@mcp_call"), "local")
		})
		t.Run("sdk"+generation+" over HTTP", func(t *testing.T) {
			t.Parallel()
			p := install(t, anyAnswer).project(t, "project", testdata(t, "three-gates"))
			server := p.serveHTTP(t, "--publish", "@mcp_call")
			checkGates(t, startGates(t, p, generation, "--http", server.url), "local")
		})
	}
}

// startGates runs clients/gates.mjs; the network is left only to a client that
// needs it.
func startGates(t *testing.T, p project, generation string, server ...string) *clientSteps {
	t.Helper()
	node := clientRuntime(t)
	dir, err := filepath.Abs("clients")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{node, filepath.Join(dir, "gates.mjs"), generation}, server...)
	if runtime.GOOS == "linux" && server[0] != "--http" {
		cage := filepath.Join(dir, "..", "..", "scripts", "loopback")
		if exec.Command(cage, "--probe").Run() == nil {
			args = append([]string{cage}, args...)
		}
	}
	return startSteps(t, p, args)
}

// A gateStep is a call, and the questions that its person saw.
type gateStep struct {
	toolResult
	Questions []struct {
		Mode      string          `json:"mode"`
		Message   string          `json:"message"`
		Requested json.RawMessage `json:"requestedSchema"`
	} `json:"questions"`
}

func (s *gateStep) messages() []string {
	list := make([]string, len(s.Questions))
	for i := range s.Questions {
		list[i] = s.Questions[i].Message
	}
	slices.Sort(list)
	return list
}

// checkGates checks what a client saw whose calls are of that principal.
func checkGates(t *testing.T, steps *clientSteps, by string) {
	t.Helper()
	var got gateStep
	steps.next("answered", &got)
	checkStructured(t, &got.toolResult, map[string]any{"result": map[string]any{
		"build": "approved", "notes": "fixes", "ship": "rejected", "why": "not on a Friday", "by": by,
	}})
	if diff := cmp.Diff([]string{"Build 1.0?", "Notes of 1.0?", "Ship 1.0?"}, got.messages()); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	for _, q := range got.Questions {
		if q.Mode != "form" || !strings.Contains(string(q.Requested), `"required"`) {
			t.Errorf("question = %+v, want a form", q)
		}
	}
	got = gateStep{}
	steps.next("asked-twice", &got)
	checkStructured(t, &got.toolResult, map[string]any{"result": map[string]any{
		"build": "rejected", "notes": "fixes", "ship": "rejected", "why": "not on a Friday", "by": by,
	}})
	if diff := cmp.Diff([]string{"Build 2.0?", "Build 2.0?", "Notes of 2.0?", "Ship 2.0?"}, got.messages()); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
	steps.next("closed", &struct{}{})
}
