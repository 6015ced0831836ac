package egress

import (
	"net/url"
	"strings"
	"testing"
)

func TestParseTargetCanonical(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw      string
		local    bool
		url      string
		hostPort string
	}{
		{"HTTPS://EXAMPLE.COM", false, "https://example.com", "example.com:443"},
		{"https://example.com:443/a%2fb?q=1", false, "https://example.com/a%2fb?q=1", "example.com:443"},
		{"https://example.com:8443/", false, "https://example.com:8443/", "example.com:8443"},
		{"https://example.com./x", false, "https://example.com/x", "example.com:443"},
		{"https://münchen.example/", false, "https://xn--mnchen-3ya.example/", "xn--mnchen-3ya.example:443"},
		{"https://ｅｘａｍｐｌｅ.com/", false, "https://example.com/", "example.com:443"},
		{"https://faß.example/", false, "https://xn--fa-hia.example/", "xn--fa-hia.example:443"},
		{"https://[2606:4700:4700:0::1111]/", false, "https://[2606:4700:4700::1111]/", "[2606:4700:4700::1111]:443"},
		{"https://８.8.8.8/", false, "https://8.8.8.8/", "8.8.8.8:443"},
		{"http://localhost:80/", true, "http://localhost/", "localhost:80"},
		{"http://[::1]:80/", true, "http://[::1]/", "[::1]:80"},
		{"http://[::FFFF:127.0.0.1]:4000/", true, "http://[::ffff:127.0.0.1]:4000/", "[::ffff:127.0.0.1]:4000"},
	} {
		got, err := ParseTarget(c.raw, c.local)
		if err != nil {
			t.Errorf("ParseTarget(%q) = %v, want a target", c.raw, err)
			continue
		}
		if got.URL().String() != c.url || got.HostPort() != c.hostPort || got.Local() != c.local {
			t.Errorf("ParseTarget(%q) = %s at %s, want %s at %s", c.raw, got.URL(), got.HostPort(), c.url, c.hostPort)
		}
	}
}

func TestParseTargetRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw   string
		local bool
		want  Reason
	}{
		{"", false, ReasonScheme},
		{"https://" + strings.Repeat("a", 2048) + ".example/", false, ReasonURL},
		{"https://example.com/\xff", false, ReasonURL},
		{"https://example.com\\@evil.example/", false, ReasonURL},
		{"https://example.com/\r\nX: y", false, ReasonURL},
		{"https:example.com", false, ReasonURL},
		{"https://example.com:65536/", false, ReasonPort},
		{"https://example.com:0443/", false, ReasonPort},
		{"https://example.com:00/", false, ReasonPort},
		{"https://@example.com/", false, ReasonUserinfo},
		{"https://example.com/#", false, ReasonFragment},
		{"https://[fe80::1%25eth0]/", false, ReasonZone},
		{"https://[127.0.0.1]/", false, ReasonURL},
		{"https://0x7f.1/", false, ReasonNumericHost},
		{"https://0X7F000001/", false, ReasonNumericHost},
		{"https://0x/", false, ReasonNumericHost},
		{"https://256.256.256.256/", false, ReasonNumericHost},
		{"https://4294967296/", false, ReasonNumericHost},
		{"https://1.2.3.0x4/", false, ReasonNumericHost},
		{"https://①②⑦.0.0.1/", false, ReasonPrivate},
		{"https://١٢٧.0.0.1/", false, ReasonNumericHost},
		{"https://example..com/", false, ReasonHostname},
		{"https://example.com../", false, ReasonHostname},
		{"https://./", false, ReasonHostname},
		{"https://" + strings.Repeat("a", 64) + ".example/", false, ReasonHostname},
		{"https://xn--a.example/", false, ReasonHostname},
		{"https://a_b.example/", false, ReasonHostname},
		{"https://LOCALHOST./", false, ReasonPrivate},
		{"https://metadata.goog/", true, ReasonMetadata},
		{"https://ＭＥＴＡＤＡＴＡ.google.internal/", false, ReasonMetadata},
		{"http://8.8.8.8/", true, ReasonLocalPublic},
		{"http://8.8.8.8/", false, ReasonPlaintext},
		{"ws://localhost/", true, ReasonScheme},
		{"file:///etc/passwd", false, ReasonScheme},
		{"unix:///run/docker.sock", true, ReasonScheme},
	} {
		got, err := ParseTarget(c.raw, c.local)
		if err == nil {
			t.Errorf("ParseTarget(%q, %v) = %s, want %s", c.raw, c.local, got.URL(), c.want)
		} else if r := ReasonOf(err); r != c.want {
			t.Errorf("ParseTarget(%q, %v) = %s (%v), want %s", c.raw, c.local, r, err, c.want)
		}
	}
}

func TestParseServerWebsocket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		transport, raw string
		local          bool
		want           Reason
	}{
		{"websocket", "WS://localhost:4000/mcp", true, ""},
		{"websocket", "wss://192.168.1.2/mcp", true, ""},
		{"websocket", "wss://8.8.8.8/mcp", true, ReasonLocalPublic},
		{"websocket", "wss://example.com/mcp", false, ReasonTransport},
		{"websocket", "ws://169.254.169.254/", true, ReasonMetadata},
		{"websocket", "localhost:4000", true, ReasonScheme},
		{"websocket", "", true, ReasonScheme},
		{"stdio", "http://localhost/", true, ReasonTransport},
		{"", "https://example.com/", false, ReasonTransport},
	} {
		_, err := ParseServer(c.transport, c.raw, c.local)
		if got := ReasonOf(err); got != c.want || (err == nil) != (c.want == "") {
			t.Errorf("ParseServer(%q, %q, %v) = %v, want %q", c.transport, c.raw, c.local, err, c.want)
		}
	}
	if err := CheckURL("ws://localhost:4000/mcp", true); err != nil {
		t.Errorf("CheckURL(ws) = %v, want nil", err)
	}
	if err := CheckURL("wss://example.com/mcp", false); ReasonOf(err) != ReasonTransport {
		t.Errorf("CheckURL(wss) = %v, want %s", err, ReasonTransport)
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{
		"https://example.com/mcp?x=1", "http://127.0.0.1:4000/", "https://[::ffff:7f00:1]/", "https://0x7f.1/",
		"https://127。0。0。1/", "https://münchen.example./", "https://a@b#c", "https://[fe80::1%25eth0]/", "https://①/",
		"https://xn--a.example/", "HTTPS://EXAMPLE.COM:443", "https://example.com?/@",
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, raw string, local bool) {
		target, err := ParseTarget(raw, local)
		if err != nil {
			if ReasonOf(err) == "" {
				t.Fatalf("ParseTarget(%q) = %v, an error without a reason", raw, err)
			}
			return
		}
		canonical := target.URL().String()
		again, err := ParseTarget(canonical, local)
		if err != nil || again.URL().String() != canonical {
			t.Fatalf("ParseTarget(%q) = %s, parsed again %v", raw, canonical, err)
		}
		u, err := url.Parse(canonical)
		if err != nil || u.User != nil || u.Fragment != "" || u.Hostname() != target.host {
			t.Fatalf("ParseTarget(%q) = %s, read by net/url as %#v", raw, canonical, u)
		}
		if !local && target.scheme != "https" {
			t.Fatalf("ParseTarget(%q) = %s, plaintext", raw, canonical)
		}
		if strings.ToLower(target.host) != target.host || strings.HasSuffix(target.host, ".") || isMetadataName(target.host) {
			t.Fatalf("ParseTarget(%q) host = %q", raw, target.host)
		}
		if target.addr.IsValid() {
			want := Public
			if local {
				want = Local
			}
			if got := Classify(target.addr); got.Class != want {
				t.Fatalf("ParseTarget(%q) = %s, %v", raw, canonical, got)
			}
		} else if endsInNumber(target.host) {
			t.Fatalf("ParseTarget(%q) host = %q, a number taken for a name", raw, target.host)
		}
	})
}

func BenchmarkParseTarget(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseTarget("https://mcp.example.com/v1/mcp?x=1", false); err != nil {
			b.Fatal(err)
		}
	}
}
