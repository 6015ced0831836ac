package child

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A Rung is what it took to end a process.
type Rung int

// The rungs of the ladder, in order.
const (
	RungNone  Rung = iota // It ended by itself.
	RungStdin             // Its stdin was closed.
	RungTerm              // Its group was asked to end.
	RungKill              // All its descendants were killed.
)

func (r Rung) String() string {
	switch r {
	case RungNone:
		return "by itself"
	case RungStdin:
		return "stdin"
	case RungTerm:
		return "SIGTERM"
	case RungKill:
		return "SIGKILL"
	}
	return fmt.Sprintf("Rung(%d)", int(r))
}

// An Exit is how a process ended.
type Exit struct {
	// Code is the exit code, or -1 if there is none: a signal ended the program, or
	// nobody saw its end.
	Code int
	// Signal names the signal that ended the program, such as "SIGKILL"; "" for none.
	Signal string
	// By is the last step that was taken before the end.
	By Rung
}

// An AliveError says that a process outlived its ladder: the system did not end it. It
// stays listed, and Done still closes when it ends.
type AliveError struct{ Program string }

func (e *AliveError) Error() string {
	return fmt.Sprintf("%q did not end when it was killed", e.Program)
}

// A Process is one program that was started, with all that descends from it. Whoever
// started it must Close it. It is safe for concurrent use.
type Process struct {
	program, label, owner string
	began                 time.Time
	pid                   int
	stdin, stdout, stderr *os.File
	forked                chan struct{} // tree is set, or the fork failed
	tree                  *tree
	tail                  *tail
	drained, read         chan struct{} // stderr has been read to its end; so has stdout, if that is our affair
	ladder                Ladder
	log                   *slog.Logger

	rung   atomic.Int32
	ending sync.Once
	hurry  func() // goes to the last rung
	hasten <-chan struct{}

	done   chan struct{} // everything is through
	exit   Exit          // set before done is closed
	closed chan struct{} // done, and our ends of the pipes are closed
	gaveUp chan struct{} // the ladder came to its end and the process did not
}

// Pid returns the program's number, for messages. It may not be signalled: the number may
// be another's by then.
func (p *Process) Pid() int { return p.pid }

// Label returns the label of the Spec.
func (p *Process) Label() string { return p.label }

// Stdin returns our end of the program's standard input. Write deadlines work; a write
// ends with os.ErrClosed when the process is closed.
func (p *Process) Stdin() *os.File { return p.stdin }

// Stdout returns our end of the program's standard output. Read deadlines work. It ends
// with io.EOF when the last descendant is gone, and with os.ErrClosed when a Close has
// run its course, so what the program wrote last is read before that or not at all.
func (p *Process) Stdout() *os.File { return p.stdout }

// Stderr returns the end of what the program wrote to its standard error, scrubbed: whole
// lines, at most 64 KiB. It is empty for a command.
func (p *Process) Stderr() string { return p.tail.String() }

// Done is closed when the program and every descendant have ended and were waited for,
// and stderr has been read to its end.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit tells how the process ended. It waits for Done.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Close ends the process in order: it closes the program's stdin, then asks its group to
// end, then kills every descendant, and gives each step its time. It returns when the
// process has ended and all pipes are closed, with an *AliveError when the last step was
// in vain, or with ctx's cause when ctx ends before that; the steps go on then. All
// calls, at once or later, take part in the same end.
func (p *Process) Close(ctx context.Context) error {
	p.ending.Do(func() { go p.descend() })
	select {
	case <-p.closed:
		return nil
	default:
	}
	select {
	case <-p.closed:
		return nil
	case <-p.gaveUp:
		return &AliveError{Program: p.program}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Kill takes the last step of the ladder at once and does not wait for the end. Close and
// Done do.
func (p *Process) Kill() {
	p.hurry()
	p.ending.Do(func() { go p.descend() })
}

// interrupt takes the ladder from its second step on.
func (p *Process) interrupt() {
	p.ending.Do(func() {
		p.ladder.Stdin = 0
		go p.descend()
	})
}

// descend walks down the ladder.
func (p *Process) descend() {
	<-p.forked
	p.step(RungStdin)
	_ = p.stdin.Close()
	ended := p.ladder.Stdin > 0 && !p.hurried() && p.wait(p.ladder.Stdin)
	if !ended && !p.hurried() {
		p.step(RungTerm)
		p.tree.terminate()
		ended = p.wait(p.ladder.Term)
	}
	if !ended {
		p.step(RungKill)
		p.tree.kill()
		if !p.waitFor(p.ladder.Kill) {
			// Its supervisor is not killed: that would be taken for the end of what lives.
			p.log.Error("a process did not end when it was killed", "program", p.program)
			close(p.gaveUp)
		}
	}
	<-p.done
	_ = p.stdout.SetReadDeadline(time.Now().Add(drainGrace))
	<-p.read
	_ = p.stdout.Close()
	close(p.closed)
}

func (p *Process) step(r Rung) {
	select {
	case <-p.done:
	default:
		p.rung.Store(int32(r)) //nolint:gosec // G115: one of four
	}
}

func (p *Process) hurried() bool {
	select {
	case <-p.hasten:
		return true
	default:
		return false
	}
}

// wait waits for the end, for so long or until there is a hurry.
func (p *Process) wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
	case <-p.hasten:
	}
	return false
}

// waitFor waits for the end, for so long.
func (p *Process) waitFor(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// keep reads the program's stdout into where it goes, if that is known.
func (p *Process) keep(where io.Writer) {
	defer close(p.read)
	if where != nil {
		_, _ = io.Copy(where, p.stdout)
	}
}

// drainGrace is for a descendant that outlived its killed supervisor and keeps a
// stream open: it does not keep us.
const drainGrace = time.Second

// watch waits for the process and settles what its end settles. It is the only one that
// waits.
func (p *Process) watch(ended func()) {
	exit := p.tree.wait()
	_ = p.stderr.SetReadDeadline(time.Now().Add(drainGrace))
	<-p.drained
	_ = p.stderr.Close()
	exit.By = Rung(p.rung.Load())
	p.exit = exit
	ended()
	close(p.done)
}
