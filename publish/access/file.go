package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/relavium/relavium-serve/consent"
)

const (
	fileName    = "tokens.json"
	lockName    = "tokens.lock"
	fileVersion = 1
	maxFile     = 4 << 20 // bytes
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
	if err != nil {
		return nil, err
	}
	return parseTokens(raw)
}

// A Content is one document that processes share. It is safe for concurrent use.
type Content interface {
	// Read returns the document, at most limit bytes, or nil if there is none.
	Read(ctx context.Context, limit int) ([]byte, error)
	// Replace puts what change makes of the document in its place; meanwhile nobody else
	// changes it. An error of change is returned, and nothing is replaced.
	Replace(ctx context.Context, limit int, change func(old []byte) ([]byte, error)) error
}

// Shared keeps tokens in a document that replicas share, as File does in a file.
type Shared struct{ Content Content }

// Tokens reads the document; where there is none, no token was made.
func (s Shared) Tokens(ctx context.Context) ([]Token, error) {
	raw, err := s.Content.Read(ctx, maxFile)
	if err != nil {
		return nil, err
	}
	return parseTokens(raw)
}

// Update changes the document.
func (s Shared) Update(ctx context.Context, change func([]Token) ([]Token, error)) error {
	return replaceTokens(ctx, s.Content, change)
}

// parseTokens reads what the file holds; nil holds none.
func parseTokens(raw []byte) ([]Token, error) {
	if raw == nil {
		return nil, nil
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

// Update changes the file under a lock that processes share. A file or folder that
// others may have written is refused with a *consent.UnsafeError.
func (f *File) Update(ctx context.Context, change func([]Token) ([]Token, error)) error {
	return replaceTokens(ctx, consent.OwnFile{Home: f.Home, Name: fileName, LockName: lockName}, change)
}

func replaceTokens(ctx context.Context, in Content, change func([]Token) ([]Token, error)) error {
	return in.Replace(ctx, maxFile, func(old []byte) ([]byte, error) {
		tokens, err := parseTokens(old)
		if err != nil {
			return nil, err
		}
		if tokens, err = change(tokens); err != nil {
			return nil, err
		}
		raw, err := json.MarshalIndent(document{Version: fileVersion, Tokens: tokens}, "", "\t")
		return append(raw, '\n'), err
	})
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
