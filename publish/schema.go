package publish

import (
	"encoding/json"
	"slices"

	"github.com/invopop/jsonschema"

	"github.com/relavium/relavium-serve/workflows"
)

// inputSchema is the JSON Schema of a tool's arguments: an object with one plain
// property per input that a caller may supply, in declared order. It holds no
// anyOf, no type lists and no references, which some clients cannot read.
func inputSchema(w *workflows.Workflow) (json.RawMessage, error) {
	s := &jsonschema.Schema{
		Type:                 "object",
		Properties:           jsonschema.NewProperties(),
		AdditionalProperties: jsonschema.FalseSchema,
	}
	for i := range w.Inputs {
		in := &w.Inputs[i]
		if in.Type == workflows.TypeSecret {
			continue // resolved on this side, never an argument
		}
		s.Properties.Set(in.Name, property(in))
		if in.Required && in.Default == nil {
			s.Required = append(s.Required, in.Name)
		}
	}
	return encode(s)
}

func property(in *workflows.Input) *jsonschema.Schema {
	v := &in.Validation
	p := &jsonschema.Schema{
		Type:        "string",
		Description: in.Description,
		Format:      v.Format,
		Pattern:     v.Pattern,
		MinLength:   length(v.MinLength),
		MaxLength:   length(v.MaxLength),
		Minimum:     v.Min,
		Maximum:     v.Max,
	}
	switch in.Type {
	case workflows.TypeNumber, workflows.TypeBoolean:
		p.Type = in.Type
	case workflows.TypeFilePath:
		p.Description = hint(in.Description, "Path of a file below the workflow's project folder, on the server.")
	case workflows.TypeCodeDiff:
		p.Description = hint(in.Description, "A unified diff.")
	}
	if v.Format == "url" { // JSON Schema knows it as uri
		p.Format = "uri"
	}
	for _, e := range v.Enum {
		p.Enum = append(p.Enum, e)
	}
	if in.Default != nil && in.Default.Literal != nil {
		p.Default = in.Default.Literal
	}
	return p
}

func hint(description, what string) string {
	if description == "" {
		return what
	}
	return description + " (" + what + ")"
}

func length(n *int) *uint64 {
	if n == nil || *n < 0 {
		return nil
	}
	u := uint64(*n)
	return &u
}

// outputSchema describes structuredContent: one property per output node. A
// property is the schema of the node that feeds it, where that node has one that
// a client can read by itself; else it is open. withheld names the outputs whose
// schema could not be published.
func outputSchema(w *workflows.Workflow) (schema json.RawMessage, withheld []string) {
	var props []workflows.Member
	for i := range w.Nodes {
		n := &w.Nodes[i]
		if n.Type() != "output" {
			continue
		}
		value := json.RawMessage(`{}`)
		if feed, ok := feeder(w, n.ID); ok {
			if s := w.OutputSchema(feed); s != nil {
				if workflows.Publishable(s) {
					value = s
				} else {
					withheld = append(withheld, n.ID)
				}
			}
		}
		props = append(props, workflows.Member{Key: n.ID, Value: value})
	}
	return workflows.Object([]workflows.Member{
		{Key: "type", Value: json.RawMessage(`"object"`)},
		{Key: "properties", Value: workflows.Object(props)},
	}), withheld
}

// feeder is the one node whose output the output node captures. With several, it
// captures an object of those that completed.
func feeder(w *workflows.Workflow, output string) (string, bool) {
	var from []string
	for _, e := range w.In(output) {
		if !e.Data && !slices.Contains(from, e.From) {
			from = append(from, e.From)
		}
	}
	if len(from) != 1 {
		return "", false
	}
	return from[0], true
}
