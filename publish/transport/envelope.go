package transport

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A member is one member of a JSON object; value is its exact text.
type member struct {
	key   string
	raw   []byte // the key as written, quotes included
	value json.RawMessage
}

// A message is one JSON-RPC message after the envelope was checked.
type message struct {
	id     json.RawMessage // nil for a notification
	method string          // "" for a response
	params json.RawMessage
	reply  *reply // a response to a request of ours
}

// envelopeNames, paramNames and metaNames are the members that the protocol
// knows at each level. encoding/json takes "ID" for "id"; JSON-RPC 2.0 does not
// ("member names are case sensitive", section 4), so look-alikes are dropped
// before anything decodes the message.
func envelopeNames() []string {
	return []string{"jsonrpc", "id", "method", "params", "result", "error"}
}

func paramNames() []string {
	return []string{
		"_meta", "name", "arguments", "cursor", "uri", "protocolVersion", "capabilities", "clientInfo",
		"requestId", "reason", "task", "taskId", "inputResponses", "requestState", "notifications", "level", "ref",
		"argument", "context", "progressToken", "progress", "total", "message",
	}
}

func metaNames() []string {
	return []string{
		"progressToken", mcpMeta + "protocolVersion", mcpMeta + "clientInfo", mcpMeta + "clientCapabilities",
		mcpMeta + "logLevel", mcpMeta + "subscriptionId", mcpMeta + "related-task",
		"relavium/idempotencyKey", "relavium/depth", "traceparent", "tracestate", "baggage",
	}
}

const mcpMeta = "io.modelcontextprotocol/"

// parse checks one message and returns it with look-alike members dropped; the
// zero message stands for one that needs nothing done. A response has nothing
// but its reply. On an error it returns
// the id that the error answers, or nil.
func parse(line []byte) (message, json.RawMessage, *Error) {
	if !utf8.Valid(line) || !json.Valid(line) {
		return message{}, nil, &Error{Code: CodeParse, Message: "parse error: not a JSON text in UTF-8"}
	}
	ms, ok := members(line)
	if !ok {
		return message{}, nil, invalid("a message is one JSON object")
	}
	ms, twice := distinct(ms, envelopeNames())
	var m message
	var version, params, result, refused json.RawMessage
	hasID, hasMethod, hasResult := false, false, false
	for _, f := range ms {
		switch f.key {
		case "jsonrpc":
			version = f.value
		case "id":
			m.id, hasID = f.value, true
		case "method":
			hasMethod = true
			if f.value[0] != '"' || json.Unmarshal(f.value, &m.method) != nil {
				m.method = ""
			}
		case "params":
			params = f.value
		case "result":
			result, hasResult = f.value, true
		case "error":
			refused, hasResult = f.value, true
		}
	}
	if twice == "id" {
		return message{}, nil, invalid(`member "id" appears twice`)
	}
	if hasID && !validID(m.id) && (hasMethod || !hasResult) {
		return message{}, nil, invalid("an id is a string or an integer")
	}
	switch {
	case twice != "":
		return message{}, m.id, invalid("member " + strconv.Quote(clip(twice)) + " appears twice")
	case string(version) != `"2.0"`:
		return message{}, m.id, invalid(`"jsonrpc" is not "2.0"`)
	case !hasMethod && hasResult:
		return message{reply: replyOf(m.id, result, refused)}, nil, nil
	case m.method == "":
		return message{}, m.id, invalid(`no "method"`)
	}
	var e *Error
	m.params, e = exactParams(params)
	switch {
	case e != nil && m.id == nil:
		return message{}, nil, nil // nobody waits for an answer to a notification
	case e != nil:
		return message{}, m.id, e
	}
	return m, m.id, nil
}

// replyOf is a response to a request of ours, or nil for one that can be none:
// our ids are strings.
func replyOf(id, result, refused json.RawMessage) *reply {
	r := &reply{result: result, refused: refused != nil}
	if len(id) == 0 || id[0] != '"' || json.Unmarshal(id, &r.id) != nil || (result == nil) == (refused == nil) {
		return nil
	}
	return r
}

func invalid(what string) *Error {
	return &Error{Code: CodeInvalidRequest, Message: "invalid request: " + what}
}

// exactParams drops look-alike members of params and of its _meta.
func exactParams(params json.RawMessage) (json.RawMessage, *Error) {
	if params == nil || string(params) == "null" {
		return nil, nil
	}
	all, ok := members(params)
	if !ok {
		return nil, &Error{Code: CodeInvalidParams, Message: "invalid params: not an object"}
	}
	ms, twice := distinct(all, paramNames())
	if twice != "" {
		return nil, invalid("member " + strconv.Quote(clip(twice)) + " of params appears twice")
	}
	changed := len(ms) != len(all)
	for i, f := range ms {
		if f.key != "_meta" {
			continue
		}
		allMeta, ok := members(f.value)
		if !ok {
			return nil, &Error{Code: CodeInvalidParams, Message: `invalid params: "_meta" is not an object`}
		}
		meta, twice := distinct(allMeta, metaNames())
		if twice != "" {
			return nil, invalid("member " + strconv.Quote(clip(twice)) + " of _meta appears twice")
		}
		if len(meta) != len(allMeta) {
			ms[i].value, changed = object(meta), true
		}
	}
	if !changed {
		return params, nil
	}
	return object(ms), nil
}

// distinct drops members that differ from one of names only in case, and
// returns the first name that appears twice.
func distinct(ms []member, names []string) (kept []member, twice string) {
	kept = make([]member, 0, len(ms))
	seen := make(map[string]bool, len(ms))
	for _, m := range ms {
		if !slices.Contains(names, m.key) &&
			slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, m.key) }) {
			continue
		}
		if seen[m.key] && twice == "" {
			twice = m.key
		}
		seen[m.key] = true
		kept = append(kept, m)
	}
	return kept, twice
}

// validID reports whether a JSON value may be a request's id: "The Request id
// MUST be a string or integer value. It MUST NOT be null." (MCP, Base Protocol).
func validID(id json.RawMessage) bool {
	if len(id) == 0 {
		return false
	}
	if id[0] == '"' {
		return true
	}
	digits := bytes.TrimPrefix(id, []byte("-"))
	if len(digits) == 0 {
		return false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// idKey makes ids comparable: two spellings of one string are the same id.
func idKey(id json.RawMessage) string {
	if len(id) > 0 && id[0] == '"' {
		var s string
		if json.Unmarshal(id, &s) == nil {
			return `"` + s
		}
	}
	return string(id)
}

// clip keeps what a client sent from filling a message.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	s = s[:most]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}

// members splits a JSON object, which must be valid JSON, into its members in
// written order. ok is false when the value is no object.
func members(value []byte) (ms []member, ok bool) {
	i := space(value, 0)
	if i >= len(value) || value[i] != '{' {
		return nil, false
	}
	i = space(value, i+1)
	for i < len(value) && value[i] == '"' {
		start := i
		i = skip(value, i)
		m := member{raw: value[start:i]}
		if bytes.IndexByte(m.raw, '\\') < 0 {
			m.key = string(m.raw[1 : len(m.raw)-1])
		} else if json.Unmarshal(m.raw, &m.key) != nil {
			return nil, false
		}
		i = space(value, i) + 1 // the colon
		i = space(value, i)
		start = i
		i = skip(value, i)
		if start >= i {
			return nil, false
		}
		m.value = json.RawMessage(value[start:i])
		ms = append(ms, m)
		i = space(value, i)
		if i < len(value) && value[i] == ',' {
			i = space(value, i+1)
		}
	}
	return ms, true
}

// object writes members as a JSON object.
func object(ms []member) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range ms {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(m.raw)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes()
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skip returns the index after the JSON value that starts at i; the text is
// known to be valid.
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
			continue
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\t', '\n', '\r':
			i++
			continue
		default:
			for i < len(b) && !delimiter(b[i]) {
				i++
			}
		}
		if depth <= 0 {
			return min(i, len(b))
		}
	}
	return min(i, len(b))
}

func delimiter(c byte) bool {
	switch c {
	case ',', ':', ']', '}', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}
