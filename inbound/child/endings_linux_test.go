package child

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

var long = flag.Bool("long", false, "run scaled tests at full length")

// fixtures are the programs of the table of endings, and what it takes to end each.
func fixtures() map[string]Rung {
	return map[string]Rung{
		"eof":        RungStdin,
		"term":       RungTerm,
		"stubborn":   RungKill,
		"exits":      RungNone,
		"doublefork": RungStdin,
		"setsid":     RungStdin,
		"holdstdout": RungStdin,
		"flood":      RungTerm,
		"neverreads": RungTerm,
		"halfline":   RungStdin,
		"longline":   RungTerm,
	}
}

// endings are the ways in which the life of a child ends. Each ends what it started, and
// says what it saw that must not be.
func endings() map[string]func(context.Context, *cell) error {
	return map[string]func(context.Context, *cell) error{
		"Close":            endByClose,
		"cancel":           endByCancel,
		"SIGINT":           endBySignal(syscall.SIGINT),
		"SIGTERM":          endBySignal(syscall.SIGTERM),
		"SIGHUP":           endBySignal(syscall.SIGHUP),
		"SIGQUIT":          endBySignal(syscall.SIGQUIT),
		"SIGKILL":          endBySignal(syscall.SIGKILL),
		"spawn fails":      endBySpawn,
		"connect deadline": endByDeadline,
	}
}

// A cell is one fixture with one ending.
type cell struct {
	fixture, nonce, dir string
	rung                Rung
	supervisors         []int // of a host that ended
}

func (c *cell) table() *Table { return NewTable(TableOptions{Ladder: shortLadder()}) }

func endByClose(ctx context.Context, c *cell) error {
	table := c.table()
	spec := fixtureSpec(c.fixture, c.nonce)
	// The step that is to end it has all the time that it may need.
	switch c.rung {
	case RungNone, RungStdin:
		spec.Ladder.Stdin = patience
	case RungTerm:
		spec.Ladder.Term = patience
	case RungKill:
		spec.Ladder.Kill = patience
	}
	p, err := table.Start(ctx, spec)
	if err != nil {
		return err
	}
	if err := awaitReady(p); err != nil {
		return err
	}
	switch c.fixture {
	case "exits":
		<-p.Done()
	case "neverreads":
		_ = p.Stdin().SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := p.Stdin().Write(make([]byte, 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("a write to who does not read ended with: %w", err)
		}
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	exit := p.Exit()
	if exit.By != c.rung {
		return fmt.Errorf("it ended by %v, want %v (%+v)", exit.By, c.rung, exit)
	}
	want := Exit{By: c.rung}
	switch {
	case c.fixture == "exits":
		want.Code = 7
	case c.rung == RungKill:
		want.Code, want.Signal = -1, "SIGKILL"
	case c.rung == RungTerm && c.fixture != "term":
		want.Code, want.Signal = -1, "SIGTERM"
	}
	if exit != want {
		return fmt.Errorf("exit %+v, want %+v", exit, want)
	}
	return table.Close(ctx)
}

// endByCancel cancels a command.
func endByCancel(ctx context.Context, c *cell) error {
	table := c.table()
	ready := filepath.Join(c.dir, "ready-"+c.nonce)
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group errgroup.Group
	gaveUp := errors.New("the person gave up")
	group.Go(func() error {
		result, err := table.Run(running, fixtureSpec(c.fixture, c.nonce, Variable{readyVariable, []byte(ready)}), Bounds{Timeout: patience})
		switch {
		case result == nil && !errors.Is(err, gaveUp): // which may come before the start is known here
			return fmt.Errorf("no result, error %w", err)
		case err != nil && !errors.Is(err, gaveUp):
			return err
		case err == nil && c.rung != RungStdin && c.rung != RungNone:
			return fmt.Errorf("%+v, no error", result.Exit)
		}
		return nil
	})
	err := eventually(ctx, "the fixture is not ready", func() bool { _, err := os.Stat(ready); return err == nil })
	cancel(gaveUp)
	return errors.Join(err, group.Wait(), table.Close(ctx))
}

// endBySignal sends a signal to a host and its group, as a terminal does.
func endBySignal(sig syscall.Signal) func(context.Context, *cell) error {
	return func(ctx context.Context, c *cell) error {
		host := exec.Command(os.Args[0], c.fixture)
		host.Env = append(os.Environ(), fixtureVariable+"=host", nonceVariable+"="+c.nonce, "GORACE=atexit_sleep_ms=0")
		host.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var stderr bytes.Buffer
		host.Stderr = &stderr
		stdout, err := host.StdoutPipe()
		if err != nil {
			return err
		}
		if err := host.Start(); err != nil {
			return err
		}
		line, err := bufio.NewReader(stdout).ReadString('\n')
		c.supervisors = supervisors(c.nonce)
		err = errors.Join(err, syscall.Kill(-host.Process.Pid, sig))
		ended := host.Wait()
		if err != nil || line != "ready\n" {
			return fmt.Errorf("host said %q, %q: %w", line, stderr.String(), err)
		}
		if len(c.supervisors) == 0 && c.rung != RungNone {
			return errors.New("no supervisor was seen")
		}
		if sig != syscall.SIGKILL && ended != nil {
			return fmt.Errorf("host: %w, %q", ended, stderr.String())
		}
		return nil
	}
}

// endBySpawn has one program and starts another that is none.
func endBySpawn(ctx context.Context, c *cell) error {
	table := c.table()
	p, err := table.Start(ctx, fixtureSpec(c.fixture, c.nonce))
	if err != nil {
		return err
	}
	if err := awaitReady(p); err != nil {
		return err
	}
	spec := fixtureSpec(c.fixture, c.nonce)
	spec.Path = filepath.Join(c.dir, "program-"+c.nonce)
	if err := writeProgram(spec.Path, []byte("\x7fELF, it says"), 0o700); err != nil {
		return err
	}
	_, err = table.Start(ctx, spec)
	if start, ok := errors.AsType[*StartError](err); !ok || start.Begun || !errors.Is(err, syscall.ENOEXEC) {
		return fmt.Errorf("Start = %w, want ENOEXEC", err)
	}
	return table.Close(ctx)
}

// writeProgram writes a file that is to be executed while nothing is forked: a child that
// has not come to its own program yet would hold it open, and what is open for writing
// cannot be executed.
func writeProgram(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, mode)
}

// endByDeadline has a deadline for the start and for what comes after it.
func endByDeadline(ctx context.Context, c *cell) error {
	table := c.table()
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if p, err := table.Start(soon, fixtureSpec(c.fixture, c.nonce)); err == nil {
		p.Kill()
	} else if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	p, err := table.Start(ctx, fixtureSpec(c.fixture, c.nonce))
	if err != nil {
		return err
	}
	soon, cancel = context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	<-soon.Done()
	p.Kill()
	if err := p.Close(soon); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return table.Close(ctx)
}

// run ends one cell and looks for what is left of it.
func (c *cell) run(ctx context.Context, end func(context.Context, *cell) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if err := end(ctx, c); err != nil {
		return err
	}
	return eventually(ctx, "a process is left", func() bool {
		return len(marked(c.nonce)) == 0 && !slices.ContainsFunc(c.supervisors, isSupervisor)
	})
}

// nonces are numbers that no other test process has.
var nonces atomic.Int64

func newCell(fixture, dir string) *cell {
	return &cell{
		fixture: fixture, rung: fixtures()[fixture], dir: dir,
		nonce: fmt.Sprintf("%d-%d-%x", os.Getpid(), nonces.Add(1), rand.Uint64()),
	}
}

// TestEndings has each fixture end in each way, descendants that ignore SIGTERM among them
// (report T11).
func TestEndings(t *testing.T) {
	before := settle(t)
	t.Run("cells", func(t *testing.T) {
		for _, fixture := range slices.Sorted(maps.Keys(fixtures())) {
			for _, ending := range slices.Sorted(maps.Keys(endings())) {
				t.Run(fixture+"/"+ending, func(t *testing.T) {
					t.Parallel()
					if err := newCell(fixture, t.TempDir()).run(t.Context(), endings()[ending]); err != nil {
						t.Error(err)
					}
				})
			}
		}
	})
	nothingLeft(t, before)
}

// TestHostDiesEarly kills hosts while they start what they start.
func TestHostDiesEarly(t *testing.T) {
	t.Parallel()
	c := newCell("setsid", t.TempDir())
	var group errgroup.Group
	group.SetLimit(2)
	for n := range 24 {
		group.Go(func() error {
			host := exec.Command(os.Args[0], c.fixture)
			host.Env = append(os.Environ(), fixtureVariable+"=host", nonceVariable+"="+c.nonce)
			if err := host.Start(); err != nil {
				return err
			}
			timer := time.AfterFunc(time.Duration(n)*2*time.Millisecond, func() { _ = host.Process.Kill() })
			defer timer.Stop()
			_ = host.Wait()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := eventually(t.Context(), "a process is left", func() bool { return len(marked(c.nonce)) == 0 }); err != nil {
		t.Error(err)
	}
}

// TestCycles has many fixtures end in random ways, some at once: 500 with -long.
func TestCycles(t *testing.T) {
	cycles := 24
	if *long {
		cycles = 500
	}
	before := settle(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	names, ways := slices.Sorted(maps.Keys(fixtures())), slices.Sorted(maps.Keys(endings()))
	dir := t.TempDir()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for n := range cycles {
		fixture, ending := names[random.IntN(len(names))], ways[random.IntN(len(ways))]
		group.Go(func() error {
			if err := newCell(fixture, dir).run(ctx, endings()[ending]); err != nil {
				return fmt.Errorf("cycle %d, %s/%s: %w", n, fixture, ending, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, before)
}

// settle starts and ends a program, so that what the runtime opens once is open, and
// counts the descriptors.
func settle(t *testing.T) int {
	t.Helper()
	if err := newCell("eof", t.TempDir()).run(t.Context(), endByClose); err != nil {
		t.Fatal(err)
	}
	return descriptors(t)
}

// nothingLeft looks for zombies of ours and for descriptors.
func nothingLeft(t *testing.T, before int) {
	t.Helper()
	if zombies := children(os.Getpid()); len(zombies) > 0 {
		t.Errorf("children are left: %v", zombies)
	}
	after := 0
	if err := eventually(t.Context(), "descriptors are open", func() bool { // the runtime's own come and go
		after = descriptors(t)
		return after <= before
	}); err != nil {
		t.Errorf("%d descriptors are open, were %d", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// marked lists the processes that have the nonce in their environment.
func marked(nonce string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err == nil && bytes.Contains(environ, []byte(nonceVariable+"="+nonce)) {
			found = append(found, pid)
		}
	}
	return found
}

// supervisors lists the parents of marked processes that are supervisors.
func supervisors(nonce string) []int {
	var found []int
	for _, pid := range marked(nonce) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if parent, err := strconv.Atoi(string(fields[1])); err == nil && isSupervisor(parent) {
			found = append(found, parent)
		}
	}
	return found
}

// isSupervisor reports whether the process is a supervisor and no zombie.
func isSupervisor(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.HasPrefix(line, []byte(supervisorName))
}

// eventually waits until it is so.
func eventually(ctx context.Context, otherwise string, so func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.New(otherwise)
		}
	}
	return nil
}
