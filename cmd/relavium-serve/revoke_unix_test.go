//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
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
	ctx := context.WithoutCancel(t.Context())
	declaration := consent.Declaration{Command: "/bin/cat", Cwd: "/"}
	digest, err := declaration.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		allowed bool
		do      func(home string, store *consent.Store) error
		closed  bool
	}{
		{name: "nothing happens", do: func(string, *consent.Store) error { return nil }},
		{name: "revoked", do: func(_ string, store *consent.Store) error {
			return store.Revoke(ctx, digest)
		}},
		{name: "revoked with --now", closed: true, do: func(home string, store *consent.Store) error {
			return errors.Join(store.Revoke(ctx, digest), mark(home, digest, 0))
		}},
		{name: "revoked in the moment of the fork", closed: true, do: func(home string, store *consent.Store) error {
			return errors.Join(store.Revoke(ctx, digest), mark(home, digest, -time.Second))
		}},
		{name: "revoked with --now, granted again", do: func(home string, store *consent.Store) error {
			revoked := errors.Join(store.Revoke(ctx, digest), mark(home, digest, 0))
			_, err := store.Grant(ctx, &declaration)
			return errors.Join(revoked, err)
		}},
		{name: "revoked with --now long ago, without it since", do: func(home string, store *consent.Store) error {
			return errors.Join(mark(home, digest, -time.Hour), store.Revoke(ctx, digest))
		}},
		{name: "another digest", do: func(home string, store *consent.Store) error {
			return errors.Join(store.Revoke(ctx, digest), mark(home, "v1:"+strings.Repeat("0", 64), 0))
		}},
		{name: "allowed, revoked with --now since", allowed: true, closed: true, do: func(home string, _ *consent.Store) error {
			return mark(home, digest, 0)
		}},
		{name: "allowed, revoked with --now before", allowed: true, do: func(home string, _ *consent.Store) error {
			return mark(home, digest, -time.Second)
		}},
		{name: "a link in the mark's place", do: func(home string, store *consent.Store) error {
			return errors.Join(store.Revoke(ctx, digest), os.Mkdir(filepath.Join(home, revokedFolder), 0o700),
				os.Symlink("/bin/cat", filepath.Join(home, revokedMark(digest))))
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
			if err := tc.do(home, store); err != nil {
				t.Fatal(err)
			}
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

// mark marks a digest, so much later than now.
func mark(home, digest string, later time.Duration) error {
	at := time.Now().Add(later)
	return errors.Join(markRevoked(home, digest), os.Chtimes(filepath.Join(home, revokedMark(digest)), at, at))
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
	if err := mark(home, digest, 0); err != nil {
		t.Fatal(err)
	}
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
