package inbound

import (
	"context"
	"errors"
	"io"
	"net/url"

	"github.com/coder/websocket"

	"github.com/relavium/relavium-serve/egress"
)

// socketWire speaks MCP over a websocket of this machine: one text message for each
// message of the protocol. It has no lanes.
type socketWire struct {
	conn *websocket.Conn
	to   sink
	turn chan struct{} // held while a message is written
	end  context.CancelFunc
	over chan struct{} // closed when nothing more is read
}

// dialSocket connects. ctx bounds that alone.
func dialSocket(ctx context.Context, target *egress.Target, opt egress.Options, to sink) (*socketWire, error) {
	client := egress.Client(target, opt)
	//nolint:bodyclose // the library closes it, or the connection is it
	conn, resp, err := websocket.Dial(ctx, target.URL().String(), &websocket.DialOptions{
		HTTPClient: client, Subprotocols: []string{"mcp"}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		client.CloseIdleConnections()
		if resp != nil && resp.StatusCode != 0 && egress.ReasonOf(err) == "" {
			return nil, &statusError{status: resp.StatusCode}
		}
		if whole, ok := errors.AsType[*url.Error](err); ok {
			err = whole.Err // the library's text holds the whole URL
		}
		return nil, err
	}
	conn.SetReadLimit(-1) // read bounds a message and reads on over it
	stay, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &socketWire{conn: conn, to: to, turn: make(chan struct{}, 1), end: end, over: make(chan struct{})}
	go s.read(stay)
	return s, nil
}

func (s *socketWire) read(ctx context.Context) {
	defer close(s.over)
	for {
		_, r, err := s.conn.Reader(ctx)
		if err == nil {
			err = s.one(r)
		}
		if err != nil {
			s.to.lost(errEnded)
			return
		}
	}
}

// one reads one message: of one over the bound it keeps what the envelope says.
func (s *socketWire) one(r io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(r, maxLine+1))
	if err != nil {
		return err
	}
	if len(raw) <= maxLine {
		s.to.deliver(0, raw)
		return nil
	}
	over := &oversize{}
	over.scan.feed(raw)
	raw = raw[:64<<10]
	for {
		n, err := r.Read(raw)
		over.scan.feed(raw[:n])
		if errors.Is(err, io.EOF) {
			s.to.oversized(over.known())
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// send writes one message. One that was begun is finished, whatever becomes of ctx: the
// library would close the connection otherwise.
func (s *socketWire) send(ctx context.Context, out *outgoing) error {
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
	if err := s.conn.Write(context.WithoutCancel(ctx), websocket.MessageText, out.body); err != nil {
		return errors.Join(errEnded, err)
	}
	return nil
}

func (s *socketWire) cancelByEnd() bool { return false }

// close drops the connection: there is nothing in the protocol to be said at its end.
func (s *socketWire) close(ctx context.Context) error {
	_ = s.conn.CloseNow() // it is closed either way
	s.end()
	select {
	case <-s.over:
		return nil
	case <-ctx.Done():
		return errOwed
	}
}
