package publish

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// The companion tools. Their names do not follow the prefix.
const (
	statusName = "relavium_run_status"
	waitName   = "relavium_run_wait"
	cancelName = "relavium_run_cancel"
	listName   = "relavium_run_list"
)

// pageOfRuns is how many runs relavium_run_list shows at once.
const pageOfRuns = 50

func companionNames() []string { return []string{statusName, waitName, cancelName, listName} }

// companions are the tools by which a model follows runs. None decides a gate.
func (s *Server) companions() []*tool {
	const run = `"run":{"type":"string","description":"Id of the run, as a result or relavium_run_list names it."}`
	object := func(properties, required string) json.RawMessage {
		return json.RawMessage(`{"type":"object","properties":{` + properties + `},"additionalProperties":false` + required + `}`)
	}
	hints := func(readOnly, destructive, idempotent bool) []workflows.Member {
		flag := func(key string, on bool) workflows.Member {
			return workflows.Member{Key: key, Value: []byte(strconv.FormatBool(on))}
		}
		return []workflows.Member{
			flag("readOnlyHint", readOnly), flag("destructiveHint", destructive),
			flag("idempotentHint", idempotent), flag("openWorldHint", false),
		}
	}
	needsRun := `,"required":["run"]`
	companion := func(name, title, description string, input json.RawMessage, h []workflows.Member, call toolFunc) *tool {
		t := &tool{name: name, call: call}
		t.describe(title, description, input, nil, h)
		return t
	}
	return []*tool{
		companion(statusName, "Run status",
			"Shows how far a workflow run is: its status, its nodes, its open gates and its error. It changes nothing and answers no gate.",
			object(run, needsRun), hints(true, false, true), s.status),
		companion(waitName, "Wait for a run",
			"Waits for a workflow run to end and returns the workflow's own result. When time is up first, it returns the status and the open gates; call it again then. A person answers gates, not this tool.",
			object(run+`,"timeout_s":{"type":"number","description":"Seconds to wait.","minimum":1,"maximum":600,"default":50}`, needsRun),
			hints(true, false, true), s.wait),
		companion(cancelName, "Cancel a run",
			"Cancels a workflow run. What it has done so far stays done.",
			object(run, needsRun), hints(false, true, true), s.cancel),
		companion(listName, "List runs",
			"Lists workflow runs, newest first, 50 at a time.",
			object(`"before":{"type":"string","description":"Shows the runs before this run id, which is the next of a former page."}`, ""),
			hints(true, false, true), s.list),
	}
}

// args hands a companion tool's arguments to set, which returns what it wanted
// of one that it cannot take. Unknown ones are refused.
func (x *exchange) args(allowed []string, set func(name string, value json.RawMessage) string) *mcp.CallToolResult {
	raw := x.arguments()
	if raw == nil {
		return nil
	}
	members, err := workflows.Members(raw)
	if err != nil {
		return refusal("the arguments are not a JSON object")
	}
	for _, m := range members {
		if !slices.Contains(allowed, m.Key) {
			return refusal("unknown argument %q; known: %s", clip(m.Key, 64), strings.Join(allowed, ", "))
		}
		if want := set(m.Key, m.Value); want != "" {
			return refusal("%s: want %s", m.Key, want)
		}
	}
	return nil
}

func textOf(value json.RawMessage, into *string) string {
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, into) != nil {
		return "a string"
	}
	return ""
}

// ownRun reads the run that the call names, if it is the caller's and of a
// project that is served; else the result says that there is none.
func (s *Server) ownRun(ctx context.Context, x *exchange, id string) (*engine.Run, *mcp.CallToolResult) {
	if id == "" {
		return nil, refusal("run: want the id of a run, which is required")
	}
	r, err := s.engine.Run(ctx, id, x.caller.principal)
	if errors.Is(err, engine.ErrRunNotFound) || err == nil && !x.table.projects[r.Project] {
		return nil, refusal("no run %q; %s shows the runs there are", clip(id, 64), listName)
	}
	if err != nil {
		return nil, s.unexpected("read a run", "", err)
	}
	x.about(r)
	return r, nil
}

// runView is a run as the companion tools and resources show it.
type runView struct {
	Run      string           `json:"run"`
	Workflow string           `json:"workflow"`
	Status   string           `json:"status"`
	Reason   string           `json:"reason,omitempty"`
	Created  string           `json:"created"`
	Started  string           `json:"started,omitempty"`
	Ended    string           `json:"ended,omitempty"`
	Deadline string           `json:"deadline,omitempty"`
	Cost     int64            `json:"costMicrocents"`
	Error    *engine.RunError `json:"error,omitempty"`
	Nodes    []nodeView       `json:"nodes,omitempty"`
	Waiting  []gateView       `json:"waiting,omitempty"`
}

type nodeView struct {
	ID     string `json:"id"`
	Type   string `json:"type"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

type gateView struct {
	Gate    string `json:"gate"`
	Message string `json:"message"`
	Expires string `json:"expires,omitempty"`
}

func viewOf(r *engine.Run) runView {
	v := runView{
		Run: r.ID, Workflow: r.Workflow, Status: string(r.State), Reason: r.Reason, Cost: r.Cost, Error: r.Error,
		Created: rfc3339(r.Created), Started: rfc3339(r.Started), Ended: rfc3339(r.Ended), Deadline: rfc3339(r.Deadline),
	}
	for _, n := range r.Nodes {
		v.Nodes = append(v.Nodes, nodeView{n.ID, n.Type, n.State, n.Reason})
	}
	return v
}

func (s *Server) openGates(ctx context.Context, run string) ([]gateView, error) {
	gates, err := s.engine.Gates(ctx, engine.GateFilter{Run: run, Open: true})
	if err != nil {
		return nil, err
	}
	var open []gateView
	for i := range gates {
		open = append(open, gateView{gates[i].ID, gates[i].Message, rfc3339(gates[i].Expires)})
	}
	return open, nil
}

// shown is a companion tool's result: the same as structure and as text.
func (s *Server) shown(x *exchange, run string, v any) *mcp.CallToolResult {
	structured, err := encode(v)
	if err != nil {
		return s.unexpected("encode a result", run, err)
	}
	r := x.result(structured, mcp.NewTextContent(string(structured)))
	if run != "" {
		r.Meta = &mcp.Meta{AdditionalFields: map[string]any{"relavium/runId": run}}
	}
	return r
}

func (s *Server) status(ctx context.Context, x *exchange, _ *tool) *mcp.CallToolResult {
	var id string
	if bad := x.args([]string{"run"}, func(_ string, v json.RawMessage) string { return textOf(v, &id) }); bad != nil {
		return bad
	}
	r, bad := s.ownRun(ctx, x, id)
	if bad != nil {
		return bad
	}
	view := viewOf(r)
	if !r.State.Terminal() {
		open, err := s.openGates(ctx, id)
		if err != nil {
			return s.unexpected("read gates", id, err)
		}
		view.Waiting = open
	}
	return s.shown(x, id, view)
}

// waitArguments are those of relavium_run_wait.
func (x *exchange) waitArguments() (id string, timeout time.Duration, bad *mcp.CallToolResult) {
	timeout = 50 * time.Second
	bad = x.args([]string{"run", "timeout_s"}, func(name string, v json.RawMessage) string {
		if name == "run" {
			return textOf(v, &id)
		}
		n, err := strconv.ParseFloat(string(v), 64)
		if err != nil || n < 1 || n > 600 {
			return "a number from 1 to 600"
		}
		timeout = time.Duration(n * float64(time.Second))
		return ""
	})
	return id, timeout, bad
}

// wait attaches to a run like the call that started it.
func (s *Server) wait(ctx context.Context, x *exchange, _ *tool) *mcp.CallToolResult {
	received := time.Now()
	id, timeout, bad := x.waitArguments()
	if bad != nil {
		return bad
	}
	r, bad := s.ownRun(ctx, x, id)
	if bad != nil {
		return bad
	}
	w := &wait{
		server: s, x: x, workflow: x.table.published(r.Project, r.Workflow), run: id, late: true,
		progress: newProgress(x, len(r.Nodes)),
		request:  x.requestOf(waitName, x.arguments()),
	}
	return s.waited(ctx, w, received, timeout)
}

// waited waits for the run's result, and says how the run stands when the time
// is up first.
func (s *Server) waited(ctx context.Context, w *wait, received time.Time, timeout time.Duration) *mcp.CallToolResult {
	x, id := w.x, w.run
	w.limit = received.Add(timeout)
	if at := s.handoverAt(x, received); !at.IsZero() && at.Before(w.limit) {
		w.limit = at
	}
	result, over := w.attached(ctx)
	if !over {
		return result
	}
	r, bad := s.ownRun(ctx, x, id)
	if bad != nil {
		return bad
	}
	if r.State.Terminal() { // it ended in the moment in which the time was up
		w.limit = time.Now().Add(storeTimeout)
		if result, over = w.attached(ctx); !over {
			return result
		}
	}
	open, err := s.openGates(ctx, id)
	if err != nil {
		return s.unexpected("read gates", id, err)
	}
	if open == nil {
		open = []gateView{}
	}
	return s.shown(x, id, struct {
		Run     string     `json:"run"`
		Status  string     `json:"status"`
		Waiting []gateView `json:"waiting"`
	}{id, string(r.State), open})
}

// attached attaches to the run and waits for its result.
func (w *wait) attached(ctx context.Context) (result *mcp.CallToolResult, over bool) {
	sctx, done := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	err := w.attach(sctx)
	done()
	if err != nil {
		return w.server.unexpected("attach to a run", w.run, err), false
	}
	return w.result(ctx)
}

func (s *Server) cancel(ctx context.Context, x *exchange, _ *tool) *mcp.CallToolResult {
	var id string
	if bad := x.args([]string{"run"}, func(_ string, v json.RawMessage) string { return textOf(v, &id) }); bad != nil {
		return bad
	}
	r, bad := s.ownRun(ctx, x, id)
	if bad != nil {
		return bad
	}
	type cancelled struct {
		Run       string `json:"run"`
		Status    string `json:"status"`
		Cancelled bool   `json:"cancelRequested"`
	}
	if r.State.Terminal() {
		return s.shown(x, id, cancelled{id, string(r.State), false})
	}
	cctx, done := detached(ctx)
	defer done()
	if err := s.engine.Cancel(cctx, id, string(x.caller.principal), engine.ViaMCP, "cancelled by "+cancelName); err != nil {
		return s.unexpected("cancel a run", id, err)
	}
	return s.shown(x, id, cancelled{id, string(r.State), true})
}

func (s *Server) list(ctx context.Context, x *exchange, _ *tool) *mcp.CallToolResult {
	var before string
	if bad := x.args([]string{"before"}, func(_ string, v json.RawMessage) string { return textOf(v, &before) }); bad != nil {
		return bad
	}
	if before != "" {
		if _, bad := s.ownRun(ctx, x, before); bad != nil {
			return bad
		}
	}
	page := struct {
		Runs []runView `json:"runs"`
		Next string    `json:"next,omitempty"`
	}{Runs: []runView{}}
	filter := engine.RunFilter{Principal: x.caller.principal, Before: before, Limit: pageOfRuns + 1}
	if len(x.table.projects) == 1 {
		for key := range x.table.projects {
			filter.Project = key
		}
	}
	for {
		runs, err := s.engine.Runs(ctx, filter)
		if err != nil {
			return s.unexpected("list runs", "", err)
		}
		for i := range runs {
			if !x.table.projects[runs[i].Project] {
				continue
			}
			if len(page.Runs) == pageOfRuns {
				page.Next = page.Runs[pageOfRuns-1].Run
				return s.shown(x, "", page)
			}
			page.Runs = append(page.Runs, viewOf(&runs[i]))
		}
		if len(runs) < filter.Limit {
			return s.shown(x, "", page)
		}
		filter.Before = runs[len(runs)-1].ID
	}
}
