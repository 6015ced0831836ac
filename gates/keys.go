package gates

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// KeyFile is the name of the key file in RELAVIUM_HOME.
const KeyFile = "gates.key"

const (
	keySize     = 32 // AES-256
	maxKeyFile  = 64 << 10
	rereadPace  = time.Second     // an unknown key id makes the file be read again, no faster
	keyPatience = 2 * time.Second // for another process that has made the file and not filled it
)

// Keys seal and open states. They are safe for concurrent use and hold nothing
// that must be closed.
type Keys struct {
	log  *slog.Logger
	path string // "" for keys that live in memory only
	ours bool   // the file was made here: it must be private

	mu   sync.Mutex
	ring []sealer // oldest first
	read time.Time
}

// NewKeys draws a key that lives as long as the process does: a state that it
// sealed is refused by every other process.
func NewKeys(log *slog.Logger) (*Keys, error) {
	key, _, err := drawKey(time.Now())
	if err != nil {
		return nil, err
	}
	return &Keys{log: log, ring: []sealer{key}}, nil
}

// OpenKeys reads the key file of a home, and makes one if there is none. It
// must be a regular file that nobody else may read; a link is refused.
func OpenKeys(ctx context.Context, home string, log *slog.Logger) (*Keys, error) {
	k := &Keys{log: log, path: filepath.Join(home, KeyFile), ours: true}
	err := k.load(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKeyFile(k.path, time.Now()); err == nil || errors.Is(err, fs.ErrExist) {
			err = k.load(ctx)
		}
	}
	if err != nil {
		return nil, keyFault(KeyFile+" in RELAVIUM_HOME", err)
	}
	return k, nil
}

// OpenKeyFile reads a key file that the operator made and replicas share. It
// may be reached by a link, as mounted secrets are; nobody but its owner may be
// able to write it.
func OpenKeyFile(ctx context.Context, path string, log *slog.Logger) (*Keys, error) {
	k := &Keys{log: log, path: path}
	if err := k.load(ctx); err != nil {
		return nil, keyFault("the file of [gates] key_file", err)
	}
	return k, nil
}

// keyFault names the file by its role: paths stay inside.
func keyFault(what string, err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return fmt.Errorf("gates: %s: %w", what, err)
}

// newest is the key that seals.
func (k *Keys) newest() sealer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ring[len(k.ring)-1]
}

// find is the key of that id. One that is not known may have been added to the
// file since: it is read again.
func (k *Keys) find(id string) (sealer, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key, ok := pick(k.ring, id); ok || k.path == "" || time.Since(k.read) < rereadPace {
		return key, ok
	}
	ring, err := k.parseFile()
	if err != nil {
		k.log.Warn("read the key file again", slog.String("error", keyFault("key file", err).Error()))
		k.read = time.Now()
		return sealer{}, false
	}
	k.ring, k.read = ring, time.Now()
	return pick(ring, id)
}

func pick(ring []sealer, id string) (sealer, bool) {
	for _, key := range ring {
		if key.id == id {
			return key, true
		}
	}
	return sealer{}, false
}

// load reads the file, and again for a while if it is still empty: the process
// that made it is about to fill it.
func (k *Keys) load(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keyPatience)
	defer cancel()
	for {
		ring, err := k.parseFile()
		if err == nil {
			k.mu.Lock()
			k.ring, k.read = ring, time.Now()
			k.mu.Unlock()
			return nil
		}
		if !errors.Is(err, errNoKey) {
			return err
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
	}
}

var errNoKey = errors.New("it holds no key")

func (k *Keys) parseFile() ([]sealer, error) {
	raw, err := k.readFile()
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(raw, []byte("\n")) {
		return nil, errNoKey // not yet filled
	}
	return parseKeys(string(raw))
}

func (k *Keys) readFile() ([]byte, error) {
	stat := os.Stat
	if k.ours {
		stat = os.Lstat
	}
	before, err := stat(k.path)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if runtime.GOOS != "windows" {
		switch mode := before.Mode().Perm(); {
		case k.ours && mode&0o077 != 0:
			return nil, fmt.Errorf("its mode is %#o: nobody but its owner may read it (chmod 600)", mode)
		case mode&0o022 != 0:
			return nil, fmt.Errorf("its mode is %#o: nobody but its owner may write it", mode)
		}
	}
	f, err := os.Open(k.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	opened, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(before, opened) {
		return nil, errors.New("it was replaced while it was opened")
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(raw) > maxKeyFile {
		err = fmt.Errorf("it is longer than %d bytes", maxKeyFile)
	}
	return raw, err
}

// parseKeys reads one key a line: its id, the key in base64, when it was made.
// Empty lines and those that begin with # are passed over. The newest comes last.
func parseKeys(text string) ([]sealer, error) {
	type dated struct {
		sealer
		made time.Time
	}
	var keys []dated
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d: want an id, a key and a date", number)
		}
		id := fields[0]
		if len(id) > 32 || strings.Contains(id, ".") || seen[id] {
			return nil, fmt.Errorf("line %d: the id is not one of its own, of at most 32 characters without a dot", number)
		}
		key, err := base64.StdEncoding.DecodeString(fields[1])
		if err != nil || len(key) != keySize {
			return nil, fmt.Errorf("line %d: the key is not %d bytes in base64", number, keySize)
		}
		made, err := time.Parse(time.RFC3339, fields[2])
		if err != nil {
			return nil, fmt.Errorf("line %d: the date is not of RFC 3339", number)
		}
		s, err := newSealer(id, key)
		if err != nil {
			return nil, err
		}
		seen[id] = true
		at := len(keys)
		for at > 0 && keys[at-1].made.After(made) {
			at--
		}
		keys = append(keys[:at], append([]dated{{s, made}}, keys[at:]...)...)
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	ring := make([]sealer, len(keys))
	for i := range keys {
		ring[i] = keys[i].sealer
	}
	return ring, nil
}

func newSealer(id string, key []byte) (sealer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealer{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return sealer{}, err
	}
	return sealer{id: id, aead: aead}, nil
}

// drawKey makes a key and the line that keeps it.
func drawKey(now time.Time) (sealer, string, error) {
	raw := make([]byte, keySize+4)
	if _, err := rand.Read(raw); err != nil {
		return sealer{}, "", err
	}
	id, key := hex.EncodeToString(raw[keySize:]), raw[:keySize]
	s, err := newSealer(id, key)
	return s, id + " " + base64.StdEncoding.EncodeToString(key) + " " + now.UTC().Format(time.RFC3339) + "\n", err
}

// createKeyFile makes the file with its first key, all at once: of several
// processes one makes it and the others find it complete. It is fs.ErrExist if
// it was there.
func createKeyFile(path string, now time.Time) error {
	_, line, err := drawKey(now)
	if err != nil {
		return err
	}
	whole := path + "." + rand.Text()[:12]
	if err := writeNew(whole, line); err != nil {
		return err
	}
	defer func() { _ = os.Remove(whole) }()
	err = os.Link(whole, path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	return writeNew(path, line) // the file system knows no links
}

func writeNew(path, text string) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}
