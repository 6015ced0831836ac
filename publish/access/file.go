package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

const (
	fileName    = "tokens.json"
	lockName    = "tokens.lock"
	fileVersion = 1
	maxFile     = 4 << 20 // bytes
	lockWait    = 10 * time.Second
)

// A File keeps tokens in tokens.json of a folder that is private to its owner,
// which must exist.
type File struct {
	Home string

	mu   sync.Mutex
	seen fs.FileInfo // of the file when last was read
	last []byte
}

// document is what the file holds.
type document struct {
	Version int     `json:"version"`
	Tokens  []Token `json:"tokens"`
}

// Tokens reads the file; where there is none, no token was made.
func (f *File) Tokens(context.Context) ([]Token, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	raw, err := f.read()
	if err != nil || raw == nil {
		return nil, err
	}
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("%s: not a list of tokens", fileName)
	}
	if d.Version != fileVersion {
		return nil, fmt.Errorf("%s: written by another version", fileName)
	}
	return d.Tokens, nil
}

// read returns the file's content, nil where there is none; f.mu is held.
func (f *File) read() ([]byte, error) {
	root, err := os.OpenRoot(f.Home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, pathless(err)
	}
	defer func() { _ = root.Close() }()
	about, err := root.Lstat(fileName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.seen, f.last = nil, nil
		return nil, nil
	case err != nil:
		return nil, pathless(err)
	case !about.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", fileName)
	}
	// A new file replaces the old one whole, so one that looks the same is.
	if f.seen != nil && os.SameFile(f.seen, about) && f.seen.ModTime().Equal(about.ModTime()) && f.seen.Size() == about.Size() {
		return f.last, nil
	}
	file, err := root.Open(fileName)
	if err != nil {
		return nil, pathless(err)
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, pathless(err)
	}
	if len(raw) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", fileName, maxFile)
	}
	if about, err = file.Stat(); err != nil {
		return nil, pathless(err)
	}
	f.seen, f.last = about, raw
	return raw, nil
}

// Update changes the file under a lock that processes share.
func (f *File) Update(ctx context.Context, change func([]Token) ([]Token, error)) error {
	lock := flock.New(filepath.Join(f.Home, lockName), flock.SetPermissions(0o600))
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if ok, err := lock.TryLockContext(wait, 10*time.Millisecond); !ok {
		_ = lock.Close()
		return fmt.Errorf("%s: %w", lockName, pathless(err))
	}
	defer func() { _ = lock.Close() }()
	tokens, err := f.Tokens(ctx)
	if err != nil {
		return err
	}
	if tokens, err = change(tokens); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(document{Version: fileVersion, Tokens: tokens}, "", "\t")
	if err != nil {
		return err
	}
	return replace(f.Home, fileName, append(raw, '\n'))
}

// replace writes a file that only its owner may read, whole or not at all.
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

// pathless takes the path out of a file error: it is the owner's own business.
func pathless(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %s: %w", fileName, p.Op, p.Err)
	}
	if l, ok := errors.AsType[*os.LinkError](err); ok {
		return fmt.Errorf("%s: %s: %w", fileName, l.Op, l.Err)
	}
	return err
}
