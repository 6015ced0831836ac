package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A load is what calls that wait cost.
type load struct {
	mb         float64 // that all of them add to the process
	goroutines float64 // of the server, for each
}

// waiting measures what calls add that wait for a person over HTTP: memory by the
// built binary, goroutines in this process, where they can be counted.
func (b *bench) waiting(ctx context.Context, dir, era string) (c load, err error) {
	if c.mb, err = b.waitingMemory(ctx, filepath.Join(dir, "binary"), era); err != nil {
		return c, err
	}
	inside := filepath.Join(dir, "inside")
	if err := os.Mkdir(inside, 0o700); err != nil {
		return c, err
	}
	at, err := listen(ctx, inside, gated, false)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	before := goroutines()
	hang, err := b.hang(ctx, &caller{url: at.url, era: era, tool: at.tool})
	if err != nil {
		return c, err
	}
	defer hang()
	if err := pause(ctx, time.Second); err != nil {
		return c, err
	}
	c.goroutines = float64(goroutines()-before) / float64(b.calls)
	return c, nil
}

// waitingMemory is what they add to a server that had nothing to do, in MB.
func (b *bench) waitingMemory(ctx context.Context, dir, era string) (mb float64, err error) {
	const settle = 3 * time.Second
	if err := layOut(dir, gated, 1); err != nil {
		return 0, err
	}
	s, url, err := b.serveHTTP(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.interrupt()) }()
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	before := resident(s.cmd.Process.Pid)
	hang, err := b.hang(ctx, &caller{url: url, era: era, tool: "relavium_flow-000"})
	if err != nil {
		return 0, err
	}
	defer hang()
	if err := pause(ctx, settle); err != nil {
		return 0, err
	}
	return resident(s.cmd.Process.Pid) - before, nil
}

// hang makes the calls and returns once each was told that a person is waited for.
// They wait until the function that it returns is called.
func (b *bench) hang(ctx context.Context, first *caller) (func(), error) {
	first.client = newClient()
	bodies := make(chan io.Closer, b.calls)
	failed := make(chan error, parallel)
	var work sync.WaitGroup
	for worker := range parallel {
		work.Go(func() {
			for i := worker; i < b.calls; i += parallel {
				c := *first
				body, err := c.hang(ctx, i)
				if err != nil {
					failed <- err
					return
				}
				bodies <- body
			}
		})
	}
	work.Wait()
	close(failed)
	end := func() {
		for len(bodies) > 0 {
			_ = (<-bodies).Close() // it ends the call
		}
		first.client.CloseIdleConnections()
	}
	if err := <-failed; err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// hang calls and reads to where the call says that it waits, which it does until
// what hang returns is closed.
func (c *caller) hang(ctx context.Context, n int) (io.Closer, error) {
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	resp, err := c.call(ctx, fmt.Sprintf(`"progressToken":%d`, n))
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "Go on?") {
			return resp.Body, nil
		}
	}
	return nil, errors.Join(errors.New("the call ended and did not wait"), lines.Err(), resp.Body.Close())
}

// goroutines counts those of this process but for HTTP clients' connections.
func goroutines() int {
	buf := make([]byte, 64<<20)
	n := 0
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if !strings.Contains(stack, "net/http.(*persistConn)") {
			n++
		}
	}
	return n
}

// serveHTTP starts the binary with the HTTP transport and finds out where it listens.
func (b *bench) serveHTTP(ctx context.Context, dir string, env ...string) (*server, string, error) {
	s, err := b.command(ctx, dir, "--transport", "http", "--listen", "127.0.0.1:0", "--log-level", "info")
	if err != nil {
		return nil, "", err
	}
	s.cmd.Stderr = nil
	s.cmd.Env = append(s.cmd.Env, env...)
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, "", err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, "", err
	}
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		if m := regexp.MustCompile(`http://[0-9.]+:\d+/mcp\b`).FindString(lines.Text()); m != "" {
			go func() { _, _ = io.Copy(io.Discard, log) }() // it ends with the process
			return s, m, nil
		}
	}
	return nil, "", errors.Join(errors.New("the server does not say where it listens"), lines.Err(), s.end())
}

// interrupt ends a server that does not read its standard input.
func (s *server) interrupt() error {
	return errors.Join(s.cmd.Process.Signal(os.Interrupt), s.end())
}
