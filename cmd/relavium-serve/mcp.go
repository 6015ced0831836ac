package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/secrets"
	"github.com/relavium/relavium-serve/workflows"
)

func (a *app) mcpCommand() *cobra.Command {
	cmd := group("mcp", "Look at the MCP servers that agents use, and try them",
		"  relavium-serve mcp inspect log-question --workflows examples/workflows --allow-mcp-stdio DIGEST\n  relavium-serve mcp call SERVER search '{\"query\":\"retry\"}'",
		a.mcpInspectCommand(), a.mcpCallCommand(), a.mcpPinCommand())
	cmd.Long = `Look at the MCP servers that agents use, and try them.

These commands connect as a run would: a program is started only with consent,
addresses, deadlines and bounds are those of a run, and no secret is shown.

A SERVER is the name of a registration ([[mcp_servers]]) or the id of a server
that an agent of this project's workflows declares.`
	return cmd
}

// hostFlags are what every command has that connects to servers.
type hostFlags struct {
	allow   []string
	folders []string
	asJSON  bool
}

func (f *hostFlags) add(cmd *cobra.Command, what string) {
	cmd.Flags().StringArrayVar(&f.allow, "allow-mcp-stdio", nil, "start the program with this consent digest without a grant (repeatable)")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, what)
	workflowFlag(cmd, &f.folders)
}

// openHost opens the site of a command that connects to servers.
func (a *app) openHost(f *hostFlags) (*site, error) {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return nil, err
	}
	return at, a.spawns(at, f.allow, f.asJSON)
}

// A target is one server that a command connects to, as if for a run.
type target struct {
	ref      workflows.ServerRef
	root     string // of the project that declares it
	workflow *workflows.Workflow
}

func (t *target) name() string {
	if t.ref.Ref != "" {
		return t.ref.Ref
	}
	return t.ref.ID
}

// alone is a workflow that needs this server and nothing else.
func alone(ref *workflows.ServerRef) *workflows.Workflow {
	return &workflows.Workflow{
		ID:     "mcp",
		Agents: []workflows.Agent{{ID: "mcp", Servers: []workflows.ServerRef{*ref}}},
		Nodes:  []workflows.Node{{ID: "mcp", Spec: workflows.AgentNode{AgentRef: "mcp"}}},
	}
}

// server finds the server that a command names.
func (at *site) server(name string, folders []string) (*target, error) {
	for i := range at.Servers {
		if at.Servers[i].Name == name {
			ref := workflows.ServerRef{Ref: name}
			return &target{ref: ref, root: at.root, workflow: alone(&ref)}, nil
		}
	}
	catalog, err := at.load(folders)
	if err != nil {
		return nil, err
	}
	var found []target
	var in, all []string
	for _, loaded := range catalog.Workflows {
		for _, t := range targetsOf(&loaded) {
			all = append(all, t.name())
			if t.ref.ID != name {
				continue
			}
			t.ref.ToolsAllowlist = nil // of one agent
			t.workflow = alone(&t.ref)
			if !slices.ContainsFunc(found, func(other target) bool { return other.root == t.root && sameServer(&other.ref, &t.ref) }) {
				found, in = append(found, t), append(in, loaded.Workflow.ID)
			}
		}
	}
	switch len(found) {
	case 1:
		return &found[0], nil
	case 0:
		return nil, at.noServer(name, all)
	default:
		return nil, invalid("relavium-serve mcp inspect WORKFLOW", "%q names different servers of the workflows %s", oneLine(name, 80), strings.Join(in, ", "))
	}
}

func (at *site) noServer(name string, inline []string) error {
	known := slices.Clone(inline)
	for i := range at.Servers {
		known = append(known, at.Servers[i].Name)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	hint := "register it under [[mcp_servers]] in config.toml, or declare it in an agent's mcp_servers"
	if near := closest(name, known); near != "" {
		hint = "did you mean " + near + "?"
	} else if len(known) > 0 {
		hint = "known are: " + strings.Join(known[:min(len(known), 20)], ", ")
	}
	return invalid(hint, "no MCP server %q is declared or registered", oneLine(name, 80))
}

// targetsOf are the servers of a workflow's agents, each once, in the order of the
// nodes and declarations.
func targetsOf(loaded *workflows.Loaded) []target {
	w := loaded.Workflow
	var out []target
	for i := range w.Nodes {
		node, ok := w.Nodes[i].Spec.(workflows.AgentNode)
		if !ok {
			continue
		}
		agent, ok := w.Agent(node.AgentRef)
		if !ok {
			continue
		}
		for k := range agent.Servers {
			ref := &agent.Servers[k]
			if slices.ContainsFunc(out, func(t target) bool { return sameServer(&t.ref, ref) }) {
				continue
			}
			out = append(out, target{ref: *ref, root: loaded.Root, workflow: only(w, ref)})
		}
	}
	return out
}

// only is the workflow whose agents have no other server.
func only(w *workflows.Workflow, ref *workflows.ServerRef) *workflows.Workflow {
	out := &workflows.Workflow{ID: w.ID, Nodes: w.Nodes, Agents: slices.Clone(w.Agents)}
	for i := range out.Agents {
		var kept []workflows.ServerRef
		for _, s := range out.Agents[i].Servers {
			if sameServer(&s, ref) {
				kept = append(kept, s)
			}
		}
		out.Agents[i].Servers = kept
	}
	return out
}

// sameServer tells whether two declarations mean one server; what an agent takes of
// it does not matter.
func sameServer(x, y *workflows.ServerRef) bool {
	return x.ID == y.ID && x.Ref == y.Ref && x.Transport == y.Transport && x.Command == y.Command && slices.Equal(x.Args, y.Args) &&
		slices.Equal(x.Env, y.Env) && x.URL == y.URL && x.AllowLocalEndpoint == y.AllowLocalEndpoint
}

// withHost makes a host for the length of one command. pinned says that definitions
// are compared as for a run.
func (a *app) withHost(ctx context.Context, at *site, pinned bool, use func(*inbound.Host) error) error {
	if at.shared == nil {
		return a.withHostOf(ctx, at, pinned, use)
	}
	return a.withStore(ctx, at, func(*engine.Engine) error { return a.withHostOf(ctx, at, pinned, use) }) // it has the pins
}

func (a *app) withHostOf(ctx context.Context, at *site, pinned bool, use func(*inbound.Host) error) (err error) {
	children := child.NewTable(child.TableOptions{Children: at.maxChildren()})
	opt, err := a.hostOptions(at, children)
	if err != nil {
		return err
	}
	// What is dropped is in what these commands show, or was not asked for.
	opt.Log = slog.New(without{opt.Log.Handler(), "mcp tool dropped"})
	if pinned {
		pins, err := a.pins(at)
		if err != nil {
			return err
		}
		opt.Pin = pins.Check
	}
	host, err := inbound.New(opt)
	if err != nil {
		return &fault{code: exitFault, err: err}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeServers)
		defer cancel()
		err = errors.Join(err, host.Shutdown(ctx), children.Close(ctx))
	}()
	return use(host)
}

// without is a log without the lines of one message.
type without struct {
	slog.Handler
	message string
}

func (h without) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == h.message {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// connect opens the server as the run of that name.
func (a *app) connect(ctx context.Context, host *inbound.Host, run string, t *target) (inbound.ServerReport, error) {
	err := host.Open(ctx, inbound.Run{ID: run, Workflow: t.workflow, Principal: "local", Root: t.root})
	if err != nil {
		return inbound.ServerReport{}, err
	}
	reports := host.Reports(run)
	if len(reports) != 1 {
		return inbound.ServerReport{}, fmt.Errorf("server %s: %d connections", t.name(), len(reports))
	}
	return reports[0], nil
}

// startFault is what a command ends with when a server did not come up. What is not
// approved is shown whole, with the line that approves it.
func (a *app) startFault(t *target, err error) error {
	if missing, ok := errors.AsType[*inbound.UnapprovedError](err); ok {
		a.showUnapproved(missing, "only for this command")
		return &fault{code: exitFault, err: errors.New(unapprovedMessage(missing)), hint: "relavium-serve consent grant " + t.name()}
	}
	f, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		return err
	}
	hint := ""
	switch f.Reason {
	case inbound.ReasonPin:
		hint = "relavium-serve mcp pin show " + t.name()
	case inbound.ReasonSecret:
		hint = "relavium-serve secrets doctor"
		if missing, ok := errors.AsType[*secrets.NotFoundError](err); ok {
			hint = "relavium-serve secrets set " + missing.Name.String()
		} else if refused, ok := errors.AsType[*secrets.RefusedError](err); ok {
			hint += " " + refused.Name.String()
		}
	}
	code := exitFault
	if f.Fault == workflows.ToolCancelled {
		code = exitFailed
	}
	return &fault{code: code, err: fmt.Errorf("MCP server %s: %s (%s)", t.name(), f.Message, f.Reason), hint: hint}
}

// showUnapproved shows the declarations that nobody approved; once says for what the
// flag that it names holds.
func (a *app) showUnapproved(missing *inbound.UnapprovedError, once string) {
	w := a.scrubber.Writer(a.stderr)
	for i := range missing.Servers {
		u := &missing.Servers[i]
		question := consent.Question{Server: u.Server, Declaration: u.Declaration, Clean: text.Clean}
		_ = question.Show(w) // what is missing is in the error too
		if u.Cause != nil {
			_, _ = fmt.Fprintf(w, "  the grants cannot be read: %s\n", text.Clean(u.Cause.Error()))
		}
		_, _ = fmt.Fprintf(w, "%s: --allow-mcp-stdio %s\n", once, u.Digest)
	}
}
