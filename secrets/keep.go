package secrets

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// The files of the store in its folder, beside the age file and its key.
const (
	indexFile = "secrets.names" // what was put in the keychain, which cannot be listed
	lockFile  = "secrets.lock"
)

const (
	lockWait  = 10 * time.Second
	lockRetry = 5 * time.Millisecond
)

// Set keeps a value and returns where: in the keychain if there is one, else in the
// age file. Only Keychain or AgeFile as where chooses one of them; "" does not. The
// store's folder must exist. A value that the keychain is to keep must not be longer
// than MaxKeychainBytes. The error is a *RefusedError or that of ctx.
func (s *Store) Set(ctx context.Context, name Name, value []byte, where Source) (Source, error) {
	if why := checkValue(value); why != "" {
		return "", &RefusedError{Name: name, Source: where, Reason: "the value " + why}
	}
	s.scrubber.Learn(name, string(value))
	err := s.changing(ctx, func() (err error) {
		if where == "" {
			where, err = s.keepAnywhere(ctx, name, value)
			return err
		}
		return s.keep(ctx, name, value, where)
	})
	return where, s.refused(ctx, name, where, err)
}

func (s *Store) keepAnywhere(ctx context.Context, name Name, value []byte) (Source, error) {
	if s.keychain.missing == "" {
		err := s.keep(ctx, name, value, Keychain)
		if a, ok := errors.AsType[absence](err); !ok || a.detail != noService {
			return Keychain, err
		}
	}
	return AgeFile, s.keep(ctx, name, value, AgeFile)
}

func (s *Store) keep(ctx context.Context, name Name, value []byte, where Source) error {
	switch where {
	case Keychain:
		if err := s.keychain.set(ctx, name.account(), value); err != nil {
			return err
		}
		return s.note(name, true)
	case AgeFile:
		_, err := s.age.put(ctx, name, value)
		return err
	case Variable, File, Credential:
	}
	return refusal("nothing can be kept there")
}

// Delete removes a name from the keychain and the age file and returns from which of
// them. What a variable, a file or a credential supplies stays. The error is a
// *RefusedError or that of ctx; what was removed before it is returned with it.
func (s *Store) Delete(ctx context.Context, name Name) ([]Source, error) {
	var from []Source
	where := Keychain
	err := s.changing(ctx, func() error {
		if s.keychain.missing == "" {
			had, err := s.keychain.remove(ctx, name.account())
			if a, ok := errors.AsType[absence](err); err != nil && (!ok || a.detail != noService) {
				return err
			}
			if had {
				from = append(from, Keychain)
			}
			if err := s.note(name, false); err != nil {
				return err
			}
		}
		where = AgeFile
		had, err := s.age.put(ctx, name, nil)
		if had {
			from = append(from, AgeFile)
		}
		return err
	})
	return from, s.refused(ctx, name, where, err)
}

func (s *Store) refused(ctx context.Context, name Name, where Source, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return &RefusedError{Name: name, Source: where, Where: string(where), Reason: err.Error()}
}

// changing runs a change while no other goroutine or process changes the folder.
func (s *Store) changing(ctx context.Context, change func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock := flock.New(filepath.Join(s.home, lockFile), flock.SetPermissions(0o600))
	locked, err := lock.TryLockContext(ctx, lockRetry)
	if err != nil || !locked {
		return refusal("another process is changing the secrets, or their folder is not there")
	}
	return errors.Join(change(), lock.Unlock())
}

// note keeps the list of names in the keychain.
func (s *Store) note(name Name, present bool) error {
	names, err := s.noted()
	if err != nil {
		return err
	}
	if slices.Contains(names, name) == present {
		return nil
	}
	if present {
		names = append(names, name)
	} else {
		names = slices.DeleteFunc(names, func(n Name) bool { return n == name })
	}
	var lines strings.Builder
	for _, n := range names {
		fmt.Fprintln(&lines, n)
	}
	return replaceFile(filepath.Join(s.home, indexFile), []byte(lines.String()))
}

func (s *Store) noted() ([]Name, error) {
	content, err := readFile(filepath.Join(s.home, indexFile), maxIndexBytes, ownerWrites)
	if errors.Is(err, errNoFile) {
		return nil, nil
	}
	if err != nil {
		return nil, refusal(indexFile + " " + err.Error())
	}
	var names []Name
	for line := range strings.Lines(string(content)) {
		if name, err := ParseName(strings.TrimSpace(line)); err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// Kept lists the names in the keychain and the age file, sorted, whether or not
// another source hides their values. Items that other programs put in the keychain
// are not known to it. The error says why a source could not be asked; the names of
// the other are returned with it.
func (s *Store) Kept(ctx context.Context) ([]Name, error) {
	names, noteErr := s.noted()
	values, err := s.age.read(ctx)
	if _, absent := errors.AsType[absence](err); absent {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("age file: %w", err)
	}
	for text := range values {
		if name, err := ParseName(text); err == nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b Name) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(names), errors.Join(noteErr, err)
}
