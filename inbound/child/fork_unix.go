//go:build unix

package child

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervisorName is the supervisor's argv[0], which tells it what it is.
const supervisorName = "relavium-serve: supervisor"

// errSupervisor says that a supervisor came to its end before it said whether the
// program runs.
var errSupervisor = errors.New("its supervisor ended")

// A tree is a program and its descendants, under a supervisor.
type tree struct {
	supervisor *os.Process
	lifeline   *os.File      // orders; its end is the order to kill
	records    chan record   // hello, then started or failed; closed when it was said or never will be
	exited     chan struct{} // status is set, or will never be
	status     *syscall.WaitStatus
}

// fork starts a supervisor. It knows nothing yet of what to start: [tree.ready] says it.
func fork(_ *Spec, stdio [3]*os.File) (*tree, error) {
	if os.Args[0] == supervisorName {
		return nil, ErrNoSupervisor // this process is one that does not know it
	}
	self, err := self()
	if err != nil {
		return nil, err
	}
	orders, lifeline, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reports, report, err := os.Pipe()
	if err != nil {
		closeAll([]*os.File{orders, lifeline})
		return nil, err
	}
	supervisor, err := os.StartProcess(self, []string{supervisorName}, &os.ProcAttr{
		Dir: "/",
		Env: []string{
			"GOMAXPROCS=1",
			"GOTRACEBACK=none",
			"GORACE=atexit_sleep_ms=0", // a build with the race detector would wait for a second at its end
		},
		Files: []*os.File{stdio[0], stdio[1], stdio[2], orders, report},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	closeAll([]*os.File{orders, report})
	if err != nil {
		closeAll([]*os.File{lifeline, reports})
		return nil, err
	}
	t := &tree{supervisor: supervisor, lifeline: lifeline, records: make(chan record, 2), exited: make(chan struct{})}
	go t.listen(reports)
	return t, nil
}

// listen hears the supervisor out.
func (t *tree) listen(reports *os.File) {
	defer close(t.exited)
	defer func() { _ = reports.Close() }()
	said := false
	defer func() {
		if !said {
			close(t.records)
		}
	}()
	for {
		r, err := readRecord(reports)
		if err != nil {
			return
		}
		switch {
		case r.kind == recordExited:
			status := syscall.WaitStatus(r.value)
			t.status = &status
		case !said && r.kind == recordHello:
			t.records <- r
		case !said:
			t.records <- r
			close(t.records)
			said = true
		}
	}
}

// ready says what to start and waits until it was executed. It returns the program's
// number.
func (t *tree) ready(ctx context.Context, spec *Spec, grace time.Duration) (int, error) {
	stop := context.AfterFunc(ctx, func() { _ = t.lifeline.SetWriteDeadline(time.Now()) })
	b := appendOrder(nil, spec, uint32(grace.Milliseconds())) //nolint:gosec // G115: seconds
	_, err := t.lifeline.Write(b)
	clear(b)
	stop()
	hello := false
	for {
		select {
		case r, ok := <-t.records:
			switch {
			case !ok && hello:
				return 0, errSupervisor
			case !ok:
				return 0, ErrNoSupervisor
			case r.kind == recordHello:
				hello = true
			case r.kind == recordStarted:
				return int(r.value), nil
			default:
				return 0, syscall.Errno(r.value)
			}
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if err != nil && hello {
			return 0, err
		}
	}
}

// terminate asks the program's group to end.
func (t *tree) terminate() {
	_ = t.lifeline.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = t.lifeline.Write([]byte{orderTerminate})
}

// kill has every descendant killed, also by a supervisor that was stopped.
func (t *tree) kill() {
	_ = t.lifeline.Close()
	_ = t.supervisor.Signal(unix.SIGCONT) // no effect once it was waited for
}

// wait waits for the supervisor, which ends after all others. Nobody else waits for it.
func (t *tree) wait() Exit {
	_, _ = t.supervisor.Wait()
	_ = t.lifeline.Close()
	<-t.exited
	if t.status == nil {
		return Exit{Code: -1}
	}
	if t.status.Signaled() {
		return Exit{Code: -1, Signal: unix.SignalName(t.status.Signal())}
	}
	return Exit{Code: t.status.ExitStatus()}
}
