package inbound

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/workflows"
)

// Why a result is none.
var (
	errResult   = errors.New("not a result of tools/call")
	errInput    = errors.New("the server asks for input that was not declared")
	errOverText = fmt.Errorf("the text of the result is over %d bytes: %w", maxResultText, errTooLarge)
)

// resultText reads the result of a tools/call: its text parts, the text of embedded
// resources and its structured content, whole, in this order. What is no text leaves a
// note of one line, and nothing is fetched.
func resultText(raw json.RawMessage) (text string, isError bool, err error) {
	fs, ok := members(raw)
	if !ok {
		return "", false, errResult
	}
	var content, structured, kind json.RawMessage
	for _, f := range fs {
		switch f.key {
		case "content":
			content = f.value
		case "structuredContent":
			structured = f.value
		case "isError":
			isError = string(f.value) == "true"
		case "resultType":
			kind = f.value
		}
	}
	switch textOf(kind) {
	case "", "complete":
	case "input_required":
		return "", false, errInput
	default:
		return "", false, errResult
	}
	parts, ok := elements(content)
	if !ok && content != nil || content == nil && structured == nil {
		return "", false, errResult
	}
	var t resultBuilder
	for _, part := range parts {
		if err := t.part(part); err != nil {
			return "", false, err
		}
	}
	if structured != nil && string(structured) != "null" {
		if err := t.structured(structured); err != nil {
			return "", false, err
		}
	}
	return t.out.String(), isError, nil
}

type resultBuilder struct {
	out   strings.Builder
	size  int
	texts []string // that may repeat the structured content
}

func (t *resultBuilder) add(s string, shown bool) error {
	if t.size += len(s); t.size > maxResultText {
		return errOverText
	}
	if shown {
		if t.out.Len() > 0 {
			t.out.WriteByte('\n')
		}
		t.out.WriteString(s)
	}
	return nil
}

func (t *resultBuilder) part(raw json.RawMessage) error {
	if _, ok := members(raw); !ok {
		return errResult
	}
	switch kind := textOf(member(raw, "type")); kind {
	case "text":
		value := member(raw, "text")
		if len(value) == 0 || value[0] != '"' {
			return errResult
		}
		s := textOf(value)
		t.texts = append(t.texts, s)
		return t.add(s, true)
	case "resource":
		resource := member(raw, "resource")
		if value := member(resource, "text"); len(value) > 0 && value[0] == '"' {
			return t.add(textOf(value), true)
		}
		return t.note("resource", member(resource, "mimeType"), member(resource, "uri"))
	case "resource_link":
		return t.note("link", member(raw, "mimeType"), member(raw, "uri"))
	case "image", "audio":
		return t.note(kind, member(raw, "mimeType"), nil)
	default:
		return t.note("content of type "+cut(quoted(kind), 64), nil, nil)
	}
}

// note says that something was there which is no text.
func (t *resultBuilder) note(what string, media, uri json.RawMessage) error {
	s := "[" + what
	if m := cut(quoted(textOf(media)), 128); m != "" {
		s += ", " + m
	}
	if u := cut(quoted(textOf(uri)), 512); u != "" {
		s += ", " + u
	}
	return t.add(s+", not shown]", true)
}

// structured adds the structured content, unless a text part says the same, as servers
// are asked to repeat it ("a tool that returns structured content SHOULD also return the
// serialized JSON in a TextContent block"), or is its one member, as those of servers
// are whose results are plain text. It counts either way.
func (t *resultBuilder) structured(raw json.RawMessage) error {
	canonical := canonicalJSON(raw)
	if fs, ok := members(raw); ok && len(fs) == 1 && len(fs[0].value) > 0 && fs[0].value[0] == '"' && slices.Contains(t.texts, textOf(fs[0].value)) {
		return t.add(string(canonical), false)
	}
	for _, s := range t.texts {
		if json.Valid([]byte(s)) && bytes.Equal(canonicalJSON([]byte(s)), canonical) {
			return t.add(string(canonical), false)
		}
	}
	return t.add(string(canonical), true)
}

// canonicalJSON is the canonical form of valid JSON or, of what has none (a name twice,
// a lone surrogate, more than 64 levels), the value as it came without white space.
func canonicalJSON(raw json.RawMessage) []byte {
	if canonical, err := workflows.Canonical(raw); err == nil {
		return canonical
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}
