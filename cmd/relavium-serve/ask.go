package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// lines are the lines of the standard input. One goroutine reads them for the
// rest of the process, because a read of a terminal cannot be called off; the
// channel closes at the end of the input.
func (a *app) lines() <-chan string {
	a.reading.Do(func() {
		lines := make(chan string)
		a.readLine = lines
		go func() {
			defer close(lines)
			scanner := bufio.NewScanner(a.stdin)
			scanner.Buffer(nil, 1<<20)
			for scanner.Scan() {
				lines <- scanner.Text()
			}
		}()
	})
	return a.readLine
}

// typed is the standard input for whoever asks one question: the next line of it.
type typed struct {
	ctx  context.Context //nolint:containedctx // of the one question, which Read cannot be given
	a    *app
	line []byte
	done bool
}

func (t *typed) Read(p []byte) (int, error) {
	if !t.done {
		t.done = true
		if line, ok := t.a.ask(t.ctx, io.Discard, ""); ok {
			t.line = []byte(line + "\n")
		}
	}
	if len(t.line) == 0 {
		return 0, io.EOF
	}
	n := copy(p, t.line)
	t.line = t.line[n:]
	return n, nil
}

// ask writes a question and waits for a line; false means the end of the input or of ctx.
func (a *app) ask(ctx context.Context, w io.Writer, question string) (string, bool) {
	_, _ = io.WriteString(w, question)
	select {
	case <-ctx.Done():
		return "", false
	case line, ok := <-a.lines():
		return strings.TrimSpace(line), ok
	}
}

// showGate writes what a person needs to know to decide a gate.
func showGate(w io.Writer, gate *engine.Gate, now time.Time) {
	_, _ = fmt.Fprintf(w, "\ngate %s of %s waits for %s\n", gate.Node, gate.Workflow, waitsFor(gate))
	for line := range strings.Lines(plain(gate.Message)) {
		_, _ = fmt.Fprintf(w, "  | %s\n", strings.TrimRight(line, "\n"))
	}
	if gate.Assignee != "" {
		_, _ = fmt.Fprintf(w, "  for: %s\n", oneLine(gate.Assignee, 200))
	}
	if !gate.Expires.IsZero() {
		_, _ = fmt.Fprintf(w, "  expires: %s (in %s)\n", gate.Expires.Local().Format(time.DateTime), shortDuration(gate.Expires.Sub(now)))
	}
	_, _ = fmt.Fprintf(w, "  gate id: %s\n", gate.ID)
}

// waitsFor says what kind of answer a gate needs.
func waitsFor(gate *engine.Gate) string {
	switch {
	case gate.Reason != "":
		return gate.Type + " (" + gate.Reason + ")"
	case gate.Type == "input":
		return "a value"
	}
	return gate.Type
}

// tail is the part of a gate's id that a person types to confirm a decision.
func tail(gate string) string { return gate[max(0, len(gate)-4):] }

// payloadOf reads a value as JSON if it parses, else as the text itself.
func payloadOf(text string) json.RawMessage {
	if value, err := workflows.Compact(json.RawMessage(text)); err == nil {
		return value
	}
	value, err := json.Marshal(strings.ToValidUTF8(text, "\uFFFD"))
	if err != nil {
		return json.RawMessage("null")
	}
	return value
}

// An asker asks for the decisions of the open gates of one run, oldest first, one
// line at a time, while the run goes on around it.
type asker struct {
	w      io.Writer
	now    func() time.Time
	decide func(gate string, d engine.Decision) error
	before func() // called before a question is written

	queue []engine.Gate
	draft *engine.Decision // decided but not confirmed
}

// open puts a gate in the queue and shows it if it is the first.
func (q *asker) open(gate engine.Gate) {
	for i := range q.queue {
		if q.queue[i].ID == gate.ID {
			return
		}
	}
	q.queue = append(q.queue, gate)
	if len(q.queue) == 1 {
		q.show()
	}
}

// closed takes a gate out of the queue that was decided elsewhere.
func (q *asker) closed(gate, decision, by, via string) {
	for i := range q.queue {
		if q.queue[i].ID != gate {
			continue
		}
		_, _ = fmt.Fprintf(q.w, "\ngate %s is decided: %s by %s via %s\n", q.queue[i].Node, decision, oneLine(by, 80), via)
		q.queue = append(q.queue[:i], q.queue[i+1:]...)
		if i == 0 {
			q.draft = nil
			q.show()
		}
		return
	}
}

// asking reports whether a question stands on the screen.
func (q *asker) asking() bool { return len(q.queue) > 0 }

func (q *asker) show() {
	if len(q.queue) == 0 {
		return
	}
	q.before()
	showGate(q.w, &q.queue[0], q.now())
	q.prompt()
}

func (q *asker) prompt() {
	switch {
	case q.draft != nil:
		_, _ = io.WriteString(q.w, "last four characters of the gate id: ")
	case q.queue[0].Type == "input":
		_, _ = io.WriteString(q.w, "value: ")
	default:
		_, _ = io.WriteString(q.w, "approve or reject, then a comment if you like: ")
	}
}

// answer takes one line.
func (q *asker) answer(line string) {
	if len(q.queue) == 0 {
		return
	}
	gate := q.queue[0]
	if q.draft == nil {
		if q.draft = draftOf(&gate, line); q.draft == nil && strings.TrimSpace(line) != "" && gate.Type != "input" {
			_, _ = io.WriteString(q.w, "the line begins with neither approve nor reject\n")
		}
		q.prompt()
		return
	}
	draft := *q.draft
	q.draft = nil
	if !strings.EqualFold(strings.TrimSpace(line), tail(gate.ID)) {
		_, _ = io.WriteString(q.w, "that is another id: nothing is decided\n")
		q.prompt()
		return
	}
	q.queue = q.queue[1:]
	if err := q.decide(gate.ID, draft); err != nil {
		_, _ = fmt.Fprintf(q.w, "%s\n", plain(err.Error()))
	}
	q.show()
}

// draftOf reads a decision, or is nil if the line is none.
func draftOf(gate *engine.Gate, line string) *engine.Decision {
	if gate.Type == "input" {
		if strings.TrimSpace(line) == "" {
			return nil
		}
		return &engine.Decision{Decision: engine.InputProvided, Payload: payloadOf(line)}
	}
	word, comment, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch strings.ToLower(word) {
	case "approve", "approved":
		return &engine.Decision{Decision: engine.Approved, Comment: strings.TrimSpace(comment)}
	case "reject", "rejected":
		return &engine.Decision{Decision: engine.Rejected, Comment: strings.TrimSpace(comment)}
	}
	return nil
}

// shortDuration writes a duration for people: the two greatest units.
func shortDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}
