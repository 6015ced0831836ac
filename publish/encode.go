package publish

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// encode is json.Marshal without the escapes for HTML.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// quoted is s as a JSON string.
func quoted(s string) json.RawMessage {
	b, err := encode(s)
	if err != nil { // a string always encodes
		return json.RawMessage(`""`)
	}
	return b
}

// readable undoes the escapes of <, > and & that encoding/json makes for HTML
// pages; the text stays the same JSON value.
func readable(text json.RawMessage) json.RawMessage {
	if !bytes.Contains(text, []byte(`\u00`)) {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 >= len(text) {
			out = append(out, text[i])
			continue
		}
		if i+6 <= len(text) {
			switch string(text[i : i+6]) {
			case `\u003c`:
				out = append(out, '<')
				i += 5
				continue
			case `\u003e`:
				out = append(out, '>')
				i += 5
				continue
			case `\u0026`:
				out = append(out, '&')
				i += 5
				continue
			}
		}
		out = append(out, text[i], text[i+1])
		i++
	}
	return out
}

// clip cuts a text for people to at most n bytes, at a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[:n]
	for len(s) > 0 {
		if r, size := utf8.DecodeLastRuneInString(s); r != utf8.RuneError || size > 1 {
			break
		}
		s = s[:len(s)-1]
	}
	return s + "…"
}

// oneLine makes a text fit a line for people.
func oneLine(s string, n int) string { return clip(strings.Join(strings.Fields(s), " "), n) }
