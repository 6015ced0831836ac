package schema

import (
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of a server's schema.
const (
	maxBytes      = 1 << 20 // of canonical JSON
	maxDepth      = 32      // subschemas below each other
	maxSubschemas = 2000
	maxExpansion  = 20_000  // subschemas once every $ref is followed
	maxCompared   = 1 << 20 // steps of paths that are compared to find recursions
	maxLiteral    = 4 << 10 // bytes of one string that has meaning
	maxProse      = 8 << 10 // bytes of one title or description, once cleaned
	maxName       = 256     // bytes of one property name
	maxIgnored    = 32      // unknown keywords that a report names
	maxValues     = 50_000  // of any kind
)

// A Report is what is known of an admitted schema.
type Report struct {
	Bytes      int      // of its canonical JSON
	Subschemas int      // true and false included
	Ignored    []string // keywords that are not enforced, sorted, escaped, at most 32
}

// A node is one subschema.
type node struct {
	at    *place
	ref   string
	edges []edge

	// While the node is being expanded.
	open  bool
	slot  *slot     // by which it was entered
	again [][]*slot // the paths by which it was met again below
}

// An edge leads to a subschema that applies at the slot.
type edge struct {
	to   *node
	slot string
}

// A walker reads one schema.
type walker struct {
	root     *value
	draft    draft
	nodes    map[*value]*node
	order    []*node // as they were met
	refs     []*node // those that refer to another
	patterns patterns
	ignored  map[string]struct{}
	expanded int
	compared int
}

// Heavy tells whether JSON text, well formed or not, is more than is read of a
// server's definitions: over 1 MiB, or more than some 50,000 values, which take
// many times their text to hold.
func Heavy(raw []byte) bool {
	if len(raw) > maxBytes {
		return true
	}
	values := 1
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case ',', '[', '{':
			values++
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		}
	}
	return values > maxValues
}

// admit reads a schema strictly and refuses what the validator could not evaluate
// safely or would not enforce. It returns the tree with presentation text cleaned,
// and the patterns, compiled.
func admit(raw json.RawMessage) (*walker, Report, error) {
	top := &place{}
	if len(raw) > maxBytes {
		return nil, Report{}, top.refuse(Size, "more than 1 MiB")
	}
	if Heavy(raw) {
		return nil, Report{}, top.refuse(Count, "more than 50000 values")
	}
	compact, err := workflows.Compact(raw)
	if err != nil {
		return nil, Report{}, top.refuse(NotJSON, err.Error())
	}
	w := &walker{root: parse(compact), draft: draft2020, nodes: map[*value]*node{}, patterns: patterns{compiled: map[string]*regexp.Regexp{}}, ignored: map[string]struct{}{}}
	if w.root.kind != objectKind {
		return nil, Report{}, top.refuse(Root, "not an object")
	}
	if t := w.root.member("type"); t != nil && t.text != "object" {
		return nil, Report{}, top.below("type").refuse(Root, `the type of a tool's arguments is "object"`)
	}
	if named := w.root.member("$schema"); named != nil {
		known := false
		if w.draft, known = draftOf(named.text); !known {
			return nil, Report{}, top.below("$schema").refuse(Dialect, "not 2020-12, 2019-09, draft-07 or draft-06")
		}
	}
	start, err := w.schema(w.root, top, 0)
	if err != nil {
		return nil, Report{}, err
	}
	if err := w.link(); err != nil {
		return nil, Report{}, err
	}
	if err := w.expand(start, nil); err != nil {
		return nil, Report{}, err
	}
	report := Report{Bytes: len(compact), Subschemas: len(w.order), Ignored: slices.Sorted(maps.Keys(w.ignored))}
	return w, report, nil
}

// schema reads one subschema.
func (w *walker) schema(v *value, at *place, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, at.refuse(Depth, "more than 32 subschemas below each other")
	}
	if len(w.order) == maxSubschemas {
		return nil, at.refuse(Count, "more than 2000 subschemas")
	}
	n := &node{at: at}
	w.nodes[v] = n
	w.order = append(w.order, n)
	if v.kind == literalKind && v.text != "null" {
		return n, nil
	}
	if v.kind != objectKind {
		return nil, at.refuse(Shape, "a schema is an object, true or false")
	}
	for i, keyword := range v.names {
		if err := w.keyword(n, keyword, v.items[i], depth); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (w *walker) keyword(n *node, keyword string, v *value, depth int) error {
	at := n.at.below(keyword)
	how, slot := usage(keyword, w.draft)
	if how == annotation || !enforced(keyword, w.draft) {
		if len(keyword) > maxName {
			return at.refuse(Name, "a keyword of more than 256 bytes")
		}
		if err := text.Check(keyword); err != nil {
			return at.refuse(Text, "a keyword "+err.Error())
		}
		if len(w.ignored) < maxIgnored {
			w.ignored[text.Escape(keyword, 64)] = struct{}{}
		}
	}
	switch how {
	case refused:
		return at.refuse(Keyword, "not supported")
	case dialect:
		// Another dialect inside would be read by other rules.
		if d, known := draftOf(v.text); !known || d != w.draft {
			return at.refuse(Dialect, "another dialect inside a schema")
		}
		return nil
	case identity:
		if n.at.above != nil {
			return at.refuse(Keyword, "not supported below the top")
		}
	case prose:
		if v.kind == stringKind {
			v.text = text.Clean(v.text)
			if len(v.text) > maxProse {
				return at.refuse(Literal, "more than 8 KiB")
			}
			return nil
		}
	case reference:
		n.ref = v.text
		w.refs = append(w.refs, n)
		if !local(v) {
			return at.refuse(Reference, "leaves the schema; only #, #/$defs/, #/definitions/ and #/properties/ are followed")
		}
	case pattern:
		if v.kind == stringKind {
			if err := w.patterns.add(v.text, at); err != nil {
				return err
			}
		}
	case list:
		return w.list(n, v, at, slot, depth)
	case named:
		return w.named(n, keyword, v, at, slot, depth)
	case one:
		if keyword == "items" && v.kind == arrayKind && w.draft <= draft07 {
			return w.list(n, v, at, slot, depth)
		}
		return w.child(n, v, at, slot, depth)
	case annotation, assertion:
	}
	return checkData(v, at)
}

// local tells whether a $ref stays in the document.
func local(v *value) bool {
	if v.kind != stringKind {
		return false
	}
	return v.text == "#" || strings.HasPrefix(v.text, "#/$defs/") || strings.HasPrefix(v.text, "#/definitions/") || strings.HasPrefix(v.text, "#/properties/")
}

// child adds a subschema.
func (w *walker) child(n *node, v *value, at *place, slot string, depth int) error {
	to, err := w.schema(v, at, depth+1)
	if err == nil && slot != nowhere {
		n.edges = append(n.edges, edge{to: to, slot: slot})
	}
	return err
}

func (w *walker) list(n *node, v *value, at *place, slot string, depth int) error {
	if v.kind != arrayKind {
		return at.refuse(Shape, "not a list of schemas")
	}
	for i := range v.items {
		if err := w.child(n, v.items[i], at.below(strconv.Itoa(i)), slot, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) named(n *node, keyword string, v *value, at *place, slot string, depth int) error {
	if v.kind != objectKind {
		return at.refuse(Shape, "not an object of schemas")
	}
	for i, name := range v.names {
		at, below := at.below(name), v.items[i]
		var err error
		if keyword == "patternProperties" {
			slot = anyMember
			err = w.patterns.add(name, at)
		} else {
			err = checkName(name, at)
		}
		if err != nil {
			return err
		}
		if keyword == "properties" {
			slot = "p:" + name
		}
		if keyword == "dependencies" && below.kind == arrayKind {
			err = checkData(below, at)
		} else {
			err = w.child(n, below, at, slot, depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkName checks a property name, which nobody may rewrite.
func checkName(name string, at *place) error {
	if len(name) > maxName {
		return at.refuse(Name, "a name of more than 256 bytes")
	}
	if err := text.Check(name); err != nil {
		return at.refuse(Text, "a name "+err.Error())
	}
	return nil
}

// checkData checks a value that is compared or sent as it stands: strings and names in
// it are semantic, whatever they are called.
func checkData(v *value, at *place) error {
	switch v.kind {
	case stringKind:
		if len(v.text) > maxLiteral {
			return at.refuse(Literal, "more than 4 KiB")
		}
		if err := text.Check(v.text); err != nil {
			return at.refuse(Text, err.Error())
		}
	case numberKind:
		if !bounded(v.text) {
			return at.refuse(NotJSON, "a number outside 1e-300 to 1e300")
		}
	case arrayKind:
		for i := range v.items {
			if err := checkData(v.items[i], at.below(strconv.Itoa(i))); err != nil {
				return err
			}
		}
	case objectKind:
		for i, name := range v.names {
			at := at.below(name)
			if err := checkName(name, at); err != nil {
				return err
			}
			if err := checkData(v.items[i], at); err != nil {
				return err
			}
		}
	case literalKind:
	}
	return nil
}

// bounded tells whether a validator can compute with a number: it is zero, or its
// magnitude is within 1e-300 and 1e300.
func bounded(number string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	if !strings.ContainsAny(mantissa, "123456789") {
		// A zero may still ask for a power of ten that nobody can hold.
		_, exponent, _ := strings.Cut(strings.ToLower(number), "e")
		n, err := strconv.Atoi(exponent)
		return exponent == "" || err == nil && n >= -300 && n <= 300
	}
	f, err := strconv.ParseFloat(strings.TrimPrefix(number, "-"), 64)
	return err == nil && f >= 1e-300 && f <= 1e300
}

// link follows each $ref to the subschema that it names.
func (w *walker) link() error {
	for _, n := range w.refs {
		to := w.nodes[w.target(n.ref)]
		if to == nil {
			return n.at.below("$ref").refuse(Reference, "names no subschema")
		}
		n.edges = append(n.edges, edge{to: to, slot: inPlace})
	}
	return nil
}

// target is the value that a local reference points to, or nil (RFC 6901, section 6).
func (w *walker) target(ref string) *value {
	pointer, err := url.PathUnescape(strings.TrimPrefix(ref, "#"))
	if err != nil {
		return nil
	}
	v := w.root
	if pointer == "" {
		return v
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		switch v.kind {
		case objectKind:
			v = v.member(token)
		case arrayKind:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v.items) || strconv.Itoa(i) != token {
				return nil
			}
			v = v.items[i]
		case stringKind, numberKind, literalKind:
			return nil
		}
		if v == nil {
			return nil
		}
	}
	return v
}
