package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// tunnel connects to addr by the proxy (RFC 9110 9.3.6). The proxy is asked for the
// checked address, so it resolves nothing.
func (d *dialer) tunnel(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	conn, err := d.dial(ctx, d.proxy)
	if err != nil {
		return nil, err
	}
	// The socket's deadline is how a context reaches a read.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	through, err := d.ask(ctx, conn, addr)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return through, nil
}

// ask makes conn, to the proxy, a connection to addr.
func (d *dialer) ask(ctx context.Context, conn net.Conn, addr netip.AddrPort) (net.Conn, error) {
	if d.proxy.scheme == "https" {
		secure := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: d.roots, ServerName: d.proxy.host})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = secure
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", addr); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxHeaderBytes))
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, &proxyError{resp.StatusCode}
	case r.Buffered() > 0: // a TLS server does not speak first
		return nil, errors.New("the proxy sent bytes before it was sent any")
	}
	return conn, nil
}

// proxyError is a proxy's refusal.
type proxyError struct{ status int }

func (e *proxyError) Error() string { return fmt.Sprintf("the proxy answered %d", e.status) }
