package child

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often a supervisor looks for descendants while the program runs. One
// that leaves the group and loses its parent between two looks is not found again.
const lookEvery = 250 * time.Millisecond

// What was killed is looked for again so often, for what it may have started.
const (
	killRounds = 200
	killPause  = 10 * time.Millisecond
)

// self is this binary.
func self() (string, error) { return os.Executable() }

// leaveNothingOpen keeps what this process was started with from the program.
func leaveNothingOpen() {
	entries, _ := os.ReadDir("/dev/fd")
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= ordersFD {
			unix.CloseOnExec(fd)
		}
	}
}

func prepare() error { return nil }

// leaderAttr puts the program into its own group.
func leaderAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// reap waits for the program and looks for its descendants meanwhile: here orphans do not
// come back. The program is waited for last, so that its number and its group's are its
// own until then.
func (s *supervisor) reap() {
	found := map[stranger]struct{}{}
	s.mu.Lock()
	leader := s.leader
	s.mu.Unlock()
	kq, err := unix.Kqueue()
	if err != nil {
		kq = -1
	}
	event := unix.Kevent_t{
		Ident:  uint64(leader), //nolint:gosec // G115: a process number
		Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT,
		Fflags: unix.NOTE_EXIT,
	}
	// An error is ESRCH: the program has ended.
	_, err = unix.Kevent(kq, []unix.Kevent_t{event}, nil, nil)
	gone := err != nil
	for !gone {
		look(leader, found)
		limit := unix.NsecToTimespec(int64(lookEvery))
		n, err := unix.Kevent(kq, nil, make([]unix.Kevent_t, 1), &limit)
		gone = n > 0 || err != nil && !errors.Is(err, unix.EINTR)
		s.mu.Lock()
		if s.ending {
			_ = killFound(found)
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = unix.Kill(-leader, unix.SIGKILL)
	for range killRounds {
		look(leader, found)
		if killFound(found) == 0 {
			break
		}
		<-time.After(killPause)
	}
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(leader, &status, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	s.ended = true
	_ = s.say(recordExited, uint32(status))
}

// kill kills the program's group; reap kills the others when the program has ended.
func (s *supervisor) kill() {
	if !s.ended {
		_ = unix.Kill(-s.leader, unix.SIGKILL)
	}
}

// A stranger is a process that may have left the program's group. Its beginning tells it
// from a later one with its number.
type stranger struct {
	pid   int32
	began unix.Timeval
}

// look adds the descendants of the program and of those that were found before.
func look(leader int, found map[stranger]struct{}) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.uid", os.Getuid())
	if err != nil {
		return
	}
	ours := map[int32]bool{int32(leader): true} //nolint:gosec // G115: a process number
	for i := range all {
		if s := (stranger{all[i].Proc.P_pid, all[i].Proc.P_starttime}); hasStranger(found, s) {
			ours[s.pid] = true
		}
	}
	for again := true; again; {
		again = false
		for i := range all {
			about := &all[i]
			pid := about.Proc.P_pid
			if !ours[pid] && (ours[about.Eproc.Ppid] || int(about.Eproc.Pgid) == leader) {
				ours[pid], again = true, true
				found[stranger{pid, about.Proc.P_starttime}] = struct{}{}
			}
		}
	}
}

func hasStranger(found map[stranger]struct{}, s stranger) bool {
	_, ok := found[s]
	return ok
}

// killFound kills what was found and is still the same, and counts it.
func killFound(found map[stranger]struct{}) int {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.uid", os.Getuid())
	if err != nil {
		return 0
	}
	const zombie = 5 // SZOMB, sys/proc.h
	alive := 0
	for i := range all {
		if s := (stranger{all[i].Proc.P_pid, all[i].Proc.P_starttime}); hasStranger(found, s) && all[i].Proc.P_stat != zombie {
			_ = unix.Kill(int(s.pid), unix.SIGKILL)
			alive++
		}
	}
	return alive
}
