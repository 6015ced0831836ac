package console

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// A Visitor is somebody who was let in, and what the console shows them. What it
// does not show does not exist for them.
type Visitor struct {
	Principal engine.Principal
	// Gates reports whether the gates of a workflow are shown, and may be decided;
	// nil means all.
	Gates func(workflow string) bool
	// Runs says that all runs are shown whole. Without it there are the visitor's
	// own, and of others what a gate shows of its run.
	Runs bool
	// Live reports whether they are let in still; it is asked for every page and
	// now and then for an open one. Nil means for as long as a login lasts.
	Live func(ctx context.Context) bool
}

// gates reports whether gates of the workflow are shown.
func (v *Visitor) gates(workflow string) bool { return v.Gates == nil || v.Gates(workflow) }

// sees reports whether the run is shown whole.
func (v *Visitor) sees(r *engine.Run) bool { return v.Runs || r.Principal == v.Principal }

// cancels reports whether the run may be cancelled.
func (v *Visitor) cancels(r *engine.Run) bool {
	return v.Principal == engine.Local || r.Principal == v.Principal
}

func (v *Visitor) live(ctx context.Context) bool { return v.Live == nil || v.Live(ctx) }

// gateOf reads a gate that the visitor may see.
func (c *Console) gateOf(ctx context.Context, s *session, gate string) (engine.Gate, error) {
	g, err := c.opt.Engine.Gate(ctx, gate)
	if err == nil && !s.visitor.gates(g.Workflow) {
		return engine.Gate{}, engine.ErrGateNotFound
	}
	return g, err
}

// seen is err, or that there is no such run for the visitor.
func (s *session) seen(r *engine.Run, err error) error {
	if err == nil && !s.visitor.sees(r) {
		return engine.ErrRunNotFound
	}
	return err
}

// onlyNamed leaves out the outputs of a run that the gate's message does not
// name: whoever decides sees what was meant to be decided by.
func (c *Console) onlyNamed(ctx context.Context, r *engine.Run, g *engine.Gate) {
	var named []string
	if w, err := c.opt.Engine.Definition(ctx, r.ID); err == nil {
		if n, ok := w.Node(g.Node); ok {
			if spec, ok := n.Spec.(workflows.GateNode); ok {
				named = spec.Message.Outputs()
			}
		}
	}
	for i := range r.Nodes {
		if !slices.Contains(named, r.Nodes[i].ID) {
			r.Nodes[i].Output = nil
		}
	}
}

// bearer is the session of a request that shows by itself who it is from, as a
// proxy makes them that logs people in; nil where it is not let in.
func (c *Console) bearer(r *http.Request) *session {
	values := r.Header.Values("Authorization")
	if len(values) != 1 || len(values[0]) > maxSecret {
		return nil
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return nil
	}
	v, ok := c.opt.Login.Admit(r.Context(), secret)
	if !ok {
		return nil
	}
	about := "bearer " + string(v.Principal)
	return &session{visitor: v, form: c.sessions.seal(about), about: about, ends: c.opt.Now().Add(sessionLife), byHeader: true}
}

// current finds the session of a request, or nil.
func (c *Console) current(r *http.Request) *session {
	if len(r.Header.Values("Authorization")) > 0 {
		return c.bearer(r)
	}
	s := c.find(r.Context(), cookieValue(r, cookieName(r)))
	if s == nil || !s.visitor.live(r.Context()) {
		return nil
	}
	return s
}

// lasts reports whether an open page of the session may stay open.
func (c *Console) lasts(r *http.Request, s *session) bool {
	if !c.opt.Now().Before(s.ends) || !s.visitor.live(r.Context()) {
		return false
	}
	return s.byHeader || c.find(r.Context(), cookieValue(r, cookieName(r))) != nil
}
