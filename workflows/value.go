package workflows

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Compact checks a JSON value strictly and returns it without white space. Key
// order and the digits of numbers are kept; strings are escaped as ECMAScript
// does. It refuses anything that is not UTF-8, a lone surrogate, a repeated key,
// more than 64 levels, a number of more than 64 characters or beyond what a double holds, and
// more than 4 MiB. The error says where and what, and never quotes the value.
func Compact(value json.RawMessage) (json.RawMessage, error) {
	return scanValue(value, false)
}

// Canonical is the canonical JSON of a value: keys sorted by UTF-16 code units, no
// white space, strings escaped as ECMAScript does, number literals as they stand.
// It refuses what Compact refuses.
func Canonical(value json.RawMessage) ([]byte, error) {
	return scanValue(value, true)
}

// A Member is one key of a JSON object, in written order.
type Member struct {
	Key   string
	Value json.RawMessage
}

// Members splits a JSON object into its members, in written order. It refuses what
// Compact refuses and any value that is not an object; only size and depth are
// wider, since it also splits objects put together from checked values: any size,
// 128 levels.
func Members(object json.RawMessage) ([]Member, error) {
	s, err := newWideScanner(object)
	if err != nil {
		return nil, err
	}
	return s.split()
}

// strictMembers is Members with all bounds of Compact.
func strictMembers(object json.RawMessage) ([]Member, error) {
	s, err := newScanner(object)
	if err != nil {
		return nil, err
	}
	return s.split()
}

func (s *scanner) split() ([]Member, error) {
	s.space()
	if s.peek() != '{' {
		return nil, s.fail("not an object")
	}
	s.members = []Member{}
	if err := s.whole(); err != nil {
		return nil, err
	}
	return s.members, nil
}

// Object writes members as a JSON object, values as they stand. A nil value is
// written as null; bytes of a key that are not UTF-8 become U+FFFD.
func Object(members []Member) json.RawMessage {
	size := 2
	for _, m := range members {
		size += len(m.Key) + len(m.Value) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, strings.ToValidUTF8(m.Key, "\uFFFD")), ':')
		if m.Value == nil {
			out = append(out, "null"...)
			continue
		}
		out = append(out, m.Value...)
	}
	return append(out, '}')
}

// elements splits a JSON array.
func elements(array json.RawMessage) ([]json.RawMessage, error) {
	s, err := newWideScanner(array)
	if err != nil {
		return nil, err
	}
	s.space()
	if s.peek() != '[' {
		return nil, s.fail("not an array")
	}
	s.elements = []json.RawMessage{}
	if err := s.whole(); err != nil {
		return nil, err
	}
	return s.elements, nil
}

// quoteString is the JSON of a string that is known to be UTF-8.
func quoteString(s string) json.RawMessage {
	return appendString(make([]byte, 0, len(s)+2), s)
}

// stringValue decodes a JSON string; ok is false for any other value.
func stringValue(value json.RawMessage) (text string, ok bool) {
	s, err := newWideScanner(value)
	if err != nil {
		return "", false
	}
	s.space()
	if s.peek() != '"' {
		return "", false
	}
	text, err = s.text()
	if err != nil {
		return "", false
	}
	s.space()
	return text, s.pos == len(s.src)
}

// kindOf names the JSON type of a value that is well formed.
func kindOf(value json.RawMessage) string {
	value = bytes.TrimLeft(value, " \t\r\n")
	if len(value) == 0 {
		return "nothing"
	}
	switch value[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}

// utf16Len counts the UTF-16 code units of a string, as ECMAScript's length does.
func utf16Len(s string) int {
	n := 0
	for _, r := range s {
		n += max(utf16.RuneLen(r), 1)
	}
	return n
}

// compareUTF16 orders two strings by UTF-16 code unit. It differs from the order
// of bytes only where a character above U+FFFF meets one of U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for a != "" && b != "" {
		ra, na := utf8.DecodeRuneInString(a)
		rb, nb := utf8.DecodeRuneInString(b)
		if ra != rb {
			if c := cmp.Compare(firstUnit(ra), firstUnit(rb)); c != 0 {
				return c
			}
			return cmp.Compare(ra, rb)
		}
		a, b = a[na:], b[nb:]
	}
	return cmp.Compare(len(a), len(b))
}

// firstUnit is the first UTF-16 code unit of a character. Two characters with the
// same first unit are in code point order.
func firstUnit(r rune) rune {
	if r > 0xFFFF {
		high, _ := utf16.EncodeRune(r)
		return high
	}
	return r
}

func appendString(out []byte, s string) []byte {
	const digits = "0123456789abcdef"
	out = append(out, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c == '\b':
			out = append(out, '\\', 'b')
		case c == '\t':
			out = append(out, '\\', 't')
		case c == '\n':
			out = append(out, '\\', 'n')
		case c == '\f':
			out = append(out, '\\', 'f')
		case c == '\r':
			out = append(out, '\\', 'r')
		case c < 0x20:
			out = append(out, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			out = append(out, c)
		}
	}
	return append(out, '"')
}
