package main

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

// Settings are the keys of one configuration file, or of all files merged. A nil
// field is not set.
type settings struct {
	Serve     serveSettings     `toml:"serve"`
	Gates     gateSettings      `toml:"gates"`
	Runs      runSettings       `toml:"runs"`
	Providers providersSettings `toml:"providers"`
	Database  databaseSettings  `toml:"database"`
	Host      hostSettings      `toml:"host"`
	Prices    map[string]price  `toml:"prices"`
	Auth      authSettings      `toml:"auth"`
	Secrets   secretSettings    `toml:"secrets"`
	Git       gitSettings       `toml:"git"`
	Servers   []serverSettings  `toml:"mcp_servers"`
	Variables map[string]string `toml:"variables"`
	Defaults  defaultSettings   `toml:"defaults"`

	// The home is shared with other surfaces: what is theirs is read past.
	Preferences   map[string]any `toml:"preferences"`
	Chat          map[string]any `toml:"chat"`
	UpdateChannel any            `toml:"update_channel"`
}

type serveSettings struct {
	Publish       []string                    `toml:"publish"`
	Transport     *string                     `toml:"transport"`
	Listen        *string                     `toml:"listen"`
	OrphanGrace   *duration                   `toml:"orphan_grace"`
	CloseGrace    *duration                   `toml:"close_grace"`
	JoinWindow    *duration                   `toml:"join_window"`
	SessionIdle   *duration                   `toml:"session_idle"`
	Tasks         *string                     `toml:"tasks"`
	ToolPrefix    *string                     `toml:"tool_prefix"`
	PublicURL     *string                     `toml:"public_url"`
	TLSCert       *string                     `toml:"tls_cert"`
	TLSKey        *string                     `toml:"tls_key"`
	BehindProxy   *bool                       `toml:"behind_proxy"`
	AllowOrigins  []string                    `toml:"allow_origins"`
	AllowHosts    []string                    `toml:"allow_hosts"`
	MetricsListen *string                     `toml:"metrics_listen"`
	TraceEndpoint *string                     `toml:"trace_endpoint"`
	WorkspaceID   *string                     `toml:"workspace_id"`
	Handover      map[string]duration         `toml:"handover"`
	Workflow      map[string]workflowSettings `toml:"workflow"`
	Limits        limitSettings               `toml:"limits"`
}

type workflowSettings struct {
	ApproverNotRequester *bool                       `toml:"approver_not_requester"`
	VisibleTo            []string                    `toml:"visible_to"`
	Reach                []string                    `toml:"reach"`
	Writes               *string                     `toml:"writes"`
	Accept               []string                    `toml:"accept"`
	MinHumanMS           *int64                      `toml:"min_human_ms"`
	Tool                 *string                     `toml:"tool"`
	Gate                 map[string]gateNameSettings `toml:"gate"`
}

type gateNameSettings struct {
	Key   *string `toml:"key"`
	Field *string `toml:"field"`
}

type limitSettings struct {
	CallsPerMinute       *int64 `toml:"calls_per_minute"`
	Concurrent           *int64 `toml:"concurrent"`
	Runs                 *int64 `toml:"runs"`
	CostPerDayMicrocents *int64 `toml:"cost_per_day_microcents"`
}

type gateSettings struct {
	Accept     []string `toml:"accept"`
	MinHumanMS *int64   `toml:"min_human_ms"`
	KeyFile    *string  `toml:"key_file"`
}

type runSettings struct {
	Keep *duration `toml:"keep"`
}

type providersSettings struct {
	Anthropic providerSettings `toml:"anthropic"`
	OpenAI    providerSettings `toml:"openai"`
	Gemini    providerSettings `toml:"gemini"`
	DeepSeek  providerSettings `toml:"deepseek"`
}

type providerSettings struct {
	BaseURL            *string `toml:"base_url"`
	AllowLocalEndpoint *bool   `toml:"allow_local_endpoint"`
}

type databaseSettings struct {
	URL        *string `toml:"url"`
	Durability *string `toml:"durability"`
}

type hostSettings struct {
	Pin         *string   `toml:"pin"`
	KeepParked  *duration `toml:"keep_parked"`
	MaxChildren *int64    `toml:"max_children"`
	Repeatable  []string  `toml:"repeatable"`
}

// A price is in micro-cents per million tokens.
type price struct {
	Input      *int64 `toml:"input"`
	Output     *int64 `toml:"output"`
	CacheRead  *int64 `toml:"cache_read"`
	CacheWrite *int64 `toml:"cache_write"`
}

type authSettings struct {
	Issuer             *string  `toml:"issuer"`
	Audience           *string  `toml:"audience"`
	JWKSURL            *string  `toml:"jwks_url"`
	TokenTypes         []string `toml:"token_types"`
	AllowLocalEndpoint *bool    `toml:"allow_local_endpoint"`
}

// Who git_commit of agents commits as.
type gitSettings struct {
	Name  *string `toml:"name"`
	Email *string `toml:"email"`
}

type secretSettings struct {
	AgeFile     *string `toml:"age_file"`
	AgeIdentity *string `toml:"age_identity"`
}

type serverSettings struct {
	Name               string            `toml:"name"`
	Transport          string            `toml:"transport"`
	Command            string            `toml:"command"`
	Args               []string          `toml:"args"`
	Env                map[string]string `toml:"env"`
	URL                string            `toml:"url"`
	AllowLocalEndpoint bool              `toml:"allow_local_endpoint"`
	Autostart          bool              `toml:"autostart"`
	ConnectTimeoutMS   *int64            `toml:"connect_timeout_ms"`

	project string // real path of the project whose file declares it; "" for config.toml
}

type defaultSettings struct {
	Model             *string `toml:"model"`
	FSScope           *string `toml:"fs_scope"`
	MaxTokensEstimate *int64  `toml:"max_tokens_estimate"`
}

// A duration is written as Go writes one ("10m", "3m45s"), with days besides
// ("30d"), or as 0.
type duration time.Duration

var errDuration = errors.New("not a duration")

// UnmarshalText reads a duration; it never repeats the text in an error.
func (d *duration) UnmarshalText(text []byte) error {
	rest, total := string(text), time.Duration(0)
	if days, after, ok := strings.Cut(rest, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return errDuration
		}
		total, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			*d = duration(total)
			return nil
		}
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 {
		return errDuration
	}
	*d = duration(total + more)
	return nil
}

// value is what d holds, or the fallback if it is not set.
func (d *duration) value(fallback time.Duration) time.Duration {
	if d == nil {
		return fallback
	}
	return time.Duration(*d)
}
