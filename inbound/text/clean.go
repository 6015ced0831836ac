package text

import (
	"strings"
	"unicode/utf8"
)

// What begins a terminal's escape sequence (ECMA-48): ESC, and the C1 controls that
// say the same in one character.
const (
	esc = 0x1B
	bel = 0x07
	dcs = 0x90
	sos = 0x98
	csi = 0x9B
	st  = 0x9C
	osc = 0x9D
	pm  = 0x9E
	apc = 0x9F
)

// maxSequence is how many characters a control string (OSC, DCS, SOS, PM, APC) may
// have to be taken as one.
const maxSequence = 4096

// Clean returns the presentation form of a text. Terminal escape sequences go
// whole; of one that is malformed or has no end only its introducer goes, so that
// nothing is hidden from who reads. CRLF, CR, NEL and the line and paragraph
// separators become LF; TAB and LF stay; other control characters, bidirectional
// controls and characters that cannot be seen go. Bytes that are not UTF-8 become
// U+FFFD. It takes any text, in time linear in its length, and what is clean stays
// as it is.
func Clean(s string) string {
	at := firstUnclean(s)
	if at == len(s) {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	var b strings.Builder
	b.Grow(len(s))
	b.WriteString(s[:at])
	c := cleaner{src: s, pos: at}
	afterCR := false
	for c.pos < len(s) {
		r, size := rune(s[c.pos]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[c.pos:])
		}
		if n := c.sequence(r, size); n > 0 {
			c.pos += n
			continue
		}
		switch {
		case r == '\n' && afterCR:
		case r == '\n' || r == '\t':
			b.WriteByte(byte(r))
		case r == '\r' || r == 0x85 || r == 0x2028 || r == 0x2029:
			b.WriteByte('\n')
		case steers(r) || unseen(r):
		default:
			b.WriteString(s[c.pos : c.pos+size])
		}
		afterCR = r == '\r'
		c.pos += size
	}
	return b.String()
}

// firstUnclean is where the text first holds something other than printable ASCII,
// TAB and LF.
func firstUnclean(s string) int {
	for i := range len(s) {
		if c := s[i]; (c < 0x20 || c > 0x7E) && c != '\n' && c != '\t' {
			return i
		}
	}
	return len(s)
}

// A cleaner finds escape sequences in a text that is UTF-8.
type cleaner struct {
	src string
	pos int

	// Where the next end of a control string begins, from some place on before it: every
	// place between shares it.
	end stringEnd
}

// A stringEnd is what ends a control string: BEL, ST, or an ESC that begins
// something else.
type stringEnd struct {
	from  int // looked for from here on, in bytes
	at    int // where it begins; len(src) if there is none
	size  int // bytes of the end; 0 if nothing ends the string
	known bool
}

// sequence is the length in bytes of what goes when the character r at pos begins
// an escape sequence, or 0 if it begins none.
func (c *cleaner) sequence(r rune, size int) int {
	body := c.pos + size
	switch r {
	case esc:
		if body == len(c.src) {
			return 1
		}
		switch c.src[body] {
		case '[':
			return size + 1 + c.controlSequence(body+1)
		case ']', 'P', 'X', '^', '_':
			return size + 1 + c.controlString(body+1)
		default:
			return size + c.escape(body)
		}
	case csi:
		return size + c.controlSequence(body)
	case osc, dcs, sos, pm, apc:
		return size + c.controlString(body)
	default:
		return 0
	}
}

// escape is the length of what follows the ESC of a sequence of two or more
// characters (nF, Fp, Fe, Fs), 0 if it is none.
func (c *cleaner) escape(at int) int {
	end := c.skip(at, 0x20, 0x2F)
	if end < len(c.src) && c.src[end] >= 0x30 && c.src[end] <= 0x7E {
		return end + 1 - at
	}
	return 0
}

// controlSequence is the length of the parameters, intermediates and the final
// byte of a CSI sequence, 0 if it is malformed.
func (c *cleaner) controlSequence(at int) int {
	end := c.skip(c.skip(at, 0x30, 0x3F), 0x20, 0x2F)
	if end < len(c.src) && c.src[end] >= 0x40 && c.src[end] <= 0x7E {
		return end + 1 - at
	}
	return 0
}

func (c *cleaner) skip(at int, first, last byte) int {
	for at < len(c.src) && c.src[at] >= first && c.src[at] <= last {
		at++
	}
	return at
}

// controlString is the length of a control string's body and end, 0 if it has no
// end within the bound.
func (c *cleaner) controlString(at int) int {
	if !c.end.known || c.end.from > at || c.end.at < at {
		c.end = c.findEnd(at)
	}
	body := c.end.at - at
	// No character has more than four bytes, so most bodies need not be counted.
	if c.end.size == 0 || body > maxSequence*utf8.UTFMax || body > maxSequence && utf8.RuneCountInString(c.src[at:c.end.at]) > maxSequence {
		return 0
	}
	return body + c.end.size
}

func (c *cleaner) findEnd(from int) stringEnd {
	for i := from; i < len(c.src); i++ {
		switch c.src[i] {
		case bel:
			return stringEnd{from: from, at: i, size: 1, known: true}
		case esc:
			if i+1 < len(c.src) && c.src[i+1] == '\\' {
				return stringEnd{from: from, at: i, size: 2, known: true}
			}
			return stringEnd{from: from, at: i, known: true}
		case 0xC2: // of U+009C in UTF-8
			if i+1 < len(c.src) && c.src[i+1] == st {
				return stringEnd{from: from, at: i, size: 2, known: true}
			}
		}
	}
	return stringEnd{from: from, at: len(c.src), known: true}
}
