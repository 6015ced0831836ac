package expr

import (
	"context"
	"encoding/json"
)

// A Scope is what an expression sees, frozen: inputs, ctx, run.outputs and, for a
// merge function, branches.
type Scope struct {
	Inputs   json.RawMessage // an object; nil means {}
	Ctx      json.RawMessage // an object; nil means {}
	Outputs  []Output        // in declaration order
	Branches json.RawMessage // an array; nil leaves the name undeclared
}

// An Output is the settled output of one node. Its value is parsed only if the
// expression reads it.
type Output struct {
	Node  string
	Value json.RawMessage
}

// How the answer of an expression is taken; prelude.js knows the numbers.
const (
	modeValue = iota
	modeTruth
	modeSelect
)

// Eval returns the value of the expression as compact JSON, at most 1 MiB and 64
// levels deep, with keys in JavaScript's order. The error is an *Error, or the cause
// of ctx if ctx ends first.
func (s *Sandbox) Eval(ctx context.Context, source string, scope Scope) (json.RawMessage, error) {
	_, value, err := s.evaluate(ctx, source, scope, modeValue)
	return value, err
}

// Truthy reports whether the value of the expression is truthy, for the condition
// of an edge; undefined is not. Errors are those of Eval.
func (s *Sandbox) Truthy(ctx context.Context, source string, scope Scope) (bool, error) {
	tag, _, err := s.evaluate(ctx, source, scope, modeTruth)
	return tag == tagTrue, err
}

// Select is Eval for a condition node: a value that is no boolean, string or
// number is a result_type error.
func (s *Sandbox) Select(ctx context.Context, source string, scope Scope) (json.RawMessage, error) {
	_, value, err := s.evaluate(ctx, source, scope, modeSelect)
	return value, err
}
