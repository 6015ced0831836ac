package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// alternating answers public, private, public, private.
type alternating struct{ n atomic.Int64 }

func (a *alternating) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if a.n.Add(1)%2 == 0 {
		return []netip.Addr{netip.MustParseAddr("10.0.0.5")}, nil
	}
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

// The real dialer, up to the socket: Control sees what the kernel would be asked for,
// and stops it there.
func TestRebindingNeverDialsPrivate(t *testing.T) {
	t.Parallel()
	stopped := errors.New("stopped at the socket")
	var public, private int
	d := &dialer{resolver: &alternating{}, timeout: time.Minute, control: func(_ context.Context, addr netip.AddrPort) error {
		if Classify(addr.Addr()).Class == Public {
			public++
		} else {
			private++
		}
		return stopped
	}}
	target, err := ParseTarget("https://rebind.example/", false)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 10_000
	refused := 0
	for range rounds {
		_, err := d.dial(t.Context(), target)
		switch {
		case ReasonOf(err) == ReasonPrivate:
			refused++
		case !errors.Is(err, stopped):
			t.Fatalf("dial = %v, want the policy's or the hook's error", err)
		}
	}
	if public != rounds/2 || private != 0 || refused != rounds/2 {
		t.Errorf("dialed public %d, private %d, refused %d of %d, want half, none, half", public, private, refused, rounds)
	}
}

// The check at the socket stands by itself, whatever came before it.
func TestSocketCheck(t *testing.T) {
	t.Parallel()
	target, err := ParseTarget("https://a.example/", false)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]Reason{"127.0.0.1:443": ReasonPrivate, "169.254.169.254:443": ReasonMetadata, "[::1]:443": ReasonPrivate} {
		conn, err := new(dialer).direct(t.Context(), target, netip.MustParseAddrPort(text))
		if err == nil {
			_ = conn.Close()
		}
		if ReasonOf(err) != want {
			t.Errorf("direct(%s) = %v, want %s", text, err, want)
		}
	}
}

func TestRebindingThroughClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"rebind.example"}, http.NotFoundHandler())
	target, err := ParseTarget("https://rebind.example/", false)
	if err != nil {
		t.Fatal(err)
	}
	client := Client(target, w.options(&alternating{}, "https"))
	for i := range 20 {
		resp, err := get(t, client, target.URL().String())
		if err == nil {
			_ = resp.Body.Close()
		}
		if want := i%2 == 0; (err == nil) != want {
			t.Errorf("round %d: error = %v, want one %v", i, err, !want)
		}
		client.CloseIdleConnections()
	}
	for _, addr := range w.sockets() {
		if Classify(addr.Addr()).Class != Public {
			t.Errorf("dialed %v", addr)
		}
	}
}

// A local endpoint on real sockets, by both families, with nothing replaced.
func TestLocalEndpoint(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skipf("no listener on %s: %v", host, err)
			}
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Host", r.Host)
			}))
			_ = s.Listener.Close()
			s.Listener = l
			s.Start()
			defer s.Close()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			for _, name := range []string{host, "localhost"} {
				target, err := ParseTarget("http://"+net.JoinHostPort(name, port)+"/mcp", true)
				if err != nil {
					t.Fatal(err)
				}
				var dialed atomic.Int64
				client := Client(target, Options{Control: func(context.Context, netip.AddrPort) error {
					dialed.Add(1)
					return nil
				}})
				resp, err := get(t, client, target.URL().String())
				if err != nil {
					t.Errorf("GET %s = %v, want an answer", target.URL(), err)
					continue
				}
				_ = resp.Body.Close()
				client.CloseIdleConnections()
				if got := resp.Header.Get("X-Host"); got != target.HostPort() {
					t.Errorf("Host = %q, want %q", got, target.HostPort())
				}
				if n := dialed.Load(); n < 1 || n > 2 {
					t.Errorf("%d sockets, want 1 or 2", n)
				}
				if _, err := ParseTarget("http://"+net.JoinHostPort(name, port)+"/mcp", false); ReasonOf(err) != ReasonPrivate {
					t.Errorf("ParseTarget without the opt-in = %v, want %s", err, ReasonPrivate)
				}
			}
		})
	}
}

// Nothing listens: the error says so without an address, and proves that nothing was sent.
func TestConnectError(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	target, err := ParseTarget("http://nas.local:"+strconv.Itoa(port)+"/", true)
	if err != nil {
		t.Fatal(err)
	}
	client := Client(target, Options{Resolver: &zone{answers: map[string][][]string{"nas.local.": {{"127.0.0.1"}}}}})
	resp, err := get(t, client, target.URL().String())
	if err == nil {
		_ = resp.Body.Close()
	}
	got, ok := errors.AsType[*ConnectError](err)
	if !ok || !strings.Contains(got.Error(), "refused") || strings.Contains(got.Error(), "127.0.0.1") {
		t.Errorf("error = %v, want a ConnectError that says refused and no address", err)
	}
	if !Unsent(err) {
		t.Error("Unsent = false, want true")
	}
}

func TestResolveErrorText(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`egress: "a.example": no such name`:      &net.DNSError{IsNotFound: true, Server: "10.0.0.2:53"},
		`egress: "a.example": lookup timed out`:  &net.DNSError{IsTimeout: true, Server: "10.0.0.2:53"},
		`egress: "a.example": lookup failed`:     errors.New("10.0.0.2 said no"),
		`egress: "a.example": lookup timed out `: context.DeadlineExceeded,
	} {
		got := &ResolveError{Host: "a.example", Err: err}
		if got.Error() != strings.TrimSpace(want) || !errors.Is(got, err) {
			t.Errorf("Error() = %q, want %q", got, want)
		}
	}
}

// Attempts start 250 ms apart, and none is alive when dial returns: synctest fails on
// a goroutine that is left.
func TestRaceTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var started []time.Duration
		begin := time.Now()
		client, server := net.Pipe()
		defer func() { _ = server.Close() }()
		d := &dialer{
			timeout: time.Minute,
			resolver: &zone{answers: map[string][][]string{"a.example.": {{
				"93.184.216.34", "1.1.1.1", "2606:4700:4700::1111", "93.184.216.34", "2606:4700:4700::1001",
			}}}},
			control: func(_ context.Context, addr netip.AddrPort) error {
				mu.Lock()
				started = append(started, time.Since(begin))
				mu.Unlock()
				if addr.Addr().String() == "93.184.216.34" {
					return errors.New("unreachable")
				}
				return nil
			},
			connect: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
				if addr.Addr().String() == "1.1.1.1" {
					return client, nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}
		target, err := ParseTarget("https://a.example/", false)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := d.dial(t.Context(), target)
		if err != nil || conn != client {
			t.Fatalf("dial = %v, %v, want the last address's connection", conn, err)
		}
		_ = conn.Close()
		// v6, v4 (fails at once), v6, v4: each 250 ms after the one before, or at its failure.
		want := []time.Duration{0, 250 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond}
		if len(started) != len(want) {
			t.Fatalf("attempts at %v, want %v", started, want)
		}
		for i := range want {
			if started[i] != want[i] {
				t.Errorf("attempts at %v, want %v", started, want)
				break
			}
		}
	})
}

func TestConnectDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{
			timeout:  30 * time.Second,
			resolver: &zone{answers: map[string][][]string{"a.example.": {{"1.1.1.1"}}}},
			connect: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
		}
		target, err := ParseTarget("https://a.example/", false)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err = d.dial(t.Context(), target)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 30*time.Second {
			t.Errorf("dial = %v after %v, want the deadline after 30s", err, time.Since(begin))
		}
		if want := `egress: "a.example": connecting timed out`; err == nil || err.Error() != want {
			t.Errorf("error = %v, want %s", err, want)
		}
	})
}

func TestAddressesAreBounded(t *testing.T) {
	t.Parallel()
	var answer []netip.Addr
	for i := range 200 {
		answer = append(answer, netip.AddrFrom4([4]byte{8, 8, 8, byte(i)}))
	}
	target, err := ParseTarget("https://a.example/", false)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := target.admitAll(answer); err != nil || len(got) != maxAddresses {
		t.Errorf("admitAll(200 addresses) = %d, %v, want %d", len(got), err, maxAddresses)
	}
	answer = append(answer, netip.MustParseAddr("127.0.0.1")) // past the bound, and looked at all the same
	if _, err := target.admitAll(answer); ReasonOf(err) != ReasonPrivate {
		t.Errorf("admitAll(200 addresses and loopback) = %v, want %s", err, ReasonPrivate)
	}
}
