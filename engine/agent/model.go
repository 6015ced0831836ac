package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Models runs model turns. It is safe for concurrent use.
type Models interface {
	// Turn runs one turn of one model and returns when it has ended. Deltas arrive in
	// order, from this call's goroutine, as the provider streams them; they are a
	// preview of what is returned. An error is a *ModelError; one that comes after
	// the first delta has Streamed set. Cancelling ctx closes the connection.
	Turn(ctx context.Context, req *Request, delta func(Delta)) (*Turn, error)
	// Price returns what the model costs; ok is false if that is not known.
	Price(provider, model string) (price Price, ok bool)
}

// A Request asks a model for one turn.
type Request struct {
	Provider    string // anthropic, openai, gemini, deepseek
	Model       string
	System      string // authored text only
	Messages    []Message
	Tools       []ToolSpec
	Temperature json.Number     // "" means the provider's default
	MaxTokens   int             // 0 means the provider's default, or one of ours where it has none
	Effort      string          // "", off, low, medium, high, max; withheld from models without reasoning
	Schema      json.RawMessage // of the reply; nil for text
	SchemaName  string          // of letters, digits, _ and -
}

// A ToolSpec tells a model of a tool.
type ToolSpec struct {
	Name        string
	Description string
	Schema      json.RawMessage
}

// A Role is who says a message.
type Role string

// The roles of a Message. The system's text is not a message.
const (
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool"
)

// A Message is one entry of a conversation.
type Message struct {
	Role  Role   `json:"role"`
	Parts []Part `json:"parts"`
}

// A Part is a piece of a message: exactly one of its pointers is set, or Text.
type Part struct {
	Text      string     `json:"text,omitempty"`
	Reasoning *Reasoning `json:"reasoning,omitempty"`
	Call      *Call      `json:"call,omitempty"`
	Result    *Result    `json:"result,omitempty"`
}

// Reasoning is what a model thought. Opaque is the provider's own form of it, which
// that provider alone wants back; it is dropped for another.
type Reasoning struct {
	Text     string          `json:"text,omitempty"`
	Provider string          `json:"provider"`
	Opaque   json.RawMessage `json:"opaque,omitempty"`
}

// A Call is a tool call that a model asks for.
type Call struct {
	ID        string          `json:"id"` // unique in its conversation; made here where a provider gives none
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"` // as the model wrote it; may be no JSON
	Opaque    json.RawMessage `json:"opaque,omitempty"`
	Provider  string          `json:"provider,omitempty"` // whose Opaque it is
	// Executed is set on a call that the provider made by itself; such a turn is refused.
	Executed bool `json:"executed,omitempty"`
}

// A Result answers a Call.
type Result struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Text    string `json:"text"`
	IsError bool   `json:"isError,omitempty"`
}

// A Delta is a piece of a turn as it streams: text or reasoning.
type Delta struct {
	Text      string
	Reasoning string
}

// A Stop is why a turn ended.
type Stop string

// The reasons of format 12.3.
const (
	StopEnd     Stop = "stop"
	StopLength  Stop = "length"
	StopToolUse Stop = "tool_use"
	StopFilter  Stop = "content_filter"
)

// A Turn is what a model answered.
type Turn struct {
	Parts []Part `json:"parts"`
	Stop  Stop   `json:"stop"`
	Usage Usage  `json:"usage"`
}

// Usage counts tokens; the four are disjoint. Reasoning counts as output.
type Usage struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cacheRead,omitempty"`
	CacheWrite int64 `json:"cacheWrite,omitempty"`
}

// A Price is what a model costs, in micro-cents (1e-8 USD) per million tokens.
type Price struct {
	Input, Output, CacheRead, CacheWrite int64
}

// An ErrorKind is the kind of a ModelError (format 12.4).
type ErrorKind string

// The kinds. RateLimit, Overloaded, Timeout and Transport may be tried again.
const (
	RateLimit     ErrorKind = "rate_limit"
	Overloaded    ErrorKind = "overloaded"
	Timeout       ErrorKind = "timeout"
	Transport     ErrorKind = "transport"
	Auth          ErrorKind = "auth"
	BadRequest    ErrorKind = "bad_request"
	ContentFilter ErrorKind = "content_filter"
	Cancelled     ErrorKind = "cancelled"
	Unknown       ErrorKind = "unknown"
)

// Retryable reports whether another try may succeed.
func (k ErrorKind) Retryable() bool {
	return k == RateLimit || k == Overloaded || k == Timeout || k == Transport
}

// A ModelError is why a turn failed. Message is ours and safe to show; what the
// provider said is in Err, for the log alone.
type ModelError struct {
	Kind       ErrorKind
	Provider   string
	Model      string
	Status     int // of HTTP; 0 if none came
	Message    string
	RetryAfter time.Duration // what the provider asks for; 0 if it says nothing
	Streamed   bool          // content had arrived
	Usage      Usage         // as far as the provider told it
	Err        error
}

func (e *ModelError) Error() string {
	return fmt.Sprintf("%s %s: %s: %s", e.Provider, e.Model, e.Kind, e.Message)
}

// Unwrap returns the cause.
func (e *ModelError) Unwrap() error { return e.Err }
