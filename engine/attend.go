package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/relavium/relavium-serve/workflows"
)

// served lists the agents with servers of those agent nodes that are not settled;
// settled may be nil.
func served(w *workflows.Workflow, settled func(node string) bool) []*workflows.Agent {
	var out []*workflows.Agent
	for i := range w.Nodes {
		spec, ok := w.Nodes[i].Spec.(workflows.AgentNode)
		if !ok || settled != nil && settled(w.Nodes[i].ID) {
			continue
		}
		agent, ok := w.Agent(spec.AgentRef)
		if ok && len(agent.Servers) > 0 && !slices.Contains(out, agent) {
			out = append(out, agent)
		}
	}
	return out
}

// attendNew asks for what a run that is about to be made needs. leave is never nil.
func (e *Engine) attendNew(ctx context.Context, req StartRequest, run string) (leave func(ended bool), err error) {
	agents := served(req.Workflow, nil)
	if e.opt.Attend == nil || len(agents) == 0 {
		return func(bool) {}, nil
	}
	leave, err = e.opt.Attend(ctx, Attendance{Run: run, Project: req.Project, Principal: req.Principal, Workflow: req.Workflow, Agents: agents, Depth: req.Depth})
	if err != nil {
		return func(bool) {}, err
	}
	return leave, nil
}

// attend asks for what the rest of the run needs; where that is refused the run
// fails. leave is never nil.
func (x *execution) attend(ctx context.Context) (leave func(), err error) {
	agents := served(x.wf, func(node string) bool { return x.nodes[node].settled() })
	if x.e.opt.Attend == nil || len(agents) == 0 || x.ended() {
		return func() {}, nil
	}
	done, err := x.e.opt.Attend(x.ctx, Attendance{ //nolint:contextcheck // the run's own life, which ctx bounds
		Run: x.row.id, Project: Project{Key: x.row.project, Root: x.row.root}, Principal: x.row.principal, Workflow: x.wf, Agents: agents, Depth: x.row.depth,
	})
	if err == nil {
		return func() { done(x.terminal) }, nil
	}
	if ctx.Err() != nil {
		return func() {}, context.Cause(ctx)
	}
	if x.ctx.Err() != nil {
		return func() {}, nil //nolint:nilerr // cancelled or too late, which the loop sees
	}
	failure, ok := errors.AsType[*RunError](err)
	if !ok {
		failure = x.e.internal(ctx, x.row.id, "", err)
	}
	x.settleDecided()
	x.fail(failure)
	return func() {}, nil
}

// settleDecided settles the gates that were decided before this segment, of a run that
// does not go on: what a person said stands.
func (x *execution) settleDecided() {
	for _, id := range x.order {
		if g, ok := x.gates[id]; ok && g.Decision != "" && x.nodes[id].state == "ready" {
			x.settleGate(id, x.nodes[id], g)
		}
	}
}

// ended tells whoever keeps something for a run that it is over.
func (e *Engine) ended(run string) {
	if e.opt.Ended != nil {
		e.opt.Ended(run)
	}
}
