package models_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
)

// A door is a listener that counts who comes.
func door(t *testing.T) (address string, came func() int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String(), n.Load
}

// variables are the environment variables that the SDKs' sources name.
func variables(t *testing.T) []string {
	t.Helper()
	names := map[string]bool{}
	form := regexp.MustCompile(`"((?:OPENAI|ANTHROPIC|GOOGLE|GEMINI|DEEPSEEK)_[A-Z0-9_]+)"`)
	for _, module := range []string{"github.com/anthropics/anthropic-sdk-go/v2", "github.com/openai/openai-go/v3", "google.golang.org/genai"} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(strings.TrimSpace(string(out)), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			b, err := os.ReadFile(path)
			for _, m := range form.FindAllSubmatch(b, -1) {
				names[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, must := range []string{
		"OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS",
		"ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_PROFILE",
		"GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "GOOGLE_GENAI_USE_VERTEXAI",
	} {
		if !names[must] {
			t.Errorf("%s is not among the variables found: the search is broken", must)
		}
	}
	var list []string
	for n := range names {
		list = append(list, n)
	}
	return list
}

func TestEnvironmentHasNoEffect(t *testing.T) {
	canary, came := door(t)
	for _, name := range append(variables(t), "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL") {
		value := "canary-" + name
		switch {
		case strings.Contains(name, "URL"), strings.Contains(name, "HOST"), strings.Contains(name, "ENDPOINT"):
			value = "http://" + canary
		case strings.Contains(name, "HEADERS"):
			value = "X-Canary: canary\nAuthorization: Bearer canary\nx-api-key: canary"
		case strings.Contains(name, "GENAI_USE"):
			value = "true"
		}
		t.Setenv(name, value)
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, "http://"+canary)
	}
	fake := fakemodel.New(script(fakemodel.Turn{Text: "ok"}))
	var mu sync.Mutex
	var seen []http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Clone())
		mu.Unlock()
		fake.ServeHTTP(w, r)
	}))
	defer srv.Close()
	opt := models.Options{Providers: map[string]models.Provider{}, Key: func(_ context.Context, p string) (string, error) { return "key-of-" + p, nil }}
	for _, p := range models.Names() {
		opt.Providers[p] = models.Provider{BaseURL: fakemodel.URL(srv.URL, p), AllowLocalEndpoint: true}
	}
	m, err := models.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	defer m.CloseIdle()
	for _, v := range voices[:4] {
		if _, err := m.Turn(t.Context(), v.request("x"), nil); err != nil {
			t.Errorf("%s: %v", v.name, err)
		}
	}
	for _, e := range fake.Entries() {
		if e.Event == "request" && e.Key != "key-of-"+e.Provider {
			t.Errorf("%s got the key %q", e.Provider, e.Key)
		}
		if strings.Contains(string(e.Body), "canary") {
			t.Errorf("%s got a body with a canary", e.Provider)
		}
	}
	if len(seen) != 4 {
		t.Errorf("%d requests, want 4", len(seen))
	}
	for _, h := range seen {
		for name, values := range h {
			if strings.Contains(strings.ToLower(name+strings.Join(values, "")), "canary") || strings.HasPrefix(name, "X-Stainless") {
				t.Errorf("header %s: %v left", name, values)
			}
		}
		if got := h.Get("User-Agent"); got != "relavium-serve" {
			t.Errorf("User-Agent = %q", got)
		}
	}
	if n := came(); n != 0 {
		t.Errorf("%d connections to the canary address, want none", n)
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	address, came := door(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	resolver := names{"inside.example.": "127.0.0.1", "outside.example.": "93.184.215.14"}
	for name, tt := range map[string]struct {
		p      models.Provider
		reason egress.Reason
		early  bool // New refuses it
	}{
		"plaintext without the opt-in":      {models.Provider{BaseURL: "http://api.example/v1"}, egress.ReasonPlaintext, true},
		"plaintext and private":             {models.Provider{BaseURL: "http://" + address + "/v1"}, egress.ReasonPrivate, true},
		"private without the opt-in":        {models.Provider{BaseURL: "https://" + address + "/v1"}, egress.ReasonPrivate, true},
		"a name that is private":            {models.Provider{BaseURL: "https://inside.example:" + port + "/v1"}, egress.ReasonPrivate, false},
		"declared local, and is not":        {models.Provider{BaseURL: "http://outside.example:" + port + "/v1", AllowLocalEndpoint: true}, egress.ReasonLocalPublic, false},
		"metadata, whatever was opted into": {models.Provider{BaseURL: "http://169.254.169.254/v1", AllowLocalEndpoint: true}, egress.ReasonMetadata, true},
		"credentials in the address":        {models.Provider{BaseURL: "https://me:secret@api.example/v1"}, egress.ReasonUserinfo, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := models.New(models.Options{
				Providers: map[string]models.Provider{models.OpenAI: tt.p},
				Key:       func(context.Context, string) (string, error) { return testKey, nil },
				Egress:    egress.Options{Resolver: resolver},
			})
			if tt.early {
				if egress.ReasonOf(err) != tt.reason || strings.Contains(err.Error(), "secret") {
					t.Errorf("New = %v, want %s", err, tt.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = m.Turn(t.Context(), voices[1].request("x"), nil)
			if e, ok := errors.AsType[*agent.ModelError](err); !ok || e.Kind != agent.BadRequest || egress.ReasonOf(err) != tt.reason {
				t.Errorf("Turn = %v, want bad_request for %s", err, tt.reason)
			}
		})
	}
	t.Cleanup(func() {
		if n := came(); n != 0 {
			t.Errorf("%d sockets were opened, want none", n)
		}
	})
}

// names resolves names.
type names map[string]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	a, err := netip.ParseAddr(n[host])
	return []netip.Addr{a}, err
}

func TestKeyGoesNowhereElse(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		address, came := door(t)
		srv := httptest.NewServer(http.RedirectHandler("http://"+address+"/", http.StatusTemporaryRedirect))
		defer srv.Close()
		m, err := models.New(models.Options{
			Providers: map[string]models.Provider{v.provider: {BaseURL: fakemodel.URL(srv.URL, v.name), AllowLocalEndpoint: true}},
			Key:       func(context.Context, string) (string, error) { return testKey, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.CloseIdle()
		_, err = m.Turn(t.Context(), v.request("x"), nil)
		if e, ok := errors.AsType[*agent.ModelError](err); !ok || e.Kind != agent.BadRequest || !strings.Contains(e.Message, "redirect") {
			t.Errorf("Turn = %v, want a refused redirect", err)
		}
		if n := came(); n != 0 {
			t.Errorf("%d connections to where the redirect leads", n)
		}
	})
}

func TestKeyIsReadAtEachTurn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, v voice) {
		t.Helper()
		key, fail := "", error(nil)
		w := v.world(t, script(fakemodel.Turn{Text: "ok"}), func(o *models.Options) {
			o.Key = func(_ context.Context, provider string) (string, error) {
				if provider != v.provider {
					t.Errorf("Key(%q), want %q", provider, v.provider)
				}
				return key, fail
			}
		})
		turn := func() string {
			_, err := w.models.Turn(t.Context(), v.request("x"), nil)
			if err != nil {
				return err.Error()
			}
			es := w.fake.Entries()
			return "sent " + es[len(es)-2].Key
		}
		// The fake is local, so models ask it without a key too; its answer is then the provider's.
		want := "does not accept the key"
		if v.name == "local" {
			want = "sent "
		}
		if got := turn(); !strings.Contains(got, want) {
			t.Errorf("without a key: %s, want %s", got, want)
		}
		key = "first-key"
		if got := turn(); got != "sent first-key" {
			t.Errorf("with a key: %s", got)
		}
		key, fail = "", errors.New("the keychain is locked")
		if got := turn(); !strings.Contains(got, want) {
			t.Errorf("with a broken keychain: %s, want %s", got, want)
		}
	})
}

func TestMissingKeyNamesWhereItBelongs(t *testing.T) {
	t.Parallel()
	for _, p := range models.Names() {
		dialed := false
		m, err := models.New(models.Options{
			Key: func(context.Context, string) (string, error) { return "", nil },
			Egress: egress.Options{Control: func(context.Context, netip.AddrPort) error {
				dialed = true
				return errors.New("no")
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Turn(t.Context(), &agent.Request{Provider: p, Model: "m", Messages: []agent.Message{{Role: agent.User, Parts: []agent.Part{{Text: "x"}}}}}, nil)
		e, ok := errors.AsType[*agent.ModelError](err)
		if !ok || e.Kind != agent.Auth || dialed {
			t.Fatalf("%s: Turn = %v (dialed %v), want auth without a socket", p, err, dialed)
		}
		for _, want := range []string{"RELAVIUM_" + strings.ToUpper(p) + "_API_KEY", "relavium-serve secrets set provider/" + p} {
			if !strings.Contains(e.Message, want) {
				t.Errorf("%s: message %q lacks %q", p, e.Message, want)
			}
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	if _, err := models.New(models.Options{}); err == nil || !strings.Contains(err.Error(), "Options.Key") {
		t.Errorf("New without Key = %v", err)
	}
	key := func(context.Context, string) (string, error) { return "", nil }
	if _, err := models.New(models.Options{Key: key, Providers: map[string]models.Provider{"mistral": {}}}); err == nil || !strings.Contains(err.Error(), `"mistral"`) {
		t.Errorf("New with an unknown provider = %v", err)
	}
}
