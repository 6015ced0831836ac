package consent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func ownFile(t *testing.T) (f OwnFile, path string) {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	return OwnFile{Home: home, Name: "own.ndjson", LockName: "own.lock"}, filepath.Join(home, "own.ndjson")
}

func appendByte(b byte) func([]byte) ([]byte, error) {
	return func(old []byte) ([]byte, error) { return append(old, b), nil }
}

func TestOwnFileReplace(t *testing.T) {
	t.Parallel()
	f, path := ownFile(t)
	if got, err := f.Read(t.Context(), 10); got != nil || err != nil {
		t.Fatalf("Read without a file = %q, %v, want nil", got, err)
	}
	if err := os.MkdirAll(f.Home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte("left behind"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range []byte("ab") {
		if err := f.Replace(t.Context(), 2, appendByte(b)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.Read(t.Context(), 2); string(got) != "ab" || err != nil {
		t.Errorf("Read = %q, %v, want ab", got, err)
	}
	if err := f.Replace(t.Context(), 2, appendByte('c')); err == nil || !strings.Contains(err.Error(), "own.ndjson is full") {
		t.Errorf("Replace beyond the limit = %v", err)
	}
	verdict := errors.New("no")
	if err := f.Replace(t.Context(), 2, func([]byte) ([]byte, error) { return nil, verdict }); !errors.Is(err, verdict) {
		t.Errorf("Replace = %v, want %v", err, verdict)
	}
	if _, err := f.Read(t.Context(), 1); err == nil || strings.Contains(err.Error(), f.Home) {
		t.Errorf("Read beyond the limit = %v, want an error without the path", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	for name, want := range map[string]os.FileMode{path: 0o600, f.Home: 0o700} {
		if about, err := os.Stat(name); err != nil || about.Mode().Perm() != want {
			t.Errorf("mode of %s = %v, %v, want %v", name, about.Mode(), err, want)
		}
	}
}

// Writers side by side lose nothing, and a reader never sees half of a content.
func TestOwnFileWriters(t *testing.T) {
	t.Parallel()
	f, _ := ownFile(t)
	const writers, rounds = 4, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range rounds {
				err := f.Replace(t.Context(), 1<<20, func(old []byte) ([]byte, error) {
					return append(old, bytes.Repeat([]byte{byte('a' + w)}, 1000)...), nil
				})
				if err != nil {
					t.Error(err)
				}
				if got, err := f.Read(t.Context(), 1<<20); err != nil || len(got)%1000 != 0 {
					t.Errorf("Read = %d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := f.Read(t.Context(), 1<<20); err != nil || len(got) != writers*rounds*1000 {
		t.Errorf("Read = %d bytes, %v, want %d", len(got), err, writers*rounds*1000)
	}
}
