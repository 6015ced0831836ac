package inbound

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// The reasons of the errors of this package.
const (
	// Before the run.
	ReasonConsent      = "consent_missing"    // a person has to approve the program
	ReasonPin          = "definition_changed" // a tool is not as it was approved
	ReasonDeclaration  = "bad_declaration"    // no server can be started from it
	ReasonSecret       = "secret_missing"     // a secret of its environment is not there
	ReasonSpawn        = "spawn_failed"       // the program did not start
	ReasonDial         = "dial_failed"        // nobody answers there
	ReasonEgress       = "egress_denied"      // the address may not be reached
	ReasonRedirect     = "redirect"           // the server sent us elsewhere
	ReasonUnauthorized = "unauthorized"       // the server needs authorization
	ReasonConnect      = "connect_deadline"
	ReasonHandshake    = "handshake_failed"
	ReasonDiscovery    = "discovery_failed"
	ReasonDiscoverTime = "discovery_deadline"
	ReasonBackoff      = "start_backoff" // it failed too often just now
	ReasonFull         = "max_children"
	// In a call.
	ReasonUnknownTool = "unknown_tool"
	ReasonArguments   = "invalid_arguments"
	ReasonRejected    = "rejected"  // the server refuses the parameters
	ReasonRPC         = "rpc_error" // the server answered with a protocol error
	ReasonStatus      = "http_status"
	ReasonTooLarge    = "too_large"
	ReasonDeadline    = "deadline"
	ReasonLost        = "connection_lost" // after the request was sent
	ReasonUnsent      = "unsent"          // before it was
	ReasonResult      = "bad_result"
	ReasonInput       = "input_required" // the server asks for what was not declared
	// Both.
	ReasonDied      = "server_died"
	ReasonClosed    = "closed" // the run's sessions are closed
	ReasonCancelled = "cancelled"
)

// The causes of our own deadlines.
var (
	errConnectDeadline   = fmt.Errorf("connect %w", context.DeadlineExceeded)
	errDiscoveryDeadline = fmt.Errorf("discovery %w", context.DeadlineExceeded)
	errCallDeadline      = fmt.Errorf("call %w", context.DeadlineExceeded)
)

// cancelled tells whether who asked gave up. It is asked before any deadline is looked
// at: which timer fired first does not matter.
func cancelled(asked context.Context) bool {
	return asked.Err() != nil && !errors.Is(context.Cause(asked), context.DeadlineExceeded) &&
		!errors.Is(asked.Err(), context.DeadlineExceeded)
}

// quoted is what is shown of a server's text.
func quoted(s string) string {
	s = strings.Join(strings.Fields(text.Clean(cut(s, maxServerText))), " ")
	return cut(s, maxServerText)
}

// cut shortens s to at most n bytes, at a character's end.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[:n]
	for len(s) > 0 {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s
}

// startFault is why a server did not come up. asked is the context of who asked for
// the run.
func startFault(asked context.Context, server string, d *declared, err error, since time.Time) *workflows.ToolError {
	if fault, ok := errors.AsType[*workflows.ToolError](err); ok {
		return fault
	}
	f := &workflows.ToolError{Fault: workflows.ToolUnavailable, Server: server, Elapsed: time.Since(since), Err: err}
	say := func(reason, format string, args ...any) *workflows.ToolError {
		f.Reason, f.Message = reason, fmt.Sprintf(format, args...)
		return f
	}
	switch {
	case cancelled(asked):
		f.Fault = workflows.ToolCancelled
		return say(ReasonCancelled, "the start was cancelled")
	case errors.Is(err, errDiscoveryDeadline):
		f.Limit = discoveryLimit
		return say(ReasonDiscoverTime, "its tools were not listed within %s", discoveryLimit)
	case errors.Is(err, errConnectDeadline):
		f.Limit = d.limit
		if d.stdio() {
			return say(ReasonConnect, "no connection within %s; a first start may download the program, connect_timeout_ms allows for more", d.limit)
		}
		return say(ReasonConnect, "no connection within %s; connect_timeout_ms allows for more", d.limit)
	case asked.Err() != nil:
		return say(ReasonDeadline, "the time of the call ended before it was connected")
	}
	if full, ok := errors.AsType[*child.FullError](err); ok {
		return say(ReasonFull, "[host] max_children: no place for it within %s (%d run)", d.limit, full.Limit)
	}
	if start, ok := errors.AsType[*child.StartError](err); ok {
		return say(ReasonSpawn, "%s", start.Error())
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		if status.status == 401 || status.status == 403 {
			return say(ReasonUnauthorized, "it needs authorization (HTTP %d), which cannot be declared", status.status)
		}
		return say(ReasonHandshake, "it answered with HTTP %d%s", status.status, saying(status.text))
	}
	if redirect, ok := errors.AsType[*egress.RedirectError](err); ok {
		return say(ReasonRedirect, "%s", redirect.Error())
	}
	if denied, ok := errors.AsType[*egress.DeniedError](err); ok {
		return say(ReasonEgress, "%s", denied.Error())
	}
	if fault, ok := errors.AsType[*rpcError](err); ok {
		return say(ReasonHandshake, "it answered with error %d%s", fault.code, saying(fault.message))
	}
	switch {
	case tooLarge(err):
		return say(ReasonTooLarge, "a message is over the bound")
	case errors.Is(err, errNoEndpoint):
		return say(ReasonHandshake, "%s", errNoEndpoint)
	case errors.Is(err, errHandshake):
		return say(ReasonHandshake, "%s", err) // all of it are words of ours
	case egress.Unsent(err) || egress.ReasonOf(err) != "":
		return say(ReasonDial, "%s", dialText(err))
	case errors.Is(err, errEnded) || errors.Is(err, errLegacyOnly) || errors.Is(err, errClosed):
		return say(ReasonDied, "it ended before it answered")
	}
	return say(ReasonHandshake, unlikeMCP)
}

func dialText(err error) string {
	if e, ok := errors.AsType[*egress.ResolveError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*egress.ConnectError](err); ok {
		return e.Error()
	}
	return "no connection"
}

func saying(s string) string {
	if s = quoted(s); s == "" {
		return ""
	}
	shown := strconv.Quote(s)
	for len(shown) > maxServerText {
		s = cut(s, len(s)-(len(shown)-maxServerText+3)/4)
		shown = strconv.Quote(s)
	}
	return "; the server says: " + shown
}

func tooLarge(err error) bool {
	_, over := errors.AsType[*egress.TooLargeError](err)
	return over || errors.Is(err, errTooLarge)
}

// discoveryFault is why the tools of a server are not known.
func discoveryFault(asked context.Context, c *connection, err error) *workflows.ToolError {
	f := startFault(asked, c.name, c.declared, err, c.started)
	switch f.Reason {
	case ReasonHandshake, ReasonDial:
		f.Reason = ReasonDiscovery
	}
	if f.Reason == ReasonDiscovery && f.Message == unlikeMCP {
		f.Message = "its tools could not be listed: " + quoted(err.Error())
	}
	return f
}

// unlikeMCP is what is said of a server when there is nothing better to say.
const unlikeMCP = "it does not speak MCP as expected"

// secretFault says which secret a server lacks. err is for the log.
func secretFault(server, variable, name string, err error) *workflows.ToolError {
	return &workflows.ToolError{
		Fault: workflows.ToolUnavailable, Reason: ReasonSecret, Server: server,
		Message: fmt.Sprintf("secret %q for its variable %s is not there or is refused", name, variable), Err: err,
	}
}

// consentFault names the servers that nobody approved. The digests are no secret; the
// declarations are in the error's tree, for the serving machine's own eyes.
func consentFault(missing []Unapproved) *workflows.ToolError {
	var b strings.Builder
	for i, m := range missing {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "server %q (%s)", m.Server, m.Digest)
	}
	return &workflows.ToolError{
		Fault: workflows.ToolDenied, Reason: ReasonConsent, Server: missing[0].Server,
		Message: "a person at the serving machine must approve " + b.String(),
		Err:     &UnapprovedError{Servers: missing},
	}
}

// An Unapproved is a program that would be started and that nobody approved.
type Unapproved struct {
	Server      string // its id or ref
	Digest      string
	Declaration consent.Declaration
	Cause       error // why the grants could not be read, or nil
}

// An UnapprovedError holds the programs of a run that nobody on this machine approved,
// in the order of the agents' declarations.
type UnapprovedError struct{ Servers []Unapproved }

func (e *UnapprovedError) Error() string {
	return fmt.Sprintf("%d servers without consent", len(e.Servers))
}

// callFault is why a tools/call has no result.
func callFault(asked context.Context, at *tool, out outcome, err error, since time.Time) *workflows.ToolError {
	f := &workflows.ToolError{
		Fault: workflows.ToolFailed, Server: at.server, Tool: at.Name, Elapsed: time.Since(since), Err: err,
	}
	say := func(reason, format string, args ...any) *workflows.ToolError {
		f.Reason, f.Message = reason, fmt.Sprintf(format, args...)
		return f
	}
	if cancelled(asked) {
		f.Fault = workflows.ToolCancelled
		return say(ReasonCancelled, "the call was cancelled")
	}
	if errors.Is(err, errCancelled) { // by our own deadline or that of who asked
		f.Retryable, f.Limit = !out.begun, callLimit
		if asked.Err() != nil {
			f.Limit = 0
		}
		return say(ReasonDeadline, "no result within the deadline%s", unknownIf(out.begun))
	}
	if fault, ok := errors.AsType[*rpcError](err); ok {
		if fault.code == mcp.INVALID_PARAMS {
			f.Fault = workflows.ToolIncorrect
			return say(ReasonRejected, "the server refuses the parameters%s", saying(fault.message))
		}
		return say(ReasonRPC, "the server answered with error %d%s", fault.code, saying(fault.message))
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		if status.status == 401 || status.status == 403 {
			f.Fault = workflows.ToolUnavailable
			return say(ReasonUnauthorized, "the server needs authorization (HTTP %d)", status.status)
		}
		return say(ReasonStatus, "the server answered with HTTP %d%s", status.status, saying(status.text))
	}
	if redirect, ok := errors.AsType[*egress.RedirectError](err); ok {
		f.Fault = workflows.ToolUnavailable
		return say(ReasonRedirect, "%s", redirect.Error())
	}
	gone := errors.Is(err, errEnded) || errors.Is(err, errSessionGone) || errors.Is(err, errClosed)
	switch {
	case tooLarge(err):
		return say(ReasonTooLarge, "a message is over the bound")
	case gone && !out.begun && errors.Is(err, errClosed):
		f.Fault = workflows.ToolUnavailable
		return say(ReasonClosed, "the session is closed")
	case gone && !out.begun:
		f.Fault = workflows.ToolUnavailable
		return say(ReasonDied, "the server has ended")
	case !out.begun || unsent(err):
		if egress.ReasonOf(err) != "" && egress.ReasonOf(err) != egress.ReasonLookup {
			f.Fault = workflows.ToolUnavailable
			return say(ReasonEgress, "the address may not be reached")
		}
		f.Retryable = true
		return say(ReasonUnsent, "the request was not sent")
	case errors.Is(err, errBadReply):
		return say(ReasonResult, "the response cannot be read")
	}
	return say(ReasonLost, "the connection was lost%s", unknownIf(true))
}

// unsent tells whether err proves that nothing of a request was written. An exchange
// that ends without a connection is proof also where one was had before: only what had
// written nothing is tried on another one.
func unsent(err error) bool {
	_, lookup := errors.AsType[*egress.ResolveError](err)
	_, dial := errors.AsType[*egress.ConnectError](err)
	_, denied := errors.AsType[*egress.DeniedError](err)
	return lookup || dial || denied || egress.Unsent(err) || errors.Is(err, errUnsent)
}

func unknownIf(begun bool) string {
	if begun {
		return "; whether the tool ran is unknown"
	}
	return ""
}
