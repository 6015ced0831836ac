package secrets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zalando/go-keyring"
)

// vars are variables for a store.
type vars map[string]string

func (v vars) get(name string) string { return v[name] }

func open(tb testing.TB, opt Options) *Store {
	tb.Helper()
	if opt.Home == "" {
		opt.Home = tb.TempDir()
	}
	s, err := Open(opt)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func write(tb testing.TB, dir, name, content string) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// ringOf is a keychain in memory; err is what it says to everything.
type ringOf struct {
	items map[string]string
	err   error
}

func (r *ringOf) Get(service, account string) (string, error) {
	value, ok := r.items[service+" "+account]
	if r.err == nil && !ok {
		return "", keyring.ErrNotFound
	}
	return value, r.err
}

func (r *ringOf) Set(service, account, value string) error {
	if r.err == nil {
		r.items[service+" "+account] = value
	}
	return r.err
}

func (r *ringOf) Delete(service, account string) error {
	if _, err := r.Get(service, account); err != nil {
		return err
	}
	delete(r.items, service+" "+account)
	return nil
}

func TestResolveInOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ring := &ringOf{items: map[string]string{"relavium mcp-secret:token": "from-keychain"}}
	env := vars{
		"RELAVIUM_MCP_TOKEN":      "from-variable",
		"RELAVIUM_MCP_TOKEN_FILE": write(t, dir, "file", "from-file\r\n"),
		"CREDENTIALS_DIRECTORY":   dir,
	}
	credential := write(t, dir, "mcp.token", "from-credential\n")
	store := open(t, Options{Getenv: env.get, Keychain: ring})
	if _, err := store.Set(t.Context(), names(t, "mcp/token")[0], []byte("from-age-file"), AgeFile); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		source Source
		value  string
		remove func()
	}{
		{Keychain, "from-keychain", func() { clear(ring.items) }},
		{Variable, "from-variable", func() { delete(env, "RELAVIUM_MCP_TOKEN") }},
		{File, "from-file", func() { delete(env, "RELAVIUM_MCP_TOKEN_FILE") }},
		{Credential, "from-credential", func() { _ = os.Remove(credential) }},
		{AgeFile, "from-age-file", func() {
			if _, err := store.Delete(t.Context(), names(t, "mcp/token")[0]); err != nil {
				t.Error(err)
			}
		}},
	}
	for _, step := range steps {
		source, err := store.MCPSecrets().Has(t.Context(), "token")
		if err != nil || source != step.source {
			t.Errorf("Has = %q, %v, want %q", source, err, step.source)
		}
		secret, err := store.MCPSecrets().Resolve(t.Context(), "token")
		if err != nil || secret.Reveal() != step.value || secret.Name().String() != "mcp/token" {
			t.Errorf("Resolve = %s %q, %v, want %q", secret, secret.Reveal(), err, step.value)
		}
		step.remove()
	}
	_, err := store.MCPSecrets().Resolve(t.Context(), "token")
	missing, ok := errors.AsType[*NotFoundError](err)
	if !ok {
		t.Fatalf("Resolve = %v, want a NotFoundError", err)
	}
	want := "secret mcp/token: no value in keychain (not there), RELAVIUM_MCP_TOKEN (not set), RELAVIUM_MCP_TOKEN_FILE (not set), " +
		"credential mcp.token (not there), age file (not in it)"
	if err.Error() != want {
		t.Errorf("error = %s\nwant    %s", err, want)
	}
	if got, want := missing.Remedy(), "relavium-serve secrets set mcp/token, or set RELAVIUM_MCP_TOKEN or RELAVIUM_MCP_TOKEN_FILE"; got != want {
		t.Errorf("Remedy = %q, want %q", got, want)
	}
}

// TestResolversKeepToTheirSpace: whatever is asked of a resolver, it reads nothing of
// another space.
func TestResolversKeepToTheirSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ring := &ringOf{items: map[string]string{
		"relavium openai:default": canary, "relavium search-provider": canary, "relavium input:deploy/token": canary, "relavium mcp-secret:own": canary,
	}}
	env := vars{
		"RELAVIUM_OPENAI_API_KEY": canary, "RELAVIUM_SEARCH_API_KEY": canary, "RELAVIUM_INPUT_DEPLOY_TOKEN": canary, "RELAVIUM_MCP_OWN": canary,
		"CREDENTIALS_DIRECTORY": dir, "HOME": canary,
	}
	for _, name := range []string{"provider.openai", "search", "input.deploy.token", "mcp.own"} {
		write(t, dir, name, canary)
	}
	store := open(t, Options{Getenv: env.get, Keychain: ring})
	for name, r := range map[string]Resolver{
		"provider/openai": store.ProviderKeys(), "search": store.SearchKey(),
		"input/deploy/token": store.Inputs("deploy"), "mcp/own": store.MCPSecrets(),
	} {
		found := 0
		for _, id := range []string{
			"", "openai", "openai:default", "provider/openai", "../openai", "search", "search-provider", "SEARCH_API_KEY", "token", "deploy/token",
			"input:deploy/token", "own", "mcp-secret:own", "HOME", "provider.openai", "input.deploy.token", "../provider.openai", "own\x00", "x/../../HOME",
		} {
			secret, err := r.Resolve(t.Context(), id)
			if err != nil {
				continue
			}
			found++
			if secret.Name().String() != name {
				t.Errorf("the resolver of %s resolves %q to %s", name, id, secret.Name())
			}
		}
		if found != 1 {
			t.Errorf("the resolver of %s finds %d of them, want its own alone", name, found)
		}
	}
	if _, err := (Resolver{}).Resolve(t.Context(), "x"); err == nil {
		t.Error("the zero Resolver resolves")
	}
}

func TestRefusedValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := strings.Repeat("x", MaxBytes+1)
	fifo := filepath.Join(dir, "none")
	for _, tt := range []struct {
		env  vars
		want string
	}{
		{vars{"RELAVIUM_MCP_TOKEN": "1234567"}, "secret mcp/token: RELAVIUM_MCP_TOKEN: the value is shorter than 8 bytes"},
		{vars{"RELAVIUM_MCP_TOKEN": large}, "secret mcp/token: RELAVIUM_MCP_TOKEN: the value is longer than 65536 bytes"},
		{vars{"RELAVIUM_MCP_TOKEN": "\xff2345678"}, "secret mcp/token: RELAVIUM_MCP_TOKEN: the value is not UTF-8"},
		{vars{"RELAVIUM_MCP_TOKEN_FILE": write(t, dir, "short", "1234567\n\n")}, ""},
		{vars{"RELAVIUM_MCP_TOKEN_FILE": write(t, dir, "shorter", "123456\r\n")}, "secret mcp/token: RELAVIUM_MCP_TOKEN_FILE: the value is shorter than 8 bytes"},
		{vars{"RELAVIUM_MCP_TOKEN_FILE": write(t, dir, "nul", "12345678\x00")}, "secret mcp/token: RELAVIUM_MCP_TOKEN_FILE: the value holds a NUL"},
		{vars{"RELAVIUM_MCP_TOKEN_FILE": write(t, dir, "large", large)}, "secret mcp/token: RELAVIUM_MCP_TOKEN_FILE: is too large"},
		{vars{"RELAVIUM_MCP_TOKEN_FILE": dir}, "secret mcp/token: RELAVIUM_MCP_TOKEN_FILE: is not a regular file"},
		{vars{"RELAVIUM_MCP_TOKEN_FILE": fifo}, "secret mcp/token: RELAVIUM_MCP_TOKEN_FILE: no such file"},
	} {
		// A later source does not stand in for one that was meant.
		tt.env["CREDENTIALS_DIRECTORY"] = dir
		write(t, dir, "mcp.token", "from-credential")
		_, err := open(t, Options{Getenv: tt.env.get}).MCPSecrets().Resolve(t.Context(), "token")
		got := fmt.Sprint(err)
		if tt.want == "" {
			tt.want = "<nil>"
		}
		if got != tt.want {
			t.Errorf("Resolve = %s\nwant      %s", got, tt.want)
		}
		if refused := (*RefusedError)(nil); err != nil && !errors.As(err, &refused) {
			t.Errorf("error is a %T", err)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := vars{"RELAVIUM_OPENAI_API_KEY": canary, "RELAVIUM_OPENAI_API_KEY_FILE": write(t, dir, "f", canary), "CREDENTIALS_DIRECTORY": dir}
	write(t, dir, "provider.openai", "short")
	scrubber := new(Scrubber)
	store := open(t, Options{Getenv: env.get, Keychain: &ringOf{err: errors.New("failed to unlock correct collection " + canary)}, Scrubber: scrubber})
	got, err := store.Explain(t.Context(), names(t, "provider/openai")[0])
	want := []Answer{
		{Keychain, "keychain", Offline, "locked"},
		{Variable, "RELAVIUM_OPENAI_API_KEY", Answers, ""},
		{File, "RELAVIUM_OPENAI_API_KEY_FILE", Hidden, ""},
		{Credential, "credential provider.openai", Refused, "the value is shorter than 8 bytes"},
		{AgeFile, "age file", Absent, "there is none"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Explain = %v (-want +got):\n%s", err, diff)
	}
	if strings.Contains(fmt.Sprintf("%+v", got), "canary") {
		t.Errorf("Explain shows a value: %+v", got)
	}
}

func TestScrubberLearnsWhatIsResolved(t *testing.T) {
	t.Parallel()
	scrubber := new(Scrubber)
	env := vars{"RELAVIUM_INPUT_DEPLOY_TOKEN": canary}
	store := open(t, Options{Getenv: env.get, Scrubber: scrubber})
	if _, err := store.Inputs("deploy").Resolve(t.Context(), "token"); err != nil {
		t.Fatal(err)
	}
	if got, want := scrubber.String("x"+canary), "x[secret:input/deploy/token]"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
	if _, err := store.Set(t.Context(), names(t, "search")[0], []byte("the-second-value"), ""); err != nil {
		t.Fatal(err)
	}
	if got, want := scrubber.String("the-second-value"), "[secret:search]"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

// TestErrorsHoldNoValues: nothing that goes wrong shows a value or a path.
func TestErrorsHoldNoValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct {
		name string
		opt  Options
		prep func(home string)
	}{
		{"file", Options{Getenv: vars{"RELAVIUM_MCP_TOKEN_FILE": filepath.Join(dir, canary)}.get}, nil},
		{"keychain", Options{Keychain: &ringOf{err: errors.New(canary)}}, nil},
		{"short", Options{Getenv: vars{"RELAVIUM_MCP_TOKEN": "canary"}.get}, nil},
		{"not age", Options{}, func(home string) { write(t, home, "secrets.age", canary) }},
		{"no key", Options{}, func(home string) {
			s := open(t, Options{Home: home})
			if _, err := s.Set(t.Context(), names(t, "search")[0], []byte(canary), AgeFile); err != nil {
				t.Error(err)
			}
			_ = os.Remove(filepath.Join(home, "age.key"))
		}},
		{"key is none", Options{}, func(home string) {
			s := open(t, Options{Home: home})
			if _, err := s.Set(t.Context(), names(t, "search")[0], []byte(canary), AgeFile); err != nil {
				t.Error(err)
			}
			write(t, home, "age.key", canary)
		}},
	} {
		home := t.TempDir()
		if tt.prep != nil {
			tt.prep(home)
		}
		tt.opt.Home = home
		_, err := open(t, tt.opt).MCPSecrets().Resolve(t.Context(), "token")
		if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), string(filepath.Separator)+"tmp") || strings.Contains(err.Error(), home) {
			t.Errorf("%s: error = %v", tt.name, err)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	store := open(t, Options{Keychain: &ringOf{}})
	if _, err := store.MCPSecrets().Resolve(ctx, "token"); !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve = %v, want %v", err, context.Canceled)
	}
	if _, err := store.Explain(ctx, names(t, "search")[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("Explain = %v, want %v", err, context.Canceled)
	}
}

func TestOpenNeedsAHome(t *testing.T) {
	t.Parallel()
	if _, err := Open(Options{Home: "relative"}); err == nil {
		t.Error("Open took a relative home")
	}
}

func TestKept(t *testing.T) {
	t.Parallel()
	ring := &ringOf{items: map[string]string{}}
	home := t.TempDir()
	store := open(t, Options{Home: home, Keychain: ring})
	for _, set := range []struct {
		name  string
		where Source
	}{{"search", ""}, {"mcp/b", Keychain}, {"mcp/a", AgeFile}, {"mcp/b", AgeFile}, {"provider/openai", ""}} {
		if _, err := store.Set(t.Context(), names(t, set.name)[0], []byte(canary), set.where); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() []string {
		list, err := store.Kept(t.Context())
		if err != nil {
			t.Error(err)
		}
		var out []string
		for _, n := range list {
			out = append(out, n.String())
		}
		return out
	}
	if got, want := kept(), []string{"mcp/a", "mcp/b", "provider/openai", "search"}; !slices.Equal(got, want) {
		t.Errorf("Kept = %v, want %v", got, want)
	}
	from, err := store.Delete(t.Context(), names(t, "mcp/b")[0])
	if want := []Source{Keychain, AgeFile}; err != nil || !slices.Equal(from, want) {
		t.Errorf("Delete = %v, %v, want %v", from, err, want)
	}
	if from, err := store.Delete(t.Context(), names(t, "mcp/b")[0]); err != nil || from != nil {
		t.Errorf("Delete again = %v, %v, want nothing", from, err)
	}
	if got, want := kept(), []string{"mcp/a", "provider/openai", "search"}; !slices.Equal(got, want) {
		t.Errorf("Kept = %v, want %v", got, want)
	}
	content, err := os.ReadFile(filepath.Join(home, indexFile))
	if err != nil || strings.Contains(string(content), "canary") {
		t.Errorf("%s = %q, %v", indexFile, content, err)
	}
}
