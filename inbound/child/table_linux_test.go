package child

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

func labelled(label, owner string) Spec {
	spec := fixtureSpec("eof", "n")
	spec.Label, spec.Owner = label, owner
	return spec
}

func labels(table *Table) []string {
	var all []string
	for _, l := range table.Living() {
		all = append(all, l.Label)
	}
	return all
}

func TestCloseLabel(t *testing.T) {
	t.Parallel()
	table := shortTable()
	for _, label := range []string{"a", "b", "a", "c"} {
		started(t, table, labelled(label, ""))
	}
	if got, want := labels(table), []string{"a", "b", "a", "c"}; !slices.Equal(got, want) {
		t.Errorf("living %v, want %v", got, want)
	}
	if err := table.CloseLabel(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if got, want := labels(table), []string{"b", "c"}; !slices.Equal(got, want) {
		t.Errorf("living %v, want %v", got, want)
	}
}

// TestTableClose ends all, refuses what comes later and who still waits, and may be
// called again.
func TestTableClose(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{Children: 2, Ladder: shortLadder()})
	first := started(t, table, labelled("a", "x"))
	started(t, table, labelled("b", "y"))
	commands := make(chan error, 1)
	go func() {
		result, err := table.Run(t.Context(), shell(t, "sleep 1000"), Bounds{})
		if start, ok := errors.AsType[*StartError](err); ok && start.Begun {
			err = ErrTableClosed // it ran, which was not known here yet
		} else if result == nil || result.Exit.By == RungNone {
			t.Errorf("a command that was running: %+v, %v", result, err)
		}
		commands <- err
	}()
	if err := eventually(t.Context(), "the command does not run", func() bool { return len(table.Living()) == 3 }); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := table.Start(t.Context(), labelled("c", "z"))
		waiting <- err
	}()
	if err := eventually(t.Context(), "nobody waits", func() bool { return queued(table) == 1 }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := table.Close(t.Context()); err != nil {
				t.Errorf("Close = %v", err)
			}
			if got := labels(table); len(got) > 0 {
				t.Errorf("living %v", got)
			}
		})
	}
	wg.Wait()
	<-first.Done()
	if ended := <-commands; !errors.Is(ended, ErrTableClosed) {
		t.Errorf("a command that was running: %v", ended)
	}
	for _, err := range []error{<-waiting, errorOf(table.Start(t.Context(), labelled("d", "")))} {
		if !errors.Is(err, ErrTableClosed) {
			t.Errorf("Start = %v", err)
		}
	}
	if _, err := table.Run(t.Context(), shell(t, "true"), Bounds{}); !errors.Is(err, ErrTableClosed) {
		t.Errorf("Run = %v", err)
	}
}

func errorOf(_ *Process, err error) error { return err }

func queued(table *Table) int {
	table.mu.Lock()
	defer table.mu.Unlock()
	return len(table.queue)
}

// TestPlaces has starts wait for the table's limit and for the owner's.
func TestPlaces(t *testing.T) {
	t.Parallel()
	table := NewTable(TableOptions{Children: 3, PerOwner: 2, Ladder: shortLadder()})
	a := started(t, table, labelled("a1", "a"))
	started(t, table, labelled("a2", "a"))
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := table.Start(soon, labelled("a3", "a"))
	full, ok := errors.AsType[*FullError](err)
	if !ok || !full.Owner || full.Limit != 2 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third of one owner: %v", err)
	}
	next := make(chan *Process, 1)
	go func() {
		p, err := table.Start(t.Context(), labelled("a4", "a"))
		if err != nil {
			t.Errorf("a4: %v", err)
		}
		next <- p
	}()
	if err := eventually(t.Context(), "a4 does not wait", func() bool { return queued(table) == 1 }); err != nil {
		t.Fatal(err)
	}
	b := started(t, table, labelled("b1", "b")) // passes who waits for its own limit
	soon, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = table.Start(soon, labelled("c1", "c"))
	if full, ok := errors.AsType[*FullError](err); !ok || full.Owner || full.Limit != 3 || err.Error() != "max_children: 3 are running" {
		t.Errorf("a fourth: %v", err)
	}
	if _, err := table.Run(t.Context(), shell(t, "true"), Bounds{}); err != nil {
		t.Errorf("a command takes a place: %v", err)
	}
	if err := b.Close(t.Context()); err != nil { // not a4's
		t.Fatal(err)
	}
	started(t, table, labelled("c2", "c"))
	if n := queued(table); n != 1 {
		t.Errorf("%d wait, want a4", n)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := <-next
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if table.taken != 0 || len(table.owners) > 0 {
		t.Errorf("%d places are taken, %v", table.taken, table.owners)
	}
}

// TestRecheck is asked between the wait for a place and the fork.
func TestRecheck(t *testing.T) {
	t.Parallel()
	table := shortTable()
	revoked := errors.New("the grant was revoked")
	spec := labelled("a", "x")
	spec.Recheck = func() error { return revoked }
	_, err := table.Start(t.Context(), spec)
	if !errors.Is(err, revoked) || err.Error() != `start "`+filepath.Base(os.Args[0])+`": the grant was revoked` {
		t.Errorf("Start = %v", err)
	}
	if len(table.Living()) > 0 || table.taken != 0 {
		t.Errorf("%v live, %d places taken", table.Living(), table.taken)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	spec = labelled("a", "x")
	spec.Recheck = func() error { cancel(revoked); return nil }
	if _, err := table.Start(ctx, spec); !errors.Is(err, revoked) {
		t.Errorf("Start with a context that ends in between = %v", err)
	}
	if len(table.Living()) > 0 || table.taken != 0 {
		t.Errorf("%v live, %d places taken", table.Living(), table.taken)
	}
}

// TestStartOwes ends a start's context at random moments: whatever was forked is the
// table's, and its close waits for it.
func TestStartOwes(t *testing.T) {
	t.Parallel()
	table := shortTable()
	cell := newCell("stubborn", t.TempDir())
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*500*time.Microsecond)
			defer cancel()
			began := time.Now()
			p, err := table.Start(ctx, fixtureSpec(cell.fixture, cell.nonce))
			switch {
			case err == nil:
				p.Kill()
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("Start = %v", err)
			}
			t.Logf("%v: %v after %v", time.Duration(n)*500*time.Microsecond, err, time.Since(began))
		})
	}
	wg.Wait()
	if err := table.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if left := marked(cell.nonce); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if table.taken != 0 {
		t.Errorf("%d places are taken", table.taken)
	}
}
