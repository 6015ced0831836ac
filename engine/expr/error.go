package expr

// Reasons of an Error (format §8).
const (
	ReasonSyntax          = "syntax"           // not one JavaScript expression
	ReasonRuntime         = "runtime"          // the expression threw
	ReasonResultType      = "result_type"      // a condition's value is no boolean, string or number
	ReasonNonSerializable = "non_serializable" // the value is not JSON
	ReasonMemory          = "memory"           // the heap or the result is too large
	ReasonStack           = "stack"            // calls are nested too deeply
	ReasonScope           = "scope"            // a value of the scope is too large, too deep or not JSON
	ReasonTimeout         = "timeout"          // the wall clock limit passed
)

// An Error says why an expression has no value. Its text is fixed for each
// reason: it holds no source, name or value.
type Error struct{ Reason string }

func (e *Error) Error() string {
	switch e.Reason {
	case ReasonSyntax:
		return "the expression is not one JavaScript expression"
	case ReasonResultType:
		return "the expression's value is not a boolean, a string or a number"
	case ReasonNonSerializable:
		return "the expression's value is not JSON"
	case ReasonMemory:
		return "the expression needs too much memory"
	case ReasonStack:
		return "the expression nests calls too deeply"
	case ReasonScope:
		return "a value the expression reads is too large or too deep"
	case ReasonTimeout:
		return "the expression took too long"
	default:
		return "the expression threw an error"
	}
}

// Retryable reports whether a second evaluation may end otherwise: only a timeout may.
func (e *Error) Retryable() bool { return e.Reason == ReasonTimeout }

// final reports whether the reason stands whenever it is found; the others may be
// what an interrupt looks like from inside.
func (e *Error) final() bool {
	switch e.Reason {
	case ReasonNonSerializable, ReasonResultType, ReasonScope, ReasonSyntax:
		return true
	default:
		return false
	}
}
