package inbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"

	"github.com/relavium/relavium-serve/egress"
)

// errNoEndpoint says that a server of the old HTTP+SSE transport did not begin its
// stream as that transport does.
var errNoEndpoint = errors.New("the event stream names no endpoint of its own origin")

// sseWire speaks HTTP+SSE of 2024-11-05: one GET stream brings everything that the
// server says, and each message to it is posted to the endpoint that the stream named
// first. It has no lanes.
type sseWire struct {
	client   *http.Client
	to       sink
	endpoint string
	end      context.CancelCauseFunc // ends the stream
	over     chan struct{}           // closed when nothing more is read
}

// dialSSE opens the stream and waits for its endpoint. ctx bounds that alone.
func dialSSE(ctx context.Context, target *egress.Target, opt egress.Options, to sink) (*sseWire, error) {
	s := &sseWire{client: egress.Client(target, opt), to: to, over: make(chan struct{})}
	stay, end := context.WithCancelCause(context.WithoutCancel(ctx))
	s.end = end
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	named := make(chan error, 1)
	go s.listen(stay, target.URL(), named)
	err := <-named // it comes at the latest when ctx ends
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		end(errClosed)
		<-s.over
		s.client.CloseIdleConnections()
		return nil, err
	}
	return s, nil
}

// listen reads the stream until it ends. named gets nil when the endpoint is known, or
// why it will not be.
func (s *sseWire) listen(ctx context.Context, at *url.URL, named chan<- error) {
	defer close(s.over)
	tell := func(err error) {
		if named != nil {
			named <- err
			named = nil
		}
	}
	err := s.read(ctx, at, func() { tell(nil) })
	if err == nil {
		err = errEnded
	}
	tell(err)
	if egress.ReasonOf(err) == egress.ReasonTooLarge {
		err = errTooLarge
	} else {
		err = errEnded
	}
	s.to.lost(err)
}

func (s *sseWire) read(ctx context.Context, at *url.URL, named func()) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := do(s.client, req)
	if err != nil {
		return err
	}
	defer closeBody(resp)
	if resp.StatusCode != http.StatusOK || mediaType(resp) != "text/event-stream" {
		return &statusError{status: resp.StatusCode}
	}
	var bad error
	err = readEvents(resp.Body, &cursor{}, func(e event) bool {
		switch {
		case e.name == "endpoint" && s.endpoint == "":
			if s.endpoint, bad = endpointOf(at, e.data); bad == nil {
				named()
			}
		case e.name == "message" && s.endpoint != "":
			s.to.deliver(0, e.data)
		case s.endpoint == "":
			bad = errNoEndpoint
		}
		return bad == nil
	})
	return errors.Join(bad, err)
}

// endpointOf resolves the URL that the server names. It is of the origin that the stream
// came from, scheme included; the client would refuse any other.
func endpointOf(at *url.URL, data []byte) (string, error) {
	if len(data) > maxServerText {
		return "", errNoEndpoint
	}
	u, err := at.Parse(string(data))
	if err != nil || u.Scheme != at.Scheme || u.Host != at.Host || u.User != nil || u.Fragment != "" {
		return "", fmt.Errorf("%w: another origin", errNoEndpoint)
	}
	return u.String(), nil
}

func (s *sseWire) send(ctx context.Context, out *outgoing) error {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { out.begun.Store(true) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint, bytes.NewReader(out.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := do(s.client, req)
	if err != nil {
		return err
	}
	defer closeBody(resp)
	out.status.Store(int32(resp.StatusCode)) //nolint:gosec // three digits
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return &statusError{status: resp.StatusCode, text: string(raw[:min(len(raw), maxServerText)])}
	}
	if err != nil && egress.ReasonOf(err) != "" {
		return err
	}
	return nil
}

func (s *sseWire) cancelByEnd() bool { return false }

func (s *sseWire) close(ctx context.Context) error {
	s.end(errClosed)
	defer s.client.CloseIdleConnections()
	select {
	case <-s.over:
		return nil
	case <-ctx.Done():
		return errOwed
	}
}
