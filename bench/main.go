// Command bench measures relavium-serve against what it is built on, in one run,
// and prints a table of ratios: a machine's speed and its noise cancel out. Every
// system does the same work in turn, round after round, and medians count. It
// needs the built binary (make build) and, for memory and idle time, Linux.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	rounds := flag.Int("rounds", 3, "how often each system has its turn")
	runs := flag.Int("runs", 300, "runs one at a time in a turn; three times as many at 32 at a time")
	gates := flag.Int("gates", 10_000, "waiting gates of the idle measurement")
	calls := flag.Int("calls", 1000, "waiting calls of the HTTP measurement")
	fake := flag.Bool("fake", false, "be the model provider that the agents of a bench ask")
	only := flag.String("only", "", "measure one part alone: agents, or replicas (beside a PostgreSQL server: scripts/postgres)")
	binary := flag.String("binary", "bin/relavium-serve", "the built binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *fake {
		if err := provide(ctx, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if *only != "" && *only != "agents" && *only != "replicas" {
		fmt.Fprintln(os.Stderr, "bench: -only is agents or replicas")
		os.Exit(2)
	}
	b := bench{only: *only, rounds: *rounds, runs: *runs, gates: *gates, calls: *calls, binary: *binary, w: os.Stdout}
	if err := b.measure(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
