package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	tokenPrefix = "relavium_"
	idLength    = 12
	secretSize  = 32 // random bytes
	maxName     = 64

	// maxTokens bounds the tokens of a store; keepEnded is how many of them may be
	// ones that ended, of which the oldest go first.
	maxTokens = 2048
	keepEnded = 1024
)

// Errors of Create and Revoke.
var (
	ErrNameTaken    = errors.New("a live token has this name")
	ErrName         = errors.New("a name has 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-' and '@'")
	ErrNoScope      = errors.New("a token needs a scope")
	ErrExpired      = errors.New("the token would have ended already")
	ErrUnknownToken = errors.New("no such token")
	ErrTooMany      = fmt.Errorf("there are %d live tokens already", maxTokens-keepEnded)
)

// A Token is a static token as it is stored: not the token itself, but what
// tells it.
type Token struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Digest  string    `json:"sha256"` // of the whole token, in hex
	Scopes  []string  `json:"scopes"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero means never
	Revoked time.Time `json:"revoked,omitzero"` // zero means that it is not
	Used    time.Time `json:"used,omitzero"`    // about; written at most once a minute
}

// Live reports whether the token is good at that time.
func (t *Token) Live(now time.Time) bool {
	return t.Revoked.IsZero() && (t.Expires.IsZero() || now.Before(t.Expires))
}

// ended is when the token stopped being good, if it did.
func (t *Token) ended() time.Time {
	if !t.Revoked.IsZero() && (t.Expires.IsZero() || t.Revoked.Before(t.Expires)) {
		return t.Revoked
	}
	return t.Expires
}

// A Store keeps the static tokens. It is safe for concurrent use, by several
// processes too.
type Store interface {
	// Tokens returns all of them; they are the caller's.
	Tokens(ctx context.Context) ([]Token, error)
	// Update replaces them by what change makes of them; meanwhile nobody else
	// changes them. An error of change is returned, and nothing is replaced.
	Update(ctx context.Context, change func([]Token) ([]Token, error)) error
}

// Create makes a token and returns it with the token itself, which is stored
// nowhere and can be had only here. expires may be zero. Errors: ErrName,
// ErrNameTaken, ErrNoScope, ErrExpired, ErrTooMany, *ScopeError.
func Create(ctx context.Context, store Store, name string, scopes []string, expires, now time.Time) (Token, string, error) {
	_, err := ParseScopes(scopes)
	switch {
	case !isName(name, maxName):
		return Token{}, "", ErrName
	case len(scopes) == 0:
		return Token{}, "", ErrNoScope
	case err != nil:
		return Token{}, "", err
	case !expires.IsZero() && !now.Before(expires):
		return Token{}, "", ErrExpired
	}
	id := strings.ToLower(rand.Text())[:idLength]
	random := make([]byte, secretSize)
	_, _ = rand.Read(random) // never fails
	secret := tokenPrefix + id + "_" + base64.RawURLEncoding.EncodeToString(random)
	sum := sha256.Sum256([]byte(secret))
	made := Token{
		ID: id, Name: name, Digest: hex.EncodeToString(sum[:]), Scopes: slices.Compact(slices.Sorted(slices.Values(scopes))),
		Created: now.UTC().Truncate(time.Second), Expires: expires.UTC().Truncate(time.Second),
	}
	if expires.IsZero() {
		made.Expires = time.Time{}
	}
	err = store.Update(ctx, func(all []Token) ([]Token, error) {
		live := 0
		for i := range all {
			if !all[i].Live(now) {
				continue
			}
			live++
			if all[i].Name == name {
				return nil, ErrNameTaken
			}
		}
		if live >= maxTokens-keepEnded {
			return nil, ErrTooMany
		}
		return append(prune(all, now), made), nil
	})
	if err != nil {
		return Token{}, "", err
	}
	return made, secret, nil
}

// prune drops the tokens that ended first where too many have.
func prune(all []Token, now time.Time) []Token {
	var ended []Token
	for i := range all {
		if !all[i].Live(now) {
			ended = append(ended, all[i])
		}
	}
	if len(ended) < keepEnded {
		return all
	}
	slices.SortFunc(ended, func(a, b Token) int { return a.ended().Compare(b.ended()) })
	drop := make(map[string]bool)
	for i := range ended[:len(ended)-keepEnded+1] {
		drop[ended[i].ID] = true
	}
	return slices.DeleteFunc(all, func(t Token) bool { return drop[t.ID] })
}

// Revoke ends a token; again it changes nothing. The error is ErrUnknownToken or
// the store's.
func Revoke(ctx context.Context, store Store, id string, now time.Time) (Token, error) {
	var revoked Token
	err := store.Update(ctx, func(all []Token) ([]Token, error) {
		i := slices.IndexFunc(all, func(t Token) bool { return t.ID == id })
		if i < 0 {
			return nil, ErrUnknownToken
		}
		if all[i].Revoked.IsZero() {
			all[i].Revoked = now.UTC().Truncate(time.Second)
		}
		revoked = all[i]
		return all, nil
	})
	return revoked, err
}

// idOf is the id in a token, or "" for what is no static token by its form.
func idOf(secret string) string {
	rest, ok := strings.CutPrefix(secret, tokenPrefix)
	if !ok || len(rest) != idLength+1+base64.RawURLEncoding.EncodedLen(secretSize) || rest[idLength] != '_' {
		return ""
	}
	return rest[:idLength]
}
