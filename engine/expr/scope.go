package expr

import (
	"encoding/json"
	"errors"
	"strings"

	"modernc.org/quickjs"
)

// What prelude.js asks the host for, beside the outputs by their number.
const (
	askScope = -1 // inputs, ctx, branches and the ids of the outputs
	tellRead = -2 // the output asked for last is parsed
)

var errRefused = errors.New("expr: scope refused")

// Tags of an answer; prelude.js writes them.
const (
	tagValue = 'v'
	tagTrue  = 't'
	tagFalse = 'f'
	tagNull  = 'o' // null was thrown: by the expression, or for want of memory for an error
)

// reason is the reason that a tag stands for.
func reason(tag byte) string {
	switch tag {
	case 'n':
		return ReasonNonSerializable
	case 'y':
		return ReasonResultType
	case 'k':
		return ReasonStack
	case 'm':
		return ReasonMemory
	default:
		return ReasonRuntime
	}
}

// bind declares the scope in the machine.
func (m *machine) bind(s *Sandbox, scope Scope) error {
	code, err := s.scripts()
	if err != nil {
		return err
	}
	m.scope = scope
	if m.eager, err = eager(scope); err != nil {
		return &Error{ReasonScope}
	}
	m.size = len(m.eager)
	script := code.declare
	if scope.Branches != nil {
		script = code.declareMerge
	}
	if err := m.vm.SetEvalTimeout(preludeTimeout); err != nil {
		return err
	}
	if _, err := m.vm.EvalBytecode(script); err != nil {
		if js, ok := errors.AsType[*quickjs.Error](err); ok && js.Message == "interrupted" {
			return &Error{ReasonTimeout}
		}
		return &Error{ReasonScope}
	}
	return nil
}

// eager is the part of the scope that is bound before the expression runs, as the
// text of one JSON object.
func eager(scope Scope) ([]byte, error) {
	text := []byte(`{"inputs":`)
	for _, part := range []struct {
		value json.RawMessage
		next  string
	}{
		{orEmpty(scope.Inputs), `,"ctx":`},
		{orEmpty(scope.Ctx), `,"branches":`},
		{scope.Branches, ""},
	} {
		switch {
		case part.value == nil:
			text = append(text, "null"...)
		case !fits(part.value) || !json.Valid(part.value):
			return nil, errRefused
		default:
			text = append(text, part.value...)
		}
		text = append(text, part.next...)
	}
	ids := make([]string, len(scope.Outputs))
	for i, o := range scope.Outputs {
		ids[i] = o.Node
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	text = append(append(append(text, `,"ids":`...), list...), '}')
	if len(text) > maxScope {
		return nil, errRefused
	}
	return text, nil
}

func orEmpty(object json.RawMessage) json.RawMessage {
	if len(object) == 0 {
		return json.RawMessage("{}")
	}
	return object
}

// fits reports whether the value is at most maxDepth levels deep. It looks at
// brackets only; the text need not be valid.
func fits(value json.RawMessage) bool {
	depth, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// host answers the prelude. It is not within reach of the expression.
func (m *machine) host(args []any) (any, error) {
	if len(args) != 1 {
		return nil, errRefused
	}
	ask, ok := args[0].(int)
	switch {
	case ok && ask == askScope:
		return string(m.eager), nil
	case ok && ask == tellRead:
		m.pending = false
		return nil, nil
	case !ok || ask < 0 || ask >= len(m.scope.Outputs):
		return nil, errRefused
	}
	value := m.scope.Outputs[ask].Value
	if m.size += len(value); m.size > maxScope || !fits(value) {
		m.refused = true
		return nil, errRefused
	}
	m.pending = true
	return string(value), nil
}

// read is the meaning of what the prelude answered.
func (m *machine) read(answer any, source string) (tag byte, value json.RawMessage, err error) {
	text, ok := answer.(string)
	switch {
	case m.refused || m.pending:
		// Told even if the expression caught the exception that this made.
		return 0, nil, &Error{ReasonScope}
	case !ok || text == "":
		return 0, nil, &Error{ReasonRuntime}
	}
	switch tag = text[0]; tag {
	case tagTrue, tagFalse:
		return tag, nil, nil
	case tagValue:
		if len(text)-1 > maxResult {
			return 0, nil, &Error{ReasonMemory}
		}
		return tag, json.RawMessage(text[1:]), nil
	case tagNull:
		if !strings.Contains(source, "throw") && !strings.Contains(source, `\`) {
			return 0, nil, &Error{ReasonMemory}
		}
		return 0, nil, &Error{ReasonRuntime}
	default:
		return 0, nil, &Error{reason(tag)}
	}
}
