package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// public is a target and a client for it in a world where h answers.
func public(t *testing.T, h http.HandlerFunc, change func(*Options)) (*Target, *http.Client, *world) {
	t.Helper()
	w := newWorld(t, []string{"mcp.example"}, h)
	target, err := ParseTarget("https://mcp.example/mcp", false)
	if err != nil {
		t.Fatal(err)
	}
	opt := w.options(&zone{answers: map[string][][]string{"mcp.example.": {{"93.184.216.34"}}}}, "https")
	if change != nil {
		change(&opt)
	}
	client := Client(target, opt)
	t.Cleanup(client.CloseIdleConnections)
	return target, client, w
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	var hits atomic.Int64
	h := func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", to)
		}
		w.WriteHeader(status)
	}
	target, refusing, _ := public(t, h, nil)
	_, returning, _ := public(t, h, func(o *Options) { o.ReturnRedirects = true })
	for _, c := range []struct {
		status   int
		to, want string
	}{
		{300, "", ""},
		{301, "https://mcp.example/mcp", "https://mcp.example/mcp"},
		{302, "http://169.254.169.254/latest", "http://169.254.169.254/latest"},
		{303, "/relative?token=s3cret#frag", "https://mcp.example/relative"},
		{304, "", ""},
		{305, "https://user:pw@proxy.example:1/", "https://proxy.example:1/"},
		{307, "https://public.example/" + strings.Repeat("a", 400), "https://public.example/" + strings.Repeat("a", 233)},
		{308, "https://a b/", ""},
		{399, "//other.example/\x1b[31m", ""},
	} {
		hits.Store(0)
		u := target.URL()
		u.RawQuery = url.Values{"status": {strconv.Itoa(c.status)}, "to": {c.to}}.Encode()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, u.String(), strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := refusing.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		got, ok := errors.AsType[*RedirectError](err)
		if !ok || got.Status != c.status || got.Location != c.want {
			t.Errorf("status %d to %q: error = %v (location %q), want a RedirectError to %q", c.status, c.to, err, locationOf(got), c.want)
		}
		if Unsent(err) {
			t.Errorf("status %d: Unsent = true, want false", c.status)
		}
		if n := hits.Load(); n != 1 {
			t.Errorf("status %d: %d requests, want 1", c.status, n)
		}
		if _, bad := url.Parse(c.to); bad != nil {
			continue // net/http's client refuses to read such a response
		}
		resp, err = get(t, returning, u.String())
		if err != nil {
			t.Errorf("status %d returned: error = %v, want a response", c.status, err)
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || hits.Load() != 2 {
			t.Errorf("status %d returned: %d after %d requests, want it after 2", c.status, resp.StatusCode, hits.Load())
		}
	}
}

func locationOf(err *RedirectError) string {
	if err == nil {
		return ""
	}
	return err.Location
}

func TestRequestLeavesOrigin(t *testing.T) {
	t.Parallel()
	target, client, w := public(t, func(http.ResponseWriter, *http.Request) {}, nil)
	for name, change := range map[string]func(*http.Request){
		"other host":        func(r *http.Request) { r.URL.Host, r.Host = "other.example", "" },
		"other port":        func(r *http.Request) { r.URL.Host, r.Host = "mcp.example:8443", "" },
		"other scheme":      func(r *http.Request) { r.URL.Scheme = "http" },
		"Host header":       func(r *http.Request) { r.Host = "internal.example" },
		"trailing dot":      func(r *http.Request) { r.URL.Host, r.Host = "mcp.example.", "" },
		"other case":        func(r *http.Request) { r.URL.Host, r.Host = "MCP.example", "" },
		"an address of it":  func(r *http.Request) { r.URL.Host, r.Host = "93.184.216.34", "" },
		"opaque target":     func(r *http.Request) { r.URL.Opaque = "//other.example/x" },
		"CONNECT":           func(r *http.Request) { r.Method = http.MethodConnect },
		"credentials":       func(r *http.Request) { r.URL.User = url.UserPassword("u", "p") },
		"metadata directly": func(r *http.Request) { r.URL.Host, r.Host = "169.254.169.254", "" },
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, target.URL().String(), strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		change(req)
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		want := ReasonOrigin
		if name == "credentials" {
			want = ReasonUserinfo
		}
		if got := ReasonOf(err); got != want || !Unsent(err) {
			t.Errorf("%s: error = %v, want %s, unsent", name, err, want)
		}
	}
	if sockets := w.sockets(); len(sockets) > 0 {
		t.Errorf("sockets %v, want none", sockets)
	}
}

// TLS through the local opt-in: a local authority, the name as SNI, real sockets; and
// the same server refused without the authority or under another name.
func TestLocalTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"dev.example", "127.0.0.1"}, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Proto", r.Proto)
	}))
	port := w.tls.Listener.Addr().(*net.TCPAddr).Port
	z := &zone{answers: map[string][][]string{"dev.example.": {{"127.0.0.1"}}, "other.example.": {{"127.0.0.1"}}}}
	for _, c := range []struct {
		host  string
		roots bool
		ok    bool
		sni   string
	}{
		{"dev.example", true, true, "dev.example"},
		{"127.0.0.1", true, true, ""},
		{"other.example", true, false, "other.example"},
		{"dev.example", false, false, "dev.example"},
	} {
		target, err := ParseTarget(fmt.Sprintf("https://%s:%d/", c.host, port), true)
		if err != nil {
			t.Fatal(err)
		}
		opt := Options{Resolver: z}
		if c.roots {
			opt.RootCAs = w.roots
		}
		client := Client(target, opt)
		resp, err := get(t, client, target.URL().String())
		if (err == nil) != c.ok {
			t.Errorf("%s, authority known %v: error = %v, want success %v", c.host, c.roots, err, c.ok)
		}
		if err == nil {
			_ = resp.Body.Close()
			if got := resp.Header.Get("X-Proto"); got != "HTTP/2.0" {
				t.Errorf("%s: protocol %s, want HTTP/2.0", c.host, got)
			}
		} else if _, ok := errors.AsType[*tls.CertificateVerificationError](err); !ok || !Unsent(err) {
			t.Errorf("%s: error = %v, want a certificate's, unsent", c.host, err)
		}
		client.CloseIdleConnections()
		if names := w.names(); names[len(names)-1] != c.sni {
			t.Errorf("server name %q, want %q", names[len(names)-1], c.sni)
		}
	}
}

func TestOldTLSRefused(t *testing.T) {
	t.Parallel()
	_, client, w := public(t, func(http.ResponseWriter, *http.Request) {}, nil)
	w.tls.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: w.tls.TLS.Certificates, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, nil
	}
	resp, err := get(t, client, "https://mcp.example/")
	if err == nil {
		_ = resp.Body.Close()
		t.Error("TLS 1.1 was accepted")
	}
}

func TestResponseBounds(t *testing.T) {
	t.Parallel()
	h := func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		n, _ := strconv.Atoi(q.Get("n"))
		w.Header().Set("Content-Type", q.Get("type"))
		if q.Has("length") {
			w.Header().Set("Content-Length", strconv.Itoa(n))
		}
		status, _ := strconv.Atoi(q.Get("status"))
		w.WriteHeader(status)
		for range n / len("data: x\n\n") {
			_, _ = io.WriteString(w, "data: x\n\n")
		}
	}
	_, client, _ := public(t, h, func(o *Options) { o.MaxMessage = 128 << 10 })
	for _, c := range []struct {
		query string
		want  Reason
	}{
		{"n=117000&type=application/json&status=200", ""},
		{"n=180000&type=application/json&status=200", ReasonTooLarge},
		{"n=180000&type=application/json&status=200&length", ReasonTooLarge},
		{"n=1800000&type=text/event-stream&status=200", ""},
		{"n=63000&type=text/plain&status=500", ""},
		{"n=90000&type=text/plain&status=500", ReasonTooLarge},
		{"n=90000&type=text/event-stream&status=404", ReasonTooLarge},
	} {
		var reported error
		req, err := http.NewRequestWithContext(WithReport(t.Context(), func(err error) { reported = err }),
			http.MethodGet, "https://mcp.example/?"+c.query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if got := ReasonOf(err); got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("%s: error = %v, want %q", c.query, err, c.want)
		}
		if got := ReasonOf(reported); got != c.want {
			t.Errorf("%s: reported %v, want %q", c.query, reported, c.want)
		}
	}
}

// Each error that ends a request is reported in its own type, a refusal too.
func TestReport(t *testing.T) {
	t.Parallel()
	_, client, _ := public(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) }, nil)
	for u, want := range map[string]Reason{"https://other.example/": ReasonOrigin, "https://mcp.example/": ReasonRedirect} {
		var reported []error
		ctx := WithReport(t.Context(), func(err error) { reported = append(reported, err) })
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
		}
		if len(reported) != 1 || ReasonOf(reported[0]) != want {
			t.Errorf("GET %s reported %v, want %s once", u, reported, want)
		}
	}
}

// A body that is announced as too long is not begun, and no encoding is asked for.
func TestAnnouncedLength(t *testing.T) {
	t.Parallel()
	encoding := make(chan string, 1)
	_, client, _ := public(t, func(w http.ResponseWriter, r *http.Request) {
		encoding <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Length", "11")
		_, _ = io.WriteString(w, "12345678901")
	}, func(o *Options) { o.MaxMessage = 10 })
	resp, err := get(t, client, "https://mcp.example/")
	if err == nil {
		_ = resp.Body.Close()
	}
	if ReasonOf(err) != ReasonTooLarge {
		t.Errorf("GET = %v, want %s", err, ReasonTooLarge)
	}
	if got := <-encoding; got != "" {
		t.Errorf("Accept-Encoding = %q, want none", got)
	}
}

// The header of an answer is bounded as well.
func TestHeaderBound(t *testing.T) {
	t.Parallel()
	_, client, _ := public(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 200<<10))
	}, nil)
	resp, err := get(t, client, "https://mcp.example/")
	if err == nil {
		_ = resp.Body.Close()
		t.Error("a header of 200 KiB was accepted")
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	h := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/silent":
		case "/slow":
			_, _ = io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
		case "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
			timer := time.NewTimer(1300 * time.Millisecond) // past the deadline of what is no stream
			defer timer.Stop()
			<-timer.C
			_, _ = io.WriteString(w, "data: late\n\n")
			return
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}
	_, client, _ := public(t, h, func(o *Options) { o.Timeout = time.Second })
	for path, want := range map[string]bool{"/silent": false, "/slow": false, "/stream": true} {
		resp, err := get(t, client, "https://mcp.example"+path)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if want {
			if err != nil || string(body) != "data: late\n\n" {
				t.Errorf("%s: read %q, error %v, want the late event", path, body, err)
			}
			continue
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "within 1s") {
			t.Errorf("%s: error = %v, want the deadline of 1s", path, err)
		}
		if Unsent(err) {
			t.Errorf("%s: Unsent = true, want false", path)
		}
	}
	// The caller's own deadline and cancel are told apart.
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://mcp.example/slow", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after cancel: error = %v, want canceled", err)
	}
	_ = resp.Body.Close()
}

func TestProxyVariablesIgnored(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := proxy.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = c.Close()
		}
	}()
	for _, k := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(k, "http://"+proxy.Addr().String())
	}
	_, client, _ := public(t, func(http.ResponseWriter, *http.Request) {}, nil)
	resp, err := get(t, client, "https://mcp.example/")
	if err != nil {
		t.Fatalf("GET = %v, want an answer", err)
	}
	_ = resp.Body.Close()
	_ = proxy.Close()
	<-done
	if n := accepted.Load(); n != 0 {
		t.Errorf("the proxy saw %d connections, want 0", n)
	}
}

func TestOpenClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"auth.example", "xn--mnchen-3ya.example", "8.8.8.8"}, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(rw, r, "https://auth.example/", http.StatusFound)
		case "/large":
			_, _ = rw.Write(make([]byte, openMessage+1))
		}
	}))
	z := &zone{answers: map[string][][]string{
		"auth.example.": {{"93.184.216.34"}}, "xn--mnchen-3ya.example.": {{"93.184.216.34"}},
		"evil.example.": {{"169.254.169.254"}}, "mixed.example.": {{"93.184.216.34", "10.0.0.1"}},
	}}
	client := OpenClient(w.options(z, "https"))
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		url  string
		want Reason
	}{
		{"https://auth.example/.well-known/oauth-authorization-server", ""},
		{"https://AUTH.example.:443/", ""},
		{"https://münchen.example/", ""},
		{"https://8.8.8.8/", ""},
		{"https://auth.example/redirect", ReasonRedirect},
		{"https://auth.example/large", ReasonTooLarge},
		{"http://auth.example/", ReasonPlaintext},
		{"https://evil.example/", ReasonMetadata},
		{"https://mixed.example/", ReasonPrivate},
		{"https://none.example/", ReasonLookup},
		{"https://localhost/", ReasonPrivate},
		{"https://127.0.0.1:4000/", ReasonPrivate},
		{"https://2130706433/", ReasonNumericHost},
		{"https://[::1]/", ReasonPrivate},
		{"https://metadata.google.internal/", ReasonMetadata},
		{"https://u:p@auth.example/", ReasonUserinfo},
		{"https://auth.example/#frag", ReasonFragment},
	} {
		before := len(w.sockets())
		resp, err := get(t, client, c.url)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if got := ReasonOf(err); got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("GET %s = %v, want %q", c.url, err, c.want)
		}
		sent := c.want == "" || c.want == ReasonRedirect || c.want == ReasonTooLarge
		if !sent && len(w.sockets()) != before {
			t.Errorf("GET %s opened %v, want no socket", c.url, w.sockets()[before:])
		}
		if err != nil && Unsent(err) == sent {
			t.Errorf("GET %s: Unsent = %v, want %v", c.url, Unsent(err), !sent)
		}
	}
}

// An upgrade keeps its connection writable, over HTTP/1.1 also with TLS.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"127.0.0.1"}, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			rw.WriteHeader(http.StatusInternalServerError)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil {
			_, _ = io.WriteString(conn, line)
		}
	}))
	port := w.tls.Listener.Addr().(*net.TCPAddr).Port
	target, err := ParseServer("websocket", fmt.Sprintf("wss://127.0.0.1:%d/ws", port), true)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := target.URL().String(), fmt.Sprintf("wss://127.0.0.1:%d/ws", port); got != want {
		t.Errorf("URL = %s, want %s", got, want)
	}
	client := Client(target, Options{RootCAs: w.roots})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/ws", port), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	rw, ok := resp.Body.(io.ReadWriter)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d, body %T, want 101 and a writer", resp.StatusCode, resp.Body)
	}
	if _, err := io.WriteString(rw, "ping\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(rw).ReadString('\n'); err != nil || got != "ping\n" {
		t.Errorf("read %q, %v, want ping", got, err)
	}
}

// Control's error refuses the attempt before the socket connects.
func TestControlRefuses(t *testing.T) {
	t.Parallel()
	no := errors.New("not today")
	_, client, _ := public(t, func(http.ResponseWriter, *http.Request) {}, func(o *Options) {
		o.Control = func(context.Context, netip.AddrPort) error { return no }
		o.connect = nil
	})
	resp, err := get(t, client, "https://mcp.example/")
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, no) {
		t.Errorf("error = %v, want Control's", err)
	}
}

// The zero Options trust the system's authorities, not the test's.
func TestZeroOptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, []string{"127.0.0.1"}, http.NotFoundHandler())
	target, err := ParseTarget(fmt.Sprintf("https://127.0.0.1:%d/", w.tls.Listener.Addr().(*net.TCPAddr).Port), true)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := get(t, Client(target, Options{}), target.URL().String())
	if err == nil {
		_ = resp.Body.Close()
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
		t.Errorf("error = %v, want an unknown authority", err)
	}
}
