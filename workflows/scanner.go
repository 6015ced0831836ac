package workflows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of every JSON value that comes from outside.
const (
	maxValueBytes  = 4 << 20
	maxValueDepth  = 64
	maxNumberBytes = 64
)

// A valueError says what is wrong with a JSON text and at which byte.
type valueError struct {
	offset int
	what   string
}

func (e *valueError) Error() string {
	return fmt.Sprintf("invalid JSON at byte %d: %s", e.offset, e.what)
}

// A scanner reads one JSON text and writes it anew.
type scanner struct {
	src    []byte
	pos    int
	out    []byte
	depth  int
	levels int // at most
	sorted bool

	// When not nil, the parts of the outermost value, copied.
	members  []Member
	elements []json.RawMessage
}

// newScanner reads a value with the bounds of what comes from outside.
func newScanner(src []byte) (*scanner, error) {
	if len(src) > maxValueBytes {
		return nil, &valueError{offset: maxValueBytes, what: "more than 4 MiB"}
	}
	s, err := newWideScanner(src)
	if err == nil {
		s.levels = maxValueDepth
	}
	return s, err
}

// newWideScanner reads what was put together from values that were checked: it may
// be of any size and twice as deep.
func newWideScanner(src []byte) (*scanner, error) {
	if !utf8.Valid(src) {
		return nil, &valueError{offset: invalidAt(src), what: "not UTF-8"}
	}
	return &scanner{src: src, levels: 2 * maxValueDepth}, nil
}

// compactWide is Compact without its bounds on size and with twice its depth.
func compactWide(value json.RawMessage) (json.RawMessage, error) {
	s, err := newWideScanner(value)
	if err != nil {
		return nil, err
	}
	if err := s.whole(); err != nil {
		return nil, err
	}
	return s.out, nil
}

func invalidAt(src []byte) int {
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(src)
}

func scanValue(src []byte, sorted bool) ([]byte, error) {
	s, err := newScanner(src)
	if err != nil {
		return nil, err
	}
	s.sorted = sorted
	if err := s.whole(); err != nil {
		return nil, err
	}
	return s.out, nil
}

func (s *scanner) fail(what string) error { return &valueError{offset: s.pos, what: what} }

func (s *scanner) peek() byte {
	if s.pos < len(s.src) {
		return s.src[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// whole reads the one value of the text.
func (s *scanner) whole() error {
	s.out = make([]byte, 0, len(s.src))
	s.space()
	if err := s.value(); err != nil {
		return err
	}
	s.space()
	if s.pos != len(s.src) {
		return s.fail("more than one value")
	}
	return nil
}

func (s *scanner) value() error {
	switch c := s.peek(); {
	case c == '{':
		return s.nested(s.object)
	case c == '[':
		return s.nested(s.array)
	case c == '"':
		text, err := s.text()
		if err != nil {
			return err
		}
		s.out = appendString(s.out, text)
		return nil
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case s.pos == len(s.src):
		return s.fail("unexpected end")
	default:
		return s.fail("unexpected character")
	}
}

func (s *scanner) nested(read func() error) error {
	if s.depth == s.levels {
		return s.fail("more than " + strconv.Itoa(s.levels) + " levels")
	}
	s.depth++
	err := read()
	s.depth--
	return err
}

func (s *scanner) word(w string) error {
	if !bytes.HasPrefix(s.src[s.pos:], []byte(w)) {
		return s.fail("unexpected character")
	}
	s.pos += len(w)
	s.out = append(s.out, w...)
	return nil
}

// A span is one written member of an object.
type span struct {
	key        string
	start, end int // of `"key":value` in out
	value      int // where the value begins
}

func (s *scanner) object() error {
	s.pos++
	s.out = append(s.out, '{')
	start := len(s.out)
	var spans []span
	seen := map[string]struct{}{}
	for {
		s.space()
		if s.peek() == '}' && len(spans) == 0 {
			break
		}
		m, err := s.member(seen)
		if err != nil {
			return err
		}
		spans = append(spans, m)
		s.space()
		if s.peek() == '}' {
			break
		}
		if s.peek() != ',' {
			return s.fail("expected , or }")
		}
		s.pos++
		s.out = append(s.out, ',')
	}
	s.pos++
	switch {
	case s.members != nil && s.depth == 1:
		for _, m := range spans {
			s.members = append(s.members, Member{Key: m.key, Value: bytes.Clone(s.out[m.value:m.end])})
		}
	case s.sorted:
		s.sort(start, spans)
	}
	s.out = append(s.out, '}')
	return nil
}

func (s *scanner) member(seen map[string]struct{}) (span, error) {
	at := s.pos
	if s.peek() != '"' {
		return span{}, s.fail("expected a key")
	}
	key, err := s.text()
	if err != nil {
		return span{}, err
	}
	if _, ok := seen[key]; ok {
		return span{}, &valueError{offset: at, what: "repeated key"}
	}
	seen[key] = struct{}{}
	m := span{key: key, start: len(s.out)}
	s.out = append(appendString(s.out, key), ':')
	s.space()
	if s.peek() != ':' {
		return span{}, s.fail("expected :")
	}
	s.pos++
	s.space()
	m.value = len(s.out)
	if err := s.value(); err != nil {
		return span{}, err
	}
	m.end = len(s.out)
	return m, nil
}

// sort rewrites the members, which begin at start, in canonical order.
func (s *scanner) sort(start int, spans []span) {
	inOrder := func(a, b span) int { return compareUTF16(a.key, b.key) }
	if slices.IsSortedFunc(spans, inOrder) {
		return
	}
	slices.SortFunc(spans, inOrder)
	written := bytes.Clone(s.out[start:])
	s.out = s.out[:start]
	for i, m := range spans {
		if i > 0 {
			s.out = append(s.out, ',')
		}
		s.out = append(s.out, written[m.start-start:m.end-start]...)
	}
}

func (s *scanner) array() error {
	s.pos++
	s.out = append(s.out, '[')
	for first := true; ; first = false {
		s.space()
		if s.peek() == ']' && first {
			break
		}
		start := len(s.out)
		if err := s.value(); err != nil {
			return err
		}
		if s.elements != nil && s.depth == 1 {
			s.elements = append(s.elements, bytes.Clone(s.out[start:]))
		}
		s.space()
		if s.peek() == ']' {
			break
		}
		if s.peek() != ',' {
			return s.fail("expected , or ]")
		}
		s.pos++
		s.out = append(s.out, ',')
	}
	s.pos++
	s.out = append(s.out, ']')
	return nil
}

func (s *scanner) number() error {
	end := s.pos
	for end < len(s.src) && strings.IndexByte("+-.eE0123456789", s.src[end]) >= 0 {
		end++
	}
	literal := s.src[s.pos:end]
	if what := checkNumber(string(literal)); what != "" {
		return s.fail(what)
	}
	s.pos = end
	s.out = append(s.out, literal...)
	return nil
}

// checkNumber says what is wrong with a JSON number literal; "" means nothing.
func checkNumber(literal string) string {
	if len(literal) > maxNumberBytes {
		return "a number of more than 64 characters"
	}
	if !wellFormedNumber(literal) {
		return "not a number"
	}
	mantissa, _, _ := strings.Cut(strings.ToLower(literal), "e")
	if !strings.ContainsAny(mantissa, "123456789") {
		return "" // zero, whatever its exponent
	}
	f, err := strconv.ParseFloat(strings.TrimPrefix(literal, "-"), 64)
	if err != nil || f == 0 {
		return "a number beyond what a double holds"
	}
	return ""
}

func wellFormedNumber(s string) bool {
	digits := func() bool {
		n := len(s) - len(strings.TrimLeft(s, "0123456789"))
		s = s[n:]
		return n > 0
	}
	s = strings.TrimPrefix(s, "-")
	if rest, ok := strings.CutPrefix(s, "0"); ok {
		s = rest
	} else if !digits() {
		return false
	}
	if rest, ok := strings.CutPrefix(s, "."); ok {
		if s = rest; !digits() {
			return false
		}
	}
	if s != "" && (s[0] == 'e' || s[0] == 'E') {
		if s = s[1:]; s != "" && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		return digits() && s == ""
	}
	return s == ""
}

// text reads a JSON string and decodes it.
func (s *scanner) text() (string, error) {
	s.pos++
	start := s.pos
	for s.pos < len(s.src) {
		switch c := s.src[s.pos]; {
		case c == '"':
			s.pos++
			return string(s.src[start : s.pos-1]), nil
		case c == '\\':
			return s.escapedText(start)
		case c < 0x20:
			return "", s.fail("a control character in a string")
		}
		s.pos++
	}
	return "", s.fail("unterminated string")
}

// escapedText goes on with a string at its first escape.
func (s *scanner) escapedText(start int) (string, error) {
	text := append([]byte(nil), s.src[start:s.pos]...)
	for s.pos < len(s.src) {
		switch c := s.src[s.pos]; {
		case c == '"':
			s.pos++
			return string(text), nil
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			text = utf8.AppendRune(text, r)
		case c < 0x20:
			return "", s.fail("a control character in a string")
		default:
			text = append(text, c)
			s.pos++
		}
	}
	return "", s.fail("unterminated string")
}

func (s *scanner) escape() (rune, error) {
	if s.pos+1 >= len(s.src) {
		return 0, s.fail("unterminated string")
	}
	switch c := s.src[s.pos+1]; c {
	case '"', '\\', '/':
		s.pos += 2
		return rune(c), nil
	case 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return rune("\b\f\n\r\t"[strings.IndexByte("bfnrt", c)]), nil
	case 'u':
	default:
		return 0, s.fail("unknown escape")
	}
	unit, ok := s.unit(s.pos)
	if !ok {
		return 0, s.fail("unknown escape")
	}
	if !utf16.IsSurrogate(unit) {
		s.pos += 6
		return unit, nil
	}
	low, _ := s.unit(s.pos + 6)
	r := utf16.DecodeRune(unit, low)
	if r == utf8.RuneError {
		return 0, s.fail("a lone surrogate")
	}
	s.pos += 12
	return r, nil
}

// unit reads the \uXXXX at a position.
func (s *scanner) unit(at int) (rune, bool) {
	if at+6 > len(s.src) || s.src[at] != '\\' || s.src[at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.src[at+2:at+6]), 16, 16)
	if err != nil {
		return 0, false
	}
	return rune(n), true
}
