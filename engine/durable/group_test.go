package durable_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/engine/durable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openFile(t *testing.T) *durable.Store {
	t.Helper()
	f, err := durable.Open(t.Context(), durable.Options{Place: filepath.Join(t.TempDir(), "x.db"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := f.Update(t.Context(), "", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(t.Context(), `create table t(n integer primary key, part integer)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestUpdateTogether: of writes that share a commit each stands or falls by itself,
// and what a failed one did is undone.
func TestUpdateTogether(t *testing.T) {
	t.Parallel()
	f := openFile(t)
	errOdd := errors.New("odd")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			err := f.Update(t.Context(), "", func(tx *sql.Tx) error {
				for part := range 2 {
					if _, err := tx.ExecContext(t.Context(), `insert into t values(?,?)`, 2*i+part, part); err != nil {
						return err
					}
					if i%2 == 1 {
						return errOdd
					}
				}
				return nil
			})
			if want := map[bool]error{true: errOdd}[i%2 == 1]; !errors.Is(err, want) {
				t.Errorf("Update(%d) = %v, want %v", i, err, want)
			}
		})
	}
	wg.Wait()
	var rows, wrong int
	if err := f.Read.QueryRowContext(t.Context(), `select count(*), coalesce(sum((n/2)%2), 0) from t`).Scan(&rows, &wrong); err != nil {
		t.Fatal(err)
	}
	if rows != 200 || wrong != 0 {
		t.Errorf("%d rows, %d of failed writes; want 200 and none", rows, wrong)
	}
}

// TestUpdateWithdraws: a write whose caller gives up while it waits is not made, and
// holds up nobody.
func TestUpdateWithdraws(t *testing.T) {
	t.Parallel()
	f := openFile(t)
	begun, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Update(t.Context(), "", func(*sql.Tx) error {
			close(begun)
			<-release
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
	<-begun
	ctx, cancel := context.WithCancelCause(t.Context())
	errGone := errors.New("gone")
	gone := make(chan struct{})
	wg.Go(func() {
		defer close(gone)
		err := f.Update(ctx, "", func(*sql.Tx) error { return errors.New("made after all") })
		if !errors.Is(err, errGone) {
			t.Errorf("Update = %v, want %v", err, errGone)
		}
	})
	cancel(errGone)
	<-gone
	for i := range 8 {
		wg.Go(func() {
			if err := f.Update(t.Context(), "", func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), `insert into t values(?,0)`, i)
				return err
			}); err != nil {
				t.Error(fmt.Errorf("Update(%d): %w", i, err))
			}
		})
	}
	close(release)
	wg.Wait()
}
