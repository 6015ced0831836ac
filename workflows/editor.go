package workflows

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"
)

// Kinds of files that have a schema for editors.
const (
	kindWorkflow = "workflow"
	kindAgent    = "agent"
	kindConfig   = "config"
)

// ErrSchemaKind is a kind of file that has no schema.
var ErrSchemaKind = errors.New("unknown kind: use workflow, agent or config")

// Schema is the JSON Schema 2020-12 of a kind of file, for editors: "workflow" for
// *.relavium.yaml, "agent" for *.agent.yaml, "config" for config.toml. It knows
// every key, type and closed set; what a schema cannot say, such as the rules of
// the graph, only Parse knows. An unknown kind is ErrSchemaKind.
func Schema(kind string) ([]byte, error) {
	r := &jsonschema.Reflector{
		Anonymous:      true,
		ExpandedStruct: true,
		Namer:          func(t reflect.Type) string { return strings.TrimPrefix(t.Name(), "editor") },
	}
	var schema *jsonschema.Schema
	var variants []any // named by if and then only
	switch kind {
	case kindWorkflow:
		schema = r.Reflect(editorWorkflowFile{})
		variants = append(editorNodeTypes(), editorAgentFileRef{}, editorServer{}, editorServerByName{},
			editorNumberRules{}, editorTextRules{}, editorNoRules{})
	case kindAgent:
		schema = r.Reflect(editorAgentFile{})
		variants = []any{editorServer{}, editorServerByName{}}
	case kindConfig:
		schema = r.Reflect(editorConfig{})
	default:
		return nil, ErrSchemaKind
	}
	r.ExpandedStruct = false
	for _, variant := range variants {
		maps.Copy(schema.Definitions, r.Reflect(variant).Definitions)
	}
	return json.MarshalIndent(schema, "", "  ")
}

// ifThen adds "if the condition holds, then this".
func ifThen(s, condition, then *jsonschema.Schema) {
	s.AllOf = append(s.AllOf, &jsonschema.Schema{If: condition, Then: then})
}

// valueIs holds where the property is there with one of the values.
func valueIs(property string, values ...any) *jsonschema.Schema {
	p := jsonschema.NewProperties()
	p.Set(property, &jsonschema.Schema{Enum: values})
	return &jsonschema.Schema{Properties: p, Required: []string{property}}
}

// forbidding refuses properties.
func forbidding(properties ...string) *jsonschema.Schema {
	p := jsonschema.NewProperties()
	for _, name := range properties {
		p.Set(name, jsonschema.FalseSchema)
	}
	return &jsonschema.Schema{Properties: p}
}

// onProperty is a schema that bears on one property.
func onProperty(name string, s *jsonschema.Schema) *jsonschema.Schema {
	p := jsonschema.NewProperties()
	p.Set(name, s)
	return &jsonschema.Schema{Properties: p}
}

func refTo(definition string) *jsonschema.Schema {
	return &jsonschema.Schema{Ref: "#/$defs/" + definition}
}

// oneOfTwo makes a type one of two: the first where the property is there.
func oneOfTwo(s *jsonschema.Schema, property, with, without string) {
	*s = jsonschema.Schema{
		Type: "object",
		If:   &jsonschema.Schema{Required: []string{property}},
		Then: refTo(with),
		Else: refTo(without),
	}
}
