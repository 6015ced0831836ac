package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

func (a *app) mcpInspectCommand() *cobra.Command {
	var flags hostFlags
	cmd := &cobra.Command{
		Use:   "inspect WORKFLOW|SERVER",
		Short: "Connect as a run would and show what is admitted, what is dropped and why",
		Example: "  relavium-serve mcp inspect SERVER\n" +
			"  relavium-serve mcp inspect release-notes --workflows examples/workflows --json",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.openHost(&flags)
			if err != nil {
				return err
			}
			return a.inspect(cmd.Context(), at, args[0], &flags)
		},
	}
	flags.add(cmd, "print one JSON object")
	return cmd
}

// An inspection is what mcp inspect shows.
type inspection struct {
	Workflow string            `json:"workflow,omitempty"`
	Reach    []inspectedReach  `json:"reach,omitempty"`
	Servers  []inspectedServer `json:"servers"`
}

type inspectedReach struct {
	Kind string `json:"kind"`
	Node string `json:"node,omitempty"`
	What string `json:"what"`
}

type inspectedServer struct {
	Server    string          `json:"server"`
	Transport string          `json:"transport"`
	URL       string          `json:"url,omitempty"`
	Digest    string          `json:"digest,omitempty"` // of the program, for consent
	Error     *inspectedError `json:"error,omitempty"`  // it did not connect

	Name     string          `json:"name,omitempty"`
	Version  string          `json:"version,omitempty"`
	Revision string          `json:"revision,omitempty"`
	Received int             `json:"received"`
	Pages    int             `json:"pages"`
	Bytes    int             `json:"bytes"`
	Set      string          `json:"set,omitempty"` // digest of the admitted tools
	Took     inspectedTiming `json:"took"`
	Tools    []inspectedTool `json:"tools"`
	Dropped  []inspectedDrop `json:"dropped"`
	Notes    []string        `json:"notes"`
	Pins     inspectedPins   `json:"pins"`
}

type inspectedError struct {
	Fault   string `json:"fault"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type inspectedTiming struct {
	StartMS     int64 `json:"start_ms"`
	HandshakeMS int64 `json:"handshake_ms"`
	DiscoveryMS int64 `json:"discovery_ms"`
}

type inspectedTool struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Title   string   `json:"title,omitempty"`
	Hints   string   `json:"hints,omitempty"`
	Bytes   int      `json:"bytes"`
	Digest  string   `json:"digest"`
	Ignored []string `json:"ignored,omitempty"`
}

type inspectedDrop struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
	Bytes  int    `json:"bytes"`
}

// inspectedPins is how the tools stand to those that are pinned: "none" before the
// first use, "same", "differ", or "unreadable".
type inspectedPins struct {
	State     string   `json:"state"`
	Changed   []string `json:"changed,omitempty"`
	New       []string `json:"new,omitempty"`
	Gone      []string `json:"gone,omitempty"`
	Reordered bool     `json:"reordered,omitempty"`
}

func (a *app) inspect(ctx context.Context, at *site, name string, flags *hostFlags) error {
	var shown inspection
	workflow, targets, err := at.named(name, flags.folders)
	if err != nil {
		return err
	}
	if workflow != nil {
		shown.Workflow = workflow.ID
		for _, touch := range publish.Touches(workflow, at.surroundings()) {
			shown.Reach = append(shown.Reach, inspectedReach{Kind: touch.Kind, Node: touch.Node, What: oneLine(touch.What, 200)})
		}
	}
	shown.Servers = make([]inspectedServer, len(targets))
	faults := make([]error, len(targets))
	err = a.withHost(ctx, at, false, func(host *inbound.Host) error {
		a.approveAll(ctx, host, targets, faults)
		var wg sync.WaitGroup
		for i := range targets {
			shown.Servers[i] = declaredServer(host, &targets[i])
			if faults[i] == nil {
				wg.Go(func() {
					faults[i] = a.inspectServer(ctx, at, host, fmt.Sprintf("inspect-%d", i), &targets[i], &shown.Servers[i])
				})
			}
		}
		wg.Wait()
		return nil
	})
	if err != nil {
		return err
	}
	if workflow != nil {
		collide(workflow.Agents, shown.Servers)
	}
	return a.showInspection(&shown, targets, faults, flags.asJSON)
}

// collide drops the tools whose name an earlier server of the same agent has taken, as
// a run does.
func collide(agents []workflows.Agent, servers []inspectedServer) {
	for i := range agents {
		taken := make(map[string]string) // by whom
		for j := range agents[i].Servers {
			ref := &agents[i].Servers[j]
			at := slices.IndexFunc(servers, func(s inspectedServer) bool { return s.Server == cmp.Or(ref.Ref, ref.ID) })
			if at < 0 {
				continue
			}
			s := &servers[at]
			s.Tools = slices.DeleteFunc(s.Tools, func(tool inspectedTool) bool {
				by, there := taken[tool.ID]
				if !there {
					taken[tool.ID] = s.Server
				}
				if !there || by == s.Server {
					return false
				}
				s.Dropped = append(s.Dropped, inspectedDrop{
					Name: tool.Name, Reason: inbound.DropCollision, Bytes: tool.Bytes,
					Detail: "for agent " + agents[i].ID + " server " + by + " has the name " + tool.ID,
				})
				return true
			})
		}
	}
}

// approveAll asks for consent to one server after the other, before any is started.
func (a *app) approveAll(ctx context.Context, host *inbound.Host, targets []target, faults []error) {
	for i := range targets {
		faults[i] = host.CheckRun(ctx, targets[i].workflow, targets[i].root)
	}
}

// declaredServer is what is known of a server before it is connected to.
func declaredServer(host *inbound.Host, t *target) inspectedServer {
	s := inspectedServer{Server: t.name(), Transport: t.ref.Transport, Tools: []inspectedTool{}, Dropped: []inspectedDrop{}, Notes: []string{}}
	if id, err := host.Identify(&t.ref, t.root); err == nil {
		s.Transport, s.URL, s.Digest = id.Transport, id.URL, id.Digest
	}
	return s
}

// inspectServer connects to one server and notes what it offers.
func (a *app) inspectServer(ctx context.Context, at *site, host *inbound.Host, run string, t *target, s *inspectedServer) error {
	report, err := a.connect(ctx, host, run, t)
	if err != nil {
		return err
	}
	s.Name, s.Version, s.Revision = report.Name, report.Version, report.Revision
	s.Received, s.Pages, s.Bytes, s.Set = report.Received, report.Pages, report.Bytes, report.Discovered.Digest()
	s.Took = inspectedTiming{
		StartMS: report.Took.Start.Milliseconds(), HandshakeMS: report.Took.Handshake.Milliseconds(), DiscoveryMS: report.Took.Discovery.Milliseconds(),
	}
	for i := range report.Tools {
		tool := &report.Tools[i]
		s.Tools = append(s.Tools, inspectedTool{
			ID: tool.ID, Name: tool.Name, Title: tool.Title, Hints: tool.Hints, Bytes: tool.Bytes, Digest: tool.Digest, Ignored: tool.Ignored,
		})
	}
	for _, d := range report.Dropped {
		s.Dropped = append(s.Dropped, inspectedDrop(d))
	}
	s.Notes = append(s.Notes, report.Notes...)
	s.Pins = a.comparePins(ctx, at, host, t, &report.Discovered)
	return nil
}

// comparePins says how what was found stands to what is pinned. It pins nothing.
func (a *app) comparePins(ctx context.Context, at *site, host *inbound.Host, t *target, found *inbound.Discovered) inspectedPins {
	change, err := a.pinChange(ctx, at, host, t, found)
	switch {
	case err != nil:
		return inspectedPins{State: "unreadable"}
	case change == nil:
		return inspectedPins{State: "none"}
	case change.None():
		return inspectedPins{State: "same"}
	}
	p := inspectedPins{State: "differ", New: escaped(change.Added), Gone: escaped(change.Gone), Reordered: change.Reordered}
	for i := range change.Changed {
		p.Changed = append(p.Changed, text.Escape(change.Changed[i].Name, 128))
	}
	return p
}

func escaped(names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, text.Escape(name, 128))
	}
	return out
}

// pinChange compares what was found with what is pinned; nil is a first use.
func (a *app) pinChange(ctx context.Context, at *site, host *inbound.Host, t *target, found *inbound.Discovered) (*inbound.PinChange, error) {
	pins, err := a.pins(at)
	if err != nil {
		return nil, err
	}
	id, err := host.Identify(&t.ref, t.root)
	if err != nil {
		return nil, err
	}
	return pins.Compare(ctx, id, found)
}

// showInspection writes it, and ends the command with the first server that did not
// come up.
func (a *app) showInspection(shown *inspection, targets []target, faults []error, asJSON bool) error {
	var first error
	for i := range faults {
		if faults[i] == nil {
			continue
		}
		shown.Servers[i].Error = &inspectedError{Fault: string(workflows.ToolUnavailable), Message: "it cannot be used"}
		if f, ok := errors.AsType[*workflows.ToolError](faults[i]); ok {
			shown.Servers[i].Error = &inspectedError{Fault: string(f.Fault), Reason: f.Reason, Message: oneLine(f.Message, 2000)}
		}
		if fault := a.startFault(&targets[i], faults[i]); first == nil {
			first = fault
		}
	}
	if asJSON {
		return errors.Join(a.json(shown), first)
	}
	var b strings.Builder
	if shown.Workflow != "" {
		fmt.Fprintf(&b, "workflow %s uses %s\n", shown.Workflow, plural(len(shown.Servers), "MCP server"))
		for _, reach := range shown.Reach {
			fmt.Fprintf(&b, "  reaches %s: %s", reach.Kind, reach.What)
			if reach.Node != "" {
				fmt.Fprintf(&b, " (node %s)", reach.Node)
			}
			b.WriteByte('\n')
		}
	}
	for i := range shown.Servers {
		shown.Servers[i].write(&b)
	}
	_, err := io.WriteString(a.stdout, plain(b.String()))
	return errors.Join(err, first)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// write shows one server to a person.
func (s *inspectedServer) write(b *strings.Builder) {
	at := s.URL
	if s.Digest != "" {
		at = s.Digest
	}
	fmt.Fprintf(b, "server %s (%s, %s)\n", s.Server, s.Transport, at)
	if s.Error != nil {
		fmt.Fprintf(b, "  not connected: %s (%s)\n", s.Error.Message, s.Error.Reason)
		return
	}
	fmt.Fprintf(b, "  calls itself %s %s, speaks %s\n", text.Quote(s.Name, 128), s.Version, s.Revision)
	ms := func(n int64) string { return (time.Duration(n) * time.Millisecond).String() }
	fmt.Fprintf(b, "  start %s, handshake %s, tools listed in %s\n", ms(s.Took.StartMS), ms(s.Took.HandshakeMS), ms(s.Took.DiscoveryMS))
	dropped, left, absent := s.sorted()
	fmt.Fprintf(b, "  %s of %d admitted, %d dropped, %d bytes of definitions on %s\n", plural(len(s.Tools), "tool"), s.Received, len(dropped), s.Bytes, plural(s.Pages, "page"))
	fmt.Fprintf(b, "  set %s, pins: %s\n", s.Set, s.Pins.words())
	width := 0
	for i := range s.Tools {
		width = max(width, len(s.Tools[i].ID))
	}
	for i := range s.Tools {
		t := &s.Tools[i]
		fmt.Fprintf(b, "    %-*s %6d bytes  %s", width, t.ID, t.Bytes, t.Digest[:min(len(t.Digest), 19)])
		if t.Hints != "" {
			b.WriteString("  " + t.Hints)
		}
		if len(t.Ignored) > 0 {
			b.WriteString("  not enforced: " + strings.Join(t.Ignored, ", "))
		}
		b.WriteByte('\n')
	}
	for _, d := range dropped {
		b.WriteString("  dropped \"" + d.Name + "\": " + d.Reason + ": " + d.Detail + "\n")
	}
	if len(left) > 0 {
		fmt.Fprintf(b, "  left out by tools_allowlist of an agent: %s\n", strings.Join(left, ", "))
	}
	if len(absent) > 0 {
		fmt.Fprintf(b, "  named by tools_allowlist, but not offered: %s\n", strings.Join(absent, ", "))
	}
	for _, note := range s.Notes {
		fmt.Fprintf(b, "  note: %s\n", note)
	}
}

// sorted parts what the server's tools lack from what agents leave out, each once.
func (s *inspectedServer) sorted() (dropped []inspectedDrop, left, absent []string) {
	for _, d := range s.Dropped {
		switch {
		case d.Reason == inbound.DropAllowlist && !slices.Contains(left, d.Name):
			left = append(left, d.Name)
		case d.Reason == inbound.DropAbsent && !slices.Contains(absent, d.Name):
			absent = append(absent, d.Name)
		case d.Reason != inbound.DropAllowlist && d.Reason != inbound.DropAbsent:
			dropped = append(dropped, d)
		}
	}
	return dropped, left, absent
}

// words says it to a person.
func (p *inspectedPins) words() string {
	switch p.State {
	case "none":
		return "none yet, the first run pins these tools"
	case "same":
		return "as pinned"
	case "differ":
		var parts []string
		for _, part := range []struct {
			what  string
			names []string
		}{{"changed", p.Changed}, {"new", p.New}, {"gone", p.Gone}} {
			if len(part.names) > 0 {
				parts = append(parts, part.what+": "+strings.Join(slices.Concat(part.names[:min(len(part.names), 10)]), ", "))
			}
		}
		if p.Reordered {
			parts = append(parts, "in another order")
		}
		return strings.Join(parts, "; ")
	default:
		return "cannot be read"
	}
}
