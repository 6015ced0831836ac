package workflows

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Bounds of an authored schema: what a validator can evaluate in a time that hangs
// on the size of the value alone.
const (
	maxSchemaBytes     = 1 << 20
	maxSchemaDepth     = 32
	maxSubschemas      = 2000
	maxSchemaExpansion = 20_000
	maxSchemaPatterns  = 64
	maxSchemaPattern   = 512 // bytes of one pattern
)

// A schemaError is what keeps an authored schema from being used.
type schemaError struct {
	at     string // JSON pointer with a leading #
	what   string
	remedy string
}

func (e *schemaError) Error() string { return "at " + e.at + ": " + e.what + "; " + e.remedy }

// schemaWords are the keywords of a schema that matter to whoever embeds it.
type schemaWords map[string]bool

// selfContained tells that the schema means the same wherever it stands.
func (u schemaWords) selfContained() bool {
	return !u["$ref"] && !u["$id"] && !u["$schema"]
}

// admitSchema reads a schema strictly and refuses what the validator could not
// evaluate safely. It returns the decoded document and the keywords of note.
func admitSchema(raw json.RawMessage) (doc any, used schemaWords, err error) {
	if len(raw) > maxSchemaBytes {
		return nil, nil, &schemaError{"#", "the schema is over 1 MiB", "write a smaller one"}
	}
	compact, err := Compact(raw)
	if err != nil {
		return nil, nil, &schemaError{"#", err.Error(), "write it as JSON values"}
	}
	decoder := json.NewDecoder(bytes.NewReader(compact))
	decoder.UseNumber()
	if err := decoder.Decode(&doc); err != nil {
		return nil, nil, &schemaError{"#", "not JSON", "write it as JSON values"}
	}
	w := &schemaWalk{nodes: map[string]*schemaNode{}, used: schemaWords{}}
	if err := w.dialect(doc); err != nil {
		return nil, nil, err
	}
	root, err := w.build(doc, "#", 0)
	if err != nil {
		return nil, nil, err
	}
	if err := w.link(); err != nil {
		return nil, nil, err
	}
	if err := w.expand(root, nil); err != nil {
		return nil, nil, err
	}
	return doc, w.used, nil
}

// A schemaNode is one subschema.
type schemaNode struct {
	at    string
	ref   string
	edges []schemaEdge
	// While the node is being expanded: where in the instance, and by which paths
	// it was met again below.
	open       bool
	depth      int
	recursions [][]string
}

// A schemaEdge leads to a subschema that applies to the same place of the instance
// (slot is "") or to the child of it that slot names; "p*" and "i*" are any member
// and any element.
type schemaEdge struct {
	to   *schemaNode
	slot string
}

type schemaWalk struct {
	nodes    map[string]*schemaNode
	used     schemaWords
	patterns int
	expanded int
	draft07  bool
}

func (w *schemaWalk) dialect(doc any) error {
	object, ok := doc.(map[string]any)
	if !ok {
		return nil
	}
	dialect, ok := object["$schema"]
	if !ok {
		return nil
	}
	name, _ := dialect.(string)
	switch strings.TrimSuffix(name, "#") {
	case "https://json-schema.org/draft/2020-12/schema":
	case "https://json-schema.org/draft/2019-09/schema":
		w.used["$schema"] = true
	case "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft-07/schema", "http://json-schema.org/draft-06/schema":
		w.used["$schema"] = true
		w.draft07 = true
	default:
		return &schemaError{"#/$schema", "a dialect that is not known here", "leave $schema out; 2020-12, 2019-09, draft-07 and draft-06 are known"}
	}
	return nil
}

// slotOf tells how a keyword whose value is one schema applies it.
func slotOf(keyword string) (slot string, ok bool) {
	switch keyword {
	case "not", "if", "then", "else":
		return "", true
	case "additionalProperties", "unevaluatedProperties":
		return "p*", true
	case "items", "contains", "unevaluatedItems", "additionalItems":
		return "i*", true
	case "propertyNames":
		return "n*", true
	default:
		return "", false
	}
}

func (w *schemaWalk) build(v any, at string, depth int) (*schemaNode, error) {
	if depth > maxSchemaDepth {
		return nil, &schemaError{at, "the schema is more than 32 deep", "flatten it"}
	}
	if len(w.nodes) == maxSubschemas {
		return nil, &schemaError{at, "more than 2000 subschemas", "write a smaller schema"}
	}
	n := &schemaNode{at: at}
	w.nodes[at] = n
	object, ok := v.(map[string]any)
	if !ok {
		if _, ok := v.(bool); ok {
			return n, nil
		}
		return nil, &schemaError{at, "a schema is an object, true or false", "write one of them"}
	}
	for _, keyword := range slices.Sorted(maps.Keys(object)) {
		if err := w.keyword(n, keyword, object[keyword], depth); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (w *schemaWalk) keyword(n *schemaNode, keyword string, v any, depth int) error {
	at := n.at + "/" + escapePointer(keyword)
	if w.refused(n, keyword) {
		return &schemaError{at, "the keyword " + keyword + " is not supported here", "write the schema without it"}
	}
	switch keyword {
	case "$id":
		w.used["$id"] = true
		return nil
	case "$ref":
		w.used["$ref"] = true
		ref, _ := v.(string)
		if ref != "#" && !strings.HasPrefix(ref, "#/$defs/") && !strings.HasPrefix(ref, "#/definitions/") && !strings.HasPrefix(ref, "#/properties/") {
			return &schemaError{at, "a $ref that leaves the schema", "refer to #/$defs/NAME only"}
		}
		n.ref = ref
		return nil
	case "pattern":
		pattern, _ := v.(string)
		return w.pattern(pattern, at)
	case "allOf", "anyOf", "oneOf":
		return w.list(n, v, at, "", depth)
	case "prefixItems":
		return w.list(n, v, at, "i*", depth)
	case "properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "dependencies":
		return w.named(n, keyword, v, at, depth)
	case "items":
		if _, isList := v.([]any); isList && w.draft07 {
			return w.list(n, v, at, "i*", depth)
		}
	}
	if slot, ok := slotOf(keyword); ok {
		return w.child(n, v, at, slot, depth)
	}
	return nil // an assertion on the value itself, or an annotation
}

// refused tells of a keyword that changes how references resolve, or that an author
// would expect to be enforced and that is not.
func (w *schemaWalk) refused(n *schemaNode, keyword string) bool {
	switch keyword {
	case "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary", "$anchor", "$data",
		"divisibleBy", "extends", "disallow":
		return true
	case "$id":
		return n.at != "#"
	case "dependencies", "additionalItems":
		return !w.draft07
	default:
		return false
	}
}

func (w *schemaWalk) pattern(pattern, at string) error {
	w.patterns++
	switch {
	case w.patterns > maxSchemaPatterns:
		return &schemaError{at, "more than 64 patterns", "use fewer"}
	case len(pattern) > maxSchemaPattern:
		return &schemaError{at, "a pattern of more than 512 bytes", "write a shorter one"}
	}
	if _, err := compilePattern(pattern); err != nil {
		return &schemaError{at, "the pattern cannot be used: " + err.Error(), "write it without look-around, back-references and flags"}
	}
	return nil
}

// child adds a subschema; the slot "-" is that of a definition, which applies only
// where it is referred to.
func (w *schemaWalk) child(n *schemaNode, v any, at, slot string, depth int) error {
	to, err := w.build(v, at, depth+1)
	if err == nil && slot != "-" {
		n.edges = append(n.edges, schemaEdge{to: to, slot: slot})
	}
	return err
}

func (w *schemaWalk) list(n *schemaNode, v any, at, slot string, depth int) error {
	list, ok := v.([]any)
	if !ok {
		return &schemaError{at, "not a list of schemas", "write a list"}
	}
	for i, v := range list {
		if err := w.child(n, v, at+"/"+strconv.Itoa(i), slot, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *schemaWalk) named(n *schemaNode, keyword string, v any, at string, depth int) error {
	object, ok := v.(map[string]any)
	if !ok {
		return &schemaError{at, "not an object of schemas", "write an object"}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		v, at := object[name], at+"/"+escapePointer(name)
		var slot string
		switch keyword {
		case "properties":
			slot = "p:" + name
		case "patternProperties":
			if err := w.pattern(name, at); err != nil {
				return err
			}
			slot = "p*"
		case "$defs", "definitions":
			slot = "-"
		case "dependencies":
			if _, isList := v.([]any); isList {
				continue
			}
		}
		if err := w.child(n, v, at, slot, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *schemaWalk) link() error {
	for _, at := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[at]
		if n.ref == "" {
			continue
		}
		to, ok := w.nodes[n.ref]
		if !ok {
			return &schemaError{at + "/$ref", "a $ref to nothing", "define what it names below $defs"}
		}
		n.edges = append(n.edges, schemaEdge{to: to})
	}
	return nil
}

// expand walks the schema as a validator would; slots lead from the root of the
// instance. A schema may recur below itself by one path for each child of the
// instance: two would double the work at every level.
func (w *schemaWalk) expand(n *schemaNode, slots []string) error {
	if w.expanded++; w.expanded > maxSchemaExpansion {
		return &schemaError{n.at, "more than 20000 subschemas once every $ref is followed", "refer less often"}
	}
	n.open, n.depth, n.recursions = true, len(slots), nil
	defer func() { n.open = false }()
	for _, e := range n.edges {
		below := slots
		if e.slot != "" {
			below = append(slices.Clip(slots), e.slot)
		}
		if !e.to.open {
			if err := w.expand(e.to, below); err != nil {
				return err
			}
			continue
		}
		path := below[e.to.depth:]
		if len(path) == 0 {
			return &schemaError{n.at, "a $ref that leads back to itself", "let it recur below a property or an element only"}
		}
		if e.to.recursesTwice(path) {
			return &schemaError{n.at, "a schema that recurs twice in one place", "let it recur by one path"}
		}
		e.to.recursions = append(e.to.recursions, path)
	}
	return nil
}

// recursesTwice tells whether a further path of recursion could lead to a child that
// the others lead to already, also when one of them is walked several times.
func (n *schemaNode) recursesTwice(path []string) bool {
	all := append(slices.Clip(n.recursions), path)
	for _, other := range n.recursions {
		short, long := other, path
		if len(short) > len(long) {
			short, long = long, short
		}
		if !slices.EqualFunc(short, long[:len(short)], slotsOverlap) {
			continue
		}
		rest := long[len(short):]
		if len(rest) == 0 || slices.ContainsFunc(all, func(p []string) bool { return slotsOverlap(p[0], rest[0]) }) {
			return true
		}
	}
	return false
}

// slotsOverlap tells whether two slots can name the same child.
func slotsOverlap(a, b string) bool {
	return a == b || a[0] == b[0] && (a[1] == '*' || b[1] == '*')
}
