package secrets

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zalando/go-keyring"
)

func TestSessionBus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "bus")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	write(t, dir, "file", "")
	for _, tt := range []struct {
		env  vars
		want string
	}{
		{vars{}, "no session bus"},
		{vars{"XDG_RUNTIME_DIR": dir}, ""},
		{vars{"XDG_RUNTIME_DIR": dir + "/none"}, "no session bus"},
		{vars{"XDG_RUNTIME_DIR": "."}, "no session bus"},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unix:path=" + path}, ""},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unix:path=" + path + ",guid=0123"}, ""},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unix:abstract=/tmp/dbus-x,guid=1"}, ""},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unix:path=" + filepath.Join(dir, "file")}, "no session bus"},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unix:path=" + filepath.Join(dir, "none"), "XDG_RUNTIME_DIR": dir}, "no session bus"},
		// What starts a program or leaves the machine is not asked.
		{vars{"DBUS_SESSION_BUS_ADDRESS": "autolaunch:"}, "no session bus"},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unixexec:path=/bin/sh"}, "no session bus"},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "unix:path=" + path + ";unixexec:path=/bin/sh"}, "no session bus"},
		{vars{"DBUS_SESSION_BUS_ADDRESS": "tcp:host=localhost,port=1"}, "no session bus"},
	} {
		if got := noKeychain("linux", tt.env.get); got != tt.want {
			t.Errorf("noKeychain(linux, %v) = %q, want %q", tt.env, got, tt.want)
		}
	}
	for system, want := range map[string]string{"darwin": "", "windows": "", "plan9": "none on this system"} {
		if got := noKeychain(system, vars{}.get); got != want {
			t.Errorf("noKeychain(%s) = %q, want %q", system, got, want)
		}
	}
}

// hangingRing answers when it is let go.
type hangingRing struct{ release chan struct{} }

func (r hangingRing) Get(string, string) (string, error) {
	<-r.release
	return "", keyring.ErrNotFound
}

func (r hangingRing) Set(string, string, string) error {
	<-r.release
	return nil
}

func (r hangingRing) Delete(string, string) error {
	<-r.release
	return nil
}

func TestKeychainThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ring := hangingRing{make(chan struct{})}
		env := vars{"RELAVIUM_MCP_TOKEN": "from-variable"}
		store := open(t, Options{Home: "/home", Keychain: ring, Getenv: env.get})
		for range maxKeychainCalls {
			begin := time.Now()
			if got := value(t, store, "token"); got != "from-variable" {
				t.Errorf("Resolve = %q, want the next source", got)
			}
			if waited := time.Since(begin); waited != keychainWait {
				t.Errorf("waited %v, want %v", waited, keychainWait)
			}
		}
		begin := time.Now()
		answers, err := store.Explain(t.Context(), names(t, "mcp/token")[0])
		if err != nil || answers[0] != (Answer{Keychain, "keychain", Offline, "earlier calls hang"}) || time.Since(begin) != 0 {
			t.Errorf("Explain = %v, %v after %v, want no further call", answers, err, time.Since(begin))
		}
		close(ring.release)
		synctest.Wait()
		if source, err := store.Source(t.Context(), names(t, "mcp/token")[0]); err != nil || source != Variable {
			t.Errorf("Source = %v, %v", source, err)
		}
	})
}

func TestKeychainCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ring := hangingRing{make(chan struct{})}
		defer close(ring.release)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := open(t, Options{Home: "/home", Keychain: ring}).MCPSecrets().Resolve(ctx, "token")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Resolve = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// forgetful takes every value and keeps what fits: as some systems do.
type forgetful struct{ ringOf }

func (f *forgetful) Set(service, account, value string) error {
	return f.ringOf.Set(service, account, value[:min(len(value), 100)])
}

func TestKeychainReadsBack(t *testing.T) {
	t.Parallel()
	name := names(t, "mcp/token")[0]
	store := open(t, Options{Keychain: &forgetful{ringOf{items: map[string]string{}}}})
	if _, err := store.Set(t.Context(), name, []byte(canary), ""); err != nil {
		t.Errorf("Set = %v", err)
	}
	_, err := store.Set(t.Context(), name, []byte(strings.Repeat("x", 101)), "")
	if err == nil || !strings.Contains(err.Error(), "does not give it back") {
		t.Errorf("Set of what is cut = %v, want a refusal", err)
	}
	_, err = store.Set(t.Context(), name, []byte(strings.Repeat("x", MaxKeychainBytes+1)), "")
	if err == nil || !strings.Contains(err.Error(), "too long for a keychain") {
		t.Errorf("Set of %d bytes = %v, want a refusal", MaxKeychainBytes+1, err)
	}
}

func TestBusWithoutKeychain(t *testing.T) {
	t.Parallel()
	ring := &ringOf{err: errors.New("The name org.freedesktop.secrets was not provided by any .service files")}
	store := open(t, Options{Keychain: ring})
	name := names(t, "mcp/token")[0]
	where, err := store.Set(t.Context(), name, []byte(canary), "")
	if err != nil || where != AgeFile {
		t.Errorf("Set = %q, %v, want the age file", where, err)
	}
	if got := value(t, store, "token"); got != canary {
		t.Errorf("Resolve = %q", got)
	}
	if from, err := store.Delete(t.Context(), name); err != nil || len(from) != 1 || from[0] != AgeFile {
		t.Errorf("Delete = %v, %v, want the age file", from, err)
	}
	// One that is locked is meant: nothing is put elsewhere.
	ring.err = errors.New("failed to unlock correct collection '/org/freedesktop/secrets/collection/login'")
	if where, err := store.Set(t.Context(), name, []byte(canary), ""); err == nil || where != Keychain {
		t.Errorf("Set in a locked keychain = %q, %v, want a refusal", where, err)
	}
}
