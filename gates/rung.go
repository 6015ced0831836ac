package gates

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
)

// The channels that [gates] accept lists.
const (
	AcceptElicitation       = engine.ViaElicitation
	AcceptConsole           = engine.ViaConsole
	AcceptCLI               = engine.ViaCLI
	AcceptCLINonInteractive = engine.ViaCLINonInteractive
)

// A Client is who sent one request, and what that request says about it.
type Client struct {
	Principal    engine.Principal
	Version      string // the revision in effect
	Capabilities mcp.ClientCapabilities
	// Connection is comparable and the same for all requests of a connection; a
	// question that outlives its call is found by it.
	Connection any
	// Ask sends a request to a client of 2025; nil means that it cannot be asked.
	Ask AskFunc
	// Session names the connection in every process that has the run store, for a
	// client that may reply through any of them; "" for one that cannot.
	Session string
}

func (c *Client) modern() bool { return mcp.IsModernProtocol(c.Version) }

// An AskFunc sends a request of that id and returns when the reply is there. An
// error says that none came: the connection is gone, or ctx ended, upon which
// the client was told that the request is cancelled. It bounds nothing else: a
// person may take as long as the gate is open. A cause with a method Left that
// is true leaves the request open at the client; the Reply says when it left.
type AskFunc func(ctx context.Context, id, method string, params json.RawMessage) (Reply, error)

// A Reply is what a client answered to a request.
type Reply struct {
	Result   json.RawMessage
	Refused  bool      // an error response: there is no Result
	Sent     time.Time // when the request had left
	Received time.Time
}

// A Policy is what the operator allows at the gates of one workflow.
type Policy struct {
	Accept       []string        // channels that may decide
	MinHuman     time.Duration   // an answer that comes sooner is no person's
	Names        map[string]Name // by node id
	NotRequester bool            // whoever started the run may not answer
}

// elicits reports whether an answer through the caller's client may decide.
func (p *Policy) elicits() bool {
	return !p.NotRequester && slices.Contains(p.Accept, AcceptElicitation)
}

// A rung is how a call asks its own client.
type rung int

const (
	noRung   rung = iota
	formRung      // a form in the client
	pageRung      // the address of the console's page
)

// rungOf tells how the client may be asked, by what its request declares: a
// client without elicitation never gets one. page looks whether a console has
// an address; it is called only where that matters.
func rungOf(c *Client, p *Policy, page func() bool) rung {
	e := c.Capabilities.Elicitation
	switch {
	case e == nil || !p.elicits():
		return noRung
	case c.Version < mcp.ProtocolVersion20250618: // before elicitation was
		return noRung
	case !c.modern() && c.Ask == nil:
		return noRung
	case e.Form != nil || e.URL == nil: // "an empty capabilities object is equivalent to declaring support for form mode only"
		return formRung
	case c.Version >= mcp.ProtocolVersion20251125 && slices.Contains(p.Accept, AcceptConsole) && page():
		return pageRung
	}
	return noRung
}

// Reachable reports whether anybody can answer a gate of the policy when this
// client calls: the client's person, or one at the console or command line,
// which count whether or not one runs.
func Reachable(c *Client, p *Policy) bool {
	for _, channel := range p.Accept {
		switch channel {
		case AcceptConsole, AcceptCLI, AcceptCLINonInteractive:
			return true
		}
	}
	return rungOf(c, p, func() bool { return false }) != noRung
}

// offered reports whether the gate is one that callers may be asked about.
func offered(g *engine.Gate, p engine.Principal) bool {
	return g.Reason != engine.ReasonBudget || p == engine.Local
}
