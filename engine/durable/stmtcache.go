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
}

func (c *connector) Connect(context.Context) (driver.Conn, error) {
	inner, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	full, ok := inner.(sqliteConn)
	if !ok {
		return nil, errors.Join(errors.New("durable: the SQLite driver lacks a context method"), inner.Close())
	}
	return &conn{sqliteConn: full, cached: make(map[string]*stmt)}, nil
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
	cached map[string]*stmt
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
	case "SELECT", "INSERT", "UPDATE", "DELETE", "WITH":
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
