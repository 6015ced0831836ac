package fakemodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// A Script says what is answered. It is also the form of a script file, in JSON.
type Script struct {
	// Conversations are tried in order; the first that fits answers.
	Conversations []Conversation `json:"conversations"`
}

// A Conversation is a list of turns for the requests that it fits.
type Conversation struct {
	Provider string `json:"provider,omitempty"` // anthropic, openai, deepseek, gemini or local; "" fits all
	Model    string `json:"model,omitempty"`    // "" fits all
	System   string `json:"system,omitempty"`   // is in the system text
	User     string `json:"user,omitempty"`     // is in the first user message
	Turns    []Turn `json:"turns"`
}

// A Turn is one answer: reasoning, then text, then tool calls.
type Turn struct {
	Reasoning string `json:"reasoning,omitempty"`
	Redacted  string `json:"redacted,omitempty"` // Anthropic's redacted_thinking; others leave it out
	Text      string `json:"text,omitempty"`
	Tokens    int    `json:"tokens,omitempty"` // that many tokens of filler after Text
	Calls     []Call `json:"calls,omitempty"`
	// Stop is "length" or "content_filter"; "" is what follows from Calls.
	Stop  string `json:"stop,omitempty"`
	Usage *Usage `json:"usage,omitempty"` // nil is counted: four bytes a token
	// Delay passes before the header of the answer, Rate is tokens a second after it;
	// zero is as fast as can be.
	Delay Duration `json:"delay,omitempty"`
	Rate  int      `json:"rate,omitempty"`
	// Cut ends the answer in the way it names; see the constants.
	Cut Cut `json:"cut,omitempty"`
	// After is how many pieces are sent before Cut, -1 is all of them.
	After int `json:"after,omitempty"`
	// Fail answers the first requests for this turn, one entry each, before the turn
	// itself is given. Requests with the same messages count together.
	Fail []Fail `json:"fail,omitempty"`
}

// A Call is a tool call of the model.
type Call struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"` // nil is {}
	// Raw is sent in place of Arguments and need not be JSON (not to Gemini's wire,
	// where arguments are an object).
	Raw string `json:"raw,omitempty"`
	ID  string `json:"id,omitempty"` // "" is made from the turn and the position
}

// A Fail is an answer without a turn: an HTTP status, or a stream that is cut.
type Fail struct {
	Status     int      `json:"status,omitempty"`
	RetryAfter string   `json:"retryAfter,omitempty"` // header, if Status is set
	Message    string   `json:"message,omitempty"`    // in the provider's error shape
	Delay      Duration `json:"delay,omitempty"`
	Cut        Cut      `json:"cut,omitempty"` // with Status 0: the turn is begun and cut
	After      int      `json:"after,omitempty"`
}

// A Cut is how an answer ends before its time.
type Cut string

// The cuts.
const (
	CutDisconnect Cut = "disconnect" // the connection is dropped
	CutTruncated  Cut = "truncated"  // the body ends in good order, without its last events
	CutMalformed  Cut = "malformed"  // an event that is no JSON
	CutError      Cut = "error"      // the provider's own error event: overloaded
	CutHold       Cut = "hold"       // nothing more comes until the client goes away
)

// Usage is what is counted. The five are given as the provider would count them:
// disjoint here, and summed on the wire where it sums them.
type Usage struct {
	Input      int `json:"input,omitempty"`
	Output     int `json:"output,omitempty"`
	Reasoning  int `json:"reasoning,omitempty"` // on top of Output
	CacheRead  int `json:"cacheRead,omitempty"`
	CacheWrite int `json:"cacheWrite,omitempty"`
}

// A Duration is a time.Duration that is text in JSON, such as "250ms".
type Duration time.Duration

// UnmarshalText reads the form of time.ParseDuration.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// MarshalText writes the form of time.Duration.String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// ReadScript reads a script file. A member that it does not know is an error.
func ReadScript(r io.Reader) (Script, error) {
	var s Script
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Script{}, fmt.Errorf("script: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Script{}, errors.New("script: more than one JSON value")
	}
	return s, nil
}

// turn finds the turn of a request.
func (s Script) turn(q *Request) (Turn, bool) {
	for _, c := range s.Conversations {
		if c.Provider != "" && c.Provider != q.Provider || c.Model != "" && c.Model != q.Model ||
			!strings.Contains(q.System, c.System) || !strings.Contains(q.Prompt(), c.User) {
			continue
		}
		if q.Turn >= len(c.Turns) {
			return Turn{}, false
		}
		return c.Turns[q.Turn], true
	}
	return Turn{}, false
}

// pieces cuts text into tokens of about four bytes, none in mid-rune.
func pieces(text string) []string {
	var out []string
	for len(text) > 0 {
		n := 0
		for i := range text {
			if i >= 4 {
				n = i
				break
			}
		}
		if n == 0 {
			n = len(text)
		}
		out = append(out, text[:n])
		text = text[n:]
	}
	return out
}

// text is the whole text of the turn, with its filler.
func (t *Turn) text() string {
	if t.Tokens <= 0 {
		return t.Text
	}
	return t.Text + strings.Repeat("tok ", t.Tokens)
}

func (c *Call) arguments() string {
	if c.Raw != "" {
		return c.Raw
	}
	if len(c.Arguments) == 0 {
		return "{}"
	}
	return string(c.Arguments)
}

// usage counts what the turn did not say.
func (t *Turn) usage(q *Request) Usage {
	if t.Usage != nil {
		return *t.Usage
	}
	u := Usage{Input: (len(q.Body) + 3) / 4, Output: len(pieces(t.text())), Reasoning: len(pieces(t.Reasoning))}
	for _, c := range t.Calls {
		u.Output += len(pieces(c.arguments())) + 1
	}
	return u
}
