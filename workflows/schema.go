package workflows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// How long a compiler or a validator may take. The bounds of an admitted schema
// keep both far below; the clock is for what the bounds overlook.
const (
	schemaCompileTime  = 5 * time.Second
	schemaValidateTime = 10 * time.Second
)

// A compiledSchema is an output_schema that was admitted and compiled. It is
// immutable and safe for use from many goroutines.
type compiledSchema struct {
	schema *jsonschema.Schema
	// published tells that the schema may stand in a tool's outputSchema.
	published bool
}

// compileSchema admits and compiles an authored output_schema. The error names the
// place in the schema and what to write instead; it is fit for the file's author.
func compileSchema(raw json.RawMessage) (*compiledSchema, error) {
	doc, used, err := admitSchema(raw)
	if err != nil {
		return nil, err
	}
	var compiled *jsonschema.Schema
	err = guarded(schemaCompileTime, func() (err error) {
		compiled, err = newSchemaCompiler(doc)
		return err
	})
	if err != nil {
		return nil, schemaCompileError(err)
	}
	_, isObject := doc.(map[string]any)
	return &compiledSchema{schema: compiled, published: isObject && used.selfContained()}, nil
}

// newSchemaCompiler compiles one document that may not load another.
func newSchemaCompiler(doc any) (*jsonschema.Schema, error) {
	const url = "output:schema"
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) {
		re, err := compilePattern(pattern)
		if err != nil {
			return nil, err
		}
		return schemaPattern{re}, nil
	})
	for _, name := range formatNames() {
		// Format is an annotation, also in the drafts where the validator asserts it.
		c.RegisterFormat(&jsonschema.Format{Name: name, Validate: func(any) error { return nil }})
	}
	if err := c.AddResource(url, doc); err != nil {
		return nil, err
	}
	return c.Compile(url)
}

func formatNames() []string {
	return strings.Fields("date date-time time duration period email idn-email hostname idn-hostname ipv4 ipv6 " +
		"uri uri-reference iri iri-reference uri-template uuid json-pointer relative-json-pointer regex semver")
}

type schemaPattern struct{ *regexp.Regexp }

func (p schemaPattern) String() string { return p.Regexp.String() }

type noLoader struct{}

func (noLoader) Load(string) (any, error) {
	return nil, evaluationError("refers to another document")
}

type evaluationError string

func (e evaluationError) Error() string { return string(e) }

// schemaCompileError tells an author what a compiler's error means, without its text,
// which may quote the schema.
func schemaCompileError(err error) error {
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if v, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			at, keyword := firstViolation(v)
			return &schemaError{at: "#" + at, what: "not a JSON Schema (" + keyword + ")", remedy: "write it as JSON Schema 2020-12 says"}
		}
	}
	if timeout, ok := errors.AsType[evaluationError](err); ok {
		return &schemaError{at: "#", what: timeout.Error(), remedy: "write a simpler schema"}
	}
	return &schemaError{at: "#", what: "cannot be compiled", remedy: "write it as JSON Schema 2020-12 says"}
}

// guarded runs a part of the validator: a panic becomes an error, and after the
// limit it is left to end by itself.
func guarded(limit time.Duration, run func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if recover() != nil {
				done <- evaluationError("the schema cannot be evaluated")
			}
		}()
		done <- run()
	}()
	clock := time.NewTimer(limit)
	defer clock.Stop()
	select {
	case err := <-done:
		return err
	case <-clock.C:
		select {
		case err := <-done: // on a busy machine both may have come by now
			return err
		default:
		}
		return evaluationError("the schema takes too long to evaluate")
	}
}

// An OutputError is an output that breaks its schema. It holds no value.
type OutputError struct {
	Path    string // JSON pointer into the output; "" is the whole
	Keyword string // of the schema, such as "required"
}

func (e *OutputError) Error() string {
	at := e.Path
	if at == "" {
		at = "the top"
	}
	return "the output breaks its schema at " + at + ": " + e.Keyword
}

// check validates a value.
func (c *compiledSchema) check(value json.RawMessage) error {
	compact, err := Compact(value)
	if err != nil {
		return err
	}
	err = guarded(schemaValidateTime, func() error {
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(compact))
		if err != nil {
			return err
		}
		return c.schema.Validate(doc)
	})
	if v, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		path, keyword := firstViolation(v)
		return &OutputError{Path: path, Keyword: keyword}
	}
	return err
}

// firstViolation is the first place that breaks a schema, and the keyword it breaks.
func firstViolation(v *jsonschema.ValidationError) (path, keyword string) {
	for {
		keywords := v.ErrorKind.KeywordPath()
		switch v.ErrorKind.(type) {
		case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
			if len(v.Causes) > 0 {
				v = v.Causes[0]
				continue
			}
		case *kind.Not:
			return pointer(v.InstanceLocation), "not"
		case *kind.FalseSchema:
			return pointer(v.InstanceLocation), "false"
		}
		if len(keywords) == 0 {
			return pointer(v.InstanceLocation), "schema"
		}
		return pointer(v.InstanceLocation), keywords[0]
	}
}

// pointer writes a JSON pointer of at most some 200 bytes, without control
// characters.
func pointer(segments []string) string {
	const limit = 200
	var b strings.Builder
	for _, s := range segments {
		if b.Len()+len(s) > limit {
			b.WriteString("/…")
			break
		}
		b.WriteString("/" + escapePointer(strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return '\uFFFD'
			}
			return r
		}, s)))
	}
	return b.String()
}

func escapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

// OutputSchema is the schema that governs a node's output (an agent node's own
// wins over its agent's), or nil.
func (w *Workflow) OutputSchema(node string) json.RawMessage {
	for i := range w.Nodes {
		if w.Nodes[i].ID != node {
			continue
		}
		switch spec := w.Nodes[i].Spec.(type) {
		case AgentNode:
			if spec.OutputSchema != nil {
				return spec.OutputSchema
			}
			if agent, ok := w.Agent(spec.AgentRef); ok {
				return agent.OutputSchema
			}
		case TransformNode:
			return spec.OutputSchema
		case InputNode, GateNode, ConditionNode, ParallelNode, MergeNode, OutputNode:
		}
		return nil
	}
	return nil
}

// CheckOutput validates a node's output against the schema that governs it, if
// any. An output that breaks it is an *OutputError with path and keyword only; a
// value that is not JSON within the bounds of Compact is an error too.
func (w *Workflow) CheckOutput(node string, value json.RawMessage) error {
	if compiled, ok := w.schemas[node]; ok {
		return compiled.check(value)
	}
	raw := w.OutputSchema(node)
	if raw == nil {
		return nil
	}
	compiled, err := compileSchema(raw)
	if err != nil {
		return fmt.Errorf("output_schema of %s: %w", strconv.Quote(node), err)
	}
	return compiled.check(value)
}

// Publishable tells whether an output_schema may stand in a tool's outputSchema: it
// is an object, refers to nothing ($ref, $id, $anchor, $dynamicRef), is at most 32
// deep and compiles as JSON Schema 2020-12.
func Publishable(schema json.RawMessage) bool {
	compiled, err := compileSchema(schema)
	return err == nil && compiled.published
}
