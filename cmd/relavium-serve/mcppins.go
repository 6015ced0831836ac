package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound"
)

// maxPinLines bounds what a question shows of a change; mcp pin show shows all.
const maxPinLines = 200

// pins opens the pinned definitions of the home, as [host] pin says. A person at the
// terminal is asked about changed tools where one may be.
func (a *app) pins(at *site) (*inbound.Pins, error) {
	pins, err := inbound.OpenPins(at.home, inbound.PinOptions{
		Mode:  inbound.PinMode(value(at.Host.Pin)),
		Log:   at.log,
		Store: at.pinStore(),
		Ask: func(ctx context.Context, change *inbound.PinChange) (bool, error) {
			return at.spawning.ask.Load() && len(a.conditions(at).Unmet()) == 0 && a.askPins(ctx, change), nil
		},
	})
	if err != nil {
		return nil, &fault{code: exitFault, err: err, hint: "set [host] pin in config.toml to ask, warn or off"}
	}
	return pins, nil
}

// conditions are what must hold before a person is asked.
func (a *app) conditions(at *site) consent.Conditions {
	return consent.Conditions{
		TTYIn: isTerminal(a.stdin), TTYOut: isTerminal(a.stdout), JSON: at.spawning.asJSON, CI: consent.CI(a.env["CI"]),
	}
}

// askPins shows what differs and reports whether the answer is yes.
func (a *app) askPins(ctx context.Context, change *inbound.PinChange) bool {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe tools of MCP server %s are not those that were approved:\n", oneLine(change.Server, 128))
	lines := change.Lines()
	for _, line := range lines[:min(len(lines), maxPinLines)] {
		b.WriteString("  " + line + "\n")
	}
	if more := len(lines) - maxPinLines; more > 0 {
		fmt.Fprintf(&b, "  … and %d more lines: relavium-serve mcp pin show %s\n", more, oneLine(change.Server, 128))
	}
	fmt.Fprintf(&b, "  digest   %s\nUse the tools as they are now? Type yes to approve them: ", change.Digest)
	answer, _ := a.ask(ctx, a.stderr, b.String())
	return strings.EqualFold(answer, "yes")
}
