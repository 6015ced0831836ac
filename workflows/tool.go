package workflows

import (
	"encoding/json"
	"fmt"
	"time"
)

// A Tool is something that an agent may call, as a model is told of it.
type Tool struct {
	ID          string          // what grants and models call it: read_file, mcp_github_search
	Server      string          // id or ref of the MCP server; "" for a built-in tool
	Name        string          // the server's own name for it
	Description string          // cleaned; of a server's tool it begins with the line that says where it comes from
	InputSchema json.RawMessage // an object schema
	Hints       string          // what a server says of its effects, for people; never believed
}

// A ToolCall is one call of a tool by an agent node.
type ToolCall struct {
	Run       string
	Node      string
	Principal string    // who started the run
	Root      string    // absolute real path of the project root
	Workflow  *Workflow // the run's own definition
	Agent     *Agent
	Tool      string          // a Tool's ID
	Arguments json.RawMessage // as the model wrote them; checked by Check, sent unchanged
	Key       string          // idempotency key: the same for every repetition of this call
	Approval  string          // the gate whose approval lets this call pass; "" if none does
}

// An Admission is what is known of a call before it is made.
type Admission struct {
	Repeatable bool            // doing it twice is as doing it once
	Approval   bool            // it needs the approval of a person at an earlier gate
	Shown      json.RawMessage // the arguments as people and events may see them
}

// A ToolResult is what a tool returned. Text is whole: what a model sees of it is
// bounded by who asked.
type ToolResult struct {
	Text    string
	IsError bool // the tool ran and reports an error, which the model may correct
}

// A ToolFault is the kind of a ToolError.
type ToolFault string

// The kinds of faults. Incorrect is told to the model, which may try again a few
// times; the others end the agent's turn.
const (
	ToolIncorrect   ToolFault = "incorrect"        // unknown tool, arguments that do not fit, an error that the server reports
	ToolDenied      ToolFault = "tool_denied"      // by policy
	ToolFailed      ToolFault = "tool_failed"      // the call was made and failed
	ToolUnavailable ToolFault = "tool_unavailable" // the tool or its server is not there
	ToolCancelled   ToolFault = "cancelled"
)

// A ToolError is why a tool call did not return a result. Message is safe for
// models, events and people: no secret, no absolute path, at most 2 KiB of a
// server's text.
type ToolError struct {
	Fault     ToolFault
	Reason    string // one of a closed list, such as command_not_allowed or deadline
	Message   string
	Retryable bool // provably not sent, or safe to repeat
	Server    string
	Tool      string
	Elapsed   time.Duration
	Limit     time.Duration // the deadline that passed, or 0
	Err       error         // for the log; may be nil
}

func (e *ToolError) Error() string {
	what := e.Tool
	if e.Server != "" {
		what = e.Server + ": " + e.Tool
	}
	return fmt.Sprintf("%s (%s): %s: %s", e.Fault, e.Reason, what, e.Message)
}

// Unwrap returns the cause.
func (e *ToolError) Unwrap() error { return e.Err }
