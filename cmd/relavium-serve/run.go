package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// drainGrace bounds how long a cancelled run may take to end.
const drainGrace = 10 * time.Second

type runFlags struct {
	inputs  []string
	folders []string
	resume  string
	asJSON  bool
}

func (a *app) runCommand() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run ID|PATH | run --resume RUN",
		Short: "Run one workflow here, live",
		Example: "  relavium-serve run release-notes --input version=1.4.0\n" +
			"  relavium-serve run deploy.relavium.yaml --json\n" +
			"  relavium-serve run --resume 3f0c5d1e-8f7a-4a55-9d0e-7c1b2a3d4e5f",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			switch {
			case err != nil:
				return err
			case (len(args) == 1) == (flags.resume != ""):
				return invalid("relavium-serve run --help", "run needs either a workflow or --resume RUN")
			case flags.resume != "" && len(flags.inputs) > 0:
				return invalid("", "a resumed run keeps the inputs it started with: --input does not go with --resume")
			case flags.resume != "":
				return a.resumeRun(cmd.Context(), at, &flags)
			}
			return a.startRun(cmd.Context(), at, args[0], &flags)
		},
	}
	cmd.Flags().StringArrayVar(&flags.inputs, "input", nil, "an input as name=value (repeatable)")
	cmd.Flags().StringVar(&flags.resume, "resume", "", "continue this run, or follow it where it is executed")
	cmd.Flags().BoolVar(&flags.asJSON, "json", false, "print the events as NDJSON, the terminal one last")
	workflowFlag(cmd, &flags.folders)
	return cmd
}

func (a *app) startRun(ctx context.Context, at *site, name string, flags *runFlags) error {
	loaded, err := at.find(name, flags.folders)
	if err != nil {
		return err
	}
	inputs, err := a.inputsOf(loaded.Workflow, flags.inputs)
	if err != nil {
		return err
	}
	project := at.projectOf(loaded.Root)
	eng, err := a.openStore(ctx, at, true, project.Key)
	if err != nil {
		return err
	}
	started, err := eng.Start(ctx, engine.StartRequest{
		Workflow:  loaded.Workflow,
		Project:   project,
		Principal: engine.Local,
		Arguments: inputs,
		Variables: at.Variables,
		Source:    "cli",
		Client:    "relavium-serve run",
	})
	var refused *engine.RunError
	if errors.As(err, &refused) && refused.Code == engine.CodeValidation {
		err = &fault{code: exitFault, err: err}
	}
	if err == nil {
		f := &follower{app: a, site: at, eng: eng, run: started.Run, workflow: loaded.Workflow, asJSON: flags.asJSON}
		err = f.follow(ctx, engine.Local)
	}
	return closeStore(ctx, eng, err)
}

// inputsOf reads the inputs of a command line.
func (a *app) inputsOf(w *workflows.Workflow, pairs []string) (json.RawMessage, error) {
	for _, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		secret := func(input workflows.Input) bool { return input.Name == name && input.Type == workflows.TypeSecret }
		if slices.ContainsFunc(w.Inputs, secret) {
			return nil, invalid("set "+w.SecretEnv(name)+" or "+w.SecretEnv(name)+"_FILE",
				"input %q is a secret: it is not taken from the command line, where others can read it", name)
		}
	}
	args, err := w.CoerceInputs(pairs)
	if err != nil {
		return nil, inputFault(w, err)
	}
	inputs, err := w.ResolveInputs(args)
	if err != nil {
		return nil, inputFault(w, err)
	}
	return inputs, a.secretsSupplied(w)
}

func inputFault(w *workflows.Workflow, err error) error {
	declared := make([]string, len(w.Inputs))
	for i := range w.Inputs {
		declared[i] = w.Inputs[i].Name + " (" + w.Inputs[i].Type + ")"
	}
	hint := "workflow " + w.ID + " takes no inputs"
	if len(declared) > 0 {
		hint = "inputs of " + w.ID + ": " + strings.Join(declared, ", ")
	}
	return &fault{code: exitFault, err: err, hint: hint}
}

// resumeRun executes a run here, by the configuration of its own project, or
// follows it where another process executes it.
func (a *app) resumeRun(ctx context.Context, at *site, flags *runFlags) error {
	id := flags.resume
	var found *engine.Run
	err := a.withStore(ctx, at, func(eng *engine.Engine) (err error) {
		found, err = eng.Run(ctx, id, "")
		return err
	})
	if err != nil {
		return runFault(id, err)
	}
	if at, err = a.siteOf(at, found); err != nil {
		return err
	}
	eng, err := a.openStore(ctx, at, true, found.Project)
	if err != nil {
		return err
	}
	w, err := eng.Definition(ctx, id)
	if err == nil {
		f := &follower{app: a, site: at, eng: eng, run: id, workflow: w, asJSON: flags.asJSON}
		err = f.follow(ctx, found.Principal)
	}
	return closeStore(ctx, eng, err)
}

// siteOf is the site with the settings of the project that a run belongs to, so
// that its rules hold wherever the command is typed.
func (a *app) siteOf(at *site, r *engine.Run) (*site, error) {
	if r.Root == "" || r.Root == at.root {
		return at, nil
	}
	merged, err := a.loadSettings(at.place, a.config, r.Root)
	if err != nil {
		return nil, err
	}
	own := *at
	own.settings, own.root = merged, r.Root
	return &own, nil
}

func runFault(id string, err error) error {
	if errors.Is(err, engine.ErrRunNotFound) {
		return invalid("relavium-serve runs list", "no run %q in this store", oneLine(id, 80))
	}
	return err
}

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
			f.asker = &asker{w: w, now: time.Now, decide: f.decider(ctx)}
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
				return silent(exitWaiting)
			}
			f.asker.answer(line)
			f.view.paused = f.asker.asking()
		case <-interrupted:
			interrupted = nil
			timer := time.NewTimer(drainGrace)
			defer timer.Stop()
			drained = timer.C
			if err := f.eng.Cancel(context.WithoutCancel(ctx), f.run, string(engine.Local), "interrupted"); err != nil {
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
			f.view.leave(true)
			f.asker.open(gate)
		}
	case ev.Type == engine.GateResumed && f.asker != nil:
		f.asker.closed(ev.Gate, ev.Decision, ev.DecidedBy, ev.Via)
		f.view.paused = f.asker.asking()
	case ev.Type == engine.RunPaused && f.asker == nil && ctx.Err() == nil:
		waits, err := f.stillPaused(ctx, ev)
		if err != nil || !waits {
			return false, err
		}
		return true, silent(exitWaiting)
	}
	return false, nil
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
	return decisionRefused(f.settings, f.workflow.ID, requester, engine.ViaCLI) == nil
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
	if several {
		command += " --gate " + gate.ID
	}
	return command
}
