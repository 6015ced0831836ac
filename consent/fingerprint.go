package consent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"
)

// digestPrefix is the version of the rules below. A change to any of them takes
// another one, so that no grant is matched under rules it was not given for.
const digestPrefix = "v1:"

// ErrNoFaithfulForm says that a text of a declaration is not well-formed Unicode.
// It has no bytes in UTF-8 that another implementation could reproduce, so such a
// declaration has no digest.
var ErrNoFaithfulForm = errors.New("not well-formed Unicode")

// A Declaration is a local server as it will be started. Nothing else of a server
// counts for its digest.
type Declaration struct {
	Command string            // absolute path of the program, as Resolve returns it
	Args    []string          // as authored, in order
	Env     map[string]string // values as authored, secret references unresolved
	Cwd     string            // absolute path of the folder it is started in
}

// Digest names the declaration: "v1:" and the SHA-256 of Canonical in lower-case
// hex. The error is ErrNoFaithfulForm, wrapped with the field.
func (d *Declaration) Digest() (string, error) {
	text, err := d.Canonical()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return digestPrefix + hex.EncodeToString(sum[:]), nil
}

// Canonical is the text that the digest is taken of: JSON of exactly five fields,
// no white space, keys ordered by UTF-16 code unit, strings escaped as
// JSON.stringify of ECMAScript does. It holds no secret's value: a variable that
// is one reference counts by the secret's name.
func (d *Declaration) Canonical() ([]byte, error) {
	if err := d.wellFormed(); err != nil {
		return nil, err
	}
	text := []byte(`{"args":[`)
	for i, arg := range d.Args {
		if i > 0 {
			text = append(text, ',')
		}
		text = appendQuoted(text, arg)
	}
	text = append(text, `],"command":`...)
	text = appendQuoted(text, d.Command)
	text = append(text, `,"cwd":`...)
	text = appendQuoted(text, d.Cwd)
	text = append(text, `,"env":{`...)
	for i, name := range slices.SortedFunc(maps.Keys(d.Env), compareUTF16) {
		if i > 0 {
			text = append(text, ',')
		}
		text = appendQuoted(text, name)
		if secret, ok := SecretRef(d.Env[name]); ok {
			text = append(text, `:{"kind":"secret-ref","name":`...)
			text = appendQuoted(text, secret)
		} else {
			text = append(text, `:{"kind":"literal","value":`...)
			text = appendQuoted(text, d.Env[name])
		}
		text = append(text, '}')
	}
	return append(text, `},"transport":"stdio"}`...), nil
}

func (d *Declaration) wellFormed() error {
	for field, text := range map[string]string{"command": d.Command, "cwd": d.Cwd} {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%s: %w", field, ErrNoFaithfulForm)
		}
	}
	for i, arg := range d.Args {
		if !utf8.ValidString(arg) {
			return fmt.Errorf("args[%d]: %w", i, ErrNoFaithfulForm)
		}
	}
	for name, value := range d.Env {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("env: %w", ErrNoFaithfulForm)
		}
	}
	return nil
}

// Validate refuses a declaration that no server could be started from: paths that
// are not absolute and clean, denied variables, secret references where every
// process of the machine could read them, and NUL.
func (d *Declaration) Validate() error {
	if err := d.wellFormed(); err != nil {
		return err
	}
	for _, field := range []struct{ name, path string }{{"command", d.Command}, {"cwd", d.Cwd}} {
		if !filepath.IsAbs(field.path) || filepath.Clean(field.path) != field.path {
			return fmt.Errorf("%s: not a clean absolute path", field.name)
		}
	}
	texts := append([]string{d.Command, d.Cwd}, d.Args...)
	if slices.ContainsFunc(texts, HoldsSecretRef) {
		return errors.New("a secret is referred to outside env, where other processes could read it")
	}
	for name, value := range d.Env {
		if reason, denied := EnvDenied(name); denied {
			return fmt.Errorf("env %.128q: refused: %s", name, reason)
		}
		texts = append(texts, value)
	}
	if slices.ContainsFunc(texts, func(text string) bool { return strings.ContainsRune(text, 0) }) {
		return errors.New("a text holds a NUL character")
	}
	if runtime.GOOS == "windows" && batchUnsafe(d.Command, d.Args) {
		return errors.New("args: characters that cmd.exe would interpret, for a batch file")
	}
	return nil
}

// IsDigest reports whether text has the form of a digest.
func IsDigest(text string) bool {
	digits, ok := strings.CutPrefix(text, digestPrefix)
	return ok && len(digits) == hex.EncodedLen(sha256.Size) && strings.Trim(digits, "0123456789abcdef") == ""
}

// SecretRef returns the name in a value that is one secret reference and nothing
// else: {{secrets.NAME}}, with spaces and tabs allowed inside the braces only.
// What resolves the values must use it too, so that what was granted is what is
// filled in.
func SecretRef(value string) (name string, ok bool) {
	inner, opened := strings.CutPrefix(value, "{{")
	inner, closed := strings.CutSuffix(inner, "}}")
	name, dotted := strings.CutPrefix(strings.Trim(inner, " \t"), "secrets.")
	if !opened || !closed || !dotted || name == "" || len(name) > maxNameBytes {
		return "", false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.', c == '-':
		default:
			return "", false
		}
	}
	return name, true
}

// HoldsSecretRef reports whether text holds something that reads like the start of a
// secret reference.
func HoldsSecretRef(text string) bool {
	for {
		_, after, found := strings.Cut(text, "{{")
		if !found {
			return false
		}
		if strings.HasPrefix(strings.TrimLeft(after, "{ \t\r\n"), "secrets.") {
			return true
		}
		text = after
	}
}

// compareUTF16 orders well-formed strings by UTF-16 code unit, as `<` of
// ECMAScript does. It differs from the order of bytes where one side is above
// U+FFFF and the other in U+E000 to U+FFFF.
func compareUTF16(x, y string) int {
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] == y[i] {
			continue
		}
		// In UTF-8 the first byte that differs decides. Lead bytes F0 and up start
		// what UTF-16 writes with surrogates (D800 to DFFF), which sort below the
		// code points that lead bytes EE and EF start. A continuation byte differs
		// from another only within one kind of code point.
		a, b := x[i], y[i]
		if (a >= 0xF0) != (b >= 0xF0) && min(a, b) >= 0xEE {
			a, b = b, a
		}
		return int(a) - int(b)
	}
	return len(x) - len(y)
}

// appendQuoted appends s as JSON.stringify writes it: the short escapes, \u00xx in
// lower case for other controls below U+0020, and everything else as it is.
func appendQuoted(text []byte, s string) []byte {
	const digits = "0123456789abcdef"
	text = append(text, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			text = append(text, '\\', c)
		case '\b':
			text = append(text, '\\', 'b')
		case '\t':
			text = append(text, '\\', 't')
		case '\n':
			text = append(text, '\\', 'n')
		case '\f':
			text = append(text, '\\', 'f')
		case '\r':
			text = append(text, '\\', 'r')
		default:
			if c < 0x20 {
				text = append(text, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
			} else {
				text = append(text, c)
			}
		}
	}
	return append(text, '"')
}
