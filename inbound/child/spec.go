package child

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	maxArgs      = 4096
	maxArgsBytes = 1 << 20
)

// A Spec is what to start.
type Spec struct {
	// Path is the absolute path of the program, as it was resolved and consented to. It
	// is executed as it stands: nothing is looked up, no shell is asked.
	Path string
	// Args are the arguments after the program's name.
	Args []string
	// Env is the whole environment. A start takes it over and clears it, whether it
	// succeeds or not, so each start needs one of its own.
	Env Environment
	// Dir is the absolute path of the folder in which the program starts.
	Dir string
	// Label groups processes for [Table.CloseLabel]: the digest of a declaration.
	Label string
	// Owner is who the process counts for, see [TableOptions]; "" counts for nobody.
	Owner string
	// Log takes the lines of a server's stderr, at level Debug, and what befalls the
	// process. Nil discards.
	Log *slog.Logger
	// Scrub wraps what becomes of a server's stderr, so that no secret is kept or
	// logged. It is closed when the stream ends. Nil changes nothing. What a command
	// writes comes back as it was.
	Scrub func(io.Writer) io.WriteCloser
	// Recheck is asked right before the fork, after any wait for a place; its error is
	// the start's. Nothing is owed then.
	Recheck func() error
	// Ladder overrides the table's where it has a step.
	Ladder Ladder
}

// A Ladder is how long each step of an orderly end may take.
type Ladder struct {
	// Stdin is the time after the program's stdin was closed.
	Stdin time.Duration
	// Term is the time after SIGTERM to the program's group.
	Term time.Duration
	// Kill is the time after SIGKILL to all descendants.
	Kill time.Duration
}

func (l Ladder) or(other Ladder) Ladder {
	if l.Stdin <= 0 {
		l.Stdin = other.Stdin
	}
	if l.Term <= 0 {
		l.Term = other.Term
	}
	if l.Kill <= 0 {
		l.Kill = other.Kill
	}
	return l
}

// A StartError says why a program did not start. It holds no path, no argument and no
// value.
type StartError struct {
	// Program is the last element of the path.
	Program string
	// Reason is one phrase.
	Reason string
	// Begun is set if the program may have run: the start was given up after the fork.
	Begun bool
	// Err is the cause where there is one: the end of a context, what Recheck said, an
	// error number.
	Err error
}

func (e *StartError) Error() string { return fmt.Sprintf("start %q: %s", e.Program, e.Reason) }

// Unwrap returns the cause, or nil.
func (e *StartError) Unwrap() error { return e.Err }

// ErrNoSupervisor says that this binary does not call [Supervise], so that nothing can be
// started safely.
var ErrNoSupervisor = errors.New("no supervisor: main does not call child.Supervise first")

func (s *Spec) refused(reason string, err error) *StartError {
	if reason == "" {
		reason = plain(err)
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	name := filepath.Base(s.Path)
	return &StartError{Program: name[:min(len(name), 128)], Reason: reason, Err: err}
}

// plain is what an error says without the paths that it may hold.
func plain(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err.Error()
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		return call.Err.Error()
	}
	return err.Error()
}

// check refuses what must not reach the fork.
func (s *Spec) check() error {
	switch {
	case !filepath.IsAbs(s.Path) || strings.ContainsRune(s.Path, 0):
		return s.refused("its path is not absolute", nil)
	case !filepath.IsAbs(s.Dir) || strings.ContainsRune(s.Dir, 0):
		return s.refused("its folder is not absolute", nil)
	case len(s.Args) > maxArgs:
		return s.refused(fmt.Sprintf("over %d arguments", maxArgs), nil)
	case runtime.GOOS == "windows" && batchUnsafe(s.Path, s.Args):
		return s.refused("an argument to a batch file holds a character that cmd.exe obeys", nil)
	}
	total := 0
	for _, arg := range s.Args {
		if strings.ContainsRune(arg, 0) {
			return s.refused("an argument holds a NUL", nil)
		}
		if total += len(arg) + 1; total > maxArgsBytes {
			return s.refused(fmt.Sprintf("its arguments are over %d bytes", maxArgsBytes), nil)
		}
	}
	if about, err := os.Stat(s.Dir); err != nil || !about.IsDir() {
		return s.refused("its folder is not there", err)
	}
	about, err := os.Stat(s.Path)
	switch {
	case err != nil:
		return s.refused("", err)
	case !about.Mode().IsRegular():
		return s.refused("not a regular file", nil)
	case runtime.GOOS != "windows" && about.Mode().Perm()&0o111 == 0:
		return s.refused("may not be executed", syscall.EACCES)
	}
	return nil
}

// batchUnsafe reports whether a batch file would be given arguments in which cmd.exe sees
// more than text.
func batchUnsafe(path string, args []string) bool {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".bat", ".cmd":
		for _, arg := range args {
			if strings.ContainsAny(arg, "\"&|<>^%!()\r\n") {
				return true
			}
		}
	}
	return false
}
