package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

// everyMCPCall in a publish list stands for each loaded workflow whose trigger is
// mcp_call.
const everyMCPCall = "@mcp_call"

// After the end of the input the process is gone within 2 s, of which the calls in
// flight have 1.8 s; after a signal within 10 s. A store that is not closed by
// then is as after a crash: the runs in it are parked.
const (
	eofCloseGrace = 150 * time.Millisecond
	stopGrace     = 5 * time.Second
)

type serveFlags struct {
	folders    []string
	publish    []string
	transports []string
	noRunTools bool
	allow      []string
	metrics    string
	trace      string
	http       httpFlags
}

func (a *app) serveCommand() *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Serve the published workflows as MCP tools over stdio, HTTP or WebSocket",
		Example: "  relavium-serve serve --workflows examples/workflows --publish review-diff\n  relavium-serve serve --workflows examples/workflows --publish @mcp_call",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelInfo)
			if err != nil {
				return err
			}
			if err := checkTransports(cmd, at, &flags); err != nil {
				return err
			}
			if err := a.spawns(at, flags.allow, false); err != nil {
				return err
			}
			at.spawning.ask.Store(false) // a call never asks at the terminal
			if cmd.Flags().Changed("publish") {
				at.Serve.Publish = flags.publish
			}
			return a.serve(cmd.Context(), at, &flags)
		},
	}
	f := cmd.Flags()
	workflowFlag(cmd, &flags.folders)
	f.StringArrayVar(&flags.publish, "publish", nil, "publish this workflow, or @mcp_call (repeatable; replaces [serve] publish)")
	f.StringArrayVar(&flags.transports, "transport", nil, "stdio (the default), http, or websocket, which http may stand beside (repeatable)")
	flags.http.add(cmd)
	f.StringArrayVar(&flags.allow, "allow-mcp-stdio", nil, "let agents start the MCP server program with this consent digest, in this process (repeatable)")
	f.StringVar(&flags.metrics, "metrics-listen", "", "answer GET /metrics for Prometheus on this address, such as 127.0.0.1:9464")
	f.StringVar(&flags.trace, traceFlag, "", traceHelp)
	f.BoolVar(&flags.noRunTools, "no-run-tools", false, "leave out the relavium_run_* tools")
	return cmd
}

// checkTransports refuses transports that there are not, and flags that go with none of them.
func checkTransports(cmd *cobra.Command, at *site, flags *serveFlags) error {
	transports, from := flags.transports, "--transport"
	if transports == nil {
		transports, from = []string{*at.Serve.Transport}, "[serve] transport ="
	}
	for _, transport := range transports {
		switch transport {
		case "stdio", "http", "websocket":
		default:
			return invalid("", "%s: expected stdio, http or websocket", from)
		}
	}
	if len(transports) > 1 && slices.Contains(transports, "stdio") {
		return invalid("start one server for each", "%s: stdio excludes the others", from)
	}
	flags.transports = transports
	flags.http.mcp, flags.http.websocket = slices.Contains(transports, "http"), slices.Contains(transports, "websocket")
	if name := flags.http.given(cmd); name != "" && slices.Contains(transports, "stdio") {
		return invalid("add --transport http", "--%s: the transport is stdio", name)
	}
	return nil
}

func (a *app) serve(ctx context.Context, at *site, flags *serveFlags) error {
	// A client that closes its end of the standard output ends the server like the
	// end of the input, not by a signal.
	signal.Ignore(syscall.SIGPIPE)
	overHTTP := !slices.Contains(flags.transports, "stdio")
	var listener net.Listener
	var overOptions publish.HTTPOptions
	entry := &entrance{}
	if overHTTP {
		var err error
		if entry, err = at.entrance(&flags.http); err != nil {
			return err
		}
		if listener, overOptions, err = at.listenHTTP(ctx, entry); err != nil {
			return err
		}
		defer func() { _ = listener.Close() }()
	}
	unmeasured, err := a.measure(ctx, at, entry, cmp.Or(flags.metrics, value(at.Serve.MetricsListen)))
	if err != nil {
		return err
	}
	defer unmeasured()
	untraced, err := a.traceTo(ctx, at, flags.trace)
	if err != nil {
		return err
	}
	defer untraced()
	files := a.lookAt(at, flags.folders) // what changes from here on is reloaded
	opened := make(chan openResult, 1)
	go func() {
		eng, err := a.openStore(ctx, at, true)
		opened <- openResult{eng, err}
	}()
	listed, projects, loadErr := at.published(ctx, flags.folders, entry)
	store := <-opened
	switch {
	case loadErr != nil && store.eng != nil:
		return closeStore(ctx, store.eng, loadErr)
	case loadErr != nil:
		return loadErr
	case store.err != nil:
		return store.err
	}
	if at.metrics != nil {
		at.metrics.watch(store.eng)
	}
	for _, key := range projects {
		if err := store.eng.Adopt(key); err != nil {
			return closeStore(ctx, store.eng, err)
		}
	}
	options := a.publishing(ctx, at, store.eng, listed, flags)
	if err := at.gateOptions(ctx, &options); err != nil {
		return closeStore(ctx, store.eng, err)
	}
	options.Page = at.gatePage(listener, entry)
	inputs := &secretInputs{}
	inputs.set(at.secretSource(ctx, listed))
	options.HasEnv = inputs.has
	server, err := publish.New(options)
	if err != nil {
		return closeStore(ctx, store.eng, &fault{code: exitFault, err: err})
	}
	if err := a.checkServing(ctx, at, listed, overHTTP && isTerminal(a.stdin)); err != nil {
		return closeStore(ctx, store.eng, err)
	}
	if len(listed) == 0 {
		at.log.WarnContext(ctx, "nothing is published, so no tool is listed: name workflows with --publish or [serve] publish")
	}
	reloads := &reloader{app: a, start: at, at: at, flags: flags, entry: entry, server: server, eng: store.eng, inputs: inputs, listed: listed}
	defer reloads.begin(ctx, files)()
	at.log.InfoContext(ctx, "serving", "transport", strings.Join(flags.transports, ", "), "workflows", len(listed), "store", at.storeName())
	if overHTTP {
		return closeStore(ctx, store.eng, a.serveHTTP(ctx, at, entry, store.eng, server, listener, overOptions))
	}
	if isTerminal(a.stdin) {
		at.log.InfoContext(ctx, "an MCP client is expected on the standard input; Ctrl-D ends the server")
	}
	err = server.Serve(ctx, at.tracer.input(a.stdin), a.stdout)
	if ctx.Err() != nil {
		return closeStore(ctx, store.eng, err)
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eofCloseGrace)
	defer cancel()
	if closeErr := store.eng.Close(closeCtx); closeErr != nil {
		at.log.WarnContext(ctx, "the run store did not close in time; its runs go on in the next process", "error", closeErr)
	}
	return err
}

type openResult struct {
	eng *engine.Engine
	err error
}

// published loads the workflows and picks those of the publish list; projects are
// the keys of every project a file was loaded from.
func (at *site) published(ctx context.Context, folders []string, entry *entrance) (listed []publish.Workflow, projects []string, err error) {
	catalog, err := at.loadWith(folders, at.advised(ctx, at.loaderOptions()))
	if err != nil {
		return nil, nil, err
	}
	byID := make(map[string]*workflows.Loaded, len(catalog.Workflows))
	keys := make(map[string]bool)
	for i := range catalog.Workflows {
		loaded := &catalog.Workflows[i]
		byID[loaded.Workflow.ID] = loaded
		keys[at.projectOf(loaded.Root).Key] = true
	}
	at.warnOfNames(byID)
	ids, err := at.publishList(catalog, byID, folders)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		w, err := at.publishable(byID[id], entry)
		if err != nil {
			return nil, nil, err
		}
		listed = append(listed, w)
	}
	if err := at.distinctSecrets(listed); err != nil {
		return nil, nil, err
	}
	for i := range catalog.Warnings {
		warning := &catalog.Warnings[i]
		at.log.WarnContext(ctx, "workflow file", "file", warning.File, "line", warning.Line, "where", warning.Where, "what", warning.What, "remedy", warning.Remedy)
	}
	return listed, slices.Sorted(maps.Keys(keys)), nil
}

// warnOfNames tells of a configured workflow that is not loaded under this name
// but nearly: its rules would not hold.
func (at *site) warnOfNames(byID map[string]*workflows.Loaded) {
	ids := slices.Sorted(maps.Keys(byID))
	for _, id := range slices.Sorted(maps.Keys(at.Serve.Workflow)) {
		if near := closest(id, ids); near != "" && near != id {
			at.log.Warn("the configuration of a workflow that is not loaded", "key", "serve.workflow."+id, "nearest loaded", near)
		}
	}
}

// publishList resolves the publish list to ids, in the order of the list. A file
// that did not load stops the start if it is listed and is only logged if not.
func (at *site) publishList(catalog *workflows.Catalog, byID map[string]*workflows.Loaded, folders []string) ([]string, error) {
	broken := make(map[string]workflows.Problems)
	for _, b := range catalog.Broken {
		if b.ID != "" {
			broken[b.ID] = append(broken[b.ID], b.Problems...)
		}
	}
	var ids []string
	var faults []error
	hint := "correct it, or take it off the publish list"
	seen := make(map[string]bool)
	for _, id := range at.Serve.Publish {
		switch {
		case seen[id]:
			faults = append(faults, fmt.Errorf("publish: %q is listed twice", id))
		case id == everyMCPCall:
		case byID[id] != nil:
			ids = append(ids, id)
		case broken[id] != nil:
			faults = append(faults, broken[id])
		default:
			missing := at.notLoaded(id, catalog, folders)
			faults, hint = append(faults, missing.err), missing.hint
		}
		seen[id] = true
	}
	if len(faults) > 0 {
		return nil, &fault{code: exitFault, err: errors.Join(faults...), hint: hint}
	}
	if seen[everyMCPCall] {
		for i := range catalog.Workflows {
			if w := catalog.Workflows[i].Workflow; w.Trigger.Type == "mcp_call" && !seen[w.ID] {
				ids = append(ids, w.ID)
			}
		}
	}
	for _, b := range catalog.Broken {
		for _, problem := range b.Problems {
			at.log.Warn("a workflow file did not load and is not published", "file", problem.File, "line", problem.Line, "where", problem.Where, "what", problem.What)
		}
	}
	return ids, nil
}

// publishable is a workflow with what the configuration says about it.
func (at *site) publishable(loaded *workflows.Loaded, entry *entrance) (publish.Workflow, error) {
	w := loaded.Workflow
	set := at.Serve.Workflow[w.ID]
	published := publish.Workflow{Workflow: w, Project: at.projectOf(loaded.Root), Accept: set.Accept, VisibleTo: set.VisibleTo}
	if set.Tool != nil {
		published.Tool = *set.Tool
	}
	if err := at.decidable(w, entry); err != nil {
		return published, err
	}
	if err := at.confirmedReach(w, entry); err != nil {
		return published, err
	}
	if err := at.priced(w, entry); err != nil {
		return published, err
	}
	return published, at.nameGates(&published)
}

func (a *app) publishing(ctx context.Context, at *site, eng *engine.Engine, listed []publish.Workflow, flags *serveFlags) publish.Options {
	handover := make(map[string]time.Duration, len(at.Serve.Handover))
	for client, limit := range at.Serve.Handover {
		handover[client] = time.Duration(limit)
	}
	return publish.Options{
		Engine:     eng,
		Workflows:  listed,
		Logger:     at.log,
		Prefix:     *at.Serve.ToolPrefix,
		NoRunTools: flags.noRunTools,
		Accept:     at.Gates.Accept,
		Handover:   handover,
		Refuse:     at.refuse,
		Variables:  at.Variables,
		Version:    readVersion().Version,
		Limits:     at.limits(),
		Tasks:      *at.Serve.Tasks,
		Keep:       atLeast(at.Runs.Keep.value(30 * 24 * time.Hour)),
		StopGrace:  stopGrace,
		Tracer:     at.tracer.spans(),
	}
}
