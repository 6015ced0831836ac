package durable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// An executor that lives holds a lock on a file named after it, in a folder
// beside the run store. The operating system frees the lock on any death, so
// nothing has to be renewed and no clock decides who is alive.

// settling is how long a lock file may exist before it is taken for a dead one's:
// its owner creates it first and locks it then.
const settling = 10 * time.Second

// presence is what tells the other processes that this one lives.
type presence interface {
	adopt(ctx context.Context, project string) error
	// fresh reports whether nobody else can take this process for dead yet.
	fresh() bool
	leave() error
}

// filePresence is the lock of this process.
type filePresence struct {
	dir, id string
	lock    *flock.Flock

	mu       sync.Mutex
	projects []string
}

// card is what an executor says of itself to other processes.
type card struct {
	Projects []string `json:"projects"`
	PID      int      `json:"pid"`
}

func folder(path string) string { return path + ".exec" }

func enterFile(ctx context.Context, path, id string, projects []string) (presence, error) {
	dir := folder(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("executor lock: %w", errors.Unwrap(err))
	}
	p := &filePresence{dir: dir, id: id, lock: flock.New(filepath.Join(dir, id+".lock"), flock.SetPermissions(0o600)), projects: slices.Clone(projects)}
	// Another process that looks who is alive may hold the new file for a moment.
	wait, cancel := context.WithTimeout(ctx, settling/2)
	defer cancel()
	ok, err := p.lock.TryLockContext(wait, 5*time.Millisecond)
	if err != nil {
		return nil, fmt.Errorf("executor lock: %w", err)
	}
	if !ok {
		return nil, errors.New("executor lock: taken")
	}
	return p, p.write()
}

func (p *filePresence) write() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw, err := json.Marshal(card{Projects: p.projects, PID: os.Getpid()})
	if err != nil {
		return err
	}
	tmp := filepath.Join(p.dir, p.id+".tmp")
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return fmt.Errorf("executor lock: %w", errors.Unwrap(err))
	}
	return os.Rename(tmp, filepath.Join(p.dir, p.id+".json"))
}

func (p *filePresence) adopt(_ context.Context, project string) error {
	p.mu.Lock()
	known := slices.Contains(p.projects, project)
	if !known {
		p.projects = append(p.projects, project)
	}
	p.mu.Unlock()
	if known {
		return nil
	}
	return p.write()
}

// fresh: the lock is held until the process ends.
func (p *filePresence) fresh() bool { return true }

// leave frees the lock; the files stay for whoever takes the runs over.
func (p *filePresence) leave() error { return p.lock.Close() }

// A Dead is a claim on an executor that died. Whoever holds the claim is the only
// process that looks at its runs. Done or Release ends it.
type Dead struct {
	ID string
	// For is how long it has been dead, by the database's clock; a file does not tell.
	For time.Duration

	done, release func() error
}

// Done forgets the executor: nothing of it is left.
func (d *Dead) Done() error { return d.done() }

// Release lets another process claim it: some of its runs do not fit here.
func (d *Dead) Release() error { return d.release() }

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// deadFiles claims every executor of a file whose process has died, by a lock of its
// own, so that a dead one never looks alive while somebody sees to it.
func deadFiles(path string, now time.Time) ([]*Dead, error) {
	dir := folder(path)
	var out []*Dead
	err := eachExecutor(dir, func(id string, held bool, _ card, info os.FileInfo) error {
		if held {
			return nil
		}
		if _, err := os.Stat(filepath.Join(dir, id+".json")); err != nil && now.Sub(info.ModTime()) < settling {
			return nil // it is being born
		}
		claim := flock.New(filepath.Join(dir, id+".claim"), flock.SetPermissions(0o600))
		ok, err := claim.TryLock()
		if err != nil || !ok {
			return nil //nolint:nilerr // Somebody else claimed it first; they will see to it.
		}
		out = append(out, &Dead{ID: id, release: claim.Close, done: func() error {
			return errors.Join(
				ignoreMissing(os.Remove(filepath.Join(dir, id+".json"))),
				ignoreMissing(os.Remove(filepath.Join(dir, id+".lock"))),
				claim.Close(),
				ignoreMissing(os.Remove(filepath.Join(dir, id+".claim"))))
		}})
		return nil
	})
	return out, err
}

func fileAlive(path, project string) (bool, error) {
	alive := false
	err := eachExecutor(folder(path), func(_ string, held bool, c card, _ os.FileInfo) error {
		alive = alive || (held && slices.Contains(c.Projects, project))
		return nil
	})
	return alive, err
}

func lockHeld(path, executor string) bool {
	lock := flock.New(filepath.Join(folder(path), executor+".lock"), flock.SetPermissions(0o600), flock.SetFlag(os.O_RDWR))
	free, err := lock.TryRLock()
	if err != nil {
		return false // it is gone
	}
	if free {
		_ = lock.Close() // only looked at
	}
	return !free
}

func eachExecutor(dir string, visit func(id string, held bool, c card, info os.FileInfo) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".lock")
		if !ok {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			continue // gone since the listing
		}
		lock := flock.New(filepath.Join(dir, entry.Name()), flock.SetPermissions(0o600))
		free, err := lock.TryRLock()
		if err != nil {
			continue
		}
		if free {
			if err := lock.Close(); err != nil {
				return err
			}
		}
		var c card
		if raw, err := os.ReadFile(filepath.Join(dir, id+".json")); err == nil { //nolint:gosec // G304: our own folder, private to the user.
			_ = json.Unmarshal(raw, &c) // a torn card names no project, which is safe
		}
		if err := visit(id, !free, c, info); err != nil {
			return err
		}
	}
	return nil
}
