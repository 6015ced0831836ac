package workflows

import "github.com/invopop/jsonschema"

// editorConfig is config.toml as JSON.
type editorConfig struct {
	Serve      editorServe              `json:"serve,omitzero"`
	Gates      editorGates              `json:"gates,omitzero"`
	Runs       editorRuns               `json:"runs,omitzero"`
	Providers  editorProviders          `json:"providers,omitzero"`
	Database   editorDatabase           `json:"database,omitzero"`
	Host       editorHost               `json:"host,omitzero"`
	Prices     map[string]editorPrice   `json:"prices,omitzero" jsonschema_description:"By model."`
	Auth       editorAuth               `json:"auth,omitzero"`
	Secrets    editorSecrets            `json:"secrets,omitzero"`
	Git        editorGit                `json:"git,omitzero" jsonschema_description:"Who git_commit of agents commits as. Without it git_commit is unavailable."`
	MCPServers []editorRegisteredServer `json:"mcp_servers,omitzero"`
	Variables  map[string]string        `json:"variables,omitzero" jsonschema_description:"Shared by all workflows, below their own context."`
	Defaults   editorDefaults           `json:"defaults,omitzero"`

	Preferences   map[string]any `json:"preferences,omitzero" jsonschema_description:"Of other programs; ignored."`
	Chat          map[string]any `json:"chat,omitzero" jsonschema_description:"Of other programs; ignored."`
	UpdateChannel any            `json:"update_channel,omitzero" jsonschema_description:"Of other programs; ignored."`
}

// editorDuration is written as "10m", "3m45s" or "30d", or is 0.
type editorDuration string

func (editorDuration) JSONSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		AnyOf:       []*jsonschema.Schema{{Type: "string", Pattern: `^(0|([0-9]+d)?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*)$`, MinLength: new(uint64(1))}, {Const: 0}},
		Description: `A duration such as "10m", "3m45s" or "30d".`,
	}
}

type editorServe struct {
	Publish       []string                        `json:"publish,omitzero" jsonschema_description:"Ids of the workflows that are served as tools, or @mcp_call for those whose trigger says so."`
	Transport     string                          `json:"transport,omitzero" jsonschema:"enum=stdio,enum=http,enum=websocket,default=stdio"`
	Listen        string                          `json:"listen,omitzero" jsonschema:"default=127.0.0.1:7411"`
	OrphanGrace   editorDuration                  `json:"orphan_grace,omitzero" jsonschema_description:"How long a run goes on that nobody waits for."`
	CloseGrace    editorDuration                  `json:"close_grace,omitzero" jsonschema_description:"The same after a caller closed its stream; 0 cancels at once."`
	JoinWindow    editorDuration                  `json:"join_window,omitzero" jsonschema_description:"How long a repeated call finds the run of the one that was lost."`
	SessionIdle   editorDuration                  `json:"session_idle,omitzero"`
	Tasks         string                          `json:"tasks,omitzero" jsonschema:"enum=auto,enum=always,enum=never"`
	ToolPrefix    string                          `json:"tool_prefix,omitzero" jsonschema:"default=relavium_"`
	PublicURL     string                          `json:"public_url,omitzero"`
	TLSCert       string                          `json:"tls_cert,omitzero"`
	TLSKey        string                          `json:"tls_key,omitzero"`
	BehindProxy   bool                            `json:"behind_proxy,omitzero"`
	AllowOrigins  []string                        `json:"allow_origins,omitzero"`
	AllowHosts    []string                        `json:"allow_hosts,omitzero"`
	MetricsListen string                          `json:"metrics_listen,omitzero"`
	TraceEndpoint string                          `json:"trace_endpoint,omitzero"`
	WorkspaceID   string                          `json:"workspace_id,omitzero" jsonschema_description:"Identity of the project's files where several machines mount them."`
	Handover      map[string]editorDuration       `json:"handover,omitzero" jsonschema_description:"How long a call of a client may be held, by the client's name; 0 means for ever."`
	Workflow      map[string]editorServedWorkflow `json:"workflow,omitzero" jsonschema_description:"Settings of one workflow, by id."`
	Limits        editorLimits                    `json:"limits,omitzero"`
}

type editorServedWorkflow struct {
	Tool                 string                    `json:"tool,omitzero" jsonschema:"pattern=^[A-Za-z0-9_-]+$,maxLength=64" jsonschema_description:"Replaces the whole tool name."`
	ApproverNotRequester bool                      `json:"approver_not_requester,omitzero" jsonschema_description:"Who started a run may not decide its gates."`
	VisibleTo            []string                  `json:"visible_to,omitzero"`
	Reach                []string                  `json:"reach,omitzero" jsonschema:"enum=files,enum=write,enum=commands,enum=local,enum=spawn" jsonschema_description:"What strangers may have this workflow touch."`
	Writes               string                    `json:"writes,omitzero" jsonschema:"enum=project"`
	Accept               []string                  `json:"accept,omitzero" jsonschema:"enum=elicitation,enum=console,enum=cli,enum=cli-noninteractive"`
	MinHumanMS           int                       `json:"min_human_ms,omitzero" jsonschema:"minimum=0"`
	Gate                 map[string]editorGateName `json:"gate,omitzero" jsonschema_description:"By node id."`
}

type editorGateName struct {
	Key   string `json:"key,omitzero" jsonschema_description:"Key of the gate's input request."`
	Field string `json:"field,omitzero" jsonschema_description:"Name of an input gate's one answer field."`
}

type editorLimits struct {
	CallsPerMinute       int `json:"calls_per_minute,omitzero" jsonschema:"minimum=0" jsonschema_description:"For each principal; 0 means none."`
	Concurrent           int `json:"concurrent,omitzero" jsonschema:"minimum=0" jsonschema_description:"For each principal; 0 means none."`
	Runs                 int `json:"runs,omitzero" jsonschema:"minimum=0" jsonschema_description:"In this process; 0 means none."`
	CostPerDayMicrocents int `json:"cost_per_day_microcents,omitzero" jsonschema:"minimum=0"`
}

type editorGates struct {
	Accept     []string `json:"accept,omitzero" jsonschema:"enum=elicitation,enum=console,enum=cli,enum=cli-noninteractive" jsonschema_description:"The ways in which a gate may be answered."`
	MinHumanMS int      `json:"min_human_ms,omitzero" jsonschema:"minimum=0" jsonschema_description:"An answer that comes sooner is no person's."`
	KeyFile    string   `json:"key_file,omitzero"`
}

type editorRuns struct {
	Keep editorDuration `json:"keep,omitzero" jsonschema_description:"How long an ended run is kept."`
}

type editorProviders struct {
	Anthropic editorProvider `json:"anthropic,omitzero"`
	OpenAI    editorProvider `json:"openai,omitzero"`
	Gemini    editorProvider `json:"gemini,omitzero"`
	DeepSeek  editorProvider `json:"deepseek,omitzero"`
}

type editorProvider struct {
	BaseURL            string `json:"base_url,omitzero"`
	AllowLocalEndpoint bool   `json:"allow_local_endpoint,omitzero"`
}

type editorDatabase struct {
	URL        string `json:"url,omitzero" jsonschema_description:"Of PostgreSQL; the embedded SQLite file without it."`
	Durability string `json:"durability,omitzero" jsonschema:"enum=normal,enum=full,default=normal"`
}

type editorHost struct {
	Pin         string         `json:"pin,omitzero" jsonschema_description:"What happens when a server's tools change."`
	KeepParked  editorDuration `json:"keep_parked,omitzero" jsonschema_description:"How long servers stay connected while a run waits at a gate."`
	MaxChildren int            `json:"max_children,omitzero" jsonschema:"minimum=1"`
	Repeatable  []string       `json:"repeatable,omitzero" jsonschema_description:"Tools that may be called again when a crash leaves the outcome unknown."`
}

type editorPrice struct {
	Input      int `json:"input,omitzero" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
	Output     int `json:"output,omitzero" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
	CacheRead  int `json:"cache_read,omitzero" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
	CacheWrite int `json:"cache_write,omitzero" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
}

type editorAuth struct {
	Issuer             string   `json:"issuer,omitzero"`
	Audience           string   `json:"audience,omitzero"`
	JWKSURL            string   `json:"jwks_url,omitzero"`
	TokenTypes         []string `json:"token_types,omitzero"`
	AllowLocalEndpoint bool     `json:"allow_local_endpoint,omitzero"`
}

type editorSecrets struct {
	AgeFile     string `json:"age_file,omitzero"`
	AgeIdentity string `json:"age_identity,omitzero"`
}

type editorGit struct {
	Name  string `json:"name,omitzero"`
	Email string `json:"email,omitzero"`
}

type editorRegisteredServer struct {
	Name string `json:"name" jsonschema:"pattern=\\S"`
	editorServerKeys
	Autostart bool `json:"autostart,omitzero" jsonschema_description:"Without effect: a server is started when a run needs it."`
}

// JSONSchemaExtend ties the keys to the transport.
func (editorRegisteredServer) JSONSchemaExtend(s *jsonschema.Schema) { tieTransport(s) }

type editorDefaults struct {
	Model             string `json:"model,omitzero"`
	FSScope           string `json:"fs_scope,omitzero" jsonschema:"enum=sandboxed,enum=project,enum=full"`
	MaxTokensEstimate int    `json:"max_tokens_estimate,omitzero" jsonschema:"minimum=1,default=4096"`
}

// JSONSchemaExtend reads past what is of other programs.
func (editorDefaults) JSONSchemaExtend(s *jsonschema.Schema) { ignoreMedia(s) }

// JSONSchemaExtend reads past what is of other programs.
func (editorConfig) JSONSchemaExtend(s *jsonschema.Schema) { ignoreMedia(s) }

func ignoreMedia(s *jsonschema.Schema) {
	s.PatternProperties = map[string]*jsonschema.Schema{"^media_": {Description: "Of other programs; ignored."}}
}
