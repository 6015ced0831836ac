package builtin

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/inbound/text"
)

// errTooLarge is a body that is larger than maxBody once it is decoded.
var errTooLarge = &egress.TooLargeError{Limit: maxBody}

// answer is what a model is told of a response: its body if that is text, and a note
// if it is not. It reads the body; the caller closes it.
func answer(resp *http.Response) ([]field, error) {
	out := []field{{"status", resp.StatusCode}, {"headers", toldHeaders(resp.Header)}}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, failed("connection", "the server switched protocols", nil)
	}
	body, note, err := readBody(resp)
	if err != nil {
		return nil, err
	}
	if note != "" {
		return append(out, field{"note", note}), nil
	}
	return append(out, field{"body", body}), nil
}

// readBody returns the body as text, or why it is not returned.
func readBody(resp *http.Response) (body, note string, err error) {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if _, ok := errors.AsType[*egress.TooLargeError](err); ok && resp.StatusCode >= http.StatusBadRequest {
		return "", "the body of this error is too large and was left out", nil
	}
	if err != nil {
		return "", "", err
	}
	if len(raw) > maxBody { // an event stream, which has no other bound
		return "", "", errTooLarge
	}
	media, params, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		media = ""
	}
	what := fmt.Sprintf("a body of %d bytes", len(raw))
	if media != "" {
		what += " and type " + text.Line(media, 100)
	}
	if raw, err = decompress(raw, resp.Header.Values("Content-Encoding")); err != nil {
		if errors.Is(err, errTooLarge) {
			return "", "", err
		}
		return "", what + " was left out: " + err.Error(), nil
	}
	if !isTextual(media) {
		return "", what + " was left out: it is not text", nil
	}
	body, ok := toUTF8(raw, params["charset"])
	switch {
	case !ok:
		return "", what + " was left out: it is not text in a known encoding", nil
	case len(body) > maxBody:
		return "", "", errTooLarge
	}
	return body, "", nil
}

// decompress undoes the one content coding that is asked for (RFC 9110 8.4.1.3).
func decompress(raw []byte, codings []string) ([]byte, error) {
	switch coding := strings.ToLower(strings.Join(codings, ",")); coding {
	case "", "identity":
		return raw, nil
	case "gzip", "x-gzip":
		if len(raw) == 0 {
			return raw, nil
		}
		r, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, errors.New("it is not gzip, as it claims to be")
		}
		plain, err := io.ReadAll(io.LimitReader(r, maxBody+1))
		if len(plain) > maxBody {
			return nil, errTooLarge
		}
		if err != nil {
			return nil, errors.New("it is not gzip, as it claims to be")
		}
		return plain, nil
	default:
		return nil, fmt.Errorf("its coding %s is not known here", text.Quote(coding, 40))
	}
}

// isTextual tells whether a media type is one of text; none may be.
func isTextual(media string) bool {
	main, sub, _ := strings.Cut(media, "/")
	switch {
	case media == "", main == "text", strings.HasSuffix(sub, "+json"), strings.HasSuffix(sub, "+xml"), strings.HasSuffix(sub, "+yaml"):
		return true
	case main != "application":
		return false
	}
	switch sub {
	case "json", "ndjson", "x-ndjson", "jsonl", "json-seq", "xml", "yaml", "x-yaml", "toml", "javascript", "ecmascript", "graphql", "sql", "csv",
		"x-www-form-urlencoded", "problem+json":
		return true
	}
	return false
}

// toUTF8 decodes text; ok is false for an unknown charset and for what is no text.
func toUTF8(raw []byte, charset string) (plain string, ok bool) {
	var from encoding.Encoding
	switch strings.ToLower(charset) {
	case "", "utf-8", "utf8", "us-ascii", "ascii":
		raw = bytes.TrimPrefix(raw, []byte("\xEF\xBB\xBF"))
		return string(raw), utf8.Valid(raw) && bytes.IndexByte(raw, 0) < 0
	case "iso-8859-1", "latin1", "windows-1252", "cp1252":
		from = charmap.Windows1252
	case "iso-8859-15":
		from = charmap.ISO8859_15
	case "utf-16":
		from = unicode.UTF16(unicode.BigEndian, unicode.UseBOM)
	case "utf-16le":
		from = unicode.UTF16(unicode.LittleEndian, unicode.UseBOM)
	case "utf-16be":
		from = unicode.UTF16(unicode.BigEndian, unicode.UseBOM)
	default:
		return "", false
	}
	decoded, err := from.NewDecoder().Bytes(raw)
	return string(decoded), err == nil && bytes.IndexByte(decoded, 0) < 0
}
