package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

// closeServers bounds the closing of a run's servers: their ladder and a little more.
const closeServers = 10 * time.Second

// A spawning is what a command says about programs that it may start.
type spawning struct {
	allowed []string     // digests of --allow-mcp-stdio and RELAVIUM_ALLOW_MCP_STDIO
	ask     *atomic.Bool // a person may be asked on the terminal
	asJSON  bool
}

// allowing reads the digests that this process allows without a grant.
func (a *app) allowing(flags []string) ([]string, error) {
	all := slices.Concat(flags, strings.FieldsFunc(a.env["RELAVIUM_ALLOW_MCP_STDIO"], func(r rune) bool { return r == ',' || r == ' ' }))
	for _, digest := range all {
		if !consent.IsDigest(digest) {
			return nil, invalid("relavium-serve consent digest < server.json", "--allow-mcp-stdio: %q is no digest, expected v1: and 64 lower-case hex digits", oneLine(digest, 80))
		}
	}
	return all, nil
}

// spawns says what a command that executes runs may start; a person at its terminal is
// asked about the rest.
func (a *app) spawns(at *site, flags []string, asJSON bool) error {
	allowed, err := a.allowing(flags)
	at.spawning.allowed, at.spawning.asJSON = allowed, asJSON
	at.spawning.ask.Store(true)
	return err
}

// newHost makes the host of the MCP servers that agents use.
func (a *app) newHost(at *site, children *child.Table) (*inbound.Host, error) {
	opt, err := a.hostOptions(at, children)
	if err != nil {
		return nil, err
	}
	pins, err := a.pins(at)
	if err != nil {
		return nil, err
	}
	opt.Pin = pins.Check
	host, err := inbound.New(opt)
	if err != nil {
		return nil, &fault{code: exitFault, err: err}
	}
	return host, nil
}

// hostOptions are what a host works with here. It compares no definitions.
func (a *app) hostOptions(at *site, children *child.Table) (inbound.Options, error) {
	grants, err := consent.Open(at.home, nil)
	if err != nil {
		return inbound.Options{}, err
	}
	return inbound.Options{
		Name: "relavium-serve", Version: readVersion().Version,
		Home:          at.home,
		Registrations: at.registrations(),
		Children:      children,
		Environ:       a.environ(),
		Getenv:        func(name string) string { return a.env[name] },
		Granted:       grants.Check,
		Allowed:       at.spawning.allowed,
		Secret: func(ctx context.Context, name string) ([]byte, error) {
			secret, err := at.secrets.MCPSecrets().Resolve(ctx, name)
			if err != nil {
				return nil, err
			}
			return []byte(secret.Reveal()), nil
		},
		Scrub:      a.scrubber.String,
		Child:      child.Spec{Scrub: a.scrubber.StreamWriter},
		Repeatable: at.Host.Repeatable,
		KeepParked: at.Host.KeepParked.value(0),
		Ask:        func(ctx context.Context, u inbound.Unapproved) error { return a.askConsent(ctx, at, grants, &u) },
		Started:    at.recordStart,
		Log:        at.log,
	}, nil
}

// recordStart writes to the audit log that a program was started, and by which consent.
func (at *site) recordStart(ctx context.Context, s inbound.Started) {
	eng := at.store.Load()
	if eng == nil {
		return // mcp inspect and call have no run store
	}
	entry := engine.AuditEntry{
		Principal: engine.Principal(s.Principal), Via: "host", Action: "server.started", Run: s.Run, Consent: s.Digest, What: s.Server,
	}
	if err := eng.Record(context.WithoutCancel(ctx), entry); err != nil {
		at.log.WarnContext(ctx, "not in the audit log", "action", entry.Action, "run", s.Run, "error", err)
	}
}

// askConsent asks the person at the terminal about one program and records a yes.
func (a *app) askConsent(ctx context.Context, at *site, grants *consent.Store, u *inbound.Unapproved) error {
	if u.Cause != nil || !at.spawning.ask.Load() {
		return nil //nolint:nilerr // it stays unapproved, which says all
	}
	question := consent.Question{Server: u.Server, Declaration: u.Declaration, Clean: text.Clean}
	yes, err := question.Ask(&typed{ctx: ctx, a: a}, a.stderr, consent.Conditions{
		TTYIn: isTerminal(a.stdin), TTYOut: isTerminal(a.stdout), JSON: at.spawning.asJSON, CI: consent.CI(a.env["CI"]),
	})
	if err != nil || !yes {
		return nil //nolint:nilerr // nobody was there to say yes
	}
	if err := makeHome(at.place); err != nil {
		return err
	}
	_, err = grants.Grant(ctx, &u.Declaration)
	return err
}

// registrations are the servers that agents may name by ref.
func (at *site) registrations() []inbound.Registration {
	out := make([]inbound.Registration, len(at.Servers))
	for i := range at.Servers {
		s := &at.Servers[i]
		ref := workflows.ServerRef{
			Transport: s.Transport, Command: s.Command, Args: s.Args, URL: s.URL, AllowLocalEndpoint: s.AllowLocalEndpoint,
		}
		if s.ConnectTimeoutMS != nil {
			ref.ConnectTimeout = time.Duration(*s.ConnectTimeoutMS) * time.Millisecond
		}
		for _, name := range slices.Sorted(maps.Keys(s.Env)) {
			ref.Env = append(ref.Env, workflows.EnvVar{Name: name, Value: s.Env[name]})
		}
		out[i] = inbound.Registration{Name: s.Name, Server: ref, Project: s.project}
	}
	return out
}

// attendances counts who needs the servers of a run: the call that is about to make
// it, and the segment that executes it.
type attendances struct {
	a    *app
	at   *site
	host *inbound.Host

	mu   sync.Mutex
	runs map[string]*attendance

	closing sync.WaitGroup
}

type attendance struct {
	needed int
	over   bool // the run needs nothing more
}

// attend is engine.Options.Attend.
func (s *attendances) attend(ctx context.Context, run engine.Attendance) (leave func(ended bool), err error) {
	s.mu.Lock()
	have := s.runs[run.Run]
	if have == nil {
		have = new(attendance)
		s.runs[run.Run] = have
	}
	have.needed++
	s.mu.Unlock()
	err = s.host.Open(ctx, inbound.Run{
		ID: run.Run, Workflow: run.Workflow, Principal: string(run.Principal), Root: run.Project.Root, Depth: run.Depth,
	})
	var once sync.Once
	leave = func(ended bool) { once.Do(func() { s.leave(ctx, run.Run, ended) }) }
	if err != nil {
		leave(true)
		return nil, s.refusal(ctx, run.Workflow, err)
	}
	return leave, nil
}

// leave parks the run's servers when nobody needs them for now, and closes them when
// nobody will.
func (s *attendances) leave(ctx context.Context, run string, ended bool) {
	s.mu.Lock()
	have := s.runs[run]
	have.needed--
	have.over = have.over || ended
	last, over := have.needed == 0, have.over
	if last {
		delete(s.runs, run)
		if !over {
			s.host.Park(ctx, run)
		}
	}
	s.mu.Unlock()
	if last && over {
		s.close(ctx, run)
	}
}

// ended closes the servers of a run that ended while nobody attended it, such as one
// that was cancelled at a gate. It does not wait for that; wait does.
func (s *attendances) ended(ctx context.Context, run string) {
	s.mu.Lock()
	attended := s.runs[run] != nil
	s.mu.Unlock()
	if !attended {
		s.closing.Go(func() { s.close(ctx, run) })
	}
}

// cutOff closes the servers of all runs: another replica goes on with these runs, and
// opens its own. It does not wait for that; wait does.
func (s *attendances) cutOff(ctx context.Context) {
	s.closing.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeServers)
		defer cancel()
		if err := s.host.CloseRuns(ctx); err != nil {
			s.at.log.WarnContext(ctx, "servers of runs did not close as they should", "error", err)
		}
	})
}

// wait returns once no closing is under way.
func (s *attendances) wait() { s.closing.Wait() }

func (s *attendances) close(ctx context.Context, run string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeServers)
	defer cancel()
	if err := s.host.Close(ctx, run); err != nil {
		s.at.log.WarnContext(ctx, "servers of a run did not close as they should", "run", run, "error", err)
	}
}

// refusal is what the engine is told of servers that a run cannot have.
func (s *attendances) refusal(ctx context.Context, w *workflows.Workflow, err error) error {
	if missing, ok := errors.AsType[*inbound.UnapprovedError](err); ok {
		s.tell(ctx, w, missing)
		return &engine.RunError{Code: engine.CodeToolDenied, Message: unapprovedMessage(missing)}
	}
	if f, ok := errors.AsType[*workflows.ToolError](err); ok {
		message := f.Message
		if f.Server != "" {
			message = "MCP server " + f.Server + ": " + message
		}
		return &engine.RunError{Code: engine.Code(f.Fault), Message: message, Retryable: false}
	}
	return err
}

// unapprovedMessage is what anybody may know of programs without consent.
func unapprovedMessage(missing *inbound.UnapprovedError) string {
	parts := make([]string, len(missing.Servers))
	for i := range missing.Servers {
		parts[i] = fmt.Sprintf("MCP server %s (%s)", missing.Servers[i].Server, missing.Servers[i].Digest)
	}
	is := " is"
	if len(parts) > 1 {
		is = " are"
	}
	return strings.Join(parts, ", ") + is + " not approved on this machine: a person at the serving machine must approve it"
}

// tell writes to the standard error, which a person of this machine reads, what is not
// approved and how it can be.
func (s *attendances) tell(_ context.Context, w *workflows.Workflow, missing *inbound.UnapprovedError) {
	_, _ = io.WriteString(s.a.scrubber.Writer(s.a.stderr), unapprovedText(w.ID, missing))
}

func unapprovedText(workflow string, missing *inbound.UnapprovedError) string {
	var b strings.Builder
	for i := range missing.Servers {
		u := &missing.Servers[i]
		fmt.Fprintf(&b, "workflow %s: the program of MCP server %s is not approved on this machine\n", workflow, text.Clean(u.Server))
		question := consent.Question{Server: u.Server, Declaration: u.Declaration, Clean: text.Clean}
		if err := question.Show(&b); err != nil {
			fmt.Fprintf(&b, "  digest %s\n", u.Digest)
		}
		if u.Cause != nil {
			fmt.Fprintf(&b, "  the grants cannot be read: %s\n", text.Clean(u.Cause.Error()))
		}
		fmt.Fprintf(&b, "to approve it: relavium-serve consent grant %s\nonly for one process: --allow-mcp-stdio %s\n", workflow, u.Digest)
	}
	return b.String()
}

// checkServing looks at what the published workflows may start, before anybody calls
// one: what is not approved is asked about where a person is at the terminal, and
// listed on the standard error otherwise. Serving goes on; such a call is refused.
func (a *app) checkServing(ctx context.Context, at *site, listed []publish.Workflow, ask bool) error {
	at.spawning.ask.Store(ask)
	defer at.spawning.ask.Store(false)
	for i := range listed {
		w := &listed[i]
		err := at.agents.host.CheckRun(ctx, w.Workflow, w.Project.Root)
		if missing, ok := errors.AsType[*inbound.UnapprovedError](err); ok {
			at.agents.attend.tell(ctx, w.Workflow, missing)
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			at.log.WarnContext(ctx, "calls of a workflow will be refused", "workflow", w.ID, "why", err)
		}
	}
	return nil
}
