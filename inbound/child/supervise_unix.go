//go:build unix

package child

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supervising reports whether this process was started as a supervisor. The first thing
// that main does is to ask, and to leave by [Supervise] if so.
func Supervising() bool { return len(os.Args) > 0 && os.Args[0] == supervisorName }

// The descriptors of a supervisor beside the program's three.
const (
	ordersFD = 3
	reportFD = 4
)

// A supervisor watches over one program.
type supervisor struct {
	grace  time.Duration
	report *os.File

	mu     sync.Mutex
	leader int  // the program: the leader of its group
	ended  bool // it was waited for: its number may be another's
	ending bool // nothing may live on
}

// Supervise is the life of a supervisor. It starts the program that the host orders,
// hands it the standard streams, and ends when the program and all its descendants have
// ended: because the program did, because the host ordered it, or because the host is no
// more. The result is the process's exit code.
func Supervise() int {
	// The program's death signal follows the thread that started it (golang/go#27505).
	runtime.LockOSThread()
	leaveNothingOpen()
	// All that is caught here, also what the host ignored, is at its default in the
	// program.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	if err := prepare(); err != nil {
		return 2
	}
	orders := os.NewFile(ordersFD, "orders")
	s := &supervisor{report: os.NewFile(reportFD, "report")}
	if s.say(recordHello, 0) != nil {
		return 2
	}
	o, err := readOrder(orders)
	if err != nil {
		return 2
	}
	s.grace = time.Duration(o.grace) * time.Millisecond
	if err := s.start(o); err != nil {
		number := syscall.EINVAL
		_ = errors.As(err, &number)
		_ = s.say(recordFailed, uint32(number))
		return 127
	}
	go s.obey(orders)
	go s.heed(signals)
	s.reap()
	return 0
}

func (s *supervisor) start(o *order) error {
	leader, err := os.StartProcess(o.path, append([]string{o.path}, o.args...), &os.ProcAttr{
		Dir:   o.dir,
		Env:   o.env,
		Files: []*os.File{os.Stdin, os.NewFile(1, "stdout"), os.Stderr},
		Sys:   leaderAttr(),
	})
	// The streams are the program's alone: their end is its end. Our stderr stays, for
	// a crash of ours.
	_ = unix.Close(0)
	_ = unix.Close(1)
	if err != nil {
		return err
	}
	s.leader = leader.Pid
	_ = leader.Release()
	return s.say(recordStarted, uint32(s.leader)) //nolint:gosec // G115: a process number
}

func (s *supervisor) say(kind byte, value uint32) error {
	return writeRecord(s.report, record{kind: kind, value: value})
}

// obey follows the host until it is no more.
func (s *supervisor) obey(orders *os.File) {
	var b [1]byte
	for {
		n, err := orders.Read(b[:])
		if n == 1 && b[0] == orderTerminate {
			s.terminate()
		}
		if err != nil {
			s.end()
			return
		}
	}
}

// heed takes SIGTERM as a wish to end: the program is asked, and killed if it stays. A
// terminal's signals and a hang-up are the host's affair.
func (s *supervisor) heed(signals <-chan os.Signal) {
	for sig := range signals {
		if sig == unix.SIGTERM {
			s.terminate()
			time.AfterFunc(s.grace, s.end)
		}
	}
}

// terminate asks the program's group to end.
func (s *supervisor) terminate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		_ = unix.Kill(-s.leader, unix.SIGTERM)
	}
}

// end kills whatever lives; reap goes on with it.
func (s *supervisor) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	s.kill()
}
