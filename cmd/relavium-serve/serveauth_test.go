package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/access"
)

// Metrics on an address that others reach are read with a token that allows it.
func TestOperators(t *testing.T) {
	t.Parallel()
	store := &access.File{Home: private(t)}
	who, err := access.New(access.Options{Mode: access.ModeToken, Logger: slog.New(slog.DiscardHandler), Tokens: store})
	if err != nil {
		t.Fatal(err)
	}
	token := func(name, scope string) string {
		t.Helper()
		_, secret, err := access.Create(t.Context(), store, name, []string{scope}, time.Time{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	ops, run := token("ops", access.ScopeOps), token("run", access.ScopeRun)
	h := operators(who, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	for secret, want := range map[string]int{ops: http.StatusTeapot, run: http.StatusForbidden, "": http.StatusUnauthorized, "bad": http.StatusUnauthorized} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		if secret != "" {
			r.Header.Set("Authorization", "Bearer "+secret)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("with the token %.12q = %d, want %d", secret, w.Code, want)
		}
		if challenge := w.Header().Get("WWW-Authenticate"); (want != http.StatusTeapot) != strings.HasPrefix(challenge, "Bearer ") {
			t.Errorf("with the token %.12q: challenge %q", secret, challenge)
		}
	}
}

// A console is said to be closed to everybody only while no token opens it.
func TestTokenOpens(t *testing.T) {
	t.Parallel()
	at := &site{place: place{home: private(t)}}
	now := time.Now()
	for _, c := range []struct {
		name, scope string
		made        time.Time
		want        bool
	}{
		{"caller", access.ScopeRun, now, false},
		{"past", access.ScopeGate, now.Add(-2 * time.Hour), false},
		{"lead", access.ScopeGate + ":deploy", now, true},
	} {
		if _, _, err := access.Create(t.Context(), at.tokens(), c.name, []string{c.scope}, c.made.Add(time.Hour), c.made); err != nil {
			t.Fatal(err)
		}
		if got := at.tokenOpens(t.Context()); got != c.want {
			t.Errorf("with the token %s: tokenOpens() = %t, want %t", c.name, got, c.want)
		}
	}
}

// The requester is kept from its own gates where the configuration says so, by any
// channel, and nobody else is.
func TestDecisionRefused(t *testing.T) {
	t.Parallel()
	s := builtinSettings()
	s.Serve.Workflow = map[string]workflowSettings{"strict": {ApproverNotRequester: new(true)}}
	for _, c := range []struct {
		workflow string
		own      bool
		via      string
		refused  bool
	}{
		{"strict", true, engine.ViaConsole, true},
		{"strict", true, engine.ViaCLI, true},
		{"strict", false, engine.ViaConsole, false},
		{"strict", false, engine.ViaCLI, false},
		{"strict", false, engine.ViaCLINonInteractive, true},
		{"plain", true, engine.ViaConsole, false},
		{"plain", true, engine.ViaCLINonInteractive, true},
	} {
		if err := decisionRefused(&s, c.workflow, c.own, c.via); (err != nil) != c.refused {
			t.Errorf("decisionRefused(%s, own %t, %s) = %v, want refused: %t", c.workflow, c.own, c.via, err, c.refused)
		}
	}
}

// Where a start lets in whom it must not, it is refused; else it is known who
// callers are.
func TestEntrance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		e                entrance
		refused          bool
		known, strangers bool
	}{
		"loopback":          {entrance{host: "127.0.0.1", auth: authNone}, false, false, false},
		"loopback, token":   {entrance{host: "::1", auth: authToken}, false, true, true},
		"open":              {entrance{host: "0.0.0.0", auth: authNone}, true, false, true},
		"open, said so":     {entrance{host: "", auth: authNone, insecure: true}, false, false, true},
		"open, in clear":    {entrance{host: "10.0.0.1", auth: authToken}, true, true, true},
		"open, by a proxy":  {entrance{host: "10.0.0.1", auth: authToken, behindProxy: true}, false, true, true},
		"proxy, nobody":     {entrance{host: "127.0.0.1", auth: authNone, behindProxy: true}, true, false, true},
		"oauth, no URL":     {entrance{host: "127.0.0.1", auth: authOAuth}, true, true, true},
		"both of the words": {entrance{host: "127.0.0.1", auth: authToken, insecure: true}, true, true, true},
		"stdio":             {entrance{}, true, false, false},
	} {
		if c.e.auth != "" {
			if err := c.e.check(); (err != nil) != c.refused {
				t.Errorf("%s: check = %v, want refused: %t", name, err, c.refused)
			}
		}
		if got := c.e.known(); got != c.known {
			t.Errorf("%s: known = %t, want %t", name, got, c.known)
		}
		if got := c.e.strangers(); got != c.strangers {
			t.Errorf("%s: strangers = %t, want %t", name, got, c.strangers)
		}
	}
}

// private is a home folder as the product makes one.
func private(tb testing.TB) string {
	tb.Helper()
	home := filepath.Join(tb.TempDir(), "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		tb.Fatal(err)
	}
	return home
}
