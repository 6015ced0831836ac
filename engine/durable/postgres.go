package durable

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// channel carries which runs were written to.
	channel = "relavium"
	// maxConns is how many connections DBOS and the engine have each.
	maxConns = 10
	// gatherNews is how long writes gather before others hear of them.
	gatherNews = 5 * time.Millisecond
	// lookAnyway is how often everything is looked at without having heard: a replica
	// may die between its commit and its word.
	lookAnyway = time.Second
	// maxNews is of how many runs is remembered that they were written to.
	maxNews = 10_000
	// maxPayload bounds one notification (PostgreSQL: 8000 bytes).
	maxPayload = 7000
	// migrating is the advisory lock of whoever changes the schema.
	migrating = 0x72656c6176697501
	// launching is the advisory lock of whoever changes the tables of DBOS.
	launching = 0x72656c6176697502
	// connectTimeout bounds one attempt to reach the server.
	connectTimeout = 5 * time.Second
)

// postgres is a database that replicas share.
type postgres struct {
	config  *pgxpool.Config
	lease   time.Duration
	log     *slog.Logger
	leases  *sql.DB // one connection, so that a lease waits for none that work has taken
	self    string  // tells our own notifications
	arrived chan struct{}

	mu     sync.Mutex
	heard  map[string]struct{}
	all    bool
	looked time.Time           // when everything was looked at
	told   map[string]struct{} // written to here, not yet said to others
	say    chan struct{}

	stop context.CancelFunc
	done sync.WaitGroup
}

func openPostgres(ctx context.Context, opt Options) (*Store, error) {
	config, err := pgxpool.ParseConfig(opt.Place)
	if err != nil {
		// The library's own text repeats the URL, a password in it hidden or not.
		return nil, errors.New("run store: the database URL cannot be read; it is postgres://USER:PASSWORD@HOST:PORT/NAME, options after ?")
	}
	if !strings.Contains(opt.Place, "pool_max_conns=") {
		config.MaxConns = maxConns
	}
	config.ConnConfig.RuntimeParams["search_path"] = ownSchema + "," + dbosSchema
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "relavium-serve"
	}
	if config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] == "" {
		// Else a transaction of a replica that was cut off keeps its locks for hours, and
		// nobody can go on with its runs.
		config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt((opt.Lease / 2).Milliseconds(), 10)
	}
	// A replica that is cut off must not wait for the network to say so.
	config.ConnConfig.ConnectTimeout = connectTimeout
	dialer := &net.Dialer{Timeout: connectTimeout, Control: dropSilent, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3,
	}}
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return eofConn{c}, nil
	}
	p := &postgres{
		config: config, lease: opt.Lease, log: opt.Log, self: uuid.NewString(), arrived: make(chan struct{}, 1),
		heard: make(map[string]struct{}), told: make(map[string]struct{}), say: make(chan struct{}, 1),
	}
	connector := &postgresConnector{Connector: stdlib.GetConnector(*config.ConnConfig.Copy()), said: &translations{}}
	p.leases = sql.OpenDB(connector)
	p.leases.SetMaxOpenConns(1)
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(int(config.MaxConns))
	db.SetMaxIdleConns(int(config.MaxConns))
	db.SetConnMaxIdleTime(5 * time.Minute)
	out := &Store{Write: db, Full: db, Read: &Reader{db: db, patient: true}, cluster: p}
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("run store: %w", reach(err)), out.Close())
	}
	p.done.Go(func() { p.listen(bg) })
	p.done.Go(func() { p.tell(bg) })
	return out, nil
}

// reach is a failure to connect without what the library says of user and host.
func reach(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Errorf("the database refuses: %s (SQLSTATE %s)", pg.Message, pg.Code)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		if _, ok := errors.AsType[*net.DNSError](err); ok {
			return errors.New("the database's host is not known")
		}
		return errors.New("the database cannot be reached")
	}
	return err
}

// eofConn tells the end of a connection as what it is to a client of a database: a
// fault of the network, which is worth another try.
type eofConn struct{ net.Conn }

func (c eofConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.EOF) {
		err = &net.OpError{Op: "read", Net: "tcp", Err: errors.New("closed by the server")}
	}
	return n, err
}

// pool is a pool of DBOS's own.
func (p *postgres) pool(ctx context.Context) (*pgxpool.Pool, error) {
	return pgxpool.NewWithConfig(ctx, p.config.Copy())
}

// update runs f in a transaction. That of a run waits for those of the same run; so f
// may decide by what it read.
func (p *postgres) update(ctx context.Context, db *sql.DB, run string, f func(tx *sql.Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := Transact(ctx, db, func(tx *sql.Tx) error {
		if run != "" {
			if _, err := tx.ExecContext(ctx, `select pg_advisory_xact_lock(hashtextextended(?, 0))`, run); err != nil {
				return err
			}
		}
		return f(tx)
	})
	if err == nil && run != "" && !strings.Contains(run, "\x1f") { // an idempotency key is nobody else's to read
		p.wrote(run)
	}
	return err
}

// alone makes tx the only one that migrates.
func (p *postgres) alone(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, `select pg_advisory_xact_lock(?)`, int64(migrating))
	return err
}

// launchAlone lets one process after the other change the tables of DBOS, whose own
// migrations do not bear company; the caller ends its turn. It asks again and again,
// since a statement that waits holds up the indexes that the other builds.
func (s *Store) launchAlone(ctx context.Context) (end func(), err error) {
	conn, err := s.Write.Conn(ctx)
	if err != nil {
		return nil, err
	}
	for mine := false; ; {
		if err := conn.QueryRowContext(ctx, `select pg_try_advisory_lock(?)`, int64(launching)).Scan(&mine); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if mine {
			break
		}
		if err := rest(ctx, 50*time.Millisecond); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		if _, err := conn.ExecContext(ctx, `select pg_advisory_unlock(?)`, int64(launching)); err != nil {
			// Only with its connection does the lock end then.
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = conn.Close() // back to the pool, or gone
	}, nil
}

// wrote notes a write of ours, for ourselves and for the others.
func (p *postgres) wrote(run string) {
	p.mu.Lock()
	p.note(run)
	p.told[run] = struct{}{}
	p.mu.Unlock()
	select {
	case p.say <- struct{}{}:
	default:
	}
}

// note is called with the lock held.
func (p *postgres) note(run string) {
	if p.all {
		return
	}
	if len(p.heard) >= maxNews {
		clear(p.heard)
		p.all = true
		return
	}
	p.heard[run] = struct{}{}
}

func (p *postgres) news() News {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all || time.Since(p.looked) >= lookAnyway {
		p.all, p.looked = false, time.Now()
		clear(p.heard)
		return News{Any: true, All: true}
	}
	if len(p.heard) == 0 {
		return News{}
	}
	out := News{Any: true, Runs: make([]string, 0, len(p.heard))}
	for run := range p.heard {
		out.Runs = append(out.Runs, run)
	}
	clear(p.heard)
	return out
}

// tell says to the other replicas which runs were written to, what gathered in a few
// milliseconds at once: each word costs the server a lock at its commit.
func (p *postgres) tell(ctx context.Context) {
	var conn *pgx.Conn
	defer func() { closeConn(ctx, conn) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.say:
		}
		if rest(ctx, gatherNews) != nil {
			return
		}
		p.mu.Lock()
		runs := make([]string, 0, len(p.told))
		for run := range p.told {
			runs = append(runs, run)
		}
		clear(p.told)
		p.mu.Unlock()
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.ConnectConfig(ctx, p.config.ConnConfig.Copy()); err != nil {
				conn = nil
				continue // they look anyway
			}
		}
		for _, payload := range payloads(p.self, runs) {
			if _, err := conn.Exec(ctx, `select pg_notify($1, $2)`, channel, payload); err != nil {
				p.log.DebugContext(ctx, "notification", slog.String("error", err.Error()))
				closeConn(ctx, conn)
				conn = nil
				break
			}
		}
	}
}

// payloads are the texts of notifications: who says it, then run ids.
func payloads(self string, runs []string) []string {
	var out []string
	text := self
	for _, run := range runs {
		if len(text)+1+len(run) > maxPayload {
			out = append(out, text)
			text = self
		}
		text += " " + run
	}
	return append(out, text)
}

// listen hears from the other replicas.
func (p *postgres) listen(ctx context.Context) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		heard, err := p.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			wait = 100 * time.Millisecond
		}
		p.log.DebugContext(ctx, "listening", slog.String("error", err.Error()))
		if rest(ctx, wait) != nil {
			return
		}
	}
}

func (p *postgres) hear(ctx context.Context) (heard bool, err error) {
	conn, err := pgx.ConnectConfig(ctx, p.config.ConnConfig.Copy())
	if err != nil {
		return false, err
	}
	defer closeConn(ctx, conn)
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return false, err
	}
	p.mu.Lock()
	p.all = true // what was said before nobody heard
	p.mu.Unlock()
	p.ring()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return heard, err
		}
		heard = true
		from, rest, _ := strings.Cut(n.Payload, " ")
		if from == p.self {
			continue
		}
		p.mu.Lock()
		for run := range strings.FieldsSeq(rest) {
			p.note(run)
		}
		p.mu.Unlock()
		p.ring()
	}
}

func (p *postgres) ring() {
	select {
	case p.arrived <- struct{}{}:
	default:
	}
}

func (p *postgres) close() error {
	p.stop()
	p.done.Wait()
	return p.leases.Close()
}

// closeConn says goodbye, briefly.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // it is gone either way
}

func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// busyPostgres: the server is away, overloaded, only reads until another takes its
// place, or asks for another try.
func busyPostgres(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code[:2] {
		case "08", "53": // connection, resources
			return true
		}
		return slices.Contains([]string{"25006", "40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57P05", "25P03"}, pg.Code)
	}
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[*net.OpError](err)
	return connect || network || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) || strings.Contains(err.Error(), "conn closed")
}

func deniedPostgres(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "42501"
}

func namedPostgres(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "23503"
}
