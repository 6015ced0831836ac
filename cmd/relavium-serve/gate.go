package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
)

func (a *app) gateCommand() *cobra.Command {
	return group("gate", "List, show and decide the gates where runs wait for a person",
		"  relavium-serve gate list\n  relavium-serve gate approve RUN --comment \"looks right\"",
		a.gateListCommand(), a.gateShowCommand(),
		a.decideCommand("approve", "Approve the gate where a run waits", engine.Approved),
		a.decideCommand("reject", "Reject the gate where a run waits", engine.Rejected),
		a.decideCommand("answer", "Give the value that an input gate asks for", engine.InputProvided))
}

func (a *app) gateListCommand() *cobra.Command {
	var filter engine.GateFilter
	var here, all, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the gates that wait, oldest first",
		Example: "  relavium-serve gate list --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			if filter.Project, err = at.hereKey(here); err != nil {
				return err
			}
			if filter.Limit < 1 || filter.Limit > 1000 {
				return invalid("", "--limit: expected 1 to 1000")
			}
			filter.Open = !all
			return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
				gates, err := eng.Gates(cmd.Context(), filter)
				if err != nil {
					return err
				}
				return a.printGates(gates, asJSON)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&filter.Run, "run", "", "only gates of this run")
	flags.BoolVar(&here, "here", false, "only gates of this project")
	flags.BoolVar(&all, "all", false, "decided gates too")
	flags.IntVar(&filter.Limit, "limit", 200, "at most this many, up to 1000")
	flags.BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func (a *app) printGates(gates []engine.Gate, asJSON bool) error {
	if asJSON {
		if gates == nil {
			gates = []engine.Gate{}
		}
		return a.json(gates)
	}
	rows := make([][]string, len(gates))
	for i := range gates {
		g := &gates[i]
		expires, decision := "-", "-"
		if !g.Expires.IsZero() {
			expires = g.Expires.UTC().Format(time.RFC3339)
		}
		if g.Decision != "" {
			decision = g.Decision
		}
		rows[i] = []string{g.Run, g.ID, g.Workflow, g.Node, waitsFor(g), expires, decision, oneLine(g.Message, 100)}
	}
	return a.table([]string{"RUN", "GATE", "WORKFLOW", "NODE", "WAITS FOR", "EXPIRES", "DECISION", "MESSAGE"}, rows)
}

func (a *app) gateShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show GATE",
		Short:   "Show one gate",
		Example: "  relavium-serve gate show 7b1de0c2-41aa-4f5b-8a5e-2d3c4b5a6978",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
				gate, err := eng.Gate(cmd.Context(), args[0])
				if err != nil {
					return gateFault(args[0], err)
				}
				if asJSON {
					return a.json(gate)
				}
				return a.printGate(&gate)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (a *app) printGate(gate *engine.Gate) error {
	var b strings.Builder
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-10s %s\n", name, oneLine(value, 4000))
		}
	}
	field("gate", gate.ID)
	field("run", gate.Run)
	field("workflow", gate.Workflow)
	field("node", gate.Node)
	field("waits for", waitsFor(gate))
	field("for", gate.Assignee)
	field("opened", gate.Opened.Local().Format(time.DateTime))
	if !gate.Expires.IsZero() {
		field("expires", gate.Expires.Local().Format(time.DateTime))
	}
	if gate.Decision != "" {
		field("decision", standing(gate))
		field("comment", gate.Comment)
		field("payload", string(gate.Payload))
	}
	for line := range strings.Lines(plain(gate.Message)) {
		b.WriteString("  | " + strings.TrimRight(line, "\n") + "\n")
	}
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

// standing says how a gate was decided.
func standing(gate *engine.Gate) string {
	return fmt.Sprintf("%s by %s via %s at %s", gate.Decision, gate.DecidedBy, gate.Via, gate.Decided.Local().Format(time.DateTime))
}

func gateFault(id string, err error) error {
	if errors.Is(err, engine.ErrGateNotFound) {
		return invalid("relavium-serve gate list", "no gate %q in this store", oneLine(id, 80))
	}
	return err
}

// A verdict is a decision as the command line gives it.
type verdict struct {
	decision string
	gate     string
	comment  string
	value    string
	hasValue bool
	yes      bool
	asJSON   bool
}

func (a *app) decideCommand(word, short, decision string) *cobra.Command {
	v := verdict{decision: decision}
	cmd := &cobra.Command{
		Use:     word + " RUN",
		Short:   short,
		Example: "  relavium-serve gate " + word + " RUN" + map[bool]string{true: " --value 1.4.0"}[decision == engine.InputProvided],
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			v.hasValue = cmd.Flags().Changed("value")
			if decision == engine.InputProvided && !v.hasValue {
				return invalid("relavium-serve gate answer "+args[0]+" --value TEXT", "answer needs --value")
			}
			return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
				return a.decide(cmd.Context(), at, eng, args[0], &v)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&v.gate, "gate", "", "the gate, when a run waits at several")
	flags.StringVar(&v.comment, "comment", "", "a comment that is kept with the decision")
	if decision == engine.InputProvided {
		flags.StringVar(&v.value, "value", "", "the value: JSON if it parses, else the text itself")
	}
	flags.BoolVar(&v.yes, "yes", false, "needed off a terminal")
	flags.BoolVar(&v.asJSON, "json", false, "print the decided gate as one JSON object")
	return cmd
}

func (a *app) decide(ctx context.Context, at *site, eng *engine.Engine, run string, v *verdict) error {
	r, err := eng.Run(ctx, run, "")
	if err != nil {
		return runFault(run, err)
	}
	gate, err := chooseGate(ctx, eng, r, v)
	if err != nil {
		return err
	}
	if gate == nil || r.State.Terminal() && gate.Decision == "" {
		return a.said(v.asJSON, r, "run %s has ended (%s): nothing is left to decide", r.ID, r.State)
	}
	if (gate.Type == "input") != (v.decision == engine.InputProvided) {
		return invalid(gateCommand(gate, false), "gate %q waits for %s", gate.Node, waitsFor(gate))
	}
	d := engine.Decision{Decision: v.decision, Comment: v.comment, By: string(engine.Local), Via: engine.ViaCLINonInteractive}
	if v.hasValue {
		d.Payload = payloadOf(v.value)
	}
	switch {
	case len(d.Comment) > engine.MaxComment:
		return invalid("", "--comment: longer than %d bytes", engine.MaxComment)
	case len(d.Payload) > engine.MaxPayload:
		return invalid("", "--value: longer than %d bytes", engine.MaxPayload)
	case gate.Reason == engine.ReasonUnknown && !slices.Contains([]string{`"repeat"`, `"skip"`, `"fail"`}, string(d.Payload)):
		return invalid(gateCommand(gate, false), "--value: this gate takes repeat, skip or fail")
	}
	if gate.Decision != "" {
		return a.repeated(gate, &d, v.asJSON)
	}
	if at, err = a.siteOf(at, r); err != nil {
		return err
	}
	if d.Via, err = a.confirmed(ctx, at, r, gate, v.yes); err != nil {
		return err
	}
	decided, err := eng.Decide(ctx, gate.ID, d)
	if late, ok := errors.AsType[*engine.DecidedError](err); ok {
		return decidedFault(&late.Gate)
	}
	if err != nil {
		return err
	}
	if err := a.said(v.asJSON, decided, "gate %s of run %s: %s", decided.Node, r.ID, decided.Decision); err != nil {
		return err
	}
	return a.sayWhoContinues(ctx, eng, r)
}

// chooseGate is the gate that the command means: the named one, the only open
// one, or, when none is open, the one decided last; nil if an ended run never had one.
func chooseGate(ctx context.Context, eng *engine.Engine, r *engine.Run, v *verdict) (*engine.Gate, error) {
	if v.gate != "" {
		gate, err := eng.Gate(ctx, v.gate)
		if err == nil && gate.Run != r.ID {
			err = engine.ErrGateNotFound
		}
		if err != nil {
			return nil, gateFault(v.gate, err)
		}
		return &gate, nil
	}
	gates, err := eng.Gates(ctx, engine.GateFilter{Run: r.ID})
	if err != nil {
		return nil, err
	}
	open := slices.DeleteFunc(slices.Clone(gates), func(g engine.Gate) bool { return g.Decision != "" })
	switch {
	case r.State.Terminal():
		open = nil
	case len(open) == 1:
		return &open[0], nil
	case len(open) > 1:
		var lines []string
		for i := range open {
			lines = append(lines, fmt.Sprintf("  %s  %s: %s", open[i].ID, open[i].Node, oneLine(open[i].Message, 100)))
		}
		return nil, invalid("add --gate ID", "run %s waits at %d gates:\n%s", r.ID, len(open), strings.Join(lines, "\n"))
	}
	if len(gates) == 0 {
		if r.State.Terminal() {
			return nil, nil
		}
		return nil, invalid("relavium-serve runs show "+r.ID, "run %s waits at no gate", r.ID)
	}
	last := slices.MaxFunc(gates, func(x, y engine.Gate) int { return x.Decided.Compare(y.Decided) })
	return &last, nil
}

// repeated answers a decision for a gate that is decided: the same again is done,
// another one changes nothing.
func (a *app) repeated(gate *engine.Gate, d *engine.Decision, asJSON bool) error {
	same := gate.Decision == d.Decision && (d.Payload == nil || bytes.Equal(gate.Payload, d.Payload))
	if !same {
		return decidedFault(gate)
	}
	return a.said(asJSON, gate, "gate %s was decided already: %s", gate.Node, standing(gate))
}

// decidedFault names the decision that stands.
func decidedFault(gate *engine.Gate) error {
	what := "expired at " + gate.Expires.Local().Format(time.DateTime)
	if gate.Decision != "" {
		what = "is decided already: " + standing(gate)
	}
	return &fault{code: exitFailed, err: fmt.Errorf("gate %s of run %s %s", gate.Node, gate.Run, what)}
}

// confirmed makes sure that a person, or an automation that the user's own
// configuration lists, may decide the gate, and returns the channel to record.
func (a *app) confirmed(ctx context.Context, at *site, r *engine.Run, gate *engine.Gate, yes bool) (via string, err error) {
	w, done, person := a.screen()
	if !person {
		if !yes {
			return "", invalid("decide it on a terminal; automation needs --yes and \"cli-noninteractive\" in [gates] accept of config.toml",
				"off a terminal a gate is decided only with --yes")
		}
		return engine.ViaCLINonInteractive, decisionRefused(at.settings, r.Workflow, r.Principal == engine.Local, engine.ViaCLINonInteractive)
	}
	defer done()
	if err := decisionRefused(at.settings, r.Workflow, r.Principal == engine.Local, engine.ViaCLI); err != nil {
		return "", err
	}
	showGate(w, gate, time.Now())
	typed, ok := a.ask(ctx, w, "last four characters of the gate id: ")
	if !ok || !strings.EqualFold(typed, tail(gate.ID)) {
		return "", &fault{code: exitFailed, err: fmt.Errorf("gate %s is not decided: the last four characters of its id were not given", gate.Node)}
	}
	return engine.ViaCLI, nil
}

// decisionRefused says why the configuration keeps somebody from deciding gates
// of a workflow through a channel; nil if it does not. own says that it is who
// started the run.
func decisionRefused(s *settings, workflow string, own bool, via string) error {
	if !slices.Contains(s.accept(workflow), via) {
		return invalid(fmt.Sprintf("add %q to [gates] accept in config.toml of RELAVIUM_HOME", via),
			"gates of %q are not decided via %s: [gates] accept does not list it", workflow, via)
	}
	strict := s.Serve.Workflow[workflow].ApproverNotRequester
	if strict != nil && *strict && own {
		return invalid("", "gates of %q are not decided by whoever started the run: approver_not_requester is set", workflow)
	}
	return nil
}

// sayWhoContinues tells a person whether the run goes on by itself.
func (a *app) sayWhoContinues(ctx context.Context, eng *engine.Engine, r *engine.Run) error {
	alive, err := eng.Alive(ctx, r.Project)
	if err != nil || alive {
		return err
	}
	_, err = fmt.Fprintf(a.stderr, "no process executes runs of this project now: the run goes on when one starts, or with\n  relavium-serve run --resume %s\n", r.ID)
	return err
}
