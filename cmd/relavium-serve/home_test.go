package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

func TestPrepareHome(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("permissions are access lists there")
	}
	dir := t.TempDir()
	p := place{home: filepath.Join(dir, "deep", "er", "home"), userHome: dir}
	store, err := prepareHome(p)
	if err != nil {
		t.Fatal(err)
	}
	wantMode(t, p.home, 0o700)
	wantMode(t, store, 0o600)

	// What is open to others is closed.
	for path, mode := range map[string]fs.FileMode{p.home: 0o755, store: 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := prepareHome(p); err != nil {
		t.Fatal(err)
	}
	wantMode(t, p.home, 0o700)
	wantMode(t, store, 0o600)

	// A home that is the user's own folder keeps the mode it has.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := prepareHome(place{home: dir, userHome: dir}); err != nil {
		t.Fatal(err)
	}
	wantMode(t, dir, 0o755)

	// Links and other things in their place are refused.
	elsewhere := filepath.Join(dir, "elsewhere")
	if err := errors.Join(os.Remove(store), os.WriteFile(elsewhere, nil, 0o600), os.Symlink(elsewhere, store)); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(dir, "linked")
	if err := os.Symlink(p.home, linked); err != nil {
		t.Fatal(err)
	}
	for _, home := range []string{p.home, linked, elsewhere, "/"} {
		if _, err := prepareHome(place{home: home, userHome: dir}); exitCode(err) != exitFault {
			t.Errorf("prepareHome(%s) = %v, want exit 2", home, err)
		}
	}
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	about, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := about.Mode().Perm(); got != want {
		t.Errorf("mode of %s = %o, want %o", filepath.Base(path), got, want)
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{silent(3), 3},
		{invalid("", "x"), 2},
		{fmt.Errorf("the run store: %w", &engine.SchemaError{Found: 9, Known: 1}), 2},
		{fmt.Errorf("x: %w", engine.ErrRunNotFound), 2},
		{engine.ErrGateNotFound, 2},
		{workflows.Problems{{What: "x"}}, 2},
		{&workflows.InputError{}, 2},
		{&engine.DecidedError{}, 1},
		{&engine.RunError{Code: engine.CodeValidation}, 1},
		{errors.New("x"), 1},
		{errors.Join(&fault{code: 3, err: errors.New("x")}, nil), 3},
	}
	for _, test := range tests {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("exitCode(%v) = %d, want %d", test.err, got, test.want)
		}
	}
}

// Every command says what it does and shows how.
func TestEveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	a := &app{shell: newShell(strings.NewReader(""), nil, nil, nil)}
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" || !strings.Contains(cmd.Example, "relavium-serve ") {
			t.Errorf("%s: short %q, example %q, want both", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
		for _, child := range cmd.Commands() {
			check(child)
		}
	}
	check(a.command())
}
