package gates

import (
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// stateVersion stands before every sealed state and is part of what is sealed.
const stateVersion = "v1"

// maxState bounds a sealed state that is looked at, in bytes.
const maxState = 64 << 10

// A State is what a requestState carries through a client of 2026-07-28: which
// question of which call it answers. The client can neither read nor make one.
type State struct {
	Run        string    `json:"run"`
	Asked      []Asked   `json:"gates"`
	Nonce      string    `json:"nonce"`
	Principal  string    `json:"sub"`
	Request    string    `json:"req"` // RequestDigest of the call
	Definition string    `json:"def"` // digest of the definition that the run is pinned to
	At         time.Time `json:"at"`  // when the question left
	Round      int       `json:"round"`
	Ends       time.Time `json:"ends,omitzero"` // when the run's life is over; zero means that nothing ends it
}

// Asked is one gate of a question.
type Asked struct {
	Gate  string `json:"id"`
	Key   string `json:"key"`             // of its input request
	Field string `json:"field,omitempty"` // a renamed answer field
	URL   bool   `json:"url,omitempty"`   // asked by the console's page
	Again bool   `json:"again,omitempty"` // asked once more after an invalid answer
}

// ids are the gates of the question.
func (s *State) ids() []string {
	ids := make([]string, len(s.Asked))
	for i := range s.Asked {
		ids[i] = s.Asked[i].Gate
	}
	return ids
}

// Why a state is refused.
const (
	NotGenuine     = "not genuine"      // made or changed by somebody else, or under a key that is gone
	OtherPrincipal = "other principal"  // genuine, but of another principal's call
	OtherRequest   = "other request"    // genuine, but of another tool or other arguments
	NotPinned      = "other definition" // genuine, but its run has another definition
)

// A StateError refuses a requestState. The caller is told no more than that;
// Why is for the log.
type StateError struct{ Why string }

func (e *StateError) Error() string { return "gates: request state refused: " + e.Why }

// RequestDigest names a request by its method, its tool and its canonical
// arguments, none meaning {}. The error says that the arguments are not a strict
// JSON value.
func RequestDigest(method, tool string, arguments json.RawMessage) (string, error) {
	if arguments == nil {
		arguments = json.RawMessage("{}")
	}
	canonical, err := workflows.Canonical(arguments)
	if err != nil {
		return "", fmt.Errorf("gates: arguments: %w", err)
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(method), []byte(tool), canonical} {
		_, _ = fmt.Fprintf(h, "%d:", len(part)) // a hash takes everything
		_, _ = h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Seal encrypts a state under the newest key.
func (k *Keys) Seal(s *State) (string, error) {
	plain, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("gates: seal: %w", err)
	}
	newest := k.newest()
	head := stateVersion + "." + newest.id
	sealed := newest.aead.Seal(nil, nil, plain, []byte(head)) //nolint:gosec // G407: the AEAD draws its own nonce
	return head + "." + base64.RawURLEncoding.EncodeToString(sealed), nil
}

// Open decrypts a state that this server or one with the same keys sealed for
// the principal. Errors: *StateError. Whether it is of this very request is for
// State.Of to say, and whether it is stale for the gates' rows.
func (k *Keys) Open(sealed string, p engine.Principal) (*State, error) {
	s, err := k.open(sealed)
	if err != nil {
		k.refused(NotGenuine, "", p, err)
		return nil, &StateError{Why: NotGenuine}
	}
	if s.Principal != string(p) {
		k.refused(OtherPrincipal, s.Run, p, nil)
		return nil, &StateError{Why: OtherPrincipal}
	}
	return s, nil
}

func (k *Keys) open(sealed string) (*State, error) {
	if len(sealed) > maxState {
		return nil, fmt.Errorf("longer than %d bytes", maxState)
	}
	version, rest, _ := strings.Cut(sealed, ".")
	id, body, ok := strings.Cut(rest, ".")
	if version != stateVersion || !ok || strings.ContainsAny(body, "\r\n") { // which base64 passes over
		return nil, fmt.Errorf("not of version %s", stateVersion)
	}
	key, ok := k.find(id)
	if !ok {
		return nil, fmt.Errorf("no key %q", clip(id, 16))
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return nil, err
	}
	plain, err := key.aead.Open(nil, nil, raw, []byte(version+"."+id))
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(plain, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// SealAs encrypts something for a purpose of its own under the newest key. The
// result is URL-safe, with one dot.
func (k *Keys) SealAs(purpose string, plain []byte) string {
	newest := k.newest()
	sealed := newest.aead.Seal(nil, nil, plain, about(purpose, newest.id)) //nolint:gosec // G407: the AEAD draws its own nonce
	return base64.RawURLEncoding.EncodeToString([]byte(newest.id)) + "." + base64.RawURLEncoding.EncodeToString(sealed)
}

// OpenAs decrypts what SealAs encrypted for the purpose, here or where the same keys
// are. Nothing is logged: anybody can send anything.
func (k *Keys) OpenAs(purpose, sealed string) ([]byte, error) {
	head, body, ok := strings.Cut(sealed, ".")
	if !ok || len(sealed) > maxState || strings.ContainsAny(sealed, "\r\n") { // which base64 passes over
		return nil, errNotSealed
	}
	id, err := base64.RawURLEncoding.Strict().DecodeString(head)
	if err != nil {
		return nil, errNotSealed
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil {
		return nil, errNotSealed
	}
	key, ok := k.find(string(id))
	if !ok {
		return nil, errNotSealed
	}
	plain, err := key.aead.Open(nil, nil, raw, about(purpose, key.id))
	if err != nil {
		return nil, errNotSealed
	}
	return plain, nil
}

var errNotSealed = errors.New("gates: not sealed by these keys")

// about is what is authenticated beside the secret. No state begins like that.
func about(purpose, id string) []byte { return []byte("for " + purpose + "." + id) }

// Of checks that the state belongs to the request of that digest and to a run
// of that definition. Errors: *StateError.
func (s *State) Of(request, definition string) error {
	switch {
	case s.Request != request:
		return &StateError{Why: OtherRequest}
	case s.Definition != definition:
		return &StateError{Why: NotPinned}
	}
	return nil
}

// Over reports whether the run's life had ended at that time: no answer counts.
func (s *State) Over(now time.Time) bool { return !s.Ends.IsZero() && now.After(s.Ends) }

// Refused logs why a state was refused by whoever opened it.
func (k *Keys) Refused(s *State, p engine.Principal, err error) {
	k.refused(err.Error(), s.Run, p, nil)
}

func (k *Keys) refused(why, run string, p engine.Principal, err error) {
	args := []any{slog.String("why", why), slog.String("principal", string(p))}
	if run != "" {
		args = append(args, slog.String("run", run))
	}
	if err != nil {
		args = append(args, slog.String("error", err.Error()))
	}
	k.log.Warn("request state refused", args...)
}

// A sealer is one key of the ring.
type sealer struct {
	id   string
	aead cipher.AEAD // draws a random nonce for each state
}
