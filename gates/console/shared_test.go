package console

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/gates"
)

// Replicas with the same keys take each other's logins and forms, whichever of them a
// request reaches; a login that ends does so on all, and one under other keys on none.
func TestSharedLogin(t *testing.T) {
	t.Parallel()
	keys, err := gates.NewKeys(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var later atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	var opt Options
	d := newDesk(t, func(o *Options) {
		o.Seals, o.Now = keys, now
		opt = *o
	})
	other, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	var requests atomic.Int64
	d.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		[]*Console{d.console, other}[requests.Add(1)%2].ServeHTTP(w, r)
	}))
	t.Cleanup(d.server.Close)
	browser := d.newBrowser()
	d.logIn(browser)
	_, gate := d.start(flow{bare: true})
	var page *answer
	for range 4 {
		if page = d.get(browser, "/gates/"+gate.ID); page.status != http.StatusOK {
			t.Fatalf("GET of a gate = %d, want 200 of each replica", page.status)
		}
	}
	if a := d.post(browser, "/gates/"+gate.ID, url.Values{"decision": {"approve"}, "form": {"x" + page.form()}}); a.status != http.StatusForbidden {
		t.Errorf("POST of a forged form = %d, want 403", a.status)
	}
	if a := d.post(browser, "/gates/"+gate.ID, url.Values{"decision": {"approve"}, "form": {page.form()}}); a.status >= 400 {
		t.Errorf("POST of a decision = %d:\n%s", a.status, a.body)
	}
	if g := d.gate(gate.ID); g.Decision == "" {
		t.Error("the gate is not decided")
	}

	at, err := url.Parse(d.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	cookies := browser.Jar.Cookies(at)
	if a := d.post(browser, "/logout", url.Values{"form": {page.form()}}); a.status != http.StatusSeeOther {
		t.Fatalf("POST /logout = %d, want 303", a.status)
	}
	kept := d.newBrowser() // with the cookie of the login that ended
	kept.Jar.SetCookies(at, cookies)
	aged := d.newBrowser()
	d.logIn(aged)
	for range 2 {
		if a := d.get(kept, "/runs"); a.status != http.StatusSeeOther {
			t.Errorf("GET by a login that ended = %d, want 303", a.status)
		}
		if a := d.get(aged, "/runs"); a.status != http.StatusOK {
			t.Errorf("GET by a new login = %d, want 200", a.status)
		}
	}
	later.Store(int64(sessionLife))
	for range 2 {
		if a := d.get(aged, "/runs"); a.status != http.StatusSeeOther {
			t.Errorf("GET after 12 h = %d, want 303", a.status)
		}
	}
	later.Store(0)
	if opt.Seals, err = gates.NewKeys(slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	foreign, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/runs", nil)
	for _, c := range aged.Jar.Cookies(at) {
		r.AddCookie(&http.Cookie{Name: "relavium_80", Value: c.Value})
	}
	w := httptest.NewRecorder()
	if foreign.ServeHTTP(w, r); w.Code != http.StatusSeeOther {
		t.Errorf("GET where the keys are others = %d, want 303", w.Code)
	}
}
