package workflows

import (
	"regexp"
	"strconv"
	"strings"
)

const maxPatternBytes = 2048

type patternError string

func (e patternError) Error() string { return string(e) }

// compilePattern compiles a JavaScript regular expression for unanchored search.
// What RE2 cannot do (look-around, back-references) is an error that says so; the
// error does not quote the pattern.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	translated, err := TranslatePattern(pattern)
	if err != nil {
		return nil, err
	}
	re, err := regexp.Compile(translated)
	if err != nil {
		return nil, patternError("not a regular expression that is supported here")
	}
	return re, nil
}

// TranslatePattern writes a JavaScript regular expression in the words of package
// regexp, for unanchored search. Look-around, back-references, flags and a pattern
// of more than 2048 bytes are errors that do not quote it. What it returns has yet
// to compile.
func TranslatePattern(pattern string) (string, error) {
	if len(pattern) > maxPatternBytes {
		return "", patternError("a pattern of more than 2048 bytes")
	}
	p := &patternReader{src: pattern}
	if err := p.translate(); err != nil {
		return "", err
	}
	return p.out.String(), nil
}

// A patternReader writes a JavaScript pattern in RE2's words where the two differ.
type patternReader struct {
	src string
	pos int
	out strings.Builder
}

func (p *patternReader) rest() string { return p.src[p.pos:] }

func (p *patternReader) translate() error {
	for p.pos < len(p.src) {
		var err error
		switch c := p.src[p.pos]; c {
		case '\\':
			err = p.escape(false)
		case '[':
			err = p.class()
		case '.':
			p.pos++
			p.out.WriteString(`[^\n\r\x{2028}\x{2029}]`)
		case '(':
			err = p.group()
		default:
			p.pos++
			p.out.WriteByte(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *patternReader) group() error {
	rest := p.rest()
	for _, look := range []string{"(?=", "(?!", "(?<=", "(?<!"} {
		if strings.HasPrefix(rest, look) {
			return patternError("look-around is not supported")
		}
	}
	if strings.HasPrefix(rest, "(?") && !strings.HasPrefix(rest, "(?:") && !strings.HasPrefix(rest, "(?<") {
		return patternError("flags inside a pattern are not supported")
	}
	p.pos++
	p.out.WriteByte('(')
	return nil
}

func (p *patternReader) class() error {
	switch rest := p.rest(); {
	case strings.HasPrefix(rest, "[^]"):
		p.pos += 3
		p.out.WriteString(`[\x{0}-\x{10FFFF}]`)
		return nil
	case strings.HasPrefix(rest, "[]"):
		p.pos += 2
		p.out.WriteString(`[^\x{0}-\x{10FFFF}]`)
		return nil
	}
	p.pos++
	p.out.WriteByte('[')
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; c {
		case ']':
			p.pos++
			p.out.WriteByte(']')
			return nil
		case '\\':
			if err := p.escape(true); err != nil {
				return err
			}
		case '[':
			p.pos++
			p.out.WriteString(`\[`)
		default:
			p.pos++
			p.out.WriteByte(c)
		}
	}
	return patternError("a [ without its ]")
}

// escape translates one escape; inClass is set between brackets.
func (p *patternReader) escape(inClass bool) error {
	if p.pos+1 == len(p.src) {
		return patternError("a \\ at the end")
	}
	c := p.src[p.pos+1]
	p.pos += 2
	switch {
	case c == 's' || c == 'S':
		return p.blank(c == 'S', inClass)
	case c == 'b' && inClass:
		p.out.WriteString(`\x08`)
	case c == '0':
		p.out.WriteString(`\x00`)
	case c >= '1' && c <= '9' || c == 'k':
		return patternError("back-references are not supported")
	case c == 'u':
		return p.codePoint()
	case c == 'c':
		if p.pos == len(p.src) || !isLetter(p.src[p.pos]) {
			return patternError("an escape that is not known")
		}
		p.char(rune(p.src[p.pos] & 31))
		p.pos++
	case strings.IndexByte("dDwWbBnrtfvxpP", c) >= 0 || !isLetter(c):
		p.out.WriteByte('\\')
		p.out.WriteByte(c)
	default:
		return patternError("an escape that is not known")
	}
	return nil
}

// blank writes JavaScript's \s, which holds more than RE2's.
func (p *patternReader) blank(negated, inClass bool) error {
	const blanks = `\t\n\v\f\r\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}`
	switch {
	case inClass && negated:
		return patternError(`\S between brackets is not supported`)
	case inClass:
		p.out.WriteString(blanks)
	case negated:
		p.out.WriteString("[^" + blanks + "]")
	default:
		p.out.WriteString("[" + blanks + "]")
	}
	return nil
}

// codePoint translates \uXXXX and \u{X}.
func (p *patternReader) codePoint() error {
	digits, rest := "", p.rest()
	if inside, ok := strings.CutPrefix(rest, "{"); ok {
		digits, _, ok = strings.Cut(inside, "}")
		if !ok {
			return patternError("an escape that is not known")
		}
		p.pos += len(digits) + 2
	} else if len(rest) >= 4 {
		digits = rest[:4]
		p.pos += 4
	}
	n, err := strconv.ParseUint(digits, 16, 21)
	if err != nil || n > 0x10FFFF || n >= 0xD800 && n < 0xE000 {
		return patternError("an escape that is not known")
	}
	p.char(rune(n))
	return nil
}

func (p *patternReader) char(r rune) {
	p.out.WriteString(`\x{` + strconv.FormatInt(int64(r), 16) + `}`)
}
