package agent_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/secrets"
	"github.com/relavium/relavium-serve/workflows"
)

// encodings of a secret that a tool or a model may come up with.
func encodings(secret string) map[string]string {
	quoted, _ := json.Marshal(secret)
	return map[string]string{
		"plain": secret, "base64": base64.StdEncoding.EncodeToString([]byte(secret)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(secret)),
		"hex": hex.EncodeToString([]byte(secret)), "url": url.QueryEscape(secret), "html": html.EscapeString(secret),
		"json": strings.Trim(string(quoted), `"`),
	}
}

// A secret that tools and models repeat, in whatever form, is in no event, no log, no
// request to a model, no spilled file, and not in the store.
func TestCanary(t *testing.T) {
	t.Parallel()
	const secret = `canary&<"'>7f/+Q=zz`
	name, err := secrets.ParseName("mcp/canary")
	if err != nil {
		t.Fatal(err)
	}
	forms := encodings(secret)
	var all []string
	for encoding, form := range forms {
		all = append(all, encoding+": "+form)
	}
	leak := strings.Join(all, "\n")
	for _, end := range []string{"answers", "fails", "is wrong"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			var scrubber secrets.Scrubber
			scrubber.Learn(name, secret)
			tells, large, breaks := builtin("t"), builtin("large"), builtin("breaks")
			tells.call = func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
				return workflows.ToolResult{Text: leak, IsError: true}, nil
			}
			large.call = returns(strings.Repeat(leak+"\n", 400))
			breaks.call = faults(workflows.ToolError{Fault: workflows.ToolFailed, Reason: "deadline", Message: leak, Err: errors.New(leak)})
			args, err := json.Marshal(map[string]string{"x": leak})
			if err != nil {
				t.Fatal(err)
			}
			first := step{turn: &agent.Turn{Stop: agent.StopToolUse, Parts: []agent.Part{
				{Reasoning: &agent.Reasoning{Text: leak, Provider: "anthropic", Opaque: args}},
				{Text: leak},
				{Call: new(call("1", "t", string(args)))},
				{Call: new(call("2", "large", `{}`))},
				{Call: new(call("3", secret, string(args)+"{"))},
			}}}
			for i := 0; i < len(leak); i += 5 {
				piece := leak[i:min(i+5, len(leak))]
				first.deltas = append(first.deltas, agent.Delta{Text: piece})
			}
			script := answers([]step{first}, says(leak))
			switch end {
			case "fails":
				script.turns["be terse"][1] = calls(call("4", "breaks", string(args)))
			case "is wrong":
				script.turns["be terse"][1] = []step{{err: &agent.ModelError{Kind: agent.Auth, Provider: "anthropic", Model: "m-one", Message: leak, Err: errors.New(leak)}}}
			}
			dir := t.TempDir()
			var log bytes.Buffer
			events := inEngineAt(t, dir, agent.Options{
				Models: script, Builtin: &host{tools: []tool{tells, large, breaks}}, Scrub: scrubber.String,
				ScrubStream: func() func(string, bool) string { return scrubber.Stream().Piece },
				Spill: func(_, name string, content []byte) (string, error) {
					return name, os.WriteFile(filepath.Join(dir, name), content, 0o600)
				},
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			}, parse(t, agentOf("t, large, breaks", "", "")), nil)
			places := map[string]string{"log": log.String()}
			for i, ev := range events {
				raw, err := json.Marshal(ev)
				if err != nil {
					t.Fatal(err)
				}
				places[fmt.Sprintf("event %d %s", i, ev.Type)] = string(raw) + ev.Token + ev.Text + ev.Summary
			}
			var streamed string
			for _, ev := range events {
				streamed += ev.Token
			}
			places["stream"] = streamed
			for i, req := range script.requests {
				var b strings.Builder
				for _, m := range req.Messages {
					for _, p := range m.Parts {
						b.WriteString(p.Text)
						if p.Reasoning != nil {
							b.WriteString(p.Reasoning.Text + string(p.Reasoning.Opaque))
						}
						if p.Call != nil {
							b.WriteString(p.Call.Name + string(p.Call.Arguments))
						}
						if p.Result != nil {
							b.WriteString(p.Result.Name + p.Result.Text)
						}
					}
				}
				places[fmt.Sprint("request ", i)] = b.String()
			}
			files := 0
			err = filepath.WalkDir(dir, func(path string, f fs.DirEntry, err error) error {
				if err != nil || f.IsDir() {
					return err
				}
				files++
				raw, err := os.ReadFile(path)
				places["file "+f.Name()] = string(raw)
				return err
			})
			want := 2
			if place := durabletest.Place(t, dir); durable.Remote(place) {
				want = 1
				maps.Copy(places, tables(t, place))
			}
			if err != nil || files < want {
				t.Errorf("%d files, %v; want the store and what was spilled", files, err)
			}
			for place, text := range places {
				for name, form := range forms {
					if strings.Contains(text, form) {
						i := strings.Index(text, form)
						t.Errorf("%s holds the secret, %s: …%q…", place, name, text[max(0, i-80):i])
					}
				}
			}
		})
	}
}

// inEngineAt is inEngine with the store in dir, which it leaves.
func inEngineAt(t *testing.T, dir string, opt agent.Options, w *workflows.Workflow, decide func(engine.Event) engine.Decision) []engine.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := engine.Open(ctx, engine.Options{
		Path: durabletest.Place(t, dir), Executor: true, Projects: []string{"p"}, Agent: agent.New(opt), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	}()
	a, err := start(ctx, e, w, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var out []engine.Event
	for {
		ev, err := a.Next(ctx)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("Next after %d events: %v", len(out), err)
		}
		out = append(out, ev)
		if ev.Type == engine.GatePaused {
			if _, err := e.Decide(ctx, ev.Gate, decide(ev)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// tables is what a database holds, as text, by table.
func tables(t *testing.T, place string) map[string]string {
	t.Helper()
	db, out := durabletest.Open(t, place), make(map[string]string)
	for _, name := range []string{"runs", "definitions", "gates", "events", "effects", "audit", "workflow_status", "operation_outputs"} {
		var text sql.NullString
		if err := db.QueryRowContext(t.Context(), `select string_agg(cast(x as text), ' ') from `+name+` x`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		out["table "+name] = text.String
	}
	if out["table events"] == "" {
		t.Error("no event is in the database")
	}
	return out
}
