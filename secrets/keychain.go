package secrets

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/zalando/go-keyring"
)

// A Keyring is the keychain of a system. Its methods may block for as long as a
// person looks at a dialog.
type Keyring interface {
	Get(service, account string) (string, error)
	Set(service, account, value string) error
	Delete(service, account string) error
}

// service is the name under which every item is kept (format 7).
const service = "relavium"

// keychainWait bounds a call: a locked keychain asks for its password in a dialog
// that may stand on no screen.
const keychainWait = 10 * time.Second

// systemKeyring is the one of the operating system.
type systemKeyring struct{}

func (systemKeyring) Get(service, account string) (string, error) {
	return keyring.Get(service, account)
}

func (systemKeyring) Set(service, account, value string) error {
	return keyring.Set(service, account, value)
}

func (systemKeyring) Delete(service, account string) error {
	return keyring.Delete(service, account)
}

// A keychain calls a Keyring without ever waiting longer than keychainWait.
type keychain struct {
	ring    Keyring
	missing string        // why there is none, or ""
	slots   chan struct{} // calls under way, those that nobody waits for any more too
}

// noService is a session bus without a keychain, as on a server.
const noService = "no keychain on the session bus"

// maxKeychainCalls is how many calls may hang at once. When all do, further ones
// fail like them.
const maxKeychainCalls = 8

func newKeychain(ring Keyring, getenv func(string) string) *keychain {
	k := &keychain{ring: ring, slots: make(chan struct{}, maxKeychainCalls)}
	if ring == nil {
		k.ring, k.missing = systemKeyring{}, noKeychain(runtime.GOOS, getenv)
	}
	return k
}

// noKeychain says why this system has no keychain that could be asked, or "". On
// Linux the library starts a program from PATH where there is no session bus, so it
// is asked only where there is one.
func noKeychain(system string, getenv func(string) string) string {
	switch system {
	case "darwin", "windows":
		return ""
	case "linux":
		if hasSessionBus(getenv) {
			return ""
		}
		return "no session bus"
	}
	return "none on this system"
}

func hasSessionBus(getenv func(string) string) bool {
	addresses := getenv("DBUS_SESSION_BUS_ADDRESS")
	if addresses == "" {
		dir := getenv("XDG_RUNTIME_DIR")
		return filepath.IsAbs(dir) && isSocket(filepath.Join(dir, "bus"))
	}
	for address := range strings.SplitSeq(addresses, ";") {
		options, ok := strings.CutPrefix(address, "unix:")
		if !ok {
			return false // autolaunch: and unixexec: start programs, tcp: leaves the machine
		}
		path, _, _ := strings.Cut(strings.TrimPrefix(options, "path="), ",")
		if strings.HasPrefix(options, "path=") && isSocket(path) || strings.HasPrefix(options, "abstract=") {
			continue
		}
		return false
	}
	return true
}

func isSocket(path string) bool {
	about, err := os.Stat(path)
	return err == nil && about.Mode().Type() == os.ModeSocket
}

// call runs one call of the ring in a goroutine of its own. A call that hangs keeps
// its slot and its goroutine until the system lets go of it.
func (k *keychain) call(ctx context.Context, do func() (string, error)) (string, error) {
	if k.missing != "" {
		return "", absence{Offline, k.missing}
	}
	select {
	case k.slots <- struct{}{}:
	default:
		return "", absence{Offline, "earlier calls hang"}
	}
	type outcome struct {
		value string
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() { <-k.slots }()
		value, err := do()
		done <- outcome{value, err}
	}()
	timer := time.NewTimer(keychainWait)
	defer timer.Stop()
	select {
	case got := <-done:
		return got.value, got.err
	case <-timer.C:
		return "", absence{Offline, "no answer within " + keychainWait.String()}
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (k *keychain) get(ctx context.Context, account string) ([]byte, error) {
	value, err := k.call(ctx, func() (string, error) { return k.ring.Get(service, account) })
	if err != nil {
		return nil, keychainFault(err)
	}
	return []byte(value), nil
}

// set keeps a value and reads it back, because some systems cut or drop what is too
// long for them and say nothing.
func (k *keychain) set(ctx context.Context, account string, value []byte) error {
	if len(value) > MaxKeychainBytes {
		return errTooLong
	}
	text := string(value)
	if _, err := k.call(ctx, func() (string, error) { return "", k.ring.Set(service, account, text) }); err != nil {
		return keychainFault(err)
	}
	back, err := k.get(ctx, account)
	defer clear(back)
	if err != nil || !bytes.Equal(back, value) {
		return refusal("it took the value but does not give it back")
	}
	return nil
}

// remove reports whether there was an item.
func (k *keychain) remove(ctx context.Context, account string) (bool, error) {
	_, err := k.call(ctx, func() (string, error) { return "", k.ring.Delete(service, account) })
	if errors.Is(err, keyring.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, keychainFault(err)
	}
	return true, nil
}

// keychainFault is the state behind an error of the system, whose text may hold
// anything.
func keychainFault(err error) error {
	var known absence
	switch {
	case errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, keyring.ErrNotFound):
		return absence{Absent, "not there"}
	case errors.Is(err, keyring.ErrSetDataTooBig):
		return errTooLong
	case strings.Contains(err.Error(), "unlock"):
		return absence{Offline, "locked"}
	case strings.Contains(err.Error(), "was not provided by any .service files"):
		return absence{Offline, noService}
	}
	return absence{Offline, "cannot be reached"}
}
