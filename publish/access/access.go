// Package access tells who a request is from and what it may do: static tokens
// that the operator made, and access tokens of an OAuth 2.1 authorization
// server, for which this server is the resource (RFC 6750, RFC 9068, RFC 9728).
package access

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine"
)

// A Mode is how callers show who they are.
type Mode string

// The modes.
const (
	ModeToken Mode = "token" // static tokens
	ModeOAuth Mode = "oauth" // JWTs of an authorization server
)

const (
	reloadEvery   = time.Second            // static tokens, so that a revoked one ends soon
	reloadAtOnce  = 200 * time.Millisecond // at most, when a token is unknown
	staleAfter    = 3 * time.Second        // tokens that are older are not believed
	storeTimeout  = 5 * time.Second
	usedEvery     = time.Minute // how often a token's last use is written
	failuresMost  = 10          // of an address in a minute
	maxCredential = 16 << 10    // bytes of a token
)

// Options configure New. Logger and Tokens are required; ModeOAuth needs Issuer
// and Resource.
type Options struct {
	Mode   Mode
	Logger *slog.Logger
	Tokens Store // static tokens; with ModeOAuth they open the console alone

	Resource   string         // URL of the endpoint, as clients know it
	Issuer     string         // of the authorization server, as its tokens say it
	Audience   string         // that tokens must name; "" means Resource
	JWKSURL    string         // "" means what the issuer's metadata says
	TokenTypes []string       // of the header's typ; nil means at+jwt and application/at+jwt
	AllowLocal bool           // the issuer and its keys are on local addresses
	Egress     egress.Options // of the client that asks the issuer

	// BehindProxy says that the last address in X-Forwarded-For is the client's,
	// since whatever connects is a proxy that writes it.
	BehindProxy bool

	Now func() time.Time // nil means time.Now
}

// Access tells who requests are from. It is safe for concurrent use; Run keeps
// it current.
type Access struct {
	opt      Options
	log      *slog.Logger
	failures *failures
	tell     rate.Sometimes // of refusals, in the log
	jwt      *verifier      // nil without ModeOAuth

	mu     sync.Mutex
	tokens map[string]*held // by id
	loaded time.Time        // when the tokens were read
	tried  time.Time        // when reading them was last tried
}

// held is a token as this process knows it.
type held struct {
	Token

	scopes  Scopes
	digest  []byte
	end     context.CancelFunc // once it is revoked
	alive   context.Context    //nolint:containedctx // ends with the token, for whoever watches it
	used    time.Time          // last use that is not written
	written time.Time
}

// New makes an Access. The error says which option is wrong.
func New(opt Options) (*Access, error) {
	if opt.Logger == nil || opt.Tokens == nil {
		return nil, errors.New("access: Options.Logger and Options.Tokens are required")
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	a := &Access{
		opt: opt, log: opt.Logger, tokens: map[string]*held{},
		tell:     rate.Sometimes{Interval: time.Second},
		failures: &failures{most: failuresMost, now: opt.Now, by: map[netip.Prefix]*tries{}},
	}
	switch opt.Mode {
	case ModeToken:
	case ModeOAuth:
		var err error
		if a.jwt, err = newVerifier(&a.opt); err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("access: Options.Mode is " + strconv.Quote(string(opt.Mode)))
	}
	return a, nil
}

// Run keeps the tokens and the issuer's keys current until ctx ends. Before it
// runs, and while the keys cannot be had, nobody is admitted by a JWT. It is
// called once; ready, which may be nil, is called after the first attempt.
func (a *Access) Run(ctx context.Context, ready func()) {
	var keys sync.WaitGroup
	defer keys.Wait()
	first := make(chan struct{})
	if a.jwt != nil {
		keys.Go(func() { a.jwt.run(ctx, first) })
		select {
		case <-first:
		case <-ctx.Done():
		}
	}
	if err := a.reload(ctx); err != nil && ctx.Err() == nil {
		a.log.WarnContext(ctx, "the static tokens cannot be read", "error", err)
	}
	if ready != nil {
		ready()
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			a.endAll()
			return
		case <-tick.C:
		}
		err := a.reload(ctx)
		if err == nil {
			err = a.writeUses(ctx)
		}
		if err != nil && !failing && ctx.Err() == nil {
			a.log.WarnContext(ctx, "the static tokens cannot be read or written", "error", err)
		}
		failing = err != nil
	}
}

// reload reads the static tokens and ends what hangs on those that are gone.
func (a *Access) reload(ctx context.Context) error {
	now := a.opt.Now()
	a.mu.Lock()
	a.tried = now
	a.mu.Unlock()
	rctx, done := context.WithTimeout(ctx, storeTimeout)
	defer done()
	list, err := a.opt.Tokens.Tokens(rctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.loaded) {
		return nil // another has read it since
	}
	a.loaded = now
	seen := make(map[string]bool, len(list))
	for i := range list {
		t := &list[i]
		if !t.Revoked.IsZero() {
			continue
		}
		seen[t.ID] = true
		if h := a.tokens[t.ID]; h != nil && h.Digest == t.Digest && slices.Equal(h.Scopes, t.Scopes) && h.Expires.Equal(t.Expires) {
			h.written = t.Used
			continue
		}
		h, err := hold(ctx, t)
		if err != nil {
			a.log.WarnContext(ctx, "a static token cannot be understood", "id", t.ID, "error", err)
			delete(seen, t.ID)
			continue
		}
		if old := a.tokens[t.ID]; old != nil {
			old.end()
		}
		a.tokens[t.ID] = h
	}
	for id, h := range a.tokens {
		if !seen[id] {
			h.end()
			delete(a.tokens, id)
		}
	}
	return nil
}

func hold(ctx context.Context, t *Token) (*held, error) {
	scopes, err := ParseScopes(t.Scopes)
	if err != nil {
		return nil, err
	}
	digest, err := digestOf(t)
	if err != nil {
		return nil, err
	}
	h := &held{Token: *t, scopes: scopes, digest: digest, written: t.Used}
	h.alive, h.end = context.WithCancel(context.WithoutCancel(ctx))
	return h, nil
}

func (a *Access) endAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.tokens {
		h.end()
	}
	clear(a.tokens)
	a.loaded = time.Time{}
}

// writeUses stores the last uses of tokens, of each once a minute.
func (a *Access) writeUses(ctx context.Context) error {
	due := map[string]time.Time{}
	a.mu.Lock()
	for id, h := range a.tokens {
		if h.used.Sub(h.written) >= usedEvery {
			due[id] = h.used.UTC().Truncate(time.Second)
		}
	}
	a.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	wctx, done := context.WithTimeout(ctx, storeTimeout)
	defer done()
	err := a.opt.Tokens.Update(wctx, func(all []Token) ([]Token, error) {
		for i := range all {
			if used, ok := due[all[i].ID]; ok && used.After(all[i].Used) {
				all[i].Used = used
			}
		}
		return all, nil
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, used := range due {
		if h := a.tokens[id]; h != nil {
			h.written = used
		}
	}
	return nil
}

// An Identity is who a request is from.
type Identity struct {
	Principal engine.Principal
	Scopes    Scopes
	Expires   time.Time // when the token is taken no more; zero means never

	names []string // by which visible_to may name it
	oauth bool
	held  *held
}

// Sees reports whether the workflow exists for the caller. visibleTo, where it
// is not nil, lists subjects, clients and names of tokens. What a static token
// does not allow does not exist for it; to an OAuth client it does, since it may
// ask for the scope.
func (i *Identity) Sees(workflow string, visibleTo []string) bool {
	if visibleTo != nil && !slices.ContainsFunc(i.names, func(name string) bool { return slices.Contains(visibleTo, name) }) {
		return false
	}
	return i.oauth || i.Scopes.Run(workflow)
}

// Watch calls end when the token is revoked, unless stop is called first.
func (i *Identity) Watch(end func()) (stop func() bool) {
	if i.held == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(i.held.alive, end)
}

// Live reports whether the token of an identity that was admitted earlier is
// good still. It looks at the store where Run does not.
func (a *Access) Live(ctx context.Context, i *Identity) bool {
	now := a.opt.Now()
	a.mu.Lock()
	old := now.Sub(a.loaded) >= staleAfter
	a.mu.Unlock()
	if old && i.held != nil && a.reload(ctx) != nil {
		return false
	}
	return (i.Expires.IsZero() || now.Before(i.Expires)) && (i.held == nil || i.held.alive.Err() == nil)
}

// A Refusal is the answer to a request that is not admitted.
type Refusal struct {
	Status    int
	Challenge string        // of WWW-Authenticate, or ""
	After     time.Duration // of Retry-After; 0 means none
	Text      string        // for people
}

// Admit tells who a request is from by its Authorization header, or why it is
// refused.
func (a *Access) Admit(r *http.Request) (*Identity, *Refusal) {
	secret, ok := bearer(r.Header)
	if !ok {
		return nil, a.failed(r, "the Authorization header has no bearer token")
	}
	if secret == "" {
		return nil, &Refusal{Status: http.StatusUnauthorized, Challenge: a.challenge("", "", ScopeRun), Text: "unauthorized: a token is needed"}
	}
	if a.jwt == nil {
		return a.admitStatic(r, secret)
	}
	i, why, err := a.jwt.verify(secret)
	switch {
	case err != nil:
		a.log.WarnContext(r.Context(), "the keys of the issuer cannot be had", "error", err)
		return nil, &Refusal{Status: http.StatusServiceUnavailable, After: 5 * time.Second, Text: "tokens cannot be checked now"}
	case i == nil:
		return nil, a.failed(r, why)
	}
	return i, nil
}

// AdmitAny is Admit that takes a static token in every mode, as for what machines
// of the operator ask for.
func (a *Access) AdmitAny(r *http.Request) (*Identity, *Refusal) {
	if secret, ok := bearer(r.Header); ok && idOf(secret) != "" {
		return a.admitStatic(r, secret)
	}
	return a.Admit(r)
}

func (a *Access) admitStatic(r *http.Request, secret string) (*Identity, *Refusal) {
	i, err := a.Static(r.Context(), secret)
	switch {
	case err != nil:
		a.log.WarnContext(r.Context(), "the static tokens cannot be read", "error", err)
		return nil, &Refusal{Status: http.StatusServiceUnavailable, After: time.Second, Text: "tokens cannot be checked now"}
	case i == nil:
		return nil, a.failed(r, "the token is unknown, revoked or expired")
	}
	return i, nil
}

// Static returns whose static token a secret is, or nil. The error is the
// store's.
func (a *Access) Static(ctx context.Context, secret string) (*Identity, error) {
	id := idOf(secret)
	if err := a.lookUp(ctx, id); err != nil {
		return nil, err
	}
	now := a.opt.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.tokens[id]
	if !same(h, secret) || !h.Live(now) {
		return nil, nil //nolint:nilnil // nobody's token is no error
	}
	h.used = now
	return &Identity{
		Principal: engine.Principal("token:" + h.Name), Scopes: h.scopes, Expires: h.Expires, names: []string{h.Name}, held: h,
	}, nil
}

// lookUp makes what is known of the tokens current enough to judge one by that
// id. One that is not known may have been made just now: the store is asked for
// it, though not at once by each of many. The error is the store's.
func (a *Access) lookUp(ctx context.Context, id string) error {
	came := a.opt.Now()
	for {
		now := a.opt.Now()
		a.mu.Lock()
		old := now.Sub(a.loaded) >= staleAfter
		settled := id == "" || a.tokens[id] != nil || !a.loaded.Before(came)
		wait := reloadAtOnce - now.Sub(a.tried)
		a.mu.Unlock()
		switch {
		case old:
			return a.reload(ctx)
		case settled:
			return nil
		case wait <= 0:
			_ = a.reload(ctx) // without it, what was read last is good still
			return nil
		default:
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
	}
}

// failed refuses a credential that is no good; too many of one address are told
// to wait.
func (a *Access) failed(r *http.Request, why string) *Refusal {
	from := a.client(r)
	told := true
	a.tell.Do(func() { told = false })
	if !told {
		a.log.InfoContext(r.Context(), "a caller is not admitted", "why", why, "address", from.String())
	}
	if after, ok := a.failures.more(from); !ok {
		return &Refusal{Status: http.StatusTooManyRequests, After: after, Text: "too many failed attempts"}
	}
	return &Refusal{Status: http.StatusUnauthorized, Challenge: a.challenge("invalid_token", why, ScopeRun), Text: "unauthorized: " + why}
}

// Forbidden refuses a request that needs a scope which the token does not have.
func (a *Access) Forbidden(scope string) *Refusal {
	return &Refusal{
		Status: http.StatusForbidden, Challenge: a.challenge("insufficient_scope", "the token lacks the scope", scope),
		Text: "forbidden: the token lacks the scope " + scope,
	}
}

// challenge is what WWW-Authenticate says (RFC 6750 3, RFC 9728 5.1). Its values
// hold nothing that would have to be quoted.
func (a *Access) challenge(code, why, scope string) string {
	parts := []string{`realm="relavium-serve"`}
	if a.jwt != nil {
		parts = []string{`resource_metadata="` + a.MetadataURL() + `"`}
	}
	if code != "" {
		parts = append(parts, `error="`+code+`"`, `error_description="`+why+`"`)
	}
	if a.jwt != nil || code == "insufficient_scope" {
		parts = append(parts, `scope="`+scope+`"`)
	}
	return "Bearer " + strings.Join(parts, ", ")
}

// client is the address that a request comes from.
func (a *Access) client(r *http.Request) netip.Addr {
	if a.opt.BehindProxy {
		list := r.Header.Values("X-Forwarded-For")
		if len(list) > 0 {
			last := list[len(list)-1]
			last = strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])
			if addr, err := netip.ParseAddr(last); err == nil {
				return addr
			}
			if at, err := netip.ParseAddrPort(last); err == nil {
				return at.Addr()
			}
		}
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr()
}

// bearer reads the token of an Authorization header: "" where there is none, not
// ok where it is no bearer token (RFC 6750 2.1).
func bearer(h http.Header) (secret string, ok bool) {
	values := h.Values("Authorization")
	switch {
	case len(values) == 0:
		return "", true
	case len(values) > 1 || len(values[0]) > maxCredential:
		return "", false
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	secret = strings.TrimLeft(secret, " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" || strings.ContainsFunc(secret, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~+/=", c)
	}) {
		return "", false
	}
	return secret, true
}

// checkURL refuses what is no absolute http or https URL without user, query and
// fragment.
func checkURL(what, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		strings.Contains(raw, "#") || strings.ContainsAny(raw, "\"\\ ") {
		return nil, errors.New(what + " is no http or https URL without query and fragment")
	}
	return u, nil
}

// audience is what tokens must name.
func (o *Options) audience() string { return cmp.Or(o.Audience, o.Resource) }
