package child

import (
	"context"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Supervising reports whether this process was started as a supervisor. Here none is: a
// job object does its work.
func Supervising() bool { return false }

// Supervise returns an exit code: nothing is supervised here.
func Supervise() int { return 2 }

// A tree is a program and its descendants, in a job that the system ends when we do.
type tree struct {
	leader *os.Process
	job    windows.Handle
	ended  chan struct{} // the leader was waited for, and the job is closed
}

// fork starts the program suspended, puts it into a job and lets it run, so that nothing
// of it is ever outside of the job.
func fork(spec *Spec, stdio [3]*os.File) (*tree, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, err
	}
	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		_ = windows.CloseHandle(job)
		return nil, err
	}
	env := make([]string, 0, len(spec.Env.entries))
	for _, entry := range spec.Env.entries {
		env = append(env, string(entry))
	}
	leader, err := os.StartProcess(spec.Path, append([]string{spec.Path}, spec.Args...), &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   env,
		Files: stdio[:],
		Sys: &syscall.SysProcAttr{
			CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW,
		},
	})
	if err != nil {
		_ = windows.CloseHandle(job)
		return nil, err
	}
	var inside error
	if err := leader.WithHandle(func(handle uintptr) {
		if inside = windows.AssignProcessToJobObject(job, windows.Handle(handle)); inside != nil {
			return
		}
		resume := windows.NewLazySystemDLL("ntdll.dll").NewProc("NtResumeProcess")
		if inside = resume.Find(); inside != nil {
			return
		}
		if status, _, _ := resume.Call(handle); status != 0 {
			inside = windows.NTStatus(status)
		}
	}); err != nil {
		inside = err
	}
	if inside != nil {
		_ = leader.Kill()
		_, _ = leader.Wait()
		_ = windows.CloseHandle(job)
		return nil, inside
	}
	return &tree{leader: leader, job: job, ended: make(chan struct{})}, nil
}

// ready returns the program's number: it runs already.
func (t *tree) ready(context.Context, *Spec, time.Duration) (int, error) { return t.leader.Pid, nil }

// terminate sends the program's group a Ctrl+Break, which reaches it if it has a console.
func (t *tree) terminate() {
	select {
	case <-t.ended:
	default:
		_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(t.leader.Pid)) //nolint:gosec // G115: a process number
	}
}

// kill ends all processes of the job.
func (t *tree) kill() {
	select {
	case <-t.ended:
	default:
		_ = windows.TerminateJobObject(t.job, 1)
	}
}

// abandon is for a job that does not end.
func (t *tree) abandon() { _ = t.leader.Kill() }

// wait waits for the program and ends what it left behind.
func (t *tree) wait() Exit {
	state, err := t.leader.Wait()
	_ = windows.TerminateJobObject(t.job, 1)
	close(t.ended)
	_ = windows.CloseHandle(t.job)
	if err != nil {
		return Exit{Code: -1}
	}
	return Exit{Code: state.ExitCode()}
}
