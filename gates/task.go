package gates

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// againKey follows a gate's id in the key of its second question, since a key is
// never used twice in the life of a task.
const againKey = ".2"

// A Task is a run as a client polls it by the tasks extension: its gates are
// shown to the client, which brings the person's answers when it has them. How
// the questions stand is kept in the run store, so that any process may be asked.
type Task struct {
	call *Call
}

// Task is for one request about a run of the client's own.
func (l *Ladder) Task(c Client, p Policy, run string) *Task {
	return &Task{call: l.Begin(c, p, run, func(string) {})}
}

// Requests shows the gates that the client's person may answer now, by key; nil
// means that there are none. From the first time that a question is shown on it
// counts how long a person takes.
func (t *Task) Requests(ctx context.Context) (mcp.InputRequests, error) {
	open, err := t.open(ctx)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	c := t.call
	ids := make([]string, len(open))
	for i := range open {
		ids[i] = open[i].ID
	}
	shown, asks, err := c.l.opt.Engine.Show(ctx, c.run, c.l.opt.Now(), ids...)
	if err != nil || !asks {
		return nil, err
	}
	requests := mcp.InputRequests{}
	for i := range open {
		g := &open[i]
		stands, ok := shown[g.ID]
		if !ok { // decided since
			continue
		}
		f := c.form(g, c.rung(g))
		requests[keyOf(g, stands)] = mcp.NewElicitationInputRequest(f.params(c.client.Version, "", c.l.opt.Clean))
	}
	if len(requests) == 0 {
		return nil, nil
	}
	return requests, nil
}

// Answer takes the answers that a client brings, by key. One to a question that
// does not stand, or that was never shown, is ignored. An answer that is none is
// asked for once more; what tells that no person is there ends the asking of this
// task, and the gates wait on for the other ways. The error is the store's.
func (t *Task) Answer(ctx context.Context, responses json.RawMessage) error {
	c := t.call
	received := c.l.opt.Now()
	answers, err := workflows.Members(responses)
	if err != nil || len(answers) == 0 {
		return nil //nolint:nilerr // what is no object answers nothing
	}
	open, err := t.open(ctx)
	if err != nil || len(open) == 0 {
		return err
	}
	shown, asks, err := c.l.opt.Engine.Shown(ctx, c.run)
	if err != nil {
		return err
	}
	byKey := make(map[string]*engine.Gate, len(open))
	for i := range open {
		if stands := shown[open[i].ID]; !stands.Since.IsZero() {
			byKey[keyOf(&open[i], stands)] = &open[i]
		}
	}
	for _, answer := range answers {
		g := byKey[answer.Key]
		if g == nil || !asks {
			c.l.opt.Logger.InfoContext(ctx, "answer to no open question ignored", slog.String("run", c.run))
			continue
		}
		stands := shown[g.ID]
		f := c.form(g, c.rung(g))
		o := f.read(answer.Value, received.Sub(stands.Since), c.policy.MinHuman)
		if _, ok := o.(decided); ok {
			c.settle(ctx, &f, o, stands.Again)
			continue
		}
		_, none := o.(invalid)
		again := none && !stands.Again
		good, err := c.l.opt.Engine.Reshow(ctx, c.run, g.ID, stands, again)
		if err != nil {
			return err
		}
		if good {
			c.settle(ctx, &f, o, stands.Again)
			asks = again
		}
	}
	return nil
}

// open are the gates that the client may be asked about.
func (t *Task) open(ctx context.Context) ([]engine.Gate, error) {
	c := t.call
	if c.client.Capabilities.Elicitation == nil || !c.policy.elicits() {
		return nil, nil
	}
	all, err := c.l.opt.Engine.Gates(ctx, engine.GateFilter{Run: c.run, Open: true, Limit: 1000})
	if err != nil {
		return nil, err
	}
	kept := all[:0]
	for i := range all {
		if g := &all[i]; offered(g, c.client.Principal) && c.rung(g) != noRung {
			kept = append(kept, *g)
		}
	}
	return kept, nil
}

func keyOf(g *engine.Gate, stands engine.Showing) string {
	if stands.Again {
		return g.ID + againKey
	}
	return g.ID
}
