package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

// connectProxy tunnels every CONNECT to one address and records what it was asked for.
// With a status other than 200 it refuses; with 0 it is silent.
type connectProxy struct {
	status int
	to     string
	extra  string // sent right after the response

	mu    sync.Mutex
	asked []string
}

func (p *connectProxy) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.tunnel(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func (p *connectProxy) tunnel(c net.Conn) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.asked = append(p.asked, req.Method+" "+req.RequestURI)
	p.mu.Unlock()
	if p.status == 0 {
		_, _ = io.Copy(io.Discard, r)
		return
	}
	if p.status != http.StatusOK {
		resp := http.Response{StatusCode: p.status, ProtoMajor: 1, ProtoMinor: 1}
		_ = resp.Write(c)
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"+p.extra)
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(c, up)
		_ = c.Close()
	}()
	_, _ = io.Copy(up, r)
	_ = up.Close()
	<-done
}

func TestOperatorProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"mcp.example"}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	p := &connectProxy{status: http.StatusOK, to: w.tls.Listener.Addr().String()}
	proxy, err := ParseProxy("http://" + p.serve(t))
	if err != nil {
		t.Fatal(err)
	}
	z := &zone{answers: map[string][][]string{"mcp.example.": {{"93.184.216.34"}, {"10.0.0.5"}}}}
	var dialed []netip.AddrPort
	client := OpenClient(Options{Resolver: z, RootCAs: w.roots, Proxy: proxy, Control: func(_ context.Context, addr netip.AddrPort) error {
		dialed = append(dialed, addr)
		return nil
	}})
	resp, err := get(t, client, "https://mcp.example/")
	if err != nil {
		t.Fatalf("GET by the proxy = %v, want an answer", err)
	}
	_ = resp.Body.Close()
	client.CloseIdleConnections()
	// The second lookup answers with a private address: the proxy is not even asked.
	resp, err = get(t, client, "https://mcp.example/")
	if err == nil {
		_ = resp.Body.Close()
	}
	if ReasonOf(err) != ReasonPrivate {
		t.Errorf("rebound name by the proxy = %v, want %s", err, ReasonPrivate)
	}
	if got := strings.Join(p.asked, ","); got != "CONNECT 93.184.216.34:443" {
		t.Errorf("the proxy was asked %q, want the checked address once", got)
	}
	if names := w.names(); len(names) != 1 || names[0] != "mcp.example" {
		t.Errorf("server names %q, want the host", names)
	}
	if len(dialed) != 1 || dialed[0].String() != proxy.HostPort() {
		t.Errorf("sockets to %v, want the proxy alone", dialed)
	}
}

// A local target goes direct whatever the proxy is.
func TestProxyNotForLocal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"127.0.0.1"}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	p := &connectProxy{status: http.StatusForbidden}
	proxy, err := ParseProxy("http://" + p.serve(t))
	if err != nil {
		t.Fatal(err)
	}
	target, err := ParseTarget("http://"+w.plain.Listener.Addr().String()+"/", true)
	if err != nil {
		t.Fatal(err)
	}
	client := Client(target, Options{Proxy: proxy})
	defer client.CloseIdleConnections()
	resp, err := get(t, client, target.URL().String())
	if err != nil {
		t.Fatalf("GET = %v, want an answer", err)
	}
	_ = resp.Body.Close()
	if len(p.asked) != 0 {
		t.Errorf("the proxy was asked %q, want nothing", p.asked)
	}
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*connectProxy{
		"403": {status: http.StatusForbidden}, "302": {status: http.StatusFound}, "silent": {},
		"speaks first": {status: http.StatusOK, extra: "\x16\x03"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			p.to = l.Addr().String()
			_ = l.Close()
			proxy, err := ParseProxy("http://" + p.serve(t))
			if err != nil {
				t.Fatal(err)
			}
			z := &zone{answers: map[string][][]string{"mcp.example.": {{"93.184.216.34"}}}}
			opt := Options{Resolver: z, Proxy: proxy}
			if name == "silent" {
				opt.ConnectTimeout = 300 * time.Millisecond
			}
			client := OpenClient(opt)
			defer client.CloseIdleConnections()
			resp, err := get(t, client, "https://mcp.example/")
			if err == nil {
				_ = resp.Body.Close()
			}
			if _, ok := errors.AsType[*ConnectError](err); !ok || !Unsent(err) {
				t.Errorf("GET = %v, want a ConnectError, unsent", err)
			}
			if name == "403" && !strings.Contains(err.Error(), "the proxy answered 403") {
				t.Errorf("GET = %v, want the proxy's status named", err)
			}
		})
	}
}

func TestParseProxy(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Reason{
		"http://10.0.0.1:3128": "", "http://localhost:3128": "", "https://proxy.example": "", "http://8.8.8.8:3128": "",
		"http://169.254.169.254:80": ReasonMetadata, "http://u:p@proxy.example": ReasonUserinfo,
		"socks5://proxy.example": ReasonScheme, "http://0.0.0.0:3128": ReasonReserved,
	} {
		if _, err := ParseProxy(raw); ReasonOf(err) != want || (err == nil) != (want == "") {
			t.Errorf("ParseProxy(%q) = %v, want %q", raw, err, want)
		}
	}
}

// By https the proxy must prove its name, and the target its own inside.
func TestSecureProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"proxy.example"}, http.NotFoundHandler())
	proxy, err := ParseProxy("https://proxy.example:8443")
	if err != nil {
		t.Fatal(err)
	}
	z := &zone{answers: map[string][][]string{"mcp.example.": {{"93.184.216.34"}}, "proxy.example.": {{"10.0.0.9"}}}}
	opt := w.options(z, "https")
	opt.Proxy = proxy
	resp, err := get(t, OpenClient(opt), "https://mcp.example/")
	if err == nil {
		_ = resp.Body.Close()
	}
	// The server takes no CONNECT: what matters is that TLS came first, under its name.
	if refusal, ok := errors.AsType[*proxyError](err); !ok || refusal.status != http.StatusNotFound {
		t.Errorf("GET = %v, want the proxy's 404", err)
	}
	if names := w.names(); len(names) != 1 || names[0] != "proxy.example" {
		t.Errorf("server names %q, want the proxy's", names)
	}
}
