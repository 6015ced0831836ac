package transport

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	type want struct {
		id, method, params string
		code               int
	}
	tests := []struct {
		name, line string
		want       want
	}{
		{"plain", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, want{id: "1", method: "ping"}},
		{"big integer id", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, want{id: "9007199254740993", method: "ping"}},
		{"negative id", `{"jsonrpc":"2.0","id":-7,"method":"ping"}`, want{id: "-7", method: "ping"}},
		{"string id as written", `{"jsonrpc":"2.0","id":"\u0061","method":"ping"}`, want{id: `"\u0061"`, method: "ping"}},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"fraction id", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"exponent id", `{"jsonrpc":"2.0","id":1e3,"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"array id", `{"jsonrpc":"2.0","id":[1],"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"object id", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"boolean id", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, want{code: CodeInvalidRequest}},
		{"scalar", `7`, want{code: CodeInvalidRequest}},
		{"not JSON", `{"jsonrpc":`, want{code: CodeParse}},
		{"two values", `{} {}`, want{code: CodeParse}},
		{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", want{code: CodeParse}},
		{"no version", `{"id":1,"method":"ping"}`, want{id: "1", code: CodeInvalidRequest}},
		{"version as number", `{"jsonrpc":2.0,"id":1,"method":"ping"}`, want{id: "1", code: CodeInvalidRequest}},
		{"no method", `{"jsonrpc":"2.0","id":1}`, want{id: "1", code: CodeInvalidRequest}},
		{"method as number", `{"jsonrpc":"2.0","id":1,"method":7}`, want{id: "1", code: CodeInvalidRequest}},
		{"method twice", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"x"}`, want{id: "1", code: CodeInvalidRequest}},
		{"method twice, escaped", `{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"x"}`, want{id: "1", code: CodeInvalidRequest}},
		{"id twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, want{code: CodeInvalidRequest}},
		{"look-alike members", `{"jsonrpc":"2.0","id":1,"ID":2,"method":"ping","Method":"x","PARAMS":{}}`, want{id: "1", method: "ping"}},
		{"look-alike by Unicode folding", `{"jsonrpc":"2.0","id":1,"method":"m","paramſ":{"a":1}}`, want{id: "1", method: "m"}},
		{"only a look-alike", `{"jsonrpc":"2.0","id":1,"Method":"ping"}`, want{id: "1", code: CodeInvalidRequest}},
		{
			"params look-alike", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"Name":"a","name":"b","arguments":{"Name":1, "name": 2}}}`,
			want{id: "1", method: "m", params: `{"name":"b","arguments":{"Name":1, "name": 2}}`},
		},
		{"params member twice", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"a","name":"b"}}`, want{id: "1", code: CodeInvalidRequest}},
		{
			"arguments pass untouched", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"arguments":{"a":1,"a":2.50}}}`,
			want{id: "1", method: "m", params: `{"arguments":{"a":1,"a":2.50}}`},
		},
		{
			"meta look-alike", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"ProgressToken":1,"progressToken":2}}}`,
			want{id: "1", method: "m", params: `{"_meta":{"progressToken":2}}`},
		},
		{"meta member twice", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"x":1,"x":2}}}`, want{id: "1", code: CodeInvalidRequest}},
		{"meta as array", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":[]}}`, want{id: "1", code: CodeInvalidParams}},
		{"params as array", `{"jsonrpc":"2.0","id":1,"method":"m","params":[]}`, want{id: "1", code: CodeInvalidParams}},
		{"params null", `{"jsonrpc":"2.0","id":1,"method":"m","params":null}`, want{id: "1", method: "m"}},
		{"notification", `{"jsonrpc":"2.0","method":"n","params":{"a":[{"b":"}\""}]}}`, want{method: "n", params: `{"a":[{"b":"}\""}]}`}},
		{"broken notification", `{"jsonrpc":"2.0","method":"n","params":[]}`, want{}},
		{"response", `{"jsonrpc":"2.0","id":3,"result":{}}`, want{}},
		{"error response without id", `{"jsonrpc":"2.0","id":null,"error":{}}`, want{}},
		{
			"white space", " {\t\"jsonrpc\" : \"2.0\" , \"id\" : 1 , \"method\" : \"m\" , \"params\" : { \"a\" : [ 1 , 2 ] } } \r",
			want{id: "1", method: "m", params: `{ "a" : [ 1 , 2 ] }`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, id, e := parse([]byte(tt.line))
			got := want{id: string(id), method: m.method, params: string(m.params)}
			if e != nil {
				got.code = e.Code
			}
			if got != tt.want {
				t.Errorf("parse(%s) = %+v (%v), want %+v", tt.line, got, e, tt.want)
			}
		})
	}
}

func TestParseNamesNoMoreThanAShortPiece(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("é", 5000)
	_, _, e := parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","` + name + `":1,"` + name + `":2}`))
	if e == nil || len(e.Message) > 300 {
		t.Errorf("parse of a repeated long member = %v, want a short error", e)
	}
}

// FuzzMessage holds the envelope to encoding/json: whatever parse accepts, a
// case-sensitive decoder reads the same from.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":[1,{"b":null}]},"_meta":{"progressToken":"p"}}}`,
		`{"jsonrpc":"2.0","id":"\u0000","METHOD":"x","method":"ping","params":{ }}`,
		`{"a":"\\","b":{"c":"}"},"jsonrpc":"2.0","id":-0,"method":"m"}`,
		`[]`, `{"jsonrpc":"2.0"`, `{"jsonrpc":"2.0","id":1,"result":[[],{}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, id, e := parse(line)
		if id != nil && !validID(id) {
			t.Fatalf("parse(%q) answers to id %q", line, id)
		}
		if e != nil || m.method == "" {
			return
		}
		var all map[string]json.RawMessage // keeps the case of names
		if err := json.Unmarshal(line, &all); err != nil {
			t.Fatalf("parse(%q) accepted what encoding/json does not: %v", line, err)
		}
		var method string
		if err := json.Unmarshal(all["method"], &method); err != nil || method != m.method {
			t.Fatalf("parse(%q) method = %q, want %q (%v)", line, m.method, method, err)
		}
		if string(all["id"]) != string(m.id) {
			t.Fatalf("parse(%q) id = %q, want %q", line, m.id, all["id"])
		}
		if m.params == nil {
			return
		}
		var want, got map[string]json.RawMessage
		if err := json.Unmarshal(all["params"], &want); err != nil {
			t.Fatalf("parse(%q) accepted params %q: %v", line, all["params"], err)
		}
		if err := json.Unmarshal(m.params, &got); err != nil {
			t.Fatalf("parse(%q) params = %q: %v", line, m.params, err)
		}
		for name, value := range got {
			if name != "_meta" && string(want[name]) != string(value) {
				t.Fatalf("parse(%q) params[%q] = %q, want %q", line, name, value, want[name])
			}
		}
	})
}
