package access

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/integration/issuer"
)

const resource = "https://flows.example/mcp"

// running makes an Access that runs until the test ends.
func running(tb testing.TB, opt Options) *Access {
	tb.Helper()
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	if opt.Tokens == nil {
		opt.Tokens = &File{Home: private(tb)}
	}
	a, err := New(opt)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(tb.Context()))
	ready := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { a.Run(ctx, func() { close(ready) }) })
	tb.Cleanup(func() {
		end()
		running.Wait()
	})
	<-ready
	return a
}

func oauth(tb testing.TB, i *issuer.Issuer, change func(*Options)) *Access {
	tb.Helper()
	opt := Options{Mode: ModeOAuth, Resource: resource, Issuer: i.URL, AllowLocal: true}
	if change != nil {
		change(&opt)
	}
	return running(tb, opt)
}

func request(authorization ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/mcp", http.NoBody)
	r.RemoteAddr = "127.0.0.1:9"
	for _, value := range authorization {
		r.Header.Add("Authorization", value)
	}
	return r
}

func admitted(tb testing.TB, a *Access, token string) *Identity {
	tb.Helper()
	i, refused := a.Admit(request("Bearer " + token))
	if refused != nil {
		tb.Fatalf("Admit refused: %d %s", refused.Status, refused.Text)
	}
	return i
}

// Each sound token is taken, whatever of the allowed forms it has.
func TestSoundTokens(t *testing.T) {
	t.Parallel()
	i := issuer.Start(t)
	a := oauth(t, i, nil)
	claims := i.Claims(resource, "alice", "openid relavium:run:review relavium:gate")
	for name, shape := range map[string]issuer.Shape{
		"RS256":            {},
		"PS256":            {Alg: "PS256"},
		"ES256":            {Alg: "ES256"},
		"EdDSA":            {Alg: "EdDSA"},
		"the whole type":   {Typ: new("application/at+jwt")},
		"type in capitals": {Typ: new("AT+JWT")},
		"several audiences": {Claims: map[string]any{
			"aud": []string{"https://other.example", resource},
		}},
		"scp as a list":           {Claims: map[string]any{"scope": nil, "scp": []string{"relavium:run:review", "relavium:gate", "email"}}},
		"scp as a string":         {Claims: map[string]any{"scope": nil, "scp": "relavium:run:review relavium:gate"}},
		"a clock that is behind":  {Claims: map[string]any{"nbf": time.Now().Add(20 * time.Second).Unix()}},
		"a clock that is ahead":   {Claims: map[string]any{"exp": time.Now().Add(-20 * time.Second).Unix()}},
		"no time of its creation": {Claims: map[string]any{"nbf": nil, "iat": nil}},
	} {
		id, refused := a.Admit(request("bearer  " + i.Token(t, claims, shape)))
		if refused != nil {
			t.Errorf("%s: %d %s", name, refused.Status, refused.Text)
			continue
		}
		if want := "oauth:" + i.URL + "#alice"; string(id.Principal) != want {
			t.Errorf("%s: principal = %s, want %s", name, id.Principal, want)
		}
		if !id.Scopes.Run("review") || id.Scopes.Run("deploy") || !id.Scopes.Gate("deploy") || id.Scopes.Ops() {
			t.Errorf("%s: scopes = %+v", name, id.Scopes)
		}
		if !id.Sees("deploy", nil) || !id.Sees("deploy", []string{"alice"}) || !id.Sees("deploy", []string{"client-1"}) || id.Sees("deploy", []string{"bob"}) || id.Sees("deploy", []string{}) {
			t.Errorf("%s: sees the wrong workflows", name)
		}
	}
	if got := i.Fetches(); got != 1 {
		t.Errorf("the keys were asked for %d times, want 1", got)
	}
}

// No other token is.
func TestOtherTokens(t *testing.T) {
	t.Parallel()
	i, other := issuer.Start(t), issuer.Start(t)
	a := oauth(t, i, nil)
	claims := i.Claims(resource, "alice", "relavium:run")
	with := func(name string, value any) issuer.Shape { return issuer.Shape{Claims: map[string]any{name: value}} }
	good := i.Token(t, claims, issuer.Shape{})
	parts := strings.Split(good, ".")
	for name, c := range map[string]struct{ token, why string }{
		"malformed":           {"abc", "malformed"},
		"two parts":           {parts[0] + "." + parts[1], "malformed"},
		"signature cut":       {good[:len(good)-6], "signature"},
		"signature empty":     {parts[0] + "." + parts[1] + ".", "signature"},
		"expired":             {i.Token(t, claims, with("exp", time.Now().Add(-time.Minute).Unix())), "expired"},
		"without expiry":      {i.Token(t, claims, with("exp", nil)), "invalid"},
		"not yet valid":       {i.Token(t, claims, with("nbf", time.Now().Add(time.Minute).Unix())), "not valid yet"},
		"wrong issuer":        {i.Token(t, claims, with("iss", other.URL)), "another issuer"},
		"no issuer":           {i.Token(t, claims, with("iss", nil)), "invalid"},
		"another's signature": {other.Token(t, claims, issuer.Shape{}), "signature"},
		"wrong audience":      {i.Token(t, claims, with("aud", "https://flows.example/")), "another audience"},
		"no audience":         {i.Token(t, claims, with("aud", nil)), "invalid"},
		"alg none":            {i.Token(t, claims, issuer.Shape{Alg: "none"}), "signature"},
		"HS256 with the key":  {i.Token(t, claims, issuer.Shape{Alg: "HS256"}), "signature"},
		"RS512":               {i.Token(t, claims, issuer.Shape{Alg: "RS512"}), "signature"},
		"unknown kid":         {i.Token(t, claims, issuer.Shape{Kid: new("rsa-0")}), "key of the token is unknown"},
		"key of another kind": {i.Token(t, claims, issuer.Shape{Kid: new("ec-1")}), "signature"},
		"ID token":            {i.Token(t, claims, issuer.Shape{Typ: new("JWT")}), "type"},
		"no type":             {i.Token(t, claims, issuer.Shape{Typ: new("")}), "type"},
		"critical header":     {i.Token(t, claims, issuer.Shape{Header: map[string]any{"crit": []string{"exp"}}}), "critical"},
		"no subject":          {i.Token(t, claims, with("sub", nil)), "no subject"},
		"empty subject":       {i.Token(t, claims, with("sub", "")), "no subject"},
		"no scope":            {i.Token(t, claims, with("scope", nil)), "no scope"},
		"scope as a list":     {i.Token(t, claims, with("scope", []string{"relavium:run"})), "no scope"},
	} {
		id, refused := a.Admit(request("Bearer " + c.token))
		if refused == nil {
			t.Errorf("%s: admitted as %s", name, id.Principal)
			continue
		}
		if refused.Status != http.StatusUnauthorized || !strings.Contains(refused.Text, c.why) || !strings.Contains(refused.Challenge, `error="invalid_token"`) ||
			!strings.Contains(refused.Challenge, `resource_metadata="https://flows.example/.well-known/oauth-protected-resource/mcp"`) {
			t.Errorf("%s: %d %q, challenge %s; want 401 that says %q", name, refused.Status, refused.Text, refused.Challenge, c.why)
		}
	}
	for name, header := range map[string][]string{
		"basic": {"Basic YTpi"}, "no token": {"Bearer "}, "token alone": {good}, "two": {"Bearer " + good, "Bearer " + good},
		"control": {"Bearer a\tb"}, "huge": {"Bearer " + strings.Repeat("a", maxCredential)},
	} {
		if _, refused := a.Admit(request(header...)); refused == nil || refused.Status != http.StatusUnauthorized {
			t.Errorf("%s: refused = %+v, want 401", name, refused)
		}
	}
	if _, refused := a.Admit(request()); refused == nil || refused.Status != http.StatusUnauthorized ||
		strings.Contains(refused.Challenge, "error") || !strings.Contains(refused.Challenge, `scope="relavium:run"`) {
		t.Errorf("without a token: %+v, want 401 and a challenge without error", refused)
	}
	if id := admitted(t, a, good); id.Expires.Before(time.Now()) {
		t.Errorf("expires = %v", id.Expires)
	}
}

// An operator may allow other types and audiences.
func TestOperatorsChoice(t *testing.T) {
	t.Parallel()
	i := issuer.Start(t)
	a := oauth(t, i, func(opt *Options) {
		opt.TokenTypes, opt.Audience, opt.JWKSURL = []string{"JWT"}, "api://flows", i.URL+"/keys"
	})
	admitted(t, a, i.Token(t, i.Claims("api://flows", "alice", ""), issuer.Shape{Typ: new("JWT")}))
	for _, token := range []string{
		i.Token(t, i.Claims("api://flows", "alice", ""), issuer.Shape{}),
		i.Token(t, i.Claims(resource, "alice", ""), issuer.Shape{Typ: new("JWT")}),
	} {
		if _, refused := a.Admit(request("Bearer " + token)); refused == nil {
			t.Error("a token of another type or audience was admitted")
		}
	}
}

// A flood of tokens with keys that there are not makes the issuer be asked once,
// and new keys are found.
func TestUnknownKeys(t *testing.T) {
	t.Parallel()
	i := issuer.Start(t)
	a := oauth(t, i, nil)
	claims := i.Claims(resource, "alice", "relavium:run")
	before := i.Fetches()
	var flood sync.WaitGroup
	for n := range 100 {
		token := i.Token(t, claims, issuer.Shape{Kid: new("x" + string(rune('a'+n%26)) + string(rune('a'+n/26)))})
		flood.Go(func() {
			if _, refused := a.Admit(request("Bearer " + token)); refused == nil || refused.Status != http.StatusUnauthorized {
				t.Errorf("refused = %+v, want 401", refused)
			}
		})
	}
	flood.Wait()
	if got := i.Fetches() - before; got > 1 {
		t.Errorf("the keys were asked for %d times in the flood, want at most once", got)
	}

	fresh := issuer.Start(t)
	b := oauth(t, fresh, nil)
	fresh.Rotate(t)
	admitted(t, b, fresh.Token(t, fresh.Claims(resource, "alice", "relavium:run"), issuer.Shape{}))
}

// While the issuer cannot be reached, nobody is admitted and nobody is told that
// the token is bad; once it can, tokens are good.
func TestIssuerDown(t *testing.T) {
	t.Parallel()
	i := issuer.Start(t)
	i.Down(true)
	a := oauth(t, i, nil)
	token := i.Token(t, i.Claims(resource, "alice", "relavium:run"), issuer.Shape{})
	if _, refused := a.Admit(request("Bearer " + token)); refused == nil || refused.Status != http.StatusServiceUnavailable || refused.After == 0 {
		t.Errorf("refused = %+v, want 503 with a time", refused)
	}
	i.Down(false)
	deadline := time.After(30 * time.Second)
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the keys are not read after the issuer came back")
		}
		if _, refused := a.Admit(request("Bearer " + token)); refused == nil {
			tick.Stop()
			return
		}
	}
}

// The metadata is served below the well-known path, and only there.
func TestMetadata(t *testing.T) {
	t.Parallel()
	i := issuer.Start(t)
	a := oauth(t, i, nil)
	h := a.Metadata()
	for path, want := range map[string]int{
		"/.well-known/oauth-protected-resource":       http.StatusOK,
		"/.well-known/oauth-protected-resource/mcp":   http.StatusOK,
		"/.well-known/oauth-protected-resource/other": http.StatusNotFound,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != want {
			t.Errorf("GET %s = %d, want %d", path, w.Code, want)
		}
		if w.Code == http.StatusOK && (!strings.Contains(w.Body.String(), `"resource":"`+resource+`"`) || !strings.Contains(w.Body.String(), `"authorization_servers":["`+i.URL+`"]`)) {
			t.Errorf("GET %s = %s", path, w.Body)
		}
	}
	if static := running(t, Options{Mode: ModeToken}); static.Metadata() != nil {
		t.Error("with static tokens there is metadata of an authorization server")
	}
}

// Options that could admit the wrong are refused.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	base := Options{Mode: ModeOAuth, Logger: slog.New(slog.DiscardHandler), Tokens: &File{Home: private(t)}, Resource: resource, Issuer: "https://id.example"}
	if _, err := New(base); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no mode":             func(o *Options) { o.Mode = "" },
		"no store":            func(o *Options) { o.Tokens = nil },
		"no issuer":           func(o *Options) { o.Issuer = "" },
		"issuer with #":       func(o *Options) { o.Issuer = "https://id.example/#a" },
		"issuer with a query": func(o *Options) { o.Issuer = "https://id.example/?a=b" },
		"plain issuer":        func(o *Options) { o.Issuer = "http://id.example" },
		"local issuer":        func(o *Options) { o.Issuer = "https://127.0.0.1" },
		"local keys":          func(o *Options) { o.JWKSURL = "https://127.0.0.1/keys" },
		"no resource":         func(o *Options) { o.Resource = "" },
	} {
		opt := base
		change(&opt)
		if _, err := New(opt); err == nil {
			t.Errorf("%s: New succeeded", name)
		}
	}
}
