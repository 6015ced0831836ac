package secrets

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Errors of this file say what is wrong without the path.
var (
	errNoFile  = errors.New("is not there")
	errTooLong = refusal("the value is too long for a keychain")
)

// An ownership is what a file must look like to be believed.
type ownership int

const (
	anyOwner    ownership = iota // links and owners as the operator chose them
	ownerWrites                  // a regular file that nobody but its user or root can have written
	ownerOnly                    // mode 0600 or less, of this user, no link
)

// readFile reads a regular file of at most limit bytes. It never waits for a pipe.
func readFile(path string, limit int64, want ownership) ([]byte, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|openFlags(want != anyOwner), 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errNoFile
	case isLink(err):
		return nil, refusal("is a link")
	case err != nil:
		return nil, refusal("cannot be read")
	}
	defer func() { _ = f.Close() }()
	about, err := f.Stat()
	if err != nil || !about.Mode().IsRegular() {
		return nil, refusal("is not a regular file")
	}
	if why := notTrusted(about, want); why != "" {
		return nil, refusal(why)
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, refusal("cannot be read")
	}
	if int64(len(content)) > limit {
		return nil, refusal("is too large")
	}
	return content, nil
}

// createFile makes a private file that must not be there yet.
func createFile(path string, content []byte) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return refusal("cannot be made: " + reasonOf(err))
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(refusal("cannot be written: "+reasonOf(err)), os.Remove(path))
	}
	return nil
}

// replaceFile puts a private file in the place of another in one step.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".secrets-*")
	if err != nil {
		return refusal("cannot be written: " + reasonOf(err))
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(refusal("cannot be written: "+reasonOf(err)), os.Remove(f.Name()))
	}
	return nil
}

// reasonOf is the cause of an error without the path.
func reasonOf(err error) string {
	if where, ok := errors.AsType[*fs.PathError](err); ok {
		return where.Err.Error()
	}
	if where, ok := errors.AsType[*os.LinkError](err); ok {
		return where.Err.Error()
	}
	return "input or output error"
}

func ageFileName(path string) string { return filepath.Base(path) }
