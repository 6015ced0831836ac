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

// sqliteFile is a SQLite file as a run store.
type sqliteFile struct {
	path    string
	full    bool
	turn    turn
	log     *slog.Logger
	stop    context.CancelFunc
	done    sync.WaitGroup
	version *sql.DB // one connection that only asks whether others wrote
	seen    int64   // the version at the last look
}

// openFile opens or creates the file, private to the user.
func openFile(ctx context.Context, path string, full bool, log *slog.Logger) (*Store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // G304: the path is the operator's own run store.
	if err != nil {
		return nil, fmt.Errorf("run store: %w", errors.Unwrap(err))
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	file := &sqliteFile{path: path, full: full, turn: make(turn, 1), log: log, seen: -1}
	out := &Store{file: file}
	out.Write = file.pool(1, full, "")
	out.group.db = out.Write
	out.Full = file.pool(1, true, "")
	out.Read = &Reader{db: file.pool(2, full, "&_pragma=query_only(ON)")}
	file.version = file.pool(1, full, "&_pragma=query_only(ON)")
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	file.stop = stop
	if err := out.Write.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("run store: %w", err), out.Close())
	}
	file.done.Go(func() { file.checkpoint(bg) })
	return out, nil
}

// pool opens a pool of conns connections; nothing is dialed before first use.
func (f *sqliteFile) pool(conns int, full bool, extra string) *sql.DB {
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

// look is a number that changes whenever another connection of any process
// has committed to the file. Asking is nearly free.
func (f *sqliteFile) look(ctx context.Context) (int64, error) {
	var v int64
	err := f.version.QueryRowContext(ctx, "PRAGMA data_version").Scan(&v)
	return v, err
}

func (f *sqliteFile) news(ctx context.Context) (News, error) {
	v, err := f.look(ctx)
	if err != nil || v == f.seen {
		return News{}, err
	}
	f.seen = v
	return News{Any: true, All: true}, nil
}

func (f *sqliteFile) checkpoint(ctx context.Context) {
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
		v, err := f.look(ctx)
		if err != nil || v == seen {
			continue
		}
		seen = v
		if _, err := db.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil && ctx.Err() == nil {
			f.log.DebugContext(ctx, "checkpoint", slog.String("error", err.Error()))
		}
	}
}

func (f *sqliteFile) close() error {
	f.stop()
	f.done.Wait()
	return f.version.Close()
}

func busySQLite(err error) bool {
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
