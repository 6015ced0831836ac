package publish

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"
)

func TestReadable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"\u003c\u003e\u0026"`:   `"<>&"`,
		`"\\u003c"`:              `"\\u003c"`,
		`"\\\u003c"`:             `"\\<"`,
		`"\"\u003c\""`:           `"\"<\""`,
		`"\u0000\u2028"`:         `"\u0000\u2028"`,
		`{"\u003ck":["\u0026"]}`: `{"<k":["&"]}`,
		`1.50`:                   `1.50`,
	} {
		if got := string(readable(json.RawMessage(in))); got != want {
			t.Errorf("readable(%s) = %s, want %s", in, got, want)
		}
	}
}

// FuzzReadable holds readable to the value that it got.
func FuzzReadable(f *testing.F) {
	f.Add(`a<b>&"\u003c`)
	f.Add(`\\u0026`)
	f.Fuzz(func(t *testing.T, s string) {
		in, err := json.Marshal(map[string]any{s: []string{s}})
		if err != nil {
			t.Skip()
		}
		var want, got any
		if err := json.Unmarshal(in, &want); err != nil {
			t.Fatal(err)
		}
		out := readable(in)
		if err := json.Unmarshal(out, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("readable(%s) = %s (%v), want the same value", in, out, err)
		}
	})
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in, want string
		n        int
	}{
		{"abc", "abc", 3},
		{"abcd", "abc…", 3},
		{"aéb", "a…", 2},
		{"ééé", "é…", 3},
	} {
		if got := clip(tt.in, tt.n); got != tt.want || !utf8.ValidString(got) {
			t.Errorf("clip(%q, %d) = %q, want %q", tt.in, tt.n, got, tt.want)
		}
	}
}
