package secrets

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// again runs one test of this binary in a process of its own, below the given
// command.
func again(t *testing.T, test string, env []string, command ...string) string {
	t.Helper()
	command = append(command, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Fatalf("%s: %v\n%s", test, err, out)
	}
	return string(out)
}

// TestKeychain uses the keychain of a desktop session that is made for it.
func TestKeychain(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"dbus-run-session", "gnome-keyring-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			missing := t.Skipf
			if os.Getenv("CI") != "" {
				missing = t.Fatalf
			}
			missing("no %s: the keychain is tested with a real one (Debian: apt-get install gnome-keyring dbus)", program)
		}
	}
	home, runtime := t.TempDir(), t.TempDir()
	env := []string{
		"HOME=" + home, "XDG_RUNTIME_DIR=" + runtime, "XDG_DATA_HOME=" + filepath.Join(home, "data"),
		"DBUS_SESSION_BUS_ADDRESS=", "RELAVIUM_TEST_SESSION=" + home,
	}
	script := `printf pw | gnome-keyring-daemon --unlock --components=secrets >/dev/null && exec "$@"`
	again(t, "TestInKeychain", env, "dbus-run-session", "--", "sh", "-c", script, "sh")
	// What was put there is there in the next session, and can be deleted.
	again(t, "TestInKeychain", append(env, "RELAVIUM_TEST_AGAIN=1"), "dbus-run-session", "--", "sh", "-c", script, "sh")
	// A session without a keychain, and without what would start one.
	bus := write(t, home, "bus.conf", `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:tmpdir=/tmp</listen>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`)
	again(t, "TestInKeychain", append(env, "RELAVIUM_TEST_BARE=1"), "dbus-run-session", "--config-file="+bus, "--")
}

func TestInKeychain(t *testing.T) {
	home := os.Getenv("RELAVIUM_TEST_SESSION")
	if home == "" {
		return // TestKeychain runs it in a session
	}
	ctx := t.Context()
	token, long := names(t, "mcp/token")[0], names(t, "provider/openai")[0]
	store := open(t, Options{Home: home, Getenv: os.Getenv})
	longest := strings.Repeat("ü", MaxKeychainBytes/2)
	if os.Getenv("RELAVIUM_TEST_BARE") != "" {
		if where, err := store.Set(ctx, token, []byte(canary), ""); err != nil || where != AgeFile {
			t.Errorf("Set in a session without a keychain = %q, %v, want the age file", where, err)
		}
		if source, err := store.Source(ctx, token); err != nil || source != AgeFile {
			t.Errorf("Source = %q, %v, want the age file", source, err)
		}
		return
	}
	if os.Getenv("RELAVIUM_TEST_AGAIN") == "" {
		for _, set := range []struct {
			name  Name
			value string
		}{{token, "the value before"}, {token, canary}, {long, longest}} {
			if where, err := store.Set(ctx, set.name, []byte(set.value), ""); err != nil || where != Keychain {
				t.Fatalf("Set = %q, %v, want the keychain", where, err)
			}
		}
		if _, err := store.Set(ctx, token, []byte(longest+"x"), ""); err == nil {
			t.Error("Set took a value over the bound")
		}
		if _, err := store.MCPSecrets().Resolve(ctx, "other"); err == nil {
			t.Error("Resolve found what is not there")
		}
	}
	for _, r := range []struct {
		resolver Resolver
		id, want string
	}{{store.MCPSecrets(), "token", canary}, {store.ProviderKeys(), "openai", longest}} {
		got, err := r.resolver.Resolve(ctx, r.id)
		if err != nil || got.Reveal() != r.want {
			t.Errorf("Resolve(%s) = %d bytes, %v, want %d", r.id, len(got.Reveal()), err, len(r.want))
		}
		if source, err := r.resolver.Has(ctx, r.id); err != nil || source != Keychain {
			t.Errorf("Has(%s) = %q, %v, want the keychain", r.id, source, err)
		}
	}
	kept, err := store.Kept(ctx)
	if want := []Name{token, long}; err != nil || !slices.Equal(kept, want) {
		t.Errorf("Kept = %v, %v, want %v", kept, err, want)
	}
	if os.Getenv("RELAVIUM_TEST_AGAIN") != "" {
		from, err := store.Delete(ctx, token)
		if err != nil || !slices.Equal(from, []Source{Keychain}) {
			t.Errorf("Delete = %v, %v, want the keychain", from, err)
		}
		if source, err := store.Source(ctx, token); err == nil {
			t.Errorf("deleted, Source = %q", source)
		}
	}
}

func TestHarden(t *testing.T) {
	t.Parallel()
	again(t, "TestHardened", []string{"RELAVIUM_TEST_HARDEN=1"})
}

func TestHardened(t *testing.T) {
	if os.Getenv("RELAVIUM_TEST_HARDEN") == "" {
		return // TestHarden runs it in a process of its own
	}
	if err := Harden(); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit.Cur != 0 || limit.Max != 0 {
		t.Errorf("RLIMIT_CORE = %+v, %v, want 0", limit, err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil || dumpable != 0 {
		t.Errorf("PR_GET_DUMPABLE = %d, %v, want 0", dumpable, err)
	}
}
