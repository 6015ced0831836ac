package workflows

import "github.com/invopop/jsonschema"

// editorAgentItem is an entry of a workflow's agents.
type editorAgentItem struct {
	Agent editorAgent `json:"agent"` // reflected for its definition only
}

// JSONSchemaExtend makes it an agent, or the path of an agent file.
func (editorAgentItem) JSONSchemaExtend(s *jsonschema.Schema) {
	oneOfTwo(s, "$ref", "AgentFileRef", "Agent")
}

type editorAgentFileRef struct {
	Ref string `json:"$ref" jsonschema:"pattern=\\S" jsonschema_description:"Path of an agent file, relative to this file."`
}

type editorAgentFile struct {
	SchemaVersion string `json:"schema_version,omitzero" jsonschema:"enum=1.0"`
	editorAgentKeys
}

type editorAgent struct{ editorAgentKeys }

// editorAgentKeys are the keys of an agent, inline or in a file.
type editorAgentKeys struct {
	ID              editorID           `json:"id"`
	Name            string             `json:"name,omitzero"`
	Description     string             `json:"description,omitzero"`
	Model           string             `json:"model" jsonschema:"pattern=\\S"`
	Provider        string             `json:"provider" jsonschema:"enum=anthropic,enum=openai,enum=gemini,enum=deepseek"`
	SystemPrompt    string             `json:"system_prompt" jsonschema:"pattern=\\S" jsonschema_description:"Sent as it stands, never a template."`
	Temperature     float64            `json:"temperature,omitzero" jsonschema:"minimum=0,maximum=2"`
	MaxTokens       int                `json:"max_tokens,omitzero" jsonschema:"minimum=1"`
	ReasoningEffort string             `json:"reasoning_effort,omitzero" jsonschema:"enum=off,enum=low,enum=medium,enum=high,enum=max"`
	InputSchema     map[string]any     `json:"input_schema,omitzero" jsonschema_description:"For editors only."`
	OutputSchema    map[string]any     `json:"output_schema,omitzero" jsonschema_description:"JSON Schema of the answer, which is then parsed."`
	Tools           []string           `json:"tools,omitzero" jsonschema_description:"Ids of the tools the agent may use."`
	MCPServers      []editorServerItem `json:"mcp_servers,omitzero"`
	Memory          editorMemory       `json:"memory,omitzero"`
	Retry           editorRetry        `json:"retry,omitzero"`
	FallbackChain   []editorFallback   `json:"fallback_chain,omitzero" jsonschema_description:"Other models, tried in order inside one attempt."`
}

type editorMemory struct {
	Type       string `json:"type" jsonschema:"enum=none,enum=window,enum=summary"`
	WindowSize int    `json:"window_size,omitzero" jsonschema:"minimum=1"`
}

type editorFallback struct {
	Model       string `json:"model" jsonschema:"pattern=\\S"`
	Provider    string `json:"provider" jsonschema:"enum=anthropic,enum=openai,enum=gemini,enum=deepseek"`
	MaxAttempts int    `json:"max_attempts,omitzero" jsonschema:"minimum=1,default=1"`
}

// editorServerItem is an entry of an agent's mcp_servers.
type editorServerItem struct{}

// JSONSchemaExtend makes it an inline server, or the name of a registration.
func (editorServerItem) JSONSchemaExtend(s *jsonschema.Schema) {
	oneOfTwo(s, "ref", "ServerByName", "Server")
}

type editorServerByName struct {
	Ref            string   `json:"ref" jsonschema:"pattern=\\S" jsonschema_description:"Name of a server registered under mcp_servers in a configuration file."`
	ToolsAllowlist []string `json:"tools_allowlist,omitzero" jsonschema_description:"The server's tools that are admitted; all without it."`
}

type editorServer struct {
	ID editorID `json:"id"`
	editorServerKeys
	ToolsAllowlist []string `json:"tools_allowlist,omitzero" jsonschema_description:"The server's tools that are admitted; all without it."`
}

// JSONSchemaExtend ties the keys to the transport.
func (editorServer) JSONSchemaExtend(s *jsonschema.Schema) { tieTransport(s) }

// editorServerKeys are the keys of a server wherever it is declared.
type editorServerKeys struct {
	Transport          string            `json:"transport" jsonschema:"enum=stdio,enum=http,enum=websocket,enum=sse"`
	Command            string            `json:"command,omitzero" jsonschema:"pattern=\\S" jsonschema_description:"One program; arguments go in args."`
	Args               []string          `json:"args,omitzero"`
	Env                map[string]string `json:"env,omitzero" jsonschema_description:"Variables of the server; a value may be {{secrets.NAME}}."`
	URL                string            `json:"url,omitzero" jsonschema:"pattern=\\S"`
	AllowLocalEndpoint bool              `json:"allow_local_endpoint,omitzero" jsonschema_description:"Lets url name a host of this machine or a private network."`
	ConnectTimeoutMS   int               `json:"connect_timeout_ms,omitzero" jsonschema:"minimum=1,maximum=600000"`
}

func tieTransport(s *jsonschema.Schema) {
	stdio := forbidding("url", "allow_local_endpoint")
	stdio.Required = []string{"command"}
	network := forbidding("command", "args", "env")
	network.Required = []string{"url"}
	ifThen(s, valueIs("transport", transportStdio), stdio)
	ifThen(s, valueIs("transport", transportHTTP, transportSSE, transportWebsocket), network)
	local := onProperty("allow_local_endpoint", &jsonschema.Schema{Const: true})
	local.Required = []string{"allow_local_endpoint"}
	ifThen(s, valueIs("transport", transportWebsocket), local)
}
