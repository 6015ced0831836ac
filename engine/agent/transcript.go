package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/workflows"
)

// A transcript is the conversation of one loop. It grows at its end only, so that
// one digest, carried on, tells whether two histories are the same.
type transcript struct {
	messages []Message
	digest   [sha256.Size]byte
	size     int // bytes that a turn sends, without tools
}

func newTranscript(system string) *transcript {
	return &transcript{digest: sha256.Sum256([]byte(system)), size: len(system)}
}

// add appends a message; one without parts says nothing and is left out.
func (t *transcript) add(m Message) error {
	if len(m.Parts) == 0 {
		return nil
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("agent: message: %w", err)
	}
	t.messages = append(t.messages, m)
	t.digest = sha256.Sum256(append(t.digest[:], raw...))
	t.size += len(raw)
	return nil
}

// request names the conversation so far. Tools and models are not part of it: a
// description that changed, or another model of the chain, is no other history.
func (t *transcript) request() (json.RawMessage, error) {
	return encode(struct {
		Messages int    `json:"messages"`
		Digest   string `json:"digest"`
	}{len(t.messages), hex.EncodeToString(t.digest[:])})
}

// forProvider is the conversation without what other providers thought: they alone
// can read it (format 12.4).
func (t *transcript) forProvider(provider string) []Message {
	foreign := func(p Part) bool {
		return p.Reasoning != nil && p.Reasoning.Provider != provider || p.Call != nil && p.Call.Opaque != nil && p.Call.Provider != provider
	}
	if !slices.ContainsFunc(t.messages, func(m Message) bool { return slices.ContainsFunc(m.Parts, foreign) }) {
		return slices.Clip(t.messages)
	}
	out := make([]Message, 0, len(t.messages))
	for _, m := range t.messages {
		parts := make([]Part, 0, len(m.Parts))
		for _, p := range m.Parts {
			switch {
			case !foreign(p):
			case p.Reasoning != nil:
				continue
			default:
				call := *p.Call
				call.Opaque, call.Provider = nil, ""
				p.Call = &call
			}
			parts = append(parts, p)
		}
		if len(parts) > 0 {
			out = append(out, Message{Role: m.Role, Parts: parts})
		}
	}
	return out
}

// A reply is a turn as it is kept: what Do stores and gives back.
type reply struct {
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Attempt  int         `json:"attempt"` // inside the chain, from 1
	Stop     Stop        `json:"stop"`
	Parts    []replyPart `json:"parts"`
}

// A replyPart is a Part of a reply. Arguments are text here, since a model may write
// what is no JSON.
type replyPart struct {
	Text      string     `json:"text,omitempty"`
	Reasoning *Reasoning `json:"reasoning,omitempty"`
	Call      *replyCall `json:"call,omitempty"`
}

type replyCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Opaque    json.RawMessage `json:"opaque,omitempty"`
	Provider  string          `json:"provider,omitempty"`
	Executed  bool            `json:"executed,omitempty"`
}

// newReply keeps a turn, without secrets.
func newReply(t *Turn, scrub func(string) string) *reply {
	r := &reply{Stop: t.Stop, Parts: make([]replyPart, 0, len(t.Parts))}
	clean := func(s string) string { return scrub(strings.ToValidUTF8(s, "\uFFFD")) }
	opaque := func(raw json.RawMessage) json.RawMessage {
		if len(raw) == 0 || scrub(string(raw)) != string(raw) {
			return nil // it cannot be changed without breaking it
		}
		return raw
	}
	for _, p := range t.Parts {
		switch {
		case p.Reasoning != nil:
			r.Parts = append(r.Parts, replyPart{Reasoning: &Reasoning{
				Text: clean(p.Reasoning.Text), Provider: p.Reasoning.Provider, Opaque: opaque(p.Reasoning.Opaque),
			}})
		case p.Call != nil:
			r.Parts = append(r.Parts, replyPart{Call: &replyCall{
				ID: p.Call.ID, Name: clip(clean(p.Call.Name), maxName), Arguments: clean(string(p.Call.Arguments)),
				Opaque: opaque(p.Call.Opaque), Provider: p.Call.Provider, Executed: p.Call.Executed,
			}})
		case p.Text != "":
			r.Parts = append(r.Parts, replyPart{Text: clean(p.Text)})
		}
	}
	return r
}

// text is what the reply says.
func (r *reply) text() string {
	var b strings.Builder
	for _, p := range r.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// calls are the tool calls in listed order.
func (r *reply) calls() []*replyCall {
	var out []*replyCall
	for _, p := range r.Parts {
		if p.Call != nil {
			out = append(out, p.Call)
		}
	}
	return out
}

// identify gives every call an id that the conversation has not seen; place is the
// first effect of these calls.
func (r *reply) identify(path string, place int, seen map[string]bool) {
	for i, c := range r.calls() {
		if c.ID == "" || seen[c.ID] {
			c.ID = strings.ReplaceAll(fmt.Sprintf("call_%s_%d", path, place+i), "/", "_")
		}
		seen[c.ID] = true
	}
}

// message is the reply as the models read it later. Arguments that are no object
// are shown empty, since no provider takes them; the call's result says why.
func (r *reply) message() Message {
	m := Message{Role: Assistant}
	for _, p := range r.Parts {
		part := Part{Text: p.Text, Reasoning: p.Reasoning}
		if c := p.Call; c != nil {
			args, err := c.object()
			if err != nil {
				args = json.RawMessage(`{}`)
			}
			part.Call = &Call{ID: c.ID, Name: portable(c.Name), Arguments: args, Opaque: c.Opaque, Provider: c.Provider}
		}
		m.Parts = append(m.Parts, part)
	}
	return m
}

// object returns the arguments if they are a JSON object; nothing at all is {}.
func (c *replyCall) object() (json.RawMessage, error) {
	args := strings.TrimSpace(c.Arguments)
	if args == "" {
		return json.RawMessage(`{}`), nil
	}
	if _, err := workflows.Compact(json.RawMessage(args)); err != nil {
		return nil, err
	}
	if args[0] != '{' {
		return nil, errNoObject
	}
	return json.RawMessage(args), nil
}

// maxName bounds a tool's name as a model writes it; what is longer names no tool.
const maxName = 128

// portable is a name in the letters that every provider takes in a conversation. It
// changes only names that no tool has.
func portable(name string) string {
	const most = 64
	fits := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
	}
	out := strings.Map(func(r rune) rune {
		if !fits(r) {
			return '_'
		}
		return r
	}, name)
	if out == name && out != "" {
		return out
	}
	return "unknown_" + out[:min(len(out), most-len("unknown_"))]
}

type argumentError string

func (e argumentError) Error() string { return string(e) }

const errNoObject = argumentError("not a JSON object")

// encode is json.Marshal without HTML escapes.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
