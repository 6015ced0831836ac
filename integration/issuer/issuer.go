// Package issuer is an authorization server for tests: it has metadata and keys,
// and signs whatever tokens a test asks for, sound ones and others.
package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// An Issuer listens on loopback until its test ends.
type Issuer struct {
	URL string

	server  *httptest.Server
	fetches atomic.Int64
	down    atomic.Bool

	mu   sync.Mutex
	rsa  *rsa.PrivateKey
	ec   *ecdsa.PrivateKey
	ed   ed25519.PrivateKey
	turn int // how often the keys were replaced
}

// Start makes an issuer with one key of each kind.
func Start(tb testing.TB) *Issuer {
	tb.Helper()
	i := &Issuer{}
	i.Rotate(tb)
	mux := http.NewServeMux()
	metadata := func(w http.ResponseWriter, _ *http.Request) {
		i.write(w, map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "token_endpoint": i.URL + "/token"})
	}
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", metadata)
	mux.HandleFunc("GET /.well-known/openid-configuration", metadata)
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		i.write(w, map[string]any{"keys": i.keys()})
	})
	i.server = httptest.NewServer(mux)
	i.URL = i.server.URL
	tb.Cleanup(i.server.Close)
	return i
}

func (i *Issuer) write(w http.ResponseWriter, v any) {
	if i.down.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// Fetches is how often the keys were asked for.
func (i *Issuer) Fetches() int64 { return i.fetches.Load() }

// Down makes the issuer answer 503, or not any more.
func (i *Issuer) Down(down bool) { i.down.Store(down) }

// Rotate replaces all keys.
func (i *Issuer) Rotate(tb testing.TB) {
	tb.Helper()
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	e, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	_, d, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.rsa, i.ec, i.ed = r, e, d
	i.turn++
}

func (i *Issuer) kid(kind string) string { return kind + "-" + strconv.Itoa(i.turn) }

// keys is the key set (RFC 7517).
func (i *Issuer) keys() []map[string]string {
	i.mu.Lock()
	defer i.mu.Unlock()
	text := base64.RawURLEncoding.EncodeToString
	point, err := i.ec.PublicKey.Bytes() // 4, X, Y
	if err != nil {
		return nil
	}
	return []map[string]string{
		{"kty": "RSA", "use": "sig", "kid": i.kid("rsa"), "n": text(i.rsa.N.Bytes()), "e": "AQAB"},
		{"kty": "EC", "use": "sig", "kid": i.kid("ec"), "crv": "P-256", "x": text(point[1:33]), "y": text(point[33:])},
		{"kty": "OKP", "use": "sig", "kid": i.kid("ed"), "crv": "Ed25519", "x": text(i.ed.Public().(ed25519.PublicKey))}, //nolint:errcheck,forcetypeassert // an Ed25519 key has one
	}
}

// Claims are those of a sound access token.
func (i *Issuer) Claims(audience, subject, scope string) map[string]any {
	now := time.Now()
	return map[string]any{
		"iss": i.URL, "aud": audience, "sub": subject, "scope": scope, "client_id": "client-1", "jti": rand.Text(),
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// A Shape is how a token differs from a sound one. The zero value does not.
type Shape struct {
	Alg    string         // RS256 unless given; also none and HS256, keyed with the public key
	Kid    *string        // nil means the key's own
	Typ    *string        // nil means at+jwt; "" leaves it out
	Header map[string]any // more of it
	Claims map[string]any // over those given; nil values take out
}

// Token signs claims.
func (i *Issuer) Token(tb testing.TB, claims map[string]any, s Shape) string {
	tb.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	all := jwt.MapClaims(maps.Clone(claims))
	for name, value := range s.Claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	var method jwt.SigningMethod = jwt.SigningMethodRS256
	var key any = i.rsa
	kid := i.kid("rsa")
	switch s.Alg {
	case "", "RS256":
	case "PS256":
		method = jwt.SigningMethodPS256
	case "RS512":
		method = jwt.SigningMethodRS512
	case "ES256":
		method, key, kid = jwt.SigningMethodES256, i.ec, i.kid("ec")
	case "EdDSA":
		method, key, kid = jwt.SigningMethodEdDSA, crypto.Signer(i.ed), i.kid("ed")
	case "none":
		method, key = jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType
	case "HS256":
		der, err := x509.MarshalPKIXPublicKey(&i.rsa.PublicKey)
		if err != nil {
			tb.Fatal(err)
		}
		method, key = jwt.SigningMethodHS256, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	default:
		tb.Fatalf("no algorithm %q", s.Alg)
	}
	token := jwt.NewWithClaims(method, all)
	token.Header["typ"], token.Header["kid"] = "at+jwt", kid
	if s.Kid != nil {
		token.Header["kid"] = *s.Kid
	}
	if s.Typ != nil {
		if token.Header["typ"] = *s.Typ; *s.Typ == "" {
			delete(token.Header, "typ")
		}
	}
	maps.Copy(token.Header, s.Header)
	signed, err := token.SignedString(key)
	if err != nil {
		tb.Fatal(err)
	}
	return signed
}
