package durable

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	sqlite "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// checkpointEvery is how often the write-ahead log is copied back when something
// was written; in the background it keeps that work off the commits.
const checkpointEvery = 200 * time.Millisecond

// A File is a SQLite run store opened by this process: small pools, one job each.
type File struct {
	// Write holds one connection whose commits follow the chosen durability.
	Write *sql.DB
	// Full holds one connection that waits for the disk on every commit.
	Full *sql.DB
	// Read holds two connections for reading.
	Read *sql.DB

	path    string
	full    bool
	turn    turn
	group   group
	log     *slog.Logger
	stop    context.CancelFunc
	done    sync.WaitGroup
	version *sql.DB // one connection that only asks whether others wrote
}

// OpenFile opens or creates the file, private to the user. full makes every
// commit wait for the disk; otherwise only those on Full do, and a power cut may
// take the last commits of the others (a crash of the process never does). The
// caller closes the File.
func OpenFile(ctx context.Context, path string, full bool, log *slog.Logger) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // G304: the path is the operator's own run store.
	if err != nil {
		return nil, fmt.Errorf("run store: %w", errors.Unwrap(err))
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	out := &File{path: path, full: full, turn: make(turn, 1), log: log}
	out.Write = out.pool(1, full, "")
	out.group.db = out.Write
	out.Full = out.pool(1, true, "")
	out.Read = out.pool(2, full, "&_pragma=query_only(ON)")
	out.version = out.pool(1, full, "&_pragma=query_only(ON)")
	if err := out.Write.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("run store: %w", err), out.Close())
	}
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	out.stop = stop
	out.done.Go(func() { out.checkpoint(bg) })
	return out, nil
}

// pool opens a pool of conns connections; nothing is dialed before first use.
func (f *File) pool(conns int, full bool, extra string) *sql.DB {
	synchronous := "NORMAL"
	if full {
		synchronous = "FULL"
	}
	path := url.PathEscape(filepath.ToSlash(f.path))
	dsn := "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=foreign_keys(ON)" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(" + synchronous + ")&_pragma=wal_autocheckpoint(4000)" + extra
	db := sql.OpenDB(&connector{dsn: dsn, turn: f.turn})
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db
}

// Version is a number that changes whenever another connection of any process
// has committed to the file. Asking is nearly free.
func (f *File) Version(ctx context.Context) (int64, error) {
	var v int64
	err := f.version.QueryRowContext(ctx, "PRAGMA data_version").Scan(&v)
	return v, err
}

func (f *File) checkpoint(ctx context.Context) {
	db := f.pool(1, f.full, "")
	defer func() { _ = db.Close() }()
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	var seen int64 = -1
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		v, err := f.Version(ctx)
		if err != nil || v == seen {
			continue
		}
		seen = v
		if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil && ctx.Err() == nil {
			f.log.DebugContext(ctx, "checkpoint", slog.String("error", err.Error()))
		}
	}
}

// Close ends the background work and closes the pools. Calling it twice is safe.
func (f *File) Close() error {
	if f.stop != nil {
		f.stop()
	}
	f.done.Wait()
	var errs []error
	for _, db := range []*sql.DB{f.Read, f.version, f.Full, f.Write} {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// Busy reports whether err says that another connection holds the file, or that
// a moment's retry may help for another reason.
func Busy(err error) bool {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return false
	}
	switch se.Code() & 0xff {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED, lib.SQLITE_IOERR, lib.SQLITE_CANTOPEN, lib.SQLITE_PROTOCOL, lib.SQLITE_FULL:
		return true
	default:
		return false
	}
}
