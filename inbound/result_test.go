package inbound

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResultText(t *testing.T) {
	tests := []struct {
		name, result, want string
		isError            bool
		err                error
	}{
		{name: "text", result: `{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, want: "a\nb"},
		{name: "error", result: `{"content":[{"type":"text","text":"no"}],"isError":true}`, want: "no", isError: true},
		{name: "isError that is no true", result: `{"content":[],"isError":"true"}`},
		{
			name: "all kinds", result: `{"content":[{"type":"text","text":"a"},` +
				`{"type":"resource","resource":{"uri":"file:///x","mimeType":"text/plain","text":"inside"}},` +
				`{"type":"image","data":"AAAA","mimeType":"image/png"},` +
				`{"type":"resource_link","uri":"http://localhost:6379/","name":"x"}]}`,
			want: "a\ninside\n[image, image/png, not shown]\n[link, http://localhost:6379/, not shown]",
		},
		{name: "only an image", result: `{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}`, want: "[image, image/png, not shown]"},
		{name: "a blob", result: `{"content":[{"type":"resource","resource":{"uri":"x:y","blob":"AA"}}]}`, want: "[resource, x:y, not shown]"},
		{name: "audio", result: `{"content":[{"type":"audio","data":"AA","mimeType":"a/b\n[text"}]}`, want: "[audio, a/b [text, not shown]"},
		{name: "an unknown kind", result: `{"content":[{"type":"hologram"}]}`, want: "[content of type hologram, not shown]"},
		{name: "structured", result: `{"content":[],"structuredContent":{"b":1,"a":[1.50,"x"]}}`, want: `{"a":[1.50,"x"],"b":1}`},
		{name: "structured without content", result: `{"structuredContent":{"a":1}}`, want: `{"a":1}`},
		{name: "structured said as text", result: `{"content":[{"type":"text","text":"{ \"b\" : 2, \"a\" : 1 }"}],"structuredContent":{"a":1,"b":2}}`, want: `{ "b" : 2, "a" : 1 }`},
		{name: "text said as structured", result: `{"content":[{"type":"text","text":"one\n"}],"structuredContent":{"content":"one\n"}}`, want: "one\n"},
		{name: "text said as structured, and more", result: `{"content":[{"type":"text","text":"one"}],"structuredContent":{"content":"one","n":1}}`, want: "one\n{\"content\":\"one\",\"n\":1}"},
		{name: "both", result: `{"content":[{"type":"text","text":"one"}],"structuredContent":{"a":1}}`, want: "one\n{\"a\":1}"},
		{name: "structured null", result: `{"content":[],"structuredContent":null}`},
		{name: "empty", result: `{"content":[]}`},
		{name: "complete", result: `{"resultType":"complete","content":[{"type":"text","text":"a"}]}`, want: "a"},
		{name: "input required", result: `{"resultType":"input_required","inputRequests":{}}`, err: errInput},
		{name: "another type", result: `{"resultType":"task","content":[]}`, err: errResult},
		{name: "no content", result: `{}`, err: errResult},
		{name: "content is a text", result: `{"content":"a"}`, err: errResult},
		{name: "a part is a text", result: `{"content":["a"]}`, err: errResult},
		{name: "a text without text", result: `{"content":[{"type":"text"}]}`, err: errResult},
		{name: "a text that is a number", result: `{"content":[{"type":"text","text":5}]}`, err: errResult},
		{name: "not an object", result: `[]`, err: errResult},
		{name: "null", result: `null`, err: errResult},
		{name: "capital names", result: `{"Content":[{"type":"text","text":"a"}]}`, err: errResult},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, isError, err := resultText([]byte(test.result))
			if !errors.Is(err, test.err) || err == nil && (got != test.want || isError != test.isError) {
				t.Errorf("resultText(%s) = %q, %t, %v, want %q, %t, %v", test.result, got, isError, err, test.want, test.isError, test.err)
			}
		})
	}
}

// The bound is on the sum of all that is text.
func TestResultBound(t *testing.T) {
	part := func(n int) string { return `{"type":"text","text":"` + strings.Repeat("x", n) + `"}` }
	resource := func(n int) string {
		return `{"type":"resource","resource":{"uri":"a:b","text":"` + strings.Repeat("é", n/2) + `"}}`
	}
	const half = maxResultText / 2
	for name, parts := range map[string][2]string{
		"one text":           {part(maxResultText), part(maxResultText + 1)},
		"two texts":          {part(half) + "," + part(half), part(half) + "," + part(half+1)},
		"text and resource":  {part(half) + "," + resource(half), part(half+1) + "," + resource(half)},
		"escapes count once": {`{"type":"text","text":"` + strings.Repeat(`\u0041`, maxResultText) + `"}`, `{"type":"text","text":"` + strings.Repeat(`\u0041`, maxResultText+1) + `"}`},
	} {
		if _, _, err := resultText(fmt.Appendf(nil, `{"content":[%s]}`, parts[0])); err != nil {
			t.Errorf("%s: at the bound = %v", name, err)
		}
		if _, _, err := resultText(fmt.Appendf(nil, `{"content":[%s]}`, parts[1])); !errors.Is(err, errTooLarge) {
			t.Errorf("%s: one over = %v, want %v", name, err, errTooLarge)
		}
	}
	structured := func(n int) string {
		return fmt.Sprintf(`{"content":[%s],"structuredContent":{ "a" : "%s" }}`, part(half), strings.Repeat("x", n))
	}
	fits := half - len(`{"a":""}`)
	if _, _, err := resultText([]byte(structured(fits))); err != nil {
		t.Errorf("structured at the bound = %v", err)
	}
	if _, _, err := resultText([]byte(structured(fits + 1))); !errors.Is(err, errTooLarge) {
		t.Errorf("structured one over = %v, want %v", err, errTooLarge)
	}
	if _, _, err := resultText(fmt.Appendf(nil, `{"content":[%s{"type":"image"}]}`, strings.Repeat(`{"type":"image"},`, 100_000))); !errors.Is(err, errTooLarge) {
		t.Errorf("100,001 notes = %v, want %v", err, errTooLarge)
	}
}

func TestParseMessage(t *testing.T) {
	for src, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`:                                 "id 1 result {}",
		`{"jsonrpc":"2.0","id":"a","method":"ping"}`:                           `id "a" method ping`,
		`{"jsonrpc":"2.0","method":"x","params":{"a":1}}`:                      "method x",
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}`:         `id null error {"code":1,"message":"m"}`,
		`{"\u006asonrpc":"2.0","id":1,"result":{},"other":1,"other":2}`:        "id 1 result {}",
		`{"jsonrpc":"1.0","id":1,"result":{}}`:                                 "",
		`{"id":1,"result":{}}`:                                                 "",
		`{"jsonrpc":"2.0","id":1,"ID":2,"Result":{}}`:                          "",
		`{"jsonrpc":"2.0","id":1,"id":1,"result":{}}`:                          "",
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}`: "",
		`{"jsonrpc":"2.0","result":{}}`:                                        "",
		`{"jsonrpc":"2.0","id":1}`:                                             "",
		`{"jsonrpc":"2.0","id":1,"method":5}`:                                  "",
		`{"jsonrpc":"2.0","id":1,"method":""}`:                                 "",
		`{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`:                    "",
		`[{"jsonrpc":"2.0","id":1,"result":{}}]`:                               "",
		`null`:                                                                 "",
		``:                                                                     "",
		`{"jsonrpc":"2.0","id":1,"result":{}} {}`:                              "",
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"\xff\"}}":           "",
	} {
		m, err := parseMessage([]byte(src))
		got := ""
		if err == nil {
			if m.id != nil {
				got += "id " + string(m.id) + " "
			}
			if m.method != "" {
				got += "method " + m.method
			}
			if m.result != nil {
				got += "result " + string(m.result)
			}
			if m.fault != nil {
				got += "error " + string(m.fault)
			}
		}
		if got != want {
			t.Errorf("parseMessage(%s) = %q, %v, want %q", src, got, err, want)
		}
	}
}

func TestOwnID(t *testing.T) {
	for src, want := range map[string]int64{
		"1": 1, "12": 12, "0": 0, "-1": 0, "1.0": 0, "01": 0, "1e0": 0, `"1"`: 0, "null": 0, "": 0, "9223372036854775808": 0, "+1": 0,
	} {
		if got, ok := ownID([]byte(src)); ok != (want > 0) || ok && got != want {
			t.Errorf("ownID(%s) = %d, %t, want %d", src, got, ok, want)
		}
	}
}

func TestEvents(t *testing.T) {
	for src, want := range map[string][]string{
		"data: a\n\n":                           {"message a"},
		"data:a\n\n":                            {"message a"},
		"data:  a\n\n":                          {"message  a"},
		"event: x\ndata: a\ndata: b\n\n":        {"x a\nb"},
		"data\n\n":                              nil,
		"data: a":                               nil,
		"data: a\n":                             nil,
		"\ufeffdata: a\n\n":                     {"message a"},
		":c\n\nid: 1\n\ndata: a\n\ndata: b\n\n": {"message a", "message b"},
		"event: x\n\ndata: a\n\n":               {"message a"},
		"Data: a\nDATA: b\n\n":                  nil,
		"data: " + strings.Repeat("y", 70_000) + "\n\n": {"message " + strings.Repeat("y", 70_000)},
	} {
		var got []string
		if err := readEvents(strings.NewReader(src), &cursor{}, func(e event) bool {
			got = append(got, e.name+" "+string(e.data))
			return true
		}); err != nil {
			t.Errorf("readEvents(%.40q) = %v", src, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("readEvents(%.40q) (-want +got):\n%s", src, diff)
		}
	}
	var at cursor
	_ = readEvents(strings.NewReader("id: 1\ndata:\n\nid: 2\nretry: 15\n\nid: a\x00b\n\nretry: x\nid: 3\n"), &at, func(event) bool { return true })
	if at.id != "2" || at.retry.Milliseconds() != 15 {
		t.Errorf("cursor = %q, %v, want 2 and 15 ms", at.id, at.retry)
	}
}

// What is known of a line that was not kept is what its outermost object says.
func TestEnvelopeScan(t *testing.T) {
	for src, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"result":{"id":8}}`:   "7",
		`{"result":{"a":["]}\"{",{"id":8}]},"id":"x"}`: `"x"`,
		`{"\u0069d":7}`:                            "7",
		`{ "id" : 7 , "result" : [ ] }`:            "7",
		`{"a":"\\","id":7}`:                        "7",
		`{"a":"\\\"","id":7}`:                      "7",
		`{"id":7,"id":8}`:                          "",
		`{"result":{"id":7}}`:                      "",
		`{"ID":7}`:                                 "",
		`[{"id":7}]`:                               "",
		`"id":7`:                                   "",
		`{"id":{"id":7}}`:                          "",
		`{"method":"x","id":7}`:                    "method 7",
		`{"params":{"method":"x"},"id":7}`:         "7",
		`{"` + strings.Repeat("x", 100) + `id":7}`: "",
		`{"id":` + strings.Repeat("7", 100) + `}`:  "",
		`{"result":"` + strings.Repeat("x", 1000) + `","id":7`: "", // cut off
	} {
		for _, step := range []int{1, 3, len(src)} {
			o := &oversize{}
			for rest := src; rest != ""; rest = rest[min(step, len(rest)):] {
				o.scan.feed([]byte(rest[:min(step, len(rest))]))
			}
			o.known()
			got := ""
			if _, ours := ownID(o.id); ours || len(o.id) > 0 && o.id[0] == '"' {
				got = string(o.id)
			}
			if o.method {
				got = "method " + got
			}
			if got != want {
				t.Errorf("scan of %.60s in steps of %d = %q, want %q", src, step, got, want)
			}
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a"}],"structuredContent":{"a":1}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"x","data":[1,2,{"a":[]}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var scan envelopeScan
		scan.feed(raw)
		if len(scan.token) > maxToken || len(scan.id) > maxToken {
			t.Errorf("the scan keeps %d and %d bytes", len(scan.token), len(scan.id))
		}
		m, err := parseMessage(raw)
		if err != nil {
			return
		}
		if m.result != nil {
			if text, _, err := resultText(m.result); err == nil && len(text) > maxResultText+len(raw) {
				t.Errorf("a text of %d bytes", len(text))
			}
		}
		if m.fault != nil {
			_, _ = parseRPCError(m.fault)
		}
		p := newPeer(func(string, ...any) {})
		p.deliver(0, raw)
	})
}

func FuzzEvents(f *testing.F) {
	f.Add("data: a\nid: 1\nretry: 5\n\n")
	f.Fuzz(func(t *testing.T, src string) {
		total := 0
		_ = readEvents(strings.NewReader(src), &cursor{}, func(e event) bool {
			total += len(e.data)
			return true
		})
		if total > len(src) {
			t.Errorf("%d bytes of data in a stream of %d", total, len(src))
		}
	})
}
