package durable

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
)

// maxGroup bounds how many writes share a commit.
const maxGroup = 64

// A group lets writes that come at the same time share one transaction: a commit
// costs about as much as the statements of a short run.
type group struct {
	db *sql.DB

	mu    sync.Mutex
	queue []*job
	led   bool // somebody is committing, and will name the next leader
}

type job struct {
	run func(tx *sql.Tx) error
	err error
	// turn tells the waiter: true to lead the next commit, false that err is known.
	turn chan bool
}

func (g *group) update(ctx context.Context, run func(tx *sql.Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	j := &job{run: run, turn: make(chan bool, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, j)
	lead := !g.led
	g.led = true
	g.mu.Unlock()
	if !lead {
		select {
		case lead = <-j.turn:
		case <-ctx.Done():
			if g.withdraw(j) {
				return context.Cause(ctx)
			}
			lead = <-j.turn
		}
	}
	if lead {
		g.commit(context.WithoutCancel(ctx))
	}
	return j.err
}

// withdraw takes a job that nobody has begun out of the queue.
func (g *group) withdraw(j *job) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, j)
	if i < 0 || len(j.turn) > 0 {
		return false
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	return true
}

// commit writes what is queued, the leader's own job among it, and names the next leader.
func (g *group) commit(ctx context.Context) {
	g.mu.Lock()
	n := min(len(g.queue), maxGroup)
	batch := slices.Clone(g.queue[:n])
	g.queue = slices.Delete(g.queue, 0, n)
	g.mu.Unlock()
	err := g.write(ctx, batch)
	for _, j := range batch {
		if j.err == nil {
			j.err = err
		}
	}
	g.mu.Lock()
	if len(g.queue) > 0 {
		g.queue[0].turn <- true
	} else {
		g.led = false
	}
	g.mu.Unlock()
	for _, j := range batch[1:] { // the leader's is the first
		j.turn <- false
	}
}

func (g *group) write(ctx context.Context, batch []*job) error {
	tx, err := g.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	good := 0
	for _, j := range batch {
		if j.err = one(ctx, tx, j, len(batch) == 1); j.err == nil {
			good++
		}
	}
	if good == 0 {
		return tx.Rollback()
	}
	return tx.Commit()
}

// one runs a job, undoing what it did if it fails.
func one(ctx context.Context, tx *sql.Tx, j *job, alone bool) error {
	if alone {
		return j.run(tx)
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT job"); err != nil {
		return err
	}
	err := j.run(tx)
	if err != nil {
		if _, undo := tx.ExecContext(ctx, "ROLLBACK TO job"); undo != nil {
			return errors.Join(err, undo)
		}
	}
	_, release := tx.ExecContext(ctx, "RELEASE job")
	return errors.Join(err, release)
}
