package secrets

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// A Scrubber replaces known secret values by [secret:name]: as they are, escaped as
// in JSON, Go or HTML, percent-encoded, in hex of either case, as a list of byte
// values, and in base64 of either alphabet wherever it stands in what was encoded. The zero Scrubber
// knows none and is ready for use; so is a nil one, which cannot learn. It is safe
// for concurrent use.
type Scrubber struct {
	mu    sync.Mutex
	forms map[string]string // form of a value: its placeholder
	index atomic.Pointer[index]
}

// Learn makes the scrubber know a value from now on. Values that are no secrets by
// their length (MinBytes) are not learned: replacing them would garble texts.
func (s *Scrubber) Learn(name Name, value string) {
	s.learn(placeholder(name), value)
}

// LearnEnviron makes the scrubber know the secrets among the variables NAME=value of
// a process, whether or not they are ever resolved. They are shown by their variable
// until they are.
func (s *Scrubber) LearnEnviron(environ []string) {
	for _, pair := range environ {
		name, value, ok := strings.Cut(pair, "=")
		if ok && isSecretVariable(name) {
			s.learn("[secret:"+name+"]", value)
		}
	}
}

// LearnText makes the scrubber know a value that has no name of its own; label, such as
// the variable that it came in, stands in its place.
func (s *Scrubber) LearnText(label, value string) { s.learn("[secret:"+label+"]", value) }

func isSecretVariable(name string) bool {
	name, own := strings.CutPrefix(name, "RELAVIUM_")
	switch {
	case !own || strings.HasSuffix(name, "_FILE"):
		return false
	case strings.HasPrefix(name, "MCP_"), strings.HasPrefix(name, "INPUT_"):
		return true
	}
	return strings.HasSuffix(name, "_API_KEY")
}

func (s *Scrubber) learn(label, value string) {
	if s == nil || len(value) < MinBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forms[value] == label {
		return
	}
	forms := maps.Clone(s.forms)
	if forms == nil {
		forms = make(map[string]string)
	}
	for _, form := range formsOf(value) {
		if len(form) >= headBytes {
			forms[form] = label
		}
	}
	s.forms = forms
	s.index.Store(newIndex(forms))
}

// String returns the text without known values.
func (s *Scrubber) String(text string) string {
	x := s.known()
	if x == nil {
		return text
	}
	spans := x.find(text)
	if spans == nil {
		return text
	}
	var out strings.Builder
	at := 0
	for _, found := range spans {
		out.WriteString(text[at:found.start])
		out.WriteString(found.label)
		at = found.end
	}
	out.WriteString(text[at:])
	return out.String()
}

// Bytes returns the text without known values; it is the same slice if there are
// none in it.
func (s *Scrubber) Bytes(text []byte) []byte {
	x := s.known()
	if x == nil {
		return text
	}
	whole := string(text)
	if clean := s.String(whole); clean != whole {
		return []byte(clean)
	}
	return text
}

func (s *Scrubber) known() *index {
	if s == nil {
		return nil
	}
	return s.index.Load()
}

// headBytes is how much of a form is looked up at once; no form is shorter.
const headBytes = 8

// An index finds forms in a text.
type index struct {
	pairs   [1 << 16 / 64]uint64          // bit set: some form begins with these two bytes
	heads   map[[headBytes]byte][]labeled // by the first bytes, longest form first
	sorted  []string
	longest int
}

type labeled struct{ form, label string }

func newIndex(forms map[string]string) *index {
	x := &index{heads: make(map[[headBytes]byte][]labeled), sorted: slices.Sorted(maps.Keys(forms))}
	for _, form := range x.sorted {
		head := [headBytes]byte([]byte(form[:headBytes]))
		x.heads[head] = append(x.heads[head], labeled{form, forms[form]})
		pair := pairOf(form)
		x.pairs[pair/64] |= 1 << (pair % 64)
		x.longest = max(x.longest, len(form))
	}
	for _, list := range x.heads {
		slices.SortFunc(list, func(a, b labeled) int { return len(b.form) - len(a.form) })
	}
	return x
}

func pairOf(text string) int { return int(text[0])<<8 | int(text[1]) }

// begins reports whether a form may begin with the first two bytes of text.
func (x *index) begins(text string) bool {
	pair := pairOf(text)
	return x.pairs[pair/64]&(1<<(pair%64)) != 0
}

// A span is a part of a text that is replaced by one label.
type span struct {
	start, end int
	label      string
}

// find returns the parts of text that forms cover, in order. Forms that overlap are
// one part, so that no rest of either is left.
func (x *index) find(text string) []span {
	var spans []span
	for i := 0; i+headBytes <= len(text); i++ {
		if !x.begins(text[i:]) {
			continue
		}
		for _, known := range x.heads[[headBytes]byte([]byte(text[i:i+headBytes]))] {
			if !strings.HasPrefix(text[i:], known.form) {
				continue
			}
			end := i + len(known.form)
			if last := len(spans) - 1; last >= 0 && i < spans[last].end {
				spans[last].end = max(spans[last].end, end)
			} else {
				spans = append(spans, span{i, end, known.label})
			}
			break
		}
	}
	return spans
}

// hold is where the longest end of text begins that may be the beginning of a form;
// len(text) if there is none. It is less than the longest form from the end.
func (x *index) hold(text string) int {
	for i := max(0, len(text)-x.longest+1); i < len(text); i++ {
		rest := text[i:]
		if len(rest) > 1 && !x.begins(rest) {
			continue
		}
		for at := sort.SearchStrings(x.sorted, rest); at < len(x.sorted) && strings.HasPrefix(x.sorted[at], rest); at++ {
			if len(x.sorted[at]) > len(rest) {
				return i
			}
		}
	}
	return len(text)
}

// formsOf lists the encodings of a value that are looked for, itself first. They may
// repeat.
func formsOf(value string) []string {
	quoted := inJSON(value, false)
	forms := []string{
		value, quoted, inJSON(value, true), inJSON(quoted, false), strings.ReplaceAll(quoted, "/", `\/`),
		asciiJSON(quoted, "%04x"), asciiJSON(quoted, "%04X"),
		unquoted(strconv.Quote(value)), unquoted(strconv.QuoteToASCII(value)), html.EscapeString(value),
	}
	for _, escaped := range []string{
		url.QueryEscape(value), url.PathEscape(value),
		percent(value, "-_.~"), percent(value, "-_.!~*'()"), percent(value, ""), everyByte(value),
	} {
		forms = append(forms, escaped, lowerEscapes(escaped))
	}
	for _, between := range []string{" ", ",", ", "} {
		forms = append(forms, decimals(value, between))
	}
	digits := hex.EncodeToString([]byte(value))
	forms = append(forms, digits, strings.ToUpper(digits))
	for before := range 3 {
		forms = append(forms, aligned(base64.RawStdEncoding, value, before), aligned(base64.RawURLEncoding, value, before))
	}
	return forms
}

// inJSON is the value as it stands between the quotes of a JSON string.
func inJSON(value string, escapeHTML bool) string {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(escapeHTML)
	if enc.Encode(value) != nil {
		return value
	}
	return unquoted(strings.TrimSuffix(out.String(), "\n"))
}

func unquoted(text string) string { return text[1 : len(text)-1] }

// asciiJSON escapes what is not ASCII, as encoders of other languages do.
func asciiJSON(text, digits string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r < 0x80:
			out.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&out, `\u`+digits, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&out, `\u`+digits+`\u`+digits, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return out.String()
}

// percent escapes all but letters, digits and the marks.
func percent(value, marks string) string {
	var out strings.Builder
	for i := range len(value) {
		if c := value[i]; isWord(string(rune(c)), marks) {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

func everyByte(value string) string {
	var out strings.Builder
	for i := range len(value) {
		fmt.Fprintf(&out, "%%%02X", value[i])
	}
	return out.String()
}

// decimals lists the bytes as fmt and JSON show them.
func decimals(value, between string) string {
	numbers := make([]string, len(value))
	for i := range len(value) {
		numbers[i] = strconv.Itoa(int(value[i]))
	}
	return strings.Join(numbers, between)
}

// lowerEscapes writes the digits of percent escapes in lower case.
func lowerEscapes(text string) string {
	out := []byte(text)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i+1:], strings.ToLower(text[i+1:i+3]))
			i += 2
		}
	}
	return string(out)
}

// aligned is what all base64 texts have in common that encode the value behind a
// number of other bytes, whatever these and the bytes after it are: the characters
// that depend on the value alone.
func aligned(enc *base64.Encoding, value string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), value...))
	return text[(before*8+5)/6 : (before+len(value))*8/6]
}
