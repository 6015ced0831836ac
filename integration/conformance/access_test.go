package conformance

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relavium/relavium-serve/integration/issuer"
)

// unlimited lifts what bounds a caller: the suite calls faster than any.
const unlimited = "\n[serve.limits]\ncalls_per_minute = 0\nconcurrent = 0\n"

// TestSuiteWithToken runs the same sets against a server that asks its callers
// who they are. The suite knows no tokens, so a forwarder adds one.
func TestSuiteWithToken(t *testing.T) {
	s := installed(t)
	i := install(t, unlimited)
	endpoint := i.serve(t, "--auth", "token")
	s.check(t, forward(t, endpoint, i.token(t, "suite", "relavium:run")).url)
}

// TestSuiteRefused lets the suite come without a token, with one that is no good,
// and with one that allows no call: nothing is done for it.
func TestSuiteRefused(t *testing.T) {
	s := installed(t)
	i := issuer.Start(t)
	at := install(t, unlimited, "[auth]", "issuer = \""+i.URL+"\"", "allow_local_endpoint = true", "")
	endpoint := at.serve(t, "--auth", "oauth", "--public-url", "https://flows.example")
	none := i.Token(t, i.Claims("https://flows.example/mcp", "suite", "openid"), issuer.Shape{})
	bad := i.Token(t, i.Claims("https://elsewhere.example/mcp", "suite", "relavium:run"), issuer.Shape{})
	for name, token := range map[string]string{"no token": "", "bad token": bad, "no scope": none} {
		t.Run(name, func(t *testing.T) {
			f := forward(t, endpoint, token)
			got, text, verdict := s.start(t, f.url, []string{"--requirements", "2026-07-28"})
			if verdict == nil {
				t.Errorf("the suite is content:\n%s", text)
			}
			passed := 0
			for scenario, failures := range got {
				if len(failures) > 0 {
					continue
				}
				passed++
				calls := strings.HasPrefix(scenario, "tools-call-") || strings.HasPrefix(scenario, "input-required-")
				if !slices.Contains(content(), scenario) && (token != none || calls) {
					t.Errorf("scenario %s passed", scenario)
				}
			}
			answers := f.answers()
			t.Logf("%d of %d scenarios passed; answers by status: %v", passed, len(got), answers)
			if token == none {
				if answers[http.StatusForbidden] < 10 {
					t.Errorf("answers by status: %v, want calls refused by 403", answers)
				}
				return
			}
			for status := range answers {
				if status != http.StatusUnauthorized && status != http.StatusForbidden { // 403: a foreign Host
					t.Errorf("an answer %d, want 401 alone", status)
				}
			}
		})
	}
	if runs := at.output(t, "runs", "list", "--json"); strings.TrimSpace(runs) != "[]" {
		t.Errorf("runs list = %s, want none", runs)
	}
}

// content lists the scenarios that any refusal satisfies, or that ask nothing.
func content() []string {
	return []string{"dns-rebinding-protection", "tasks-status-notifications", "input-required-result-validate-input", "input-required-result-unsupported-methods"}
}

// token makes a static token.
func (i installation) token(t *testing.T, name string, scopes ...string) string {
	t.Helper()
	args := []string{"token", "create", name}
	for _, scope := range scopes {
		args = append(args, "--scope", scope)
	}
	return strings.TrimSpace(i.output(t, args...))
}

// output is what a command prints that has to succeed.
func (i installation) output(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), i.binary, args...)
	cmd.Dir, cmd.Env = i.dir, environment(i.home)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("relavium-serve %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// A forwarder passes requests on with a token, and all else as it is.
type forwarder struct {
	url string

	mu       sync.Mutex
	statuses map[int]int
}

func forward(t *testing.T, endpoint, token string) *forwarder {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{statuses: map[int]int{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
			if token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+token)
			}
		},
		ModifyResponse: func(r *http.Response) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.statuses[r.StatusCode]++
			return nil
		},
		FlushInterval: -1,
		// The suite ends a stream once it has what it wants, and with it the connection: no
		// other request shall be on that.
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	server := httptest.NewUnstartedServer(proxy)
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	f.url = server.URL + to.Path
	return f
}

// answers counts the answers by status.
func (f *forwarder) answers() map[int]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.statuses)
}
