package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/workflows"
)

// effectJournal is an agent that makes three turns and two commands, one line in the
// journal for each that it performed, and dies where it is told to.
type effectJournal struct{ journal }

func (j *effectJournal) RunAgent(ctx context.Context, call engine.AgentCall) (engine.AgentResult, error) {
	var values []string
	for n, ef := range []engine.Effect{turn(0, 10), tool(1), turn(2, 10), tool(3), turn(4, 10)} {
		out, err := call.Do(ctx, ef, func(_ context.Context, key string) (engine.EffectResult, error) {
			j.die(fmt.Sprintf("begin:%d", n))
			if _, err := fmt.Fprintf(j.file, "end %s\n", key); err != nil {
				return engine.EffectResult{}, err
			}
			j.die(fmt.Sprintf("inside:%d", n))
			return engine.EffectResult{
				Value: json.RawMessage(fmt.Sprint(n)), Cost: 5, Said: []engine.Event{{Type: engine.CostUpdated, Cost: new(int64(5))}},
			}, nil
		})
		switch {
		case errors.Is(err, engine.ErrSkipped):
			values = append(values, `"unknown"`)
		case err != nil:
			return engine.AgentResult{}, err
		default:
			values = append(values, string(out.Value))
		}
		j.die(fmt.Sprintf("done:%d", n))
	}
	return engine.AgentResult{Output: json.RawMessage("[" + strings.Join(values, ",") + "]")}, nil
}

// effectChild runs one workflow with effects to its end and says how it ended.
func effectChild(ctx context.Context, dir, point string) error {
	file, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	answer, _ := strings.CutPrefix(point, "answer ") // at an outcome_unknown gate
	j := &effectJournal{journal{file: file, point: point}}
	place, err := durabletest.In(ctx, dir)
	if err != nil {
		return err
	}
	e, err := engine.Open(ctx, engine.Options{
		Lease: lease, Path: place, Executor: true, Projects: []string{project}, Agent: j, Logger: discard(),
	})
	if err != nil {
		return err
	}
	src := "schema_version: '1.0'\nworkflow:\n  id: heron-case\n" + indent(fmt.Sprintf(oneAgent, "", "budget: {max_cost_microcents: 1000, on_exceed: fail}"))
	w, _, err := workflows.Parse("heron-case.relavium.yaml", []byte(src), workflows.Options{})
	if err != nil {
		return err
	}
	args, err := w.ResolveInputs(nil)
	if err != nil {
		return err
	}
	started, err := e.Start(ctx, engine.StartRequest{
		Workflow: w, Project: engine.Project{Key: project, Root: dir}, Principal: engine.Local, Arguments: args, Source: "mcp", IdempotencyKey: "one",
	})
	if err != nil {
		return err
	}
	a, err := e.Attach(ctx, started.Run, engine.Local)
	if err != nil {
		return err
	}
	defer a.Close()
	for {
		ev, err := a.Next(ctx)
		if errors.Is(err, io.EOF) {
			return e.Close(ctx)
		}
		if err != nil {
			return err
		}
		if ev.Type == engine.GatePaused {
			fmt.Fprintln(os.Stderr, "asked", ev.Reason)
			_, err := e.Decide(ctx, ev.Gate, engine.Decision{
				Decision: engine.InputProvided, Payload: json.RawMessage(`"` + answer + `"`), By: "local", Via: engine.ViaConsole,
			})
			if err != nil {
				return err
			}
		}
		if ev.Terminal() {
			r, err := e.Run(ctx, started.Run, "")
			if err != nil {
				return err
			}
			code := engine.Code("")
			if ev.Error != nil {
				code = ev.Error.Code
			}
			fmt.Fprintln(os.Stderr, ev.Type, code, string(ev.Outputs), r.Cost)
		}
	}
}

// TestKillInsideAgent kills the process before, inside and after every effect of an
// agent node. A completed effect is never made again; a turn that was under way is,
// a command that was under way is asked about.
func TestKillInsideAgent(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"begin", "inside", "done"} {
		for n := range 5 {
			answers := []string{"repeat"}
			if n%2 == 1 && point != "done" {
				answers = []string{"repeat", "skip", "fail"}
			}
			for _, answer := range answers {
				t.Run(fmt.Sprintf("%s:%d %s", point, n, answer), func(t *testing.T) {
					t.Parallel()
					killInsideAgent(t, point, n, answer)
				})
			}
		}
	}
}

func killInsideAgent(t *testing.T, point string, n int, answer string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if out, killed, err := spawn(ctx, dir, fmt.Sprintf("effects %s:%d", point, n)); err != nil || !killed {
		t.Fatalf("first process: killed=%v err=%v out=%s", killed, err, out)
	}
	durabletest.Bury(t, durabletest.Place(t, dir))
	out, killed, err := spawn(ctx, dir, "effects answer "+answer)
	if err != nil || killed {
		t.Fatalf("second process: killed=%v err=%v out=%s", killed, err, out)
	}
	values, performed, asked, outcome := []string{"0", "1", "2", "3", "4"}, []int{1, 1, 1, 1, 1}, "", "run:completed "
	cost := 25
	underWay := point != "done"
	switch {
	case underWay && n%2 == 1: // a command, whose outcome nobody knows
		asked = "asked outcome_unknown\n"
		if point == "begin" {
			performed[n] = 0
		}
		switch answer {
		case "repeat":
			performed[n]++
		case "skip":
			values[n], cost = `"unknown"`, cost-5
		case "fail":
			outcome, cost = "run:failed tool_failed", 5*n
			for later := n + 1; later < 5; later++ {
				performed[later] = 0
			}
		}
	case underWay:
		cost += 10 // what it had set aside
		if point == "inside" {
			performed[n]++
		}
	}
	want := asked + outcome
	if outcome == "run:completed " {
		want += fmt.Sprintf(` {"out":[%s]}`, strings.Join(values, ","))
	} else {
		want += " "
	}
	want += fmt.Sprintf(" %d\n", cost)
	if out != want {
		t.Errorf("the second process said %q, want %q", out, want)
	}
	wantEnds := make(map[string]int)
	for at, times := range performed {
		if times > 0 {
			wantEnds[fmt.Sprintf("dig/1/%d", at)] = times
		}
	}
	if diff := cmp.Diff(wantEnds, ends(t, dir)); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
	checkNumbers(t, dir)
}

// checkNumbers reads the events of the one run as another process does.
func checkNumbers(t *testing.T, dir string) {
	t.Helper()
	e := open(t, durabletest.Place(t, dir), func(o *engine.Options) { o.Executor = false })
	runs, err := e.Runs(t.Context(), engine.RunFilter{})
	if err != nil || len(runs) != 1 {
		t.Fatalf("Runs = %d runs, %v, want 1", len(runs), err)
	}
	events, err := e.Events(t.Context(), runs[0].ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string]int)
	for i, ev := range events {
		if ev.N != int64(i) {
			t.Errorf("event %d has number %d", i, ev.N)
		}
		if ev.Settles() || ev.Type == engine.NodeStarted || ev.Terminal() || ev.Type == engine.GatePaused || ev.Type == engine.GateResumed {
			said[ev.Type+" "+ev.Node+ev.Gate]++
		}
	}
	for what, n := range said {
		if n != 1 {
			t.Errorf("%s was said %d times: %s", what, n, brief(events))
		}
	}
}
