package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// A Reason is the stable code of a refusal.
type Reason string

// The reasons. All but the last four are told of a declared URL before any lookup
// when its text alone shows them.
const (
	ReasonURL         Reason = "bad_url"                 // not an absolute URL, too long, or characters that parsers read differently
	ReasonScheme      Reason = "scheme"                  // a scheme that the transport does not speak
	ReasonUserinfo    Reason = "userinfo"                // credentials in the URL
	ReasonFragment    Reason = "fragment"                // a fragment, which is never sent
	ReasonPort        Reason = "port"                    // port 0, empty, out of range, or with leading zeros
	ReasonZone        Reason = "zone"                    // an IPv6 zone
	ReasonNumericHost Reason = "non_canonical_ip"        // a number that some resolvers take for an IPv4 address
	ReasonHostname    Reason = "bad_hostname"            // not a host name by RFC 1123 and UTS 46
	ReasonPlaintext   Reason = "plaintext_remote"        // http to a host that was not declared local
	ReasonTransport   Reason = "transport_unguarded"     // a remote websocket, or a transport without a URL
	ReasonMetadata    Reason = "metadata"                // a metadata service of a cloud
	ReasonPrivate     Reason = "private_address"         // a local address without the opt-in
	ReasonReserved    Reason = "reserved_address"        // an address that is never reached
	ReasonLocalPublic Reason = "local_resolves_public"   // declared local, and is not
	ReasonOrigin      Reason = "outside_declared_origin" // a request, a Host or a socket other than the declared one
	ReasonNoAddress   Reason = "no_address"              // the name has no address
	ReasonLookup      Reason = "dns_error"               // the name could not be resolved; not a refusal of the policy
	ReasonRedirect    Reason = "redirect"                // see RedirectError
	ReasonTooLarge    Reason = "message_too_large"       // see TooLargeError
)

// A DeniedError says that the policy refused a URL, a request or an address before a
// byte was sent. Its text holds neither Addr nor anything of the URL but the host.
type DeniedError struct {
	Reason Reason
	Host   string     // of the target in canonical form; empty if the URL has none
	Addr   netip.Addr // that was refused, for the log; invalid if no address was
	Rule   string     // what was broken, as one phrase
}

// Error names the host, the rule and the reason.
func (e *DeniedError) Error() string {
	if e.Host == "" {
		return fmt.Sprintf("egress: refused: %s (%s)", e.Rule, e.Reason)
	}
	return fmt.Sprintf("egress: %q refused: %s (%s)", e.Host, e.Rule, e.Reason)
}

// A ResolveError says that a name could not be resolved. Its text leaves out which
// server was asked; Unwrap has the resolver's own error.
type ResolveError struct {
	Host string
	Err  error
}

// Error names the host, and what the resolver said as far as it is known.
func (e *ResolveError) Error() string {
	what := "lookup failed"
	switch dns, ok := errors.AsType[*net.DNSError](e.Err); {
	case ok && dns.IsNotFound:
		what = "no such name"
	case ok && dns.IsTimeout || errors.Is(e.Err, context.DeadlineExceeded):
		what = "lookup timed out"
	}
	return fmt.Sprintf("egress: %q: %s", e.Host, what)
}

// Unwrap returns the resolver's error.
func (e *ResolveError) Unwrap() error { return e.Err }

// A ConnectError says that no checked address of a host could be connected to. Its
// text leaves the addresses out; Unwrap has the error of each attempt.
type ConnectError struct {
	Host string
	Err  error
}

// Error names the host, and why the attempts failed as far as it is known.
func (e *ConnectError) Error() string {
	what := "no connection"
	if refusal, ok := errors.AsType[*proxyError](e.Err); ok {
		what = refusal.Error()
	} else if errno, ok := errors.AsType[syscall.Errno](e.Err); ok {
		what = errno.Error()
	} else if errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, os.ErrDeadlineExceeded) {
		what = "connecting timed out"
	}
	return fmt.Sprintf("egress: %q: %s", e.Host, what)
}

// Unwrap returns the joined errors of the attempts.
func (e *ConnectError) Unwrap() error { return e.Err }

// A RedirectError says that the server answered with a redirect, which was not
// followed. The remedy is to declare the final URL.
type RedirectError struct {
	Status   int
	Location string // absolute, at most 256 bytes, without credentials, query and fragment; empty if there was none to read
}

// Error names the redirect.
func (e *RedirectError) Error() string {
	if e.Location == "" {
		return fmt.Sprintf("egress: redirect refused: status %d", e.Status)
	}
	return fmt.Sprintf("egress: redirect refused: status %d to %q; declare the final URL", e.Status, e.Location)
}

// A TooLargeError says that one message of a response passed a bound. What was read
// of it so far must not be used.
type TooLargeError struct {
	Limit int64 // of one message, in bytes
	Lines int   // of one event, if that is the bound that was passed, else 0
}

// Error names the bound.
func (e *TooLargeError) Error() string {
	if e.Lines > 0 {
		return fmt.Sprintf("egress: event of more than %d lines", e.Lines)
	}
	return fmt.Sprintf("egress: message of more than %d bytes", e.Limit)
}

// ReasonOf returns the reason in err's tree, or "" if err is none of this package's.
func ReasonOf(err error) Reason {
	if e, ok := errors.AsType[*DeniedError](err); ok {
		return e.Reason
	}
	if _, ok := errors.AsType[*ResolveError](err); ok {
		return ReasonLookup
	}
	if _, ok := errors.AsType[*RedirectError](err); ok {
		return ReasonRedirect
	}
	if _, ok := errors.AsType[*TooLargeError](err); ok {
		return ReasonTooLarge
	}
	return ""
}

// Unsent tells whether err, from a client of this package, proves that nothing of the
// request left the process: it was refused, or no connection came about. A call that
// must not happen twice may be sent again only then.
func Unsent(err error) bool {
	_, ok := errors.AsType[*unsentError](err)
	return ok
}

// unsentError marks an error of a request that never had a connection.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return e.err.Error() }

func (e *unsentError) Unwrap() error { return e.err }
