package consent

import (
	"slices"
	"strings"
)

// maxNameBytes bounds the name of a variable.
const maxNameBytes = 128

// EnvDenied tells whether a declared environment variable is refused, and why. The
// verdict is the same on every platform: names are compared without the case of
// ASCII letters, since a child may honour either, and a name that is no identifier
// of at most 128 characters is refused. The reason is one phrase that does not hold
// the name.
func EnvDenied(name string) (reason string, denied bool) {
	if !isVariableName(name) {
		return "not a variable name: use at most 128 letters, digits and underscores, no digit first", true
	}
	name = strings.ToUpper(name)
	for _, f := range families() {
		if f.matches(name) {
			return f.reason, true
		}
	}
	return "", false
}

func (f *family) matches(name string) bool {
	if slices.Contains(f.exact, name) {
		return true
	}
	return !slices.Contains(f.exceptions, name) &&
		slices.ContainsFunc(f.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func isVariableName(name string) bool {
	if name == "" || len(name) > maxNameBytes {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return true
}
