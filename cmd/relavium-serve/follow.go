package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// drainGrace bounds how long a cancelled run may take to end.
const drainGrace = 10 * time.Second

// A follower shows one run until it ends, waits for a person who is not here, or
// is cancelled by a signal.
type follower struct {
	*app
	*site
	eng      *engine.Engine
	run      string
	workflow *workflows.Workflow
	asJSON   bool

	sink  sink
	view  *view  // nil with asJSON
	asker *asker // nil off a terminal
}

func (f *follower) follow(ctx context.Context, p engine.Principal) error {
	attached, err := f.eng.Attach(ctx, f.run, p)
	if err != nil {
		return runFault(f.run, err)
	}
	if f.asJSON {
		f.sink = eventLines{f.stdout}
	} else {
		f.view = f.newView(f.workflow)
		f.sink = f.view
		if w, done, ok := f.screen(); ok && f.personAccepted(p) {
			defer done()
			f.asker = &asker{w: w, now: time.Now, decide: f.decider(ctx), before: func() { _ = f.view.leave() }}
		}
	}
	waitCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	events := make(chan engine.Event)
	ended := make(chan error, 1)
	go func() { ended <- pump(waitCtx, attached, events) }()
	err = f.watch(ctx, events, ended)
	stop()
	for range events {
		continue // so that the pump can end
	}
	var waiting silent
	if errors.As(err, &waiting) && int(waiting) == exitWaiting {
		err = f.waitingFault(ctx)
	}
	return errors.Join(err, attached.Detach(context.WithoutCancel(ctx), ""))
}

// pump hands the events on and closes the channel.
func pump(ctx context.Context, attached *engine.Attachment, events chan<- engine.Event) error {
	defer close(events)
	for {
		ev, err := attached.Next(ctx)
		if err != nil {
			return err
		}
		select {
		case events <- ev:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watch is the one loop of a follower: events, lines of the person, signals.
func (f *follower) watch(ctx context.Context, events <-chan engine.Event, ended <-chan error) error {
	interrupted := ctx.Done()
	var drained <-chan time.Time
	for {
		var lines <-chan string
		if f.asker != nil && f.asker.asking() {
			lines = f.lines()
		}
		select {
		case ev, ok := <-events:
			if !ok {
				return f.broken(<-ended)
			}
			if done, err := f.event(ctx, &ev); done || err != nil {
				return err
			}
		case line, ok := <-lines:
			if !ok {
				return errors.Join(silent(exitWaiting), f.view.resume())
			}
			f.asker.answer(line)
			if err := f.answered(); err != nil {
				return err
			}
		case <-interrupted:
			interrupted = nil
			timer := time.NewTimer(drainGrace)
			defer timer.Stop()
			drained = timer.C
			if err := f.eng.Cancel(context.WithoutCancel(ctx), f.run, string(engine.Local), engine.ViaCLI, "interrupted"); err != nil {
				return err
			}
		case <-drained:
			return invalidRun(f.run, "was asked to cancel and has not ended yet")
		}
	}
}

func invalidRun(run, what string) error {
	return &fault{code: exitFailed, err: fmt.Errorf("run %s %s", run, what), hint: "relavium-serve runs show " + run}
}

func (f *follower) broken(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("run %s: %w", f.run, err)
}

// event shows one event; done means that there is nothing more to wait for.
func (f *follower) event(ctx context.Context, ev *engine.Event) (done bool, err error) {
	if err := f.sink.show(ev); err != nil {
		return true, err
	}
	switch {
	case ev.Terminal():
		return true, f.outcome(ev)
	case ev.Type == engine.GatePaused && f.asker != nil:
		gate, err := f.eng.Gate(ctx, ev.Gate)
		if err == nil && gate.Decision == "" {
			f.asker.open(gate)
		}
	case ev.Type == engine.GateResumed && f.asker != nil:
		f.asker.closed(ev.Gate, ev.Decision, ev.DecidedBy, ev.Via)
		return false, f.answered()
	case ev.Type == engine.RunPaused && f.asker == nil && ctx.Err() == nil:
		waits, err := f.stillPaused(ctx, ev)
		if err != nil || !waits {
			return false, err
		}
		return true, silent(exitWaiting)
	}
	return false, nil
}

// answered lets the view go on where no question is left on the screen.
func (f *follower) answered() error {
	if f.asker.asking() {
		return nil
	}
	return f.view.resume()
}

// stillPaused tells a pause that stands from one of the run's history.
func (f *follower) stillPaused(ctx context.Context, ev *engine.Event) (bool, error) {
	open, err := f.eng.Gates(ctx, engine.GateFilter{Run: f.run, Open: true})
	if err != nil {
		return false, err
	}
	waits := func(id string) bool {
		return slices.ContainsFunc(open, func(gate engine.Gate) bool { return gate.ID == id })
	}
	for _, id := range ev.GateIDs {
		if !waits(id) {
			return false, nil
		}
	}
	return len(open) > 0, nil
}

// outcome prints what came of the run and picks the exit code.
func (f *follower) outcome(ev *engine.Event) error {
	if f.asJSON {
		if ev.Type == engine.RunCompleted {
			return nil
		}
		return silent(exitFailed)
	}
	switch ev.Type {
	case engine.RunCompleted:
		return f.printOutputs(ev.Outputs)
	case engine.RunCancelled:
		return &fault{code: exitFailed, err: fmt.Errorf("run %s was cancelled", f.run)}
	}
	if ev.Error == nil {
		return invalidRun(f.run, "failed")
	}
	return &fault{code: exitFailed, err: fmt.Errorf("run %s failed: %w", f.run, ev.Error), hint: "relavium-serve runs show " + f.run}
}

// printOutputs prints a lone text as it is, anything else as JSON.
func (f *follower) printOutputs(outputs json.RawMessage) error {
	members, err := workflows.Members(outputs)
	if err != nil || len(members) == 0 {
		return nil //nolint:nilerr // a run without outputs prints nothing
	}
	var text string
	if len(members) == 1 && json.Unmarshal(members[0].Value, &text) == nil {
		if isTerminal(f.stdout) {
			text = plain(text)
		}
		_, err = io.WriteString(f.stdout, strings.TrimSuffix(text, "\n")+"\n")
		return err
	}
	return f.json(outputs)
}

// personAccepted reports whether a person at this terminal may decide gates of
// the run.
func (f *follower) personAccepted(requester engine.Principal) bool {
	return decisionRefused(f.settings, f.workflow.ID, requester == engine.Local, engine.ViaCLI) == nil
}

func (f *follower) decider(ctx context.Context) func(string, engine.Decision) error {
	return func(gate string, d engine.Decision) error {
		d.By, d.Via = string(engine.Local), engine.ViaCLI
		_, err := f.eng.Decide(ctx, gate, d)
		if late, ok := errors.AsType[*engine.DecidedError](err); ok {
			return decidedFault(&late.Gate)
		}
		return err
	}
}

// waitingFault names the gates that the run waits at and the commands that decide them.
func (f *follower) waitingFault(ctx context.Context) error {
	open, err := f.eng.Gates(context.WithoutCancel(ctx), engine.GateFilter{Run: f.run, Open: true})
	if err != nil {
		return err
	}
	var said, hints []string
	for i := range open {
		said = append(said, fmt.Sprintf("run %s waits for a person at gate %q: %s", f.run, open[i].Node, oneLine(open[i].Message, 200)))
		hints = append(hints, gateCommand(&open[i], len(open) > 1))
	}
	hints = append(hints, "relavium-serve run --resume "+f.run)
	return &fault{code: exitWaiting, err: errors.New(strings.Join(said, "\n")), hint: strings.Join(hints, ", then ")}
}

// gateCommand is the command that decides a gate.
func gateCommand(gate *engine.Gate, several bool) string {
	command := "relavium-serve gate approve " + gate.Run
	if gate.Type == "input" {
		command = "relavium-serve gate answer " + gate.Run + " --value TEXT"
	}
	if gate.Reason == engine.ReasonUnknown {
		command = "relavium-serve gate answer " + gate.Run + " --value repeat|skip|fail"
	}
	if several {
		command += " --gate " + gate.ID
	}
	return command
}
