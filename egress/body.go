package egress

import (
	"context"
	"io"
	"mime"
	"net/http"
)

// maxEventLines bounds the lines of one event: readers that join data lines one by
// one take quadratic time.
const maxEventLines = 1024

// isEventStream tells whether a response is framed as server-sent events. One with a
// content encoding is not: nothing here decodes it, so its frames cannot be seen.
func isEventStream(resp *http.Response) bool {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != "text/event-stream" || resp.StatusCode/100 != 2 {
		return false
	}
	encoding := resp.Header.Get("Content-Encoding")
	return encoding == "" || encoding == "identity"
}

// boundedBody passes a body on and fails once a message is over its bound. Of an
// event stream an event is the message, blank line included; of all else the whole
// body is. Line ends of an event stream (CR, LF or CRLF; WHATWG HTML 9.2.5) are passed
// on as LF: a reader that knows one of them only would else see other boundaries than
// the count does, and let its line grow without end.
type boundedBody struct {
	body   io.ReadCloser
	limit  int64
	events bool
	ctx    func() error // why the request was ended, or nil
	end    func()       // releases the request's deadline; called at the end and at Close
	report func(error)

	n       int64 // bytes of this message so far
	lines   int   // of this event, comments left out
	midLine bool  // the line has a byte already
	cr      bool  // the last byte read was CR
	err     error
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	for {
		n, err := b.body.Read(p)
		var over error
		if b.events {
			n, over = b.countEvents(p[:n])
		} else if b.n += int64(n); b.n > b.limit {
			over = &TooLargeError{Limit: b.limit}
		}
		if over != nil {
			b.fail(over)
			return 0, over
		}
		if err != nil {
			// A server may end the body in good order because the request was ended: what
			// came is not the whole of it.
			if cause := b.ctx(); cause != nil {
				err = cause
			}
			b.fail(err)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// countEvents counts p into the current event, rewrites it in place with LF alone as
// line end, and returns its new length.
func (b *boundedBody) countEvents(p []byte) (int, error) {
	w := 0
	for _, c := range p {
		if c == '\n' && b.cr { // the second half of a CRLF
			b.cr = false
			continue
		}
		if b.cr = c == '\r'; b.cr {
			c = '\n'
		}
		b.n++
		switch {
		case c != '\n':
			if !b.midLine && c != ':' {
				b.lines++
			}
			b.midLine = true
		case b.midLine:
			b.midLine = false
		default: // a blank line ends the event
			b.n, b.lines = 0, 0
		}
		if b.n > b.limit {
			return 0, &TooLargeError{Limit: b.limit}
		}
		if b.lines > maxEventLines {
			return 0, &TooLargeError{Limit: b.limit, Lines: maxEventLines}
		}
		p[w] = c
		w++
	}
	return w, nil
}

func (b *boundedBody) fail(err error) {
	b.err = err
	if err != io.EOF { //nolint:errorlint // a body returns io.EOF itself, unwrapped
		b.report(err)
	}
	b.end()
}

// Close ends the request. Closing before the end drops the connection.
func (b *boundedBody) Close() error {
	defer b.end()
	return b.body.Close()
}

// upgradedBody is the connection after a 101 response. Its messages are bounded by
// whoever speaks the protocol that was switched to.
type upgradedBody struct {
	io.ReadWriteCloser
	end func()
}

func (b *upgradedBody) Close() error {
	defer b.end()
	return b.ReadWriteCloser.Close()
}

// reportKey is the context key of WithReport.
type reportKey struct{}

// WithReport returns a context whose requests, made with a client of this package,
// also hand each error that ends them to report, in its own type, at once. It is for
// callers below a library that drops the errors of a body or turns them into text.
// report is called from the goroutine that met the error, so it must not block and
// must be safe for concurrent use.
func WithReport(ctx context.Context, report func(error)) context.Context {
	return context.WithValue(ctx, reportKey{}, report)
}

func reportOf(ctx context.Context) func(error) {
	if report, ok := ctx.Value(reportKey{}).(func(error)); ok && report != nil {
		return report
	}
	return func(error) {}
}
