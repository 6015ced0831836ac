package workflows

import "github.com/invopop/jsonschema"

// editorConfig is config.toml as JSON.
type editorConfig struct {
	Serve      editorServe              `json:"serve,omitempty"`
	Gates      editorGates              `json:"gates,omitempty"`
	Runs       editorRuns               `json:"runs,omitempty"`
	Providers  editorProviders          `json:"providers,omitempty"`
	Database   editorDatabase           `json:"database,omitempty"`
	Host       editorHost               `json:"host,omitempty"`
	Prices     map[string]editorPrice   `json:"prices,omitempty" jsonschema_description:"By model."`
	Auth       editorAuth               `json:"auth,omitempty"`
	Secrets    editorSecrets            `json:"secrets,omitempty"`
	MCPServers []editorRegisteredServer `json:"mcp_servers,omitempty"`
	Variables  map[string]string        `json:"variables,omitempty" jsonschema_description:"Shared by all workflows, below their own context."`
	Defaults   editorDefaults           `json:"defaults,omitempty"`

	Preferences   map[string]any `json:"preferences,omitempty" jsonschema_description:"Of other programs; ignored."`
	Chat          map[string]any `json:"chat,omitempty" jsonschema_description:"Of other programs; ignored."`
	UpdateChannel any            `json:"update_channel,omitempty" jsonschema_description:"Of other programs; ignored."`
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
	Publish       []string                        `json:"publish,omitempty" jsonschema_description:"Ids of the workflows that are served as tools, or @mcp_call for those whose trigger says so."`
	Transport     string                          `json:"transport,omitempty" jsonschema:"enum=stdio,enum=http,enum=websocket,default=stdio"`
	Listen        string                          `json:"listen,omitempty" jsonschema:"default=127.0.0.1:7411"`
	OrphanGrace   editorDuration                  `json:"orphan_grace,omitempty" jsonschema_description:"How long a run goes on that nobody waits for."`
	CloseGrace    editorDuration                  `json:"close_grace,omitempty" jsonschema_description:"The same after a caller closed its stream; 0 cancels at once."`
	JoinWindow    editorDuration                  `json:"join_window,omitempty" jsonschema_description:"How long a repeated call finds the run of the one that was lost."`
	SessionIdle   editorDuration                  `json:"session_idle,omitempty"`
	Tasks         string                          `json:"tasks,omitempty" jsonschema:"enum=auto,enum=always,enum=never"`
	ToolPrefix    string                          `json:"tool_prefix,omitempty" jsonschema:"default=relavium_"`
	PublicURL     string                          `json:"public_url,omitempty"`
	TLSCert       string                          `json:"tls_cert,omitempty"`
	TLSKey        string                          `json:"tls_key,omitempty"`
	BehindProxy   bool                            `json:"behind_proxy,omitempty"`
	AllowOrigins  []string                        `json:"allow_origins,omitempty"`
	AllowHosts    []string                        `json:"allow_hosts,omitempty"`
	MetricsListen string                          `json:"metrics_listen,omitempty"`
	WorkspaceID   string                          `json:"workspace_id,omitempty" jsonschema_description:"Identity of the project's files where several machines mount them."`
	Handover      map[string]editorDuration       `json:"handover,omitempty" jsonschema_description:"How long a call of a client may be held, by the client's name; 0 means for ever."`
	Workflow      map[string]editorServedWorkflow `json:"workflow,omitempty" jsonschema_description:"Settings of one workflow, by id."`
	Limits        editorLimits                    `json:"limits,omitempty"`
}

type editorServedWorkflow struct {
	Tool                 string                    `json:"tool,omitempty" jsonschema:"pattern=^[A-Za-z0-9_-]+$,maxLength=64" jsonschema_description:"Replaces the whole tool name."`
	ApproverNotRequester bool                      `json:"approver_not_requester,omitempty" jsonschema_description:"Who started a run may not decide its gates."`
	VisibleTo            []string                  `json:"visible_to,omitempty"`
	Reach                []string                  `json:"reach,omitempty" jsonschema:"enum=files,enum=write,enum=commands,enum=local,enum=spawn" jsonschema_description:"What strangers may have this workflow touch."`
	Writes               string                    `json:"writes,omitempty" jsonschema:"enum=project"`
	Accept               []string                  `json:"accept,omitempty" jsonschema:"enum=elicitation,enum=console,enum=cli,enum=cli-noninteractive"`
	MinHumanMS           int                       `json:"min_human_ms,omitempty" jsonschema:"minimum=0"`
	Gate                 map[string]editorGateName `json:"gate,omitempty" jsonschema_description:"By node id."`
}

type editorGateName struct {
	Key   string `json:"key,omitempty" jsonschema_description:"Key of the gate's input request."`
	Field string `json:"field,omitempty" jsonschema_description:"Name of an input gate's one answer field."`
}

type editorLimits struct {
	CallsPerMinute       int `json:"calls_per_minute,omitempty" jsonschema:"minimum=0" jsonschema_description:"For each principal; 0 means none."`
	Concurrent           int `json:"concurrent,omitempty" jsonschema:"minimum=0" jsonschema_description:"For each principal; 0 means none."`
	Runs                 int `json:"runs,omitempty" jsonschema:"minimum=0" jsonschema_description:"In this process; 0 means none."`
	CostPerDayMicrocents int `json:"cost_per_day_microcents,omitempty" jsonschema:"minimum=0"`
}

type editorGates struct {
	Accept     []string `json:"accept,omitempty" jsonschema:"enum=elicitation,enum=console,enum=cli,enum=cli-noninteractive" jsonschema_description:"The ways in which a gate may be answered."`
	MinHumanMS int      `json:"min_human_ms,omitempty" jsonschema:"minimum=0" jsonschema_description:"An answer that comes sooner is no person's."`
	KeyFile    string   `json:"key_file,omitempty"`
}

type editorRuns struct {
	Keep editorDuration `json:"keep,omitempty" jsonschema_description:"How long an ended run is kept."`
}

type editorProviders struct {
	Anthropic editorProvider `json:"anthropic,omitempty"`
	OpenAI    editorProvider `json:"openai,omitempty"`
	Gemini    editorProvider `json:"gemini,omitempty"`
	DeepSeek  editorProvider `json:"deepseek,omitempty"`
}

type editorProvider struct {
	BaseURL            string `json:"base_url,omitempty"`
	AllowLocalEndpoint bool   `json:"allow_local_endpoint,omitempty"`
}

type editorDatabase struct {
	URL        string `json:"url,omitempty" jsonschema_description:"Of PostgreSQL; the embedded SQLite file without it."`
	Durability string `json:"durability,omitempty" jsonschema:"enum=normal,enum=full,default=normal"`
}

type editorHost struct {
	Pin         string         `json:"pin,omitempty" jsonschema_description:"What happens when a server's tools change."`
	KeepParked  editorDuration `json:"keep_parked,omitempty" jsonschema_description:"How long servers stay connected while a run waits at a gate."`
	MaxChildren int            `json:"max_children,omitempty" jsonschema:"minimum=1"`
	Repeatable  []string       `json:"repeatable,omitempty" jsonschema_description:"Tools that may be called again when a crash leaves the outcome unknown."`
}

type editorPrice struct {
	Input      int `json:"input,omitempty" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
	Output     int `json:"output,omitempty" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
	CacheRead  int `json:"cache_read,omitempty" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
	CacheWrite int `json:"cache_write,omitempty" jsonschema:"minimum=0" jsonschema_description:"Micro-cents per million tokens."`
}

type editorAuth struct {
	Issuer             string   `json:"issuer,omitempty"`
	Audience           string   `json:"audience,omitempty"`
	JWKSURL            string   `json:"jwks_url,omitempty"`
	TokenTypes         []string `json:"token_types,omitempty"`
	AllowLocalEndpoint bool     `json:"allow_local_endpoint,omitempty"`
}

type editorSecrets struct {
	AgeFile     string `json:"age_file,omitempty"`
	AgeIdentity string `json:"age_identity,omitempty"`
}

type editorRegisteredServer struct {
	Name string `json:"name" jsonschema:"pattern=\\S"`
	editorServerKeys
	Autostart bool `json:"autostart,omitempty" jsonschema_description:"Without effect: a server is started when a run needs it."`
}

// JSONSchemaExtend ties the keys to the transport.
func (editorRegisteredServer) JSONSchemaExtend(s *jsonschema.Schema) { tieTransport(s) }

type editorDefaults struct {
	Model                 string         `json:"model,omitempty"`
	FSScope               string         `json:"fs_scope,omitempty" jsonschema:"enum=sandboxed,enum=project,enum=full"`
	MaxTokensEstimate     int            `json:"max_tokens_estimate,omitempty" jsonschema:"minimum=1,default=4096"`
	MediaJobPollInitialMS int            `json:"media_job_poll_initial_ms,omitempty" jsonschema_description:"Of other programs; ignored."`
	MediaJobPollMaxMS     int            `json:"media_job_poll_max_ms,omitempty" jsonschema_description:"Of other programs; ignored."`
	MediaJobDeadlineMS    int            `json:"media_job_deadline_ms,omitempty" jsonschema_description:"Of other programs; ignored."`
	MediaGCGraceDays      int            `json:"media_gc_grace_days,omitempty" jsonschema_description:"Of other programs; ignored."`
	MediaCostEstimate     map[string]any `json:"media_cost_estimate,omitempty" jsonschema_description:"Of other programs; ignored."`
}
