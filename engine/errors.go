package engine

import (
	"errors"
	"fmt"
	"time"
)

// A Code is one of the closed set of failure codes (format 11.10).
type Code string

// The codes of format 11.10.
const (
	CodeValidation          Code = "validation"
	CodeContentFilter       Code = "content_filter"
	CodeProviderAuth        Code = "provider_auth"
	CodeProviderRateLimit   Code = "provider_rate_limit"
	CodeProviderUnavailable Code = "provider_unavailable"
	CodeToolDenied          Code = "tool_denied"
	CodeToolFailed          Code = "tool_failed"
	CodeToolUnavailable     Code = "tool_unavailable"
	CodeBudgetExceeded      Code = "budget_exceeded"
	CodeRunTimeout          Code = "run_timeout"
	CodeTurnLimit           Code = "turn_limit"
	CodeCancelled           Code = "cancelled"
	CodeSandboxError        Code = "sandbox_error"
	CodeInternal            Code = "internal"
)

// A RunError says why a run or node failed. Message is safe to show anybody who
// may see the run: it holds no value, secret, path or source text.
type RunError struct {
	Code          Code   `json:"code"`
	Message       string `json:"message"`
	Retryable     bool   `json:"retryable"`
	Node          string `json:"nodeId,omitempty"`
	CorrelationID string `json:"correlationId,omitempty"` // internal only: the log line that has the detail
}

func (e *RunError) Error() string {
	if e.Node != "" {
		return fmt.Sprintf("%s: node %q: %s", e.Code, e.Node, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Facts that callers match.
var (
	ErrRunNotFound  = errors.New("engine: no such run")
	ErrGateNotFound = errors.New("engine: no such gate")
	// ErrCutOff says that this replica lost its database: it runs nothing until it has it again.
	ErrCutOff = errors.New("engine: this replica is cut off from its database")
	// ErrMigrate says that the database lacks tables, and that this user may not make them.
	ErrMigrate = errors.New("engine: the database is not up to date and its user may not change it; relavium-serve migrate does, with a user that may")
	ErrClosed  = errors.New("engine: closed")
)

// A KeyConflictError refuses an idempotency key that was used with other arguments.
type KeyConflictError struct{ Run string }

func (e *KeyConflictError) Error() string { return "engine: idempotency key already used" }

// A DecidedError refuses an answer to a gate that is decided or expired; Gate
// holds the decision that stands.
type DecidedError struct{ Gate Gate }

func (e *DecidedError) Error() string {
	if e.Gate.Decision == "" {
		return fmt.Sprintf("engine: gate %s expired at %s", e.Gate.ID, e.Gate.Expires.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("engine: gate %s is already decided: %s by %s via %s at %s",
		e.Gate.ID, e.Gate.Decision, e.Gate.DecidedBy, e.Gate.Via, e.Gate.Decided.UTC().Format(time.RFC3339))
}

// A SchemaError refuses a store that a newer binary wrote.
type SchemaError struct{ Found, Known int }

func (e *SchemaError) Error() string {
	return fmt.Sprintf("engine: the store has schema %d, this binary knows %d: use a newer relavium-serve", e.Found, e.Known)
}
