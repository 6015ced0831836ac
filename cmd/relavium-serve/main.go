package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/secrets"
)

func main() {
	_ = secrets.Harden() // what a system does not have is not missed
	if child.Supervising() {
		os.Exit(child.Supervise())
	}
	os.Exit(begin())
}

// begin runs the command line of the process. The first signal asks for an
// orderly end, the second ends the process at once.
func begin() int {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	context.AfterFunc(ctx, stop)
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())
}
