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

// Names of the filters of format 1.7.
const (
	filterReadFile = "read_file"
	filterJSON     = "json"
	filterLength   = "length"
	filterDefault  = "default"
)

// Kinds of a ref.
const (
	refInputs  = "inputs"
	refCtx     = "ctx"
	refOutput  = "output"
	refRun     = "run"
	refSecrets = "secrets"
)

// A Template is a parsed string with {{ }} references (format 1.7). It is
// immutable and safe for use from many goroutines.
type Template struct {
	source string
	parts  []part
}

// Source is the authored text.
func (t *Template) Source() string { return t.source }

// A part is literal text, or a reference when use is not nil.
type part struct {
	text string
	use  *use
}

// A use is one {{ }}.
type use struct {
	kind    string
	name    string
	path    []step
	filters []filter
	offset  int
}

// A step is one segment of a path: a key, or an index that on an object is a key too.
type step struct {
	key     string
	index   int
	isIndex bool
}

type filter struct {
	name     string
	fallback string // of default
}

// A ref is what one {{ }} of a template refers to, without its path.
type ref struct {
	kind    string   // inputs, ctx, output, run, secrets
	name    string   // of the input, context entry, node or secret; "id" for run
	filters []string // names, in order
	offset  int      // of the {{ in the template's source
}

// refs lists the references in the order of the text.
func (t *Template) refs() []ref {
	var out []ref
	for _, p := range t.parts {
		if p.use == nil {
			continue
		}
		r := ref{kind: p.use.kind, name: p.use.name, offset: p.use.offset}
		for _, f := range p.use.filters {
			r.filters = append(r.filters, f.name)
		}
		out = append(out, r)
	}
	return out
}

// String is the reference as messages name it, without its filters.
func (u *use) String() string {
	var b strings.Builder
	switch u.kind {
	case refOutput:
		b.WriteString("run.outputs[" + string(quoteString(u.name)) + "]")
	default:
		b.WriteString(u.kind + "." + u.name)
	}
	for _, s := range u.path {
		switch {
		case s.isIndex:
			b.WriteString("[" + s.key + "]")
		case isName(s.key, isPathByte):
			b.WriteString("." + s.key)
		default:
			b.WriteString("[" + string(quoteString(s.key)) + "]")
		}
	}
	return b.String()
}

// A templateError is a template that cannot be parsed. It does not quote the text.
type templateError struct {
	offset int // in bytes, of the place in the template's source
	what   string
}

func (e *templateError) Error() string { return e.what }

// parseTemplate parses an authored string; the error is a *templateError. A string
// without {{ is a Template without refs.
func parseTemplate(src string) (*Template, error) {
	t := &Template{source: src}
	for pos := 0; ; {
		open := strings.Index(src[pos:], "{{")
		if open < 0 {
			if pos < len(src) {
				t.parts = append(t.parts, part{text: src[pos:]})
			}
			return t, nil
		}
		if open > 0 {
			t.parts = append(t.parts, part{text: src[pos : pos+open]})
		}
		p := &templateParser{src: src, pos: pos + open + 2}
		u, err := p.use()
		if err != nil {
			return nil, err
		}
		u.offset = pos + open
		t.parts = append(t.parts, part{use: u})
		pos = p.pos
	}
}

type templateParser struct {
	src string
	pos int
}

func (p *templateParser) fail(what string) error {
	return &templateError{offset: p.pos, what: what}
}

func (p *templateParser) space() {
	for p.pos < len(p.src) && strings.IndexByte(" \t\r\n", p.src[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *templateParser) take(token string) bool {
	if !strings.HasPrefix(p.src[p.pos:], token) {
		return false
	}
	p.pos += len(token)
	return true
}

func (p *templateParser) name(ok func(byte) bool) string {
	start := p.pos
	for p.pos < len(p.src) && ok(p.src[p.pos]) {
		p.pos++
	}
	return p.src[start:p.pos]
}

func isName(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return s != ""
}

// isNameByte is the charset of names of inputs and context entries.
func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func isPathByte(c byte) bool { return isNameByte(c) || c == '$' }

// isSecretByte is isNameByte and the dot, which names of secrets may have.
func isSecretByte(c byte) bool { return isNameByte(c) || c == '.' }

// use reads the inside of a {{ }} and its closing braces.
func (p *templateParser) use() (*use, error) {
	p.space()
	u, err := p.head()
	if err != nil {
		return nil, err
	}
	if u.kind == refInputs || u.kind == refCtx || u.kind == refOutput {
		if u.path, err = p.path(); err != nil {
			return nil, err
		}
	}
	for {
		p.space()
		switch {
		case p.take("}}"):
			return u, nil
		case p.take("|"):
			f, err := p.filter()
			if err != nil {
				return nil, err
			}
			u.filters = append(u.filters, f)
		case !strings.Contains(p.src[p.pos:], "}}"):
			return nil, p.fail("{{ without }}")
		default:
			return nil, p.fail("expected | and a filter, or }}")
		}
	}
}

func (p *templateParser) head() (*use, error) {
	const known = `inputs.NAME, ctx.NAME, run.outputs["NODE"], run.id and secrets.NAME`
	start := p.pos
	switch {
	case p.take("inputs."):
		return p.named(refInputs, isNameByte)
	case p.take("ctx."):
		return p.named(refCtx, isNameByte)
	case p.take("secrets."):
		return p.named(refSecrets, isSecretByte)
	case p.take("run.outputs["):
		p.space()
		node, err := p.quoted()
		if err != nil {
			return nil, err
		}
		p.space()
		if !p.take("]") {
			return nil, p.fail("expected ]")
		}
		return &use{kind: refOutput, name: node}, nil
	case p.take("run."):
		if p.name(isPathByte) != "id" {
			p.pos = start
			return nil, p.fail("unknown reference; known are " + known)
		}
		return &use{kind: refRun, name: "id"}, nil
	case p.take("}}"):
		p.pos = start
		return nil, p.fail("empty reference; known are " + known)
	case !strings.Contains(p.src[p.pos:], "}}"):
		return nil, p.fail("{{ without }}")
	default:
		return nil, p.fail("unknown namespace; known are " + known)
	}
}

func (p *templateParser) named(kind string, ok func(byte) bool) (*use, error) {
	name := p.name(ok)
	if name == "" {
		return nil, p.fail("expected a name of letters, digits, _ and -")
	}
	return &use{kind: kind, name: name}, nil
}

func (p *templateParser) path() ([]step, error) {
	var path []step
	for {
		switch {
		case p.take("."):
			key := p.name(isPathByte)
			if key == "" {
				return nil, p.fail("expected a name after the dot")
			}
			path = append(path, step{key: key})
		case p.take("["):
			s, err := p.bracket()
			if err != nil {
				return nil, err
			}
			path = append(path, s)
		default:
			return path, nil
		}
	}
}

func (p *templateParser) bracket() (step, error) {
	p.space()
	var s step
	if digits := p.name(func(c byte) bool { return c >= '0' && c <= '9' }); digits != "" {
		index, err := strconv.Atoi(digits)
		if err != nil || len(digits) > 1 && digits[0] == '0' {
			return step{}, p.fail("bad index")
		}
		s = step{key: digits, index: index, isIndex: true}
	} else {
		key, err := p.quoted()
		if err != nil {
			return step{}, err
		}
		s = step{key: key}
	}
	p.space()
	if !p.take("]") {
		return step{}, p.fail("expected ]")
	}
	return s, nil
}

// quoted reads a string in double or single quotes with the escapes of JSON, and \'.
func (p *templateParser) quoted() (string, error) {
	start := p.pos
	if p.pos == len(p.src) || p.src[p.pos] != '"' && p.src[p.pos] != '\'' {
		return "", p.fail("expected a quoted string")
	}
	quote := p.src[p.pos]
	asJSON := []byte{'"'}
	for p.pos++; p.pos < len(p.src); p.pos++ {
		switch c := p.src[p.pos]; {
		case c == quote:
			p.pos++
			text, ok := stringValue(append(asJSON, '"'))
			if !ok {
				p.pos = start
				return "", p.fail("bad escape in a quoted string")
			}
			return text, nil
		case c == '\\' && p.pos+1 < len(p.src):
			p.pos++
			if p.src[p.pos] != '\'' {
				asJSON = append(asJSON, '\\')
			}
			asJSON = append(asJSON, p.src[p.pos])
		case c == '"':
			asJSON = append(asJSON, '\\', '"')
		default:
			asJSON = append(asJSON, c)
		}
	}
	p.pos = start
	return "", p.fail("a quoted string without its end")
}

func (p *templateParser) filter() (filter, error) {
	p.space()
	start := p.pos
	switch name := p.name(isNameByte); name {
	case filterReadFile, filterJSON, filterLength:
		p.space()
		if strings.HasPrefix(p.src[p.pos:], "(") {
			return filter{}, p.fail("the filter " + name + " takes no argument")
		}
		return filter{name: name}, nil
	case filterDefault:
		p.space()
		if !p.take("(") {
			return filter{}, p.fail(`the filter default needs a quoted string: default("...")`)
		}
		p.space()
		text, err := p.quoted()
		if err != nil {
			return filter{}, err
		}
		p.space()
		if !p.take(")") {
			return filter{}, p.fail("expected )")
		}
		return filter{name: name, fallback: text}, nil
	default:
		p.pos = start
		return filter{}, p.fail(`unknown filter; known are read_file, json, length and default("...")`)
	}
}

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
			return "", errRenderSize{}
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

type errRenderSize struct{}

func (errRenderSize) Error() string { return "the rendered template is over 4 MiB" }

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
	text, err := Compact(value.raw)
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

type errFilter string

func (e errFilter) Error() string { return string(e) }

func (f filter) apply(value datum, s Scope) (datum, error) {
	switch f.name {
	case filterReadFile:
		return readFile(value, s)
	case filterJSON:
		if value.isText {
			return textDatum(string(quoteString(value.text))), nil
		}
		text, err := Compact(value.raw)
		return textDatum(string(text)), err
	default:
		n, err := lengthOf(value)
		return datum{raw: json.RawMessage(strconv.Itoa(n))}, err
	}
}

func readFile(path datum, s Scope) (datum, error) {
	if !path.isText {
		return datum{}, errFilter("the path is of type " + path.kind() + ", not string")
	}
	if s.ReadFile == nil {
		return datum{}, errFilter("files cannot be read here")
	}
	if err := CheckPath(path.text); err != nil {
		return datum{}, err
	}
	content, err := s.ReadFile(path.text)
	switch {
	case err != nil:
		return datum{}, err
	case len(content) > maxRenderBytes:
		return datum{}, errFilter("the file is over 4 MiB")
	case !utf8.Valid(content):
		return datum{}, errFilter("the file is not UTF-8 text")
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
		return 0, errFilter("a value of type " + kind + " has no length")
	}
}
