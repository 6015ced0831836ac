package workflows

import "github.com/invopop/jsonschema"

// The types below exist to be reflected into the schema for editors. Their fields
// are the keys of a workflow file, strict as in Parse.

type editorWorkflowFile struct {
	SchemaVersion string         `json:"schema_version" jsonschema:"enum=1.0" jsonschema_description:"Version of the file format, a string."`
	Workflow      editorWorkflow `json:"workflow"`
}

// editorID is a kebab-case id.
type editorID string

func (editorID) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "string", Pattern: "^[a-z0-9]+(-[a-z0-9]+)*$", MaxLength: new(uint64(maxIDBytes)),
		Description: "Lower-case letters, digits and single hyphens.",
	}
}

// editorName is a name that a template can refer to.
type editorName string

func (editorName) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "string", Pattern: "^[A-Za-z0-9_-]+$", MaxLength: new(uint64(maxIDBytes)),
		Description: "Letters, digits, _ and -.",
	}
}

// editorTemplate is text with {{ }} references.
type editorTemplate string

func (editorTemplate) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "string",
		Description: `Text with references: {{ inputs.NAME }}, {{ ctx.NAME }}, {{ run.outputs["NODE"].path }}; ` +
			`filters: read_file, json, length, default("...").`,
	}
}

// editorExpression is one bare JavaScript expression.
type editorExpression string

func (editorExpression) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "string", Pattern: `\S`,
		Description: "One JavaScript expression over inputs, ctx and run.outputs; never a template.",
	}
}

// editorMillis is a positive duration in milliseconds.
type editorMillis int

func (editorMillis) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{Type: "integer", Minimum: "1", Description: "Milliseconds."}
}

type editorWorkflow struct {
	ID          editorID          `json:"id"`
	Version     string            `json:"version,omitzero" jsonschema_description:"Semantic version, for people."`
	Name        string            `json:"name,omitzero" jsonschema_description:"Display name; the title of the tool."`
	Description string            `json:"description,omitzero" jsonschema_description:"What it does; the description of the tool."`
	Tags        []string          `json:"tags,omitzero"`
	Metadata    map[string]any    `json:"metadata,omitzero" jsonschema_description:"Anything; kept as it is."`
	Trigger     editorTrigger     `json:"trigger,omitzero"`
	Inputs      []editorInput     `json:"inputs,omitzero" jsonschema_description:"What a caller passes in."`
	Context     []editorContext   `json:"context,omitzero" jsonschema_description:"Values computed once, before any node."`
	Agents      []editorAgentItem `json:"agents,omitzero" jsonschema_description:"Inline agents, and references to agent files."`
	Tools       editorToolPolicy  `json:"tools,omitzero"`
	Budget      editorBudget      `json:"budget,omitzero"`
	TimeoutMS   editorMillis      `json:"timeout_ms,omitzero" jsonschema_description:"Limit of the whole run, waiting included, in milliseconds."`
	MaxParallel int               `json:"max_parallel,omitzero" jsonschema:"minimum=1" jsonschema_description:"How many agent nodes may run at once."`
	Nodes       []editorNode      `json:"nodes" jsonschema:"minItems=1"`
	Edges       []editorEdge      `json:"edges" jsonschema_description:"May be empty."`
}

type editorTrigger struct {
	Type       string            `json:"type,omitzero" jsonschema:"enum=manual,enum=webhook,enum=schedule,enum=file_change,enum=mcp_call,default=manual"`
	Webhook    editorWebhook     `json:"webhook,omitzero"`
	Schedule   string            `json:"schedule,omitzero" jsonschema_description:"A cron expression."`
	FileChange *editorFileChange `json:"file_change,omitzero"`
}

// JSONSchemaExtend ties each companion to its type.
func (editorTrigger) JSONSchemaExtend(s *jsonschema.Schema) {
	for _, companion := range []string{"webhook", "schedule", "file_change"} {
		s.AllOf = append(s.AllOf, &jsonschema.Schema{
			If:   valueIs("type", companion),
			Then: &jsonschema.Schema{Required: []string{companion}},
			Else: forbidding(companion),
		})
	}
}

type editorWebhook struct {
	Path      string `json:"path" jsonschema:"minLength=1"`
	SecretEnv string `json:"secret_env,omitzero" jsonschema_description:"Name of the environment variable with the secret."`
}

type editorFileChange struct {
	Glob       string `json:"glob" jsonschema:"minLength=1"`
	DebounceMS int    `json:"debounce_ms,omitzero" jsonschema:"minimum=0"`
}

type editorInput struct {
	Name        editorName     `json:"name"`
	Type        string         `json:"type" jsonschema:"enum=string,enum=number,enum=boolean,enum=file_path,enum=code_diff,enum=secret"`
	Required    bool           `json:"required,omitzero"`
	Default     any            `json:"default,omitzero" jsonschema_description:"A value of the type, or a template over earlier inputs."`
	Description string         `json:"description,omitzero"`
	Validation  map[string]any `json:"validation,omitzero"`
}

// JSONSchemaExtend ties default and validation to the type.
func (editorInput) JSONSchemaExtend(s *jsonschema.Schema) {
	template := &jsonschema.Schema{Type: "string", Pattern: `\{\{`}
	rules := func(inputType any, definition string) {
		ifThen(s, valueIs("type", inputType), onProperty("validation", refTo(definition)))
	}
	for _, t := range []any{TypeString, TypeFilePath, TypeCodeDiff, TypeSecret} {
		rules(t, "TextRules")
	}
	rules(TypeNumber, "NumberRules")
	rules(TypeBoolean, "NoRules")
	ifThen(s, valueIs("type", TypeString, TypeFilePath, TypeCodeDiff), onProperty("default", &jsonschema.Schema{Type: "string"}))
	ifThen(s, valueIs("type", TypeNumber), onProperty("default", &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "number"}, template}}))
	ifThen(s, valueIs("type", TypeBoolean), onProperty("default", &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "boolean"}, template}}))
	ifThen(s, valueIs("type", TypeSecret), forbidding("default"))
}

type editorNumberRules struct {
	Min  float64   `json:"min,omitzero"`
	Max  float64   `json:"max,omitzero"`
	Enum []float64 `json:"enum,omitzero" jsonschema:"minItems=1"`
}

type editorTextRules struct {
	Format    string   `json:"format,omitzero" jsonschema:"enum=email,enum=uri,enum=url,enum=uuid,enum=date,enum=date-time"`
	Pattern   string   `json:"pattern,omitzero" jsonschema_description:"A JavaScript regular expression, searched anywhere; no look-around, no back-references."`
	Enum      []string `json:"enum,omitzero" jsonschema:"minItems=1"`
	MinLength int      `json:"min_length,omitzero" jsonschema:"minimum=0"`
	MaxLength int      `json:"max_length,omitzero" jsonschema:"minimum=0"`
}

// editorNoRules is the validation of a type that has none.
type editorNoRules struct{}

type editorContext struct {
	Key   editorName `json:"key"`
	Value any        `json:"value" jsonschema:"anyof_type=string;number;boolean" jsonschema_description:"A template over inputs and earlier entries."`
}

type editorToolPolicy struct {
	AllowedCommands     []string `json:"allowedCommands,omitzero" jsonschema_description:"Whole command lines that run_command may run, matched exactly."`
	AllowedCommandGlobs []string `json:"allowedCommandGlobs,omitzero" jsonschema_description:"The same with * and ?."`
	AllowedDomains      []string `json:"allowedDomains,omitzero" jsonschema_description:"Hosts that http_request may reach, matched exactly."`
}

type editorBudget struct {
	MaxCostMicrocents int    `json:"max_cost_microcents" jsonschema_description:"In 1e-8 USD; 0 or less means no cap."`
	OnExceed          string `json:"on_exceed,omitzero" jsonschema:"enum=fail,enum=pause_for_approval,enum=warn,default=fail"`
}

type editorEdge struct {
	From      string           `json:"from" jsonschema:"pattern=\\S" jsonschema_description:"A node id, or id:value for a branch of a condition."`
	To        string           `json:"to" jsonschema:"pattern=\\S" jsonschema_description:"A node id."`
	Label     string           `json:"label,omitzero"`
	Condition editorExpression `json:"condition,omitzero" jsonschema_description:"An expression; the edge counts when it is truthy."`
}
