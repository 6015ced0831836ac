package access

import (
	"fmt"
	"slices"
	"strings"
)

// The scopes that there are. Those that end with a colon are followed by the id
// of a workflow.
const (
	ScopeRun     = "relavium:run" // every published workflow
	ScopeRunOne  = "relavium:run:"
	ScopeGate    = "relavium:gate" // the gates of every workflow
	ScopeGateOne = "relavium:gate:"
	ScopeOps     = "relavium:ops" // all runs, and metrics
)

// maxScope is the longest scope, in bytes.
const maxScope = 128

// Scopes are what a token allows. The zero value allows nothing.
type Scopes struct {
	run, gate, ops bool
	runs, gates    []string // workflow ids
}

// A ScopeError names a scope that there is not.
type ScopeError struct{ Scope string }

func (e *ScopeError) Error() string {
	return fmt.Sprintf("no scope %q: there are %s, %sID, %s, %sID and %s", e.Scope, ScopeRun, ScopeRunOne, ScopeGate, ScopeGateOne, ScopeOps)
}

// ParseScopes reads a list of scopes. A *ScopeError names the first that there is not.
func ParseScopes(list []string) (Scopes, error) {
	var s Scopes
	for _, scope := range list {
		if !s.add(scope) {
			return Scopes{}, &ScopeError{Scope: scope}
		}
	}
	return s, nil
}

// scopesOf reads what a token of an authorization server says, which may hold
// scopes of others.
func scopesOf(list []string) Scopes {
	var s Scopes
	for _, scope := range list {
		s.add(scope)
	}
	return s
}

// add reports whether the scope is one of ours.
func (s *Scopes) add(scope string) bool {
	switch scope {
	case ScopeRun:
		s.run = true
		return true
	case ScopeGate:
		s.gate = true
		return true
	case ScopeOps:
		s.ops = true
		return true
	}
	if id, ok := strings.CutPrefix(scope, ScopeRunOne); ok && isName(id, maxScope) {
		s.runs = append(s.runs, id)
		return true
	}
	if id, ok := strings.CutPrefix(scope, ScopeGateOne); ok && isName(id, maxScope) {
		s.gates = append(s.gates, id)
		return true
	}
	return false
}

// Run reports whether runs of the workflow may be started.
func (s *Scopes) Run(workflow string) bool { return s.run || slices.Contains(s.runs, workflow) }

// Gate reports whether gates of the workflow may be seen and decided.
func (s *Scopes) Gate(workflow string) bool { return s.gate || slices.Contains(s.gates, workflow) }

// AnyGate reports whether gates of some workflow may be decided.
func (s *Scopes) AnyGate() bool { return s.gate || len(s.gates) > 0 }

// Ops reports whether all runs and the metrics may be read.
func (s *Scopes) Ops() bool { return s.ops }

// isName reports whether text is a name of 1 to limit letters, digits, '.', '_',
// '-' and '@'.
func isName(text string, limit int) bool {
	return text != "" && len(text) <= limit && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._-@", c)
	})
}
