package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/workflows"
)

// What a child process of the tests is told.
const (
	childPoint = "AGENT_TEST_POINT"
	childDir   = "AGENT_TEST_DIR"
)

// mortal is a Runner that writes down every effect that it made, and dies where it
// is told to: "inside:n", when its n-th effect is made and not yet kept, or "done:n",
// when that is kept.
type mortal struct {
	*agent.Runner
	journal *os.File
	point   string
	made    atomic.Int32
	kept    atomic.Int32
}

func (m *mortal) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	if call.Node.ID == "n" {
		call.Approvals = []string{"g1", "g2"}
	}
	do := call.Do
	call.Do = func(ctx context.Context, e engine.Effect, perform engine.Perform) (engine.EffectResult, error) {
		out, err := do(ctx, e, func(ctx context.Context, key string) (engine.EffectResult, error) {
			out, err := perform(ctx, key)
			if err == nil {
				if _, err := fmt.Fprintln(m.journal, key); err != nil {
					return out, err
				}
				m.die(fmt.Sprint("inside:", m.made.Add(1)))
			}
			return out, err
		})
		if err == nil && !out.Replayed {
			m.die(fmt.Sprint("done:", m.kept.Add(1)))
		}
		return out, err
	}
	return m.Runner.RunAgent(ctx, call)
}

func (m *mortal) die(point string) {
	if m.point != point {
		return
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot kill myself:", err)
	}
	select {}
}

// child runs the eventful workflow to its end, answers what is asked, and says how
// it ended.
func child(ctx context.Context, dir, point string) error {
	journal, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	answer, _ := strings.CutPrefix(point, "answer ")
	x := eventful()
	place, err := durabletest.In(ctx, dir)
	if err != nil {
		return err
	}
	e, err := engine.Open(ctx, engine.Options{
		Path: place, Executor: true, Projects: []string{"p"},
		Agent: &mortal{
			Runner: agent.New(agent.Options{Models: x.models, Builtin: x.builtin}), journal: journal, point: point,
		},
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	w, _, err := workflows.Parse("w.relavium.yaml", []byte(source(eventfulWorkflow)), workflows.Options{})
	if err != nil {
		return err
	}
	a, err := start(ctx, e, w, dir)
	if err != nil {
		return err
	}
	defer a.Close()
	for {
		ev, err := a.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return e.Close(ctx)
		case err != nil:
			return err
		case ev.Type == engine.GatePaused:
			fmt.Fprintln(os.Stderr, "asked", ev.Reason)
			// Another process may have answered; then the run goes on by itself.
			_, err = e.Decide(ctx, ev.Gate, engine.Decision{
				Decision: engine.InputProvided, Payload: json.RawMessage(`"` + answer + `"`), By: "local", Via: engine.ViaConsole,
			})
			if _, decided := errors.AsType[*engine.DecidedError](err); err != nil && !decided {
				return err
			}
		case ev.Terminal():
			fmt.Fprintln(os.Stderr, ev.Type, string(ev.Outputs), ev.Error)
		}
	}
}

// start starts the workflow, or joins the run of it that is there.
func start(ctx context.Context, e *engine.Engine, w *workflows.Workflow, dir string) (*engine.Attachment, error) {
	args, err := w.ResolveInputs(nil)
	if err != nil {
		return nil, err
	}
	started, err := e.Start(ctx, engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: "p", Root: dir}, Principal: engine.Local, Arguments: args, Source: "mcp", IdempotencyKey: "one",
	})
	if err != nil {
		return nil, err
	}
	return e.Attach(ctx, started.Run, engine.Local)
}

func spawn(ctx context.Context, dir, point string) (out string, killed bool, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", false, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childPoint+"="+point, childDir+"="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == -1 {
		return stderr.String(), true, nil
	}
	return stderr.String(), false, err
}

// keptEffects lists the keys of what the store has, by state.
func keptEffects(t *testing.T, dir string) (done, started []string) {
	t.Helper()
	place := durabletest.Place(t, dir)
	durabletest.Bury(t, place)
	db := durabletest.Open(t, place)
	rows, err := db.QueryContext(t.Context(), `select run||'/'||node||'/'||dispatch||'/'||ltrim(path||'/'||n, '/'), state from effects where dispatch>0`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var key, state string
		if err := rows.Scan(&key, &state); err != nil {
			t.Fatal(err)
		}
		if state == "done" {
			done = append(done, key)
		} else {
			started = append(started, key)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return done, started
}

// The process is killed inside and after every effect of a node with parallel tools
// and callees. What was kept is never made again; of what was under way, only what
// may be repeated is, or what a person says.
func TestKill(t *testing.T) {
	t.Parallel()
	const effects = 25
	if testing.Short() {
		t.Skip("spawns processes")
	}
	for n := 1; n <= effects; n++ {
		for _, point := range []string{"inside", "done"} {
			if point == "inside" && n%2 == 0 {
				continue // each process costs a second or more under the race detector
			}
			t.Run(fmt.Sprintf("%s:%d", point, n), func(t *testing.T) {
				t.Parallel()
				answer := []string{"repeat", "skip"}[n/2%2]
				dir := t.TempDir()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				if out, killed, err := spawn(ctx, dir, fmt.Sprintf("%s:%d", point, n)); err != nil || !killed {
					t.Fatalf("first process: killed=%v err=%v out=%s", killed, err, out)
				}
				done, started := keptEffects(t, dir)
				out, killed, err := spawn(ctx, dir, "answer "+answer)
				if err != nil || killed {
					t.Fatalf("second process: killed=%v err=%v out=%s", killed, err, out)
				}
				if !strings.Contains(out, `run:completed {"out":"b says"}`) {
					t.Errorf("the run ended with:\n%s", out)
				}
				if asked := strings.Count(out, "asked outcome_unknown"); asked != len(started) {
					t.Errorf("asked %d times about %q", asked, started)
				}
				raw, err := os.ReadFile(filepath.Join(dir, "journal"))
				if err != nil {
					t.Fatal(err)
				}
				made := map[string]int{}
				for line := range strings.Lines(string(raw)) {
					made[strings.TrimSpace(line)]++
				}
				for key, times := range made {
					if slices.Contains(done, key) && times != 1 || times > 2 {
						t.Errorf("%s was made %d times", key, times)
					}
					if slices.Contains(started, key) && answer == "skip" && times > 1 {
						t.Errorf("%s was to be skipped and was made %d times", key, times)
					}
				}
				if all := len(made) + len(started); all < effects {
					t.Errorf("%d effects were made or skipped, want %d", all, effects)
				}
			})
		}
	}
}
