package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// parallel is how many runs are under way at a time in a throughput turn.
const parallel = 32

// warm is how many units are done before a turn counts.
const warm = 20

// A bench is one invocation.
type bench struct {
	only   string // agents or replicas; "" means all
	rounds int
	runs   int
	gates  int
	calls  int
	binary string
	w      io.Writer
}

// A system does units of work.
type system struct {
	name string
	// open makes the system in an empty folder.
	open func(ctx context.Context, dir string) (*opened, error)
	// recorded counts a unit to where its end is recorded, not only reported.
	recorded bool
	// serial leaves out the turn with many at a time.
	serial bool
}

// An opened system.
type opened struct {
	once  func(ctx context.Context) error // one unit; called from many goroutines
	close func() error
	// pending is how many units are not recorded yet as ended; nil means none ever.
	pending func(ctx context.Context) (int, error)
}

// settle waits until the end of every unit is recorded, looking that often.
func (o *opened) settle(ctx context.Context, every time.Duration) error {
	for o.pending != nil {
		n, err := o.pending(ctx)
		if err != nil || n == 0 {
			return err
		}
		if every == 0 {
			runtime.Gosched()
			continue
		}
		if err := pause(ctx, every); err != nil {
			return err
		}
	}
	return nil
}

// A result is what the turns of one system came to.
type result struct {
	p50, p99 time.Duration // one at a time
	alone    float64       // units a second one at a time
	many     time.Duration // p50 at 32 at a time
	rate     float64       // units a second at 32 at a time
}

// A row is one thing that was measured; a limit of 0 means that it has no goal.
type row struct {
	what, unit string
	got, limit float64
	atLeast    bool
}

func (b *bench) measure(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "relavium-bench-")
	if err != nil {
		return err
	}
	err = b.all(ctx, dir)
	return errors.Join(err, os.RemoveAll(dir))
}

func (b *bench) all(ctx context.Context, dir string) error {
	if b.only != "" {
		measure := b.agentRows
		if b.only == "replicas" {
			measure = b.replicaRows
		}
		rows, err := measure(ctx, filepath.Join(dir, b.only))
		if err != nil {
			return err
		}
		return b.report(rows)
	}
	journal3, journal20 := journal(3), journal(20)
	systems := []system{journal3, bare(), pure(), transform(), journal20, bareSteps(), effects(), fullCommit(), gate(warm + b.runs)}
	eras := []string{session, stateless}
	for _, era := range eras {
		systems = append(systems, bareHTTP(era), pureHTTP(era, false), pureHTTP(era, true))
	}
	results, err := b.turns(ctx, dir, systems)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(b.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(out, "\tp50 ms\tp99 ms\tper s\tp50 ms at %d\tper s at %d\t\n", parallel, parallel)
	for i := range systems {
		r := results[i]
		many, rate := "-", "-"
		if r.rate > 0 {
			many, rate = fmt.Sprintf("%.2f", ms(r.many)), fmt.Sprintf("%.0f", r.rate)
		}
		_, _ = fmt.Fprintf(out, "%s\t%.2f\t%.2f\t%.0f\t%s\t%s\t\n", systems[i].name, ms(r.p50), ms(r.p99), r.alone, many, rate)
	}
	if err := out.Flush(); err != nil {
		return err
	}

	start, err := b.start(ctx, filepath.Join(dir, "start"))
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	idle, err := b.idle(ctx, filepath.Join(dir, "idle"))
	if err != nil {
		return fmt.Errorf("idle: %w", err)
	}
	const (
		iJournal3 = iota
		iBare
		iPure
		iTransform
		iJournal20
		iSteps
		iEffects
		iFull
		iGate
		iHTTP // for each era a bare tool, ours, and ours with access control
	)
	ratio := func(x, y int) float64 { return float64(results[x].p50) / float64(results[y].p50) }
	rows := []row{
		{"3 nodes without an expression against a bare run, p50", "x", ratio(iPure, iBare), 2, false},
		{"the same, throughput", "x", results[iPure].rate / results[iBare].rate, 0.5, true},
		{"20 nodes with 16 recorded effects against a journal, p50", "x", ratio(iEffects, iJournal20), 5, false},
		{"the same against DBOS's own sixteen steps, p50", "x", ratio(iEffects, iSteps), 2, false},
		{
			"answer to next node against a FULL commit and a bare run, p50", "x",
			float64(results[iGate].p50) / float64(results[iFull].p50+results[iBare].p50), 3, false,
		},
		{"start to answered tools/list, 100 workflows, p50", "ms", start.ms, 150, false},
		{"memory of that process", "MB", start.mb, 60, false},
		{fmt.Sprintf("memory that %d waiting gates add", b.gates), "MB", idle.mb, 50, false},
		{"idle time that they add", "% of a core", idle.percent, 0.5, false},
	}
	for i, era := range eras {
		bare, ours, known := results[iHTTP+3*i], results[iHTTP+3*i+1], results[iHTTP+3*i+2]
		held, err := b.waiting(ctx, filepath.Join(dir, "waiting-"+era), era)
		if err != nil {
			return fmt.Errorf("waiting, %s: %w", era, err)
		}
		rows = append(rows,
			row{what: "3 nodes over HTTP " + era + " against an mcp-go tool, p50", unit: "x", got: float64(ours.p50) / float64(bare.p50)},
			row{what: "the same, throughput", unit: "x", got: ours.alone / bare.alone},
			row{what: fmt.Sprintf("the same, %d callers, p50", parallel), unit: "x", got: float64(ours.many) / float64(bare.many)},
			row{what: "the same, throughput", unit: "x", got: ours.rate / bare.rate},
			row{what: "the same workflow with access control against without, p50", unit: "x", got: float64(known.p50) / float64(ours.p50)},
			row{what: fmt.Sprintf("the same, %d callers, throughput", parallel), unit: "x", got: known.rate / ours.rate},
			row{what: fmt.Sprintf("memory that %d waiting calls add", b.calls), unit: "MB", got: held.mb},
			row{what: "for each of them in the server", unit: "goroutines", got: held.goroutines},
		)
	}
	more, err := b.agentRows(ctx, filepath.Join(dir, "agents"))
	if err != nil {
		return err
	}
	shared, err := b.replicaRows(ctx, filepath.Join(dir, "replicas"))
	if err != nil {
		return fmt.Errorf("replicas: %w", err)
	}
	return b.report(slices.Concat(rows, more, shared))
}

// agentRows measures agents.
func (b *bench) agentRows(ctx context.Context, dir string) ([]row, error) {
	c, err := b.agents(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("agents: %w", err)
	}
	return []row{
		{"model turn by the bare SDK, p50", "ms", c.raw, 0, false},
		{"what a turn of an agent adds to that, its tool call included, p50", "ms", c.added, 2, false},
		{fmt.Sprintf("last token of %d runs at %d tokens a second after it is due, p99", streams, tokenRate), "ms", c.late, 500, false},
		{"the same, bare SDK", "ms", c.lateBy, 0, false},
		{"processor time of a streaming run", "% of a core", c.busy, 0, false},
		{"the same, bare SDK", "% of a core", c.busyBy, 0, false},
		{"memory of a streaming run", "kB", c.kb, 0, false},
		{"the same, bare SDK", "kB", c.kbBy, 0, false},
	}, nil
}

// report prints what was measured against the goals.
func (b *bench) report(rows []row) error {
	_, _ = fmt.Fprintln(b.w)
	out := tabwriter.NewWriter(b.w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(out, "TARGET\tREACHED\tGOAL\t")
	for _, r := range rows {
		if r.limit == 0 {
			_, _ = fmt.Fprintf(out, "%s\t%.2f %s\t-\t\n", r.what, r.got, r.unit)
			continue
		}
		word, met := "at most", r.got <= r.limit
		if r.atLeast {
			word, met = "at least", r.got >= r.limit
		}
		mark := "met"
		if !met {
			mark = "MISSED"
		}
		_, _ = fmt.Fprintf(out, "%s\t%.2f %s\t%s %g\t%s\n", r.what, r.got, r.unit, word, r.limit, mark)
	}
	return out.Flush()
}

// turns lets every system have its turn, round after round, each in a folder of
// its own, and returns the medians of the rounds.
func (b *bench) turns(ctx context.Context, dir string, systems []system) ([]result, error) {
	rounds := make([][]result, len(systems))
	for round := range b.rounds {
		for i := range systems {
			place := filepath.Join(dir, fmt.Sprintf("%d-%d", round, i))
			if err := os.Mkdir(place, 0o700); err != nil {
				return nil, err
			}
			r, err := b.turn(ctx, place, &systems[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", systems[i].name, err)
			}
			rounds[i] = append(rounds[i], r)
		}
	}
	out := make([]result, len(systems))
	for i, rs := range rounds {
		out[i] = result{
			p50:   middle(rs, func(r result) time.Duration { return r.p50 }),
			p99:   middle(rs, func(r result) time.Duration { return r.p99 }),
			alone: middle(rs, func(r result) float64 { return r.alone }),
			many:  middle(rs, func(r result) time.Duration { return r.many }),
			rate:  middle(rs, func(r result) float64 { return r.rate }),
		}
	}
	return out, nil
}

func (b *bench) turn(ctx context.Context, dir string, s *system) (r result, err error) {
	o, err := s.open(ctx, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	unit := func() error {
		if err := o.once(ctx); err != nil || !s.recorded {
			return err
		}
		return o.settle(ctx, 0)
	}
	for range warm {
		if err := unit(); err != nil {
			return r, err
		}
	}
	times := make([]time.Duration, 0, b.runs)
	for range b.runs {
		began := time.Now()
		if err := unit(); err != nil {
			return r, err
		}
		times = append(times, time.Since(began))
	}
	r.alone = float64(len(times)) / total(times).Seconds()
	slices.Sort(times)
	r.p50, r.p99 = times[len(times)/2], times[len(times)*99/100]
	if s.serial {
		return r, nil
	}
	var left atomic.Int64
	left.Store(int64(3 * b.runs))
	times = make([]time.Duration, 3*b.runs)
	failed := make(chan error, parallel)
	var work sync.WaitGroup
	began := time.Now()
	for range parallel {
		work.Go(func() {
			for {
				i := left.Add(-1)
				if i < 0 {
					return
				}
				asked := time.Now()
				if err := o.once(ctx); err != nil {
					failed <- err
					return
				}
				times[i] = time.Since(asked)
			}
		})
	}
	work.Wait()
	if err := o.settle(ctx, time.Millisecond); err != nil {
		return r, err
	}
	r.rate = float64(3*b.runs) / time.Since(began).Seconds()
	slices.Sort(times)
	r.many = times[len(times)/2]
	select {
	case err := <-failed:
		return r, err
	default:
		return r, nil
	}
}

func middle[T time.Duration | float64](rs []result, of func(result) T) T {
	values := make([]T, len(rs))
	for i, r := range rs {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func total(times []time.Duration) (sum time.Duration) {
	for _, t := range times {
		sum += t
	}
	return sum
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
