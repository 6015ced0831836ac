package gates

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// maxQuestion bounds the message of a question, in bytes.
const maxQuestion = 8 << 10

// A Name is how one gate is known to clients. Its zero value stands for the
// node's id and the field "value".
type Name struct {
	Key   string // of the input request
	Field string // the one answer field of an input gate
}

// A form is one question about one gate.
type form struct {
	gate    engine.Gate
	key     string // of the input request
	field   string // of the answer; "decision" for approval and review
	renamed bool   // the operator named the field: it takes any primitive
	url     string // of the console's page of the gate; "" asks by a form
}

// newForm is the question about a gate. url is "" or the page that answers it.
func newForm(g *engine.Gate, name Name, url string) form {
	f := form{gate: *g, key: cmp.Or(g.Key, g.Node), field: "decision", url: url}
	if name.Key != "" && g.Reason == "" {
		f.key = name.Key
	}
	if g.Type == "input" {
		f.field = "value"
		if name.Field != "" && g.Reason == "" {
			f.field, f.renamed = name.Field, true
		}
	}
	return f
}

// params are those of elicitation/create in the words of one revision. nonce is
// the id that revision 2025-11-25 wants for a question by URL; later ones have
// none.
func (f *form) params(version, nonce string, clean func(string) string) mcp.ElicitationParams {
	p := mcp.ElicitationParams{Message: f.message(clean)}
	if f.url != "" {
		p.Mode, p.URL = mcp.ElicitationModeURL, f.url
		if !mcp.IsModernProtocol(version) {
			p.ElicitationID = nonce
		}
		return p
	}
	if version >= mcp.ProtocolVersion20251125 {
		p.Mode = mcp.ElicitationModeForm
	}
	p.RequestedSchema = f.schema()
	return p
}

// schema is the requested schema: "restricted to flat objects with primitive
// properties only" (MCP, Elicitation).
func (f *form) schema() json.RawMessage {
	member := func(key, value string) workflows.Member {
		return workflows.Member{Key: key, Value: json.RawMessage(value)}
	}
	answer := `{"type":"string","title":"Answer"}`
	switch {
	case f.gate.Type != "input":
		answer = `{"type":"string","title":"Decision","enum":["approve","reject"]}`
	case f.gate.Reason == engine.ReasonUnknown:
		answer = `{"type":"string","title":"What to do","enum":["repeat","skip","fail"]}`
	}
	properties := []workflows.Member{member(f.field, answer)}
	if f.field != "comment" {
		properties = append(properties, member("comment", `{"type":"string","title":"Comment"}`))
	}
	required := append(append([]byte(`[`), quoted(f.field)...), ']')
	return workflows.Object([]workflows.Member{
		member("type", `"object"`),
		{Key: "properties", Value: workflows.Object(properties)},
		{Key: "required", Value: required},
	})
}

// message is what the person reads: the gate's own text, whom it is for, and
// until when an answer counts.
func (f *form) message(clean func(string) string) string {
	text := strings.TrimSpace(clean(f.gate.Message))
	if text == "" {
		text = "The workflow " + f.gate.Workflow + " waits at " + f.gate.Node + "."
	}
	text = clip(text, maxQuestion)
	if who := strings.Join(strings.Fields(clean(f.gate.Assignee)), " "); who != "" {
		text += "\n\nFor: " + clip(who, 200)
	}
	if !f.gate.Expires.IsZero() {
		text += "\n\nAnswer by " + f.gate.Expires.UTC().Format(time.RFC3339) + "."
	}
	return text
}

// printable keeps text from moving a cursor or turning the reading order:
// control characters become spaces, format characters go.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case unicode.IsControl(r):
			return ' '
		case unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// clip cuts text to at most n bytes, at a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// quoted is s as a JSON string.
func quoted(s string) json.RawMessage {
	raw, err := json.Marshal(s)
	if err != nil { // a string always encodes
		return json.RawMessage(`""`)
	}
	return raw
}
