package builtin

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/workflows"
)

// public is a public address; whatever connects to it reaches the test's server.
const public = "93.184.215.14"

// web is a TLS server for some names, and a proxy by which every public address leads
// to it: the one way to it that package egress leaves.
type web struct {
	server, proxy *httptest.Server
	roots         *x509.CertPool

	mu       sync.Mutex
	tunnels  []string // addresses that were asked for
	requests []*http.Request
	bodies   []string
	names    map[string][]string // zone
}

// LookupNetIP answers from the zone.
func (w *web) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []netip.Addr
	for _, a := range w.names[strings.TrimSuffix(host, ".")] {
		out = append(out, netip.MustParseAddr(a))
	}
	if out == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return out, nil
}

func newWeb(t *testing.T, http2 bool, handle http.HandlerFunc) (*web, func(*Options)) {
	t.Helper()
	w := &web{names: map[string][]string{
		"api.example.com": {public}, "xn--bcher-kva.example": {public}, "inner.example.com": {"10.0.0.7"}, "mixed.example.com": {public, "127.0.0.1"},
		"meta.example.com": {"169.254.169.254"},
	}}
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.requests, w.bodies = append(w.requests, r), append(w.bodies, string(body))
		w.mu.Unlock()
		handle(out, r)
	}))
	cert := certificate(t, "api.example.com", "xn--bcher-kva.example", public)
	w.roots = x509.NewCertPool()
	w.roots.AddCert(cert.Leaf)
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	w.server.EnableHTTP2 = http2
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	w.proxy = httptest.NewServer(http.HandlerFunc(w.tunnel))
	t.Cleanup(w.proxy.Close)
	proxy, err := egress.ParseProxy(w.proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	return w, func(o *Options) { o.Egress = egress.Options{Resolver: w, RootCAs: w.roots, Proxy: proxy} }
}

// tunnel connects a client, wherever it wants to go, to the server.
func (w *web) tunnel(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.tunnels = append(w.tunnels, r.Host)
	w.mu.Unlock()
	var d net.Dialer
	to, err := d.DialContext(r.Context(), "tcp", w.server.Listener.Addr().String())
	if err != nil {
		out.WriteHeader(http.StatusBadGateway)
		return
	}
	defer to.Close()
	from, _, err := http.NewResponseController(out).Hijack()
	if err != nil {
		return
	}
	defer from.Close()
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() })
	_, _ = io.Copy(from, to)
	_ = from.Close()
	wg.Wait()
}

// seen is what reached the server and which addresses were asked for.
func (w *web) seen() (requests []*http.Request, bodies, tunnels []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.requests), slices.Clone(w.bodies), slices.Clone(w.tunnels)
}

func certificate(t *testing.T, names ...string) tls.Certificate {
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
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (s *site) http(t *testing.T, args any) string {
	t.Helper()
	return s.outcome(t, s.request("http_request", args))
}

func TestHTTPRequest(t *testing.T) {
	t.Parallel()
	w, with := newWeb(t, true, func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		out.Header().Set("Set-Cookie", "canary=1")
		out.Header().Set("X-Odd", "a\u202eb")
		out.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(out, `{"a": 1.0}`)
	})
	s := newSite(t, with)
	s.workflow.Tools.AllowedDomains = []string{"API.Example.com.", "b\u00fccher.example", public, "api.example.com:8443"}
	got := s.http(t, `{"method":"GET","url":"https://api.example.com/a/../b?q=%20x","headers":{"X-Api-Key":"k","accept":"application/json"}}`)
	var out struct {
		Status  int
		Headers map[string]string
		Body    string
	}
	if err := json.Unmarshal([]byte(got), &out); err != nil || out.Status != http.StatusTeapot || out.Body != `{"a": 1.0}` {
		t.Errorf("http_request GET = %s, %v", got, err)
	}
	if out.Headers["content-type"] != "application/json" || out.Headers["x-odd"] != "ab" || strings.Contains(got, "ookie") {
		t.Errorf("http_request told the headers %v", out.Headers)
	}
	for _, args := range []string{
		`{"method":"POST","url":"https://api.example.com/","body":{"b": 2, "a": 1e2}}`,
		`{"method":"POST","url":"https://api.example.com/","body":"{\"b\":2}"}`,
		`{"method":"PUT","url":"https://xn--bcher-kva.example/","body":"plain é"}`,
		`{"method":"PUT","url":"https://bücher.example/","body":"<a/>","headers":{"content-type":"application/xml","Idempotency-Key":"mine"}}`,
		`{"method":"DELETE","url":"https://` + public + `/x"}`,
		`{"method":"POST","url":"https://api.example.com:8443/","body":[1]}`,
		`{"method":"POST","url":"https://API.EXAMPLE.COM.:443","body":false}`,
	} {
		if got := s.http(t, args); !strings.HasPrefix(got, `{"status":418,`) {
			t.Errorf("http_request %s = %q", args, got)
		}
	}
	requests, bodies, tunnels := w.seen()
	var lines []string
	for i, r := range requests {
		lines = append(lines, strings.Join([]string{r.Method, r.Host, r.URL.RequestURI(), r.Header.Get("Content-Type"), bodies[i]}, " "))
	}
	want := []string{
		"GET api.example.com /a/../b?q=%20x  ",
		`POST api.example.com / application/json {"b":2,"a":1e2}`,
		`POST api.example.com / application/json {"b":2}`,
		"PUT xn--bcher-kva.example / text/plain; charset=utf-8 plain é",
		"PUT xn--bcher-kva.example / application/xml <a/>",
		"DELETE " + public + " /x  ",
		"POST api.example.com:8443 / application/json [1]",
		"POST api.example.com / application/json false",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("the server saw\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if slices.ContainsFunc(tunnels, func(a string) bool { return a != public+":443" && a != public+":8443" }) {
		t.Errorf("addresses asked for: %q", tunnels)
	}
	first := requests[0].Header
	if first.Get("User-Agent") != "relavium-serve" || first.Get("X-Api-Key") != "k" || first.Get(idempotencyKey) != "" || first.Get("Cookie") != "" {
		t.Errorf("a GET has the headers %v", first)
	}
	one, two := requests[1].Header.Get(idempotencyKey), requests[2].Header.Get(idempotencyKey)
	if len(one) != 32 || one != two || requests[4].Header.Get(idempotencyKey) != "mine" {
		t.Errorf("idempotency keys %q, %q, %q, want one of the call, the same, and the model's", one, two, requests[4].Header.Get(idempotencyKey))
	}
	for method, repeatable := range map[string]bool{"GET": true, "POST": false, "PUT": false, "DELETE": false} {
		a, err := s.tools.Check(t.Context(), s.request("http_request", `{"method":"`+method+`","url":"https://api.example.com/","headers":{"Authorization":"Bearer canary","x-api-KEY":"canary","accept":"a"}}`))
		if err != nil || a.Repeatable != repeatable || string(a.Shown) != `{"method":"`+method+`","url":"https://api.example.com/","headers":{"Authorization":"•••","accept":"a","x-api-KEY":"•••"}}` {
			t.Errorf("Check(%s) = %v, %s, %v", method, a.Repeatable, a.Shown, err)
		}
	}
}

// No host but a listed one is reached, and no listed one that is not public.
func TestHTTPRequestHosts(t *testing.T) {
	t.Parallel()
	w, with := newWeb(t, true, func(http.ResponseWriter, *http.Request) {})
	s := newSite(t, with)
	s.workflow.Tools.AllowedDomains = []string{
		"api.example.com", "inner.example.com", "mixed.example.com", "meta.example.com", "absent.example.com", "localhost", "127.0.0.1", "169.254.169.254", "metadata.google.internal",
		"*.wild.example", "*", "path.example/x", "https://scheme.example", "user@user.example", "", "port.example:8443", "zero.example:0",
	}
	for _, test := range []struct{ url, want string }{
		{"http://api.example.com/", "denied: insecure_url: only https URLs are requested"},
		{"HTTP://api.example.com/", "denied: insecure_url: only https URLs are requested"},
		{"ftp://api.example.com/", "denied: insecure_url: "},
		{"file:///etc/passwd", "denied: insecure_url: "},
		{"https://user:pw@api.example.com/", "denied: insecure_url: refused: credentials in a URL"},
		{"https://api.example.com@evil.example/", "denied: insecure_url: "},
		{"https://api.example.com#@evil.example/", "denied: insecure_url: refused: a fragment"},
		{`https://api.example.com\@evil.example/`, `incorrect: argument "url": refused: a space, control character or backslash`},
		{"https://api.example.com/\r\nHost: evil.example", `incorrect: argument "url": refused: a space, control`},
		{"https://api.example.com%2eevil.example/", `incorrect: argument "url": refused: not a URL`},
		{"https://api.example.com:0443/", `incorrect: argument "url": refused: a port`},
		{"https://api.example.com:8443/", `denied: domain_not_allowed: the workflow does not list the host "api.example.com:8443"`},
		{"https://port.example/", `denied: domain_not_allowed: the workflow does not list the host "port.example:443"`},
		{"https://evil.example/?x=api.example.com", `denied: domain_not_allowed: the workflow does not list the host "evil.example:443"`},
		{"https://api.example.com.evil.example/", `denied: domain_not_allowed: the workflow does not list`},
		{"https://xapi.example.com/", "denied: domain_not_allowed: the workflow does not list"},
		{"https://sub.api.example.com/", "denied: domain_not_allowed: the workflow does not list"},
		{"https://example.com/", "denied: domain_not_allowed: the workflow does not list"},
		{"https://a.wild.example/", "denied: domain_not_allowed: the workflow does not list"},
		{"https://path.example/x", "denied: domain_not_allowed: the workflow does not list"},
		{"https://scheme.example/", "denied: domain_not_allowed: the workflow does not list"},
		{"https://user.example/", "denied: domain_not_allowed: the workflow does not list"},
		{"https://\u0430pi.example.com/", `denied: domain_not_allowed: the workflow does not list the host "xn--`},
		{"https://127.0.0.1/", "denied: domain_not_allowed: "},
		{"https://localhost/", "denied: domain_not_allowed: "},
		{"https://[::1]/", "denied: domain_not_allowed: "},
		{"https://2130706433/", "denied: insecure_url: "},
		{"https://0x7f.1/", "denied: insecure_url: "},
		{"https://169.254.169.254/latest/meta-data/", "denied: domain_not_allowed: "},
		{"https://metadata.google.internal/", "denied: domain_not_allowed: "},
		{"https://inner.example.com/", `denied: domain_not_allowed: "inner.example.com" refused: private use (RFC 1918) (private_address)`},
		{"https://mixed.example.com/", "denied: domain_not_allowed: "},
		{"https://meta.example.com/", "denied: domain_not_allowed: "},
		{"https://absent.example.com/", "tool_failed: dns: the host's name could not be resolved"},
		{"api.example.com", "denied: insecure_url: "},
		{"/path", "denied: insecure_url: "},
		{"https://", `incorrect: argument "url": refused: a URL without a host`},
		{"https://api.example.com/" + strings.Repeat("x", 2048), `incorrect: argument "url": want at most 2048 bytes`},
	} {
		if got := s.http(t, map[string]any{"method": "GET", "url": test.url}); !strings.HasPrefix(got, test.want) {
			t.Errorf("http_request %.80q = %q, want %q", test.url, got, test.want)
		}
	}
	s.workflow.Tools.AllowedDomains = nil
	if got := s.http(t, `{"method":"GET","url":"https://api.example.com/"}`); !strings.HasPrefix(got, "denied: domain_not_allowed: ") {
		t.Errorf("http_request without allowedDomains = %q", got)
	}
	if requests, _, tunnels := w.seen(); len(requests)+len(tunnels) > 0 {
		t.Errorf("sockets were opened: %q", tunnels)
	}
}

func TestHTTPRequestArguments(t *testing.T) {
	t.Parallel()
	w, with := newWeb(t, true, func(http.ResponseWriter, *http.Request) {})
	s := newSite(t, with)
	s.workflow.Tools.AllowedDomains = []string{"api.example.com"}
	many := make(map[string]string)
	for i := range maxHeaders + 1 {
		many["x-"+strings.Repeat("a", i+1)] = "v"
	}
	headers := func(h any) map[string]any {
		return map[string]any{"method": "GET", "url": "https://api.example.com/", "headers": h}
	}
	for _, name := range []string{
		"Host", "host", "HOST", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Trailer", "Proxy-Authorization", "proxy-connection", "Forwarded",
		"X-Forwarded-For", "x-forwarded-host", "Cookie", "Origin", "X-HTTP-Method-Override", "Expect",
	} {
		if got, want := s.http(t, headers(map[string]string{name: "x"})), `incorrect: argument "headers": "`+name+`" cannot be set`; got != want {
			t.Errorf("http_request with %s = %q, want %q", name, got, want)
		}
	}
	for _, test := range []struct {
		args any
		want string
	}{
		{headers(map[string]string{"": "x"}), `incorrect: argument "headers": "" is not a header's name`},
		{headers(map[string]string{"Host ": "x"}), `incorrect: argument "headers": "Host " is not a header's name`},
		{headers(map[string]string{"a:b": "x"}), `incorrect: argument "headers": "a:b" is not a header's name`},
		{headers(map[string]string{"é": "x"}), `incorrect: argument "headers": "é" is not a header's name`},
		{headers(map[string]string{":authority": "x"}), `incorrect: argument "headers": ":authority" is not a header's name`},
		{headers(map[string]string{"X-A": "a\r\nHost: evil"}), `incorrect: argument "headers": the value of "X-A" is not a header's value`},
		{headers(map[string]string{"X-A": "a\nb"}), `incorrect: argument "headers": the value of "X-A" is not a header's value`},
		{headers(map[string]string{"X-A": "a\x00"}), `incorrect: argument "headers": the value of "X-A" is not a header's value`},
		{headers(map[string]string{"X-A": " a"}), `incorrect: argument "headers": the value of "X-A" is not a header's value`},
		{headers(map[string]any{"X-A": 1}), `incorrect: argument "headers": "X-A": want a string`},
		{headers(map[string]any{"X-A": []string{"a"}}), `incorrect: argument "headers": "X-A": want a string`},
		{headers([]string{"X-A: b"}), `incorrect: argument "headers": want an object of strings`},
		{headers("X-A: b"), `incorrect: argument "headers": want an object of strings`},
		{headers(map[string]string{"X-A": "1", "x-a": "2"}), `incorrect: argument "headers": "x-a" is there twice`},
		{headers(map[string]string{"X-A": strings.Repeat("v", maxHeaderBytes)}), `incorrect: argument "headers": want at most 8192 bytes`},
		{headers(many), `incorrect: argument "headers": want at most 64`},
		{`{"method":"get","url":"https://api.example.com/"}`, `incorrect: argument "method": want GET, POST, PUT or DELETE`},
		{`{"method":"CONNECT","url":"https://api.example.com/"}`, `incorrect: argument "method": want`},
		{`{"method":"GET","url":"https://api.example.com/","body":"x"}`, `incorrect: argument "body": a GET has none`},
		{`{"method":"POST","url":"https://api.example.com/","body":"` + strings.Repeat("x", maxBody+1) + `"}`, `incorrect: argument "body": want at most 1048576 bytes`},
	} {
		if got := s.http(t, test.args); !strings.HasPrefix(got, test.want) {
			t.Errorf("http_request %.100v = %q, want %q", test.args, got, test.want)
		}
	}
	if requests, _, tunnels := w.seen(); len(requests)+len(tunnels) > 0 {
		t.Errorf("sockets were opened: %q", tunnels)
	}
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

func TestHTTPRequestBodies(t *testing.T) {
	t.Parallel()
	type page struct {
		status              int
		media, coding, text string
		location, want      string
	}
	pages := map[string]page{
		"/text":       {200, "text/plain; charset=utf-8", "", "é", "", `200 body: é`},
		"/bom":        {200, "text/plain", "", "\xEF\xBB\xBFa", "", `200 body: a`},
		"/latin":      {200, "text/plain; charset=ISO-8859-1", "", "\xe9", "", `200 body: é`},
		"/utf16":      {200, "text/plain; charset=utf-16le", "", "a\x00b\x00", "", `200 body: ab`},
		"/odd":        {200, "text/plain; charset=x-odd", "", "a", "", `200 note: a body of 1 bytes and type text/plain was left out: it is not text in a known encoding`},
		"/nul":        {200, "text/plain", "", "a\x00b", "", `200 note: a body of 3 bytes and type text/plain was left out: it is not text in a known encoding`},
		"/untyped":    {200, "", "", "plain", "", `200 body: plain`},
		"/problem":    {400, "application/problem+json", "", `{}`, "", `400 body: {}`},
		"/image":      {200, "image/png", "", "\x89PNG", "", `200 note: a body of 4 bytes and type image/png was left out: it is not text`},
		"/pdf":        {200, "application/pdf", "", "%PDF", "", `200 note: a body of 4 bytes and type application/pdf was left out: it is not text`},
		"/gzip":       {200, "text/plain", "gzip", zipped("canal"), "", `200 body: canal`},
		"/badgzip":    {200, "text/plain", "gzip", "no", "", `200 note: a body of 2 bytes and type text/plain was left out: it is not gzip, as it claims to be`},
		"/br":         {200, "text/plain", "br", "xx", "", `200 note: a body of 2 bytes and type text/plain was left out: its coding "br" is not known here`},
		"/twice":      {200, "text/plain", "gzip, gzip", zipped(zipped("x")), "", `200 note: a body of `},
		"/bomb":       {200, "text/plain", "gzip", zipped(strings.Repeat("a", maxBody+1)), "", `tool_failed: too_large: the response is larger than 1048576 bytes`},
		"/big":        {200, "text/plain", "", strings.Repeat("a", maxBody+1), "", `tool_failed: too_large: the response is larger than 1048576 bytes`},
		"/grows":      {200, "text/plain; charset=latin1", "", strings.Repeat("\xe9", maxBody/2+1), "", `tool_failed: too_large: the response is larger than 1048576 bytes`},
		"/full":       {200, "text/plain", "", strings.Repeat("a", maxBody), "", `200 body: aaa`},
		"/events":     {200, "text/event-stream", "", strings.Repeat("data: x\n\n", maxBody/9+1), "", `tool_failed: too_large: the response is larger than 1048576 bytes`},
		"/bigerror":   {500, "text/plain", "", strings.Repeat("a", 1<<17), "", `500 note: the body of this error is too large and was left out`},
		"/redirect":   {302, "", "", "", "https://evil.example/x", `302 body: `},
		"/redirect8":  {308, "", "", "", "/text", `308 body: `},
		"/badaddress": {302, "", "", "", "https://%zz/", `302 body: `},
		"/empty":      {204, "", "", "", "", `204 body: `},
	}
	w, with := newWeb(t, true, func(out http.ResponseWriter, r *http.Request) {
		p := pages[r.URL.Path]
		h := out.Header()
		h["Content-Type"], h["Date"] = nil, nil
		for name, value := range map[string]string{"Content-Type": p.media, "Content-Encoding": p.coding, "Location": p.location} {
			if value != "" {
				h.Set(name, value)
			}
		}
		out.WriteHeader(p.status)
		_, _ = io.WriteString(out, p.text)
	})
	s := newSite(t, with)
	s.workflow.Tools.AllowedDomains = []string{"api.example.com"}
	for path, p := range pages {
		got := s.http(t, map[string]any{"method": "GET", "url": "https://api.example.com" + path})
		var out struct {
			Status     int
			Headers    map[string]string
			Body, Note *string
		}
		if strings.HasPrefix(got, "{") {
			if err := json.Unmarshal([]byte(got), &out); err != nil {
				t.Fatal(err)
			}
			if out.Note != nil {
				got = fmt.Sprintf("%d note: %s", out.Status, *out.Note)
			} else {
				got = fmt.Sprintf("%d body: %s", out.Status, *out.Body)
			}
		}
		if out.Headers["location"] != p.location {
			t.Errorf("http_request %s told the location %q, want %q", path, out.Headers["location"], p.location)
		}
		if !strings.HasPrefix(got, p.want) {
			t.Errorf("http_request %s = %.300q, want %q", path, got, p.want)
		}
	}
	if _, _, tunnels := w.seen(); len(tunnels) != len(pages) {
		t.Errorf("%d connections for %d requests", len(tunnels), len(pages))
	}
}

// A request that may not be repeated is sent once, whatever becomes of it.
func TestHTTPRequestLost(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"http/1.1": false, "http/2": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testLost(t, http2)
		})
	}
}

// telling tells of each answer whose header has come.
type telling struct {
	http.RoundTripper
	here chan<- struct{}
}

func (r telling) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	if err == nil {
		r.here <- struct{}{}
	}
	return resp, err
}

func testLost(t *testing.T, http2 bool) {
	t.Helper()
	here, gone := make(chan struct{}, 8), make(chan struct{}, 8)
	w, with := newWeb(t, http2, func(out http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/drop":
			panic(http.ErrAbortHandler)
		case "/half":
			out.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(out, "half")
			panic(http.ErrAbortHandler)
		case "/never":
			here <- struct{}{}
			<-r.Context().Done()
			gone <- struct{}{}
		case "/slow":
			_, _ = io.WriteString(out, "some")
			_ = http.NewResponseController(out).Flush()
			<-r.Context().Done()
			gone <- struct{}{}
		}
	})
	s := newSite(t, with)
	s.workflow.Tools.AllowedDomains = []string{"api.example.com", "absent.example.com", "refused.example.com"}
	w.names["refused.example.com"] = []string{public}
	fault := func(ctx context.Context, method, path string) *workflows.ToolError {
		t.Helper()
		out, err := s.tools.Call(ctx, s.request("http_request", map[string]any{"method": method, "url": "https://api.example.com" + path}))
		var fault *workflows.ToolError
		if !errors.As(err, &fault) {
			t.Fatalf("http_request %s %s = %+v, %v, want an error", method, path, out, err)
		}
		return fault
	}
	for _, path := range []string{"/drop", "/half"} {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			if got := s.http(t, `{"method":"GET","url":"https://api.example.com/"}`); !strings.HasPrefix(got, `{"status":200,`) {
				t.Errorf("http_request before %s = %q", path, got)
			}
			if got := fault(t.Context(), method, path); got.Fault != workflows.ToolFailed || got.Reason != "connection" || got.Retryable {
				t.Errorf("http_request %s %s = %v, retryable %v", method, path, got, got.Retryable)
			}
		}
	}
	if requests, _, _ := w.seen(); len(requests) != 12 {
		t.Errorf("the server saw %d requests, want each of 12 once", len(requests))
	}
	// Its time is over once the server waits, or the client for the rest of an answer.
	s.tools.client.Transport = telling{s.tools.client.Transport, here}
	s.tools.inTime = func(parent context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(parent)
		go func() {
			select {
			case <-here:
				cancel(errLate)
			case <-ctx.Done():
			}
		}()
		return ctx, func() { cancel(nil) }
	}
	for _, path := range []string{"/never", "/slow"} {
		if got := fault(t.Context(), "POST", path); got.Fault != workflows.ToolFailed || got.Reason != "deadline" || got.Retryable || got.Limit == 0 {
			t.Errorf("http_request %s = %v, retryable %v, limit %v", path, got, got.Retryable, got.Limit)
		}
		<-gone
	}
	s.tools.inTime = inTime
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-here
		cancel()
	}()
	if got := fault(ctx, "GET", "/slow"); got.Fault != workflows.ToolCancelled {
		t.Errorf("a cancelled http_request = %v", got)
	}
	<-gone // the server sees it
	call := s.request("http_request", `{"method":"POST","url":"https://absent.example.com/"}`)
	var unsent *workflows.ToolError
	if _, err := s.tools.Call(t.Context(), call); !errors.As(err, &unsent) || unsent.Reason != "dns" || !unsent.Retryable {
		t.Errorf("http_request without a connection = %v, want one that may be sent again", err)
	}
	call = s.request("http_request", `{"method":"POST","url":"https://refused.example.com/"}`) // the certificate is not for this name
	if _, err := s.tools.Call(t.Context(), call); !errors.As(err, &unsent) || unsent.Reason != "connection" || !unsent.Retryable {
		t.Errorf("http_request to an untrusted server = %v, want a failed connection", err)
	}
}
