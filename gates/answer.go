package gates

import (
	"encoding/json"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of what a person says, in bytes of JSON. The engine's are not smaller.
const (
	maxComment = 32 << 10
	maxValue   = 128 << 10
)

// An outcome is what a client's reply to a question means for the gate.
//
//sumtype:decl
type outcome interface{ outcome() }

type (
	// decided is a person's answer; By and Via are filled in by who asked.
	decided struct{ decision engine.Decision }
	// invalid is an accept that holds no answer; it may be asked once more.
	invalid struct{ why string }
	// cancelled means that the gate is not answered here.
	cancelled struct{}
	// visited means that the person agreed to open the gate's page, no more.
	visited struct{}
	// reflex is an answer that came too soon to be a person's.
	reflex struct{ after time.Duration }
	// answered is a person's answer that came through another process, which has
	// stored it.
	answered struct{}
	// broken is a reply that is none: an error, or not an elicitation result.
	broken struct{ why string }
)

func (decided) outcome()   {}
func (invalid) outcome()   {}
func (cancelled) outcome() {}
func (visited) outcome()   {}
func (reflex) outcome()    {}
func (broken) outcome()    {}
func (answered) outcome()  {}

// read tells what the result of elicitation/create means. after is how long
// after the question left it came; what comes sooner than least is no person's.
// Only an accept has content; that of a decline or a cancel is not looked at.
func (f *form) read(reply json.RawMessage, after, least time.Duration) outcome {
	members, err := workflows.Members(reply)
	if err != nil {
		return broken{"the reply is not a JSON object"}
	}
	var action string
	var content json.RawMessage
	for _, m := range members {
		switch m.Key {
		case "action":
			if action = text(m.Value); action == "" {
				return broken{"the reply's action is not a word"}
			}
		case "content":
			content = m.Value
		}
	}
	if least > 0 && after < least {
		return reflex{after}
	}
	switch action {
	case "cancel":
		return cancelled{}
	case "decline":
		if f.url != "" {
			return cancelled{} // of the page, which the person has not seen
		}
		return decided{engine.Decision{Decision: engine.Rejected}}
	case "accept":
		if f.url != "" {
			return visited{}
		}
		return f.accept(content)
	}
	return broken{"the reply's action is not accept, decline or cancel"}
}

// accept reads the content of an accepted form. What the form did not ask for
// is not looked at.
func (f *form) accept(content json.RawMessage) outcome {
	members, err := workflows.Members(content)
	if err != nil {
		return invalid{"the answer holds no content"}
	}
	var d engine.Decision
	var answer json.RawMessage
	for _, m := range members {
		switch m.Key {
		case f.field:
			answer = m.Value
		case "comment":
			if string(m.Value) == "null" {
				continue
			}
			if m.Value[0] != '"' || len(m.Value) > maxComment {
				return invalid{"the comment is not a text of at most 32 KiB"}
			}
			d.Comment = text(m.Value)
		}
	}
	if f.gate.Type != "input" {
		switch text(answer) {
		case "approve":
			d.Decision = engine.Approved
		case "reject":
			d.Decision = engine.Rejected
		default:
			return invalid{`"decision" is neither "approve" nor "reject"`}
		}
		return decided{d}
	}
	switch {
	case !f.fits(answer):
		return invalid{"the answer's \"" + f.field + "\" is not what was asked for"}
	case answer[0] == '"':
		d.Payload = Payload(text(answer))
	default:
		d.Payload = answer
	}
	d.Decision = engine.InputProvided
	return decided{d}
}

// fits reports whether a value may stand in the answer field of an input gate.
func (f *form) fits(value json.RawMessage) bool {
	if len(value) == 0 || len(value) > maxValue {
		return false
	}
	switch {
	case f.gate.Reason == engine.ReasonUnknown:
		switch text(value) {
		case "repeat", "skip", "fail":
			return true
		}
		return false
	case value[0] == '"':
		return true
	}
	return f.renamed && value[0] != '{' && value[0] != '[' && value[0] != 'n'
}

// Payload is what a person typed into a text field as the payload of an input
// gate: the JSON value if it is one, else the text itself. Every surface that
// takes text reads it so, so that a workflow sees the same whoever is first.
func Payload(typed string) json.RawMessage {
	if value, err := workflows.Compact(json.RawMessage(typed)); err == nil {
		return value
	}
	return quoted(typed)
}

// text is a JSON string's text, or "" for anything else.
func text(value json.RawMessage) string {
	var s string
	if len(value) == 0 || value[0] != '"' || json.Unmarshal(value, &s) != nil {
		return ""
	}
	return s
}
