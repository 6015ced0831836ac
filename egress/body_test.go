package egress

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func bounded(body io.Reader, limit int64, events bool) *boundedBody {
	return &boundedBody{
		body: io.NopCloser(body), limit: limit, events: events,
		ctx: func() error { return nil }, end: func() {}, report: func(error) {},
	}
}

func TestBodyBounds(t *testing.T) {
	t.Parallel()
	event := "data: 123456\n\n" // 14 bytes with the blank line
	for _, c := range []struct {
		name   string
		body   string
		events bool
		limit  int64
		want   string // what is read; "" if it is over the bound
	}{
		{"whole body at the bound", strings.Repeat("x", 14), false, 14, strings.Repeat("x", 14)},
		{"whole body over it", strings.Repeat("x", 15), false, 14, ""},
		{"blank lines are no boundary in a whole body", strings.Repeat("\n\n", 8), false, 14, ""},
		{"events at the bound", strings.Repeat(event, 100), true, 13, strings.Repeat(event, 100)},
		{"event over it", event, true, 12, ""},
		{"CRLF", "data: 12\r\n\r\ndata: 3\r\n\r\n", true, 9, "data: 12\n\ndata: 3\n\n"},
		{"CR", "data: 12\r\rdata: 3\r\r", true, 9, "data: 12\n\ndata: 3\n\n"},
		{"LF", "data: 12\n\ndata: 3\n\n", true, 9, "data: 12\n\ndata: 3\n\n"},
		{"mixed", "a\r\n\rb\n\r\nc\r\r\n", true, 2, "a\n\nb\n\nc\n\n"},
		{"a line end is no boundary", "a\nb\nc\nd\n", true, 7, ""},
		{"CR LF is one line end, not a blank line", "a\r\nb\r\nc\r\n", true, 5, ""},
		{"blank lines alone", strings.Repeat("\r\n", 100), true, 1, strings.Repeat("\n", 100)},
		{"comments count", strings.Repeat(":12345\n", 3), true, 20, ""},
		{"1024 lines", strings.Repeat("d\n", 1024) + "\n", true, 1 << 20, strings.Repeat("d\n", 1024) + "\n"},
		{"1025 lines", strings.Repeat("d\n", 1025) + "\n", true, 1 << 20, ""},
		{"comment lines do not add up", strings.Repeat(":\n", 5000), true, 1 << 20, strings.Repeat(":\n", 5000)},
		{"no line end at all", strings.Repeat("x", 1000), true, 999, ""},
		{"cut in mid-line", "data: 1", true, 7, "data: 1"},
	} {
		for name, r := range map[string]io.Reader{
			"at once":  strings.NewReader(c.body),
			"by bytes": iotest.OneByteReader(strings.NewReader(c.body)),
			"with EOF": iotest.DataErrReader(strings.NewReader(c.body)),
		} {
			got, err := io.ReadAll(bounded(r, c.limit, c.events))
			if c.want == "" {
				if _, ok := errors.AsType[*TooLargeError](err); !ok {
					t.Errorf("%s, %s: read %d bytes, error %v, want *TooLargeError", c.name, name, len(got), err)
				}
				continue
			}
			if err != nil || string(got) != c.want {
				t.Errorf("%s, %s: read %q, error %v, want %q", c.name, name, got, err, c.want)
			}
		}
	}
}

// After the bound the error stays, and nothing more is read.
func TestBodyStaysOver(t *testing.T) {
	t.Parallel()
	b := bounded(strings.NewReader(strings.Repeat("x", 100)), 10, false)
	var reported []error
	ended := 0
	b.report = func(err error) { reported = append(reported, err) }
	b.end = func() { ended++ }
	p := make([]byte, 50)
	for range 3 {
		if n, err := b.Read(p); n != 0 || ReasonOf(err) != ReasonTooLarge {
			t.Errorf("Read = %d, %v, want 0, %s", n, err, ReasonTooLarge)
		}
	}
	if len(reported) != 1 || ended != 1 {
		t.Errorf("reported %d times, ended %d times, want 1 and 1", len(reported), ended)
	}
}

// Memory stays flat on a stream without any line end that a naive reader would see.
func TestBodyNeverEndingLine(t *testing.T) {
	t.Parallel()
	b := bounded(&repeating{text: []byte("data: x\r\r")}, 64, true)
	p := make([]byte, 4096)
	lines := 0
	for range 1000 {
		n, err := b.Read(p)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(p[:n]), "\n\n")
	}
	if lines < 1000 {
		t.Errorf("%d event ends that a reader of LF sees, want many", lines)
	}
}

type repeating struct {
	text []byte
	at   int
}

func (r *repeating) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.text[r.at]
		r.at = (r.at + 1) % len(r.text)
	}
	return len(p), nil
}

func TestIsEventStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		contentType, encoding string
		status                int
		want                  bool
	}{
		{"text/event-stream", "", 200, true},
		{"Text/Event-Stream; charset=utf-8", "", 200, true},
		{"text/event-stream", "identity", 200, true},
		{"text/event-stream", "gzip", 200, false},
		{"text/event-stream", "", 500, false},
		{"text/event-streams", "", 200, false},
		{"application/json", "", 200, false},
		{"", "", 200, false},
		{"text/event-stream; =", "", 200, false},
	} {
		h := http.Header{"Content-Type": {c.contentType}, "Content-Encoding": {c.encoding}}
		if got := isEventStream(&http.Response{StatusCode: c.status, Header: h}); got != c.want {
			t.Errorf("isEventStream(%q, %q, %d) = %v, want %v", c.contentType, c.encoding, c.status, got, c.want)
		}
	}
}

func FuzzBodyEvents(f *testing.F) {
	f.Add([]byte("data: 1\r\n\r\ndata: 2\n\n:x\r\r"), uint8(3))
	f.Add([]byte("\r\n\r\n\n\r"), uint8(1))
	f.Fuzz(func(t *testing.T, body []byte, chunk uint8) {
		want := strings.ReplaceAll(strings.ReplaceAll(string(body), "\r\n", "\n"), "\r", "\n")
		const limit = 16
		over := false
		for event := range strings.SplitSeq(want, "\n\n") {
			over = over || len(strings.TrimLeft(event, "\n")) > limit
		}
		r := io.Reader(strings.NewReader(string(body)))
		if chunk%2 == 1 {
			r = iotest.OneByteReader(r)
		}
		got, err := io.ReadAll(bounded(r, limit, true))
		switch {
		case over && err == nil:
			t.Errorf("read %q, want an error: an event is over %d bytes", body, limit)
		case err == nil && string(got) != want:
			t.Errorf("read %q of %q, want %q", got, body, want)
		}
	})
}

func BenchmarkBodyEvents(b *testing.B) {
	body := strings.Repeat("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n", 1000)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.Copy(io.Discard, bounded(strings.NewReader(body), defaultMessage, true)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestBodyEndedByItsRequest reads a body that ends in good order after its request was
// ended, as a server sends it that stops at the disconnect.
func TestBodyEndedByItsRequest(t *testing.T) {
	t.Parallel()
	ended := errors.New("ended")
	var cause, reported error
	b := bounded(iotest.OneByteReader(strings.NewReader("half")), 100, false)
	b.ctx, b.report = func() error { return cause }, func(err error) { reported = err }
	if n, err := b.Read(make([]byte, 8)); n != 1 || err != nil {
		t.Fatalf("Read = %d, %v, want the first byte", n, err)
	}
	cause = ended
	if got, err := io.ReadAll(b); !errors.Is(err, ended) || string(got) != "alf" || !errors.Is(reported, ended) {
		t.Errorf("ReadAll = %q, %v, reported %v; want what is left and that it was ended", got, err, reported)
	}
}
