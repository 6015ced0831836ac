package console

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// Whoever is not logged in sees nothing, and changes nothing.
func TestNoSession(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, gate := d.start(flow{message: "Ship the heron?"})
	stranger := d.newBrowser()
	for _, path := range []string{"/", "/?after=x", "/runs", "/gates/" + gate.ID, "/runs/" + run, "/runs/" + run + "/cancel", "/runs/" + run + "/outputs/plan"} {
		a := d.get(stranger, path)
		if a.status != http.StatusSeeOther || !strings.HasPrefix(a.header.Get("Location"), "/login") {
			t.Errorf("GET %s = %d to %q, want 303 to /login", path, a.status, a.header.Get("Location"))
		}
		a.lacks("heron")
	}
	for _, path := range []string{"/live", "/runs/live", "/runs/" + run + "/live", "/gates/" + gate.ID + "/live"} {
		if a := d.get(stranger, path); a.status != http.StatusUnauthorized {
			t.Errorf("GET %s = %d, want 401", path, a.status)
		}
	}
	form := d.page("/runs").form() // of another's session
	for _, path := range []string{"/gates/" + gate.ID, "/runs/" + run + "/cancel", "/logout"} {
		if a := d.post(stranger, path, url.Values{"decision": {"approve"}, "form": {form}}); a.status != http.StatusUnauthorized {
			t.Errorf("POST %s = %d, want 401", path, a.status)
		}
	}
	if g := d.gate(gate.ID); g.Decision != "" {
		t.Errorf("the gate was decided: %s", g.Decision)
	}
}

// A form counts only from the console's own pages, with their token.
func TestForgedForms(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, gate := d.start(flow{bare: true})
	good := d.page("/gates/" + gate.ID).form()
	_, port, _ := strings.Cut(strings.TrimPrefix(d.server.URL, "http://"), ":")
	for name, change := range map[string]func(r *http.Request, form url.Values){
		"no token":           func(_ *http.Request, form url.Values) { form.Del("form") },
		"an empty token":     func(_ *http.Request, form url.Values) { form.Set("form", "") },
		"another token":      func(_ *http.Request, form url.Values) { form.Set("form", good[1:]+"A") },
		"another origin":     func(r *http.Request, _ url.Values) { r.Header.Set("Origin", "https://evil.example") },
		"the origin null":    func(r *http.Request, _ url.Values) { r.Header.Set("Origin", "null") },
		"another port":       func(r *http.Request, _ url.Values) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"another name":       func(r *http.Request, _ url.Values) { r.Header.Set("Origin", "http://localhost:"+port) },
		"two origins":        func(r *http.Request, _ url.Values) { r.Header.Add("Origin", "https://evil.example") },
		"neither":            func(r *http.Request, _ url.Values) { r.Header.Del("Origin"); r.Header.Del("Sec-Fetch-Site") },
		"a page of the site": func(r *http.Request, _ url.Values) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"cross-site": func(r *http.Request, _ url.Values) {
			r.Header.Del("Origin")
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		},
		"token in the query": func(r *http.Request, form url.Values) { form.Del("form"); r.URL.RawQuery = "form=" + good },
		"decision elsewhere": func(r *http.Request, form url.Values) {
			r.URL.RawQuery = "decision=approve&form=" + good
			form.Set("form", "x")
		},
	} {
		for _, path := range []string{"/gates/" + gate.ID, "/runs/" + run + "/cancel"} {
			form := url.Values{"form": {good}, "decision": {"approve"}}
			probe := d.formRequest(path, form)
			change(probe, form)
			req := d.formRequest(path, form)
			req.Header, req.URL = probe.Header, probe.URL
			if a := d.do(d.browser, req); a.status != http.StatusForbidden {
				t.Errorf("%s: POST %s = %d, want 403", name, path, a.status)
			}
		}
	}
	if g := d.gate(gate.ID); g.Decision != "" {
		t.Errorf("the gate was decided: %s", g.Decision)
	}
	if r, err := d.engine.Run(t.Context(), run, ""); err != nil || r.State != engine.Waiting {
		t.Errorf("the run is %v, %v, want waiting", r, err)
	}
	req := d.formRequest("/gates/"+gate.ID, url.Values{"form": {good}, "decision": {"approve"}})
	req.Header.Del("Origin") // the browser's own word is enough
	if a := d.do(d.browser, req); a.status != http.StatusSeeOther {
		t.Errorf("an honest form = %d, want 303", a.status)
	}
}

// A page that rebinds its name to this machine is refused by the name.
func TestHost(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(o *Options) { o.Hosts = []string{"console.example"} })
	for host, want := range map[string]int{
		"127.0.0.1:7412": 200, "127.8.8.8": 200, "localhost:1": 200, "LOCALHOST": 200, "[::1]:7412": 200, "console.example:80": 200,
		"evil.example": 403, "evil.example:7412": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403,
		"10.0.0.1": 403, "[::]:7412": 403, "0.0.0.0": 403, "localhost:x": 403, "localhost@evil.example": 403,
	} {
		req := d.request(http.MethodGet, "/login", http.NoBody)
		req.Host = host
		a := d.do(d.newBrowser(), req)
		if a.status != want {
			t.Errorf("Host %s: GET /login = %d, want %d", host, a.status, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	for _, path := range []string{"/", "/login", "/runs", "/nothing", "/assets/console.css", "/assets/nothing"} {
		h := d.get(d.browser, path).header
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
				"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store", "X-Frame-Options": "DENY",
			"Access-Control-Allow-Origin": "",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("GET %s: %s = %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	b := d.newBrowser()
	page := d.get(b, "/login?next=/runs")
	wrong := d.post(b, "/login", url.Values{"form": {page.form()}, "token": {"AAAAAAAAAAAAAAAAAAAAAAAAAA"}, "next": {"/runs"}})
	if wrong.status != http.StatusUnauthorized {
		t.Errorf("a wrong token = %d, want 401", wrong.status)
	}
	wrong.lacks("AAAAAAAAAAAAAAAA")
	if a := d.post(b, "/login", url.Values{"form": {page.form() + "x"}, "token": {d.token}}); a.status != http.StatusForbidden {
		t.Errorf("a forged login form = %d, want 403", a.status)
	}
	a := d.post(b, "/login", url.Values{"form": {wrong.form()}, "token": {" " + d.token + "\n"}, "next": {"/runs"}})
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/runs" {
		t.Fatalf("login = %d to %q, want 303 to /runs:\n%s", a.status, a.header.Get("Location"), a.body)
	}
	var cookie *http.Cookie
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		if c.Value != "" {
			cookie = c
		}
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(d.server.URL, "http://"), ":")
	if cookie == nil || cookie.Name != "relavium_"+port || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.MaxAge != 12*3600 || cookie.Path != "/" {
		t.Errorf("the cookie is %v, want relavium_%s, HttpOnly, SameSite=Strict, 12 h", cookie, port)
	}
	if a := d.get(b, "/login"); a.status != http.StatusSeeOther {
		t.Errorf("GET /login when logged in = %d, want 303", a.status)
	}
	if a := d.post(b, "/logout", url.Values{"form": {d.get(b, "/runs").form()}}); a.status != http.StatusSeeOther {
		t.Errorf("logout = %d, want 303", a.status)
	}
	req := d.request(http.MethodGet, "/runs", http.NoBody)
	req.AddCookie(&http.Cookie{Name: cookie.Name, Value: cookie.Value})
	if a := d.do(d.newBrowser(), req); a.status != http.StatusSeeOther {
		t.Errorf("the cookie after the logout = %d, want 303 to the login", a.status)
	}
}

// The sixth attempt in ten seconds is not looked at, be it right or wrong.
func TestLoginRate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := newDesk(t, func(o *Options) { o.Now = func() time.Time { return now } })
	now = now.Add(triesWithin)
	b := d.newBrowser()
	form := d.get(b, "/login").form()
	for i := range maxTries + 2 {
		want := http.StatusUnauthorized
		if i >= maxTries {
			want = http.StatusTooManyRequests
		}
		if a := d.post(b, "/login", url.Values{"form": {form}, "token": {"wrong"}}); a.status != want {
			t.Errorf("attempt %d = %d, want %d", i+1, a.status, want)
		}
	}
	if a := d.post(b, "/login", url.Values{"form": {form}, "token": {d.token}}); a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "10" {
		t.Errorf("the right token too soon = %d, want 429", a.status)
	}
	now = now.Add(triesWithin)
	if a := d.post(b, "/login", url.Values{"form": {form}, "token": {d.token}}); a.status != http.StatusSeeOther {
		t.Errorf("ten seconds later = %d, want 303", a.status)
	}
}

func TestSessionEnds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newSessions(func() time.Time { return now })
	cookie := s.begin(&Visitor{Principal: "local", Runs: true})
	now = now.Add(sessionLife - time.Second)
	if s.find(cookie) == nil {
		t.Error("find before 12 h = nil, want the session")
	}
	now = now.Add(time.Second)
	if s.find(cookie) != nil {
		t.Error("find after 12 h = a session, want nil")
	}
	first := s.begin(&Visitor{Principal: "local", Runs: true})
	for range maxSessions {
		now = now.Add(time.Second)
		s.begin(&Visitor{Principal: "local", Runs: true})
	}
	if len(s.byID) != maxSessions || s.find(first) != nil {
		t.Errorf("%d sessions are kept, want %d without the oldest", len(s.byID), maxSessions)
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "/console"} {
		c := &Console{opt: Options{Prefix: prefix}}
		for to, want := range map[string]string{
			prefix + "/runs?state=failed": prefix + "/runs?state=failed", prefix + "/gates/x": prefix + "/gates/x",
			"": "", "//evil.example/": "", "https://evil.example/": "", "/\\evil.example": "", "javascript:alert(1)": "",
			"/%0d%0aSet-Cookie:x": "", prefix + "//evil.example": "", "runs": "", prefix + "/\nx": "",
		} {
			if want == "" {
				want = prefix + "/"
			}
			got := c.local(to)
			if strings.HasPrefix(got, "//") || prefix != "" && !strings.HasPrefix(got, prefix+"/") {
				t.Errorf("local(%q) = %q leaves the console", to, got)
			}
			if strings.HasPrefix(to, prefix+"/") && !strings.ContainsAny(to, "%\\\n") && !strings.Contains(to, "//") && got != want {
				t.Errorf("local(%q) = %q, want %q", to, got, want)
			}
		}
	}
}

func TestStartToken(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	token := StartToken{Home: home}
	if _, ok := token.Admit(t.Context(), ""); ok || token.Exists() {
		t.Error("a home without a token admits somebody")
	}
	first, err := token.Renew()
	if err != nil {
		t.Fatal(err)
	}
	second, err := token.Renew()
	if err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]bool{first: false, second: true, "": false, second[1:]: false, strings.ToLower(second): false} {
		if who, ok := token.Admit(t.Context(), secret); ok != want || ok && (who.Principal != engine.Local || !who.Runs || who.Gates != nil) {
			t.Errorf("Admit(%q) = %+v, %v, want %v", secret, who, ok, want)
		}
	}
	path := filepath.Join(home, tokenFile)
	raw, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(raw), second) || len(raw) != 65 {
		t.Errorf("the file holds %q, %v, want a digest alone", raw, err)
	}
	if about, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && about.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v, want 0600", about, err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := token.Admit(t.Context(), "{}"); ok {
		t.Error("a broken file admits somebody")
	}
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	if base, ok := Address(home); ok {
		t.Errorf("Address of an empty home = %q, want none", base)
	}
	withdraw, err := Announce(t.Context(), home, "http://127.0.0.1:7412")
	if err != nil {
		t.Fatal(err)
	}
	if base, ok := Address(home); !ok || base != "http://127.0.0.1:7412" {
		t.Errorf("Address = %q, %v, want the one announced", base, ok)
	}
	if about, err := os.Stat(filepath.Join(home, addressFile)); err != nil || runtime.GOOS != "windows" && about.Mode().Perm() != 0o600 {
		t.Errorf("console.json is %v, %v, want 0600", about, err)
	}
	_, err = Announce(t.Context(), home, "http://127.0.0.1:7413")
	if running, ok := err.(*RunningError); !ok || running.URL != "http://127.0.0.1:7412" { //nolint:errorlint // it is returned as it is
		t.Errorf("a second console = %v, want a RunningError with the first one's address", err)
	}
	withdraw()
	if base, ok := Address(home); ok {
		t.Errorf("Address after the end = %q, want none", base)
	}
	// What a killed process leaves behind is not believed.
	if err := replace(home, addressFile, []byte(`{"url":"http://127.0.0.1:7412","pid":1}`)); err != nil {
		t.Fatal(err)
	}
	if base, ok := Address(home); ok {
		t.Errorf("Address of a dead console = %q, want none", base)
	}
}
