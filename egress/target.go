package egress

import (
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// maxURLBytes bounds a declared URL.
const maxURLBytes = 2048

// A Target is one endpoint that was declared and passed the checks of its text. It
// does not change and is safe for concurrent use.
type Target struct {
	scheme    string // http or https
	host      string // ASCII, lower case, without trailing dot and brackets
	port      uint16
	addr      netip.Addr // valid when host is an address
	reach     reach
	websocket bool
	url       url.URL
}

// reach is which classes a target's addresses may be of.
type reach uint8

const (
	reachPublic reach = iota
	reachLocal        // and nothing else: the opt-in narrows
	reachAny          // public and local, for a proxy that the operator chose
)

// ParseTarget checks a declared http or https URL. With allowLocal the target is this
// host and port as local: plaintext is allowed, and every address of it must be a
// local one. Without it the scheme must be https and every address public. A refusal
// is a [*DeniedError].
func ParseTarget(rawURL string, allowLocal bool) (*Target, error) {
	if allowLocal {
		return parse(rawURL, reachLocal)
	}
	return parse(rawURL, reachPublic)
}

// ParseProxy checks the http or https URL of a proxy that the operator of this process
// chose; it must never come from a workflow. It may be public or local, and like any
// target no metadata service and nothing reserved. Credentials in it are refused.
func ParseProxy(rawURL string) (*Target, error) {
	return parse(rawURL, reachAny)
}

// ParseServer is ParseTarget for the URL of an MCP server with the given transport:
// http, sse or websocket. A websocket URL has the scheme ws or wss and must be local,
// since that transport has no bound on what a server sends.
func ParseServer(transport, rawURL string, allowLocal bool) (*Target, error) {
	switch transport {
	case "http", "sse":
		return ParseTarget(rawURL, allowLocal)
	case "websocket":
	default:
		return nil, &DeniedError{Reason: ReasonTransport, Rule: "a transport without a URL"}
	}
	scheme, rest, found := strings.Cut(rawURL, ":")
	switch {
	case found && strings.EqualFold(scheme, "wss"):
		scheme = "https:"
	case found && strings.EqualFold(scheme, "ws"):
		scheme = "http:"
	default:
		return nil, &DeniedError{Reason: ReasonScheme, Rule: "a websocket URL begins with ws:// or wss://"}
	}
	if !allowLocal {
		return nil, &DeniedError{Reason: ReasonTransport, Rule: "a remote websocket can be neither pinned nor bounded; use transport http"}
	}
	t, err := parse(scheme+rest, reachLocal)
	if err != nil {
		return nil, err
	}
	t.websocket = true
	return t, nil
}

// CheckURL is the check of a declared URL alone, for whoever reads declarations: of
// a websocket by its scheme, else of http. It looks nothing up.
func CheckURL(rawURL string, allowLocal bool) error {
	transport := "http"
	if scheme, _, _ := strings.Cut(rawURL, ":"); strings.EqualFold(scheme, "ws") || strings.EqualFold(scheme, "wss") {
		transport = "websocket"
	}
	_, err := ParseServer(transport, rawURL, allowLocal)
	return err
}

// URL returns the target's URL in canonical form, the caller's to change. Requests
// are built from it: a client refuses another spelling of the same origin. The scheme
// of a websocket is ws or wss.
func (t *Target) URL() *url.URL {
	u := t.url
	if t.websocket {
		u.Scheme = "ws" + strings.TrimPrefix(t.scheme, "http")
	}
	return &u
}

// HostPort returns the host, in brackets if it is an IPv6 address, and the port.
func (t *Target) HostPort() string {
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
}

// Local tells whether the target was declared local.
func (t *Target) Local() bool { return t.reach == reachLocal }

func parse(raw string, to reach) (*Target, error) {
	u, err := parseURL(raw)
	if err != nil {
		return nil, err
	}
	t := &Target{scheme: u.Scheme, reach: to}
	if t.port, err = parsePort(u); err != nil {
		return nil, err
	}
	if err := t.parseHost(u); err != nil {
		return nil, err
	}
	if err := t.checkDeclared(); err != nil {
		return nil, err
	}
	t.url = url.URL{Scheme: t.scheme, Host: t.HostPort(), Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery}
	if t.port == defaultPort(t.scheme) {
		t.url.Host = strings.TrimSuffix(t.url.Host, ":"+strconv.Itoa(int(t.port)))
	}
	return t, nil
}

// parseURL checks what is wrong whatever the host is. Where two URL parsers could read
// a text differently, the text is refused.
func parseURL(raw string) (*url.URL, error) {
	refuse := func(r Reason, rule string) (*url.URL, error) {
		return nil, &DeniedError{Reason: r, Rule: rule}
	}
	if len(raw) > maxURLBytes || !utf8.ValidString(raw) {
		return refuse(ReasonURL, "a URL of more than 2048 bytes or not UTF-8")
	}
	for i := range len(raw) {
		if c := raw[i]; c <= ' ' || c == 0x7f || c == '\\' {
			return refuse(ReasonURL, "a space, control character or backslash in a URL")
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return refuse(ReasonURL, "not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return refuse(ReasonScheme, "the scheme must be http or https")
	case u.Opaque != "" || u.Host == "":
		return refuse(ReasonURL, "a URL without a host")
	case u.User != nil:
		return refuse(ReasonUserinfo, "credentials in a URL")
	case strings.Contains(raw, "#"):
		return refuse(ReasonFragment, "a fragment in a URL")
	}
	_, authority, _ := strings.Cut(raw, "//")
	if i := strings.IndexAny(authority, "/?"); i >= 0 {
		authority = authority[:i]
	}
	if strings.Contains(authority, "%") {
		if strings.HasPrefix(authority, "[") {
			return refuse(ReasonZone, "an IPv6 address with a zone")
		}
		return refuse(ReasonHostname, "percent-encoding in a host")
	}
	return u, nil
}

func defaultPort(scheme string) uint16 {
	if scheme == "https" {
		return 443
	}
	return 80
}

func parsePort(u *url.URL) (uint16, error) {
	p := u.Port()
	if p == "" && !strings.HasSuffix(u.Host, ":") {
		return defaultPort(u.Scheme), nil
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 || p[0] == '0' {
		return 0, &DeniedError{Reason: ReasonPort, Rule: "a port is a number from 1 to 65535 without leading zeros"}
	}
	return uint16(n), nil
}

// parseHost sets host, and addr if the host is an address. A host whose last label is
// a number is an address (WHATWG URL 3.5): inet_aton, and so many resolvers, would read
// it as one, and of their spellings only the dotted quad is let through.
func (t *Target) parseHost(u *url.URL) error {
	h := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		a, err := netip.ParseAddr(h)
		if err != nil || !a.Is6() {
			return &DeniedError{Reason: ReasonNumericHost, Rule: "not an IPv6 address"}
		}
		t.addr, t.host = a, a.String()
		return nil
	}
	h = strings.TrimSuffix(h, ".")
	ascii, err := hostProfile().ToASCII(h)
	if err != nil || ascii == "" || strings.HasSuffix(ascii, ".") {
		if endsInNumber(h) {
			return &DeniedError{Reason: ReasonNumericHost, Rule: "not a dotted quad"}
		}
		return &DeniedError{Reason: ReasonHostname, Rule: "not a host name (RFC 1123, UTS 46)"}
	}
	t.host = strings.ToLower(ascii)
	if !endsInNumber(t.host) {
		return nil
	}
	a, err := netip.ParseAddr(t.host)
	if err != nil || !a.Is4() {
		return &DeniedError{Reason: ReasonNumericHost, Rule: "not a dotted quad"}
	}
	t.addr = a
	return nil
}

// hostProfile maps as UTS 46 does for a lookup and refuses what is no host name:
// STD3 characters, hyphens, lengths, bidi and joiners.
func hostProfile() *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.CheckJoiners(true),
		idna.CheckHyphens(true), idna.StrictDomainName(true), idna.VerifyDNSLength(true))
}

func endsInNumber(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == "" {
		return false
	}
	if strings.Trim(last, "0123456789") == "" {
		return true
	}
	hex, found := strings.CutPrefix(strings.ToLower(last), "0x")
	return found && strings.Trim(hex, "0123456789abcdef") == ""
}

// checkDeclared applies the policy to what is known before a lookup.
func (t *Target) checkDeclared() error {
	switch {
	case isMetadataName(t.host):
		return t.deny(ReasonMetadata, "the name of a metadata service")
	case t.addr.IsValid():
		if err := t.admit(t.addr); err != nil {
			return err
		}
	case t.isLocalhost() && t.reach == reachPublic:
		return t.deny(ReasonPrivate, "loopback (RFC 6761)")
	}
	if t.scheme != "https" && t.reach == reachPublic {
		return t.deny(ReasonPlaintext, "a remote endpoint must be https")
	}
	return nil
}

// isLocalhost tells whether the host is loopback by its name alone, RFC 6761 6.3.
func (t *Target) isLocalhost() bool {
	return t.host == "localhost" || strings.HasSuffix(t.host, ".localhost")
}

// admit applies the policy to one address of the target.
func (t *Target) admit(a netip.Addr) error {
	v := Classify(a)
	refuse := func(r Reason, rule string) error {
		return &DeniedError{Reason: r, Host: t.host, Addr: a, Rule: rule}
	}
	switch v.Class {
	case Public:
		if t.reach == reachLocal {
			return refuse(ReasonLocalPublic, "declared local, and its address is public")
		}
		return nil
	case Local:
		if t.reach == reachPublic {
			return refuse(ReasonPrivate, v.Rule)
		}
		return nil
	case Metadata:
		return refuse(ReasonMetadata, v.Rule)
	case Reserved:
	}
	return refuse(ReasonReserved, v.Rule)
}

func (t *Target) deny(r Reason, rule string) error {
	return &DeniedError{Reason: r, Host: t.host, Rule: rule}
}
