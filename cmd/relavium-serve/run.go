package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

type runFlags struct {
	inputs  []string
	folders []string
	resume  string
	allow   []string
	asJSON  bool
	trace   string
}

func (a *app) runCommand() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run ID|PATH | run --resume RUN",
		Short: "Run one workflow here, live",
		Example: "  relavium-serve run release-notes --workflows examples/workflows --input version=1.4.0\n" +
			"  relavium-serve run examples/workflows/deploy.relavium.yaml --input version=1.4.0 --json\n" +
			"  relavium-serve run --resume 3f0c5d1e-8f7a-4a55-9d0e-7c1b2a3d4e5f",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			switch {
			case err != nil:
				return err
			}
			if err := a.spawns(at, flags.allow, flags.asJSON); err != nil {
				return err
			}
			untraced, err := a.traceTo(cmd.Context(), at, flags.trace)
			if err != nil {
				return err
			}
			defer untraced()
			switch {
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
	cmd.Flags().StringArrayVar(&flags.allow, "allow-mcp-stdio", nil, "let agents start the MCP server program with this consent digest, in this process (repeatable)")
	cmd.Flags().StringVar(&flags.trace, traceFlag, "", traceHelp)
	workflowFlag(cmd, &flags.folders)
	return cmd
}

func (a *app) startRun(ctx context.Context, at *site, name string, flags *runFlags) error {
	loaded, err := at.find(name, flags.folders)
	if err != nil {
		return err
	}
	inputs, err := at.inputsOf(ctx, loaded.Workflow, flags.inputs)
	if err != nil {
		return err
	}
	project := at.projectOf(loaded.Root)
	eng, err := a.openStore(ctx, at, true, project.Key)
	if err != nil {
		return err
	}
	called, end := at.tracer.command(ctx, "run "+loaded.Workflow.ID, loaded.Workflow.ID)
	defer end()
	started, err := eng.Start(called, engine.StartRequest{
		Workflow:  loaded.Workflow,
		Project:   project,
		Principal: engine.Local,
		Arguments: inputs,
		Variables: at.Variables,
		Source:    "cli",
		Client:    "relavium-serve run",
		Trace:     engine.TraceOf(called),
	})
	if refused, ok := errors.AsType[*engine.RunError](err); ok { // before there was a run
		err = &fault{code: exitFault, err: refused}
	}
	if err == nil {
		f := &follower{app: a, site: at, eng: eng, run: started.Run, workflow: loaded.Workflow, asJSON: flags.asJSON}
		err = f.follow(ctx, engine.Local)
	}
	return closeStore(ctx, eng, err)
}

// inputsOf reads the inputs of a command line, and looks whether the secrets that the
// workflow starts with are there.
func (at *site) inputsOf(ctx context.Context, w *workflows.Workflow, pairs []string) (json.RawMessage, error) {
	for _, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		secret := func(input workflows.Input) bool { return input.Name == name && input.Type == workflows.TypeSecret }
		if slices.ContainsFunc(w.Inputs, secret) {
			return nil, invalid("relavium-serve secrets set input/"+w.ID+"/"+name+", or set "+w.SecretEnv(name)+" or "+w.SecretEnv(name)+"_FILE",
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
	if err := at.secretsSupplied(ctx, w); err != nil {
		return nil, err
	}
	return inputs, secretFault(at.keysSupplied(ctx, w))
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
		own := *at
		own.settings = at.current()
		return &own, nil
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
