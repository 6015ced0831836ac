package schema

import (
	"bytes"
	"encoding/json"
	"strings"
)

type kind byte

const (
	literalKind kind = iota // true, false, null
	stringKind
	numberKind
	arrayKind
	objectKind
)

// A value is one JSON value as it was written: members in order, numbers by their
// digits.
type value struct {
	kind  kind
	text  string   // of a string, decoded; of a number or literal, as written
	names []string // of an object
	items []*value // of an array or an object
}

func (v *value) member(name string) *value {
	for i := range v.names {
		if v.names[i] == name {
			return v.items[i]
		}
	}
	return nil
}

// A reader takes apart JSON that workflows.Compact wrote: it is known to be well
// formed, without white space and within the bounds of depth.
type reader struct {
	src []byte
	pos int
}

func parse(compact []byte) *value {
	r := &reader{src: compact}
	return r.value()
}

func (r *reader) value() *value {
	switch r.src[r.pos] {
	case '{':
		v := &value{kind: objectKind}
		for r.src[r.pos] != '}' {
			if r.pos++; r.src[r.pos] == '}' {
				break
			}
			v.names = append(v.names, r.text())
			r.pos++ // the colon
			v.items = append(v.items, r.value())
		}
		r.pos++
		return v
	case '[':
		v := &value{kind: arrayKind}
		for r.src[r.pos] != ']' {
			if r.pos++; r.src[r.pos] == ']' {
				break
			}
			v.items = append(v.items, r.value())
		}
		r.pos++
		return v
	case '"':
		return &value{kind: stringKind, text: r.text()}
	default:
		start := r.pos
		for r.pos < len(r.src) && strings.IndexByte(",]}", r.src[r.pos]) < 0 {
			r.pos++
		}
		v := &value{kind: literalKind, text: string(r.src[start:r.pos])}
		if c := v.text[0]; c == '-' || c >= '0' && c <= '9' {
			v.kind = numberKind
		}
		return v
	}
}

func (r *reader) text() string {
	start := r.pos
	escaped := false
	for r.pos++; r.src[r.pos] != '"'; r.pos++ {
		if r.src[r.pos] == '\\' {
			escaped = true
			r.pos++
		}
	}
	r.pos++
	if !escaped {
		return string(r.src[start+1 : r.pos-1])
	}
	var text string
	_ = json.Unmarshal(r.src[start:r.pos], &text) // known to be well formed
	return text
}

// decoded is the value as the validator takes it.
func (v *value) decoded() any {
	switch v.kind {
	case objectKind:
		m := make(map[string]any, len(v.names))
		for i, name := range v.names {
			m[name] = v.items[i].decoded()
		}
		return m
	case arrayKind:
		a := make([]any, len(v.items))
		for i := range v.items {
			a[i] = v.items[i].decoded()
		}
		return a
	case stringKind:
		return v.text
	case numberKind:
		return json.Number(v.text)
	case literalKind:
		switch v.text {
		case "true":
			return true
		case "false":
			return false
		}
	}
	return nil
}

// write writes the value as compact JSON.
func (v *value) write(b *bytes.Buffer) {
	switch v.kind {
	case objectKind:
		b.WriteByte('{')
		for i, name := range v.names {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(b, name)
			b.WriteByte(':')
			v.items[i].write(b)
		}
		b.WriteByte('}')
	case arrayKind:
		b.WriteByte('[')
		for i := range v.items {
			if i > 0 {
				b.WriteByte(',')
			}
			v.items[i].write(b)
		}
		b.WriteByte(']')
	case stringKind:
		quote(b, v.text)
	case numberKind, literalKind:
		b.WriteString(v.text)
	}
}

func quote(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string in memory
	b.Truncate(b.Len() - 1)
}
