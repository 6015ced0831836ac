package child

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestSpecRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("text"), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program, plain := write("program", 0o700), write("plain", 0o600)
	many := make([]string, maxArgs+1)
	for _, tc := range []struct {
		name string
		spec Spec
		want string
		unix bool
	}{
		{name: "a name", spec: Spec{Path: "program", Dir: dir}, want: `start "program": its path is not absolute`},
		{name: "a relative path", spec: Spec{Path: "./program", Dir: dir}, want: "its path is not absolute"},
		{name: "no path", spec: Spec{Dir: dir}, want: "its path is not absolute"},
		{name: "a NUL in the path", spec: Spec{Path: program + "\x00", Dir: dir}, want: "its path is not absolute"},
		{name: "a relative folder", spec: Spec{Path: program, Dir: "."}, want: "its folder is not absolute"},
		{name: "no folder", spec: Spec{Path: program}, want: "its folder is not absolute"},
		{name: "a folder that is not there", spec: Spec{Path: program, Dir: filepath.Join(dir, "none")}, want: "its folder is not there"},
		{name: "a folder that is a file", spec: Spec{Path: program, Dir: plain}, want: "its folder is not there"},
		{name: "nothing there", spec: Spec{Path: filepath.Join(dir, "none"), Dir: dir}, want: `start "none": no such file`, unix: true},
		{name: "a folder as program", spec: Spec{Path: dir, Dir: dir}, want: "not a regular file"},
		{name: "no right to execute", spec: Spec{Path: plain, Dir: dir}, want: "may not be executed", unix: true},
		{name: "a NUL in an argument", spec: Spec{Path: program, Dir: dir, Args: []string{"a\x00b"}}, want: "an argument holds a NUL"},
		{name: "too many arguments", spec: Spec{Path: program, Dir: dir, Args: many}, want: "over 4096 arguments"},
		{name: "arguments too long", spec: Spec{Path: program, Dir: dir, Args: []string{strings.Repeat("x", maxArgsBytes)}}, want: "its arguments are over 1048576 bytes"},
	} {
		if tc.unix && runtime.GOOS == "windows" {
			continue
		}
		table := NewTable(TableOptions{})
		_, err := table.Start(t.Context(), tc.spec)
		var refused *StartError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: Start = %v, want %s", tc.name, err, tc.want)
		}
		if _, again := table.Run(t.Context(), tc.spec, Bounds{}); again == nil || again.Error() != err.Error() {
			t.Errorf("%s: Run = %v, want %v", tc.name, again, err)
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), dir) {
				t.Errorf("%s: the error holds a path: %v", tc.name, e)
			}
		}
		if living := table.Living(); len(living) > 0 || table.taken != 0 {
			t.Errorf("%s: %v lives, %d places taken", tc.name, living, table.taken)
		}
	}
}

// Report T16: cmd.exe reads the arguments of a batch file, as npx.cmd is one, a second
// time. What arrives as it was written is passed on, anything else is refused.
func TestBatchUnsafe(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		path string
		arg  string
		want bool
	}{
		{`C:\npx.cmd`, "-y", false},
		{`C:\npx.cmd`, "a b", false},
		{`C:\npx.cmd`, "@acme/echo-args", false},
		{`C:\npx.cmd`, "50%", true},
		{`C:\npx.cmd`, "x&y", true},
		{`C:\npx.cmd`, `"q"`, true},
		{`C:\npx.CMD`, "a&calc", true},
		{`C:\x.bat`, `"`, true},
		{`C:\x.bat`, "%PATH%", true},
		{`C:\x.bat`, "a\nb", true},
		{`C:\x.bat`, "!x!", true},
		{`C:\x.exe`, "a&calc", false},
	} {
		if got := batchUnsafe(tc.path, []string{"ok", tc.arg}); got != tc.want {
			t.Errorf("batchUnsafe(%q, %q) = %v, want %v", tc.path, tc.arg, got, tc.want)
		}
	}
}
