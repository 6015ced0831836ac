//go:build unix

package consent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		"a/plain": 0o644, "a/tool": 0o644, "b/tool": 0o755, "b/group": 0o610, "c/tool": 0o755, "work/bin/run": 0o700, "work/data": 0o600,
	} {
		full := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, nil, mode), os.Chmod(full, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Mkdir(filepath.Join(root, "a/folder"), 0o755),
		os.Symlink("../b/tool", filepath.Join(root, "c/link")),
		os.Symlink("nowhere", filepath.Join(root, "c/dangling")),
		syscall.Mkfifo(filepath.Join(root, "c/pipe"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	at := func(path string) string { return filepath.Join(root, path) }
	search := strings.Join([]string{"", ".", "work/bin", at("a"), at("absent"), at("b"), at("c")}, ":")
	env := map[string]string{"PATH": search}
	for _, test := range []struct{ command, want, reason string }{
		{"tool", at("b/tool"), ""}, // a/tool may not be executed
		{"group", at("b/group"), ""},
		{"link", at("c/link"), ""}, // the link, not its target
		{"dangling", "", "no such program"},
		{"pipe", "", "no such program"},
		{"folder", "", "no such program"},
		{"plain", "", "no such program"},
		{"run --fast", "", "put arguments in args"},
		{"run", "", "no such program"}, // relative entries of PATH are skipped
		{"bin/run", at("work/bin/run"), ""},
		{"./bin/../bin/run", at("work/bin/run"), ""},
		{"../b/tool", at("b/tool"), ""},
		{"./tool", "", "no such file"}, // a path is not looked for in PATH
		{"./data", "", "may not be executed"},
		{at("a/folder"), "", "not a regular file"},
		{at("c/pipe"), "", "not a regular file"},
		{at("b") + "/./tool", at("b/tool"), ""},
		{at("b/tool/x"), "", "cannot be looked at"},
		{at("c/dangling"), "", "no such file"},
		{"", "", "not a program's name"},
		{"..", "", "a folder"},
		{"a\x00b", "", "not a program's name"},
		{"a\xff", "", "well-formed"},
	} {
		got, err := Resolve(test.command, at("work"), func(name string) string { return env[name] })
		if got != test.want || (err != nil) != (test.reason != "") || err != nil && !strings.Contains(err.Error(), test.reason) {
			t.Errorf("Resolve(%q) = %q, %v, want %q %s", test.command, got, err, test.want, test.reason)
		}
		if _, ok := errors.AsType[*ResolveError](err); err != nil && !ok {
			t.Errorf("Resolve(%q) = %T, want *ResolveError", test.command, err)
		}
	}
	if got, err := Resolve("./bin/run", "work", os.Getenv); err == nil {
		t.Errorf("Resolve in a relative folder = %q, want an error", got)
	}
}

func TestBatchUnsafe(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		command, arg string
		want         bool
	}{
		{"npx.CMD", "a & calc", true},
		{"npx.bat", "%PATH%", true},
		{"npx.cmd", "-y", false},
		{"npx.exe", "a & b", false},
		{"npx", "a|b", false},
	} {
		if got := batchUnsafe(test.command, []string{"x", test.arg}); got != test.want {
			t.Errorf("batchUnsafe(%s, %s) = %v, want %v", test.command, test.arg, got, test.want)
		}
	}
}
