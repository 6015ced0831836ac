package durable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"
)

// DefaultLease is how long a replica that says nothing counts as alive.
const DefaultLease = 10 * time.Second

// Options say which run store to open.
type Options struct {
	// Place is the path of a SQLite file, or a postgres:// URL.
	Place string
	// Full makes every commit to a file wait for the disk; otherwise only those on
	// Store.Full do, and a power cut may take the last commits of the others (a crash
	// of the process never does). PostgreSQL always waits.
	Full bool
	// Lease is for replicas on PostgreSQL; 0 means DefaultLease.
	Lease time.Duration
	Log   *slog.Logger
}

// A Store is a run store opened by this process: a SQLite file that the processes
// of one machine share, or a PostgreSQL database that replicas share. Both take the
// same SQL, SQLite's with a few words translated (dialect.go).
type Store struct {
	// Write is for transactions whose commits follow the chosen durability.
	Write *sql.DB
	// Full is for transactions that wait for the disk.
	Full *sql.DB
	// Read is for reading.
	Read *Reader

	group   group
	file    *sqliteFile // either
	cluster *postgres   // or
}

// Remote reports whether a place is a database server's.
func Remote(place string) bool {
	return strings.HasPrefix(place, "postgres://") || strings.HasPrefix(place, "postgresql://")
}

// Redacted is a place as it may be shown: without a password.
func Redacted(place string) string {
	u, err := url.Parse(place)
	if !Remote(place) || err != nil {
		return place
	}
	u.RawQuery = ""
	return u.Redacted()
}

// Open opens the store, which a file is created for. The caller closes it.
func Open(ctx context.Context, opt Options) (*Store, error) {
	if !Remote(opt.Place) {
		return openFile(ctx, opt.Place, opt.Full, opt.Log)
	}
	if opt.Lease == 0 {
		opt.Lease = DefaultLease
	}
	return openPostgres(ctx, opt)
}

// Shared reports whether processes of other machines may use the store.
func (s *Store) Shared() bool { return s.cluster != nil }

// Lease is how long a silent process counts as alive; 0 where the operating system
// tells.
func (s *Store) Lease() time.Duration {
	if s.cluster == nil {
		return 0
	}
	return s.cluster.lease
}

// News tells what was written since it was asked for before.
type News struct {
	Any  bool
	All  bool     // it is not known which runs were written to
	Runs []string // else these
}

// News asks what was written. One goroutine may ask.
func (s *Store) News(ctx context.Context) (News, error) {
	if s.cluster != nil {
		return s.cluster.news(), nil
	}
	return s.file.news(ctx)
}

// Arrived is sent to when other replicas wrote; a file sends nothing, and is asked.
func (s *Store) Arrived() <-chan struct{} {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.arrived
}

// Update runs f in a transaction, on a file alone or together with others. What f
// did is kept only if it and the commit succeed, whatever becomes of the others. f
// must use nothing but tx. Transactions about the same run, which run names, follow
// one another; "" names none. ctx bounds the wait for a place, not the transaction
// on a file.
func (s *Store) Update(ctx context.Context, run string, f func(tx *sql.Tx) error) error {
	if s.cluster != nil {
		return s.cluster.update(ctx, s.Write, run, f)
	}
	return s.group.update(ctx, f)
}

// UpdateFull is Update, alone, with a commit that waits for the disk.
func (s *Store) UpdateFull(ctx context.Context, run string, f func(tx *sql.Tx) error) error {
	if s.cluster != nil {
		return s.cluster.update(ctx, s.Full, run, f)
	}
	return Transact(ctx, s.Full, f)
}

// Transact runs f in a transaction of its own.
func Transact(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		undo := tx.Rollback()
		if errors.Is(undo, sql.ErrTxDone) {
			undo = nil
		}
		return errors.Join(err, undo)
	}
	return tx.Commit()
}

// Prepare runs migrate in a transaction while no other process migrates.
func (s *Store) Prepare(ctx context.Context, migrate func(tx *sql.Tx) error) error {
	return Transact(ctx, s.Write, func(tx *sql.Tx) error {
		if s.cluster != nil {
			if err := s.cluster.alone(ctx, tx); err != nil {
				return err
			}
		}
		return migrate(tx)
	})
}

// HasTable reports whether the store has a table of that name.
func (s *Store) HasTable(ctx context.Context, tx *sql.Tx, name string) (bool, error) {
	query := `select count(*) from sqlite_master where type='table' and name=?`
	if s.cluster != nil {
		query = `select count(*) from pg_catalog.pg_tables where schemaname='` + ownSchema + `' and tablename=?`
	}
	var n int
	err := tx.QueryRowContext(ctx, query, name).Scan(&n)
	return n > 0, err
}

// Schema translates the statements that make tables: only PostgreSQL's differ.
func (s *Store) Schema(ddl string) string {
	if s.cluster == nil {
		return ddl
	}
	return "create schema if not exists " + ownSchema + ";\n" + translateSchema(ddl) + keeping + translateSchema(executorsSchema)
}

// Close ends the background work and closes the pools. Calling it twice is safe.
func (s *Store) Close() error {
	var errs []error
	if s.cluster != nil {
		errs = append(errs, s.cluster.close())
	} else {
		errs = append(errs, s.file.close())
	}
	for _, db := range []*sql.DB{s.Read.db, s.Full, s.Write} {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// Busy reports whether err says that another connection holds what was asked for,
// that the database is away, or that a moment's retry may help for another reason.
func Busy(err error) bool { return busySQLite(err) || busyPostgres(err) }

// Named reports whether a row could not be deleted because another names it by now.
func Named(err error) bool { return namedPostgres(err) }

// Denied reports whether the database refuses this user a statement.
func Denied(err error) bool { return deniedPostgres(err) }

func storeError(err error) error { return fmt.Errorf("run store: %w", err) }
