package egress

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
)

type verdict struct {
	Verdict string  `json:"verdict"`
	Reason  Reason  `json:"reason"`
	Stage   string  `json:"stage"`
	Dialed  string  `json:"dialed"`
	SNI     *string `json:"sni"`
}

type egressCase struct {
	ID          string                `json:"id"`
	Transport   string                `json:"transport"`
	URL         string                `json:"url"`
	Local       bool                  `json:"allow_local_endpoint"`
	DNS         map[string][][]string `json:"dns"`
	Dead        []string              `json:"dead"`
	Hang        []string              `json:"hang"`
	Env         map[string]string     `json:"env"`
	Request     string                `json:"request"`
	DeclareOnly bool                  `json:"declare_only"`
	Server      struct {
		Status   int    `json:"status"`
		Location string `json:"location"`
	} `json:"server"`
	Steps []struct {
		verdict
		NewConnection bool `json:"new_connection"`
	} `json:"steps"`
	Expect verdict `json:"expect"`
	Why    string  `json:"why"`
}

func TestCases(t *testing.T) {
	raw, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []egressCase `json:"cases"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 103 {
		t.Fatalf("%d cases, want at least 103", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.ID, func(t *testing.T) {
			for k, v := range c.Env {
				t.Setenv(k, v)
				t.Setenv(strings.ToLower(k), v)
			}
			c.run(t)
		})
	}
}

func (c *egressCase) run(t *testing.T) {
	t.Helper()
	target, err := ParseServer(c.Transport, c.URL, c.Local)
	if c.Expect.Stage == "declare" {
		c.Expect.check(t, err)
		if err := CheckURL(c.URL, c.Local); err == nil && c.Transport != "websocket" {
			t.Errorf("CheckURL(%q) = nil, want an error", c.URL)
		}
		return
	}
	if err != nil {
		t.Fatalf("ParseServer(%q, %q, %v) = %v, want a target", c.Transport, c.URL, c.Local, err)
	}
	if c.DeclareOnly {
		return
	}
	w := newWorld(t, []string{target.host}, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if c.Server.Status != 0 {
			rw.Header().Set("Location", c.Server.Location)
			rw.WriteHeader(c.Server.Status)
		}
	}))
	w.dead, w.hang = c.Dead, c.Hang
	z := &zone{answers: c.DNS}
	client := Client(target, w.options(z, target.scheme))
	defer client.CloseIdleConnections()
	request := c.Request
	if request == "" {
		request = target.URL().String()
	}
	steps := c.Steps
	if len(steps) == 0 {
		steps = append(steps, struct {
			verdict
			NewConnection bool `json:"new_connection"`
		}{verdict: c.Expect})
	}
	for _, step := range steps {
		if step.NewConnection {
			client.CloseIdleConnections()
		}
		before := len(w.sockets())
		resp, err := get(t, client, request)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		step.check(t, err)
		if sockets := w.sockets()[before:]; step.Verdict == "refuse" && step.Stage != "response" && len(sockets) > 0 {
			t.Errorf("%d sockets opened on a refusal, want 0: %v", len(sockets), sockets)
		}
	}
	if c.Expect.Stage == "request" && z.lookups() > 0 {
		t.Errorf("looked up %v, want no lookup", z.asked)
	}
	if c.Expect.Dialed != "" {
		sockets := w.sockets()
		if len(sockets) == 0 || !slices.Contains(strings.Split(c.Expect.Dialed, "|"), sockets[len(sockets)-1].String()) {
			t.Errorf("dialed %v, want %s last", sockets, c.Expect.Dialed)
		}
	}
	if c.Expect.SNI != nil {
		if names := w.names(); len(names) == 0 || names[0] != *c.Expect.SNI {
			t.Errorf("server names %q, want %q", names, *c.Expect.SNI)
		}
	}
}

func (v *verdict) check(t *testing.T, err error) {
	t.Helper()
	if v.Verdict == "allow" {
		if err != nil {
			t.Errorf("error = %v, want none", err)
		}
		return
	}
	if got := ReasonOf(err); got != v.Reason {
		t.Errorf("reason = %q (%v), want %q", got, err, v.Reason)
	}
}

// Everything that a refusal says is fit to be shown: no address that was resolved, no
// path, no query.
func TestRefusalText(t *testing.T) {
	t.Parallel()
	z := &zone{answers: map[string][][]string{"evil.example.": {{"10.11.12.13"}}}}
	target, err := ParseTarget("https://evil.example/p4th?token=s3cret", false)
	if err != nil {
		t.Fatal(err)
	}
	client := Client(target, Options{Resolver: z})
	for _, u := range []string{"https://evil.example/p4th?token=s3cret", "https://other.example/p4th?token=s3cret"} {
		resp, err := get(t, client, u)
		if err == nil {
			_ = resp.Body.Close()
			t.Fatal("no error")
		}
		if !Unsent(err) {
			t.Errorf("Unsent(%v) = false, want true", err)
		}
		inner, ok := err.(*url.Error) //nolint:errorlint // the client's own wrapper
		if !ok {
			t.Fatalf("error = %T, want *url.Error", err)
		}
		for _, leak := range []string{"10.11", "p4th", "s3cret", "other.example"} {
			if strings.Contains(inner.Err.Error(), leak) {
				t.Errorf("error text %q holds %q", inner.Err, leak)
			}
		}
	}
}

func TestErrorTexts(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`egress: redirect refused: status 302 to "https://a.example/"; declare the final URL`: &RedirectError{Status: 302, Location: "https://a.example/"},
		`egress: redirect refused: status 304`:                                                &RedirectError{Status: 304},
		`egress: message of more than 10 bytes`:                                               &TooLargeError{Limit: 10},
		`egress: event of more than 1024 lines`:                                               &TooLargeError{Limit: 10, Lines: 1024},
		`egress: "a.example": no connection`:                                                  &ConnectError{Host: "a.example", Err: io.EOF},
		`egress: "a.example" refused: loopback (RFC 1122) (private_address)`:                  &DeniedError{Reason: ReasonPrivate, Host: "a.example", Rule: "loopback (RFC 1122)"},
		`egress: refused: not a URL (bad_url)`:                                                &DeniedError{Reason: ReasonURL, Rule: "not a URL"},
	} {
		if got := err.Error(); got != want {
			t.Errorf("Error() = %s, want %s", got, want)
		}
	}
	if got := ReasonOf(io.EOF); got != "" {
		t.Errorf("ReasonOf(EOF) = %q, want none", got)
	}
}
