package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/relavium/relavium-serve/engine/expr"
	"github.com/relavium/relavium-serve/workflows"
)

// maxOutput bounds the output of one node, in bytes of JSON.
const maxOutput = 4 << 20

// start runs one live node. Nodes without an expression are done at once; the
// others report later.
func (x *execution) start(ctx context.Context, id string, v *vertex) error {
	if !recorded(v.node) {
		x.sayOnce(Event{Type: NodeStarted, Node: id, NodeType: v.node.Type()})
	}
	x.traceNode(ctx, id, v)
	began := time.Now()
	switch spec := v.node.Spec.(type) {
	case workflows.InputNode:
		x.complete(id, x.row.inputs, nil, time.Since(began), 1)
	case workflows.ParallelNode:
		out := json.RawMessage("null")
		if from := x.feeders(id); len(from) == 1 {
			out = x.nodes[from[0]].output
		}
		x.complete(id, out, nil, time.Since(began), 1)
	case workflows.OutputNode:
		x.output(id, spec, began)
	case workflows.MergeNode:
		if spec.Strategy == "custom" {
			x.evaluate(id, v, func(scope expr.Scope) (json.RawMessage, []string, error) {
				out, err := x.e.sandbox.Eval(x.ctx, spec.Expression, scope)
				return out, nil, err
			})
			return nil
		}
		out, err := merge(spec.Strategy, x.branches(id))
		if err != nil {
			x.failNode(id, err, 1)
			return nil
		}
		x.complete(id, out, nil, time.Since(began), 1)
	case workflows.TransformNode:
		x.evaluate(id, v, func(scope expr.Scope) (json.RawMessage, []string, error) {
			out, err := x.e.sandbox.Eval(x.ctx, spec.Expression, scope)
			if err == nil {
				err = x.checkOutput(id, out)
			}
			return out, nil, err
		})
	case workflows.ConditionNode:
		x.evaluate(id, v, func(scope expr.Scope) (json.RawMessage, []string, error) {
			out, err := x.e.sandbox.Select(x.ctx, spec.Expression, scope)
			if err != nil {
				return nil, nil, err
			}
			selected, err := choose(spec, out)
			return out, selected, err
		})
	case workflows.GateNode:
		return x.openGate(ctx, id, v, spec)
	case workflows.AgentNode:
		x.startAgent(ctx, id, v, spec)
	}
	return nil
}

// evaluate runs an expression node beside the loop, again on a time-out where its
// retry allows (format 2.3).
func (x *execution) evaluate(id string, v *vertex, eval func(expr.Scope) (json.RawMessage, []string, error)) {
	scope := x.scope(x.wf.Ancestors(id))
	if spec, ok := v.node.Spec.(workflows.MergeNode); ok && spec.Strategy == "custom" {
		scope.Branches = array(x.branches(id))
	}
	x.spawn(func() func() {
		for attempt := 1; ; attempt++ {
			began := time.Now()
			out, selected, err := eval(scope)
			if err == nil {
				out, err = portable(out)
			}
			if err == nil {
				return func() { x.complete(id, out, selected, time.Since(began), attempt) }
			}
			failure := x.sandboxError(id, err)
			delay, again := retryAfter(v.node.Retry, failure, attempt)
			if !again {
				return func() { x.failNode(id, failure, attempt) }
			}
			x.tell(Event{Type: NodeRetrying, Node: id, Attempt: attempt, Error: failure, DelayMS: new(delay.Milliseconds())})
			if pause(x.ctx, delay) != nil {
				return func() { x.failNode(id, x.stopped(id), attempt) }
			}
			x.tell(Event{Type: NodeStarted, Node: id, NodeType: v.node.Type(), Attempt: attempt + 1})
		}
	})
}

// portable is a value as every later reader can take it: what JavaScript calls a
// string may hold half a character, which has no JSON form in UTF-8.
func portable(value json.RawMessage) (json.RawMessage, error) {
	out, err := workflows.Compact(value)
	if err != nil {
		return nil, &expr.Error{Reason: expr.ReasonNonSerializable}
	}
	return out, nil
}

// retryAfter tells whether a node may be dispatched again, and after how long.
func retryAfter(r *workflows.Retry, err *RunError, attempt int) (time.Duration, bool) {
	if r == nil || !err.Retryable || attempt >= r.Max || r.On != nil && !slices.Contains(r.On, string(err.Code)) {
		return 0, false
	}
	return r.Delay(attempt), true
}

// stopped is the failure of a node whose run ended while it ran.
func (x *execution) stopped(id string) *RunError {
	return &RunError{Code: CodeCancelled, Message: "the run ended while the node ran", Node: id}
}

// sandboxError turns what an expression returned into a failure without source,
// names or values.
func (x *execution) sandboxError(id string, err error) *RunError {
	if failure, ok := errors.AsType[*RunError](err); ok {
		return failure
	}
	if x.ctx.Err() != nil {
		return x.stopped(id)
	}
	if sandbox, ok := errors.AsType[*expr.Error](err); ok {
		return &RunError{Code: CodeSandboxError, Message: "expression: " + sandbox.Error(), Retryable: sandbox.Retryable(), Node: id}
	}
	return x.e.internal(x.ctx, x.row.id, id, err)
}

// internal hides an unexpected error behind a correlation id; the log has it.
func (e *Engine) internal(ctx context.Context, run, node string, err error) *RunError {
	id := uuid.NewString()
	e.log.LogAttrs(ctx, slog.LevelError, "internal error", runAttr(run), slog.String("node", node), slog.String("correlation", id), errAttr(err))
	return &RunError{Code: CodeInternal, Message: "internal error", Node: node, CorrelationID: id}
}

func (x *execution) checkOutput(id string, out json.RawMessage) error {
	if err := x.wf.CheckOutput(id, out); err != nil {
		return &RunError{Code: CodeValidation, Message: "output: " + err.Error(), Node: id}
	}
	return nil
}

// choose finds the branch whose value is identical to the result, no coercion.
func choose(spec workflows.ConditionNode, result json.RawMessage) ([]string, error) {
	for _, b := range spec.Branches {
		if same(b.When, result) {
			return []string{b.Target}, nil
		}
	}
	if spec.Default == "" {
		return nil, &RunError{Code: CodeValidation, Message: "no branch matches the value of the condition, and it has no default"}
	}
	return []string{spec.Default}, nil
}

// same compares two JSON scalars: numbers by value, everything else by text.
func same(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	switch x.(type) {
	case bool, string, float64:
		return x == y
	default:
		return false
	}
}

// branches are the outputs that a merge joins, in the order of format 1.12.
func (x *execution) branches(id string) []json.RawMessage {
	live := x.feeders(id)
	out := []json.RawMessage{}
	for _, from := range x.wf.MergeOrder(id) {
		if slices.Contains(live, from) {
			out = append(out, x.view(from))
		}
	}
	return out
}

func merge(strategy string, branches []json.RawMessage) (json.RawMessage, *RunError) {
	switch strategy {
	case "concat":
		return array(branches), nil
	case "first":
		return branches[0], nil
	}
	var all []workflows.Member
	for _, b := range branches {
		members, err := workflows.Members(b)
		if err != nil {
			return nil, &RunError{Code: CodeValidation, Message: "object_merge: a branch is not an object"}
		}
		for _, m := range members {
			at := slices.IndexFunc(all, func(have workflows.Member) bool { return have.Key == m.Key })
			if at < 0 {
				all = append(all, m)
			} else {
				all[at].Value = m.Value
			}
		}
	}
	return workflows.Object(all), nil
}

func array(values []json.RawMessage) json.RawMessage {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = string(v)
	}
	return json.RawMessage("[" + strings.Join(parts, ",") + "]")
}

// output captures the live feeders: one verbatim, several by id, none as null.
func (x *execution) output(id string, spec workflows.OutputNode, began time.Time) {
	if spec.SaveTo != nil {
		x.failNode(id, &RunError{Code: CodeValidation, Message: "save_to: the output holds no media to save"}, 1)
		return
	}
	from := x.feeders(id)
	out := json.RawMessage("null")
	switch len(from) {
	case 0:
	case 1:
		out = x.nodes[from[0]].output
	default:
		sort.Strings(from)
		members := make([]workflows.Member, len(from))
		for i, f := range from {
			members[i] = workflows.Member{Key: f, Value: x.nodes[f].output}
		}
		out = workflows.Object(members)
	}
	x.complete(id, out, nil, time.Since(began), 1)
}

// scope is what an expression sees: the outputs of the given nodes that completed,
// in declaration order, and no others.
func (x *execution) scope(nodes []string) expr.Scope {
	s := expr.Scope{Inputs: x.row.inputs, Ctx: x.row.ctx}
	for i := range x.wf.Nodes {
		id := x.wf.Nodes[i].ID
		if slices.Contains(nodes, id) && x.nodes[id].state == "completed" {
			s.Outputs = append(s.Outputs, expr.Output{Node: id, Value: x.view(id)})
		}
	}
	return s
}

// templates is what a template of the node may refer to.
func (x *execution) templates() (workflows.Scope, error) {
	inputs, err := workflows.Members(x.row.inputs)
	if err != nil {
		return workflows.Scope{}, err
	}
	values, err := workflows.Members(x.row.ctx)
	if err != nil {
		return workflows.Scope{}, err
	}
	of := func(read func(string) json.RawMessage) func(string) (json.RawMessage, bool) {
		return func(id string) (json.RawMessage, bool) {
			v := x.nodes[id]
			if v == nil || v.state != "completed" {
				return nil, false
			}
			return read(id), true
		}
	}
	return workflows.Scope{
		Inputs: lookup(inputs), Ctx: lookup(values),
		Output: of(func(id string) json.RawMessage { return x.nodes[id].output }),
		View:   of(x.view),
		ReadFile: func(path string) ([]byte, error) {
			if x.e.opt.ReadFile == nil {
				return nil, errors.New("no file can be read here")
			}
			return x.e.opt.ReadFile(x.row.root, path)
		},
	}, nil
}

// render evaluates a template of a node; a missing value is a validation failure.
func (x *execution) render(ctx context.Context, id, field string, t *workflows.Template) (string, *RunError) {
	if t == nil {
		return "", nil
	}
	scope, err := x.templates()
	if err != nil {
		return "", x.e.internal(ctx, x.row.id, id, err)
	}
	s, err := t.Render(scope)
	if err != nil {
		return "", &RunError{Code: CodeValidation, Message: fmt.Sprintf("%s: %s", field, err), Node: id}
	}
	return s, nil
}

// view is an output as expressions and paths see it: of a gate, the members of an
// object payload stand beside the decision; an agent's text that is JSON is its value.
func (x *execution) view(id string) json.RawMessage {
	v := x.nodes[id]
	if _, ok := v.node.Spec.(workflows.GateNode); ok {
		return viewGate(v.output)
	}
	if _, ok := v.node.Spec.(workflows.AgentNode); ok && x.wf.OutputSchema(id) == nil {
		return viewText(v.output)
	}
	return v.output
}

func viewGate(output json.RawMessage) json.RawMessage {
	members, err := workflows.Members(output)
	if err != nil {
		return output
	}
	payload, ok := lookup(members)("payload")
	if !ok {
		return output
	}
	inner, err := workflows.Members(payload)
	if err != nil {
		return output
	}
	for _, m := range inner {
		switch m.Key {
		case "decision", "decidedBy", "payload", "comment":
		default:
			members = append(members, m)
		}
	}
	return workflows.Object(members)
}

func viewText(output json.RawMessage) json.RawMessage {
	var s string
	if json.Unmarshal(output, &s) != nil {
		return output
	}
	s = strings.TrimSpace(s)
	if inner, ok := strings.CutPrefix(s, "```"); ok {
		_, inner, _ = strings.Cut(inner, "\n")
		if inner, ok = strings.CutSuffix(strings.TrimSpace(inner), "```"); ok {
			s = strings.TrimSpace(inner)
		}
	}
	if !strings.HasPrefix(s, "{") && !strings.HasPrefix(s, "[") {
		return output
	}
	value, err := workflows.Compact(json.RawMessage(s))
	if err != nil {
		return output
	}
	return value
}
