package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/workflows"
)

// An answer is what a loop comes to.
type answer struct {
	value json.RawMessage // the parsed reply with a schema, else its text as a JSON string
	text  string          // the same as text
}

// accept reads the last reply of a loop. With a schema the text, or what stands in
// the one code fence around it, must be JSON that keeps to it; the error then says
// what to correct, without quoting the reply. Without one any text will do, also
// one that max_tokens cut off, and none.
func (l *loop) accept(text string) (answer, error) {
	if l.schema == nil {
		value, err := encode(text)
		return answer{value: value, text: text}, err
	}
	if strings.TrimSpace(text) == "" {
		return answer{}, replyError("it is empty")
	}
	value, err := workflows.Compact(json.RawMessage(unfence(text)))
	if err != nil {
		return answer{}, replyError("it is no JSON: " + err.Error())
	}
	if err := l.d.call.Workflow.CheckOutput(l.node.ID, value); err != nil {
		if broken, ok := errors.AsType[*workflows.OutputError](err); ok {
			return answer{}, replyError(broken.Error())
		}
		return answer{}, err
	}
	return answer{value: value, text: string(value)}, nil
}

// A replyError says what is wrong with a reply that should keep to a schema.
type replyError string

func (e replyError) Error() string { return string(e) }

// unfence takes away white space and a single Markdown code fence around text.
func unfence(text string) string {
	text = strings.TrimSpace(text)
	fence := "```"
	if strings.HasPrefix(text, "~~~") {
		fence = "~~~"
	}
	if !strings.HasPrefix(text, fence) || !strings.HasSuffix(text, fence) {
		return text
	}
	open := 0
	for open < len(text) && text[open] == fence[0] {
		open++
	}
	marks := text[:open]
	first, rest, ok := strings.Cut(text[open:], "\n")
	if !ok || strings.Contains(first, fence[:1]) || !strings.HasSuffix(rest, marks) {
		return text
	}
	return strings.TrimSpace(strings.TrimSuffix(rest, marks))
}

// repair asks for the reply once more.
func repair(problem error) Message {
	return Message{Role: User, Parts: []Part{{Text: fmt.Sprintf(
		"Your reply cannot be used: %s. Reply again with the JSON value alone, as the schema asks, without any text around it.", problem)}}}
}

// clip shortens text to at most n bytes, at the boundary of a character.
func clip(s string, n int) string {
	const mark = "…"
	if len(s) <= n {
		return s
	}
	end := max(n-len(mark), 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}
