//go:build unix

package secrets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestKeyFileIsPrivate(t *testing.T) {
	t.Parallel()
	identity := newIdentity(t)
	sealed := string(seal(t, `{"mcp/token": "a good value"}`, identity.Recipient()))
	for _, tt := range []struct {
		name string
		prep func(home, key, file string) error
		want string
	}{
		{"private", func(string, string, string) error { return nil }, "a good value"},
		{"read only", func(_, key, file string) error { return chmods(0o400, key, file) }, "a good value"},
		{"mounted", func(_, _, file string) error { return chmods(0o444, file) }, "a good value"},
		{"group may read the key", func(_, key, _ string) error { return chmods(0o640, key) }, "its key file is open to others: its mode must be 0600"},
		{"all may read the key", func(_, key, _ string) error { return chmods(0o604, key) }, "its key file is open to others"},
		{"group may write the file", func(_, _, file string) error { return chmods(0o660, file) }, "can be written by others"},
		{"key is a link", func(home, key, _ string) error {
			return firstError(os.Rename(key, filepath.Join(home, "x")), os.Symlink("x", key))
		}, "its key file is a link"},
		{"file is a link", func(home, _, file string) error {
			return firstError(os.Rename(file, filepath.Join(home, "x")), os.Symlink("x", file))
		}, "age file: is a link"},
		{"key is a folder", func(_, key, _ string) error { return firstError(os.Remove(key), os.Mkdir(key, 0o700)) }, "its key file is not a regular file"},
		{"file is a pipe", func(_, _, file string) error { return firstError(os.Remove(file), unix.Mkfifo(file, 0o600)) }, "is not a regular file"},
		{"another's key", func(_, key, _ string) error { return os.Chown(key, 4711, -1) }, "its key file belongs to another user"},
		{"another's file", func(_, _, file string) error { return os.Chown(file, 4711, -1) }, "age file: belongs to another user"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(tt.name, "another") && os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			home := t.TempDir()
			file, key := write(t, home, "secrets.age", sealed), write(t, home, "age.key", identity.String())
			if err := tt.prep(home, key, file); err != nil {
				t.Fatal(err)
			}
			if got := value(t, open(t, Options{Home: home}), "token"); !strings.Contains(got, tt.want) {
				t.Errorf("Resolve = %q, want %q", got, tt.want)
			}
		})
	}
}

func chmods(mode os.FileMode, paths ...string) error {
	for _, path := range paths {
		if err := os.Chmod(path, mode); err != nil {
			return err
		}
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestFileVariable: links are followed there, as in a mounted volume, and a pipe does
// not hold the reader.
func TestFileVariable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "data", "mounted-value\n")
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := firstError(os.Symlink("data", link), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{link: "mounted-value", pipe: "secret mcp/token: RELAVIUM_MCP_TOKEN_FILE: is not a regular file"} {
		if got := value(t, open(t, Options{Getenv: vars{"RELAVIUM_MCP_TOKEN_FILE": path}.get}), "token"); got != want {
			t.Errorf("Resolve = %q, want %q", got, want)
		}
	}
}
