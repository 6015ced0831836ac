package engine

import (
	"encoding/json"
	"time"
)

// Event types of format 4.2 that this engine emits.
const (
	RunStarted      = "run:started"
	RunPaused       = "run:paused"
	RunTimeout      = "run:timeout"
	RunCompleted    = "run:completed"
	RunFailed       = "run:failed"
	RunCancelled    = "run:cancelled"
	NodeStarted     = "node:started"
	NodeCompleted   = "node:completed"
	NodeFailed      = "node:failed"
	NodeRetrying    = "node:retrying"
	NodeSkipped     = "node:skipped"
	GatePaused      = "human_gate:paused"
	GateResumed     = "human_gate:resumed"
	AgentToken      = "agent:token"
	AgentReasoning  = "agent:reasoning"
	AgentToolCall   = "agent:tool_call"
	AgentToolResult = "agent:tool_result"
	CostUpdated     = "cost:updated"
	BudgetWarning   = "budget:warning"
	BudgetPaused    = "budget:paused"
)

// An Event is one line of a run's ordered stream (format 4.1, 4.2). N starts at
// 0 for each run and has no gaps. Which of the other fields are set depends on
// Type; absent ones are left out of the JSON form.
type Event struct {
	Type string    `json:"type"`
	Run  string    `json:"runId"`
	Time time.Time `json:"timestamp"`
	N    int64     `json:"sequenceNumber"`

	Node     string `json:"nodeId,omitempty"`
	NodeType string `json:"nodeType,omitempty"`
	Attempt  int    `json:"attemptNumber,omitempty"` // 0 means 1

	// run:started
	WorkflowID    string          `json:"workflowId,omitempty"` // UUIDv5 of project key and workflow id
	Inputs        json.RawMessage `json:"inputs,omitempty"`     // secrets masked
	ExecutionMode string          `json:"executionMode,omitempty"`

	// node:completed, node:failed, node:retrying, node:skipped
	Output     json.RawMessage `json:"output,omitempty"`
	Tokens     *Tokens         `json:"tokensUsed,omitempty"`
	DurationMS *int64          `json:"durationMs,omitempty"`
	Selected   []string        `json:"selected,omitzero"` // conditions; may be empty, not absent
	Error      *RunError       `json:"error,omitempty"`
	DelayMS    *int64          `json:"delayMs,omitempty"`
	Reason     string          `json:"reason,omitempty"`

	// gates
	Gate          string          `json:"gateId,omitempty"`
	GateType      string          `json:"gateType,omitempty"`
	Message       string          `json:"message,omitempty"`
	Assignee      string          `json:"assignee,omitempty"`
	TimeoutMS     *int64          `json:"timeoutMs,omitempty"`
	TimeoutAction string          `json:"timeoutAction,omitempty"`
	Expires       *time.Time      `json:"expiresAt,omitempty"`
	Decision      string          `json:"decision,omitempty"`
	DecidedBy     string          `json:"decidedBy,omitempty"`
	Via           string          `json:"via,omitempty"`
	Comment       string          `json:"comment,omitempty"`
	Payload       json.RawMessage `json:"payload,omitempty"`

	// run:paused
	PendingGates int      `json:"pendingGateCount,omitempty"`
	GateIDs      []string `json:"gateIds,omitempty"`

	// run:timeout
	ElapsedMS *int64 `json:"elapsedMs,omitempty"`

	// terminal
	Outputs        json.RawMessage `json:"outputs,omitempty"` // object by output node id
	PartialOutputs json.RawMessage `json:"partialOutputs,omitempty"`
	TotalTokens    *Tokens         `json:"totalTokensUsed,omitempty"`
	TotalCost      *int64          `json:"totalCostMicrocents,omitempty"`
	CumulativeCost *int64          `json:"cumulativeCostMicrocents,omitempty"`

	// agents
	Model        string          `json:"model,omitempty"`
	Token        string          `json:"token,omitempty"`
	Text         string          `json:"text,omitempty"`
	Tool         string          `json:"toolId,omitempty"`
	ToolInput    json.RawMessage `json:"toolInput,omitempty"`
	Success      *bool           `json:"success,omitempty"`
	Summary      string          `json:"outputSummary,omitempty"`
	InputTokens  *int64          `json:"inputTokens,omitempty"`
	OutputTokens *int64          `json:"outputTokens,omitempty"`
	Cost         *int64          `json:"costMicrocents,omitempty"`
	Priced       *bool           `json:"priced,omitempty"`
	Spent        *int64          `json:"spentMicrocents,omitempty"`
	Limit        *int64          `json:"limitMicrocents,omitempty"`
	ThresholdPct *int            `json:"thresholdPct,omitempty"`
}

// Terminal reports whether the event ends its run; exactly one per run does.
func (e *Event) Terminal() bool {
	return e.Type == RunCompleted || e.Type == RunFailed || e.Type == RunCancelled
}

// Settles reports whether the event settles its node: completed, failed or skipped.
func (e *Event) Settles() bool {
	return e.Type == NodeCompleted || e.Type == NodeFailed || e.Type == NodeSkipped
}

// Tokens counts what model calls used.
type Tokens struct {
	Input  int64  `json:"input"`
	Output int64  `json:"output"`
	Model  string `json:"model,omitempty"`
}
