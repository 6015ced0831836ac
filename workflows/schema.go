package workflows

import "encoding/json"

// A compiledSchema is an output_schema that was admitted and compiled.
type compiledSchema struct{ raw json.RawMessage }

// compileSchema admits and compiles an authored output_schema.
func compileSchema(raw json.RawMessage) (*compiledSchema, error) {
	if _, err := Compact(raw); err != nil {
		return nil, err
	}
	return &compiledSchema{raw: raw}, nil
}
