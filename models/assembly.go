package models

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/relavium/relavium-serve/engine/agent"
)

// An assembly puts a turn together from the events of a stream, and passes on what of
// it can be shown at once.
type assembly struct {
	delta    func(agent.Delta)
	provider string
	seen     map[string]bool // call ids of the conversation
	x        *exchange

	parts    []*draft
	size     int
	calls    int
	streamed bool
	stop     agent.Stop
	usage    agent.Usage
}

type draftKind uint8

const (
	textDraft draftKind = iota
	reasoningDraft
	callDraft
)

// A draft is a part that may still grow.
type draft struct {
	kind     draftKind
	text     strings.Builder // of text, of reasoning, or a call's arguments
	id, name string
	opaque   json.RawMessage
	executed bool
	closed   bool
}

// grow counts what a provider sent; a turn that passes the bound is ended.
func (a *assembly) grow(n int) error {
	a.size += n
	if a.size > maxTurn {
		return &agent.ModelError{Kind: agent.Unknown, Message: "the answer is longer than " + strconv.Itoa(maxTurn>>20) + " MiB"}
	}
	return nil
}

// last is the last part if it is open and of that kind, else a new one.
func (a *assembly) last(kind draftKind) *draft {
	if n := len(a.parts); n > 0 && a.parts[n-1].kind == kind && !a.parts[n-1].closed {
		return a.parts[n-1]
	}
	d := &draft{kind: kind}
	a.parts = append(a.parts, d)
	return d
}

func (a *assembly) text(s string) error {
	if s == "" {
		return nil
	}
	a.last(textDraft).text.WriteString(s)
	a.streamed = true
	if a.delta != nil {
		a.delta(agent.Delta{Text: s})
	}
	return a.grow(len(s))
}

func (a *assembly) reasoning(s string) error {
	if s == "" {
		return nil
	}
	a.last(reasoningDraft).text.WriteString(s)
	a.streamed = true
	if a.delta != nil {
		a.delta(agent.Delta{Reasoning: s})
	}
	return a.grow(len(s))
}

// call begins a tool call.
func (a *assembly) call(id, name string) (*draft, error) {
	if a.calls++; a.calls > maxCalls {
		return nil, &agent.ModelError{Kind: agent.Unknown, Message: "more than " + strconv.Itoa(maxCalls) + " tool calls in one turn"}
	}
	d := &draft{kind: callDraft, id: a.callID(id), name: name}
	a.parts = append(a.parts, d)
	a.streamed = true
	return d, a.grow(len(name))
}

// arguments adds to what a call is called with.
func (a *assembly) arguments(d *draft, s string) error {
	d.text.WriteString(s)
	return a.grow(len(s))
}

// callID returns id if it is one that every provider takes and the conversation does
// not have, and makes one otherwise: Gemini gives none, and some local servers count
// from zero in each turn.
func (a *assembly) callID(id string) string {
	if !a.seen[id] && portableID(id) {
		a.seen[id] = true
		return id
	}
	for n := len(a.seen); ; n++ {
		if id = "call_" + strconv.Itoa(n); !a.seen[id] {
			a.seen[id] = true
			return id
		}
	}
}

// portableID tells whether every provider takes an id back.
func portableID(id string) bool {
	const bound = 64
	for _, r := range id {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
		default:
			return false
		}
	}
	return id != "" && len(id) <= bound
}

// callIDs are those of a conversation.
func callIDs(req *agent.Request) map[string]bool {
	ids := map[string]bool{}
	for _, m := range req.Messages {
		for _, p := range m.Parts {
			if p.Call != nil {
				ids[p.Call.ID] = true
			}
		}
	}
	return ids
}

// has tells whether there is a part of that kind.
func (a *assembly) has(kind draftKind) bool {
	for _, d := range a.parts {
		if d.kind == kind {
			return true
		}
	}
	return false
}

// ended sets why the turn ended and lets the rest of the stream be drained. A turn
// with calls ends for them, whatever the provider calls it, unless it was cut.
func (a *assembly) ended(stop agent.Stop) {
	if stop == agent.StopEnd && a.has(callDraft) {
		stop = agent.StopToolUse
	}
	if stop == agent.StopToolUse && !a.has(callDraft) {
		stop = agent.StopEnd
	}
	a.stop = stop
	a.x.done()
}

// turn returns what was put together.
func (a *assembly) turn() *agent.Turn {
	t := &agent.Turn{Stop: a.stop, Usage: a.usage}
	for _, d := range a.parts {
		if d.kind != callDraft && d.text.Len() == 0 && d.opaque == nil {
			continue // a block that stayed empty
		}
		switch d.kind {
		case textDraft:
			t.Parts = append(t.Parts, agent.Part{Text: d.text.String()})
		case reasoningDraft:
			t.Parts = append(t.Parts, agent.Part{Reasoning: &agent.Reasoning{Text: d.text.String(), Provider: a.provider, Opaque: d.opaque}})
		case callDraft:
			c := &agent.Call{ID: d.id, Name: d.name, Arguments: json.RawMessage(d.text.String()), Opaque: d.opaque, Executed: d.executed}
			if strings.TrimSpace(d.text.String()) == "" {
				c.Arguments = json.RawMessage("{}")
			}
			if c.Opaque != nil {
				c.Provider = a.provider
			}
			t.Parts = append(t.Parts, agent.Part{Call: c})
		}
	}
	return t
}

// object returns the arguments of a call for a provider that wants an object back:
// what is none stands in one, so that the model sees what it wrote.
func object(arguments json.RawMessage) json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal(arguments, &o) == nil && o != nil {
		return arguments
	}
	const bound = 1 << 10
	s := string(arguments)
	if len(s) > bound {
		s = strings.ToValidUTF8(s[:bound], "")
	}
	b, err := json.Marshal(map[string]string{"not_an_object": s})
	if err != nil {
		return json.RawMessage("{}")
	}
	return b
}
