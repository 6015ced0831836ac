package consent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"
)

const (
	lockWait  = 30 * time.Second
	lockRetry = 2 * time.Millisecond
)

// An UnsafeError says that a file of the store is not one that only its user can
// have written. It is neither read nor written then.
type UnsafeError struct {
	Name   string // of the file, or "the home folder"
	Reason string
}

func (e *UnsafeError) Error() string { return e.Name + " " + e.Reason }

// An OwnFile is a file of the home folder that nobody but its user may have
// written: no link, one name, mode 0600 in a folder of mode 0700. What is not so is
// neither read nor written, and an *UnsafeError says why. A lock file beside it
// keeps processes apart. Errors hold no path.
type OwnFile struct {
	Home     string // absolute path of the home folder
	Name     string // of the file in it
	LockName string // of the lock file in it
}

// Read returns what the file holds, at most limit bytes, or nil if there is no file.
func (f OwnFile) Read(ctx context.Context, limit int) ([]byte, error) {
	if _, err := os.Lstat(filepath.Join(f.Home, f.Name)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err := f.checkHome(); err != nil {
		return nil, err
	}
	unlock, err := f.lock(ctx, (*flock.Flock).TryRLockContext)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return f.read(limit)
}

func (f OwnFile) read(limit int) ([]byte, error) {
	file, _, err := f.open(os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return f.rest(file, 0, limit)
}

// Replace puts another content in the place of what the file holds, at once: a
// reader sees the one or the other, whatever ends this process. change is given
// what the file holds, nil if there is no file, under the lock; if it returns an
// error nothing is changed, and the error is returned. The home folder is made if
// there is none.
func (f OwnFile) Replace(ctx context.Context, limit int, change func(old []byte) ([]byte, error)) error {
	if err := f.makeHome(); err != nil {
		return err
	}
	unlock, err := f.lock(ctx, (*flock.Flock).TryLockContext)
	if err != nil {
		return err
	}
	defer unlock()
	var old []byte
	if _, err := os.Lstat(filepath.Join(f.Home, f.Name)); !errors.Is(err, fs.ErrNotExist) {
		if old, err = f.read(limit); err != nil {
			return err
		}
	}
	content, err := change(old)
	if err != nil {
		return err
	}
	if len(content) > limit {
		return fmt.Errorf("%s is full: it may not grow beyond %d bytes", f.Name, limit)
	}
	return f.pathless("writing", f.swap(content))
}

// swap writes a file of its own and gives it the name.
func (f OwnFile) swap(content []byte) error {
	path := filepath.Join(f.Home, f.Name)
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a writer that was ended
		return err
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|openFlags(), 0o600) //nolint:gosec // a fixed name in the home
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncFolder(f.Home)
}

// rest reads a file of bounded size from an offset on.
func (f OwnFile) rest(file *os.File, offset int64, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(file, offset, int64(limit)+1))
	if err != nil {
		return nil, f.pathless("reading", err)
	}
	if offset+int64(len(data)) > int64(limit) {
		return nil, &UnsafeError{f.Name, fmt.Sprintf("is longer than %d bytes", limit)}
	}
	return data, nil
}

// lock takes the lock of the file, for readers or for one writer, and waits for
// it until ctx ends, half a minute at most.
func (f OwnFile) lock(ctx context.Context, take func(*flock.Flock, context.Context, time.Duration) (bool, error)) (unlock func(), err error) {
	lock := flock.New(filepath.Join(f.Home, f.LockName), flock.SetPermissions(0o600), flock.SetFlag(lockFlags()))
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, errors.New("another process holds it"))
	defer cancel()
	if ok, err := take(lock, ctx, lockRetry); !ok {
		_ = lock.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", f.LockName, context.Cause(ctx))
		}
		if isLink(err) {
			return nil, &UnsafeError{f.LockName, "is a link"}
		}
		return nil, f.pathless("locking", err)
	}
	return func() { _ = lock.Close() }, nil
}

// open opens the file if nobody but its user can have written it.
func (f OwnFile) open(flags int) (*os.File, fs.FileInfo, error) {
	path := filepath.Join(f.Home, f.Name)
	if about, err := os.Lstat(path); err == nil && !about.Mode().IsRegular() {
		return nil, nil, &UnsafeError{f.Name, "is a link or no regular file"}
	}
	file, err := os.OpenFile(path, flags|openFlags(), 0o600) //nolint:gosec // a fixed name in the home
	if err != nil {
		if isLink(err) {
			return nil, nil, &UnsafeError{f.Name, "is a link or no regular file"}
		}
		return nil, nil, f.pathless("opening", err)
	}
	about, err := file.Stat()
	reason := ""
	switch named, nameErr := os.Lstat(path); {
	case err != nil:
		reason = "cannot be looked at"
	case !about.Mode().IsRegular(), nameErr != nil, !os.SameFile(named, about):
		reason = "is a link or no regular file"
	default:
		reason = notOwn(about)
	}
	if reason != "" {
		_ = file.Close()
		return nil, nil, &UnsafeError{f.Name, reason}
	}
	return file, about, nil
}

// makeHome makes the home folder, private to the user, if there is none.
func (f OwnFile) makeHome() error {
	if err := os.MkdirAll(filepath.Dir(f.Home), 0o755); err != nil { //nolint:gosec // parents of the home are the user's own choice
		return f.pathless("making the home folder", err)
	}
	if err := os.Mkdir(f.Home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return f.pathless("making the home folder", err)
	}
	return f.checkHome()
}

// checkHome refuses a home folder in which others could put a file.
func (f OwnFile) checkHome() error {
	const name = "the home folder"
	about, err := os.Lstat(f.Home)
	switch {
	case err != nil:
		return f.pathless("the home folder", err)
	case !about.IsDir():
		return &UnsafeError{name, "is a link or no folder"}
	case runtime.GOOS != "windows" && about.Mode().Perm()&0o077 != 0:
		return &UnsafeError{name, "is open to others: its mode must be 0700"}
	}
	return nil
}

// pathless leaves the path out of an error of the file system.
func (f OwnFile) pathless(doing string, err error) error {
	if err == nil {
		return nil
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	if at, ok := errors.AsType[*os.LinkError](err); ok {
		err = at.Err
	}
	return fmt.Errorf("%s %s: %w", doing, f.Name, err)
}
