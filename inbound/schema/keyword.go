package schema

// A use says what the value of a keyword is.
type use byte

const (
	annotation use = iota // unknown here: kept, shown, not enforced
	assertion             // enforced on the value itself, or known as a remark
	prose                 // presentation text
	one                   // a schema
	list                  // a list of schemas
	named                 // an object of schemas
	reference
	pattern
	dialect
	identity
	refused
)

// How a subschema applies to the instance: to the same place, to a member or an
// element of it, or only where it is referred to.
const (
	inPlace   = ""
	anyMember = "p*"
	anyItem   = "i*"
	anyName   = "n*"
	nowhere   = "-"
)

// A draft is a dialect of JSON Schema, by the year or number that it is known by.
type draft int

const (
	draft06   draft = 6
	draft07   draft = 7
	draft2019 draft = 2019
	draft2020 draft = 2020
)

// usage tells how a keyword is used in a draft, and where its subschemas apply.
// Keywords that only a later draft knows are annotations there; their subschemas
// are still read as such, so that text in them is treated alike.
func usage(keyword string, d draft) (u use, slot string) {
	switch keyword {
	case "title", "description":
		return prose, ""
	case "$ref":
		return reference, ""
	case "$schema":
		return dialect, ""
	case "$id":
		return identity, ""
	case "pattern":
		return pattern, ""
	case "not", "if", "then", "else":
		return one, inPlace
	case "additionalProperties", "unevaluatedProperties":
		return one, anyMember
	case "items", "contains", "unevaluatedItems":
		return one, anyItem
	case "propertyNames":
		return one, anyName
	case "contentSchema":
		return one, nowhere
	case "allOf", "anyOf", "oneOf":
		return list, inPlace
	case "prefixItems":
		return list, anyItem
	case "properties", "patternProperties", "dependentSchemas":
		return named, inPlace
	case "$defs", "definitions":
		return named, nowhere
	case "dependencies":
		if d > draft07 {
			return refused, ""
		}
		return named, inPlace
	case "additionalItems":
		if d > draft07 {
			return refused, ""
		}
		return one, anyItem
	case "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor", "$vocabulary", "$data",
		"id", "divisibleBy", "extends", "disallow":
		return refused, ""
	case "type", "const", "enum", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
		"maxLength", "minLength", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
		"maxProperties", "minProperties", "required", "dependentRequired",
		"default", "examples", "deprecated", "readOnly", "writeOnly", "format",
		"contentEncoding", "contentMediaType", "$comment":
		return assertion, ""
	default:
		return annotation, ""
	}
}

// enforced tells whether a draft knows a keyword that some drafts enforce.
func enforced(keyword string, d draft) bool {
	switch keyword {
	case "if", "then", "else":
		return d >= draft07
	case "dependentSchemas", "dependentRequired", "unevaluatedItems", "unevaluatedProperties", "minContains", "maxContains", "contentSchema":
		return d >= draft2019
	case "prefixItems":
		return d >= draft2020
	default:
		return true
	}
}

// draftOf is the draft that a $schema names.
func draftOf(name string) (draft, bool) {
	switch name {
	case "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2020-12/schema#":
		return draft2020, true
	case "https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2019-09/schema#":
		return draft2019, true
	case "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-07/schema#",
		"https://json-schema.org/draft-07/schema", "https://json-schema.org/draft-07/schema#":
		return draft07, true
	case "http://json-schema.org/draft-06/schema", "http://json-schema.org/draft-06/schema#":
		return draft06, true
	default:
		return 0, false
	}
}
