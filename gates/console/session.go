package console

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// Bounds of who is logged in and of who tries to.
const (
	sessionLife = 12 * time.Hour
	maxSessions = 256
	maxTries    = 5
	triesWithin = 10 * time.Second
	maxSecret   = 512 // bytes of what is typed as a token
)

// A session is one browser that somebody logged in with.
type session struct {
	visitor  *Visitor
	form     string // every form of this session carries it
	ends     time.Time
	byHeader bool // each request shows by itself who it is from

	about string // what form seals, where two seals of it differ
	id    string // of a login that replicas share
}

// Sessions are the logged-in browsers, in memory: they end with the process.
type sessions struct {
	now   func() time.Time
	key   [32]byte // of the login form's token
	seals Seals    // nil: of this process alone

	mu   sync.Mutex
	byID map[[32]byte]*session // by the digest of the cookie
}

func newSessions(now func() time.Time) *sessions {
	s := &sessions{now: now, byID: make(map[[32]byte]*session)}
	_, _ = rand.Read(s.key[:]) // never fails
	return s
}

// begin makes a session and returns the value of its cookie.
func (s *sessions) begin(who *Visitor) string {
	cookie := rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var oldest [32]byte
	var first time.Time
	for id, one := range s.byID {
		switch {
		case !now.Before(one.ends):
			delete(s.byID, id)
		case first.IsZero() || one.ends.Before(first):
			oldest, first = id, one.ends
		}
	}
	if len(s.byID) >= maxSessions {
		delete(s.byID, oldest)
	}
	s.byID[sha256.Sum256([]byte(cookie))] = &session{visitor: who, form: rand.Text(), ends: now.Add(sessionLife)}
	return cookie
}

// find returns the session of a cookie, or nil.
func (s *sessions) find(cookie string) *session {
	if cookie == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byID[sha256.Sum256([]byte(cookie))]
	if one == nil || !s.now().Before(one.ends) {
		return nil
	}
	return one
}

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, sha256.Sum256([]byte(cookie)))
}

// seal is the form token that goes with the cookie of a browser not logged in.
func (s *sessions) seal(cookie string) string {
	if s.seals != nil {
		return s.seals.SealAs(sealForm, []byte(cookie))
	}
	mac := hmac.New(sha256.New, s.key[:])
	_, _ = mac.Write([]byte(cookie)) // never fails
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// sealed reports whether a form's token is one that seal made for the cookie.
func (s *sessions) sealed(cookie, token string) bool {
	if s.seals == nil {
		return same(token, s.seal(cookie))
	}
	plain, err := s.seals.OpenAs(sealForm, token)
	return err == nil && same(string(plain), cookie)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Tries bounds how often anybody may try to log in.
type tries struct {
	now func() time.Time

	mu   sync.Mutex
	last []time.Time
}

func (t *tries) allowed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for len(t.last) > 0 && now.Sub(t.last[0]) >= triesWithin {
		t.last = t.last[1:]
	}
	if len(t.last) >= maxTries {
		return false
	}
	t.last = append(t.last, now)
	return true
}

// cookieName has the port in it, since cookies do not part ports (RFC 6265 8.5).
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil || port == "" {
		port = "80"
	}
	return "relavium_" + port
}

func cookieValue(r *http.Request, name string) string {
	if cookie, err := r.Cookie(name); err == nil {
		return cookie.Value
	}
	return ""
}

// setCookie sets one of the console's cookies; an empty value removes it.
func (c *Console) setCookie(w http.ResponseWriter, r *http.Request, name, value string, life time.Duration) {
	cookie := &http.Cookie{ //nolint:gosec // Secure only over TLS: the console is reached on loopback without
		Name: name, Value: value, Path: cmp.Or(c.opt.Prefix, "/"), MaxAge: int(life / time.Second),
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil || c.opt.Secure,
	}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// A page is a request of somebody who is logged in.
type pageFunc func(w http.ResponseWriter, r *http.Request, s *session)

// known admits requests with a session; a form needs its token besides.
func (c *Console) known(next pageFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s := c.current(r)
		if s == nil {
			c.askLogin(w, r)
			return
		}
		if r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			if err := r.ParseForm(); err != nil {
				c.fail(w, r, http.StatusBadRequest, "The form cannot be read", "It may be too long. Go back and send it again.")
				return
			}
			form := r.PostForm.Get("form")
			if !same(form, s.form) && (s.about == "" || !c.sessions.sealed(s.about, form)) {
				c.fail(w, r, http.StatusForbidden, "This form is not current", "Go back, load the page anew and send it again.")
				return
			}
		}
		next(w, r, s)
	}
}

// askLogin sends a browser to the login page, and from there back.
func (c *Console) askLogin(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || strings.HasSuffix(r.URL.Path, "/live") {
		c.fail(w, r, http.StatusUnauthorized, "You are not logged in", "Log in and try again.")
		return
	}
	to := c.opt.Prefix + "/login"
	if next := r.URL.RequestURI(); c.local(next) != c.opt.Prefix+"/" {
		to += "?next=" + url.QueryEscape(next)
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// local keeps a redirection on this console: anything else becomes its first page.
func (c *Console) local(to string) string {
	first := c.opt.Prefix + "/"
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || len(to) > 2048 || strings.ContainsAny(to, "\\\r\n\t") ||
		!strings.HasPrefix(to, first) || strings.HasPrefix(to, "//") {
		return first
	}
	return to
}

type loginView struct {
	Next   string
	Failed string
}

func (c *Console) loginPage(w http.ResponseWriter, r *http.Request) {
	if c.current(r) != nil {
		http.Redirect(w, r, c.local(r.URL.Query().Get("next")), http.StatusSeeOther) //nolint:gosec // local keeps it on this console
		return
	}
	c.showLogin(w, r, http.StatusOK, r.URL.Query().Get("next"), "")
}

func (c *Console) showLogin(w http.ResponseWriter, r *http.Request, status int, next, failed string) {
	name := cookieName(r) + "_login"
	cookie := cookieValue(r, name)
	if len(cookie) != 26 {
		cookie = rand.Text()
		c.setCookie(w, r, name, cookie, time.Hour)
	}
	c.show(w, r, status, "login", page{Title: "Log in", Form: c.sessions.seal(cookie), View: loginView{Next: c.local(next), Failed: failed}})
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusBadRequest, "The form cannot be read", "Go back and send it again.")
		return
	}
	next, secret := r.PostForm.Get("next"), strings.TrimSpace(r.PostForm.Get("token"))
	name := cookieName(r) + "_login"
	cookie := cookieValue(r, name)
	if cookie == "" || !c.sessions.sealed(cookie, r.PostForm.Get("form")) {
		c.showLogin(w, r, http.StatusForbidden, next, "The page was out of date. Please try again.")
		return
	}
	if !c.tries.allowed() {
		w.Header().Set("Retry-After", "10")
		c.showLogin(w, r, http.StatusTooManyRequests, next, "Too many attempts. Wait ten seconds and try again.")
		return
	}
	var who *Visitor
	ok := false
	if secret != "" && len(secret) <= maxSecret {
		who, ok = c.opt.Login.Admit(r.Context(), secret)
	}
	if !ok {
		c.log.WarnContext(r.Context(), "console: a login was refused")
		c.showLogin(w, r, http.StatusUnauthorized, next, "That is not a token that may come in here. A newer one may have replaced it.")
		return
	}
	err := c.opt.Engine.Record(r.Context(), engine.AuditEntry{Principal: who.Principal, Via: engine.ViaConsole, Action: "console.login"})
	if err != nil {
		c.broken(w, r, err)
		return
	}
	c.setCookie(w, r, name, "", 0)
	value := ""
	if c.opt.Seals == nil {
		value = c.sessions.begin(who)
	} else {
		value, err = c.share(secret)
	}
	if err != nil {
		c.broken(w, r, err)
		return
	}
	c.setCookie(w, r, cookieName(r), value, sessionLife)
	http.Redirect(w, r, c.local(next), http.StatusSeeOther) //nolint:gosec // local keeps it on this console
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request, s *session) {
	name := cookieName(r)
	if err := c.end(r.Context(), s, cookieValue(r, name)); err != nil {
		c.broken(w, r, err)
		return
	}
	c.setCookie(w, r, name, "", 0)
	http.Redirect(w, r, c.opt.Prefix+"/login", http.StatusSeeOther)
}
