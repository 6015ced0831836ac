package child

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is this binary, also if the file was replaced since.
func self() (string, error) { return "/proc/self/exe", nil }

// leaveNothingOpen keeps what this process was started with from the program.
func leaveNothingOpen() {
	if unix.CloseRange(ordersFD, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, _ := os.ReadDir("/proc/self/fd") // before Linux 5.11
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= ordersFD {
			unix.CloseOnExec(fd)
		}
	}
}

// prepare makes this process the one that orphans of its descendants come back to, and
// closes its memory to others.
func prepare() error {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// leaderAttr puts the program into its own group and ties it to this process.
func leaderAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for all descendants: orphans while the program runs, everything once it has
// ended. A process that was not waited for keeps its number, and only this loop waits.
func (s *supervisor) reap() {
	for {
		var about unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &about, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return // ECHILD: nobody is left
		}
		s.mu.Lock()
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if pid == s.leader && !s.ended {
				s.ended, s.ending = true, true
				_ = s.say(recordExited, uint32(status))
			}
		}
		if s.ending {
			s.kill()
		}
		s.mu.Unlock()
	}
}

// kill kills our children and the groups that they are in. Theirs become ours when they
// die, and are killed next: reap sees each of these deaths. No other process can be hit:
// a child of ours keeps its number until we wait for it, and all groups of this session
// and of those below are made of our descendants.
func (s *supervisor) kill() {
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); errors.Is(err, unix.ECHILD) {
		return
	}
	own := os.Getpid()
	for _, child := range children(own) {
		if child.group != own {
			_ = unix.Kill(-child.group, unix.SIGKILL)
		}
		_ = unix.Kill(child.pid, unix.SIGKILL)
	}
}

type relative struct{ pid, group int }

// children lists the processes whose parent is the one given.
func children(parent int) []relative {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	names, _ := proc.Readdirnames(-1)
	_ = proc.Close()
	var all []relative
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// proc(5): pid (comm) state ppid pgrp ...; the name may hold anything.
		stat, err := os.ReadFile("/proc/" + name + "/stat") //nolint:gosec // G304: name is a number
		if err != nil {
			continue
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 3 {
			continue
		}
		if ppid, err := strconv.Atoi(string(fields[1])); err != nil || ppid != parent {
			continue
		}
		group, err := strconv.Atoi(string(fields[2]))
		if err != nil || group <= 1 {
			group = parent
		}
		all = append(all, relative{pid: pid, group: group})
	}
	return all
}
