package schema

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	kinds "github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/relavium/relavium-serve/workflows"
)

const (
	maxArguments  = 1 << 20
	maxViolations = 8 // named in one error
	maxFound      = 1000
)

// An ArgumentsError is arguments that break a tool's schema. It names places and
// keywords and never a value, so a model and a log may see it.
type ArgumentsError struct {
	Violations []Violation // at most 8, the first ones; at least one
}

// A Violation is one place that breaks a schema.
type Violation struct {
	Path    string // JSON pointer into the arguments; "" is the whole; of a missing member where it should stand
	Keyword string // of the schema, such as "required"
}

func (e *ArgumentsError) Error() string {
	var b strings.Builder
	b.WriteString("the arguments do not fit the tool's schema: ")
	for i, v := range e.Violations {
		if i > 0 {
			b.WriteString("; ")
		}
		if v.Path == "" {
			b.WriteString("at the top")
		} else {
			b.WriteString("at " + v.Path)
		}
		b.WriteString(": " + v.Keyword)
	}
	return b.String()
}

// Validate checks the arguments of a call, which are sent as they are; none at all
// is {}. Arguments that break the schema are an *ArgumentsError; other errors (no
// strict JSON, over 1 MiB or 64 levels, a number outside 1e-300 to 1e300, a schema
// that takes too long) quote nothing either.
func (s *Schema) Validate(arguments json.RawMessage) error {
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	if len(arguments) > maxArguments {
		return errors.New("the arguments are more than 1 MiB")
	}
	compact, err := workflows.Compact(arguments)
	if err != nil {
		return errors.New("the arguments are not strict JSON: " + err.Error())
	}
	v := parse(compact)
	if v.kind != objectKind {
		return &ArgumentsError{Violations: []Violation{{Keyword: "type"}}}
	}
	if !v.numbersBounded() {
		return errors.New("the arguments hold a number outside 1e-300 to 1e300")
	}
	if s.abandoned.Load() > 0 {
		return errOverrun // one evaluation that does not end is enough
	}
	doc := v.decoded()
	check := func() error { return s.compiled.Validate(doc) }
	if s.light(len(compact)) {
		err = recovered(check)
	} else {
		err = guarded(s.limit, &s.abandoned, check)
	}
	if invalid, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		found := violations(invalid)
		e := &ArgumentsError{}
		for _, v := range found[:min(len(found), maxViolations)] {
			e.Violations = append(e.Violations, Violation{Path: pointer(v.path), Keyword: v.keyword})
		}
		return e
	}
	return err
}

func (v *value) numbersBounded() bool {
	if v.kind == numberKind {
		return bounded(v.text)
	}
	for _, item := range v.items {
		if !item.numbersBounded() {
			return false
		}
	}
	return true
}

type violation struct {
	path    []string
	keyword string
}

// violations are the places that break a schema, at least one, sorted, each once. Of alternatives (anyOf, oneOf) only the choice is named: what
// each of them wants need not matter.
func violations(v *jsonschema.ValidationError) []violation {
	var found []violation
	seen := map[string]struct{}{}
	add := func(keyword string, path ...string) {
		key := keyword + pointer(path)
		if _, twice := seen[key]; twice || len(found) == maxFound {
			return
		}
		seen[key] = struct{}{}
		found = append(found, violation{path: path, keyword: keyword})
	}
	var collect func(v *jsonschema.ValidationError)
	collect = func(v *jsonschema.ValidationError) {
		at := v.InstanceLocation
		below := func(name string) []string { return append(slices.Clip(at), name) }
		switch k := v.ErrorKind.(type) {
		case *kinds.Schema, *kinds.Group, *kinds.Reference, *kinds.AllOf:
			for _, cause := range v.Causes {
				collect(cause)
			}
			if len(v.Causes) > 0 {
				return
			}
		case *kinds.Required:
			for _, name := range k.Missing {
				add("required", below(name)...)
			}
			return
		case *kinds.AdditionalProperties:
			for _, name := range k.Properties {
				add("additionalProperties", below(name)...)
			}
			return
		case *kinds.Not:
			add("not", at...)
			return
		case *kinds.FalseSchema:
			add("false", at...)
			return
		}
		keyword := "schema"
		if path := v.ErrorKind.KeywordPath(); len(path) > 0 {
			keyword = path[0]
		}
		add(keyword, at...)
	}
	collect(v)
	if len(found) == 0 {
		add("schema", v.InstanceLocation...)
	}
	slices.SortFunc(found, func(a, b violation) int {
		return cmp.Or(slices.Compare(a.path, b.path), cmp.Compare(a.keyword, b.keyword))
	})
	return found
}

// pointer writes a JSON pointer without its leading #, safe to show.
func pointer(names []string) string {
	at := &place{}
	for _, name := range names {
		at = at.below(name)
	}
	return strings.TrimPrefix(at.String(), "#")
}
