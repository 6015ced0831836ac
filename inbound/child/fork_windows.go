package child

import (
	"context"
	"os"
	"sync"
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

	mu  sync.Mutex
	job windows.Handle // 0 when all have ended
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
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil { //nolint:gosec // G103: a structure of the call
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
			inside = windows.NTStatus(status) //nolint:gosec // G115: it has 32 bits
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
	return &tree{leader: leader, job: job}, nil
}

// ready returns the program's number: it runs already.
func (t *tree) ready(context.Context, *Spec, time.Duration) (int, error) { return t.leader.Pid, nil }

// terminate sends the program's group a Ctrl+Break, which reaches it if it has a console.
func (t *tree) terminate() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job != 0 {
		_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(t.leader.Pid)) //nolint:gosec // G115: a process number
	}
}

// kill ends all processes of the job.
func (t *tree) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job != 0 {
		_ = windows.TerminateJobObject(t.job, 1)
	}
}

// wait waits for the program, ends what it left behind and waits for that.
func (t *tree) wait() Exit {
	state, err := t.leader.Wait()
	for t.kill(); t.active() > 0; t.kill() {
		<-time.After(5 * time.Millisecond)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = windows.CloseHandle(t.job)
	t.job = 0
	if err != nil {
		return Exit{Code: -1}
	}
	return Exit{Code: state.ExitCode()}
}

// active counts the processes of the job.
func (t *tree) active() uint32 {
	var accounting struct { // JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
		totalUser, totalKernel, periodUser, periodKernel int64
		pageFaults, total, active, terminated            uint32
	}
	if windows.QueryInformationJobObject(t.job, windows.JobObjectBasicAccountingInformation,
		uintptr(unsafe.Pointer(&accounting)), uint32(unsafe.Sizeof(accounting)), nil) != nil { //nolint:gosec // G103: a structure of the call
		return 0
	}
	return accounting.active
}
