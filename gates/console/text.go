package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what one page shows, in bytes.
const (
	maxMessage = 64 << 10 // a gate's message, the engine's own bound
	maxShown   = 16 << 10 // one value
	maxWhole   = 4 << 20  // one value that is asked for by itself
	maxLine    = 300
)

// clean makes text from a file, a caller or a model safe to read: what could
// turn the reading order or hide is left out, other control characters show as a
// blank. It is cut to limit bytes.
func clean(s string, limit int) string {
	cut := len(s) > limit
	if cut {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case r == '\r', unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r):
			return -1
		case unicode.IsControl(r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if cut {
		s += "…"
	}
	return s
}

// line is clean text without line breaks, of at most limit characters.
func line(s string, limit int) string {
	runes := []rune(strings.Join(strings.Fields(clean(s, 4*limit)), " "))
	if len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return string(runes)
}

// A shown value is a JSON value for people.
type shown struct {
	Text string
	Cut  bool // there is more
	Size string
}

// value shows a JSON value: a string as its text, anything else indented.
func value(raw json.RawMessage, limit int) *shown {
	if len(raw) == 0 {
		return nil
	}
	out := &shown{Size: bytesOf(len(raw))}
	text := string(raw)
	if raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) == nil {
			text = s
		}
	} else if len(raw) <= limit {
		var b bytes.Buffer
		if json.Indent(&b, raw, "", "  ") == nil {
			text = b.String()
		}
	}
	out.Cut = len(text) > limit
	out.Text = clean(text, limit)
	return out
}

func bytesOf(n int) string {
	switch {
	case n < 1<<10:
		return strconv.Itoa(n) + " B"
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// span is a duration in at most two units.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return two(int(d.Minutes()), "min", int(d.Seconds())%60, "s", d < 10*time.Minute)
	case d < 24*time.Hour:
		return two(int(d.Hours()), "h", int(d.Minutes())%60, "min", true)
	}
	return two(int(d.Hours())/24, "d", int(d.Hours())%24, "h", d < 10*24*time.Hour)
}

func two(n int, unit string, m int, small string, both bool) string {
	text := strconv.Itoa(n) + " " + unit
	if both && m > 0 {
		text += " " + strconv.Itoa(m) + " " + small
	}
	return text
}

// A moment is a time as a page shows it.
type moment struct {
	Machine string // for <time datetime>
	Clock   string // local to the server
	Away    string // "3 min ago", "in 2 h"
}

func (c *Console) moment(t time.Time) *moment {
	if t.IsZero() {
		return nil
	}
	m := &moment{Machine: t.UTC().Format(time.RFC3339), Clock: t.Local().Format("2 Jan 2006, 15:04:05 MST")}
	switch d := c.opt.Now().Sub(t); {
	case d >= 5*time.Second:
		m.Away = coarse(d) + " ago"
	case d > -time.Second:
		m.Away = "just now"
	default:
		m.Away = "in " + coarse(-d)
	}
	return m
}

// coarse is a duration in one unit, or two above an hour.
func coarse(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	}
	return span(d)
}

// dollars is a sum of micro-cents (1e-8 USD).
func dollars(microcents int64) string {
	if microcents == 0 {
		return ""
	}
	digits := 2
	if microcents < 1e8 {
		digits = 4
	}
	if microcents < 1e4 {
		digits = 8
	}
	return "$" + strconv.FormatFloat(float64(microcents)/1e8, 'f', digits, 64)
}
