package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// The exit codes of format 5.5.
const (
	exitDone    = 0
	exitFailed  = 1 // the run failed or was cancelled, or something broke
	exitFault   = 2 // invocation, file, configuration, unknown id
	exitWaiting = 3 // paused at a gate without a person at the terminal
)

// A fault is an error that knows its exit code and what the person can do.
type fault struct {
	code int
	err  error
	hint string // a remedy, best a command; "" means none
}

func (f *fault) Error() string { return f.err.Error() }

func (f *fault) Unwrap() error { return f.err }

// invalid is a fault of the invocation, a file or the configuration.
func invalid(hint, format string, args ...any) error {
	return &fault{code: exitFault, err: fmt.Errorf(format, args...), hint: hint}
}

// silent ends a command whose outcome has been shown with a code of its own.
type silent int

func (s silent) Error() string { return fmt.Sprintf("exit code %d", int(s)) }

// exitCode is the code that err ends the process with.
func exitCode(err error) int {
	var quiet silent
	var f *fault
	var decided *engine.DecidedError
	var schema *engine.SchemaError
	var problems workflows.Problems
	var inputs *workflows.InputError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &quiet):
		return int(quiet)
	case errors.As(err, &f):
		return f.code
	case errors.As(err, &decided):
		return exitFailed
	case errors.As(err, &schema), errors.As(err, &problems), errors.As(err, &inputs),
		errors.Is(err, engine.ErrRunNotFound), errors.Is(err, engine.ErrGateNotFound):
		return exitFault
	default:
		return exitFailed
	}
}

// report writes err for a person, or as one JSON line (format 5.4), and returns
// the exit code.
func report(w io.Writer, err error, asJSON bool) int {
	code := exitCode(err)
	var quiet silent
	if err == nil || errors.As(err, &quiet) {
		return code
	}
	hint := ""
	if f, ok := errors.AsType[*fault](err); ok {
		hint = f.hint
	}
	if asJSON {
		reportJSON(w, err, code, hint)
		return code
	}
	for line := range strings.Lines(plain(err.Error())) {
		_, _ = fmt.Fprintf(w, "relavium-serve: %s\n", strings.TrimRight(line, "\n"))
	}
	if hint != "" {
		_, _ = fmt.Fprintf(w, "relavium-serve: hint: %s\n", plain(hint))
	}
	return code
}

func reportJSON(w io.Writer, err error, code int, hint string) {
	word := engine.CodeInternal
	var failed *engine.RunError
	switch {
	case errors.As(err, &failed):
		word = failed.Code
	case code == exitFault:
		word = engine.CodeValidation
	case code == exitWaiting:
		word = "gate_pending"
	}
	line, marshalErr := json.Marshal(struct {
		Type    string      `json:"type"`
		Code    engine.Code `json:"code"`
		Message string      `json:"message"`
		Hint    string      `json:"hint,omitempty"`
	}{"error", word, err.Error(), hint})
	if marshalErr == nil {
		_, _ = w.Write(append(line, '\n'))
	}
}
