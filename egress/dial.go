package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

const (
	maxAddresses   = 16                     // of one name that are tried
	attemptTimeout = 10 * time.Second       // of one connection attempt
	attemptDelay   = 250 * time.Millisecond // before the next address is tried beside it (RFC 8305 5)
	keepAlive      = 30 * time.Second
)

// A Resolver looks up the addresses of a host. network is always "ip", host ends in a
// dot. [*net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// dialer opens checked connections.
type dialer struct {
	resolver Resolver
	timeout  time.Duration // of a lookup and all its attempts
	control  func(ctx context.Context, addr netip.AddrPort) error
	proxy    *Target
	roots    *x509.CertPool                                                   // that vouch for a proxy by https
	connect  func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) // tests only; nil is the kernel
}

// dial connects to the target. Every address of its name must pass, or none is used.
func (d *dialer) dial(ctx context.Context, t *Target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	answer, err := d.resolve(ctx, t)
	if err != nil {
		return nil, err
	}
	addrs, err := t.admitAll(answer)
	if err != nil {
		return nil, err
	}
	return d.race(ctx, t, addrs)
}

func (d *dialer) resolve(ctx context.Context, t *Target) ([]netip.Addr, error) {
	switch {
	case t.addr.IsValid():
		return []netip.Addr{t.addr}, nil
	case t.isLocalhost(): // never asked of a server, RFC 6761 6.3
		return []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	// The dot keeps a resolver from trying the search list.
	answer, err := d.resolver.LookupNetIP(ctx, "ip", t.host+".")
	if err != nil {
		return nil, &ResolveError{Host: t.host, Err: err}
	}
	return answer, nil
}

// admitAll applies the policy to an answer and returns it without duplicates, IPv6
// and IPv4 in turn.
func (t *Target) admitAll(answer []netip.Addr) ([]netip.Addr, error) {
	var six, four []netip.Addr
	seen := make(map[netip.Addr]bool, len(answer))
	for _, a := range answer {
		if err := t.admit(a); err != nil {
			return nil, err
		}
		a = a.Unmap()
		switch {
		case seen[a]:
		case a.Is6():
			six = append(six, a)
		default:
			four = append(four, a)
		}
		seen[a] = true
	}
	if len(seen) == 0 {
		return nil, t.deny(ReasonNoAddress, "the name has no address")
	}
	addrs := make([]netip.Addr, 0, len(seen))
	for i := range max(len(six), len(four)) {
		if i < len(six) {
			addrs = append(addrs, six[i])
		}
		if i < len(four) {
			addrs = append(addrs, four[i])
		}
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}

// race tries the addresses in order, the next one when the last has failed or has
// taken attemptDelay, and returns the first connection (RFC 8305). All attempts have
// ended when it returns.
func (d *dialer) race(ctx context.Context, t *Target, addrs []netip.Addr) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	type attempt struct {
		conn net.Conn
		err  error
	}
	results := make(chan attempt)
	started, ended := 0, 0
	start := func() {
		addr := netip.AddrPortFrom(addrs[started], t.port)
		started++
		go func() {
			conn, err := d.one(ctx, t, addr)
			results <- attempt{conn, err}
		}()
	}
	defer func() {
		cancel()
		for ; ended < started; ended++ {
			if late := <-results; late.conn != nil {
				_ = late.conn.Close()
			}
		}
	}()
	timer := time.NewTimer(attemptDelay)
	defer timer.Stop()
	start()
	var errs []error
	for {
		select {
		case <-timer.C:
		case r := <-results:
			ended++
			if r.err == nil {
				return r.conn, nil
			}
			errs = append(errs, r.err)
			if ended == len(addrs) {
				return nil, &ConnectError{Host: t.host, Err: errors.Join(errs...)}
			}
		case <-ctx.Done():
			return nil, &ConnectError{Host: t.host, Err: errors.Join(append(errs, context.Cause(ctx))...)}
		}
		if started < len(addrs) {
			start()
			timer.Reset(attemptDelay)
		}
	}
}

// one connects to one checked address, by the proxy if there is one for it.
func (d *dialer) one(ctx context.Context, t *Target, addr netip.AddrPort) (net.Conn, error) {
	if d.proxy != nil && t.reach == reachPublic {
		return d.tunnel(ctx, addr)
	}
	return d.direct(ctx, t, addr)
}

// direct connects to one checked address, and checks it again where the kernel is about
// to be asked and once more on the connection that came of it.
func (d *dialer) direct(ctx context.Context, t *Target, addr netip.AddrPort) (net.Conn, error) {
	check := func(ctx context.Context, address string) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) != addr {
			return t.deny(ReasonOrigin, "the socket is not for the checked address")
		}
		if err := t.admit(at.Addr()); err != nil {
			return err
		}
		if d.control != nil {
			return d.control(ctx, addr)
		}
		return nil
	}
	if d.connect != nil {
		if err := check(ctx, addr.String()); err != nil {
			return nil, err
		}
		return d.connect(ctx, addr)
	}
	nd := net.Dialer{
		Timeout:   attemptTimeout,
		KeepAlive: keepAlive,
		ControlContext: func(ctx context.Context, _, address string, _ syscall.RawConn) error {
			return check(ctx, address)
		},
	}
	conn, err := nd.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	peer, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || netip.AddrPortFrom(peer.AddrPort().Addr().Unmap(), peer.AddrPort().Port()) != addr {
		_ = conn.Close()
		return nil, t.deny(ReasonOrigin, "the peer is not the checked address")
	}
	return conn, nil
}
