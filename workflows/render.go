package workflows

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxRenderBytes bounds the text of one rendered template.
const maxRenderBytes = 4 << 20

// A Scope answers the references of a template. A func that is nil, or that
// returns false, leaves the reference unresolved.
type Scope struct {
	Inputs   func(name string) (json.RawMessage, bool)
	Ctx      func(key string) (json.RawMessage, bool)
	Output   func(node string) (json.RawMessage, bool) // for a bare reference
	View     func(node string) (json.RawMessage, bool) // for a path below it; nil means Output
	RunID    string                                    // save_to only; "" means unresolved
	ReadFile func(path string) ([]byte, error)
}

// An UnresolvedError names the reference that has no value and no default.
type UnresolvedError struct{ Ref string }

func (e *UnresolvedError) Error() string { return "unresolved_reference: " + e.Ref }

// A FilterError is a filter that cannot take its value, or that failed. Its text
// never holds the value.
type FilterError struct {
	Ref    string // the reference the filter stands behind
	Filter string // read_file, json, length
	Err    error
}

func (e *FilterError) Error() string { return e.Ref + " | " + e.Filter + ": " + e.Err.Error() }

// Unwrap is the cause.
func (e *FilterError) Unwrap() error { return e.Err }

// Render evaluates the template to text of at most 4 MiB. It fails with
// *UnresolvedError or *FilterError; it never yields an empty string for a missing
// value.
func (t *Template) Render(s Scope) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		text := p.text
		if p.use != nil {
			var err error
			if text, err = p.use.render(s); err != nil {
				return "", err
			}
		}
		if b.Len()+len(text) > maxRenderBytes {
			return "", renderSizeError{}
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

type renderSizeError struct{}

func (renderSizeError) Error() string { return "the rendered template is over 4 MiB" }

// A datum is a value on its way through filters: JSON, or text that is not quoted.
type datum struct {
	raw    json.RawMessage
	text   string
	isText bool
}

func textDatum(s string) datum { return datum{text: s, isText: true} }

func (d datum) kind() string {
	if d.isText {
		return "string"
	}
	return kindOf(d.raw)
}

func (u *use) render(s Scope) (string, error) {
	raw, ok, err := u.value(s)
	if err != nil {
		return "", fmt.Errorf("%s: %w", u, err)
	}
	value := datum{raw: raw}
	if text, isText := stringValue(raw); ok && isText {
		value = textDatum(text)
	}
	for _, f := range u.filters {
		switch {
		case f.name == filterDefault:
			if !ok {
				value, ok = textDatum(f.fallback), true
			}
		case ok:
			if value, err = f.apply(value, s); err != nil {
				return "", &FilterError{Ref: u.String(), Filter: f.name, Err: err}
			}
		}
	}
	switch {
	case !ok:
		return "", &UnresolvedError{Ref: u.String()}
	case value.isText:
		return value.text, nil
	}
	text, err := compactWide(value.raw)
	if err != nil {
		return "", fmt.Errorf("%s: %w", u, err)
	}
	return string(text), nil
}

// value resolves the reference and its path; ok is false when it is missing.
func (u *use) value(s Scope) (value json.RawMessage, ok bool, err error) {
	var from func(string) (json.RawMessage, bool)
	switch u.kind {
	case refInputs:
		from = s.Inputs
	case refCtx:
		from = s.Ctx
	case refOutput:
		from = s.Output
		if len(u.path) > 0 && s.View != nil {
			from = s.View
		}
	case refRun:
		return quoteString(s.RunID), s.RunID != "", nil
	}
	if from == nil {
		return nil, false, nil
	}
	if value, ok = from(u.name); !ok || value == nil {
		return nil, false, nil
	}
	for _, step := range u.path {
		if value, ok, err = step.into(value); !ok {
			return nil, false, err
		}
	}
	return value, true, nil
}

// into takes one step into a value; ok is false when there is nothing there.
func (s step) into(value json.RawMessage) (json.RawMessage, bool, error) {
	switch kindOf(value) {
	case "object":
		members, err := Members(value)
		if err != nil {
			return nil, false, err
		}
		for _, m := range members {
			if m.Key == s.key {
				return m.Value, true, nil
			}
		}
	case "array":
		list, err := elements(value)
		if err != nil {
			return nil, false, err
		}
		if s.isIndex && s.index < len(list) {
			return list[s.index], true, nil
		}
	}
	return nil, false, nil
}

type filterError string

func (e filterError) Error() string { return string(e) }

func (f filter) apply(value datum, s Scope) (datum, error) {
	switch f.name {
	case filterReadFile:
		return readFile(value, s)
	case filterJSON:
		if value.isText {
			return textDatum(string(quoteString(value.text))), nil
		}
		text, err := compactWide(value.raw)
		return textDatum(string(text)), err
	default:
		n, err := lengthOf(value)
		return datum{raw: json.RawMessage(strconv.Itoa(n))}, err
	}
}

func readFile(path datum, s Scope) (datum, error) {
	if !path.isText {
		return datum{}, filterError("the path is of type " + path.kind() + ", not string")
	}
	if s.ReadFile == nil {
		return datum{}, filterError("files cannot be read here")
	}
	if err := CheckPath(path.text); err != nil {
		return datum{}, err
	}
	content, err := s.ReadFile(path.text)
	switch {
	case err != nil:
		return datum{}, err
	case len(content) > maxRenderBytes:
		return datum{}, filterError("the file is over 4 MiB")
	case !utf8.Valid(content):
		return datum{}, filterError("the file is not UTF-8 text")
	}
	return textDatum(string(content)), nil
}

// lengthOf is the length of a list, of a string in UTF-16 code units, or the number
// of keys of an object.
func lengthOf(value datum) (int, error) {
	switch kind := value.kind(); kind {
	case "string":
		return utf16Len(value.text), nil
	case "array":
		list, err := elements(value.raw)
		return len(list), err
	case "object":
		members, err := Members(value.raw)
		return len(members), err
	default:
		return 0, filterError("a value of type " + kind + " has no length")
	}
}
