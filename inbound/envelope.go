package inbound

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A message is one JSON-RPC message. The raw values are parts of the bytes that it was
// read from.
type message struct {
	id     json.RawMessage // nil if the message has none
	method string          // empty if it is a response
	params json.RawMessage
	result json.RawMessage // nil if it has none
	fault  json.RawMessage // the member error, nil if it has none
}

// errMessage is why bytes are no message. Its text holds nothing of them.
var errMessage = errors.New("not a JSON-RPC message")

// parseMessage reads one message. Names are compared exactly, a name of the envelope
// that appears twice refuses it, and so do bytes that are not UTF-8: readers that
// differ in these would see different messages.
func parseMessage(raw []byte) (message, error) {
	var m message
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return m, fmt.Errorf("%w: not JSON", errMessage)
	}
	ms, ok := members(raw)
	if !ok {
		return m, fmt.Errorf("%w: not an object", errMessage)
	}
	var version json.RawMessage
	var method json.RawMessage
	for _, f := range ms {
		var to *json.RawMessage
		switch f.key {
		case "jsonrpc":
			to = &version
		case "id":
			to = &m.id
		case "method":
			to = &method
		case "params":
			to = &m.params
		case "result":
			to = &m.result
		case "error":
			to = &m.fault
		default:
			continue
		}
		if *to != nil {
			return message{}, fmt.Errorf("%w: %s twice", errMessage, f.key)
		}
		*to = f.value
	}
	switch {
	case string(version) != `"2.0"`:
		return message{}, fmt.Errorf("%w: jsonrpc is not 2.0", errMessage)
	case method != nil:
		if method[0] != '"' || json.Unmarshal(method, &m.method) != nil || m.method == "" || m.result != nil || m.fault != nil {
			return message{}, fmt.Errorf("%w: bad method", errMessage)
		}
	case (m.result == nil) == (m.fault == nil):
		return message{}, fmt.Errorf("%w: neither one result nor one error", errMessage)
	case m.id == nil:
		return message{}, fmt.Errorf("%w: a response without id", errMessage)
	}
	return m, nil
}

// ownID returns the number of an id that may be ours: requests are numbered from 1, and
// another spelling of a number is another id.
func ownID(id json.RawMessage) (int64, bool) {
	n, err := strconv.ParseInt(string(id), 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == string(id)
}

// An rpcError is the error that a server answered with.
type rpcError struct {
	code    int64
	message string // as sent
	data    json.RawMessage
}

func parseRPCError(raw json.RawMessage) (*rpcError, error) {
	ms, ok := members(raw)
	if !ok {
		return nil, fmt.Errorf("%w: error is not an object", errMessage)
	}
	e := &rpcError{}
	var code, text json.RawMessage
	for _, f := range ms {
		switch f.key {
		case "code":
			code = f.value
		case "message":
			text = f.value
		case "data":
			e.data = f.value
		}
	}
	if json.Unmarshal(code, &e.code) != nil {
		return nil, fmt.Errorf("%w: error without a code", errMessage)
	}
	e.message = textOf(text)
	return e, nil
}

// textOf returns the string in raw, or "" if it holds none.
func textOf(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// A field is one member of a JSON object.
type field struct {
	key   string
	value json.RawMessage
}

// members splits a JSON object, which must be valid JSON, into its members in written
// order. ok is false if the value is no object.
func members(value []byte) (fs []field, ok bool) {
	i := space(value, 0)
	if i >= len(value) || value[i] != '{' {
		return nil, false
	}
	i = space(value, i+1)
	for i < len(value) && value[i] == '"' {
		start := i
		i = skip(value, i)
		name := value[start:i]
		var f field
		if bytes.IndexByte(name, '\\') < 0 {
			f.key = string(name[1 : len(name)-1])
		} else if json.Unmarshal(name, &f.key) != nil {
			return nil, false
		}
		i = space(value, i) + 1 // the colon
		i = space(value, i)
		start = i
		i = skip(value, i)
		f.value = json.RawMessage(value[start:i:i])
		fs = append(fs, f)
		i = space(value, i)
		if i < len(value) && value[i] == ',' {
			i = space(value, i+1)
		}
	}
	return fs, true
}

// member returns the last member of that name, or nil.
func member(value []byte, key string) json.RawMessage {
	fs, _ := members(value)
	for _, f := range slices.Backward(fs) {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

// elements splits a JSON array, which must be valid JSON. ok is false if the value is
// no array.
func elements(value []byte) (es []json.RawMessage, ok bool) {
	i := space(value, 0)
	if i >= len(value) || value[i] != '[' {
		return nil, false
	}
	i = space(value, i+1)
	for i < len(value) && value[i] != ']' {
		start := i
		i = skip(value, i)
		es = append(es, json.RawMessage(value[start:i:i]))
		i = space(value, i)
		if i < len(value) && value[i] == ',' {
			i = space(value, i+1)
		}
	}
	return es, true
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func delimits(c byte) bool {
	switch c {
	case ',', ':', ']', '}', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// skip returns the index after the JSON value that starts at i; the text is known to be
// valid.
func skip(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			i++
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default: // a number or a word
			for i < len(b) && !delimits(b[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}
