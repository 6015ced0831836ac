package durable

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// On a database an executor that lives renews a lease there, by the database's own
// clock. One that could not for two thirds of it, by its monotonic clock, counts
// itself as cut off: it ends what it runs before anybody else may begin it.

// executorsSchema is the table of leases: until and claimed are times of the
// database, in milliseconds.
const executorsSchema = `
create table if not exists executors(
	id text primary key, projects text not null, offers text not null, until integer not null, claimant text, claimed integer
);
`

// dbNow is the database's time in milliseconds, as it is when the statement runs.
const dbNow = `cast(extract(epoch from clock_timestamp())*1000 as bigint)`

// claimLife is how long whoever sees to a dead executor may take.
const claimLife = 30 * time.Second

// lease is the presence of this process in a database.
type lease struct {
	db     *sql.DB // nothing else uses it
	id     string
	length time.Duration
	offers func(ctx context.Context) json.RawMessage
	log    *slog.Logger
	lost   func() // called once, when the lease is as good as lost

	mu       sync.Mutex
	projects []string
	renewed  time.Time // when the last renewal that succeeded was sent

	stop     context.CancelFunc
	done     sync.WaitGroup
	farewell error // of the end, once done
}

// enterCluster takes a lease and keeps it until leave; lost is called, once, if it
// cannot be kept.
func (s *Store) enterCluster(ctx context.Context, id string, projects []string, offers func(context.Context) json.RawMessage, lost func()) (presence, error) {
	l := &lease{
		db: s.cluster.leases, id: id, length: s.cluster.lease, offers: offers, log: s.cluster.log, lost: lost, projects: slices.Clone(projects),
	}
	l.renewed = time.Now()
	if err := l.take(ctx); err != nil {
		return nil, storeError(err)
	}
	bg, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.done.Go(func() { l.keep(bg) })
	return l, nil
}

func (l *lease) list() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	raw, err := json.Marshal(l.projects)
	if err != nil {
		return "[]" // strings always have a JSON form
	}
	return string(raw)
}

func (l *lease) offered(ctx context.Context) string {
	if l.offers == nil {
		return "{}"
	}
	return string(l.offers(ctx))
}

func (l *lease) take(ctx context.Context) error {
	_, err := l.db.ExecContext(ctx, `insert into executors(id, projects, offers, until) values(?, ?, ?, `+dbNow+`+?)`,
		l.id, l.list(), l.offered(ctx), l.length.Milliseconds())
	return err
}

// errClaimed: another process counts this one as dead.
var errClaimed = errors.New("the lease ran out")

func (l *lease) renew(ctx context.Context) error {
	res, err := l.db.ExecContext(ctx, `update executors set until=`+dbNow+`+?, projects=?, offers=? where id=? and claimant is null`,
		l.length.Milliseconds(), l.list(), l.offered(ctx), l.id)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errClaimed, err)
	}
	return nil
}

// keep renews the lease until ctx ends or it is lost.
func (l *lease) keep(ctx context.Context) {
	every, cut := l.length/5, l.cut()
	renewed := l.last()
	for {
		if rest(ctx, every) != nil {
			l.farewell = l.end(ctx)
			return
		}
		began := time.Now()
		try, cancel := context.WithDeadline(ctx, renewed.Add(cut))
		err := l.renew(try)
		cancel()
		switch {
		case ctx.Err() != nil:
			l.farewell = l.end(ctx)
			return
		case err == nil:
			renewed = began
			l.mu.Lock()
			l.renewed = began
			l.mu.Unlock()
			every = l.length / 5
			continue
		case errors.Is(err, errClaimed) || time.Since(renewed) >= cut:
			l.log.ErrorContext(ctx, "cut off from the database: what runs here is left to other replicas", slog.String("error", err.Error()))
			l.lost()
			return
		}
		l.log.WarnContext(ctx, "lease", slog.String("error", err.Error()))
		every = min(l.length/20, cut-time.Since(renewed))
	}
}

// cut is after how long without a renewal this process counts itself as cut off.
func (l *lease) cut() time.Duration { return l.length * 2 / 3 }

func (l *lease) last() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed
}

// fresh goes by the monotonic clock, which goes on while a process is stopped.
func (l *lease) fresh() bool { return time.Since(l.last()) < l.cut() }

func (l *lease) adopt(ctx context.Context, project string) error {
	l.mu.Lock()
	if !slices.Contains(l.projects, project) {
		l.projects = append(l.projects, project)
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.length)
	defer cancel()
	return l.renew(ctx)
}

// leave ends the lease now, so that others continue at once.
func (l *lease) leave() error {
	l.stop()
	l.done.Wait()
	return l.farewell
}

// goodbye is how long a replica that closes tries to say so. Nobody goes on with its runs
// before that, and without it not before the lease is over.
const goodbye = 3 * time.Second

// end is the last that keep does for a lease that it still has.
func (l *lease) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	_, err := l.db.ExecContext(ctx, `update executors set until=0 where id=? and claimant is null`, l.id)
	if Busy(err) || errors.Is(err, context.DeadlineExceeded) {
		return nil // it runs out anyway
	}
	return err
}

// deadLeases claims the executors whose lease ran out. A claim that its holder did not
// end may be claimed again.
func (s *Store) deadLeases(ctx context.Context, me string) ([]*Dead, error) {
	var out []*Dead
	err := Transact(ctx, s.Write, func(tx *sql.Tx) error {
		out = nil
		rows, err := tx.QueryContext(ctx, `update executors set claimant=?, claimed=`+dbNow+`
			where until<`+dbNow+` and id<>? and (claimant is null or claimed<`+dbNow+`-?) returning id, `+dbNow+`-until`, me, me, claimLife.Milliseconds())
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			d := &Dead{}
			var ms int64
			if err := rows.Scan(&d.ID, &ms); err != nil {
				return err
			}
			d.For = time.Duration(ms) * time.Millisecond
			end := func(query string) func() error {
				return func() error {
					_, err := s.Write.ExecContext(ctx, query, d.ID, me)
					return err
				}
			}
			d.done = end(`delete from executors where id=? and claimant=?`)
			d.release = end(`update executors set claimant=null, claimed=null where id=? and claimant=?`)
			out = append(out, d)
		}
		return rows.Err()
	})
	return out, err
}

// DeadExecutors claims every executor of the store whose process has died, or says
// nothing any more. me is who claims. The caller ends each claim.
func (s *Store) DeadExecutors(ctx context.Context, me string, now time.Time) ([]*Dead, error) {
	if s.cluster != nil {
		return s.deadLeases(ctx, me)
	}
	return deadFiles(s.file.path, now)
}

// ExecutorAlive reports whether some living process executes runs of the project.
func (s *Store) ExecutorAlive(ctx context.Context, project string) (bool, error) {
	if s.cluster == nil {
		return fileAlive(s.file.path, project)
	}
	var alive bool
	err := s.Read.QueryRowContext(ctx, `select exists(select 1 from executors where until>=`+dbNow+`
		and ? in (select value from jsonb_array_elements_text(projects::jsonb) as each(value)))`, project).Scan(&alive)
	return alive, err
}

// Alive reports whether the process of that executor lives; tx may be nil.
func (s *Store) Alive(ctx context.Context, tx *sql.Tx, executor string) (bool, error) {
	if s.cluster == nil {
		return lockHeld(s.file.path, executor), nil
	}
	query := s.Read.QueryRowContext
	if tx != nil {
		query = tx.QueryRowContext
	}
	var alive bool
	err := query(ctx, `select exists(select 1 from executors where id=? and until>=`+dbNow+`)`, executor).Scan(&alive)
	return alive, err
}

// Offers lists what the living executors of a project say that they have.
func (s *Store) Offers(ctx context.Context, project string) ([]json.RawMessage, error) {
	if s.cluster == nil {
		return nil, nil
	}
	rows, err := s.Read.QueryContext(ctx, `select offers from executors where until>=`+dbNow+`
		and ? in (select value from jsonb_array_elements_text(projects::jsonb) as each(value))`, project)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []json.RawMessage
	for rows.Next() {
		var raw string
		if err := rows.Scan(&raw); err != nil {
			return nil, err
		}
		out = append(out, json.RawMessage(raw))
	}
	return out, rows.Err()
}
