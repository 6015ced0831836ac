package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

const maxCallArguments = 1 << 20

func (a *app) mcpCallCommand() *cobra.Command {
	var flags hostFlags
	cmd := &cobra.Command{
		Use:   "call SERVER TOOL [JSON|-]",
		Short: "Call one tool of a server, as an agent would",
		Long: `Call one tool of a server, as an agent would.

TOOL is the server's own name for it, or the name that agents use. The arguments
are one JSON object; - reads them from the standard input, and none is {}. They
are checked against the tool's schema before anything is sent. The command ends
with 1 if the tool reports an error.`,
		Example: "  relavium-serve mcp call SERVER search '{\"query\":\"retry\"}'",
		Args:    cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.openHost(&flags)
			if err != nil {
				return err
			}
			arguments, err := a.callArguments(args[2:])
			if err != nil {
				return err
			}
			t, err := at.server(args[0], flags.folders)
			if err != nil {
				return err
			}
			return a.withHost(cmd.Context(), at, true, func(host *inbound.Host) error {
				return a.callTool(cmd.Context(), host, t, args[1], arguments, flags.asJSON)
			})
		},
	}
	flags.add(cmd, "print the result as one JSON object")
	return cmd
}

func (a *app) callArguments(given []string) (json.RawMessage, error) {
	switch {
	case len(given) == 0:
		return json.RawMessage("{}"), nil
	case given[0] != "-":
		return json.RawMessage(given[0]), nil
	}
	read, err := io.ReadAll(io.LimitReader(a.stdin, maxCallArguments+1))
	if err != nil {
		return nil, fmt.Errorf("reading the standard input: %w", err)
	}
	return read, nil
}

func (a *app) callTool(ctx context.Context, host *inbound.Host, t *target, tool string, arguments json.RawMessage, asJSON bool) error {
	const run = "call"
	report, err := a.connect(ctx, host, run, t)
	if err != nil {
		return a.startFault(t, err)
	}
	call := &workflows.ToolCall{
		Run: run, Node: "mcp", Principal: "local", Root: t.root, Workflow: t.workflow, Agent: &t.workflow.Agents[0],
		Arguments: arguments, Key: uuid.NewString(),
	}
	for i := range report.Tools {
		if found := &report.Tools[i]; found.Name == tool || found.ID == tool {
			call.Tool = found.ID
			break
		}
	}
	if call.Tool == "" {
		return noTool(t, &report, tool)
	}
	if _, err := host.Check(ctx, call); err != nil {
		return callFault(err, exitFault)
	}
	result, err := host.Call(ctx, call)
	if err != nil {
		return callFault(err, exitFailed)
	}
	if asJSON {
		err = a.json(map[string]any{"text": result.Text, "isError": result.IsError})
	} else {
		shown := result.Text
		if isTerminal(a.stdout) {
			shown = text.Clean(shown)
		}
		_, err = io.WriteString(a.stdout, strings.TrimSuffix(shown, "\n")+"\n")
	}
	if err == nil && result.IsError {
		err = silent(exitFailed)
	}
	return err
}

func noTool(t *target, report *inbound.ServerReport, tool string) error {
	for _, d := range report.Dropped {
		if d.Name == tool {
			return invalid("relavium-serve mcp inspect "+t.name(), "tool %q of MCP server %s is dropped: %s: %s", oneLine(tool, 80), t.name(), d.Reason, d.Detail)
		}
	}
	names := make([]string, 0, len(report.Tools))
	for i := range report.Tools {
		names = append(names, report.Tools[i].Name)
	}
	hint := "relavium-serve mcp inspect " + t.name()
	if near := closest(tool, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	return invalid(hint, "MCP server %s offers no tool %q", t.name(), oneLine(tool, 80))
}

// callFault is what a command ends with when a call was not made or has no result.
func callFault(err error, code int) error {
	f, ok := errors.AsType[*workflows.ToolError](err)
	if !ok {
		return err
	}
	return &fault{code: code, err: fmt.Errorf("%s: %s (%s)", f.Tool, f.Message, f.Reason)}
}
