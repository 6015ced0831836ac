package workflows

import (
	"slices"
	"strconv"
	"strings"
)

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

// ReadsFiles reports whether rendering reads a file, so that doing it again may
// yield another text. A nil Template reads none.
func (t *Template) ReadsFiles() bool {
	return t != nil && slices.ContainsFunc(t.refs(), func(r ref) bool { return slices.Contains(r.filters, filterReadFile) })
}

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
