package secrets

import "io"

// A Stream scrubs a text that comes in chunks cut anywhere. It keeps back only the
// end of a chunk that may be the beginning of a value, less than the longest form of
// one. It is for one goroutine.
type Stream struct {
	scrubber *Scrubber
	carry    string
	covered  int // so much of carry belongs to a value whose label was given out
}

// Stream begins a text.
func (s *Scrubber) Stream() *Stream { return &Stream{scrubber: s} }

// Add takes the next chunk and returns what is certain of the text so far and was
// not returned before.
func (t *Stream) Add(chunk string) string {
	text := t.carry + chunk
	x := t.scrubber.known()
	if x == nil {
		t.carry = ""
		return text
	}
	return t.emit(x, text, x.hold(text))
}

// Flush returns the rest of the text and begins another.
func (t *Stream) Flush() string {
	x := t.scrubber.known()
	if x == nil {
		return t.Add("")
	}
	return t.emit(x, t.carry, len(t.carry))
}

// Piece is Add and, at the last piece, Flush.
func (t *Stream) Piece(piece string, last bool) string {
	out := t.Add(piece)
	if last {
		out += t.Flush()
	}
	return out
}

// emit gives out the text up to cut and keeps the rest.
func (t *Stream) emit(x *index, text string, cut int) string {
	spans := x.find(text)
	at := t.covered // given out already, perhaps beyond cut
	for at > 0 && len(spans) > 0 && spans[0].start < at {
		at = max(at, spans[0].end)
		spans = spans[1:]
	}
	var out []byte
	for _, found := range spans {
		if found.start >= cut {
			break
		}
		out = append(out, text[at:found.start]...)
		out = append(out, found.label...)
		at = found.end
	}
	if at < cut {
		out = append(out, text[at:cut]...)
		at = cut
	}
	t.carry, t.covered = text[cut:], at-cut
	return string(out)
}

// Writer returns a writer that scrubs each write by itself, for writers of whole
// records such as those of slog's handlers. It passes on errors and reports what it
// was given as written.
func (s *Scrubber) Writer(w io.Writer) io.Writer { return &recordWriter{s, w} }

type recordWriter struct {
	scrubber *Scrubber
	w        io.Writer
}

func (r *recordWriter) Write(record []byte) (int, error) {
	if _, err := r.w.Write(r.scrubber.Bytes(record)); err != nil {
		return 0, err
	}
	return len(record), nil
}

// StreamWriter returns a writer that scrubs a stream of bytes. Close writes what it
// kept back and leaves w open. It is for one goroutine.
func (s *Scrubber) StreamWriter(w io.Writer) io.WriteCloser { return &streamWriter{s.Stream(), w} }

type streamWriter struct {
	stream *Stream
	w      io.Writer
}

func (c *streamWriter) Write(chunk []byte) (int, error) {
	if err := c.put(c.stream.Add(string(chunk))); err != nil {
		return 0, err
	}
	return len(chunk), nil
}

func (c *streamWriter) Close() error { return c.put(c.stream.Flush()) }

func (c *streamWriter) put(text string) error {
	if text == "" {
		return nil
	}
	_, err := io.WriteString(c.w, text)
	return err
}
