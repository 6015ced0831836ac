package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/workflows"
)

func TestUnfence(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{` {"a":1} `, `{"a":1}`},
		{"```json\n{\"a\":1}\n```", `{"a":1}`},
		{"```\n[1]\n```\n", `[1]`},
		{"~~~ json title\n1\n~~~", `1`},
		{"````\n```\n1\n```\n````", "```\n1\n```"},
		{"```json\n{\"a\":1}", "```json\n{\"a\":1}"},
		{"so:\n```\n1\n```", "so:\n```\n1\n```"},
		{"```\n1\n```\nthat is it", "```\n1\n```\nthat is it"},
		{"``` 1 ```", "``` 1 ```"},
		{"````\n1\n```", "````\n1\n```"},
		{"```", "```"},
		{"``````", "``````"},
		{"", ""},
	} {
		if got := unfence(tt.text); got != tt.want {
			t.Errorf("unfence(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
}

// What comes out is a part of what goes in, and JSON stays what it is.
func FuzzUnfence(f *testing.F) {
	for _, s := range []string{"```json\n{}\n```", "~~~\n1\n~~~", "```", "````x\n\n````", `"a"`, " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := unfence(text)
		if !strings.Contains(text, got) {
			t.Errorf("unfence(%q) = %q, which is no part of it", text, got)
		}
		value, err := workflows.Compact(json.RawMessage(text))
		if err != nil {
			return
		}
		for _, s := range []string{text, "```json\n" + text + "\n```", "\n~~~\n" + text + "\n~~~\n"} {
			again, err := workflows.Compact(json.RawMessage(unfence(s)))
			if err != nil || string(again) != string(value) {
				t.Errorf("unfence(%q) = %q, want %q", s, unfence(s), text)
			}
		}
	})
}

// Head and tail are apart, whole characters, and within the bounds.
func FuzzCut(f *testing.F) {
	f.Add("a\nb", uint16(1))
	f.Add("€", uint16(20000))
	f.Add("\n", uint16(2001))
	f.Add("x\r\n\x00é", uint16(30000))
	f.Fuzz(func(t *testing.T, piece string, times uint16) {
		text := strings.ToValidUTF8(strings.Repeat(piece, min(int(times), 1<<20/max(len(piece), 1))), "?")
		head, tail, over := cut(text)
		if !over {
			if len(text) > maxShownBytes || lines(text) > maxShownLines {
				t.Errorf("cut leaves %d bytes, %d lines", len(text), lines(text))
			}
			return
		}
		first, last := text[:head], text[tail:]
		switch {
		case head > tail:
			t.Errorf("cut = %d, %d", head, tail)
		case head == tail:
			t.Errorf("cut of %d bytes, %d lines leaves all", len(text), lines(text))
		case len(first)+len(last) > maxShownBytes-512 || lines(first)+lines(last) > maxShownLines-2:
			t.Errorf("cut keeps %d bytes, %d lines", len(first)+len(last), lines(first)+lines(last))
		case !utf8.ValidString(first) || !utf8.ValidString(last):
			t.Error("cut through a character")
		}
	})
}

func FuzzClip(f *testing.F) {
	f.Add("aé€", 3)
	f.Fuzz(func(t *testing.T, text string, n int) {
		if !utf8.ValidString(text) || n < 3 || n > 1<<20 {
			return
		}
		got := clip(text, n)
		if len(got) > n || !utf8.ValidString(got) || len(text) <= n && got != text {
			t.Errorf("clip(%q, %d) = %q", text, n, got)
		}
	})
}

func TestCost(t *testing.T) {
	t.Parallel()
	p := Price{Input: 3_000_000, Output: 15_000_000, CacheRead: 300_000, CacheWrite: 3_750_000}
	for _, tt := range []struct {
		used Usage
		p    Price
		want int64
	}{
		{Usage{}, p, 0},
		{Usage{Input: 1000, Output: 100}, p, 4500},
		{Usage{Input: 1, Output: 1, CacheRead: 10, CacheWrite: 4}, p, 3 + 15 + 3 + 15},
		{Usage{Input: 1}, Price{Input: 1}, 1},
		{Usage{Input: -5, Output: 1}, p, 15},
		{Usage{Input: 1 << 62, Output: 1 << 62}, p, 1 << 53},
	} {
		if got := cost(tt.used, tt.p); got != tt.want {
			t.Errorf("cost(%+v) = %d, want %d", tt.used, got, tt.want)
		}
	}
	if got := estimate(300, 10, p); got != 100*3+10*15 {
		t.Errorf("estimate(300, 10) = %d, want 450", got)
	}
}
