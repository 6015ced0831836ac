//go:build unix

package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
)

// TestRevocations closes what was revoked with --now while it ran, and nothing else.
func TestRevocations(t *testing.T) {
	t.Parallel()
	declaration := consent.Declaration{Command: "/bin/cat", Cwd: "/"}
	digest, err := declaration.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		allowed bool
		do      func(t *testing.T, home string, store *consent.Store)
		closed  bool
	}{
		{name: "nothing happens", do: func(*testing.T, string, *consent.Store) {}},
		{name: "revoked", do: func(t *testing.T, _ string, store *consent.Store) {
			revokeNow(t, store, digest)
		}},
		{name: "revoked with --now", closed: true, do: func(t *testing.T, home string, store *consent.Store) {
			revokeNow(t, store, digest)
			mark(t, home, digest, 0)
		}},
		{name: "revoked in the moment of the fork", closed: true, do: func(t *testing.T, home string, store *consent.Store) {
			revokeNow(t, store, digest)
			mark(t, home, digest, -time.Second)
		}},
		{name: "revoked with --now, granted again", do: func(t *testing.T, home string, store *consent.Store) {
			revokeNow(t, store, digest)
			mark(t, home, digest, 0)
			if _, err := store.Grant(t.Context(), &declaration); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "revoked with --now long ago, without it since", do: func(t *testing.T, home string, store *consent.Store) {
			mark(t, home, digest, -time.Hour)
			revokeNow(t, store, digest)
		}},
		{name: "another digest", do: func(t *testing.T, home string, store *consent.Store) {
			revokeNow(t, store, digest)
			mark(t, home, "v1:"+strings.Repeat("0", 64), 0)
		}},
		{name: "allowed, revoked with --now since", allowed: true, closed: true, do: func(t *testing.T, home string, _ *consent.Store) {
			mark(t, home, digest, 0)
		}},
		{name: "allowed, revoked with --now before", allowed: true, do: func(t *testing.T, home string, _ *consent.Store) {
			mark(t, home, digest, -time.Second)
		}},
		{name: "a link in the mark's place", do: func(t *testing.T, home string, store *consent.Store) {
			revokeNow(t, store, digest)
			if err := os.Mkdir(filepath.Join(home, revokedFolder), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/bin/cat", filepath.Join(home, revokedMark(digest))); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			home := filepath.Join(t.TempDir(), "home")
			store, err := consent.Open(home, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.Grant(t.Context(), &declaration); err != nil {
				t.Fatal(err)
			}
			children := child.NewTable(child.TableOptions{})
			defer func() {
				if err := children.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}()
			host, err := inbound.New(inbound.Options{Home: home, Children: children, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			for _, label := range []string{digest, ""} {
				if _, err := children.Start(t.Context(), child.Spec{Path: "/bin/cat", Dir: "/", Label: label}); err != nil {
					t.Fatal(err)
				}
			}
			var log bytes.Buffer
			r := &revocations{
				home: home, granted: store.Check, children: children, host: host,
				log: slog.New(slog.NewTextHandler(&log, nil)), told: make(map[string]time.Time),
			}
			if tc.allowed {
				r.allowed = []string{digest}
			}
			tc.do(t, home, store)
			r.look(t.Context())
			want := 2
			if tc.closed {
				want = 1
			}
			if living := children.Living(); len(living) != want || tc.closed && living[0].Label != "" {
				t.Errorf("living %v, want %d", living, want)
			}
			if said := strings.Contains(log.String(), "consent was taken back"); said != tc.closed {
				t.Errorf("log %q", log.String())
			}
		})
	}
}

func revokeNow(t *testing.T, store *consent.Store, digest string) {
	t.Helper()
	if err := store.Revoke(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
}

// mark marks a digest, so much later than now.
func mark(t *testing.T, home, digest string, later time.Duration) {
	t.Helper()
	if err := markRevoked(home, digest); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(later)
	if err := os.Chtimes(filepath.Join(home, revokedMark(digest)), at, at); err != nil {
		t.Fatal(err)
	}
}

// TestRevocationsWatch ends when it is told to.
func TestRevocationsWatch(t *testing.T) {
	t.Parallel()
	looked := make(chan struct{}, 1)
	children := child.NewTable(child.TableOptions{})
	digest := "v1:" + strings.Repeat("0", 64)
	home := t.TempDir()
	if _, err := children.Start(t.Context(), child.Spec{Path: "/bin/cat", Dir: "/", Label: digest}); err != nil {
		t.Fatal(err)
	}
	mark(t, home, digest, 0)
	host, err := inbound.New(inbound.Options{Home: home, Children: children, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &revocations{home: home, children: children, host: host, log: slog.New(slog.DiscardHandler), told: make(map[string]time.Time)}
	r.granted = func(_ context.Context, digest string) error {
		select {
		case looked <- struct{}{}:
		default:
		}
		return &consent.NotGrantedError{Digest: digest}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := r.watch(ctx, time.Millisecond)
	cancel() // a stop of the process does not end it: runs still drain
	<-looked
	if err := children.Close(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	stop()
}
