package access

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine"
)

const (
	leeway        = 30 * time.Second
	keysTimeout   = 10 * time.Second
	keysEvery     = time.Hour   // the issuer's keys are read anew
	keysAtOnce    = time.Minute // at most, when a token names an unknown one
	maxMetadata   = 256 << 10   // bytes of the issuer's metadata
	maxKeys       = 1 << 20     // bytes of its keys
	maxSubject    = 255         // "MUST NOT exceed 255 ASCII characters" (OpenID Connect Core 2)
	leastRSA      = 256         // bytes of a modulus
	wellKnown     = "/.well-known/"
	resourcePlace = wellKnown + "oauth-protected-resource"
)

// digestOf is the stored SHA-256 of a token.
func digestOf(t *Token) ([]byte, error) {
	sum, err := hex.DecodeString(t.Digest)
	if err != nil || len(sum) != sha256.Size {
		return nil, errors.New("it has no digest")
	}
	return sum, nil
}

// same compares in constant time; no token is nobody's.
func same(h *held, secret string) bool {
	want := make([]byte, sha256.Size)
	if h != nil {
		want = h.digest
	}
	got := sha256.Sum256([]byte(secret))
	return subtle.ConstantTimeCompare(got[:], want) == 1 && h != nil
}

// A verifier checks access tokens of one issuer (RFC 9068 4).
type verifier struct {
	opt    *Options
	parser *jwt.Parser
	types  []string // lower case
	keys   atomic.Pointer[keyfunc.Keyfunc]
}

func newVerifier(opt *Options) (*verifier, error) {
	if _, err := checkURL("the issuer", opt.Issuer); err != nil {
		return nil, err
	}
	if _, err := checkURL("the resource", opt.Resource); err != nil {
		return nil, err
	}
	if opt.JWKSURL != "" {
		if err := egress.CheckURL(opt.JWKSURL, opt.AllowLocal); err != nil {
			return nil, fmt.Errorf("the URL of the keys: %w", err)
		}
	}
	if err := egress.CheckURL(opt.Issuer, opt.AllowLocal); err != nil {
		return nil, fmt.Errorf("the issuer: %w", err)
	}
	types := opt.TokenTypes
	if types == nil {
		types = []string{"at+jwt", "application/at+jwt"}
	}
	v := &verifier{opt: opt, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{"RS256", "PS256", "ES256", "EdDSA"}),
		jwt.WithIssuer(opt.Issuer),
		jwt.WithAudience(opt.audience()),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway),
		jwt.WithTimeFunc(opt.Now),
		jwt.WithStrictDecoding(),
	)}
	for _, t := range types {
		v.types = append(v.types, strings.ToLower(t))
	}
	return v, nil
}

// claims are what is read of an access token.
type claims struct {
	jwt.RegisteredClaims

	Scope    json.RawMessage `json:"scope"`
	Scp      json.RawMessage `json:"scp"`
	ClientID string          `json:"client_id"`
	Party    string          `json:"azp"`
}

// verify returns whose token it is, or nil and why it is nobody's. The error
// says that there are no keys to check it by.
func (v *verifier) verify(secret string) (*Identity, string, error) {
	keys := v.keys.Load()
	if keys == nil {
		return nil, "", errors.New("access: no keys were read yet")
	}
	var c claims
	token, err := v.parser.ParseWithClaims(secret, &c, func(t *jwt.Token) (any, error) {
		if kind, ok := t.Header["typ"].(string); !ok || !slices.Contains(v.types, strings.ToLower(kind)) {
			return nil, errType
		}
		if _, ok := t.Header["crit"]; ok { // there is no extension that this server understands (RFC 7515 4.1.11)
			return nil, errCritical
		}
		key, err := (*keys).Keyfunc(t)
		if k, ok := key.(*rsa.PublicKey); ok && k.Size() < leastRSA {
			return nil, errWeak
		}
		return key, err
	})
	if err != nil || !token.Valid {
		return nil, reasonOf(err), nil
	}
	scopes, ok := c.scopes()
	switch {
	case c.Subject == "" || len(c.Subject) > maxSubject || strings.ContainsFunc(c.Subject, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return nil, "the token has no subject", nil
	case !ok:
		return nil, "the token has no scope", nil
	}
	i := &Identity{
		Principal: engine.Principal("oauth:" + v.opt.Issuer + "#" + c.Subject),
		Scopes:    scopesOf(scopes), Expires: c.ExpiresAt.Add(leeway), names: []string{c.Subject}, oauth: true,
	}
	for _, client := range []string{c.ClientID, c.Party} {
		if client != "" {
			i.names = append(i.names, client)
		}
	}
	return i, "", nil
}

var (
	errType     = errors.New("typ")
	errCritical = errors.New("crit")
	errWeak     = errors.New("weak key")
)

// scopes reads scope, a string, or scp, a string or a list; false where neither is.
func (c *claims) scopes() ([]string, bool) {
	var text string
	if c.Scope != nil && json.Unmarshal(c.Scope, &text) == nil && c.Scope[0] == '"' {
		return strings.Fields(text), true
	}
	if c.Scp == nil {
		return nil, false
	}
	if c.Scp[0] == '"' && json.Unmarshal(c.Scp, &text) == nil {
		return strings.Fields(text), true
	}
	var list []string
	if c.Scp[0] == '[' && json.Unmarshal(c.Scp, &list) == nil {
		return list, true
	}
	return nil, false
}

// reasonOf says in fixed words what is wrong with a token.
func reasonOf(err error) string {
	for _, known := range []struct {
		err  error
		text string
	}{
		{errType, "the token is of a type that is not an access token"},
		{errCritical, "the token has a critical header that is not understood"},
		{errWeak, "the key of the token is too short"},
		{jwt.ErrTokenMalformed, "the token is malformed"},
		{jwt.ErrTokenUnverifiable, "the key of the token is unknown"},
		{jwt.ErrTokenSignatureInvalid, "the signature of the token is invalid"},
		{jwt.ErrTokenExpired, "the token has expired"},
		{jwt.ErrTokenNotValidYet, "the token is not valid yet"},
		{jwt.ErrTokenInvalidIssuer, "the token is of another issuer"},
		{jwt.ErrTokenInvalidAudience, "the token is for another audience"},
	} {
		if errors.Is(err, known.err) {
			return known.text
		}
	}
	return "the token is invalid"
}

// run reads the issuer's keys, again and again until it has some, and keeps them
// current until ctx ends. first is closed after the first attempt.
func (v *verifier) run(ctx context.Context, first chan<- struct{}) {
	wait := time.Second
	for {
		err := v.load(ctx)
		if first != nil {
			close(first)
			first = nil
		}
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			v.opt.Logger.WarnContext(ctx, "the keys of the issuer cannot be read; tokens are refused until they can", "error", err)
		}
		pause := time.NewTimer(wait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		wait = min(2*wait, 30*time.Second)
	}
	<-ctx.Done()
}

// load finds the issuer's keys and reads them.
func (v *verifier) load(ctx context.Context) error {
	lctx, done := context.WithTimeout(ctx, keysTimeout)
	defer done()
	from := v.opt.JWKSURL
	if from == "" {
		var err error
		if from, err = v.discover(lctx); err != nil {
			return err
		}
	}
	client, err := v.client(from, maxKeys)
	if err != nil {
		return err
	}
	kctx, end := context.WithCancel(ctx)
	keys, err := keyfunc.NewDefaultOverrideCtx(kctx, []string{from}, keyfunc.Override{
		Client:                    client,
		HTTPTimeout:               keysTimeout,
		NoErrorReturnFirstHTTPReq: new(false),
		RateLimitWaitMax:          keysTimeout,
		RefreshInterval:           keysEvery,
		RefreshUnknownKID:         rate.NewLimiter(rate.Every(keysAtOnce), 1),
		RefreshErrorHandlerFunc: func(string) func(context.Context, error) {
			return func(ctx context.Context, err error) {
				v.opt.Logger.WarnContext(ctx, "the keys of the issuer cannot be read anew", "error", plainError(err))
			}
		},
	})
	if err != nil {
		end()
		client.CloseIdleConnections()
		return fmt.Errorf("the keys of the issuer: %w", plainError(err))
	}
	context.AfterFunc(ctx, func() {
		end()
		client.CloseIdleConnections()
	})
	v.keys.Store(&keys)
	return nil
}

// client reaches the one URL.
func (v *verifier) client(raw string, limit int64) (*http.Client, error) {
	target, err := egress.ParseTarget(raw, v.opt.AllowLocal)
	if err != nil {
		return nil, err
	}
	opt := v.opt.Egress
	opt.MaxMessage, opt.Timeout = limit, keysTimeout
	return egress.Client(target, opt), nil
}

// discover asks the issuer where its keys are: by RFC 8414, then by OpenID
// Connect Discovery.
func (v *verifier) discover(ctx context.Context) (string, error) {
	issuer, err := url.Parse(v.opt.Issuer)
	if err != nil {
		return "", err
	}
	path := strings.TrimSuffix(issuer.EscapedPath(), "/")
	origin := issuer.Scheme + "://" + issuer.Host
	var last error
	for _, place := range []string{
		origin + wellKnown + "oauth-authorization-server" + path,
		origin + wellKnown + "openid-configuration" + path,
		origin + path + wellKnown + "openid-configuration",
	} {
		keys, err := v.metadata(ctx, place)
		if err == nil {
			return keys, nil
		}
		last = err
	}
	return "", fmt.Errorf("the metadata of the issuer: %w", plainError(last))
}

func (v *verifier) metadata(ctx context.Context, place string) (string, error) {
	client, err := v.client(place, maxMetadata)
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, place, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", resp.StatusCode)
	}
	raw, err := io.ReadAll(resp.Body) // bounded by the client
	if err != nil {
		return "", err
	}
	var said struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	switch {
	case json.Unmarshal(raw, &said) != nil:
		return "", errors.New("not JSON")
	case said.Issuer != v.opt.Issuer: // "MUST be identical to the authorization server's issuer identifier" (RFC 8414 3.3)
		return "", errors.New("of another issuer")
	case said.Keys == "":
		return "", errors.New("no jwks_uri")
	}
	return said.Keys, egress.CheckURL(said.Keys, v.opt.AllowLocal)
}

// plainError takes the URL out of an error: it may hold what was sent.
func plainError(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
