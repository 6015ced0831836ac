package durable

import (
	"context"
	"database/sql"
	"time"
)

// awayFor is how long a reader waits for a database that is away, such as one that
// starts again after a crash.
const awayFor = 15 * time.Second

// A Reader reads a run store. Where that is a database and it is away, reading waits a
// while for it to come back; on a file it fails at once, as the file does.
type Reader struct {
	db      *sql.DB
	patient bool
}

// QueryContext is that of sql.DB.
func (r *Reader) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	r.insist(ctx, func() error {
		rows, err = r.db.QueryContext(ctx, query, args...) //nolint:sqlclosecheck,rowserrcheck // the caller's
		return err
	})
	return rows, err
}

// QueryRowContext is that of sql.DB.
func (r *Reader) QueryRowContext(ctx context.Context, query string, args ...any) (row *sql.Row) {
	r.insist(ctx, func() error {
		row = r.db.QueryRowContext(ctx, query, args...)
		return row.Err()
	})
	return row
}

// insist tries until it is not for the database's absence that it fails, for a while.
func (r *Reader) insist(ctx context.Context, try func() error) {
	until, wait := time.Now().Add(awayFor), 10*time.Millisecond
	for {
		err := try()
		if err == nil || !r.patient || !Busy(err) || time.Now().After(until) || rest(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, time.Second)
	}
}
