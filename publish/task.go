package publish

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates"
	"github.com/relavium/relavium-serve/publish/transport"
	"github.com/relavium/relavium-serve/workflows"
)

// When calls become tasks; see Options.Tasks.
const (
	TasksAuto   = "auto"
	TasksAlways = "always"
	TasksNever  = "never"
)

const (
	// taskExtension is the extension by which a call becomes a task, of clients of
	// 2026-07-28 that declare it.
	taskExtension = "io.modelcontextprotocol/tasks"

	taskGet    = "tasks/get"
	taskUpdate = "tasks/update"
	taskCancel = "tasks/cancel"

	// pollInterval is how often clients are asked to look, in milliseconds.
	pollInterval = 2000
	// sampled is how many of a workflow's last runs tell how long it takes.
	sampled = 20
)

// The states of a task.
const (
	taskWorking   = "working"
	taskAsks      = "input_required"
	taskCompleted = "completed"
	taskCancelled = "cancelled"
	taskFailed    = "failed"
)

// lasts reports whether runs of the workflow may wait for a person, or for a
// model: such calls become tasks.
func lasts(w *workflows.Workflow) bool {
	if w.Budget != nil && w.Budget.OnExceed == "pause_for_approval" {
		return true
	}
	for i := range w.Nodes {
		switch w.Nodes[i].Spec.(type) {
		case workflows.GateNode, workflows.AgentNode:
			return true
		case workflows.InputNode, workflows.OutputNode, workflows.ConditionNode, workflows.TransformNode, workflows.ParallelNode, workflows.MergeNode:
			// over soon
		}
	}
	return false
}

func (c *caller) declaresTasks() bool {
	return c.modern && c.capabilities.Extensions[taskExtension] != nil
}

// becomesTask reports whether a call of the workflow returns with a task.
func (s *Server) becomesTask(ctx context.Context, x *exchange, w *Workflow) bool {
	switch {
	case s.opt.Tasks == TasksNever || !x.caller.declaresTasks():
		return false
	case s.opt.Tasks == TasksAlways || lasts(w.Workflow):
		return true
	}
	limit := s.handover[x.caller.client.Name]
	return limit > 0 && s.usual(ctx, w) > limit
}

// usual is how long 95 of 100 runs of the workflow take at most, by its last ones.
func (s *Server) usual(ctx context.Context, w *Workflow) time.Duration {
	runs, err := s.engine.Runs(ctx, engine.RunFilter{
		Project: w.Project.Key, Workflow: w.ID, States: []engine.State{engine.Completed, engine.Failed}, Limit: sampled,
	})
	if err != nil || len(runs) == 0 {
		return 0
	}
	took := make([]time.Duration, len(runs))
	for i := range runs {
		took[i] = runs[i].Ended.Sub(runs[i].Created)
	}
	slices.Sort(took)
	return took[(len(took)*95+99)/100-1]
}

// createTask answers a call by a task: its run, which is durable and goes on
// without the call once the client has the task. A call that ends before leaves
// the run, or ends it, as one that waits does. The task is set as the exchange's
// result.
func (s *Server) createTask(ctx context.Context, x *exchange, w *Workflow, started *engine.Started) error {
	sctx, done := detached(ctx)
	defer done()
	held := &wait{server: s, x: x, workflow: w, run: started.Run, progress: newProgress(x, len(w.Nodes))}
	if err := held.attach(sctx); err != nil {
		return err
	}
	r, err := s.engine.Run(sctx, started.Run, x.caller.principal)
	if err != nil {
		held.detach(ctx, engine.DetachDrop)
		return err
	}
	v := s.taskOf(r)
	v.ResultType = "task"
	v.Meta["relavium/runId"] = r.ID
	if started.Joined {
		v.Meta["relavium/joined"] = true
	}
	if x.instead, err = encode(v); err != nil {
		held.detach(ctx, engine.DetachDrop)
		return err
	}
	// What became of the answer counts, not the end of ctx: the dispatcher ends it, and a
	// client may close its connection as soon as it has read the answer.
	x.delivered = func() { held.detach(ctx, engine.DetachHandOver) } // nobody's orphan: a task is polled
	x.lost = func(ctx context.Context) { held.interrupted(ctx) }
	return nil
}

// A taskView is a task as its client sees it.
type taskView struct {
	ResultType    string            `json:"resultType"`
	ID            string            `json:"taskId"`
	Status        string            `json:"status"`
	StatusMessage string            `json:"statusMessage,omitempty"`
	Created       string            `json:"createdAt"`
	Updated       string            `json:"lastUpdatedAt"`
	TTL           *int64            `json:"ttlMs"` // nil until the run ended
	PollInterval  int               `json:"pollIntervalMs"`
	InputRequests mcp.InputRequests `json:"inputRequests,omitempty"`
	Result        json.RawMessage   `json:"result,omitempty"`
	Error         *transport.Error  `json:"error,omitempty"`
	Meta          map[string]any    `json:"_meta"`
}

// taskOf is the task of a run, without what only tasks/get tells.
func (s *Server) taskOf(r *engine.Run) *taskView {
	v := &taskView{
		ResultType: string(mcp.ResultTypeComplete), ID: r.ID, Status: taskWorking, PollInterval: pollInterval,
		Created: rfc3339(r.Created), Updated: rfc3339(later(r.Created, r.Started, r.Ended)),
		Meta: map[string]any{mcp.MetaKeyServerInfo: s.info},
	}
	switch r.State {
	case engine.Completed:
		v.Status = taskCompleted
	case engine.Failed:
		v.Status = taskCompleted // with a result that is an error
		if r.Error == nil || r.Error.Code == engine.CodeInternal {
			v.Status = taskFailed
		}
	case engine.Cancelled:
		v.Status = taskCancelled
	case engine.Running, engine.Waiting, engine.Blocked, engine.Parked:
		return v
	}
	if s.opt.Keep > 0 {
		v.TTL = new(s.opt.Keep.Milliseconds())
	}
	return v
}

func later(times ...time.Time) time.Time {
	return slices.MaxFunc(times, time.Time.Compare)
}

// asksTask reports whether the request is one of the extension.
func (s *Server) asksTask(x *exchange) bool {
	if s.opt.Tasks == TasksNever || !x.caller.modern {
		return false
	}
	switch x.request.Method {
	case taskGet, taskUpdate, taskCancel:
		return true
	}
	return false
}

// task answers a request of the extension.
func (s *Server) task(ctx context.Context, x *exchange) transport.Reply {
	if x.request.Meta(mcp.MetaKeyClientCapabilities) == nil {
		return transport.Reply{Error: &transport.Error{
			Code: transport.CodeInvalidParams, Message: "missing or invalid _meta member " + mcp.MetaKeyClientCapabilities,
		}}
	}
	if !x.caller.declaresTasks() {
		return transport.Reply{Error: &transport.Error{
			Code:    codeMissingCapability,
			Message: "missing required client capability: the extension " + taskExtension,
			Data:    json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + taskExtension + `":{}}}}`),
		}}
	}
	var id string
	if raw := x.request.Param("taskId"); len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &id) != nil {
		return transport.Reply{Error: &transport.Error{Code: transport.CodeInvalidParams, Message: "invalid params: taskId is a string"}}
	}
	r, err := s.engine.Run(ctx, id, x.caller.principal)
	if errors.Is(err, engine.ErrRunNotFound) || err == nil && !x.table.projects[r.Project] {
		return transport.Reply{Error: &transport.Error{Code: transport.CodeInvalidParams, Message: "invalid params: no task " + clip(id, 64)}}
	}
	var answer any = &taskView{}
	if err == nil {
		x.about(r)
		answer, err = s.taskAnswer(ctx, x, r)
	}
	var body json.RawMessage
	if err == nil {
		body, err = encode(answer)
	}
	if err != nil {
		return transport.Reply{Error: s.internalFault(x.request.Method, slog.String("run", id), slog.Any("error", err))}
	}
	return x.carried(ctx, body)
}

func (s *Server) taskAnswer(ctx context.Context, x *exchange, r *engine.Run) (any, error) {
	actx, done := detached(ctx) // what a request began is done, whether or not its client waits
	defer done()
	switch x.request.Method {
	case taskUpdate:
		if !r.State.Terminal() {
			if err := s.taskAsker(x, r).Answer(actx, x.request.Param("inputResponses")); err != nil {
				return nil, err
			}
		}
	case taskCancel:
		if !r.State.Terminal() {
			if err := s.engine.Cancel(actx, r.ID, string(x.caller.principal), engine.ViaMCP, "cancelled by "+taskCancel); err != nil {
				return nil, err
			}
		}
	default:
		return s.detailed(ctx, x, r)
	}
	return struct {
		ResultType string         `json:"resultType"`
		Meta       map[string]any `json:"_meta"`
	}{string(mcp.ResultTypeComplete), map[string]any{mcp.MetaKeyServerInfo: s.info}}, nil
}

func (s *Server) taskAsker(x *exchange, r *engine.Run) *gates.Task {
	return s.ladder.Task(x.client(), s.policy(x.table.published(r.Project, r.Workflow)), r.ID)
}

// detailed is what tasks/get tells: the questions that wait for the client's
// person, or how the run ended.
func (s *Server) detailed(ctx context.Context, x *exchange, r *engine.Run) (*taskView, error) {
	v := s.taskOf(r)
	switch v.Status {
	case taskWorking:
		return v, s.unfinished(ctx, x, r, v)
	case taskCancelled:
		return v, nil
	case taskFailed:
		v.Error = &transport.Error{Code: transport.CodeInternal, Message: "internal error"}
		if r.Error != nil && r.Error.CorrelationID != "" {
			v.Error.Message += " (correlation id " + r.Error.CorrelationID + ")"
		}
	case taskCompleted:
		ev := &engine.Event{
			Type: engine.RunCompleted, Outputs: r.Outputs, TotalCost: new(r.Cost), DurationMS: new(r.Ended.Sub(r.Created).Milliseconds()),
		}
		if r.State == engine.Failed {
			ev.Type, ev.Error = engine.RunFailed, r.Error
		}
		result := s.ended(ctx, x, r.ID, ev, false)
		result.ResultType = mcp.ResultTypeComplete
		var err error
		if v.Result, err = encode(result); err != nil {
			return nil, err
		}
	}
	c := &claim{server: s, run: r.ID}
	x.delivered = func() { c.delivered(ctx) }
	return v, nil
}

// unfinished adds what a run waits for.
func (s *Server) unfinished(ctx context.Context, x *exchange, r *engine.Run, v *taskView) error {
	var err error
	if v.InputRequests, err = s.taskAsker(x, r).Requests(ctx); err != nil {
		return err
	}
	if len(v.InputRequests) > 0 {
		v.Status = taskAsks
	}
	all, err := s.engine.Gates(ctx, engine.GateFilter{Run: r.ID})
	if err != nil {
		return err
	}
	newest := later(r.Created, r.Started)
	w := &wait{server: s, x: x, run: r.ID, workflow: x.table.published(r.Project, r.Workflow)}
	for i := range all {
		g := &all[i]
		newest = later(newest, g.Opened, g.Decided)
		if g.Decision == "" && v.StatusMessage == "" {
			v.StatusMessage = gateLine(g.Node, g.Message, w.where(&engine.Event{Gate: g.ID, GateType: g.Type}))
		}
	}
	v.Updated = rfc3339(newest)
	return nil
}
