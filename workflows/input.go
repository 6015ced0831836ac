package workflows

import (
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxFieldErrors bounds how many wrong arguments one error lists.
const maxFieldErrors = 50

// An InputError lists every argument that is wrong: name, and what was expected.
// At most 50 are listed. It never holds a value.
type InputError struct{ Fields []FieldError }

// FieldError is one wrong argument; Field is its name, Want what was expected. An
// empty Field stands for the arguments as a whole.
type FieldError struct{ Field, Want string }

func (e *InputError) Error() string {
	lines := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		lines[i] = f.String()
	}
	return strings.Join(lines, "; ")
}

// String is the field and what was expected of it, on one line.
func (f FieldError) String() string {
	if f.Field == "" {
		return "want " + f.Want
	}
	return f.Field + ": want " + f.Want
}

func (e *InputError) add(field, want string) {
	if len(e.Fields) < maxFieldErrors {
		e.Fields = append(e.Fields, FieldError{Field: field, Want: want})
	}
}

// orNil is the error, or nil when nothing is wrong.
func (e *InputError) orNil() error {
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}

// ResolveInputs checks arguments (a JSON object, or nil for none) against the
// declared inputs, fills defaults and returns the inputs in declared order; secret
// inputs appear as their mask. The error is an *InputError with every field that is
// wrong.
//
// The JSON type must be the declared one: text is never read as a number or a
// boolean. Numbers keep their digits. Null for an input that may be left out
// counts as left out. A secret input cannot be supplied.
func (w *Workflow) ResolveInputs(args json.RawMessage) (json.RawMessage, error) {
	given := map[string]json.RawMessage{}
	wrong := &InputError{}
	if args != nil {
		members, err := strictMembers(args)
		if err != nil {
			wrong.add("", "a JSON object of arguments: "+err.Error())
			return nil, wrong
		}
		for _, m := range members {
			given[m.Key] = m.Value
			if in, ok := w.input(m.Key); !ok {
				wrong.add(shownName(m.Key), w.noSuchInput())
			} else if in.Type == TypeSecret {
				wrong.add(in.Name, w.neverSupplied(in.Name))
			}
		}
	}
	var out []Member
	for i := range w.Inputs {
		in := &w.Inputs[i]
		value, want := w.resolve(in, given[in.Name], out)
		switch {
		case want != "":
			wrong.add(in.Name, want)
		case value != nil:
			out = append(out, Member{Key: in.Name, Value: value})
		}
	}
	if err := wrong.orNil(); err != nil {
		return nil, err
	}
	return Object(out), nil
}

// resolve is the value of one input: nil when it is absent, or else what was
// expected. earlier holds the inputs declared before it.
func (w *Workflow) resolve(in *Input, given json.RawMessage, earlier []Member) (value json.RawMessage, want string) {
	switch {
	case in.Type == TypeSecret:
		return w.mask(in.Name), ""
	case given != nil && string(given) != "null":
		return given, in.check(given)
	case in.Default != nil && in.Default.Template != nil:
		return in.renderDefault(earlier)
	case in.Default != nil:
		if want := in.check(in.Default.Literal); want != "" {
			return nil, in.expected() + ", because its default is not"
		}
		return in.Default.Literal, ""
	case !in.Required:
		return nil, ""
	case given != nil:
		return nil, in.expected() + ", got null"
	default:
		return nil, in.expected() + ", got nothing"
	}
}

func (in *Input) renderDefault(earlier []Member) (value json.RawMessage, want string) {
	text, err := in.Default.Template.Render(Scope{Inputs: func(name string) (json.RawMessage, bool) {
		for _, m := range earlier {
			if m.Key == name {
				return m.Value, true
			}
		}
		return nil, false
	}})
	if unresolved, ok := errors.AsType[*UnresolvedError](err); ok {
		return nil, in.expected() + ", because its default needs " + unresolved.Ref
	}
	if err != nil {
		return nil, in.expected() + ", because its default cannot be computed"
	}
	value, ok := in.fromText(text)
	if !ok {
		return nil, in.expected() + ", because its default yields another type"
	}
	return value, in.check(value)
}

// CoerceInputs turns name=value pairs of a command line into arguments for
// ResolveInputs: a number is a JSON number, a boolean true or false, anything else
// the text as it stands. The error is an *InputError with every pair that is wrong:
// not a pair, an unknown or repeated name, a secret input, or text of another type.
func (w *Workflow) CoerceInputs(pairs []string) (json.RawMessage, error) {
	wrong := &InputError{}
	seen := map[string]bool{}
	var out []Member
	for _, pair := range pairs {
		name, text, ok := strings.Cut(pair, "=")
		in, known := w.input(name)
		switch {
		case !ok:
			wrong.add(shownName(pair), "name=value, after --input")
		case !known:
			wrong.add(shownName(name), w.noSuchInput())
		case in.Type == TypeSecret:
			wrong.add(name, w.neverSupplied(name))
		case seen[name]:
			wrong.add(name, "one value, got it twice")
		default:
			seen[name] = true
			value, ok := in.fromText(text)
			if !ok {
				wrong.add(name, in.expected())
				continue
			}
			out = append(out, Member{Key: name, Value: value})
		}
	}
	if err := wrong.orNil(); err != nil {
		return nil, err
	}
	return Object(out), nil
}

// SecretEnv is the environment variable that supplies a secret input:
// RELAVIUM_INPUT_<WORKFLOW>_<INPUT>; with _FILE appended it names a file. Letters
// are upper case, everything but letters and digits is an underscore.
func (w *Workflow) SecretEnv(input string) string {
	return "RELAVIUM_INPUT_" + envName(w.ID) + "_" + envName(input)
}

// envName writes a name as a part of a variable's.
func envName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, name)
}

// mask stands for the value of a secret input wherever inputs are shown.
func (w *Workflow) mask(input string) json.RawMessage {
	return Object([]Member{
		{Key: "secret", Value: json.RawMessage("true")},
		{Key: "ref", Value: quoteString("env:" + w.SecretEnv(input))},
	})
}

func (w *Workflow) input(name string) (*Input, bool) {
	for i := range w.Inputs {
		if w.Inputs[i].Name == name {
			return &w.Inputs[i], true
		}
	}
	return nil, false
}

func (w *Workflow) noSuchInput() string {
	var known []string
	for _, in := range w.Inputs {
		if in.Type != TypeSecret {
			known = append(known, in.Name)
		}
	}
	if len(known) == 0 {
		return "no such input; this workflow takes none"
	}
	return "no such input; known are " + strings.Join(known, ", ")
}

func (w *Workflow) neverSupplied(input string) string {
	return "no value: a secret input is read from " + w.SecretEnv(input) + " where the server runs"
}

// shownName is a name that a caller made up, fit to be shown.
func shownName(name string) string {
	const limit = 64
	plain := isName(name, isPathByte) && len(name) <= limit
	if plain {
		return name
	}
	runes := []rune(strings.ToValidUTF8(name, "\uFFFD"))
	if len(runes) > limit {
		runes = append(runes[:limit], '…')
	}
	return strconv.QuoteToASCII(string(runes))
}

// fromText reads text as a value of the declared type.
func (in *Input) fromText(text string) (value json.RawMessage, ok bool) {
	switch in.Type {
	case TypeNumber:
		return json.RawMessage(text), checkNumber(text) == ""
	case TypeBoolean:
		return json.RawMessage(text), text == "true" || text == "false"
	default:
		return quoteString(text), utf8.ValidString(text)
	}
}

// check says what was expected of a value that is wrong; "" means it is right.
func (in *Input) check(value json.RawMessage) (want string) {
	kind := kindOf(value)
	if kind != in.jsonType() {
		return in.expected() + ", got " + article(kind)
	}
	ok := true
	switch kind {
	case "number":
		ok = in.checkNumber(string(value))
	case "string":
		text, isText := stringValue(value)
		if !isText {
			return in.expected()
		}
		if in.Type == TypeFilePath {
			if err := CheckPath(text); err != nil {
				return in.expected() + ": " + err.Error()
			}
		}
		ok = in.checkText(text)
	}
	if !ok {
		return in.expected()
	}
	return ""
}

func (in *Input) checkNumber(literal string) bool {
	v := &in.Validation
	n, ok := new(big.Rat).SetString(literal)
	if !ok || v.Min != "" && !atLeast(n, string(v.Min)) || v.Max != "" && !atMost(n, string(v.Max)) {
		return false
	}
	return v.Enum == nil || slices.ContainsFunc(v.Enum, func(one json.RawMessage) bool {
		return atLeast(n, string(one)) && atMost(n, string(one))
	})
}

func atLeast(n *big.Rat, bound string) bool {
	b, ok := new(big.Rat).SetString(bound)
	return ok && n.Cmp(b) >= 0
}

func atMost(n *big.Rat, bound string) bool {
	b, ok := new(big.Rat).SetString(bound)
	return ok && n.Cmp(b) <= 0
}

func (in *Input) checkText(text string) bool {
	v := &in.Validation
	length := utf16Len(text)
	switch {
	case v.MinLength != nil && length < *v.MinLength:
		return false
	case v.MaxLength != nil && length > *v.MaxLength:
		return false
	case v.Format != "" && !hasFormat(text, v.Format):
		return false
	case v.Enum != nil && !slices.ContainsFunc(v.Enum, func(one json.RawMessage) bool {
		member, ok := stringValue(one)
		return ok && member == text
	}):
		return false
	case v.Pattern == "":
		return true
	}
	re, err := compilePattern(v.Pattern)
	return err == nil && re.MatchString(text)
}

// jsonType is the JSON type of the input's values.
func (in *Input) jsonType() string {
	switch in.Type {
	case TypeNumber, TypeBoolean:
		return in.Type
	default:
		return "string"
	}
}

// expected describes the values that are right, such as "a number from 0 to 10".
func (in *Input) expected() string {
	v := &in.Validation
	var b strings.Builder
	switch in.Type {
	case TypeFilePath:
		b.WriteString("a file path relative to the workspace")
	case TypeCodeDiff:
		b.WriteString("a diff as a string")
	default:
		b.WriteString(article(in.jsonType()))
	}
	switch {
	case v.Min != "" && v.Max != "":
		b.WriteString(" from " + string(v.Min) + " to " + string(v.Max))
	case v.Min != "":
		b.WriteString(" of at least " + string(v.Min))
	case v.Max != "":
		b.WriteString(" of at most " + string(v.Max))
	}
	if v.Format != "" {
		b.WriteString(" in the format " + v.Format)
	}
	switch {
	case v.MinLength != nil && v.MaxLength != nil:
		b.WriteString(" of " + strconv.Itoa(*v.MinLength) + " to " + strconv.Itoa(*v.MaxLength) + " characters")
	case v.MinLength != nil:
		b.WriteString(" of at least " + strconv.Itoa(*v.MinLength) + " characters")
	case v.MaxLength != nil:
		b.WriteString(" of at most " + strconv.Itoa(*v.MaxLength) + " characters")
	}
	if v.Pattern != "" {
		b.WriteString(" that matches " + v.Pattern)
	}
	if v.Enum != nil {
		b.WriteString(", one of " + shownEnum(v.Enum))
	}
	return b.String()
}

func shownEnum(enum []json.RawMessage) string {
	const limit = 30
	var shown []string
	for i, one := range enum {
		if i == limit {
			shown = append(shown, "…")
			break
		}
		shown = append(shown, string(one))
	}
	return strings.Join(shown, ", ")
}

func article(kind string) string {
	switch kind {
	case "object", "array":
		return "an " + kind
	case "null", "nothing":
		return kind
	default:
		return "a " + kind
	}
}
