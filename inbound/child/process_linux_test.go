package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// started is a fixture that is ready. The test's end closes it.
func started(t *testing.T, table *Table, spec Spec) *Process {
	t.Helper()
	p, err := table.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := awaitReady(p); err != nil {
		t.Fatal(err)
	}
	return p
}

func shortTable() *Table { return NewTable(TableOptions{Ladder: shortLadder()}) }

// TestCloseIsOneJoin closes from many sides: all wait for the same end.
func TestCloseIsOneJoin(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{Ladder: Ladder{Stdin: patience, Term: patience, Kill: patience}})
	p := started(t, table, fixtureSpec("stubborn", "n"))
	now, cancel := context.WithCancelCause(t.Context())
	inAHurry := errors.New("in a hurry")
	cancel(inAHurry)
	if err := p.Close(now); !errors.Is(err, inAHurry) {
		t.Errorf("Close with a context that has ended = %v", err)
	}
	select {
	case <-p.Done():
		t.Error("it ended before its ladder did")
	default:
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := p.Close(t.Context()); err != nil {
				t.Errorf("Close = %v", err)
			}
			select {
			case <-p.Done():
			default:
				t.Error("Close returned before Done")
			}
			if _, err := p.Stdout().Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
				t.Errorf("stdout after Close: %v", err)
			}
		})
	}
	p.Kill()
	wg.Wait()
	if exit := p.Exit(); exit != (Exit{Code: -1, Signal: "SIGKILL", By: RungKill}) {
		t.Errorf("Exit() = %+v", exit)
	}
	if err := p.Close(now); err != nil {
		t.Errorf("Close after the end, with a context that has ended = %v", err)
	}
	p.Kill()
}

// TestKill takes the last step at once, also in the middle of the ladder.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		table := NewTable(TableOptions{Ladder: Ladder{Stdin: patience, Term: patience, Kill: patience}})
		p := started(t, table, fixtureSpec("term", "n"))
		if begun {
			now, cancel := context.WithCancel(t.Context())
			cancel()
			_ = p.Close(now)
		}
		p.Kill()
		<-p.Done()
		if exit := p.Exit(); exit != (Exit{Code: -1, Signal: "SIGKILL", By: RungKill}) {
			t.Errorf("Exit() = %+v", exit)
		}
	}
}

// TestLastWords reads what a program wrote before it ended by itself, and after its stdin
// was closed.
func TestLastWords(t *testing.T) {
	t.Parallel()
	table := shortTable()
	for _, script := range []string{"echo ready; echo last; exit 1", "echo ready; cat; echo last"} {
		p := started(t, table, shell(t, script))
		if strings.Contains(script, "cat") {
			_ = p.Stdin().Close()
		}
		<-p.Done()
		if said, err := io.ReadAll(p.Stdout()); err != nil || string(said) != "last\n" {
			t.Errorf("%s: %q, %v", script, said, err)
		}
	}
}

// TestStderr keeps the end of a flood, scrubbed, and logs some of its lines.
func TestStderr(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	spec := shell(t, `echo ready
		i=0; while [ $i -lt 3000 ]; do echo "line $i of a canary that should not be anywhere" >&2; i=$((i+1)); done
		printf '\033[31mred\033[0m and \0342\0200\0256bidi\n%5000s\n' x >&2; printf 'no end' >&2`)
	spec.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	closed := false
	spec.Scrub = func(w io.Writer) io.WriteCloser { return &replacer{w: w, closed: &closed} }
	p := started(t, shortTable(), spec)
	<-p.Done()
	kept := p.Stderr()
	if len(kept) > maxTailBytes || len(kept) < maxTailBytes-100 {
		t.Errorf("%d bytes are kept", len(kept))
	}
	if !strings.HasPrefix(kept, "line ") || !strings.HasSuffix(kept, "x\nno end") {
		t.Errorf("kept %.30q … %q", kept, kept[len(kept)-20:])
	}
	logged := log.String()
	if strings.Contains(kept+logged, "canary") || !strings.Contains(kept, "******") || !strings.Contains(logged, "******") {
		t.Error("the scrubber was not asked")
	}
	if !closed {
		t.Error("the scrubber was not closed")
	}
	if n := strings.Count(logged, "\n"); n < linesAtOnce || n > 1500 {
		t.Errorf("%d lines are logged", n)
	}
	if !strings.Contains(logged, "program=sh line=\"line 0 of") {
		t.Errorf("log %.300s", logged)
	}
}

// replacer is a scrubber for one word that comes whole.
type replacer struct {
	w      io.Writer
	rest   []byte
	closed *bool
}

func (r *replacer) Write(p []byte) (int, error) {
	r.rest = append(r.rest, p...)
	if end := bytes.LastIndexByte(r.rest, '\n'); end >= 0 {
		_, _ = r.w.Write(bytes.ReplaceAll(r.rest[:end+1], []byte("canary"), []byte("******")))
		r.rest = r.rest[end+1:]
	}
	return len(p), nil
}

func (r *replacer) Close() error {
	*r.closed = true
	_, _ = r.w.Write(r.rest)
	return r.w.(io.Closer).Close()
}

func TestLineLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	plain := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return a
	}}))
	lines := newLineLog(plain)
	for _, part := range []string{"one\r\nt", "w", "o\n\n\x1b[31mred\x1b[0m\u202e\n", strings.Repeat("y", maxLineBytes+1), "z\n", "end"} {
		if n, err := lines.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	lines.emit()
	lines.emit()
	want := "line=one\nline=two\nline=red\nline=" + strings.Repeat("y", maxLineBytes) + " cut=true\nline=end\n"
	if got := log.String(); got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	log.Reset()
	for i := range linesAtOnce + 100 {
		fmt.Fprintln(lines, i)
	}
	if n := strings.Count(log.String(), "\n"); n < linesAtOnce-5 || n > linesAtOnce+90 {
		t.Errorf("%d lines of %d are logged", n, linesAtOnce+100)
	}
	if lines.withheld == 0 {
		t.Error("none is withheld")
	}
}

// TestSupervisorKilled kills the supervisor: the program dies with it, the end is known
// and nothing of ours hangs on a stream that somebody still holds.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	cell := newCell("eof", t.TempDir())
	p := started(t, shortTable(), fixtureSpec(cell.fixture, cell.nonce))
	if err := p.tree.supervisor.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if exit := p.Exit(); exit != (Exit{Code: -1}) {
		t.Errorf("Exit() = %+v", exit)
	}
	if err := eventually(t.Context(), "the program lives", func() bool { return len(marked(cell.nonce)) == 0 }); err != nil {
		t.Error(err)
	}
}

// TestSupervisorAsked sends SIGTERM to the supervisor, as a service's stop does: the
// program is asked to end, and killed if it does not.
func TestSupervisorAsked(t *testing.T) {
	t.Parallel()
	for fixture, want := range map[string]Exit{
		"term":     {Code: 0},
		"stubborn": {Code: -1, Signal: "SIGKILL"},
	} {
		spec := fixtureSpec(fixture, "n")
		if want.Code == 0 {
			spec.Ladder.Term = patience
		}
		p := started(t, shortTable(), spec)
		for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTERM} {
			if err := p.tree.supervisor.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
		<-p.Done()
		if exit := p.Exit(); exit != want {
			t.Errorf("%s: Exit() = %+v, want %+v", fixture, exit, want)
		}
	}
}

// TestStopped ends a program whose group and whose supervisor stand still.
func TestStopped(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{Ladder: Ladder{Stdin: 50 * time.Millisecond, Term: 50 * time.Millisecond, Kill: patience}})
	cell := newCell("eof", t.TempDir())
	p := started(t, table, fixtureSpec(cell.fixture, cell.nonce))
	for _, pid := range marked(cell.nonce) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.tree.supervisor.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := eventually(t.Context(), "the program lives", func() bool { return len(marked(cell.nonce)) == 0 }); err != nil {
		t.Error(err)
	}
}

// TestForkStorm ends a program that forks as fast as it can, in its own group and in
// others.
func TestForkStorm(t *testing.T) {
	t.Parallel()
	cell := newCell("", t.TempDir())
	spec := shell(t, `trap '' TERM
		echo ready
		while :; do (sleep 30 & setsid sh -c 'sleep 30 & sleep 30' & sleep 0.002) & sleep 0.01; done 2>/dev/null`)
	spec.Env.set(nonceVariable, []byte(cell.nonce))
	p := started(t, shortTable(), spec)
	if err := eventually(t.Context(), "it does not fork", func() bool { return len(marked(cell.nonce)) > 20 }); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Errorf("Close = %v", err)
	}
	if left := marked(cell.nonce); len(left) > 0 {
		t.Errorf("%d are left", len(left))
	}
}
