package secrets

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// canaries are values as they occur: tokens, keys with marks, passwords with
// whatever a keyboard has, other scripts, several lines.
func canaries() []string {
	return []string{
		"sk-proj-AbCdEf0123456789_-xyzXYZ", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "xoxb-17653672481-19874698323",
		"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "hunter2!", `p"a\s/s w%o&r<d>'=+?#`, "pässwörd-ünïcode-ß",
		"密码密码密码密码", "🔑🗝️🔐🔒", "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\r\n-----END KEY-----", "tab\tand\x01control\x7fbyte",
		"aaaaaaaaaaaaaaaa", "abababababababab", "00000000", "a b c d e f g h", "{\"json\":\"value\"}", "100%25%2525%",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP", strings.Repeat("long-", 300) + "end",
	}
}

// encodings are the ways in which a value travels, as those who send it make them.
func encodings() map[string]func(string) string {
	base := func(enc *base64.Encoding, before, after int) func(string) string {
		return func(v string) string {
			return enc.EncodeToString([]byte(strings.Repeat("\x9c", before) + v + strings.Repeat("\x37", after)))
		}
	}
	all := map[string]func(string) string{
		"raw": func(v string) string { return v },
		"json": func(v string) string {
			text, err := json.Marshal(map[string]string{"k": v})
			if err != nil {
				panic(err)
			}
			return string(text)
		},
		"json without html": func(v string) string {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(v); err != nil {
				panic(err)
			}
			return out.String()
		},
		"go":            strconv.Quote,
		"go ascii":      strconv.QuoteToASCII,
		"query":         url.QueryEscape,
		"path":          url.PathEscape,
		"percent lower": func(v string) string { return lowerEscapes(url.QueryEscape(v)) },
		"percent all": func(v string) string {
			var out strings.Builder
			for i := range len(v) {
				fmt.Fprintf(&out, "%%%02x", v[i])
			}
			return out.String()
		},
		"hex":       func(v string) string { return hex.EncodeToString([]byte(v)) },
		"upper hex": func(v string) string { return fmt.Sprintf("%X", v) },
	}
	for before := range 3 {
		for after := range 3 {
			all[fmt.Sprintf("base64 %d %d", before, after)] = base(base64.StdEncoding, before, after)
			all[fmt.Sprintf("base64 url %d %d", before, after)] = base(base64.RawURLEncoding, before, after)
		}
	}
	return all
}

// core is the part of an encoded value that must not survive: all of it, but of
// base64 what depends on the bytes around the value.
func core(encoding, encoded string) string {
	switch {
	case strings.HasPrefix(encoding, "base64"):
		return strings.TrimRight(encoded, "=")[4 : len(strings.TrimRight(encoded, "="))-4]
	case strings.HasPrefix(encoding, "json"), strings.HasPrefix(encoding, "go"):
		return strings.Trim(strings.TrimSpace(encoded), `"{}`)
	}
	return encoded
}

func learned(tb testing.TB, values ...string) *Scrubber {
	tb.Helper()
	s := new(Scrubber)
	for i, value := range values {
		name, err := mcpName("canary" + strconv.Itoa(i))
		if err != nil {
			tb.Fatal(err)
		}
		s.Learn(name, value)
	}
	return s
}

func TestNoCanarySurvives(t *testing.T) {
	t.Parallel()
	values := canaries()
	scrubber := learned(t, values...)
	random := rand.New(rand.NewPCG(1, 2))
	for i, value := range values {
		label := "[secret:mcp/canary" + strconv.Itoa(i) + "]"
		for encoding, encode := range encodings() {
			encoded := encode(value)
			text := "before ~ " + encoded + " ~ after"
			clean := scrubber.String(text)
			if rest := core(encoding, encoded); strings.Contains(clean, rest) || !strings.Contains(clean, label) {
				t.Errorf("canary %d, %s: String = %q", i, encoding, clean)
			}
			if !strings.HasPrefix(clean, "before ~ ") || !strings.HasSuffix(clean, " ~ after") {
				t.Errorf("canary %d, %s: String = %q, want what is around it unchanged", i, encoding, clean)
			}
			for _, size := range []int{1, 2, 3, 7, 16, 64, len(text), 0} {
				if got := chunked(scrubber, text, size, random); got != clean {
					t.Errorf("canary %d, %s, chunks of %d:\n got %q\nwant %q", i, encoding, size, got, clean)
				}
			}
		}
	}
}

// chunked streams a text in chunks of a size, or of random ones for 0.
func chunked(s *Scrubber, text string, size int, random *rand.Rand) string {
	var out bytes.Buffer
	w := s.StreamWriter(&out)
	for len(text) > 0 {
		n := size
		if n == 0 {
			n = 1 + random.IntN(40)
		}
		n = min(n, len(text))
		if _, err := w.Write([]byte(text[:n])); err != nil {
			panic(err)
		}
		text = text[n:]
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.String()
}

func TestOverlappingValuesLeaveNoRest(t *testing.T) {
	t.Parallel()
	scrubber := learned(t, "abcdefgh12345678", "12345678zyxwvuts", "abcdefgh")
	for _, tt := range []struct{ text, want string }{
		{"abcdefgh12345678zyxwvuts", "[secret:mcp/canary0]"},
		{"abcdefgh1234567 ", "[secret:mcp/canary2]1234567 "},
		{"abcdefghabcdefgh", "[secret:mcp/canary2][secret:mcp/canary2]"},
		{"abcdefg abcdefg", "abcdefg abcdefg"},
		{"", ""},
	} {
		if got := scrubber.String(tt.text); got != tt.want {
			t.Errorf("String(%q) = %q, want %q", tt.text, got, tt.want)
		}
		for size := 1; size <= len(tt.text); size++ {
			if got := chunked(scrubber, tt.text, size, nil); got != tt.want {
				t.Errorf("chunks of %d of %q = %q, want %q", size, tt.text, got, tt.want)
			}
		}
	}
}

func TestStreamKeepsBackLittle(t *testing.T) {
	t.Parallel()
	scrubber := learned(t, "abcdefghij", strings.Repeat("a", 40))
	stream := scrubber.Stream()
	if got := stream.Add("a whole sentence without the value. "); got != "a whole sentence without the value. " {
		t.Errorf("Add = %q, want all of it at once", got)
	}
	if got := stream.Add("xabcde"); got != "x" {
		t.Errorf("Add = %q, want what cannot be the value", got)
	}
	if got := stream.Add("!"); got != "abcde!" {
		t.Errorf("Add = %q, want what turned out not to be the value", got)
	}
	for range 1000 {
		stream.Add(strings.Repeat("a", 1000))
	}
	if longest := scrubber.known().longest; len(stream.carry) >= longest {
		t.Errorf("a stream keeps back %d bytes, want less than %d", len(stream.carry), longest)
	}
	if got := stream.Flush(); strings.Contains(got, "a") {
		t.Errorf("Flush = %q, want nothing of a long value", got)
	}
	if got := stream.Add("fresh") + stream.Flush(); got != "fresh" {
		t.Errorf("after Flush = %q", got)
	}
}

func TestScrubberLearnsAsItGoes(t *testing.T) {
	t.Parallel()
	scrubber := new(Scrubber)
	var out bytes.Buffer
	w := scrubber.Writer(&out)
	text := []byte(canary)
	if got := scrubber.Bytes(text); &got[0] != &text[0] {
		t.Error("Bytes copied a text without values")
	}
	scrubber.Learn(names(t, "search")[0], "short")
	scrubber.Learn(names(t, "search")[0], canary)
	if n, err := w.Write([]byte("x short " + canary)); err != nil || n != len("x short "+canary) {
		t.Errorf("Write = %d, %v", n, err)
	}
	if got := out.String(); got != "x short [secret:search]" {
		t.Errorf("Writer wrote %q", got)
	}
	if got := string(text); got != canary {
		t.Errorf("Bytes changed its argument to %q", got)
	}
	var none *Scrubber
	none.Learn(names(t, "search")[0], canary)
	if got := none.String(canary) + none.Stream().Piece(canary, true); got != canary+canary {
		t.Errorf("a nil Scrubber changed the text to %q", got)
	}
}

func TestScrubberLearnsTheEnvironment(t *testing.T) {
	t.Parallel()
	scrubber := new(Scrubber)
	scrubber.LearnEnviron([]string{
		"RELAVIUM_OPENAI_API_KEY=value-of-openai", "RELAVIUM_MCP_TOKEN=value-of-token", "RELAVIUM_INPUT_DEPLOY_PIN=value-of-the-pin",
		"RELAVIUM_MCP_OTHER_FILE=/run/secrets/other", "RELAVIUM_HOME=/home/me/.relavium", "OPENAI_API_KEY=not-our-variable", "RELAVIUM_MCP_SHORT=short", "odd",
	})
	text := "value-of-openai value-of-token value-of-the-pin /run/secrets/other /home/me/.relavium not-our-variable short"
	want := "[secret:RELAVIUM_OPENAI_API_KEY] [secret:RELAVIUM_MCP_TOKEN] [secret:RELAVIUM_INPUT_DEPLOY_PIN] /run/secrets/other /home/me/.relavium not-our-variable short"
	if got := scrubber.String(text); got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	scrubber.Learn(names(t, "mcp/token")[0], "value-of-token")
	if got, want := scrubber.String("value-of-token"), "[secret:mcp/token]"; got != want {
		t.Errorf("once resolved, String = %q, want %q", got, want)
	}
}

func TestScrubberIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	scrubber := new(Scrubber)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name, value := names(t, "mcp/n"+strconv.Itoa(i))[0], fmt.Sprintf("value-%d-of-eight", i)
			for range 50 {
				scrubber.Learn(name, value)
				if got, want := scrubber.String("a "+value+" b"), "a [secret:mcp/n"+strconv.Itoa(i)+"] b"; got != want {
					t.Errorf("String = %q, want %q", got, want)
				}
			}
		})
	}
	wg.Wait()
}

type wrapped struct {
	Inner string
	raw   []byte
}

func TestHandler(t *testing.T) {
	t.Parallel()
	scrubber := learned(t, canary)
	for name, make := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var out bytes.Buffer
		log := slog.New(scrubber.Handler(make(&out))).With("with", canary).WithGroup("g")
		log.Info("message "+canary, "text", canary, "error", errors.New("broken: "+canary), "struct", wrapped{Inner: canary},
			"bytes", []byte(canary), "hidden", wrapped{raw: []byte(canary)}, slog.Group("in", "deep", url.QueryEscape(canary)), canary, 1, "number", 12, "fine", wrapped{Inner: "ok"})
		got := out.String()
		if strings.Contains(got, "canary-0123") || strings.Contains(got, base64.StdEncoding.EncodeToString([]byte(canary))[:20]) || strings.Contains(got, "99 97 110 97") {
			t.Errorf("%s log = %s", name, got)
		}
		for _, want := range []string{"[secret:mcp/canary0]", "number", "12", "ok"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s log = %s, want %s in it", name, got, want)
			}
		}
	}
}

func FuzzScrubber(f *testing.F) {
	for _, value := range canaries() {
		f.Add(value, "before", "after", uint8(3))
	}
	f.Add("aaaaaaaaa", "aaaa", "aaaaaaaaaaaaa", uint8(1))
	f.Fuzz(func(t *testing.T, value, before, after string, size uint8) {
		if checkValue([]byte(value)) != "" || len(value)+len(before)+len(after) > 1<<12 {
			t.Skip()
		}
		scrubber := learned(t, value, "second-"+value)
		for encoding, encode := range encodings() {
			encoded := encode(value)
			text := before + encoded + after
			clean := scrubber.String(text)
			if rest := core(encoding, encoded); len(rest) >= headBytes && strings.Contains(clean, rest) && !strings.Contains("[secret:mcp/canary0][secret:mcp/canary1]", rest) {
				t.Errorf("%s of %q: String(%q) = %q", encoding, value, text, clean)
			}
			if got := chunked(scrubber, text, 1+int(size), nil); got != clean {
				t.Errorf("%s of %q, chunks of %d of %q = %q, want %q", encoding, value, size, text, got, clean)
			}
		}
	})
}

func BenchmarkScrubber(b *testing.B) {
	scrubber := learned(b, canaries()...)
	text := strings.Repeat("The quick brown fox jumps over the lazy dog; 0123456789 {\"json\": [1, 2, 3]}\n", 1000)
	b.Run("whole", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			scrubber.String(text)
		}
	})
	b.Run("tokens", func(b *testing.B) {
		stream := scrubber.Stream()
		for b.Loop() {
			stream.Add("token ")
		}
	})
}
