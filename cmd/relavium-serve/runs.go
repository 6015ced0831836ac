package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
)

func (a *app) runsCommand() *cobra.Command {
	return group("runs", "List, show and cancel runs",
		"  relavium-serve runs list --state waiting\n  relavium-serve runs show RUN",
		a.runsListCommand(), a.runsShowCommand(), a.runsCancelCommand(), a.runsEventsCommand())
}

func (a *app) runsListCommand() *cobra.Command {
	var filter engine.RunFilter
	var states []string
	var here, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List runs, newest first",
		Example: "  relavium-serve runs list --workflow deploy --state waiting --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			if filter.States, err = statesOf(states); err != nil {
				return err
			}
			if filter.Limit < 1 || filter.Limit > 1000 {
				return invalid("", "--limit: expected 1 to 1000")
			}
			if filter.Project, err = at.hereKey(here); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
				if filter.Before != "" {
					if _, err := eng.Run(cmd.Context(), filter.Before, ""); err != nil {
						return runFault(filter.Before, err)
					}
				}
				runs, err := eng.Runs(cmd.Context(), filter)
				if err != nil {
					return err
				}
				return a.printRuns(runs, asJSON)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&filter.Workflow, "workflow", "", "only runs of this workflow")
	flags.StringSliceVar(&states, "state", nil, "only runs in these states")
	flags.BoolVar(&here, "here", false, "only runs of this project")
	flags.StringVar(&filter.Before, "before", "", "page on from this run")
	flags.IntVar(&filter.Limit, "limit", 50, "at most this many, up to 1000")
	flags.BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

// hereKey is the key of the project of the working directory, if it is asked for.
func (at *site) hereKey(here bool) (string, error) {
	if !here {
		return "", nil
	}
	if at.root == "" {
		return "", invalid("", "--here: no project here: no folder from the working directory up holds .relavium/")
	}
	return at.projectOf(at.root).Key, nil
}

func statesOf(words []string) ([]engine.State, error) {
	known := []engine.State{
		engine.Running, engine.Waiting, engine.Completed, engine.Failed, engine.Cancelled, engine.Blocked, engine.Parked,
	}
	var states []engine.State
	for _, word := range words {
		state := engine.State(strings.TrimSpace(word))
		if !slices.Contains(known, state) {
			return nil, invalid("", "--state: expected one of running, waiting, completed, failed, cancelled, blocked, parked")
		}
		states = append(states, state)
	}
	return states, nil
}

func (a *app) printRuns(runs []engine.Run, asJSON bool) error {
	if asJSON {
		if runs == nil {
			runs = []engine.Run{}
		}
		return a.json(runs)
	}
	rows := make([][]string, len(runs))
	for i := range runs {
		r := &runs[i]
		rows[i] = []string{r.ID, r.Workflow, string(r.State), r.Created.UTC().Format(time.RFC3339), took(r), oneLine(r.Client, 40), oneLine(r.Reason, 80)}
	}
	return a.table([]string{"RUN", "WORKFLOW", "STATE", "STARTED", "TOOK", "BY", "REASON"}, rows)
}

func took(r *engine.Run) string {
	if r.Ended.IsZero() {
		return "-"
	}
	return shortDuration(r.Ended.Sub(r.Created))
}

func (a *app) runsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show RUN",
		Short:   "Show one run with its nodes",
		Example: "  relavium-serve runs show 3f0c5d1e-8f7a-4a55-9d0e-7c1b2a3d4e5f",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRun(cmd, args[0], func(_ *engine.Engine, r *engine.Run) error {
				if asJSON {
					return a.json(r)
				}
				return a.printRun(r)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// withRun opens the store for the length of one command about one run.
func (a *app) withRun(cmd *cobra.Command, id string, use func(*engine.Engine, *engine.Run) error) error {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
		r, err := eng.Run(cmd.Context(), id, "")
		if err != nil {
			return runFault(id, err)
		}
		return use(eng, r)
	})
}

func (a *app) printRun(r *engine.Run) error {
	var b strings.Builder
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-10s %s\n", name, oneLine(value, 2000))
		}
	}
	field("run", r.ID)
	field("workflow", r.Workflow)
	field("state", string(r.State))
	field("reason", r.Reason)
	field("started", r.Created.Local().Format(time.DateTime))
	if !r.Ended.IsZero() {
		field("ended", r.Ended.Local().Format(time.DateTime)+" (took "+took(r)+")")
	}
	if !r.Deadline.IsZero() && !r.State.Terminal() {
		field("deadline", r.Deadline.Local().Format(time.DateTime))
	}
	field("principal", string(r.Principal))
	field("by", r.Source+" "+r.Client)
	field("definition", r.Digest)
	field("inputs", string(r.Inputs))
	if r.Error != nil {
		field("error", r.Error.Error())
	}
	field("outputs", string(r.Outputs))
	for i := range r.Nodes {
		node := &r.Nodes[i]
		line := fmt.Sprintf("  %s (%s) %s", node.ID, node.Type, node.State)
		if node.Reason != "" {
			line += "  " + node.Reason
		}
		b.WriteString("  " + oneLine(line, 400) + "\n")
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

func (a *app) runsEventsCommand() *cobra.Command {
	var asJSON bool
	var from int64
	cmd := &cobra.Command{
		Use:     "events RUN",
		Short:   "Print the stored events of a run",
		Example: "  relavium-serve runs events 3f0c5d1e-8f7a-4a55-9d0e-7c1b2a3d4e5f --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRun(cmd, args[0], func(eng *engine.Engine, r *engine.Run) error {
				if from < 0 {
					return invalid("", "--from: expected 0 or more")
				}
				events, err := eng.Events(cmd.Context(), r.ID, from)
				if err != nil {
					return err
				}
				if asJSON {
					if events == nil {
						events = []engine.Event{}
					}
					return a.json(events)
				}
				return a.printEvents(events)
			})
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "begin at this sequence number")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func (a *app) printEvents(events []engine.Event) error {
	rows := make([][]string, len(events))
	for i := range events {
		ev := &events[i]
		note := ""
		switch {
		case ev.Error != nil:
			note = ev.Error.Error()
		case ev.Decision != "":
			note = ev.Decision + " by " + ev.DecidedBy + " via " + ev.Via
		case ev.Message != "":
			note = ev.Message
		case ev.Reason != "":
			note = ev.Reason
		}
		rows[i] = []string{fmt.Sprint(ev.N), ev.Time.UTC().Format(time.RFC3339Nano), ev.Type, ev.Node, oneLine(note, 200)}
	}
	return a.table([]string{"N", "TIME", "EVENT", "NODE", "NOTE"}, rows)
}

func (a *app) runsCancelCommand() *cobra.Command {
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:     "cancel RUN",
		Short:   "Cancel a run",
		Example: "  relavium-serve runs cancel 3f0c5d1e-8f7a-4a55-9d0e-7c1b2a3d4e5f --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withRun(cmd, args[0], func(eng *engine.Engine, r *engine.Run) error {
				return a.cancelRun(cmd.Context(), eng, r, yes, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask; needed off a terminal")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (a *app) cancelRun(ctx context.Context, eng *engine.Engine, r *engine.Run, yes, asJSON bool) error {
	if r.State.Terminal() {
		return a.said(asJSON, r, "run %s has ended already: %s", r.ID, r.State)
	}
	via := engine.ViaCLINonInteractive
	if w, done, ok := a.screen(); ok {
		defer done()
		via = engine.ViaCLI
		if !yes {
			word, ok := a.ask(ctx, w, fmt.Sprintf("cancel run %s of %s? yes or no: ", r.ID, r.Workflow))
			if !ok || !strings.EqualFold(word, "yes") {
				return &fault{code: exitFailed, err: fmt.Errorf("run %s was left alone", r.ID)}
			}
		}
	} else if !yes {
		return invalid("relavium-serve runs cancel "+r.ID+" --yes", "off a terminal a run is cancelled only with --yes")
	}
	if err := eng.Cancel(ctx, r.ID, string(engine.Local), via, "cancelled via "+via); err != nil {
		return runFault(r.ID, err)
	}
	now, err := eng.Run(ctx, r.ID, "")
	if err != nil {
		return err
	}
	if now.State.Terminal() {
		return a.said(asJSON, now, "run %s has ended: %s", r.ID, now.State)
	}
	if err := a.said(asJSON, now, "run %s is asked to end", r.ID); err != nil {
		return err
	}
	return a.sayWhoContinues(ctx, eng, r)
}

// said ends a command that changes something: the thing as JSON on the standard
// output, or a sentence on the standard error.
func (a *app) said(asJSON bool, thing any, format string, args ...any) error {
	if asJSON {
		return a.json(thing)
	}
	_, err := fmt.Fprintf(a.stderr, format+"\n", args...)
	return err
}
