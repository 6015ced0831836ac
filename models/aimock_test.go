package models_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/models"
)

// aimock starts @copilotkit/aimock, an imitation of the providers' APIs by another
// hand than ours, and returns its address.
func aimock(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "integration", "clients"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := exec.LookPath("node")
	if _, serr := os.Stat(filepath.Join(dir, "node_modules", "@copilotkit", "aimock")); err != nil || serr != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no node or no aimock: %v", errors.Join(err, serr))
		}
		t.Skip("no node, or no aimock in integration/clients: scripts/clients installs it")
	}
	cmd := exec.CommandContext(t.Context(), node, "aimock.mjs")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestAIMock(t *testing.T) {
	t.Parallel()
	address := aimock(t)
	for _, tt := range []struct {
		voice
		base string
	}{
		{voice{"anthropic", models.Anthropic, "claude-sonnet-5-5"}, address},
		{voice{"openai", models.OpenAI, "gpt-4.1"}, address + "/v1"},
		{voice{"responses", models.OpenAI, "gpt-6.1-sol"}, address + "/v1"},
		{voice{"deepseek", models.DeepSeek, "deepseek-flash"}, address + "/v1"},
		{voice{"gemini", models.Gemini, "gemini-3.8-flash"}, address},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := models.New(models.Options{
				Providers: map[string]models.Provider{tt.provider: {BaseURL: tt.base, AllowLocalEndpoint: true}},
				Key:       func(context.Context, string) (string, error) { return testKey, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(m.CloseIdle)
			aimockTurns(t, m, tt.voice)
			aimockFailures(t, m, tt.voice)
		})
	}
}

func aimockTurns(t *testing.T, m *models.Models, v voice) {
	t.Helper()
	var d deltas
	turn, err := m.Turn(t.Context(), v.request("hello"), d.add)
	if err != nil || text(turn) != "Grüße aus 東京, and nothing more." || d.text != text(turn) || turn.Stop != agent.StopEnd {
		t.Errorf("text: Turn = %+v, %v", turn, err)
	}
	if want := (agent.Usage{Input: 12, Output: 8}); err == nil && turn.Usage != want {
		t.Errorf("text: usage = %+v, want %+v", turn.Usage, want)
	}

	req := v.request("weather")
	req.Tools = []agent.ToolSpec{{Name: "weather", Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)}}
	if turn, err = m.Turn(t.Context(), req, nil); err != nil {
		t.Fatalf("tools: %v", err)
	}
	var got []string
	for _, c := range calls(turn) {
		got = append(got, c.Name+string(c.Arguments))
	}
	if diff := cmp.Diff([]string{`weather{"city":"Oslo"}`, `weather{"city":"Rome"}`}, got); diff != "" || turn.Stop != agent.StopToolUse {
		t.Errorf("tools: stop %s, calls (-want +got):\n%s", turn.Stop, diff)
	}
	answer(req, turn, "3 degrees", "20 degrees")
	if turn, err = m.Turn(t.Context(), req, nil); err != nil || text(turn) != "Rome is warmer." {
		t.Errorf("tools: after the results: %+v, %v", turn, err)
	}

	req = v.request("think")
	req.Effort = "high"
	d = deltas{}
	if turn, err = m.Turn(t.Context(), req, d.add); err != nil || text(turn) != "Four." || d.reasoning != "Two and two." {
		t.Errorf("reasoning: %+v, %v with %q", turn, err, d.reasoning)
	}

	req = v.request("person")
	req.Schema, req.SchemaName = json.RawMessage(personSchema), "person"
	if turn, err = m.Turn(t.Context(), req, nil); err != nil || text(turn) != `{"name":"Ada","age":36}` {
		t.Errorf("schema: %+v, %v", turn, err)
	}

	for prompt, want := range map[string]agent.Stop{"filtered": agent.StopFilter, "long": agent.StopLength} {
		if v.name == "anthropic" && want == agent.StopFilter || v.name == "responses" {
			continue // it has no refusal there, and no incomplete response
		}
		if turn, err = m.Turn(t.Context(), v.request(prompt), nil); err != nil || turn.Stop != want {
			t.Errorf("%s: %+v, %v, want stop %s", prompt, turn, err, want)
		}
	}
}

func aimockFailures(t *testing.T, m *models.Models, v voice) {
	t.Helper()
	for prompt, want := range map[string]agent.ErrorKind{
		"limited": agent.RateLimit, "busy": agent.Overloaded, "cut": agent.Transport, "malformed": agent.Transport, "drop": agent.Transport,
	} {
		turn, err := m.Turn(t.Context(), v.request(prompt), nil)
		if e, ok := errors.AsType[*agent.ModelError](err); !ok || e.Kind != want || e.Streamed && prompt != "cut" {
			t.Errorf("%s: Turn = %+v, %+v, want %s", prompt, turn, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	_, err := m.Turn(ctx, v.request("slow"), func(agent.Delta) { cancel() })
	if e, ok := errors.AsType[*agent.ModelError](err); !ok || e.Kind != agent.Cancelled || time.Since(begun) > time.Minute {
		t.Errorf("slow: Turn = %v after %v, want cancelled at once", err, time.Since(begun))
	}
}
