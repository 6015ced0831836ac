package consent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDeclarationBytes bounds a declaration as JSON text.
const MaxDeclarationBytes = 1 << 20

// ParseDeclaration reads a declaration from one JSON object with the members
// transport ("stdio"), command, cwd, and args and env, which may be absent. It is
// strict: a name twice, a member it does not know, a lone surrogate and a path that
// is not absolute are refused.
func ParseDeclaration(src []byte) (Declaration, error) {
	if len(src) > MaxDeclarationBytes {
		return Declaration{}, fmt.Errorf("more than %d bytes", MaxDeclarationBytes)
	}
	o, err := parseObject(src)
	if err != nil {
		return Declaration{}, err
	}
	d := Declaration{Args: []string{}, Env: map[string]string{}}
	if transport := o.text("transport"); o.err == nil && transport != "stdio" {
		return Declaration{}, errors.New(`transport: expected "stdio"`)
	}
	d.Command, d.Cwd = o.text("command"), o.text("cwd")
	if o.has("args") {
		d.Args = o.texts("args")
	}
	if o.has("env") {
		d.Env = o.textMap("env")
	}
	if err := o.done(); err != nil {
		return Declaration{}, err
	}
	for _, field := range []struct{ name, path string }{{"command", d.Command}, {"cwd", d.Cwd}} {
		if !filepath.IsAbs(field.path) {
			return Declaration{}, fmt.Errorf("%s: not an absolute path", field.name)
		}
	}
	return d, nil
}

// An object is the members of one JSON object that have not been read yet. The
// first failure to read one is kept in err.
type object struct {
	members map[string]json.RawMessage
	err     error
}

// parseObject reads one JSON object and nothing after it. Unlike encoding/json it
// refuses invalid UTF-8, lone surrogates and a name that stands twice.
func parseObject(src []byte) (*object, error) {
	switch {
	case !utf8.Valid(src):
		return nil, ErrNoFaithfulForm
	case !json.Valid(src):
		return nil, errors.New("not one JSON value, or cut short")
	case loneSurrogate(src):
		return nil, fmt.Errorf("lone surrogate: %w", ErrNoFaithfulForm)
	}
	dec := json.NewDecoder(bytes.NewReader(src))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	o := &object{members: map[string]json.RawMessage{}}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		var value json.RawMessage
		if err != nil || !ok || dec.Decode(&value) != nil {
			return nil, errors.New("not a JSON object")
		}
		if o.has(name) {
			return nil, fmt.Errorf("member %.80q stands twice", name)
		}
		o.members[name] = value
	}
	return o, nil
}

func (o *object) has(name string) bool {
	_, ok := o.members[name]
	return ok
}

// take decodes a member into value and marks it as read.
func (o *object) take(name string, value any, want string) {
	raw, ok := o.members[name]
	delete(o.members, name)
	switch {
	case o.err != nil:
	case !ok:
		o.err = fmt.Errorf("%s is missing", name)
	case json.Unmarshal(raw, value) != nil:
		o.err = fmt.Errorf("%s: expected %s", name, want)
	}
}

func (o *object) text(name string) string {
	var text *string
	o.take(name, &text, "a string")
	if text == nil {
		o.missing(name, "a string")
		return ""
	}
	return *text
}

func (o *object) texts(name string) []string {
	const want = "an array of strings"
	var values []*string
	o.take(name, &values, want)
	if values == nil {
		o.missing(name, want)
	}
	texts := make([]string, 0, len(values))
	for _, value := range values {
		if value == nil {
			o.missing(name, want)
			return nil
		}
		texts = append(texts, *value)
	}
	return texts
}

// textMap reads an object of strings, in which no name stands twice either.
func (o *object) textMap(name string) map[string]string {
	var raw json.RawMessage
	o.take(name, &raw, "an object of strings")
	if o.err != nil {
		return nil
	}
	inner, err := parseObject(raw)
	if err != nil {
		o.err = fmt.Errorf("%s: %w", name, err)
		return nil
	}
	texts := make(map[string]string, len(inner.members))
	for key, value := range inner.members {
		var text *string
		if json.Unmarshal(value, &text) != nil || text == nil {
			o.missing(name, "an object of strings")
			return nil
		}
		texts[key] = *text
	}
	return texts
}

func (o *object) missing(name, want string) {
	if o.err == nil {
		o.err = fmt.Errorf("%s: expected %s", name, want)
	}
}

// done returns the first failure; a member that nothing has read is one.
func (o *object) done() error {
	if o.err == nil && len(o.members) > 0 {
		// The same one each time, whatever the order of the map.
		return fmt.Errorf("unknown member %.80q", slices.Min(slices.Collect(maps.Keys(o.members))))
	}
	return o.err
}

// loneSurrogate reports whether a valid JSON text escapes one half of a surrogate
// pair without the other, which no string in UTF-8 can hold.
func loneSurrogate(src []byte) bool {
	for i := 0; i < len(src); i++ {
		if src[i] != '\\' {
			continue
		}
		i++ // the escaped character
		if src[i] != 'u' {
			continue
		}
		unit := escapedUnit(src[i-1:])
		i += 4
		if !utf16.IsSurrogate(unit) {
			continue
		}
		if utf16.DecodeRune(unit, escapedUnit(src[i+1:])) == utf8.RuneError {
			return true
		}
		i += 6
	}
	return false
}

// escapedUnit is the code unit of the \uXXXX that src starts with, or 0.
func escapedUnit(src []byte) rune {
	if len(src) < 6 || src[0] != '\\' || src[1] != 'u' {
		return 0
	}
	unit, err := strconv.ParseUint(string(src[2:6]), 16, 16)
	if err != nil {
		return 0
	}
	return rune(unit)
}
