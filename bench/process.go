package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// A server is one running relavium-serve with a line in and out.
type server struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// serve starts the binary in a folder that holds workflows/ and home/.
func (b *bench) serve(ctx context.Context, dir string) (*server, error) {
	s, err := b.command(ctx, dir, "--log-level", "error")
	if err != nil {
		return nil, err
	}
	return s, s.cmd.Start()
}

// command is what serve starts, with these arguments besides.
func (b *bench) command(ctx context.Context, dir string, more ...string) (*server, error) {
	binary, err := filepath.Abs(b.binary)
	if err != nil {
		return nil, err
	}
	args := append([]string{"serve", "--workflows", "workflows", "--publish", "@mcp_call"}, more...)
	s := &server{cmd: exec.CommandContext(ctx, binary, args...)} //nolint:gosec // our own binary
	s.cmd.Dir = dir
	s.cmd.Env = []string{"RELAVIUM_HOME=" + filepath.Join(dir, "home"), "PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	return s, nil
}

// list opens a session and asks for the tools.
func (s *server) list() ([]byte, error) {
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`,
	} {
		if _, err := io.WriteString(s.in, line+"\n"); err != nil {
			return nil, err
		}
	}
	for {
		line, err := s.out.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if bytes.Contains(line, []byte(`"id":2`)) {
			return line, nil
		}
	}
}

func (s *server) end() error {
	return errors.Join(s.in.Close(), s.cmd.Wait())
}

// layOut makes a folder with that many copies of a workflow.
func layOut(dir, fragment string, copies int) error {
	for _, d := range []string{"workflows", "home"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	// The key of the runs that fill makes, so that the server has them to look after.
	if err := os.WriteFile(filepath.Join(dir, "home", "config.toml"), []byte("[serve]\nworkspace_id = \""+project+"\"\n[serve.limits]\nruns = 0\n"), 0o600); err != nil {
		return err
	}
	for i := range copies {
		id := fmt.Sprintf("flow-%03d", i)
		text := "schema_version: '1.0'\nworkflow:\n  id: " + id + "\n  description: One of many.\n  trigger: {type: mcp_call}\n" + fragment
		if err := os.WriteFile(filepath.Join(dir, "workflows", id+".relavium.yaml"), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

type cost struct{ ms, mb, percent float64 }

// start measures from the start of the process to the answered tools/list with a
// hundred published workflows, and the memory of the process then.
func (b *bench) start(ctx context.Context, dir string) (cost, error) {
	const published = 100
	fragment := "  inputs: [{name: bird, type: string, default: tern}]" + gated
	if err := layOut(dir, fragment, published); err != nil {
		return cost{}, err
	}
	var times []time.Duration
	var c cost
	for i := range 1 + 10*b.rounds {
		began := time.Now()
		s, err := b.serve(ctx, dir)
		if err != nil {
			return c, err
		}
		line, err := s.list()
		took := time.Since(began)
		if n := bytes.Count(line, []byte(`"name":"relavium_flow-`)); err == nil && n != published {
			err = fmt.Errorf("%d tools are listed, want %d", n, published)
		}
		if err != nil {
			return c, errors.Join(err, s.end())
		}
		c.mb = max(c.mb, resident(s.cmd.Process.Pid))
		if err := s.end(); err != nil {
			return c, err
		}
		if i > 0 { // the first one makes the store
			times = append(times, took)
		}
	}
	slices.Sort(times)
	c.ms = ms(times[len(times)/2])
	return c, nil
}

// idle measures what waiting gates add to a server that has nothing to do.
func (b *bench) idle(ctx context.Context, dir string) (cost, error) {
	if err := layOut(dir, gated, 1); err != nil {
		return cost{}, err
	}
	before, err := b.rest(ctx, dir)
	if err != nil {
		return cost{}, err
	}
	if err := b.fill(ctx, filepath.Join(dir, "home")); err != nil {
		return cost{}, err
	}
	after, err := b.rest(ctx, dir)
	return cost{mb: after.mb - before.mb, percent: after.percent - before.percent}, err
}

// rest is the memory and the idle time of a server after it has settled.
func (b *bench) rest(ctx context.Context, dir string) (c cost, err error) {
	const settle, watch = 3 * time.Second, 20 * time.Second
	s, err := b.serve(ctx, dir)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	if _, err := s.list(); err != nil {
		return c, err
	}
	if err := pause(ctx, settle); err != nil {
		return c, err
	}
	began := busy(s.cmd.Process.Pid)
	if err := pause(ctx, watch); err != nil {
		return c, err
	}
	c.percent = 100 * (busy(s.cmd.Process.Pid) - began).Seconds() / watch.Seconds()
	c.mb = resident(s.cmd.Process.Pid)
	return c, nil
}

// fill leaves runs that wait at their gates in the store of a home.
func (b *bench) fill(ctx context.Context, home string) error {
	e, w, err := openEngine(ctx, home, gated)
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	failed := make(chan error, parallel)
	for worker := range parallel {
		work.Go(func() {
			for i := worker; i < b.gates; i += parallel {
				a, err := begin(ctx, e, w)
				if err == nil {
					_, err = await(ctx, a, engine.RunPaused)
					err = errors.Join(err, a.Detach(ctx, engine.DetachHandOver))
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	work.Wait()
	close(failed)
	return errors.Join(<-failed, e.Close(context.WithoutCancel(ctx)))
}

// resident is a process's memory in MB (10^6 bytes); 0 where there is no /proc.
func resident(pid int) float64 {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(raw)
	if m == nil {
		return 0
	}
	kib, _ := strconv.ParseFloat(string(m[1]), 64)
	return kib * 1024 / 1e6
}

// busy is the processor time of a process so far, in ticks of 10 ms.
func busy(pid int) time.Duration {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
