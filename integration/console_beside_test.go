package integration

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/gates/console"
)

// A visitor is a browser as far as forms and cookies go.
type visitor struct {
	t      *testing.T
	client *http.Client
	base   string
}

// consoleBeside starts a console of the project's home as a process of its own
// and logs in.
func (p project) consoleBeside(t *testing.T) *visitor {
	t.Helper()
	token, err := console.StartToken{Home: p.home}.Renew()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := p.command(ctx, "console", "--listen", "127.0.0.1:0")
	if runtime.GOOS != "windows" {
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	cmd.WaitDelay = 10 * time.Second
	diag := new(lockedBuffer)
	cmd.Stderr = diag
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if code := cmd.ProcessState.ExitCode(); code != 0 && runtime.GOOS != "windows" {
			t.Errorf("console ended with %d, want 0\n%s", code, diag)
		}
		if strings.Contains(diag.String(), token) {
			t.Errorf("the log has the token:\n%s", diag)
		}
	})
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{t: t, client: &http.Client{Jar: jar, Timeout: patience}}
	tick, timer := time.NewTicker(20*time.Millisecond), time.NewTimer(patience)
	defer tick.Stop()
	defer timer.Stop()
	for v.base == "" {
		if base, ok := console.Address(p.home); ok {
			v.base = base
			break
		}
		select {
		case <-tick.C:
		case err := <-ended:
			ended <- err
			t.Fatalf("console ended (%v):\n%s", err, diag)
		case <-timer.C:
			t.Fatalf("console does not listen within %v:\n%s", patience, diag)
		}
	}
	if page := v.send("/login", "/login", url.Values{"token": {token}}); !strings.Contains(page, "Waiting for you") {
		t.Fatalf("after the login:\n%s", page)
	}
	return v
}

func (v *visitor) get(path string) string {
	v.t.Helper()
	return v.do(http.MethodGet, path, nil)
}

// send posts a form with the token of the page on which it stands.
func (v *visitor) send(page, path string, form url.Values) string {
	v.t.Helper()
	m := regexp.MustCompile(`name="form" value="([^"]+)"`).FindStringSubmatch(v.get(page))
	if m == nil {
		v.t.Fatalf("%s has no form", page)
	}
	form.Set("form", m[1])
	return v.do(http.MethodPost, path, form)
}

func (v *visitor) do(method, path string, form url.Values) string {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), method, v.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", v.base)
	}
	res, err := v.client.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return string(body)
}

// TestConsoleBeside is a console that executes nothing: what it decides goes on
// in the server that lives, else in the one that starts next.
func TestConsoleBeside(t *testing.T) {
	t.Parallel()
	p := install(t, "").project(t, "shop", testdata(t, "shipment", "name-it"))
	first := p.parked(t, "shipment", "--input", "version=1.0.0")
	v := p.consoleBeside(t)
	if _, stderr, code := p.cli(t, "health", v.base); code != 1 || !strings.Contains(stderr, "it is no relavium-serve serve") {
		t.Errorf("health of a console = exit %d, %s, want 1 and that it is no server", code, stderr)
	}
	gate := p.openGate(t, first)
	page := v.send("/gates/"+gate, "/gates/"+gate, url.Values{"decision": {"approve"}})
	for _, want := range []string{"You approved this gate", "Nobody executes the run now", "relavium-serve run --resume " + first} {
		if !strings.Contains(page, want) {
			t.Errorf("decided with no server: the page lacks %q:\n%s", want, page)
		}
	}
	if page := v.get("/runs/" + first); !strings.Contains(page, "parked") || strings.Contains(page, "run completed") {
		t.Errorf("the console executed the run, or does not say that it is parked:\n%s", page)
	}
	p.serve(t, "--publish", "shipment")
	if got := p.settled(t, first); got != "completed" {
		t.Errorf("with a server the run is %s, want completed", got)
	}
	second := p.parked(t, "name-it")
	gate = p.openGate(t, second)
	page = v.send("/gates/"+gate, "/gates/"+gate, url.Values{"decision": {"answer"}, "value": {"Heron"}})
	if !strings.Contains(page, "You answered this gate") || strings.Contains(page, "Nobody executes") {
		t.Errorf("decided beside a server: the page is\n%s", page)
	}
	if got := p.settled(t, second); got != "completed" {
		t.Errorf("beside a server the run is %s, want completed", got)
	}
}

// The console decides nothing that the configuration keeps from it.
func TestConsoleNotAccepted(t *testing.T) {
	t.Parallel()
	p := install(t, "[gates]\naccept = [\"cli\"]\n").project(t, "shop", testdata(t, "name-it"))
	gate := p.openGate(t, p.parked(t, "name-it"))
	v := p.consoleBeside(t)
	page := v.send("/runs", "/gates/"+gate, url.Values{"decision": {"answer"}, "value": {"Heron"}})
	if !strings.Contains(page, "Not decided here") || !strings.Contains(page, "[gates] accept does not list it") {
		t.Errorf("decided by a console that accept leaves out: the page is\n%s", page)
	}
	if out := p.ok(t, "gate", "show", gate); strings.Contains(out, "decision") {
		t.Errorf("gate show = %s, want it open", out)
	}
}
