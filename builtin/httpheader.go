package builtin

import (
	"encoding/json"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of the headers of a request, and of those of a response that are told.
const (
	maxHeaders     = 64
	maxHeaderBytes = 8 << 10
)

// headersOf reads the headers that a model sets: names and values by RFC 9110, no
// name twice, and none that decides where a request goes, where it ends, or whose it
// is.
func headersOf(raw json.RawMessage) (http.Header, error) {
	header := make(http.Header)
	if raw == nil {
		return header, nil
	}
	members, err := workflows.Members(raw)
	if err != nil {
		return nil, incorrect(`argument "headers": want an object of strings`)
	}
	if len(members) > maxHeaders {
		return nil, incorrect(`argument "headers": want at most %d`, maxHeaders)
	}
	size := 0
	for _, m := range members {
		var value string
		if m.Value[0] != '"' || json.Unmarshal(m.Value, &value) != nil {
			return nil, incorrect(`argument "headers": %s: want a string`, text.Quote(m.Key, 64))
		}
		name := textproto.CanonicalMIMEHeaderKey(m.Key)
		switch size += len(m.Key) + len(value) + 4; {
		case !isToken(m.Key):
			return nil, incorrect(`argument "headers": %s is not a header's name`, text.Quote(m.Key, 64))
		case isReserved(m.Key):
			return nil, incorrect(`argument "headers": %s cannot be set`, text.Quote(m.Key, 64))
		case !isFieldValue(value):
			return nil, incorrect(`argument "headers": the value of %s is not a header's value`, text.Quote(m.Key, 64))
		case header[name] != nil:
			return nil, incorrect(`argument "headers": %s is there twice`, text.Quote(m.Key, 64))
		case size > maxHeaderBytes:
			return nil, incorrect(`argument "headers": want at most %d bytes`, maxHeaderBytes)
		}
		header[name] = []string{value}
	}
	return header, nil
}

// isToken is token of RFC 9110 5.6.2.
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// isFieldValue is field-value of RFC 9110 5.5: visible characters, with spaces and
// tabs between them.
func isFieldValue(value string) bool {
	for i := range len(value) {
		c := value[i]
		edge := i == 0 || i == len(value)-1
		if c == 0x7f || c < 0x20 && c != '\t' || edge && (c == ' ' || c == '\t') {
			return false
		}
	}
	return true
}

// isReserved tells which headers are not a model's to set: those of the connection,
// of proxies, of browsers, and those that make another method of the request.
func isReserved(name string) bool {
	name = strings.ToLower(name)
	switch name {
	case "host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "forwarded", "via", "cookie", "origin",
		"expect", "http2-settings", "x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url", "x-real-ip":
		return true
	}
	return strings.HasPrefix(name, "proxy-") || strings.HasPrefix(name, "x-forwarded-")
}

// isCredential tells whose values are not shown.
func isCredential(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"auth", "key", "token", "secret", "password", "signature", "session"}, func(word string) bool {
		return strings.Contains(name, word)
	})
}

// told lists the headers of a response for a model: lower-case names, cleaned, without
// cookies, as many as the bounds let through.
func toldHeaders(header http.Header) map[string]string {
	told := make(map[string]string)
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	size := 0
	for _, name := range names {
		lower := strings.ToLower(name)
		value := text.Line(strings.ToValidUTF8(strings.Join(header[name], ", "), "\uFFFD"), 1<<10)
		if lower == "set-cookie" || !isToken(name) {
			continue
		}
		if size += len(lower) + len(value); size > maxHeaderBytes || len(told) == maxHeaders {
			break
		}
		told[lower] = value
	}
	return told
}
