package text

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A RefusedError says which character keeps a semantic text from being used. It
// does not quote the text.
type RefusedError struct {
	Rune   rune // utf8.RuneError for a byte that is not UTF-8
	Offset int  // in bytes
}

func (e *RefusedError) Error() string {
	if e.Rune == utf8.RuneError {
		return fmt.Sprintf("not UTF-8 at byte %d", e.Offset)
	}
	return fmt.Sprintf("holds U+%04X at byte %d, which does not show", e.Rune, e.Offset)
}

// Check refuses a semantic text that holds a control character (TAB and LF too), a
// bidirectional control, a character that cannot be seen, or that is not UTF-8. The
// error is a *RefusedError for the first of them.
func Check(s string) error {
	if printable(s) {
		return nil
	}
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return &RefusedError{Rune: utf8.RuneError, Offset: i}
			}
		}
		if steers(r) || unseen(r) {
			return &RefusedError{Rune: r, Offset: i}
		}
	}
	return nil
}

// printable reports whether all is ASCII between space and tilde.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7E {
			return false
		}
	}
	return true
}

// Line is the clean text on one line: runs of white space become one space, and
// what is over limit bytes is cut at a character, with … as its end.
func Line(s string, limit int) string {
	return Cut(strings.Join(strings.Fields(Clean(s)), " "), limit)
}

// Cut keeps at most limit bytes of a text, whole characters, the last of them … if
// something is missing. A limit under three bytes leaves nothing of a longer text.
func Cut(s string, limit int) string {
	const mark = "…"
	if len(s) <= limit {
		return s
	}
	end := limit - len(mark)
	if end < 0 {
		return ""
	}
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// Quote shows a text that Check may refuse: Escape's text between double quotes.
func Quote(s string, limit int) string { return `"` + Escape(s, limit) + `"` }

// Escape shows a text that Check may refuse: each refused character, backslash and
// quote escaped as \u{202E}, \\ and \", cut to some limit bytes.
func Escape(s string, limit int) string {
	if printable(s) && len(s) <= limit && !strings.ContainsAny(s, "\"\\") {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if b.Len() >= limit {
			b.WriteString("…")
			break
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case steers(r), unseen(r):
			fmt.Fprintf(&b, `\u{%X}`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
