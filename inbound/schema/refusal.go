package schema

import (
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/inbound/text"
)

// A Reason says in one word of a closed list why a schema is refused.
type Reason string

// The reasons.
const (
	NotJSON   Reason = "schema_not_json"  // not strict JSON: a name twice, a lone surrogate, too deep, a number out of bounds
	Size      Reason = "schema_size"      // over 1 MiB
	Root      Reason = "schema_root"      // not the schema of an object
	Dialect   Reason = "schema_dialect"   // a $schema that is not known here
	Reference Reason = "schema_ref"       // a $ref that leaves the schema, or leads nowhere or back to itself
	Keyword   Reason = "schema_keyword"   // a keyword that would not be enforced
	Shape     Reason = "schema_invalid"   // not a JSON Schema of its dialect
	Depth     Reason = "schema_depth"     // subschemas nested too deep
	Count     Reason = "schema_count"     // too many subschemas
	Expansion Reason = "schema_expansion" // too many once every $ref is followed
	Recursion Reason = "schema_recursion" // recurs by more than one path
	Pattern   Reason = "schema_pattern"   // a pattern that RE2 cannot match, or too large
	Text      Reason = "schema_text"      // a control or invisible character where text has meaning
	Literal   Reason = "schema_literal"   // a string that is too long
	Name      Reason = "schema_name"      // a property name that is too long
	Time      Reason = "schema_time"      // takes too long to compile
)

// A RefusedError says why a schema is not used. Its text is safe to show: it quotes
// names of the schema only, escaped and cut.
type RefusedError struct {
	Reason Reason
	At     string // JSON pointer with a leading #
	What   string
}

func (e *RefusedError) Error() string {
	return string(e.Reason) + " at " + e.At + ": " + e.What
}

// A place is where a part of a schema stands; it is written only when something is
// wrong there.
type place struct {
	above *place
	name  string
}

func (p *place) below(name string) *place { return &place{above: p, name: name} }

// String is the JSON pointer of the place, at most some 300 bytes of it, safe to show.
func (p *place) String() string {
	const limit = 300
	var names []string
	for at := p; at.above != nil; at = at.above {
		names = append(names, at.name)
	}
	var b strings.Builder
	b.WriteByte('#')
	for _, name := range slices.Backward(names) {
		if b.Len() > limit {
			b.WriteString("/…")
			break
		}
		b.WriteString("/" + text.Escape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name), limit/2))
	}
	return b.String()
}

func (p *place) refuse(reason Reason, what string) error {
	return &RefusedError{Reason: reason, At: p.String(), What: what}
}
