package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/workflows"
)

// history is an engine's memory of one dispatch: what is done is not done again.
// It outlives the runner's process, as the table of effects does.
type history struct {
	mu       sync.Mutex
	rows     map[string]*row
	asked    []string // every place that Do was asked for, with its request, once
	made     map[string]int
	events   []engine.Event
	effects  []engine.Effect
	used     map[string]bool // approvals
	stopAt   int             // the process ends after so many effects are done; 0 means never
	done     int
	skip     map[string]bool  // places that a person skips
	deny     map[string]error // what Do returns for a place before it performs
	cost     int64
	reserved int64
}

type row struct {
	request string
	started bool
	done    bool
	result  engine.EffectResult
}

var errEnded = errors.New("the process ends")

func newHistory() *history {
	return &history{rows: map[string]*row{}, made: map[string]int{}, used: map[string]bool{}, skip: map[string]bool{}, deny: map[string]error{}}
}

func (h *history) do(ctx context.Context, e engine.Effect, perform engine.Perform) (engine.EffectResult, error) {
	place := fmt.Sprintf("%s:%d", e.Path, e.N)
	h.mu.Lock()
	r, ok := h.rows[place]
	if !ok {
		r = &row{request: string(e.Request)}
		h.rows[place] = r
		h.asked = append(h.asked, place+" "+e.Kind+" "+e.Name)
	}
	h.effects = append(h.effects, e)
	switch {
	case r.request != string(e.Request):
		h.mu.Unlock()
		return engine.EffectResult{}, fmt.Errorf("place %s was %s and is %s", place, r.request, e.Request)
	case r.done:
		h.mu.Unlock()
		out := r.result
		out.Replayed = true
		return out, nil
	case h.skip[place]:
		h.mu.Unlock()
		return engine.EffectResult{}, engine.ErrSkipped
	case h.deny[place] != nil:
		h.mu.Unlock()
		return engine.EffectResult{}, h.deny[place]
	case r.started && !e.Repeatable:
		h.mu.Unlock()
		return engine.EffectResult{}, engine.ErrParked
	case e.Approval != "" && h.used[e.Approval]:
		h.mu.Unlock()
		return engine.EffectResult{}, engine.ErrApprovalUsed
	case h.stopAt > 0 && h.done >= h.stopAt:
		h.mu.Unlock()
		return engine.EffectResult{}, errEnded
	}
	if e.Approval != "" {
		h.used[e.Approval] = true
	}
	r.started = !e.Repeatable
	h.events = append(h.events, e.Said...)
	h.reserved += e.Estimate
	h.mu.Unlock()
	result, err := perform(ctx, "run/node/1/"+place)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cost += result.Cost
	h.events = append(h.events, result.Said...)
	if err != nil {
		if errors.Is(err, engine.ErrUnsent) {
			delete(h.rows, place)
		}
		return result, err
	}
	h.made[place]++
	h.done++
	r.done, r.result = true, engine.EffectResult{Value: slices.Clone(result.Value), Tokens: result.Tokens, Cost: result.Cost}
	return result, nil
}

func (h *history) emit(ev engine.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, ev)
}

// said lists the events of some types as short lines.
func (h *history) said(types ...string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, ev := range h.events {
		if len(types) > 0 && !slices.Contains(types, ev.Type) {
			continue
		}
		line := ev.Type
		switch ev.Type {
		case engine.AgentToken:
			line += " " + ev.Token
		case engine.AgentReasoning:
			line += " " + ev.Text
		case engine.AgentToolCall:
			line += " " + ev.Tool + " " + string(ev.ToolInput)
		case engine.AgentToolResult:
			line += fmt.Sprintf(" %s %t %s", ev.Tool, *ev.Success, ev.Summary)
		case engine.CostUpdated:
			line += fmt.Sprintf(" %s #%d %d+%d=%d", ev.Model, max(ev.Attempt, 1), *ev.InputTokens, *ev.OutputTokens, *ev.Cost)
			if ev.Priced != nil {
				line += fmt.Sprintf(" priced=%t", *ev.Priced)
			}
		}
		out = append(out, line)
	}
	return out
}

// step is one scripted answer of a model.
type step struct {
	model  string // that must be asked; "" means any
	deltas []agent.Delta
	turn   *agent.Turn
	err    error
	before func(ctx context.Context, req *agent.Request) error // runs first
}

// script answers model turns. Which step is next is read from the conversation, so
// that a process that starts anew goes on where the other ended: the number of
// assistant messages, and then the tries of that turn.
type script struct {
	mu       sync.Mutex
	turns    map[string][][]step // by system text; then turn, then try
	tries    map[string]int
	requests []*agent.Request
	prices   map[string]agent.Price
}

func (s *script) Turn(ctx context.Context, req *agent.Request, delta func(agent.Delta)) (*agent.Turn, error) {
	n := 0
	for _, m := range req.Messages {
		if m.Role == agent.Assistant {
			n++
		}
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	turns, ok := s.turns[req.System]
	key := fmt.Sprint(req.System, n)
	try := s.tries[key]
	s.tries[key]++
	s.mu.Unlock()
	if !ok || n >= len(turns) {
		return nil, fmt.Errorf("no turn %d scripted for %q", n, req.System)
	}
	st := turns[n][min(try, len(turns[n])-1)]
	if st.model != "" && st.model != req.Model {
		return nil, fmt.Errorf("turn %d asks %s, want %s", n, req.Model, st.model)
	}
	if st.before != nil {
		if err := st.before(ctx, req); err != nil {
			return nil, err
		}
	}
	for _, d := range st.deltas {
		delta(d)
	}
	return st.turn, st.err
}

func (s *script) Price(_, model string) (agent.Price, bool) {
	p, ok := s.prices[model]
	return p, ok
}

// answers scripts the one agent of most tests: turn after turn, each with its tries.
func answers(turns ...[]step) *script { return answersOf(map[string][][]step{"be terse": turns}) }

func answersOf(turns map[string][][]step) *script {
	return &script{turns: turns, tries: map[string]int{}, prices: map[string]agent.Price{
		"m-one": {Input: 3_000_000, Output: 15_000_000}, "m-two": {Input: 1_000_000, Output: 2_000_000},
	}}
}

func says(text string) []step {
	return []step{{turn: &agent.Turn{Stop: agent.StopEnd, Parts: []agent.Part{{Text: text}}, Usage: agent.Usage{Input: 10, Output: 5}}}}
}

func calls(calls ...agent.Call) []step {
	t := &agent.Turn{Stop: agent.StopToolUse, Usage: agent.Usage{Input: 20, Output: 7}}
	for _, c := range calls {
		t.Parts = append(t.Parts, agent.Part{Call: &c})
	}
	return []step{{turn: t}}
}

func call(id, name, args string) agent.Call {
	return agent.Call{ID: id, Name: name, Arguments: json.RawMessage(args)}
}

func fails(kind agent.ErrorKind) step {
	return step{err: &agent.ModelError{Kind: kind, Provider: "p", Model: "m", Message: "no luck", Usage: agent.Usage{Input: 2}}}
}

// tool is one scripted tool.
type tool struct {
	workflows.Tool
	check func(*workflows.ToolCall) (workflows.Admission, error)
	call  func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error)
}

// host is a ToolHost of scripted tools with a journal.
type host struct {
	tools []tool

	mu      sync.Mutex
	journal []string
	keys    []string
}

func (h *host) Tools(string, *workflows.Agent) []workflows.Tool {
	var out []workflows.Tool
	for _, t := range h.tools {
		out = append(out, t.Tool)
	}
	return out
}

func (h *host) tool(id string) *tool {
	for i := range h.tools {
		if h.tools[i].ID == id {
			return &h.tools[i]
		}
	}
	panic("no tool " + id)
}

func (h *host) Check(_ context.Context, c *workflows.ToolCall) (workflows.Admission, error) {
	if t := h.tool(c.Tool); t.check != nil {
		return t.check(c)
	}
	return workflows.Admission{Repeatable: true}, nil
}

func (h *host) Call(ctx context.Context, c *workflows.ToolCall) (workflows.ToolResult, error) {
	h.mu.Lock()
	h.journal = append(h.journal, c.Tool+" "+string(c.Arguments))
	h.keys = append(h.keys, c.Key)
	h.mu.Unlock()
	if t := h.tool(c.Tool); t.call != nil {
		return t.call(ctx, c)
	}
	return workflows.ToolResult{Text: "ok " + c.Tool}, nil
}

func builtin(id string) tool {
	return tool{Tool: workflows.Tool{ID: id, Name: id, Description: "does " + id, InputSchema: json.RawMessage(`{"type":"object"}`)}}
}

func served(server, name string) tool {
	t := builtin("mcp_" + server + "_" + name)
	t.Server, t.Name = server, name
	return t
}

func returns(text string) func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
	return func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
		return workflows.ToolResult{Text: text}, nil
	}
}

func reports(text string) func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
	return func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
		return workflows.ToolResult{Text: text, IsError: true}, nil
	}
}

func faults(e workflows.ToolError) func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
	return func(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
		return workflows.ToolResult{}, &e
	}
}

func admits(a workflows.Admission) func(*workflows.ToolCall) (workflows.Admission, error) {
	return func(*workflows.ToolCall) (workflows.Admission, error) { return a, nil }
}

func refuses(e workflows.ToolError) func(*workflows.ToolCall) (workflows.Admission, error) {
	return func(*workflows.ToolCall) (workflows.Admission, error) { return workflows.Admission{}, &e }
}

const plain = `
agents:
  - {id: a, provider: anthropic, model: m-one, system_prompt: be terse, tools: [%s]%s}
nodes:
  - {id: in, type: input}
  - {id: n, type: agent, agent_ref: a, prompt_template: go%s}
  - {id: out, type: output}
edges: [{from: in, to: n}, {from: n, to: out}]
`

// agentOf is a workflow of one agent node n with those tools and further keys.
func agentOf(tools, ofAgent, ofNode string) string {
	more := func(s string) string {
		if s == "" {
			return ""
		}
		return ", " + s
	}
	return fmt.Sprintf(plain, tools, more(ofAgent), more(ofNode))
}

// source wraps a fragment in the envelope of a workflow file.
func source(fragment string) string {
	lines := strings.Split(strings.Trim(fragment, "\n"), "\n")
	return "schema_version: '1.0'\nworkflow:\n  id: w\n  " + strings.Join(lines, "\n  ") + "\n"
}

func parse(tb testing.TB, fragment string) *workflows.Workflow {
	tb.Helper()
	w, _, err := workflows.Parse("w.relavium.yaml", []byte(source(fragment)), workflows.Options{})
	if err != nil {
		tb.Fatalf("%v\n%s", err, source(fragment))
	}
	return w
}

// trial is a runner with all that stands around it.
type trial struct {
	models  *script
	builtin *host
	servers *host
	history *history
	change  func(*agent.Options)
	ask     func(*engine.AgentCall)
}

// run dispatches node n of the workflow.
func (x *trial) run(tb testing.TB, ctx context.Context, w *workflows.Workflow) (engine.AgentResult, error) { //nolint:revive // the test comes first
	tb.Helper()
	opt := agent.Options{Models: x.models, Logger: slog.New(slog.DiscardHandler)}
	if x.builtin != nil {
		opt.Builtin = x.builtin
	}
	if x.servers != nil {
		opt.Servers = x.servers
	}
	if x.change != nil {
		x.change(&opt)
	}
	if x.history == nil {
		x.history = newHistory()
	}
	node, _ := w.Node("n")
	spec, _ := node.Spec.(workflows.AgentNode)
	of, _ := w.Agent(spec.AgentRef)
	c := engine.AgentCall{
		Run: "r1", Project: engine.Project{Key: "p", Root: "/nowhere"}, Principal: engine.Local, Workflow: w, Node: node, Agent: of,
		Prompt: "go", Attempt: 1, Key: "r1/n/1", Emit: x.history.emit, Do: x.history.do,
	}
	if x.ask != nil {
		x.ask(&c)
	}
	return agent.New(opt).RunAgent(ctx, c)
}

// wrong is an error as "code retryable", or its text.
func wrong(err error) string {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[*engine.RunError](err); ok {
		if f.Retryable {
			return string(f.Code) + " retryable"
		}
		return string(f.Code)
	}
	return err.Error()
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

// byTool puts the events of calls that ran together in listed order: those of one
// tool are in order by themselves.
func byTool(lines []string, listed ...string) []string {
	slices.SortStableFunc(lines, func(a, b string) int {
		return slices.Index(listed, strings.Fields(a)[1]) - slices.Index(listed, strings.Fields(b)[1])
	})
	return lines
}

// down scripts a turn that every try on one model fails.
func down(model string, turn []step) []step {
	turn[0].before = func(_ context.Context, req *agent.Request) error {
		if req.Model == model {
			return &agent.ModelError{Kind: agent.Overloaded, Model: model}
		}
		return nil
	}
	return turn
}
