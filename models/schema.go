package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

// A node of a schema is a JSON value whose objects keep the order of their members:
// models write the members of an answer in the order in which the schema has them.
type node struct {
	members []member // of an object
	items   []*node  // of an array
	scalar  json.RawMessage
	kind    json.Delim // '{', '[' or 0
}

type member struct {
	name  string
	value *node
}

// maxDepth bounds the nesting of a schema.
const maxDepth = 64

var errDeep = errors.New("schema is nested too deep")

func parseNode(raw json.RawMessage) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	n, err := readNode(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("schema: more than one JSON value")
	}
	return n, nil
}

func readNode(d *json.Decoder, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := t.(json.Delim)
	if !ok {
		b, err := json.Marshal(t)
		return &node{scalar: b}, err
	}
	n := &node{kind: delim}
	for d.More() {
		name := ""
		if delim == '{' {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			if name, ok = k.(string); !ok {
				return nil, errors.New("schema: a member without a name")
			}
		}
		v, err := readNode(d, depth+1)
		if err != nil {
			return nil, err
		}
		if delim == '{' {
			n.members = append(n.members, member{name, v})
		} else {
			n.items = append(n.items, v)
		}
	}
	_, err = d.Token()
	return n, err
}

// MarshalJSON writes the value as it is.
func (n *node) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := n.write(&b)
	return b.Bytes(), err
}

func (n *node) write(b *bytes.Buffer) error {
	switch n.kind {
	case '{':
		b.WriteByte('{')
		for i, m := range n.members {
			if i > 0 {
				b.WriteByte(',')
			}
			k, err := json.Marshal(m.name)
			if err != nil {
				return err
			}
			b.Write(k)
			b.WriteByte(':')
			if err := m.value.write(b); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	case '[':
		b.WriteByte('[')
		for i, v := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := v.write(b); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	default:
		b.Write(n.scalar)
	}
	return nil
}

func (n *node) get(name string) *node {
	if n == nil {
		return nil
	}
	for _, m := range n.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func (n *node) set(name string, v *node) {
	for i := range n.members {
		if n.members[i].name == name {
			n.members[i].value = v
			return
		}
	}
	n.members = append(n.members, member{name, v})
}

func (n *node) is(scalar string) bool { return n != nil && n.kind == 0 && string(n.scalar) == scalar }

// str is the text of a string node.
func (n *node) str() string {
	var s string
	if n == nil || json.Unmarshal(n.scalar, &s) != nil {
		return ""
	}
	return s
}

func (n *node) names() []string {
	if n == nil {
		return nil
	}
	out := make([]string, len(n.members))
	for i, m := range n.members {
		out[i] = m.name
	}
	return out
}

func stringNode(s string) *node {
	b, err := json.Marshal(s)
	if err != nil {
		b = []byte(`""`)
	}
	return &node{scalar: b}
}

// subschemas calls visit for the schemas right below n.
func (n *node) subschemas(visit func(*node)) {
	for _, m := range n.members {
		switch m.name {
		case "properties", "$defs", "definitions", "patternProperties", "dependentSchemas":
			for _, p := range m.value.members {
				visit(p.value)
			}
		case "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems":
			if m.value.kind == '[' { // items of draft 7
				for _, v := range m.value.items {
					visit(v)
				}
			} else {
				visit(m.value)
			}
		case "anyOf", "oneOf", "allOf", "prefixItems":
			for _, v := range m.value.items {
				visit(v)
			}
		}
	}
}

// hasType tells whether a schema's type is or includes the given one.
func (n *node) hasType(name string) bool {
	t := n.get("type")
	if t == nil {
		return false
	}
	if t.kind == '[' {
		return slices.ContainsFunc(t.items, func(v *node) bool { return v.str() == name })
	}
	return t.str() == name
}

// isObject tells whether a schema is of objects: what all APIs want at the root.
func (n *node) isObject() bool { return n != nil && n.kind == '{' && n.get("type").str() == "object" }

// strict tells whether OpenAI's strict mode takes a schema as it is: each object
// closed and each property required, and no keyword outside its subset.
func (n *node) strict() bool {
	if n.kind != '{' {
		return false
	}
	if n.hasType("object") {
		required := n.get("required")
		if !n.get("additionalProperties").is("false") {
			return false
		}
		for _, name := range n.get("properties").names() {
			if required == nil || !slices.ContainsFunc(required.items, func(v *node) bool { return v.str() == name }) {
				return false
			}
		}
	}
	for _, name := range n.names() {
		if !keyword(name, "type properties required additionalProperties items enum const anyOf $defs definitions $ref title description"+
			" pattern format multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minItems maxItems") {
			return false
		}
	}
	ok := true
	n.subschemas(func(s *node) { ok = ok && (s.is("false") || s.strict()) })
	return ok
}

// closed narrows a schema to what Anthropic takes: objects are closed, and keywords
// that it does not know are left out, since the reply is checked against the whole
// schema in any case. It reports whether what is left can stand for the schema.
func (n *node) closed() bool {
	if n.kind != '{' {
		return n.kind == 0
	}
	if n.get("$ref") != nil && !strings.HasPrefix(n.get("$ref").str(), "#/$defs/") && !strings.HasPrefix(n.get("$ref").str(), "#/definitions/") {
		return false
	}
	if n.hasType("object") || n.get("properties") != nil {
		extra := n.get("additionalProperties")
		if n.get("properties") == nil && !extra.is("false") || extra != nil && extra.kind == '{' && len(extra.members) > 0 {
			return false // a map: closed, it could hold nothing
		}
		n.set("additionalProperties", &node{scalar: json.RawMessage("false")})
	}
	n.keep("type properties required additionalProperties items enum const anyOf allOf $defs definitions $ref title description default format minItems")
	if m := n.get("minItems"); m != nil && !m.is("0") && !m.is("1") {
		n.drop("minItems")
	}
	if !keyword(n.get("format").str(), "date-time time date duration email hostname uri ipv4 ipv6 uuid") {
		n.drop("format")
	}
	ok := len(n.members) > 0
	n.subschemas(func(s *node) { ok = ok && (s.is("false") || s.kind == '{' && s.closed()) })
	return ok
}

// geminiSubset leaves out what Gemini does not know, and says in which order the
// members of an object are to be written.
func (n *node) geminiSubset() bool {
	if n.kind != '{' {
		return false
	}
	for i := range n.members {
		if n.members[i].name == "oneOf" {
			n.members[i].name = "anyOf"
		}
	}
	if c := n.get("const"); c != nil && n.get("enum") == nil {
		n.set("enum", &node{kind: '[', items: []*node{c}})
	}
	n.keep("$id $defs $ref $anchor type format title description enum items prefixItems minItems maxItems minimum maximum anyOf properties additionalProperties required")
	if p := n.get("properties"); p != nil {
		order := &node{kind: '['}
		for _, name := range p.names() {
			order.items = append(order.items, stringNode(name))
		}
		n.set("propertyOrdering", order)
	}
	ok := len(n.members) > 0
	n.subschemas(func(s *node) { ok = ok && (s.kind == 0 || s.geminiSubset()) })
	return ok
}

func (n *node) keep(names string) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool { return !keyword(m.name, names) })
}

func (n *node) drop(name string) {
	n.members = slices.DeleteFunc(n.members, func(m member) bool { return m.name == name })
}

func keyword(name, names string) bool {
	for n := range strings.FieldsSeq(names) {
		if n == name {
			return true
		}
	}
	return false
}

// top is the root of an object schema as the SDKs want it: a map, whose values keep
// their order.
func (n *node) top() map[string]any {
	out := make(map[string]any, len(n.members))
	for _, m := range n.members {
		out[m.name] = m.value
	}
	return out
}

// toolSchema is a tool's input schema as the SDKs want it; what is no object schema is
// one without constraints.
func toolSchema(raw json.RawMessage) *node {
	n, err := parseNode(raw)
	if err != nil || n.kind != '{' {
		n = &node{kind: '{'}
	}
	if !n.isObject() {
		n.set("type", stringNode("object"))
	}
	return n
}

// schemaPrompt asks for a reply by a schema where the provider cannot enforce it.
func schemaPrompt(system string, schema json.RawMessage) string {
	const ask = "Reply with one JSON value and nothing else, without a code fence. It must be valid by this JSON Schema:\n"
	var b bytes.Buffer
	if json.Compact(&b, schema) != nil {
		b.Reset()
		b.Write(schema)
	}
	if system != "" {
		system += "\n\n"
	}
	return system + ask + b.String()
}
