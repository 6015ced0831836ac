package child

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/relavium/relavium-serve/inbound/text"
)

const (
	// maxTailBytes is what is kept of a server's stderr.
	maxTailBytes = 64 << 10
	// maxLineBytes is what is logged of one line.
	maxLineBytes = 2 << 10
	// linesPerSecond and linesAtOnce bound how much of it is logged.
	linesPerSecond = 10
	linesAtOnce    = 50
)

// A sink is what becomes of a server's stderr.
type sink struct {
	kept   *tail
	logged *lineLog
}

func (s *sink) Write(p []byte) (int, error) {
	_, _ = s.kept.Write(p)
	return s.logged.Write(p)
}

// Close logs the last line if it has no end.
func (s *sink) Close() error {
	s.logged.emit()
	return nil
}

// drain reads the program's stderr for as long as there is any, whatever becomes of it: a
// program that cannot write there would stand still.
func (p *Process) drain(sink io.WriteCloser) {
	defer close(p.drained)
	buf := make([]byte, 32<<10)
	for {
		n, err := p.stderr.Read(buf)
		if n > 0 {
			_, _ = sink.Write(buf[:n])
		}
		if err != nil {
			_ = sink.Close()
			return
		}
	}
}

// A tail keeps the last bytes that were written to it.
type tail struct {
	limit int

	mu  sync.Mutex
	buf []byte // at most twice the limit between writes
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if len(p) > t.limit {
		p, t.cut = p[len(p)-t.limit:], true
	}
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > t.limit {
		t.buf, t.cut = append(t.buf[:0], t.buf[over:]...), true
	}
	return n, nil
}

// String returns what was kept, from the beginning of a line if something was cut off.
func (t *tail) String() string {
	kept := t.bytes()
	t.mu.Lock()
	cut := t.cut || len(t.buf) > t.limit
	t.mu.Unlock()
	if cut {
		if i := bytes.IndexByte(kept, '\n'); i >= 0 {
			kept = kept[i+1:]
		}
	}
	return string(kept)
}

// bytes returns a copy of what was kept.
func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.buf[max(0, len(t.buf)-t.limit):])
}

// A lineLog logs the lines that are written to it, some of them when there are many.
type lineLog struct {
	log      *slog.Logger
	limit    *rate.Limiter
	line     []byte
	long     bool // the rest of the line is skipped
	withheld int
}

func newLineLog(log *slog.Logger) *lineLog {
	return &lineLog{log: log, limit: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

func (l *lineLog) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		p = rest
		if room := maxLineBytes - len(l.line); len(part) > room {
			part, l.long = part[:room], true
		}
		l.line = append(l.line, part...)
		if ended {
			l.emit()
		}
	}
	return n, nil
}

func (l *lineLog) emit() {
	line, long := bytes.TrimRight(l.line, "\r"), l.long
	l.line, l.long = l.line[:0], false
	switch {
	case len(line) == 0:
		return
	case !l.limit.AllowN(time.Now(), 1):
		l.withheld++
		return
	}
	attrs := []any{slog.String("line", text.Line(string(line), maxLineBytes))}
	if long {
		attrs = append(attrs, slog.Bool("cut", true))
	}
	if l.withheld > 0 {
		attrs = append(attrs, slog.Int("withheld", l.withheld))
		l.withheld = 0
	}
	l.log.Debug("stderr", attrs...)
}
