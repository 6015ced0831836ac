package workflows

import "github.com/invopop/jsonschema"

// editorNode is a node before its type is known.
type editorNode struct {
	ID   editorID `json:"id"`
	Type string   `json:"type" jsonschema:"enum=input,enum=agent,enum=human_gate,enum=condition,enum=transform,enum=parallel,enum=merge,enum=output"`
}

// JSONSchemaExtend leads from each type to its own keys.
func (editorNode) JSONSchemaExtend(s *jsonschema.Schema) {
	s.AdditionalProperties = nil
	for _, t := range []struct{ word, definition string }{
		{InputNode{}.nodeType(), "InputNode"},
		{AgentNode{}.nodeType(), "AgentNode"},
		{GateNode{}.nodeType(), "GateNode"},
		{ConditionNode{}.nodeType(), "ConditionNode"},
		{TransformNode{}.nodeType(), "TransformNode"},
		{ParallelNode{}.nodeType(), "ParallelNode"},
		{MergeNode{}.nodeType(), "MergeNode"},
		{OutputNode{}.nodeType(), "OutputNode"},
	} {
		ifThen(s, valueIs("type", t.word), refTo(t.definition))
	}
}

func editorNodeTypes() []any {
	return []any{
		editorInputNode{},
		editorAgentNode{},
		editorGateNode{},
		editorConditionNode{},
		editorTransformNode{},
		editorParallelNode{},
		editorMergeNode{},
		editorOutputNode{},
	}
}

// editorNodeKeys are the keys that every node may have.
type editorNodeKeys struct {
	ID          editorID `json:"id"`
	Type        string   `json:"type"`
	Label       string   `json:"label,omitzero"`
	Description string   `json:"description,omitzero"`
	Position    any      `json:"position,omitzero" jsonschema_description:"Of a canvas; without effect."`
}

type editorInputNode struct{ editorNodeKeys }

type editorAgentNode struct {
	editorNodeKeys
	AgentRef           editorID       `json:"agent_ref" jsonschema_description:"Id of an agent of this file or of an agent file."`
	PromptTemplate     editorTemplate `json:"prompt_template,omitzero" jsonschema_description:"The user message."`
	SystemPromptAppend string         `json:"system_prompt_append,omitzero" jsonschema_description:"Added to the agent's system prompt as it stands."`
	Model              string         `json:"model,omitzero"`
	Temperature        float64        `json:"temperature,omitzero" jsonschema:"minimum=0,maximum=2"`
	MaxTokens          int            `json:"max_tokens,omitzero" jsonschema:"minimum=1"`
	Tools              []string       `json:"tools,omitzero" jsonschema_description:"Narrows the agent's tools."`
	OutputSchema       map[string]any `json:"output_schema,omitzero" jsonschema_description:"JSON Schema of the answer, which is then parsed."`
	OutputModalities   []string       `json:"output_modalities,omitzero" jsonschema:"minItems=1,enum=text"`
	TimeoutMS          editorMillis   `json:"timeout_ms,omitzero" jsonschema_description:"Limit of one attempt, in milliseconds."`
	Retry              editorRetry    `json:"retry,omitzero"`
}

type editorGateNode struct {
	editorNodeKeys
	GateType        string         `json:"gate_type" jsonschema:"enum=approval,enum=review,enum=input"`
	Assignee        editorTemplate `json:"assignee,omitzero" jsonschema_description:"Shown to people; not enforced."`
	MessageTemplate editorTemplate `json:"message_template,omitzero" jsonschema_description:"The question."`
	TimeoutMS       editorMillis   `json:"timeout_ms,omitzero" jsonschema_description:"How long the gate waits, in milliseconds; for ever without it."`
	TimeoutAction   string         `json:"timeout_action,omitzero" jsonschema:"enum=reject,enum=approve"`
}

type editorConditionNode struct {
	editorNodeKeys
	Expression     editorExpression `json:"expression"`
	ExpressionType string           `json:"expression_type,omitzero" jsonschema:"enum=js"`
	Branches       []editorBranch   `json:"branches" jsonschema:"minItems=1"`
	Default        string           `json:"default,omitzero" jsonschema_description:"The node taken when no branch matches."`
	Retry          editorRetry      `json:"retry,omitzero"`
}

type editorBranch struct {
	When       any    `json:"when" jsonschema:"anyof_type=boolean;string;number" jsonschema_description:"Matched without conversion: true is not 'true'."`
	TargetNode string `json:"target_node" jsonschema:"pattern=\\S"`
}

type editorTransformNode struct {
	editorNodeKeys
	Transform      editorExpression `json:"transform"`
	ExpressionType string           `json:"expression_type,omitzero" jsonschema:"enum=js"`
	OutputSchema   map[string]any   `json:"output_schema,omitzero" jsonschema_description:"JSON Schema of the result."`
	Retry          editorRetry      `json:"retry,omitzero"`
}

type editorParallelNode struct {
	editorNodeKeys
	ParallelOf []string `json:"parallel_of" jsonschema:"minItems=1" jsonschema_description:"The nodes that start together."`
}

type editorMergeNode struct {
	editorNodeKeys
	MergeStrategy string           `json:"merge_strategy" jsonschema:"enum=concat,enum=object_merge,enum=first,enum=custom"`
	MergeFn       editorExpression `json:"merge_fn,omitzero" jsonschema_description:"An expression over branches, for the strategy custom."`
	Retry         editorRetry      `json:"retry,omitzero"`
}

// JSONSchemaExtend asks for the expression of a custom strategy.
func (editorMergeNode) JSONSchemaExtend(s *jsonschema.Schema) {
	ifThen(s, valueIs("merge_strategy", "custom"), &jsonschema.Schema{Required: []string{"merge_fn"}})
}

type editorOutputNode struct {
	editorNodeKeys
	OutputFormat string         `json:"output_format,omitzero" jsonschema_description:"A hint for display, such as markdown, json or text."`
	SaveTo       editorTemplate `json:"save_to,omitzero" jsonschema_description:"A path below the project root; may hold {{ run.id }}."`
}

type editorRetry struct {
	Max       int          `json:"max" jsonschema:"minimum=1" jsonschema_description:"All attempts, the first included."`
	Backoff   string       `json:"backoff" jsonschema:"enum=linear,enum=exponential"`
	BackoffMS editorMillis `json:"backoff_ms,omitzero"`
	RetryOn   []string     `json:"retry_on,omitzero" jsonschema:"minItems=1,enum=provider_rate_limit,enum=provider_unavailable,enum=tool_failed,enum=sandbox_error"`
}
