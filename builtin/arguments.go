package builtin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// maxArguments bounds the arguments of one call, as the model wrote them.
const maxArguments = 8 << 20

// Bounds of what is shown of arguments.
const (
	maxShownText = 500
	maxShownList = 50
)

// A param is one argument of a tool.
type param struct {
	name     string
	schema   string // JSON Schema without the description
	about    string
	required bool
	secret   func(key string) bool // of an object: whose values are not shown
}

// schemaOf is the JSON Schema of a tool's arguments.
func schemaOf(params []param) json.RawMessage {
	properties := make([]workflows.Member, len(params))
	required := []string{}
	for i, p := range params {
		about, _ := json.Marshal(p.about) // a string: it always has a JSON form
		own := strings.TrimSuffix(p.schema, "}")
		properties[i] = workflows.Member{Key: p.name, Value: json.RawMessage(own + `,"description":` + string(about) + "}")}
		if p.required {
			required = append(required, p.name)
		}
	}
	names, _ := json.Marshal(required) // strings: it always has a JSON form
	return workflows.Object([]workflows.Member{
		{Key: "type", Value: json.RawMessage(`"object"`)},
		{Key: "properties", Value: workflows.Object(properties)},
		{Key: "required", Value: names},
		{Key: "additionalProperties", Value: json.RawMessage("false")},
	})
}

// arguments are those of one call. The first one that is wrong is remembered.
type arguments struct {
	params []param
	values map[string]json.RawMessage // null counts as absent
	err    error
}

// parseArguments reads the arguments strictly: one JSON object, no name twice, none
// that the tool does not know, none missing.
func parseArguments(params []param, raw json.RawMessage) (*arguments, error) {
	a := &arguments{params: params, values: make(map[string]json.RawMessage)}
	if len(raw) > maxArguments {
		return nil, incorrect("the arguments are larger than %d bytes", maxArguments)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	members, err := workflows.Members(raw)
	if err != nil {
		return nil, incorrect("the arguments: %v", err)
	}
	for _, m := range members {
		if !slices.ContainsFunc(params, func(p param) bool { return p.name == m.Key }) {
			return nil, incorrect("unknown argument %s; there are %s", text.Quote(m.Key, 64), namesOf(params))
		}
		if string(m.Value) != "null" {
			a.values[m.Key] = m.Value
		}
	}
	for _, p := range params {
		if _, given := a.values[p.name]; p.required && !given {
			return nil, incorrect("argument %q is missing", p.name)
		}
	}
	return a, nil
}

func namesOf(params []param) string {
	names := make([]string, len(params))
	for i, p := range params {
		names[i] = p.name
	}
	return strings.Join(names, ", ")
}

func (a *arguments) wrong(name, want string) {
	if a.err == nil {
		a.err = incorrect("argument %q: want %s", name, want)
	}
}

// text is a string of at most limit bytes, "" if it is absent.
func (a *arguments) text(name string, limit int) string {
	raw, given := a.values[name]
	if !given {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		a.wrong(name, "a string")
	}
	if len(s) > limit {
		a.wrong(name, fmt.Sprintf("at most %d bytes", limit))
	}
	return s
}

func (a *arguments) flag(name string) bool {
	raw, given := a.values[name]
	if !given {
		return false
	}
	var b bool
	if json.Unmarshal(raw, &b) != nil {
		a.wrong(name, "true or false")
	}
	return b
}

// count is a whole number of at least 1, or 0 if it is absent.
func (a *arguments) count(name string, limit int) int {
	raw, given := a.values[name]
	if !given {
		return 0
	}
	var n int
	if json.Unmarshal(raw, &n) != nil || n < 1 || n > limit {
		a.wrong(name, fmt.Sprintf("a whole number from 1 to %d", limit))
	}
	return n
}

// texts is a list of at most limit strings, nil if it is absent.
func (a *arguments) texts(name string, limit int) []string {
	raw, given := a.values[name]
	if !given {
		return nil
	}
	var list []*string
	if json.Unmarshal(raw, &list) != nil || slices.Contains(list, nil) {
		a.wrong(name, "a list of strings")
		return nil
	}
	if len(list) > limit {
		a.wrong(name, fmt.Sprintf("at most %d entries", limit))
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = *s
	}
	return out
}

// shown are the arguments as people and events may see them: cleaned, cut, in the
// order of the catalog.
func (a *arguments) shown() json.RawMessage {
	var members []workflows.Member
	for _, p := range a.params {
		raw, given := a.values[p.name]
		if !given {
			continue
		}
		var value any
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if d.Decode(&value) != nil {
			continue // it was scanned before
		}
		if m, ok := value.(map[string]any); ok && p.secret != nil {
			for key := range m {
				if p.secret(key) {
					m[key] = "•••"
				}
			}
		}
		out, err := json.Marshal(showable(value))
		if err != nil || len(out) > 16*maxShownText {
			out = fmt.Appendf(nil, `"… (%d bytes)"`, len(raw))
		}
		members = append(members, workflows.Member{Key: p.name, Value: out})
	}
	return workflows.Object(members)
}

func showable(value any) any {
	switch v := value.(type) {
	case string:
		return cut(v)
	case []any:
		out := make([]any, 0, min(len(v), maxShownList+1))
		for i, e := range v {
			if i == maxShownList {
				out = append(out, fmt.Sprintf("… (%d entries)", len(v)))
				break
			}
			out = append(out, showable(e))
		}
		return out
	case map[string]any:
		out := make(map[string]any, min(len(v), maxShownList+1))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if len(out) == maxShownList {
				out["…"] = fmt.Sprintf("(%d members)", len(v))
				break
			}
			out[cut(key)] = showable(v[key])
		}
		return out
	default:
		return v
	}
}

func cut(s string) string {
	if utf8.RuneCountInString(s) > maxShownText {
		return text.Cut(text.Clean(s), maxShownText) + fmt.Sprintf(" (%d bytes)", len(s))
	}
	return text.Clean(s)
}
