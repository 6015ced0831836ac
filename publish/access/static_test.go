package access

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

func create(tb testing.TB, store Store, name string, expires time.Time, scopes ...string) (Token, string) {
	tb.Helper()
	made, secret, err := Create(tb.Context(), store, name, scopes, expires, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	return made, secret
}

// A token that was made is good until it is revoked or expires, and nothing else is.
func TestStatic(t *testing.T) {
	t.Parallel()
	home := private(t)
	store := &File{Home: home}
	a := running(t, Options{Mode: ModeToken, Tokens: store})
	if _, refused := a.Admit(request("Bearer relavium_abcdefghijkl_" + strings.Repeat("A", 43))); refused == nil || refused.Status != http.StatusUnauthorized {
		t.Errorf("before there is any token: %+v, want 401", refused)
	}
	made, secret := create(t, &File{Home: home}, "ci", time.Time{}, "relavium:run:review", "relavium:gate")
	short, _ := create(t, &File{Home: home}, "short", time.Now().Add(time.Hour), "relavium:ops")
	// Made by another process: known within what a person takes to use it.
	id := eventually(t, func() *Identity { i, _ := a.Admit(request("Bearer " + secret)); return i })
	if id.Principal != "token:ci" || !id.Scopes.Run("review") || id.Scopes.Run("deploy") || !id.Scopes.AnyGate() || !id.Expires.IsZero() {
		t.Errorf("identity = %+v", id)
	}
	if !id.Sees("review", nil) || id.Sees("deploy", nil) || !id.Sees("review", []string{"ci"}) || id.Sees("review", []string{"other"}) {
		t.Error("it sees the wrong workflows")
	}
	for name, token := range map[string]string{
		"cut": secret[:len(secret)-1], "longer": secret + "A", "other secret": secret[:len(secret)-2] + "zz",
		"other id": "relavium_aaaaaaaaaaaa_" + secret[len(secret)-43:], "id alone": "relavium_" + made.ID, "digest": made.Digest,
	} {
		if i, refused := a.Admit(request("Bearer " + token)); refused == nil || refused.Status != http.StatusUnauthorized {
			t.Errorf("%s: admitted as %+v", name, i)
		}
	}
	raw, err := os.ReadFile(filepath.Join(home, "tokens.json"))
	if err != nil || strings.Contains(string(raw), secret[len(secret)-43:]) {
		t.Errorf("the file holds the token itself, or %v", err)
	}
	if about, err := os.Stat(filepath.Join(home, "tokens.json")); err != nil || about.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", about.Mode(), err)
	}
	ended := make(chan struct{})
	id.Watch(func() { close(ended) })
	if _, err := Revoke(t.Context(), &File{Home: home}, made.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("what watches a revoked token is not told")
	}
	if _, refused := a.Admit(request("Bearer " + secret)); refused == nil || refused.Status != http.StatusUnauthorized {
		t.Errorf("revoked: %+v, want 401", refused)
	}
	if a.Live(t.Context(), id) {
		t.Error("Live of a revoked token's identity = true")
	}
	if _, err := Revoke(t.Context(), store, "nobody", time.Now()); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("Revoke of an unknown one = %v", err)
	}
	if again, err := Revoke(t.Context(), store, made.ID, time.Now().Add(time.Hour)); err != nil || again.Revoked.After(time.Now()) {
		t.Errorf("Revoke again = %+v, %v; want the first time to stay", again, err)
	}
	if !short.Live(time.Now()) || short.Live(time.Now().Add(time.Hour)) {
		t.Errorf("Live of %+v is wrong", short)
	}
}

func eventually[T any](tb testing.TB, get func() *T) *T {
	tb.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		if v := get(); v != nil {
			return v
		}
		select {
		case <-tick.C:
		case <-deadline:
			tb.Fatal("it does not come")
		}
	}
}

// A name belongs to one live token, and to the next once that ended.
func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	store := &File{Home: private(t)}
	now := time.Now()
	first, _ := create(t, store, "ci", time.Time{}, ScopeRun)
	for name, c := range map[string]struct {
		name    string
		scopes  []string
		expires time.Time
		want    error
	}{
		"taken":       {"ci", []string{ScopeRun}, time.Time{}, ErrNameTaken},
		"empty":       {"", []string{ScopeRun}, time.Time{}, ErrName},
		"with #":      {"a#b", []string{ScopeRun}, time.Time{}, ErrName},
		"long":        {strings.Repeat("a", 65), []string{ScopeRun}, time.Time{}, ErrName},
		"no scope":    {"x", nil, time.Time{}, ErrNoScope},
		"in the past": {"x", []string{ScopeRun}, now, ErrExpired},
	} {
		if _, _, err := Create(t.Context(), store, c.name, c.scopes, c.expires, now); !errors.Is(err, c.want) {
			t.Errorf("%s: Create = %v, want %v", name, err, c.want)
		}
	}
	for _, scope := range []string{"relavium", "relavium:run:", "relavium:run:a b", "relavium:gate:a:b", "run", "relavium:RUN"} {
		_, _, err := Create(t.Context(), store, "x", []string{ScopeRun, scope}, time.Time{}, now)
		if wrong, ok := errors.AsType[*ScopeError](err); !ok || wrong.Scope != scope {
			t.Errorf("scope %q: Create = %v, want a ScopeError", scope, err)
		}
	}
	if _, err := Revoke(t.Context(), store, first.ID, now); err != nil {
		t.Fatal(err)
	}
	create(t, store, "ci", time.Time{}, ScopeRun)
	if _, _, err := Create(t.Context(), store, "ci", []string{ScopeRun}, time.Time{}, now); !errors.Is(err, ErrNameTaken) {
		t.Errorf("Create = %v, want ErrNameTaken", err)
	}
}

// Processes that make tokens at once lose none.
func TestCreateAtOnce(t *testing.T) {
	t.Parallel()
	home := private(t)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			store := &File{Home: home}
			if _, _, err := Create(t.Context(), store, "t"+string(rune('a'+i)), []string{ScopeRun}, time.Time{}, time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	tokens, err := (&File{Home: home}).Tokens(t.Context())
	if err != nil || len(tokens) != 20 {
		t.Errorf("%d tokens, %v; want 20", len(tokens), err)
	}
}

// memory is a Store that can be broken, as a database can.
type memory struct {
	mu     sync.Mutex
	list   []Token
	writes atomic.Int64
	broken atomic.Bool
}

var errBroken = errors.New("broken")

func (m *memory) Tokens(context.Context) ([]Token, error) {
	if m.broken.Load() {
		return nil, errBroken
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Token(nil), m.list...), nil
}

func (m *memory) Update(_ context.Context, change func([]Token) ([]Token, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, err := change(append([]Token(nil), m.list...))
	if err == nil {
		m.list = list
		m.writes.Add(1)
	}
	return err
}

// The last use is written at most once a minute, whatever the traffic.
func TestLastUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		_, secret := create(t, store, "ci", time.Time{}, ScopeRun)
		a := running(t, Options{Mode: ModeToken, Tokens: store})
		before := store.writes.Load()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 10 * 60 * 3 {
			<-tick.C
			admitted(t, a, secret)
		}
		if got := store.writes.Load() - before; got < 3 || got > 4 {
			t.Errorf("%d writes in 3 min of use, want one a minute", got)
		}
		list, err := store.Tokens(t.Context())
		if err != nil || time.Since(list[0].Used) > 2*time.Minute {
			t.Errorf("used = %v, %v", list[0].Used, err)
		}
	})
}

// Tokens that cannot be looked up any more are not believed for long, and are
// again once they can.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		_, secret := create(t, store, "ci", time.Time{}, ScopeRun)
		expiring, short := create(t, store, "short", time.Now().Add(time.Minute), ScopeRun)
		a := running(t, Options{Mode: ModeToken, Tokens: store})
		id := admitted(t, a, secret)
		store.broken.Store(true)
		<-time.After(10 * time.Second)
		if _, refused := a.Admit(request("Bearer " + secret)); refused == nil || refused.Status != http.StatusServiceUnavailable {
			t.Errorf("with a store that is down: %+v, want 503", refused)
		}
		if a.Live(t.Context(), id) {
			t.Error("Live = true with a store that is down")
		}
		store.broken.Store(false)
		<-time.After(2 * time.Second)
		admitted(t, a, secret)
		admitted(t, a, short)
		<-time.After(time.Until(expiring.Expires))
		if _, refused := a.Admit(request("Bearer " + short)); refused == nil || refused.Status != http.StatusUnauthorized {
			t.Errorf("expired: %+v, want 401", refused)
		}
	})
}

// Somebody who tries tokens is told to wait; whoever has a good one is not, nor
// is anybody on this machine.
func TestFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		_, secret := create(t, store, "ci", time.Time{}, ScopeRun)
		a := running(t, Options{Mode: ModeToken, Tokens: store, BehindProxy: true})
		from := func(token, address string) (int, time.Duration) {
			r := request("Bearer " + token)
			r.Header.Add("X-Forwarded-For", "203.0.113.77")
			r.Header.Add("X-Forwarded-For", "198.51.100.1, "+address)
			if _, refused := a.Admit(r); refused != nil {
				return refused.Status, refused.After
			}
			return http.StatusOK, 0
		}
		for n := range 12 {
			want := http.StatusUnauthorized
			if n >= 10 {
				want = http.StatusTooManyRequests
			}
			if got, _ := from("bad", "2001:db8::1"); got != want {
				t.Errorf("attempt %d = %d, want %d", n+1, got, want)
			}
		}
		if got, after := from("bad", "2001:db8::2"); got != http.StatusTooManyRequests || after <= 0 || after > time.Minute {
			t.Errorf("a neighbour in the network = %d after %v, want 429 within a minute", got, after)
		}
		if got, _ := from(secret, "2001:db8::1"); got != http.StatusOK {
			t.Errorf("a good token = %d, want 200", got)
		}
		if got, _ := from("bad", "203.0.113.5"); got != http.StatusUnauthorized {
			t.Errorf("another address = %d, want 401", got)
		}
		for range 20 {
			if got, _ := from("bad", "127.0.0.1"); got != http.StatusUnauthorized {
				t.Errorf("this machine = %d, want 401", got)
			}
		}
		<-time.After(time.Minute)
		if got, _ := from("bad", "2001:db8::1"); got != http.StatusUnauthorized {
			t.Errorf("a minute later = %d, want 401", got)
		}
	})
}

// The limits hold for each principal by itself, not for local, and what joined a
// run is not counted.
func TestLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		active := map[string]bool{}
		l := NewLimiter(Limits{PerMinute: 6, Concurrent: 2, Runs: 4}, func(but ...string) int {
			n := len(active)
			for _, run := range but {
				if active[run] {
					n--
				}
			}
			return n
		})
		take := func(p engine.Principal) (*Slot, string, time.Duration) {
			s, err := l.Take(p)
			if limit, ok := errors.AsType[*LimitError](err); ok {
				return nil, limit.Limit, limit.After
			}
			return s, "", 0
		}
		begin := func(p engine.Principal) *Slot {
			t.Helper()
			s, limit, _ := take(p)
			if s == nil {
				t.Fatalf("Take(%s) = %s", p, limit)
			}
			s.Begun()
			return s
		}
		one, two := begin("token:a"), begin("token:a")
		if _, limit, _ := take("token:a"); limit != "concurrent" {
			t.Errorf("a third at once = %q, want concurrent", limit)
		}
		begin("token:b").Done()
		one.Done()
		one.Done()
		two.Done()
		<-time.After(10 * time.Second)
		for range 4 {
			begin("token:a").Done()
		}
		if _, limit, after := take("token:a"); limit != "calls_per_minute" || after != 50*time.Second {
			t.Errorf("a seventh = %q after %v, want calls_per_minute after 50s", limit, after)
		}
		<-time.After(50 * time.Second)
		begin("token:a").Done()
		joined, _, _ := take("token:a")
		joined.Joined()
		joined.Done()
		begin("token:a").Done()
		if _, limit, _ := take("token:a"); limit != "calls_per_minute" {
			t.Errorf("after the minute's = %q, want calls_per_minute", limit)
		}
		for range 20 {
			begin(engine.Local).Done()
		}
		var last *Slot
		for i, run := range []string{"a", "b", "c", "d"} { // a run that executes before its call has heard of it is one
			s, limit, _ := take(engine.Local)
			if s == nil {
				t.Fatalf("run %d = %q", i+1, limit)
			}
			active[run] = true
			s.Starts(run)
			last = s
		}
		if _, limit, _ := take("token:c"); limit != "runs" {
			t.Errorf("a fifth run = %q, want runs", limit)
		}
		last.Done()
		if _, limit, _ := take("token:c"); limit != "runs" {
			t.Errorf("a fifth while the fourth executes without its call = %q, want runs", limit)
		}
		delete(active, "d")
		if s, limit, _ := take("token:c"); s == nil {
			t.Errorf("after one ended = %q", limit)
		}
		if got := l.callers["token:a"].open; got != 0 {
			t.Errorf("open calls of token:a = %d, want 0", got)
		}
	})
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
