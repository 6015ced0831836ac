package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/relavium/relavium-serve/engine"
)

const (
	tokenFile   = "console.token"
	addressFile = "console.json"
	lockFile    = "console.lock"
)

// A StartToken is the Login of the person whose home it is: one token, of which
// the home holds the SHA-256 alone. It is looked up at each login, so a new one
// takes effect at once in every process.
type StartToken struct{ Home string }

// Admit compares the secret with the token of the home.
func (t StartToken) Admit(_ context.Context, secret string) (*Visitor, bool) {
	want, err := t.digest()
	if err != nil {
		return nil, false
	}
	got := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(got[:], want) != 1 {
		return nil, false
	}
	return &Visitor{Principal: engine.Local, Runs: true}, true
}

// Exists reports whether a token was made for the home.
func (t StartToken) Exists() bool {
	_, err := t.digest()
	return err == nil
}

// Renew makes a new token, which replaces the one before, and returns it: it is
// stored nowhere in clear. The home must exist.
func (t StartToken) Renew() (string, error) {
	secret := rand.Text() // 128 random bits and more
	sum := sha256.Sum256([]byte(secret))
	if err := replace(t.Home, tokenFile, []byte(hex.EncodeToString(sum[:])+"\n")); err != nil {
		return "", err
	}
	return secret, nil
}

func (t StartToken) digest() ([]byte, error) {
	raw, err := readSmall(t.Home, tokenFile)
	if err != nil {
		return nil, err
	}
	sum, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(sum) != sha256.Size {
		return nil, errors.New("console: the token file holds no digest")
	}
	return sum, nil
}

// readSmall reads a file of the home of at most 4 KiB.
func readSmall(home, name string) ([]byte, error) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, pathless(err)
	}
	defer func() { _ = root.Close() }()
	file, err := root.Open(name)
	if err != nil {
		return nil, pathless(err)
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, 4<<10))
}

// replace writes a file of the home that only its owner may read, whole or not at all.
func replace(home, name string, content []byte) error {
	file, err := os.CreateTemp(home, "."+name+"-*") // 0600
	if err != nil {
		return pathless(err)
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(home, name))
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return pathless(err)
	}
	return nil
}

// pathless takes the path out of a file error: it is the user's own business.
func pathless(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("console: %s: %w", p.Op, p.Err)
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("console: %s: %w", l.Op, l.Err)
	}
	return err
}
