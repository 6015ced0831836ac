package workflows

import (
	"encoding/json"
	"time"
)

// A Workflow is one checked workflow file. It is immutable after Parse and
// safe for use from many goroutines.
type Workflow struct {
	// File is the slash-separated path below the project root, for messages.
	// It is empty for a workflow that was read from a snapshot.
	File        string
	ID          string
	Version     string
	Name        string
	Description string
	Tags        []string
	Metadata    json.RawMessage // an object, or nil
	Trigger     Trigger
	Inputs      []Input
	Context     []ContextEntry
	Agents      []Agent // inline, by $ref, and those of the registry that a node names
	Tools       ToolPolicy
	Budget      *Budget
	Timeout     time.Duration // whole run, wall clock; 0 means none
	MaxParallel int           // agent nodes at once; 0 means no cap
	Nodes       []Node        // authored order
	Edges       []Edge        // the dependency graph: authored, materialised and data edges, authored order

	snapshot    json.RawMessage
	digest      string
	graph       *graph
	schemas     map[string]*compiledSchema // by node id
	expressions []Expression
}

// Trigger says what starts a workflow; only Type matters to a server.
type Trigger struct {
	Type       string // manual, webhook, schedule, file_change, mcp_call
	Path       string // webhook
	SecretEnv  string // webhook
	Schedule   string // schedule
	Glob       string // file_change
	DebounceMS int64  // file_change
}

// Input types of format 1.5.
const (
	TypeString   = "string"
	TypeNumber   = "number"
	TypeBoolean  = "boolean"
	TypeFilePath = "file_path"
	TypeCodeDiff = "code_diff"
	TypeSecret   = "secret"
)

// An Input is one declared input of a workflow.
type Input struct {
	Name        string
	Type        string
	Required    bool
	Default     *Field // nil means none
	Description string
	Validation  Validation
}

// Validation holds the checks of an input; a nil field is not checked.
// Lengths count UTF-16 code units, as in the format's original.
type Validation struct {
	Min, Max             json.Number // "" means none
	Enum                 []json.RawMessage
	Format               string // email, uri, url, uuid, date, date-time
	Pattern              string
	MinLength, MaxLength *int
}

// A Field is an authored value that may be a template: either Template is set
// (a string with at least one {{ }}), or Literal holds the JSON value.
type Field struct {
	Template *Template
	Literal  json.RawMessage
}

// A ContextEntry is one entry of the workflow's context, in declared order.
type ContextEntry struct {
	Key     string
	Value   Field
	Tainted bool // its value refers, directly or not, to a secret
}

// ToolPolicy is the workflow-wide policy of format 1.9.
type ToolPolicy struct {
	AllowedCommands     []string
	AllowedCommandGlobs []string
	AllowedDomains      []string
}

// Budget caps the cost of a run; 1 micro-cent is 1e-8 USD.
type Budget struct {
	MaxCostMicrocents int64
	OnExceed          string // fail, pause_for_approval, warn
}

// Retry re-runs a whole node.
type Retry struct {
	Max     int // total attempts, the first included
	Backoff string
	Base    time.Duration // backoff_ms, default 1 s
	On      []string      // nil means every retryable code
}

// Delay is the wait before re-dispatch n (n = 1 is the first repeat), at most 24 h.
func (r *Retry) Delay(n int) time.Duration { return retryDelay(r, n) }

// An Agent is a checked agent declaration (format 2.1).
type Agent struct {
	ID              string
	Name            string
	Description     string
	Model           string
	Provider        string
	SystemPrompt    string
	Temperature     json.Number // "" means unset
	MaxTokens       int         // 0 means unset
	ReasoningEffort string
	InputSchema     json.RawMessage
	OutputSchema    json.RawMessage
	Tools           []string
	Servers         []ServerRef
	Memory          json.RawMessage
	Retry           *Retry
	Fallback        []Fallback
}

// Fallback is one alternate model inside an attempt.
type Fallback struct {
	Model       string
	Provider    string
	MaxAttempts int
}

// A ServerRef is an agent's use of an MCP server: inline, or by Ref alone.
type ServerRef struct {
	Ref                string
	ID                 string
	Transport          string // stdio, http, websocket, sse
	Command            string
	Args               []string
	Env                []EnvVar // declared order
	URL                string
	AllowLocalEndpoint bool
	ConnectTimeout     time.Duration // 0 means the transport's default
	ToolsAllowlist     []string      // nil means all; empty means none
}

// EnvVar is one declared variable; Value may hold {{secrets.NAME}} references.
type EnvVar struct{ Name, Value string }

// A Node is one vertex of the graph.
type Node struct {
	ID          string
	Label       string
	Description string
	Retry       *Retry // agent, condition, transform and merge only
	Spec        NodeSpec
}

// Type is the authored word of the node's type, such as "human_gate".
func (n *Node) Type() string { return n.Spec.nodeType() }

// NodeSpec is the part of a node that depends on its type.
//
//sumtype:decl
type NodeSpec interface{ nodeType() string }

// The eight node types of format 1.12.
type (
	// InputNode yields the resolved inputs, secrets masked.
	InputNode struct{}
	// AgentNode runs the model loop of one agent.
	AgentNode struct {
		AgentRef           string
		Prompt             *Template // nil means none
		SystemPromptAppend string
		Model              string
		Temperature        json.Number
		MaxTokens          int
		Tools              []string // nil means the agent's own grant
		OutputSchema       json.RawMessage
		Timeout            time.Duration
	}
	// GateNode waits for a person.
	GateNode struct {
		GateType      string // approval, review, input
		Assignee      *Template
		Message       *Template
		Timeout       time.Duration // 0 means none
		TimeoutAction string        // reject, approve; "" without a timeout
	}
	// ConditionNode routes by strict identity of a value.
	ConditionNode struct {
		Expression string
		Branches   []Branch
		Default    string // "" means none
	}
	// TransformNode yields the value of one expression.
	TransformNode struct {
		Expression   string
		OutputSchema json.RawMessage
	}
	// ParallelNode starts every member.
	ParallelNode struct{ Of []string }
	// MergeNode joins branches in declared order.
	MergeNode struct {
		Strategy   string // concat, object_merge, first, custom
		Expression string // custom only
	}
	// OutputNode captures a result of the run.
	OutputNode struct {
		Format string
		SaveTo *Template // only run.id
	}
)

// Branch is one arm of a condition; When is a JSON boolean, string or number.
type Branch struct {
	When   json.RawMessage
	Target string
}

func (InputNode) nodeType() string     { return "input" }
func (AgentNode) nodeType() string     { return "agent" }
func (GateNode) nodeType() string      { return "human_gate" }
func (ConditionNode) nodeType() string { return "condition" }
func (TransformNode) nodeType() string { return "transform" }
func (ParallelNode) nodeType() string  { return "parallel" }
func (MergeNode) nodeType() string     { return "merge" }
func (OutputNode) nodeType() string    { return "output" }

// An Edge is one dependency. A data edge orders execution only; a routing edge
// also decides whether its target lives (format 1.14).
type Edge struct {
	From, To string
	Data     bool
	// Routed is set on an edge that leaves a condition: it is live only when the
	// condition selected To.
	Routed bool
	// Condition is a bare expression decided by truthiness; "" means always.
	Condition string
	Label     string
}

// Node returns the node with that id.
func (w *Workflow) Node(id string) (*Node, bool) { return w.graph.node(id) }

// Topological returns all node ids in dependency order, authored order breaking ties.
func (w *Workflow) Topological() []string { return w.graph.order }

// In returns the edges that end at the node, authored order.
func (w *Workflow) In(id string) []Edge { return w.graph.in[id] }

// Out returns the edges that leave the node, authored order.
func (w *Workflow) Out(id string) []Edge { return w.graph.out[id] }

// Ancestors returns every node from which id can be reached, in topological order.
func (w *Workflow) Ancestors(id string) []string { return w.graph.ancestorsOf(id) }

// MergeOrder returns the nodes whose outputs a merge joins, in the order of format
// 1.12: the members of its one parallel first, then the others as authored.
func (w *Workflow) MergeOrder(id string) []string { return w.graph.mergeOrderOf(id) }

// Agent returns the resolved agent of that id.
func (w *Workflow) Agent(id string) (*Agent, bool) {
	for i := range w.Agents {
		if w.Agents[i].ID == id {
			return &w.Agents[i], true
		}
	}
	return nil, false
}

// Snapshot is the whole definition as JSON: what a run is pinned to. Two files
// that differ only in comments or layout have the same snapshot.
func (w *Workflow) Snapshot() json.RawMessage { return w.snapshot }

// Digest is "sha256:" and the lower-case hex SHA-256 of Snapshot.
func (w *Workflow) Digest() string { return w.digest }
