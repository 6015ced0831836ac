package agent

import (
	"context"

	"github.com/relavium/relavium-serve/workflows"
)

// A ToolHost has tools for agents: the built-in ones, or those of the MCP servers
// that the agent declares. Its methods use types of workflows alone, so that a host
// needs to know nothing of the engine. It is safe for concurrent use.
type ToolHost interface {
	// Tools lists what the host has for this agent in this run, in the order in which
	// a model is to see it. Grants are not its affair.
	Tools(run string, agent *workflows.Agent) []workflows.Tool
	// Check decides whether the call may be made, and does nothing else. An error is a
	// *workflows.ToolError.
	Check(ctx context.Context, call *workflows.ToolCall) (workflows.Admission, error)
	// Call makes a call that Check admitted. An error is a *workflows.ToolError; it
	// returns when ctx ends, whatever the tool does.
	Call(ctx context.Context, call *workflows.ToolCall) (workflows.ToolResult, error)
}
