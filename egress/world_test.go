package egress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"
)

// zone answers lookups: the nth answer to the nth lookup of a name, then the last.
type zone struct {
	mu      sync.Mutex
	answers map[string][][]string
	asked   []string
}

func (z *zone) LookupNetIP(_ context.Context, network, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked = append(z.asked, network+" "+host)
	rounds := z.answers[host]
	if len(rounds) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.53:53", IsNotFound: true}
	}
	if len(rounds) > 1 {
		z.answers[host] = rounds[1:]
	}
	var addrs []netip.Addr
	for _, text := range rounds[0] {
		if text == "NXDOMAIN" {
			return nil, &net.DNSError{Err: "no such host", Name: host, Server: "192.0.2.53:53", IsNotFound: true}
		}
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs, nil
}

func (z *zone) lookups() int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return len(z.asked)
}

// world stands for the network beyond the sockets: every checked address leads to one
// of two real servers on loopback, one with TLS and one without.
type world struct {
	plain, tls *httptest.Server
	roots      *x509.CertPool
	dead, hang []string

	mu     sync.Mutex
	dialed []netip.AddrPort // each socket that was about to connect
	sni    []string
}

func newWorld(t *testing.T, names []string, h http.Handler) *world {
	t.Helper()
	cert, roots := certificate(t, names)
	w := &world{roots: roots}
	w.plain = httptest.NewServer(h)
	t.Cleanup(w.plain.Close)
	w.tls = httptest.NewUnstartedServer(h)
	w.tls.EnableHTTP2 = true
	w.tls.TLS = &tls.Config{
		Certificates: []tls.Certificate{cert},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.sni = append(w.sni, hello.ServerName)
			return nil, nil
		},
	}
	w.tls.StartTLS()
	t.Cleanup(w.tls.Close)
	return w
}

// options are those of a client in this world. A target whose scheme is http gets the
// plain server.
func (w *world) options(r Resolver, scheme string) Options {
	server := w.tls
	if scheme == "http" {
		server = w.plain
	}
	return Options{
		Resolver: r,
		RootCAs:  w.roots,
		Control: func(_ context.Context, addr netip.AddrPort) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.dialed = append(w.dialed, addr)
			return nil
		},
		connect: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			if slices.Contains(w.dead, addr.Addr().String()) {
				return nil, errors.New("dead")
			}
			if slices.Contains(w.hang, addr.Addr().String()) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
		},
	}
}

func (w *world) sockets() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dialed)
}

func (w *world) names() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sni)
}

// certificate returns a certificate for names and addresses and the pool that trusts it.
func certificate(t *testing.T, names []string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}

// get sends a GET and returns the response with its body still to be read.
func get(t *testing.T, c *http.Client, url string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(req)
}
