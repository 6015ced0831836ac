//go:build unix

package builtin

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Pipes, sockets and devices are neither read nor written, nor waited for.
func TestSpecialFiles(t *testing.T) {
	s := newSite(t, nil)
	if err := syscall.Mkfifo(filepath.Join(s.root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.DevNull, filepath.Join(s.root, "null")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(s.root) // a socket's path is short
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: "socket", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	names := []string{"pipe", "socket"}
	if err := syscall.Mknod(filepath.Join(s.root, "zero"), syscall.S_IFCHR|0o600, 1<<8|5); err == nil {
		names = append(names, "zero")
	} else if !errors.Is(err, syscall.EPERM) {
		t.Fatal(err)
	}
	for _, name := range names {
		if got := s.outcome(t, s.request("read_file", map[string]any{"path": name})); got != "error: not a regular file" {
			t.Errorf("read_file %s = %q", name, got)
		}
		for _, add := range []bool{false, true} {
			if got := s.outcome(t, s.request("write_file", map[string]any{"path": name, "content": "x", "append": add})); got != "denied: path_not_allowed: not a regular file" {
				t.Errorf("write_file %s = %q", name, got)
			}
		}
	}
	if got := s.outcome(t, s.request("read_file", `{"path":"null"}`)); !strings.HasPrefix(got, "denied: ") {
		t.Errorf("read_file of a link to a device = %q", got)
	}
}
