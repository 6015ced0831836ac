package consent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// The files of the store in the home folder.
const (
	storeFile = "mcp-consent.ndjson"
	lockFile  = "mcp-consent.lock"
)

const (
	maxStoreBytes = 16 << 20
	revokeRoom    = 1 << 20 // kept free of grants, so that each can be taken back
)

// A NotGrantedError says that nobody on this machine has consented to the
// declaration with that digest.
type NotGrantedError struct {
	Digest string
	Cause  error // why the grants could not be read, nil if they could
}

func (e *NotGrantedError) Error() string {
	if e.Cause != nil {
		return e.Digest + " is not granted: " + e.Cause.Error()
	}
	return e.Digest + " is not granted"
}

func (e *NotGrantedError) Unwrap() error { return e.Cause }

// A FoldError says which line of the store cannot be read. No grant counts then: a
// line that cannot be read may be a revocation.
type FoldError struct {
	Line   int // from 1
	Reason string
}

func (e *FoldError) Error() string {
	return storeFile + ":" + strconv.Itoa(e.Line) + ": " + e.Reason + "; no grant counts while this line stands"
}

// A Store is the grants of one home folder: a file to which lines are only ever
// appended. It keeps no file open, is safe for use by several goroutines, and
// other processes may use the same folder.
type Store struct {
	file OwnFile
	now  func() time.Time

	mu   sync.Mutex
	seen *progress // what this process has read for its last write, nil before
}

// progress is a fold up to an offset of a file, at which a line starts. Only what
// an append needs to know is taken from it; decisions read the file anew.
type progress struct {
	file   fs.FileInfo
	offset int64
	fold   fold
}

// Open returns the store in the home folder, an absolute path. Nothing is made
// before the first grant. A nil now is time.Now.
func Open(home string, now func() time.Time) (*Store, error) {
	if !filepath.IsAbs(home) {
		return nil, errors.New("consent: the home folder is not an absolute path")
	}
	if now == nil {
		now = time.Now
	}
	return &Store{file: OwnFile{Home: home, Name: storeFile, LockName: lockFile}, now: now}, nil
}

// Check returns nil if the digest is granted as the store stands now, else a
// *NotGrantedError, also when the store cannot be read.
func (s *Store) Check(ctx context.Context, digest string) error {
	grants, err := s.read(ctx)
	if err != nil {
		return &NotGrantedError{Digest: digest, Cause: err}
	}
	if _, ok := grants[digest]; !ok {
		return &NotGrantedError{Digest: digest}
	}
	return nil
}

// Grants returns what is granted now, oldest first. The error is a *FoldError, an
// *UnsafeError or one of the file system; there are no grants beside it.
func (s *Store) Grants(ctx context.Context) ([]Grant, error) {
	grants, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Grant, 0, len(grants))
	for _, g := range grants {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(x, y Grant) int {
		return cmp.Or(x.Granted.Compare(y.Granted), cmp.Compare(x.Digest, y.Digest))
	})
	return list, nil
}

// Grant records consent to the declaration and returns its digest once the line is
// on the disk. What is granted already is not written again. A declaration that
// Validate refuses is not granted, and neither is any while the store cannot be
// read, since the grant would not count.
func (s *Store) Grant(ctx context.Context, d *Declaration) (digest string, err error) {
	if err := d.Validate(); err != nil {
		return "", err
	}
	if digest, err = d.Digest(); err != nil {
		return "", err
	}
	err = s.write(ctx, maxStoreBytes-revokeRoom, func(grants fold, broken error) ([]byte, error) {
		if _, ok := grants[digest]; ok || broken != nil {
			return nil, broken
		}
		return grantLine(digest, d, s.now()), nil
	})
	if err != nil {
		return "", err
	}
	return digest, nil
}

// Revoke takes a grant back and returns once that is on the disk. A digest that is
// not granted is a *NotGrantedError. Where the store cannot be read it is recorded
// all the same, and the *FoldError returned.
func (s *Store) Revoke(ctx context.Context, digest string) error {
	if !IsDigest(digest) {
		return &NotGrantedError{Digest: digest}
	}
	return s.write(ctx, maxStoreBytes, func(grants fold, broken error) ([]byte, error) {
		if _, ok := grants[digest]; !ok && broken == nil {
			return nil, &NotGrantedError{Digest: digest}
		}
		return revocationLine(digest, s.now()), broken
	})
}

// fold is the grants that stand after some lines.
type fold map[string]*Grant

// add takes in lines in order; the first of them is line number first. The last
// one may lack its end: no part of a JSON object is a JSON object.
func (f fold) add(data []byte, first int) error {
	for number := first; len(data) > 0; number++ {
		line, rest, _ := bytes.Cut(data, []byte{'\n'})
		e, err := parseLine(line)
		switch {
		case err != nil:
			return &FoldError{Line: number, Reason: err.Error()}
		case e.grant != nil:
			f[e.grant.Digest] = e.grant
		default:
			delete(f, e.revokes)
		}
		data = rest
	}
	return nil
}

// read folds the whole file.
func (s *Store) read(ctx context.Context) (fold, error) {
	data, err := s.file.Read(ctx, maxStoreBytes)
	if err != nil {
		return nil, err
	}
	grants := fold{}
	return grants, grants.add(data, 1)
}

// write appends the line that decide returns, if any, for the grants that stand,
// and returns decide's error. The file may grow to limit bytes. It holds the lock from the reading to the disk.
func (s *Store) write(ctx context.Context, limit int64, decide func(grants fold, broken error) ([]byte, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.file.makeHome(); err != nil {
		return err
	}
	unlock, err := s.file.lock(ctx, (*flock.Flock).TryLockContext)
	if err != nil {
		return err
	}
	defer unlock()
	file, about, err := s.file.open(os.O_RDWR | os.O_APPEND | os.O_CREATE)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	grants, ended, err := s.catchUp(file, about)
	if _, broken := errors.AsType[*FoldError](err); err != nil && !broken {
		return err
	}
	line, verdict := decide(grants, err)
	if line == nil {
		return verdict
	}
	if !ended {
		line = append([]byte{'\n'}, line...)
	}
	if about.Size()+int64(len(line)) >= limit {
		return fmt.Errorf("%s is full: it may not grow beyond %d bytes", storeFile, limit)
	}
	return errors.Join(s.append(file, append(line, '\n')), verdict)
}

// append writes a line with one call and waits until it is on the disk, the file's
// name included. A line that was cut short is left: the fold reports it, and
// whoever asked was not told that it stands.
func (s *Store) append(file *os.File, line []byte) error {
	if _, err := file.Write(line); err != nil {
		return s.file.pathless("writing", err)
	}
	if err := file.Sync(); err != nil {
		return s.file.pathless("writing", err)
	}
	return s.file.pathless("writing", syncFolder(s.file.Home))
}

// catchUp folds what the file holds, from where this process has read before. ended
// is false if the last line lacks its end.
func (s *Store) catchUp(file *os.File, about fs.FileInfo) (grants fold, ended bool, err error) {
	at := s.seen
	s.seen = nil
	if at == nil || !os.SameFile(at.file, about) || about.Size() < at.offset {
		at = &progress{fold: fold{}}
	}
	data, err := s.file.rest(file, at.offset, maxStoreBytes)
	if err != nil {
		return nil, false, err
	}
	ended = len(data) == 0 || data[len(data)-1] == '\n'
	if err := at.fold.add(data, 1); err != nil {
		if at.offset > 0 { // count its line from the start
			return s.catchUp(file, about)
		}
		return nil, ended, err
	}
	if ended {
		at.file, at.offset = about, at.offset+int64(len(data))
		s.seen = at
	}
	return at.fold, ended, nil
}
