// Package durabletest gives tests a run store each: a file, or a database.
package durabletest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/relavium/relavium-serve/engine/durable"
)

// Variable names a PostgreSQL server, as a URL, whose user may make databases. Tests of
// replicas need it.
const Variable = "RELAVIUM_TEST_POSTGRES"

// Everywhere is a variable that, where it is set, has all tests keep their runs there instead of in files.
const Everywhere = "RELAVIUM_TEST_POSTGRES_EVERYWHERE"

// server is the server of all tests, or "" where they keep files.
func server() string {
	if os.Getenv(Everywhere) == "" {
		return ""
	}
	return os.Getenv(Variable)
}

// In is the run store of a folder: a file in it, or the database named after it, which
// is made if nobody has.
func In(ctx context.Context, dir string) (string, error) {
	if s := server(); s != "" {
		return Database(ctx, s, dir)
	}
	return filepath.Join(dir, "serve.db"), nil
}

// Database makes the database of a folder on a server, if nobody has, and returns its URL.
func Database(ctx context.Context, server, dir string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	name := nameOf(dir)
	_, err = conn.Exec(ctx, "create database "+name)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "42P04" || pg.Code == "23505") {
		err = nil // it is there, or another process makes it at the same moment
	}
	u.Path = "/" + name
	return u.String(), errors.Join(err, conn.Close(ctx))
}

func nameOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "t_" + hex.EncodeToString(sum[:8])
}

// Place is the run store of a folder, which goes with the test.
func Place(tb testing.TB, dir string) string {
	tb.Helper()
	place, err := In(context.WithoutCancel(tb.Context()), dir)
	if err != nil {
		tb.Fatal(err)
	}
	if s := server(); s != "" {
		tb.Cleanup(func() { drop(context.WithoutCancel(tb.Context()), s, nameOf(dir)) })
	}
	return place
}

// Shared is a run store that replicas share: a database, which goes with the test. It
// skips the test where no server is named.
func Shared(tb testing.TB) string {
	tb.Helper()
	s := os.Getenv(Variable)
	if s == "" {
		tb.Skip("no PostgreSQL: " + Variable + " names no server (scripts/postgres starts one)")
	}
	dir := tb.TempDir()
	place, err := Database(context.WithoutCancel(tb.Context()), s, dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { drop(context.WithoutCancel(tb.Context()), s, nameOf(dir)) })
	return place
}

// drop removes a database, if it can: a process that was killed may hold it for a moment.
func drop(ctx context.Context, server, name string) {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return
	}
	_, _ = conn.Exec(ctx, "drop database if exists "+name+" with (force)")
	_ = conn.Close(ctx)
}

// Bury sees to processes that were killed: it waits until nothing that they asked of a
// database is under way any more, and ends their leases, so that the next process takes
// their runs over at once, as it does those of a file. Nobody else may use the store.
func Bury(tb testing.TB, place string) {
	tb.Helper()
	if !durable.Remote(place) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, place)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for others := 1; others > 0; {
		if err := conn.QueryRow(ctx, `select count(*) from pg_stat_activity
			where datname=current_database() and backend_type='client backend' and pid<>pg_backend_pid()`).Scan(&others); err != nil {
			tb.Fatal(err)
		}
		<-tick.C
	}
	_, err = conn.Exec(ctx, `update relavium.executors set until=0, claimed=0`)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42P01" {
		err = nil // they died before they made the table
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Open looks into a run store behind the engine's back; it closes with the test.
func Open(tb testing.TB, place string) *sql.DB {
	tb.Helper()
	store, err := durable.Open(tb.Context(), durable.Options{Place: place, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return store.Write
}
