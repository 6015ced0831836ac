package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// shell is a script for /bin/sh with nothing but its PATH.
func shell(t *testing.T, script string) Spec {
	t.Helper()
	env, err := NewEnvironment(Variables{Own: []Variable{{"PATH", []byte("/usr/bin:/bin")}}})
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Env: env, Ladder: shortLadder()}
}

func TestRun(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{})
	for _, tc := range []struct {
		script, stdin  string
		bounds         Bounds
		stdout, stderr string
		omitted        int64
		exit           Exit
	}{
		{script: "echo out; echo err >&2; exit 3", stdout: "out\n", stderr: "err\n", exit: Exit{Code: 3}},
		{script: "true", exit: Exit{}},
		{script: "kill -9 $$", exit: Exit{Code: -1, Signal: "SIGKILL"}},
		{script: "cat", stdin: "to and fro", stdout: "to and fro"},
		{script: "exit 0", stdin: strings.Repeat("x", 1<<20)},
		{script: "wc -c", stdin: strings.Repeat("x", 1<<20), stdout: "1048576\n"},
		{script: "pwd; env | sort", stdout: "/\nPATH=/usr/bin:/bin\nPWD=/\n"},
		{script: "printf 0123456789", bounds: Bounds{Stdout: 10}, stdout: "0123456789"},
		{script: "printf 0123456789A", bounds: Bounds{Stdout: 10}, stdout: "01234|6789A", omitted: 1},
		{script: "printf 0123456789; printf ABCDE >&2", bounds: Bounds{Stdout: 3, Stderr: 1}, stdout: "01|9", stderr: "A|", omitted: 7},
		{script: "head -c 70000000 /dev/zero | tr '\\0' x; printf end", bounds: Bounds{Stdout: 6}, stdout: "xxx|end", omitted: 70000003 - 6},
		// Limits and signals are what a shell's child would have.
		{script: "ulimit -c; yes | head -1; (echo > /dev/tty) 2>/dev/null || echo no terminal; ls /proc/self/fd | wc -l", stdout: "0\ny\nno terminal\n4\n"},
		// What stays in the background ends with the command.
		{script: "sleep 1000 & (setsid sleep 1000 &) ; echo bye", stdout: "bye\n"},
	} {
		spec := shell(t, tc.script)
		tc.bounds.Stdin = []byte(tc.stdin)
		result, err := table.Run(t.Context(), spec, tc.bounds)
		if err != nil {
			t.Errorf("%s: %v", tc.script, err)
			continue
		}
		if diff := cmp.Diff(tc.exit, result.Exit); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.script, diff)
		}
		if got := joined(result.Stdout); got != tc.stdout || result.Stdout.Omitted != tc.omitted {
			t.Errorf("%s: stdout %.100q, %d omitted, want %.100q, %d", tc.script, got, result.Stdout.Omitted, tc.stdout, tc.omitted)
		}
		if got := joined(result.Stderr); got != tc.stderr {
			t.Errorf("%s: stderr %.100q, want %q", tc.script, got, tc.stderr)
		}
		if result.Duration <= 0 {
			t.Errorf("%s: it took %v", tc.script, result.Duration)
		}
	}
	if living := table.Living(); len(living) > 0 {
		t.Errorf("%v lives", living)
	}
}

func joined(o Output) string {
	if o.Omitted > 0 {
		return string(o.Head) + "|" + string(o.Tail)
	}
	return string(o.Head) + string(o.Tail)
}

// TestRunTimeout ends what runs too long, and keeps what it wrote, also on its way out.
// What the scripts read comes once their start is known.
func TestRunTimeout(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{})
	for _, tc := range []struct {
		script, stdout string
		exit           Exit
	}{
		{"echo begun; trap 'echo asked; exit 5' TERM; read go; : >$READY; while :; do sleep 0.01; done", "begun\nasked\n", Exit{Code: 5, By: RungTerm}},
		{"echo begun; trap '' TERM; read go; : >$READY; while :; do sleep 0.01; done", "begun\n", Exit{Code: -1, Signal: "SIGKILL", By: RungKill}},
		{"echo begun; read go; : >$READY; exec sleep 1000", "begun\n", Exit{Code: -1, Signal: "SIGTERM", By: RungTerm}},
	} {
		ready := filepath.Join(t.TempDir(), "ready")
		spec := shell(t, tc.script)
		spec.Env.set("READY", []byte(ready))
		if tc.exit.By == RungTerm {
			spec.Ladder.Term = patience
		}
		limited, tooLong := context.WithCancelCause(t.Context())
		go func() { // its time is over as soon as it has begun
			if err := awaitFile(t.Context(), ready); err != nil {
				t.Error(err)
			}
			tooLong(&TimeoutError{Program: "sh", After: time.Second})
		}()
		result, err := table.run(t.Context(), limited, &spec, Bounds{Stdin: []byte("go\n")})
		late, ok := errors.AsType[*TimeoutError](err)
		if !ok || late.After != time.Second || err.Error() != `"sh" ran longer than 1s` {
			t.Errorf("%s: %v", tc.script, err)
			continue
		}
		if got := joined(result.Stdout); got != tc.stdout || result.Exit != tc.exit {
			t.Errorf("%s: %q, %+v, want %q, %+v", tc.script, got, result.Exit, tc.stdout, tc.exit)
		}
	}
	// The time is that of the bounds, for the start too.
	_, err := table.Run(t.Context(), shell(t, "sleep 1000"), Bounds{Timeout: 300 * time.Millisecond})
	if late, ok := errors.AsType[*TimeoutError](err); !ok || late.After != 300*time.Millisecond || late.Program != "sh" {
		t.Errorf("Run for more than 300 ms = %v", err)
	}
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if living := table.Living(); len(living) > 0 {
		t.Errorf("%v lives", living)
	}
}

// awaitFile waits for a file that a program makes.
func awaitFile(ctx context.Context, path string) error {
	return eventually(ctx, "the program is not ready", func() bool { _, err := os.Stat(path); return err == nil })
}

// TestRunCancel returns at once; the table ends what was begun.
func TestRunCancel(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{})
	dir := t.TempDir()
	ready, end := filepath.Join(dir, "ready"), filepath.Join(dir, "end")
	spec := shell(t, "trap '' TERM; read go; : >$READY; until [ -e $END ]; do sleep 0.01; done")
	spec.Env.set("READY", []byte(ready))
	spec.Env.set("END", []byte(end))
	spec.Ladder.Term = patience
	ctx, cancel := context.WithCancelCause(t.Context())
	changedMind := errors.New("changed their mind")
	go func() {
		if err := awaitFile(t.Context(), ready); err != nil {
			t.Error(err)
		}
		cancel(changedMind)
	}()
	result, err := table.Run(ctx, spec, Bounds{Stdin: []byte("go\n")})
	if !errors.Is(err, changedMind) || result == nil {
		t.Fatalf("Run = %v, %v", result, err)
	}
	if living := table.Living(); len(living) != 1 || living[0].Program != "sh" {
		t.Errorf("%v lives, want the shell in its ladder", living)
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if living := table.Living(); len(living) > 0 {
		t.Errorf("%v lives", living)
	}
}

// TestInheritance starts a program from a process that has more to hand down than it
// should: an open file, ignored signals, a terminal it could lose.
func TestInheritance(t *testing.T) {
	open, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	fd, err := unix.FcntlInt(open.Fd(), unix.F_DUPFD, 50)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Fatalf("descriptor %d: flags %d, %v", fd, flags, err)
	}
	table := NewTable(TableOptions{})
	script := "ls /proc/self/fd | tr '\\n' ' '; grep -E '^Sig(Blk|Ign):' /proc/self/status; grep flags /proc/self/fdinfo/0; ps -o pgid=,sid=,pid= -p $$"
	result, err := table.Run(t.Context(), shell(t, script), Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(result.Stdout.Head), "\n")
	// The fourth descriptor is ls's own.
	want := "0 1 2 3 SigBlk:\t0000000000000000"
	// 32 and 33 are the C library's own; whoever starts the tests may have left them ignored,
	// and nobody can send them by mistake.
	const librarys = 1<<31 | 1<<32
	ignored, err := strconv.ParseUint(strings.TrimPrefix(lines[1], "SigIgn:\t"), 16, 64)
	if lines[0] != want || err != nil || ignored&^librarys != 0 {
		t.Errorf("descriptors and signals %q, %v, want %q and none ignored", lines[:2], err, want)
	}
	if strings.TrimSpace(strings.TrimPrefix(lines[2], "flags:")) != "00" {
		t.Errorf("stdin has %q, want a blocking pipe for reading", lines[2])
	}
	var pgid, sid, pid int
	if _, err := fmt.Sscan(lines[3], &pgid, &sid, &pid); err != nil || pgid != pid || sid == pid {
		t.Errorf("group %d, session %d, process %d: want its own group in another's session", pgid, sid, pid)
	}
}

// TestIgnoredSignals asks for the same from a host that ignores SIGPIPE and SIGHUP.
func TestIgnoredSignals(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "trap '' PIPE HUP INT; exec "+os.Args[0]+" -test.run '^TestInheritance$'")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestUnprivileged starts a command as a user who may do little, from a process that
// others may not look into and whose binary is not there any more.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	dir := t.TempDir()
	for _, up := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(up, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "gone.test")
	if err := writeProgram(binary, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = []string{fixtureVariable + "=hardened"}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "done\n" {
		t.Errorf("%v, %s", err, out)
	}
	if _, err := os.Stat(binary); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the binary: %v", err)
	}
}

// runHardened starts a command under difficulties.
func runHardened(ctx context.Context, stdout io.Writer) int {
	if unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) != nil {
		return 8
	}
	self, err := os.Executable()
	if err != nil || os.Remove(self) != nil {
		return 9
	}
	table := NewTable(TableOptions{})
	result, err := table.Run(ctx, Spec{Path: "/bin/sh", Args: []string{"-c", "(sleep 1000 &) ; echo done"}, Dir: "/"}, Bounds{})
	if err != nil {
		fmt.Fprintln(stdout, err)
		return 10
	}
	_, _ = stdout.Write(result.Stdout.Head)
	return code(table.Close(ctx))
}
