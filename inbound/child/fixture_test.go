package child

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const (
	// fixtureVariable tells the test binary which program it is.
	fixtureVariable = "CHILD_FIXTURE"
	// nonceVariable marks all that descends from one test.
	nonceVariable = "CHILD_NONCE"
	// readyVariable names a file that a fixture makes when it is ready.
	readyVariable = "CHILD_READY"
)

// runFixture is the life of a fixture: it says "ready" on its stdout, then does what its
// name says. What it starts in turn has its mark.
func runFixture(name string, stdout *os.File) int {
	switch name {
	case "stubborn", "linger":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	terminated := make(chan os.Signal, 1)
	switch name {
	case "host":
		return runHost(background(), stdout)
	case "hardened":
		return runHardened(background(), stdout)
	case "linger":
		return forever()
	case "forker":
		return code(again("linger", nil).Start())
	case "term":
		signal.Notify(terminated, syscall.SIGTERM)
	case "doublefork":
		if again("forker", nil).Run() != nil {
			return 9
		}
	case "setsid":
		cmd := again("linger", nil)
		cmd.SysProcAttr = newSession()
		if cmd.Start() != nil {
			return 9
		}
	case "holdstdout":
		if again("linger", stdout).Start() != nil {
			return 9
		}
	}
	fmt.Fprintln(stdout, "ready")
	if path := os.Getenv(readyVariable); path != "" {
		if os.WriteFile(path, nil, 0o600) != nil {
			return 9
		}
	}
	switch name {
	case "exits":
		return 7
	case "term":
		<-terminated
		return 0
	case "stubborn", "neverreads":
		return forever()
	case "flood":
		line := []byte(strings.Repeat("flood ", 100) + "\n")
		for {
			if _, err := os.Stderr.Write(line); err != nil {
				return 8
			}
		}
	case "halfline":
		fmt.Fprint(stdout, `{"jsonrpc":"2.0","id":1,`)
	case "longline":
		chunk := bytes.Repeat([]byte("x"), 1<<20)
		for range 64 {
			if _, err := stdout.Write(chunk); err != nil {
				return 8
			}
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func code(err error) int {
	if err != nil {
		return 9
	}
	return 0
}

func forever() int {
	<-time.After(10 * time.Minute)
	return 9
}

// again is this binary as another fixture.
func again(name string, stdout io.Writer) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fixtureVariable+"="+name)
	cmd.Stdout = stdout
	return cmd
}

// runHost is a process that has the fixture named by its argument as child, and ends as
// the product does: a signal closes the table.
func runHost(ctx context.Context, stdout io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	table := NewTable(TableOptions{Ladder: shortLadder()})
	p, err := table.Start(ctx, fixtureSpec(os.Args[1], os.Getenv(nonceVariable)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	if err := awaitReady(p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	fmt.Fprintln(stdout, "ready")
	<-ctx.Done()
	return code(table.Close(context.WithoutCancel(ctx)))
}

// background is the context of a process that a fixture is.
func background() context.Context {
	return context.Background() //nolint:forbidigo // this is main
}

// patience is how long a test waits for what must come. It is for a machine under load:
// nothing waits that long.
const patience = 30 * time.Second

func shortLadder() Ladder {
	return Ladder{Stdin: 100 * time.Millisecond, Term: 100 * time.Millisecond, Kill: patience}
}

// fixtureSpec is how a fixture is started.
func fixtureSpec(name, nonce string, more ...Variable) Spec {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	env, err := NewEnvironment(Variables{
		Host: os.Environ(),
		Declared: append(more,
			Variable{fixtureVariable, []byte(name)},
			Variable{nonceVariable, []byte(nonce)}),
		Own: []Variable{{"GORACE", []byte("atexit_sleep_ms=0")}},
	})
	if err != nil {
		panic(err)
	}
	return Spec{Path: self, Dir: os.TempDir(), Env: env}
}

// awaitReady reads what a fixture says first.
func awaitReady(p *Process) error {
	said := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(p.Stdout(), said); err != nil {
		return fmt.Errorf("the fixture is not ready: %w; stderr %q", err, p.Stderr())
	}
	return nil
}
