//go:build unix

package builtin

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestReadTextPipe(t *testing.T) {
	t.Parallel()
	root := workspace(t)
	if err := syscall.Mkfifo(filepath.Join(root, "pipe.txt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Reader{}).ReadText(root, "pipe.txt"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("ReadText of a pipe = %v, want a refusal", err)
	}
}
