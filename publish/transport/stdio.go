package transport

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"time"
)

// Bounds of a Stdio whose fields are zero.
const (
	DefaultMaxLine     = 4 << 20
	DefaultMaxInFlight = 1024
	DefaultMaxHeld     = 256 << 20
	DefaultEOFGrace    = 1500 * time.Millisecond
	DefaultStopGrace   = 8 * time.Second
)

// Stdio serves one client over a pair of streams, one message per line. Answer
// and Logger are required.
type Stdio struct {
	Answer    AnswerFunc
	Principal string
	Logger    *slog.Logger
	Notices   *Notices // that the client hears; nil means that there are none

	MaxLine     int           // bytes of one message; 0 means DefaultMaxLine
	MaxInFlight int           // requests at once; 0 means DefaultMaxInFlight
	MaxHeld     int           // bytes of their messages; 0 means DefaultMaxHeld
	EOFGrace    time.Duration // how long calls may still answer after EOF; 0 means DefaultEOFGrace
	StopGrace   time.Duration // how long they may after ctx ended; 0 means DefaultStopGrace
}

// Serve reads messages from in until it ends or ctx does, and writes answers to
// out and nothing else. At the end of in, or when out fails, requests in flight
// may answer for EOFGrace and are then ended with ErrClosed. When ctx ends they
// are ended at once with ErrStopping and may answer for StopGrace. All of these
// are a regular end: Serve returns nil. A read of in that is under way when ctx
// ends, and a write that the client does not take, are left behind; they end
// when the caller closes the streams or the process ends.
func (s *Stdio) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	l := newLines(in, cmp.Or(s.MaxLine, DefaultMaxLine))
	c := newConn(s.Answer, &Caller{Principal: s.Principal}, s.Logger)
	c.maxInFlight, c.maxHeld = cmp.Or(s.MaxInFlight, DefaultMaxInFlight), cmp.Or(s.MaxHeld, DefaultMaxHeld)
	c.notices = s.Notices
	c.endGrace, c.stopGrace = cmp.Or(s.EOFGrace, DefaultEOFGrace), cmp.Or(s.StopGrace, DefaultStopGrace)
	c.read = func() incoming {
		line, err := l.next()
		return incoming{line: line, err: err}
	}
	c.write = func(line []byte) error {
		_, err := out.Write(line)
		return err
	}
	_ = c.serve(ctx) // however it ends, it is a regular end
	return nil
}
