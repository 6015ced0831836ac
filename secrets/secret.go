package secrets

import (
	"fmt"
	"io"
	"log/slog"
)

// A Secret is a value that was found, and its name. Whatever prints, formats,
// marshals or logs it gets [secret:name]; only Reveal gives the value. Copies share
// it.
type Secret struct {
	name Name
	// value is a func because fmt shows the fields of a struct that it cannot call
	// methods on, behind pointers too; of a func it shows an address.
	value func(wipe bool) []byte
}

func newSecret(name Name, value []byte) Secret {
	return Secret{name: name, value: func(wipe bool) []byte {
		if wipe {
			clear(value)
			value = nil
		}
		return value
	}}
}

// Name returns what the secret is called.
func (s Secret) Name() Name { return s.name }

// Reveal returns the value, for the one place that it is meant for; "" after Wipe.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return string(s.value(false))
}

// Wipe overwrites the value in this Secret and its copies. What Reveal returned
// stays. It must not run beside a Reveal of the same secret.
func (s Secret) Wipe() {
	if s.value != nil {
		s.value(true)
	}
}

// String returns [secret:name].
func (s Secret) String() string { return placeholder(s.name) }

// GoString returns [secret:name].
func (s Secret) GoString() string { return placeholder(s.name) }

// Format writes [secret:name] for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, placeholder(s.name)) }

// MarshalJSON returns "[secret:name]".
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + placeholder(s.name) + `"`), nil }

// MarshalText returns [secret:name].
func (s Secret) MarshalText() ([]byte, error) { return []byte(placeholder(s.name)), nil }

// LogValue returns [secret:name].
func (s Secret) LogValue() slog.Value { return slog.StringValue(placeholder(s.name)) }

func placeholder(name Name) string { return "[secret:" + name.String() + "]" }
