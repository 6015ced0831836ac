package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A screen is the person's side of a pseudo-terminal.
type screen struct {
	t      *testing.T
	master *os.File
	slave  *os.File

	mu    sync.Mutex
	shown bytes.Buffer
	more  chan struct{}
}

func openScreen(t *testing.T) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminal: %v", err)
	}
	// Fd would put the file into blocking mode, in which Close does not end a Read.
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var setErr error
	if err := raw.Control(func(fd uintptr) {
		number, setErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		setErr = errors.Join(setErr, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0),
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 60}))
	}); err != nil || setErr != nil {
		t.Fatal(err, setErr)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, master: master, slave: slave, more: make(chan struct{}, 1)}
	var reading sync.WaitGroup
	reading.Go(s.read)
	t.Cleanup(func() {
		_ = master.Close() // hangs up: whoever still reads the slave sees the end
		_ = slave.Close()
		reading.Wait()
	})
	return s
}

func (s *screen) read() {
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.shown.Write(buf[:n])
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// await waits until the pattern is shown after the mark and returns its first
// group, and the mark behind it.
func (s *screen) await(pattern string, mark int) (group string, next int) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		text := s.shown.String()
		s.mu.Unlock()
		if at := re.FindStringSubmatchIndex(text[mark:]); at != nil {
			if len(at) > 2 {
				group = text[mark+at[2] : mark+at[3]]
			}
			return group, mark + at[1]
		}
		select {
		case <-s.more:
		case <-timeout.C:
			s.t.Fatalf("the terminal never showed %q after\n%q", pattern, text[mark:])
		}
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

func (s *screen) enter(line string) {
	s.t.Helper()
	if _, err := s.master.WriteString(line + "\n"); err != nil {
		s.t.Fatal(err)
	}
}

// start runs a command on the screen; what it writes to the standard output goes
// to a buffer, as into a pipe.
func (s *screen) start(ctx context.Context, project string, args ...string) (stdout *bytes.Buffer, code <-chan int) {
	stdout = new(bytes.Buffer)
	ended := make(chan int, 1)
	environ := []string{"HOME=" + filepath.Dir(project), "RELAVIUM_HOME=" + filepath.Join(filepath.Dir(project), "home"), "TERM=xterm"}
	go func() {
		ended <- run(ctx, append(args, "--cwd", project), s.slave, stdout, s.slave, environ)
	}()
	return stdout, ended
}

func gatedProject(t *testing.T) string {
	t.Helper()
	return projectWith(t, `schema_version: '1.0'
workflow:
  id: ship
  nodes:
    - {id: in, type: input}
    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Ship it?', timeout_ms: 3600000, timeout_action: reject, assignee: 'ann'}
    - {id: why, type: human_gate, gate_type: input, message_template: 'Which version?'}
    - {id: t, type: transform, transform: '[run.outputs["ask"].decision, run.outputs["ask"].comment, run.outputs["why"].payload].join(" ")'}
    - {id: out, type: output}
  edges: [{from: in, to: ask}, {from: ask, to: why}, {from: ask, to: t}, {from: why, to: t}, {from: t, to: out}]
`)
}

// A person answers two gates of a live run; a wrong id and an empty line decide nothing.
func TestRunAsksOnATerminal(t *testing.T) {
	t.Parallel()
	s := openScreen(t)
	stdout, code := s.start(t.Context(), gatedProject(t), "run", "ship")
	_, at := s.await(`gate ask of ship waits for approval`, 0)
	_, at = s.await(`\| Ship it\?`, at)
	_, at = s.await(`for: ann`, at)
	_, at = s.await(`expires: .* \(in 59m`, at)
	id, at := s.await(`gate id: ([0-9a-f-]{36})`, at)
	_, at = s.await(`approve or reject`, at)
	s.enter("perhaps")
	_, at = s.await(`approve or reject`, at)
	s.enter("approve looks fine")
	_, at = s.await(`last four characters`, at)
	s.enter("zzzz")
	_, at = s.await(`nothing is decided`, at)
	_, at = s.await(`approve or reject`, at)
	s.enter("approve looks fine")
	_, at = s.await(`last four characters`, at)
	s.enter(strings.ToUpper(tail(id)))
	id, at = s.await(`gate why of ship waits for a value(?s:.*)gate id: ([0-9a-f-]{36})`, at)
	_, at = s.await(`value: `, at)
	s.enter("1.4.0")
	_, at = s.await(`last four characters`, at)
	s.enter(tail(id))
	if got := <-code; got != exitDone {
		t.Fatalf("run = exit %d, want 0\n%s", got, s.text())
	}
	if got, want := stdout.String(), "approved looks fine 1.4.0\n"; got != want {
		t.Errorf("output = %q, want %q", got, want)
	}
	s.await(`\x1b\[\d+A\x1b\[J`, 0) // drawn in place
	s.await(`\x1b\[32m✓\x1b\[0m out \(output\) completed`, at)
}

// What happens while a question is on the screen is shown before the next one:
// every node's line comes once, in a view of lines and in one drawn in place.
func TestRunShowsWhatHappensWhileItAsks(t *testing.T) {
	t.Parallel()
	const two = `schema_version: '1.0'
workflow:
  id: ship
  nodes:
    - {id: in, type: input}
    - {id: split, type: parallel, parallel_of: [ga, gb, tc]}
    - {id: ga, type: human_gate, gate_type: approval, message_template: 'A?'}
    - {id: gb, type: human_gate, gate_type: approval, message_template: 'B?'}
    - {id: tc, type: transform, transform: '"c"'}
    - {id: ta, type: transform, transform: '"a"'}
    - {id: m, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges: [{from: in, to: split}, {from: ga, to: ta}, {from: ta, to: m}, {from: gb, to: m}, {from: tc, to: m}, {from: m, to: out}]
`
	for _, tt := range []struct {
		name string
		rows uint16
	}{{"lines", 5}, {"in place", 24}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := openScreen(t)
			if err := unix.IoctlSetWinsize(int(s.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: tt.rows, Col: 60}); err != nil {
				t.Fatal(err)
			}
			_, code := s.start(t.Context(), projectWith(t, two), "run", "ship")
			first, at := s.await(`gate (ga|gb) of ship waits`, 0)
			second := map[string]string{"ga": "gb", "gb": "ga"}[first]
			for _, gate := range []string{first, second} {
				id, next := s.await(`gate `+gate+` of ship waits(?s:.*)gate id: ([0-9a-f-]{36})`, at-len(`gate ga of ship waits`))
				_, at = s.await(`approve or reject`, next)
				s.enter("approve")
				_, at = s.await(`last four`, at)
				s.enter(tail(id))
				if gate == first {
					_, at = s.await(`gate `+second+` of ship waits`, at)
					s.await(`\x1b\[33m\?\x1b\[0m `+second+` \(human_gate\) waiting`, next)
				}
			}
			if got := <-code; got != exitDone {
				t.Fatalf("run = exit %d, want 0\n%s", got, s.text())
			}
			s.await(`out \(output\) completed`, at)
			for _, line := range []string{
				"in (input) completed", "ga (human_gate) waiting", "gb (human_gate) waiting", "ga (human_gate) completed",
				"gb (human_gate) completed", "tc (transform) completed", "ta (transform) completed", "m (merge) completed", "out (output) completed",
			} {
				if n := strings.Count(s.text(), line); n == 0 || tt.rows == 5 && n != 1 {
					t.Errorf("%q is shown %d times, want once\n%s", line, n, s.text())
				}
			}
		})
	}
}

// A signal cancels the run although it waits at a gate, and ends with 1.
func TestRunCancelledBySignal(t *testing.T) {
	t.Parallel()
	s := openScreen(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	project := gatedProject(t)
	_, code := s.start(ctx, project, "run", "ship")
	s.await(`approve or reject`, 0)
	interrupt()
	if got := <-code; got != exitFailed {
		t.Fatalf("run = exit %d, want 1\n%s", got, s.text())
	}
	s.await(`was cancelled`, 0)
	stdout, code := s.start(t.Context(), project, "runs", "list", "--state", "cancelled")
	if got := <-code; got != exitDone || !strings.Contains(stdout.String(), "\tship\tcancelled\t") {
		t.Errorf("runs list = exit %d, %q, want the cancelled run", got, stdout)
	}
}

// The end of the input leaves the gate open and ends with 3.
func TestRunLeavesTheGateOpen(t *testing.T) {
	t.Parallel()
	s := openScreen(t)
	_, code := s.start(t.Context(), gatedProject(t), "run", "ship")
	s.await(`approve or reject`, 0)
	if _, err := s.master.Write([]byte{4}); err != nil { // Ctrl-D
		t.Fatal(err)
	}
	if got := <-code; got != exitWaiting {
		t.Fatalf("run = exit %d, want 3\n%s", got, s.text())
	}
	s.await(`run --resume`, 0)
}

// A gate that is decided elsewhere takes its question off the screen.
func TestRunSeesADecisionFromElsewhere(t *testing.T) {
	t.Parallel()
	s, other := openScreen(t), openScreen(t)
	project := gatedProject(t)
	stdout, code := s.start(t.Context(), project, "run", "ship")
	id, at := s.await(`gate id: ([0-9a-f-]{36})`, 0)
	listed, ended := other.start(t.Context(), project, "gate", "list")
	if got := <-ended; got != exitDone {
		t.Fatalf("gate list = exit %d, want 0", got)
	}
	owner, _, _ := strings.Cut(listed.String(), "\t")
	_, ended = other.start(t.Context(), project, "gate", "reject", owner)
	other.await(`last four characters`, 0)
	other.enter(tail(id))
	if got := <-ended; got != exitDone {
		t.Fatalf("gate reject = exit %d, want 0\n%s", got, other.text())
	}
	_, at = s.await(`gate ask is decided: rejected by local via cli`, at)
	id, at = s.await(`gate why of ship(?s:.*)gate id: ([0-9a-f-]{36})`, at)
	s.enter("9")
	s.await(`last four`, at)
	s.enter(tail(id))
	if got := <-code; got != exitDone || stdout.String() != "rejected  9\n" {
		t.Errorf("run = exit %d, %q, want 0 and %q\n%s", got, stdout, "rejected  9\n", s.text())
	}
}

// run --resume follows a run that another process executes: both ask, whoever is
// first decides, both see the end.
func TestResumeFollows(t *testing.T) {
	t.Parallel()
	s, other := openScreen(t), openScreen(t)
	project := gatedProject(t)
	stdout, code := s.start(t.Context(), project, "run", "ship")
	owner, at := s.await(`run ([0-9a-f-]{36})`, 0)
	id, at := s.await(`gate id: ([0-9a-f-]{36})`, at)
	followed, ended := other.start(t.Context(), project, "run", "--resume", owner)
	_, seen := other.await(`gate id: `+id, 0)
	_, seen = other.await(`approve or reject`, seen)
	other.enter("reject")
	_, seen = other.await(`last four`, seen)
	other.enter(tail(id))
	_, at = s.await(`gate ask is decided: rejected by local via cli`, at)
	id, at = s.await(`gate why of ship(?s:.*)gate id: ([0-9a-f-]{36})`, at)
	_, seen = other.await(`gate why of ship`, seen)
	s.enter("9")
	s.await(`last four`, at)
	s.enter(tail(id))
	other.await(`gate why is decided: input_provided by local via cli`, seen)
	for screen, got := range map[*screen]int{s: <-code, other: <-ended} {
		if got != exitDone {
			t.Errorf("run = exit %d, want 0\n%s", got, screen.text())
		}
	}
	if stdout.String() != "rejected  9\n" || followed.String() != stdout.String() {
		t.Errorf("outputs = %q and %q, want %q twice", stdout, followed, "rejected  9\n")
	}
}
