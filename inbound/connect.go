package inbound

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/inbound/child"
)

// A connection is one server of one run, from its start to the end of its last work.
type connection struct {
	*declared
	attempt *attempt
	session *session
	proc    *child.Process // of a stdio server
	found   Discovered
	started time.Time
	took    Timing

	up      chan struct{} // closed when the connect has ended, in either way
	closing sync.Once
	done    chan struct{} // closed when nothing of it is left
	settled func()        // says that nothing of it is owed any more
	failure error         // of the close; to be read after done
}

// Timing is how long the steps of a connection took.
type Timing struct {
	Start     time.Duration // spawn or dial
	Handshake time.Duration
	Discovery time.Duration
}

// dial starts or dials a server. It sets what is owed as soon as it exists, so that
// whatever fails later, close finds it.
func (c *connection) dial(ctx context.Context, r *run, legacy bool) error {
	h := r.host
	report := h.reporter(ctx, r.ID, c.name)
	p := newPeer(report)
	s := &session{peer: p, client: h.client, depth: r.Depth}
	var err error
	switch {
	case h.wires != nil:
		s.wire, err = h.wires(c.declared, p)
	case c.stdio():
		s.wire, err = c.spawn(ctx, r, p)
	case c.ref.Transport == transportWebsocket:
		s.wire, err = wired(dialSocket(ctx, c.target, c.egress(h), p))
	case legacy:
		s.wire, err = wired(dialSSE(ctx, c.target, c.egress(h), p))
		if err == nil {
			report("it speaks the deprecated HTTP+SSE transport")
		}
	default:
		s.wire = newHTTPWire(c.target, c.egress(h), p)
	}
	if err != nil {
		return err
	}
	c.session = s
	p.start(ctx, s.wire)
	return nil
}

// maxReports bounds what is logged of one connection's oddities.
const maxReports = 32

// reporter logs what is odd about a server, up to a bound.
func (h *Host) reporter(ctx context.Context, runID, server string) func(what string, args ...any) {
	log := h.opt.Log.With("run", runID, "server", server)
	var n atomic.Int32
	return func(what string, args ...any) {
		switch at := n.Add(1); {
		case at > maxReports+1:
			n.Store(maxReports + 1) // it must not wrap
		case at == maxReports+1:
			log.WarnContext(ctx, "mcp server: nothing more of it is logged")
		default:
			log.InfoContext(ctx, "mcp server", append([]any{"what", what}, args...)...)
		}
	}
}

// egress are the options of a client whose deadlines are ours.
func (c *connection) egress(h *Host) egress.Options {
	opt := h.opt.Egress
	opt.ConnectTimeout = c.limit
	opt.Timeout = max(c.limit, callLimit) + drainLimit
	return opt
}

// wired makes a nil wire of one that did not come about.
func wired[W wire](w W, err error) (wire, error) {
	if err != nil {
		return nil, err
	}
	return w, nil
}

// spawn starts the program.
func (c *connection) spawn(ctx context.Context, r *run, p *peer) (wire, error) {
	h := r.host
	if err := c.prepare(); err != nil {
		return nil, &child.StartError{Program: filepath.Base(c.ref.Command), Reason: err.Error()}
	}
	env, err := h.environment(ctx, c.declared)
	if err != nil {
		return nil, err
	}
	spec := h.opt.Child
	spec.Path, spec.Args, spec.Dir, spec.Env = c.program.Command, c.program.Args, c.program.Cwd, env
	spec.Label, spec.Owner = c.digest, r.Principal
	spec.Log = h.opt.Log.With("run", r.ID, "server", c.name)
	spec.Recheck = func() error {
		if err := r.admits(ctx); err != nil {
			return err
		}
		if refused := c.attempt.again(); refused != nil {
			return refused // it may have waited for a place for long
		}
		return h.granted(ctx, c.digest)
	}
	proc, err := h.opt.Children.Start(ctx, spec)
	if err != nil {
		return nil, c.startFailure(ctx, err)
	}
	c.proc = proc
	if h.opt.Started != nil {
		h.opt.Started(ctx, Started{Run: r.ID, Principal: r.Principal, Server: c.name, Digest: c.digest})
	}
	w := newStream(proc.Stdin(), proc.Close)
	go w.read(proc.Stdout(), p)
	return w, nil
}

// startFailure keeps apart a start that was refused for want of a grant.
func (c *connection) startFailure(ctx context.Context, err error) error {
	if denied, ok := errors.AsType[*consent.NotGrantedError](err); ok {
		return consentFault([]Unapproved{{Server: c.name, Digest: c.digest, Declaration: c.program, Cause: denied.Cause}})
	}
	if ctx.Err() != nil {
		if _, full := errors.AsType[*child.FullError](err); !full {
			return context.Cause(ctx)
		}
	}
	return err
}

// environment resolves the variables that a program is given.
func (h *Host) environment(ctx context.Context, d *declared) (child.Environment, error) {
	v := child.Variables{Host: h.opt.Environ, Pass: h.opt.Pass}
	var secret [][]byte
	defer func() {
		for _, value := range secret {
			clear(value)
		}
	}()
	for _, e := range d.ref.Env {
		value := []byte(e.Value)
		if name, isRef := consent.SecretRef(e.Value); isRef {
			if h.opt.Secret == nil {
				return child.Environment{}, secretFault(d.name, e.Name, name, errors.New("no source of secrets"))
			}
			var err error
			if value, err = h.opt.Secret(ctx, name); err != nil {
				return child.Environment{}, secretFault(d.name, e.Name, name, err)
			}
			secret = append(secret, value)
		}
		v.Declared = append(v.Declared, child.Variable{Name: e.Name, Value: value})
	}
	env, err := child.NewEnvironment(v)
	if err != nil {
		return child.Environment{}, badDeclaration(d.name, err)
	}
	return env, nil
}

// connect brings a server up: spawn or dial, handshake, discovery. What of it exists
// when it fails is c's to close.
func (c *connection) connect(asked context.Context, r *run) error {
	c.started = time.Now()
	ctx, stop := context.WithTimeoutCause(asked, c.limit, errConnectDeadline)
	defer stop()
	err := c.handshake(ctx, r)
	if err != nil {
		if ctx.Err() != nil && !cancelled(asked) && errors.Is(context.Cause(ctx), errConnectDeadline) {
			if _, full := errors.AsType[*child.FullError](err); !full {
				err = errors.Join(errConnectDeadline, err)
			}
		}
		return startFault(asked, c.name, c.declared, err, c.started)
	}
	if err := c.discover(asked, r.host.admissions); err != nil {
		return startFault(asked, c.name, c.declared, err, c.started)
	}
	return r.host.pin(asked, c)
}

// handshake starts or dials and opens the session, under the connect deadline.
func (c *connection) handshake(ctx context.Context, r *run) error {
	if err := c.dial(ctx, r, false); err != nil {
		return err
	}
	c.took.Start = time.Since(c.started)
	err := c.session.negotiate(ctx, false)
	switch {
	case errors.Is(err, errLegacyOnly):
		// It is gone without a session, and is owed no more than its own end.
		r.retire(ctx, c)
		if err = c.dial(ctx, r, false); err == nil {
			err = c.session.negotiate(ctx, true)
		}
	case err != nil && c.ref.Transport == transportSSE && isOld(err):
		r.retire(ctx, c)
		if err = c.dial(ctx, r, true); err == nil {
			err = c.session.negotiate(ctx, true)
		}
	}
	c.took.Handshake = time.Since(c.started) - c.took.Start
	return err
}

// isOld tells whether the first POST was answered as a server of HTTP+SSE does.
func isOld(err error) bool {
	status, ok := errors.AsType[*statusError](err)
	return ok && (status.status == 400 || status.status == 404 || status.status == 405)
}

// discover walks the pages of tools/list.
func (c *connection) discover(asked context.Context, known *admissions) error {
	since := time.Now()
	ctx, stop := context.WithTimeoutCause(asked, discoveryLimit, errDiscoveryDeadline)
	defer stop()
	walk := newDiscovery(c.name, c.segment(), known)
	at := ""
	for {
		raw, err := c.session.page(ctx, at)
		if fault, ok := errors.AsType[*rpcError](err); ok && fault.code == mcp.METHOD_NOT_FOUND && !c.session.tools && at == "" {
			break // it has no tools and says so
		}
		if err != nil {
			if errors.Is(context.Cause(ctx), errDiscoveryDeadline) {
				err = errors.Join(errDiscoveryDeadline, err)
			}
			return discoveryFault(asked, c, err)
		}
		next, more, err := walk.page(raw)
		if err != nil {
			return discoveryFault(asked, c, err)
		}
		if !more {
			break
		}
		at = next
	}
	c.found = walk.finish()
	c.checkHeaders()
	c.took.Discovery = time.Since(since)
	return nil
}

// checkHeaders drops the tools whose parameters cannot be said in headers, where they
// must be: "Clients MUST reject tool definitions" whose x-mcp-header is invalid
// (2026-07-28, Transports).
func (c *connection) checkHeaders() {
	if _, overHTTP := c.session.wire.(*httpWire); !overHTTP || !c.session.modern {
		return
	}
	kept := c.found.Tools[:0]
	for _, t := range c.found.Tools {
		if err := mcp.ValidateParamHeaderAnnotations(&mcp.Tool{Name: t.Name, RawInputSchema: t.InputSchema}); err != nil {
			c.found.Dropped = append(c.found.Dropped, DroppedTool{Name: t.Name, Reason: "bad_header", Detail: "its x-mcp-header is invalid", Bytes: t.Bytes})
			continue
		}
		kept = append(kept, t)
	}
	c.found.Tools = kept
}

// exitWait is how long an end of the output waits for that of the program, which is soon
// after it but on a busy machine.
const exitWait = 2 * time.Second

// exit says how the program ended, if it has.
func (c *connection) exit(ctx context.Context) string {
	if c.proc == nil {
		return ""
	}
	timer := time.NewTimer(exitWait)
	defer timer.Stop()
	select {
	case <-c.proc.Done():
	case <-timer.C:
		return ""
	case <-ctx.Done():
		return ""
	}
	switch exit := c.proc.Exit(); {
	case exit.Signal != "":
		return " (" + exit.Signal + ")"
	case exit.Code >= 0:
		return fmt.Sprintf(" (exit code %d)", exit.Code)
	}
	return ""
}

// end begins the one close of the connection, unless it has begun; done is closed when
// its process or its socket has ended and all its work has.
func (c *connection) end(ctx context.Context) {
	c.closing.Do(func() {
		go func() {
			defer c.settled()
			defer close(c.done)
			if c.session != nil {
				c.failure = c.session.peer.close(context.WithoutCancel(ctx))
			}
		}()
	})
}
