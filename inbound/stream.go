package inbound

import (
	"context"
	"errors"
	"io"
)

// A stream is a wire of newline-delimited messages: MCP's stdio transport over a
// child's pipes. It has no lanes.
type stream struct {
	out  io.Writer
	turn chan struct{} // held while a message is written
	end  func(ctx context.Context) error
	over chan struct{} // closed when nothing more is read
}

// newStream returns the wire over a child's stdin and stdout. end ends the child and
// returns when it and all its descendants are gone, or its context is.
func newStream(stdin io.Writer, end func(ctx context.Context) error) *stream {
	return &stream{out: stdin, turn: make(chan struct{}, 1), end: end, over: make(chan struct{})}
}

// read hands what the child writes to the sink until it writes no more.
func (s *stream) read(stdout io.Reader, to sink) {
	defer close(s.over)
	in := newLines(stdout)
	for {
		line, over, err := in.next()
		switch {
		case err != nil:
			to.lost(errEnded)
			return
		case over != nil:
			to.oversized(over)
		case len(line) > 0:
			to.deliver(0, line)
		}
	}
}

// send writes one message. A message that was begun is finished, whatever becomes of
// ctx: half of one would be the end of the connection.
func (s *stream) send(ctx context.Context, out *outgoing) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return errUnsent
	case <-s.over:
		return errEnded
	}
	defer func() { <-s.turn }()
	if ctx.Err() != nil {
		return errUnsent
	}
	out.begun.Store(true)
	// "Messages are delimited by newlines, and MUST NOT contain embedded newlines."
	if _, err := s.out.Write(append(out.body, '\n')); err != nil {
		return errors.Join(errEnded, err)
	}
	return nil
}

func (s *stream) cancelByEnd() bool { return false }

// close ends the child and waits until its output was read to the end.
func (s *stream) close(ctx context.Context) error {
	err := s.end(ctx)
	select {
	case <-s.over:
	case <-ctx.Done():
		err = errors.Join(err, errOwed)
	}
	return err
}
