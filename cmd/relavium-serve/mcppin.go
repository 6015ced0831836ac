package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/inbound"
)

func (a *app) mcpPinCommand() *cobra.Command {
	cmd := group("pin", "Show, approve and forget how the tools of a server were defined",
		"  relavium-serve mcp pin show SERVER\n  relavium-serve mcp pin approve SERVER",
		a.mcpPinShowCommand(), a.mcpPinApproveCommand(), a.mcpPinResetCommand())
	cmd.Long = `Show, approve and forget how the tools of a server were defined.

The first use of a server pins the definitions of its tools in mcp-pins.ndjson in
RELAVIUM_HOME. After that a new tool is withheld and a changed one keeps runs from
starting, until a person has seen the difference and approved it. [host] pin in
config.toml may be ask (this), warn or off.`
	return cmd
}

func (a *app) mcpPinShowCommand() *cobra.Command {
	var flags hostFlags
	cmd := &cobra.Command{
		Use:     "show SERVER",
		Short:   "Show how a server's tools differ from those that are pinned",
		Example: "  relavium-serve mcp pin show SERVER",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPins(cmd.Context(), args[0], &flags, func(seen *pinned) error {
				return a.showPins(seen, flags.asJSON)
			})
		},
	}
	flags.add(cmd, "print one JSON object")
	return cmd
}

func (a *app) mcpPinApproveCommand() *cobra.Command {
	var flags hostFlags
	var digest string
	cmd := &cobra.Command{
		Use:   "approve SERVER",
		Short: "Pin a server's tools as they are now",
		Long: `Pin a server's tools as they are now.

The difference is shown first. A person at the terminal types yes; elsewhere
--digest must name the set of tools that was reviewed, as mcp pin show prints it.`,
		Example: "  relavium-serve mcp pin approve SERVER\n  relavium-serve mcp pin approve SERVER --digest DIGEST",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withPins(cmd.Context(), args[0], &flags, func(seen *pinned) error {
				return a.approvePins(cmd.Context(), seen, digest, flags.asJSON)
			})
		},
	}
	flags.add(cmd, "print what is pinned as one JSON object")
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that the set of tools must have")
	return cmd
}

func (a *app) mcpPinResetCommand() *cobra.Command {
	var folders []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "reset SERVER",
		Short:   "Forget what is pinned for a server: its next use is a first one",
		Example: "  relavium-serve mcp pin reset SERVER",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			t, err := at.server(args[0], folders)
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), at, false, func(host *inbound.Host) error {
				return a.resetPins(cmd.Context(), at, host, t, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was forgotten as one JSON object")
	workflowFlag(cmd, &folders)
	return cmd
}

// pinned is a server's tools beside those that are pinned.
type pinned struct {
	site   *site
	pins   *inbound.Pins
	target *target
	id     inbound.Identity
	found  *inbound.Discovered
	change *inbound.PinChange // nil if nothing is pinned
}

// withPins connects to a server and compares, recording nothing.
func (a *app) withPins(ctx context.Context, name string, flags *hostFlags, use func(*pinned) error) error {
	at, err := a.openHost(flags)
	if err != nil {
		return err
	}
	t, err := at.server(name, flags.folders)
	if err != nil {
		return err
	}
	pins, err := a.pins(at)
	if err != nil {
		return err
	}
	return a.withHost(ctx, at, false, func(host *inbound.Host) error {
		report, err := a.connect(ctx, host, "pin", t)
		if err != nil {
			return a.startFault(t, err)
		}
		seen := &pinned{site: at, pins: pins, target: t, found: &report.Discovered}
		if seen.id, err = host.Identify(&t.ref, t.root); err != nil {
			return a.startFault(t, err)
		}
		if seen.change, err = pins.Compare(ctx, seen.id, seen.found); err != nil {
			return &fault{code: exitFault, err: err}
		}
		return use(seen)
	})
}

// state is same, differ or none.
func (seen *pinned) state() string {
	switch {
	case seen.change == nil:
		return "none"
	case seen.change.None():
		return "same"
	default:
		return "differ"
	}
}

// lines show the difference, or all tools if nothing is pinned.
func (seen *pinned) lines() []string {
	if seen.change != nil {
		return seen.change.Lines()
	}
	first := inbound.PinChange{}
	for i := range seen.found.Tools {
		first.Added = append(first.Added, seen.found.Tools[i].Name)
	}
	return first.Lines()
}

func (seen *pinned) json() map[string]any {
	return map[string]any{
		"server": seen.target.name(), "key": inbound.PinKey(seen.id), "state": seen.state(),
		"digest": seen.found.Digest(), "tools": len(seen.found.Tools), "lines": append([]string{}, seen.lines()...),
	}
}

func (a *app) showPins(seen *pinned, asJSON bool) error {
	if asJSON {
		return a.json(seen.json())
	}
	_, err := io.WriteString(a.stdout, seen.words())
	return err
}

// words show the state to a person.
func (seen *pinned) words() string {
	var b strings.Builder
	switch seen.state() {
	case "none":
		fmt.Fprintf(&b, "nothing is pinned for %s; it offers:\n", oneLine(seen.target.name(), 128))
	case "same":
		fmt.Fprintf(&b, "the tools of %s are as pinned\n", oneLine(seen.target.name(), 128))
	default:
		fmt.Fprintf(&b, "the tools of %s differ from the pinned ones:\n", oneLine(seen.target.name(), 128))
	}
	for _, line := range seen.lines() {
		b.WriteString("  " + line + "\n")
	}
	fmt.Fprintf(&b, "digest of the tools as they are now: %s\n", seen.found.Digest())
	return b.String()
}

func (a *app) approvePins(ctx context.Context, seen *pinned, digest string, asJSON bool) error {
	now := seen.found.Digest()
	if digest == "" {
		if unmet := a.conditions(seen.site).Unmet(); len(unmet) > 0 {
			return invalid("relavium-serve mcp pin show "+seen.target.name(),
				"approve needs --digest of the tools as they were reviewed, since nobody can be asked: %s", strings.Join(unmet, ", "))
		}
		if seen.state() == "same" {
			return a.said(asJSON, seen.json(), "the tools of %s are as pinned", oneLine(seen.target.name(), 128))
		}
		answer, _ := a.ask(ctx, a.stderr, seen.words()+"Pin the tools as they are now? Type yes to approve them: ")
		if !strings.EqualFold(answer, "yes") {
			return &fault{code: exitFailed, err: fmt.Errorf("the tools of %s are not approved", seen.target.name())}
		}
	} else if digest != now {
		return invalid("relavium-serve mcp pin show "+seen.target.name(), "the tools are others: their digest is %s, --digest says %s", now, oneLine(digest, 80))
	}
	if err := makeHome(seen.site.place); err != nil {
		return err
	}
	if err := seen.pins.Approve(ctx, seen.id, seen.found); err != nil {
		return &fault{code: exitFault, err: err}
	}
	shown := seen.json()
	shown["state"], shown["lines"] = "same", []string{}
	return a.said(asJSON, shown, "the tools of %s are pinned as they are now: %s", oneLine(seen.target.name(), 128), now)
}

func (a *app) resetPins(ctx context.Context, at *site, host *inbound.Host, t *target, asJSON bool) error {
	id, err := host.Identify(&t.ref, t.root)
	if err != nil {
		return a.startFault(t, err)
	}
	pins, err := a.pins(at)
	if err != nil {
		return err
	}
	if err := makeHome(at.place); err != nil {
		return err
	}
	there, err := pins.Reset(ctx, id)
	if err != nil {
		return &fault{code: exitFault, err: err}
	}
	if !there {
		return invalid("", "nothing is pinned for MCP server %s", oneLine(t.name(), 128))
	}
	return a.said(asJSON, map[string]any{"server": t.name(), "key": inbound.PinKey(id)}, "what was pinned for %s is forgotten", oneLine(t.name(), 128))
}
