package inbound

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	transportStdio     = "stdio"
	transportHTTP      = "http"
	transportSSE       = "sse"
	transportWebsocket = "websocket"
)

// A Registration is a server that agents name by ref ([[mcp_servers]], format 5.2).
type Registration struct {
	Name   string
	Server workflows.ServerRef // as an inline one, without ID and Ref
	// Project is the absolute real path of the project that the declaring file belongs
	// to. Empty means that it is the user's own (config.toml): its programs start in a
	// folder of their own in the home folder then.
	Project string
}

// declared is one server as it will be connected to.
type declared struct {
	name  string // its id or ref
	ref   workflows.ServerRef
	limit time.Duration // for the connect, from the spawn or dial to the end of the handshake
	own   string        // the folder to be made before the start, or ""

	program consent.Declaration // of a stdio server
	digest  string
	target  *egress.Target // of any other
}

func (d *declared) stdio() bool { return d.ref.Transport == transportStdio }

// key names what is connected to: the digest, or the transport and the exact URL.
func (d *declared) key() string {
	if d.stdio() {
		return d.digest
	}
	return d.ref.Transport + " " + d.ref.URL
}

// declare resolves what an agent declares. The error is a *workflows.ToolError.
func (h *Host) declare(ref *workflows.ServerRef, root string) (*declared, error) {
	d := &declared{name: ref.ID, ref: *ref}
	project := root
	if ref.Ref != "" {
		registration, ok := h.registration(ref.Ref)
		if !ok {
			return nil, badDeclaration(ref.Ref, errors.New("no server of that name is registered"))
		}
		d.name, d.ref, project = ref.Ref, registration.Server, registration.Project
		if project == "" {
			d.own = filepath.Join(h.opt.Home, "servers", ref.Ref)
			project = d.own
		}
	}
	d.limit = d.ref.ConnectTimeout
	if d.limit <= 0 {
		d.limit = defaultNetworkConnect
		if d.stdio() {
			d.limit = defaultStdioConnect
		}
	}
	var err error
	if d.stdio() {
		err = d.resolve(project, h.opt.Getenv)
	} else {
		d.target, err = egress.ParseServer(d.ref.Transport, d.ref.URL, d.ref.AllowLocalEndpoint)
	}
	if err != nil {
		return nil, badDeclaration(d.name, err)
	}
	return d, nil
}

func badDeclaration(server string, err error) error {
	f := &workflows.ToolError{
		Fault: workflows.ToolUnavailable, Reason: ReasonDeclaration, Server: server, Message: quoted(err.Error()), Err: err,
	}
	if denied, ok := errors.AsType[*egress.DeniedError](err); ok {
		f.Reason, f.Message = ReasonEgress, denied.Error()
	}
	if _, ok := errors.AsType[*consent.ResolveError](err); ok {
		f.Reason = ReasonSpawn
	}
	return f
}

// resolve finds the program and what its digest is.
func (d *declared) resolve(cwd string, getenv func(string) string) error {
	if !filepath.IsAbs(cwd) {
		return errors.New("the folder it would start in is not known")
	}
	command, err := consent.Resolve(d.ref.Command, cwd, getenv)
	if err != nil {
		return err
	}
	d.program = consent.Declaration{Command: command, Args: d.ref.Args, Cwd: cwd, Env: make(map[string]string, len(d.ref.Env))}
	for _, v := range d.ref.Env {
		if _, twice := d.program.Env[v.Name]; twice {
			return fmt.Errorf("environment variable %q twice", v.Name)
		}
		d.program.Env[v.Name] = v.Value
	}
	if err := d.program.Validate(); err != nil {
		return err
	}
	d.digest, err = d.program.Digest()
	return err
}

// prepare makes the folder that a server of the user's own starts in.
func (d *declared) prepare() error {
	if d.own == "" {
		return nil
	}
	if err := os.MkdirAll(d.own, 0o700); err != nil {
		return errors.New("its folder cannot be made")
	}
	if about, err := os.Lstat(d.own); err != nil || !about.IsDir() {
		return errors.New("its folder is a link or no folder")
	}
	return nil
}

// servers lists what the given agents declare, each once, in the order in which they
// declare it.
func (h *Host) servers(agents []*workflows.Agent, root string) (all []*declared, uses map[string][]*declared, err error) {
	uses = make(map[string][]*declared, len(agents))
	known := make(map[string]*declared)
	for _, agent := range agents {
		for i := range agent.Servers {
			d, err := h.declare(&agent.Servers[i], root)
			if err != nil {
				return nil, nil, err
			}
			same := d.name + "\x00" + d.key()
			if first, ok := known[same]; ok {
				first.limit = max(first.limit, d.limit)
				d = first
			} else {
				known[same] = d
				all = append(all, d)
			}
			uses[agent.ID] = append(uses[agent.ID], d)
		}
	}
	return all, uses, nil
}

// used lists the agents that the nodes of a workflow run, in the order of the nodes.
func used(w *workflows.Workflow) []*workflows.Agent {
	var out []*workflows.Agent
	seen := make(map[string]bool)
	for i := range w.Nodes {
		node, ok := w.Nodes[i].Spec.(workflows.AgentNode)
		if !ok || seen[node.AgentRef] {
			continue
		}
		seen[node.AgentRef] = true
		if agent, ok := w.Agent(node.AgentRef); ok {
			out = append(out, agent)
		}
	}
	return out
}

// approve refuses the programs that nobody approved, all at once, after asking where
// somebody is there to be asked.
func (h *Host) approve(ctx context.Context, all []*declared) error {
	var missing []Unapproved
	asked := make(map[string]bool)
	for _, d := range all {
		if !d.stdio() || asked[d.digest] {
			continue
		}
		asked[d.digest] = true
		err := h.granted(ctx, d.digest)
		if err == nil {
			continue
		}
		u := Unapproved{Server: d.name, Digest: d.digest, Declaration: d.program, Cause: err}
		if denied, ok := errors.AsType[*consent.NotGrantedError](err); ok {
			u.Cause = denied.Cause
		}
		if h.opt.Ask != nil {
			if err := h.opt.Ask(ctx, u); err == nil && h.granted(ctx, d.digest) == nil {
				continue
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		missing = append(missing, u)
	}
	if len(missing) > 0 {
		return consentFault(missing)
	}
	return nil
}

// granted returns nil if the digest may be started now.
func (h *Host) granted(ctx context.Context, digest string) error {
	if slices.Contains(h.opt.Allowed, digest) {
		return nil
	}
	if h.opt.Granted == nil {
		return &consent.NotGrantedError{Digest: digest}
	}
	return h.opt.Granted(ctx, digest)
}

// segment is the part of a tool's name that stands for the server.
func (d *declared) segment() string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, d.name)
}
