package console

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// A RunningError says that a console of the home runs already.
type RunningError struct{ URL string } // "" when it has not said yet

func (e *RunningError) Error() string {
	if e.URL == "" {
		return "console: one of this home runs already"
	}
	return "console: one of this home runs already at " + e.URL
}

// address is what console.json holds.
type address struct {
	URL string `json:"url"`
	PID int    `json:"pid"`
}

// lockWait is how long a console waits for those who only look at the lock.
const lockWait = time.Second

// Announce writes the base URL of this process's console into the home, where
// Address finds it until withdraw is called or the process ends. Where another
// process's console is announced it returns a *RunningError.
func Announce(ctx context.Context, home, base string) (withdraw func(), err error) {
	lock := flock.New(filepath.Join(home, lockFile), flock.SetPermissions(0o600))
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if ok, err := lock.TryLockContext(wait, 20*time.Millisecond); !ok {
		if wait.Err() == nil && err != nil {
			return nil, pathless(err)
		}
		_ = lock.Close()
		at, _ := Address(home)
		return nil, &RunningError{URL: at}
	}
	content, err := json.Marshal(address{URL: base, PID: os.Getpid()})
	if err == nil {
		err = replace(home, addressFile, append(content, '\n'))
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return func() {
		_ = os.Remove(filepath.Join(home, addressFile))
		_ = lock.Close()
	}, nil
}

// Address returns the base URL of the console that a living process of the home
// has announced.
func Address(home string) (base string, ok bool) {
	raw, err := readSmall(home, addressFile)
	if err != nil {
		return "", false
	}
	lock := flock.New(filepath.Join(home, lockFile), flock.SetPermissions(0o600))
	free, err := lock.TryRLock()
	_ = lock.Close()
	if err != nil || free {
		return "", false // whoever wrote it is gone
	}
	var at address
	if err := json.Unmarshal(raw, &at); err != nil {
		return "", false
	}
	u, err := url.Parse(at.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return "", false
	}
	return at.URL, true
}

// GatePage is the address of the page where a gate is decided, on the console
// with that base URL.
func GatePage(base, gate string) string { return base + "/gates/" + url.PathEscape(gate) }
