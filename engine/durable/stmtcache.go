package durable

import (
	"context"
	"database/sql/driver"
	"errors"
	"strings"

	sqlite "modernc.org/sqlite"
)

// cacheSize bounds the prepared statements of one connection.
const cacheSize = 256

// connector opens SQLite connections that keep their prepared statements.
// Preparing is most of what a small statement costs in this driver: the cache
// halves the latency of a short run.
type connector struct {
	driver sqlite.Driver
	dsn    string
	turn   turn
}

// turn lets one connection of the process write at a time, in the order of asking.
// SQLite has one writer a file; without turns the others sleep and try again.
type turn chan struct{}

func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t turn) give() { <-t }

func (c *connector) Connect(context.Context) (driver.Conn, error) {
	inner, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	full, ok := inner.(sqliteConn)
	if !ok {
		return nil, errors.Join(errors.New("durable: the SQLite driver lacks a context method"), inner.Close())
	}
	return &conn{sqliteConn: full, turn: c.turn, cached: make(map[string]*stmt)}, nil
}

func (c *connector) Driver() driver.Driver { return &c.driver }

// sqliteConn is what the driver's connections offer beside driver.Conn.
type sqliteConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// conn is one connection with its cache. database/sql never uses a connection
// from two goroutines, so there is no lock.
type conn struct {
	sqliteConn
	turn   turn
	inTx   bool
	cached map[string]*stmt
}

// BeginTx waits for the turn to write, which the transaction's end gives back.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.turn.take(ctx); err != nil {
		return nil, err
	}
	inner, err := c.sqliteConn.BeginTx(ctx, opts)
	if err != nil {
		c.turn.give()
		return nil, err
	}
	c.inTx = true
	return &tx{Tx: inner, of: c}, nil
}

type tx struct {
	driver.Tx
	of *conn
}

func (t *tx) Commit() error {
	defer t.end()
	return t.Tx.Commit()
}

func (t *tx) Rollback() error {
	defer t.end()
	return t.Tx.Rollback()
}

func (t *tx) end() {
	if t.of.inTx {
		t.of.inTx = false
		t.of.turn.give()
	}
}

type stmt struct {
	driver.Stmt
	busy bool // its rows are still open
}

func (c *conn) Close() error {
	var errs []error
	for _, s := range c.cached {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.sqliteConn.Close())...)
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if !c.inTx && cacheable(query) {
		if err := c.turn.take(ctx); err != nil {
			return nil, err
		}
		defer c.turn.give()
	}
	if s := c.statement(ctx, query); s != nil {
		if exec, ok := s.Stmt.(driver.StmtExecContext); ok {
			return exec.ExecContext(ctx, args)
		}
	}
	return c.sqliteConn.ExecContext(ctx, query, args)
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s := c.statement(ctx, query)
	if s == nil {
		return c.sqliteConn.QueryContext(ctx, query, args)
	}
	q, ok := s.Stmt.(driver.StmtQueryContext)
	if !ok {
		return c.sqliteConn.QueryContext(ctx, query, args)
	}
	inner, err := q.QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	s.busy = true
	return &rows{Rows: inner, of: s}, nil
}

// statement returns a prepared statement that no open rows use, or nil where the
// query is better run directly: schema changes, a full cache, a busy statement.
func (c *conn) statement(ctx context.Context, query string) *stmt {
	if s := c.cached[query]; s != nil {
		if s.busy {
			return nil
		}
		return s
	}
	if len(c.cached) >= cacheSize || !cacheable(query) {
		return nil
	}
	prepared, err := c.PrepareContext(ctx, query)
	if err != nil {
		return nil // the direct path reports it
	}
	s := &stmt{Stmt: prepared}
	c.cached[query] = s
	return s
}

func cacheable(query string) bool {
	word, _, _ := strings.Cut(strings.TrimLeft(query, " \t\r\n"), " ")
	switch strings.ToUpper(strings.TrimSpace(word)) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "SAVEPOINT", "RELEASE", "ROLLBACK":
		return !strings.Contains(query, ";")
	default:
		return false
	}
}

type rows struct {
	driver.Rows
	of *stmt
}

func (r *rows) Close() error {
	r.of.busy = false
	return r.Rows.Close()
}
