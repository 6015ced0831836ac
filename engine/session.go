package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	// newsReach is how far back SessionNews looks: the clocks of processes differ,
	// and a commit comes after its time.
	newsReach = time.Minute
	// cancelsKept is how long a cancel is kept for whoever answers the request.
	cancelsKept = 10 * time.Minute
)

// A Question is one about a gate that left for a client of a session, whose reply
// may reach any process with this store.
type Question struct {
	ID      string // its JSON-RPC id, which nobody can guess; also its nonce
	Session string
	Run     string
	Gate    string
	Sent    time.Time
	Field   string // a renamed answer field; "" for the usual one
	URL     bool   // asked by the console's page
	Again   bool   // asked once more after an invalid answer
}

const questionColumns = `q.id, q.session, q.run, q.gate, q.sent, q.field, q.url, q.again`

func scanQuestion(s scanner) (Question, error) {
	var q Question
	var sent int64
	err := s.Scan(&q.ID, &q.Session, &q.Run, &q.Gate, &sent, &q.Field, &q.URL, &q.Again)
	q.Sent = time.UnixMilli(sent)
	return q, err
}

// openQuestion is what a question must be that can be answered: one of its session,
// not settled, and about a gate that waits.
const openQuestion = ` from questions q join gates g on g.id=q.gate where q.session=? and q.settled is null and g.decision is null`

// AskSession records a question that is about to leave, as Ask does. One about a
// gate that is decided, or unknown, is not recorded.
func (e *Engine) AskSession(ctx context.Context, q Question) error {
	if q.Session == "" {
		return errors.New("engine: a question of a session needs its session")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := e.update(ctx, e.runOf(ctx, []string{q.Gate}), func(tx *sql.Tx) error {
		open, decided, err := nonces(ctx, tx, q.Gate)
		if err != nil || decided {
			return err
		}
		if err := putNonces(ctx, tx, q.Gate, append(open, q.ID), q.Sent); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `insert into questions(id, session, run, gate, sent, field, url, again) values(?,?,?,?,?,?,?,?)`,
			q.ID, q.Session, q.Run, q.Gate, q.Sent.UnixMilli(), q.Field, q.URL, q.Again)
		return err
	})
	if err != nil {
		return fmt.Errorf("run store: %w", err)
	}
	return nil
}

// Question returns a question of the session that can be answered; ok is false if
// there is none.
func (e *Engine) Question(ctx context.Context, session, id string) (q Question, ok bool, err error) {
	return e.question(ctx, `select `+questionColumns+openQuestion+` and q.id=?`, session, id)
}

// QuestionAbout is the latest question about a gate that stands open at the client
// of the session; ok is false if there is none.
func (e *Engine) QuestionAbout(ctx context.Context, session, gate string) (q Question, ok bool, err error) {
	return e.question(ctx, `select `+questionColumns+openQuestion+` and q.gate=? order by q.sent desc, q.id limit 1`, session, gate)
}

func (e *Engine) question(ctx context.Context, query string, args ...any) (Question, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	q, err := scanQuestion(e.store.Read.QueryRowContext(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return Question{}, false, nil
	}
	if err != nil {
		return Question{}, false, fmt.Errorf("run store: %w", err)
	}
	return q, true, nil
}

// SettleQuestion ends a question with an outcome, once, and spends its nonce; good
// reports whether it was this call that did. It is false too for a question that is
// not known or whose nonce is spent.
func (e *Engine) SettleQuestion(ctx context.Context, q Question, outcome string) (good bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = e.update(ctx, e.runOf(ctx, []string{q.Gate}), func(tx *sql.Tx) error {
		good = false
		open, _, err := nonces(ctx, tx, q.Gate)
		if err != nil {
			return err
		}
		at := slices.Index(open, q.ID)
		if at < 0 {
			return nil
		}
		done, err := tx.ExecContext(ctx, `update questions set outcome=?, settled=? where id=? and settled is null`, outcome, e.now().UnixMilli(), q.ID)
		if err != nil {
			return err
		}
		n, err := done.RowsAffected()
		if err != nil || n == 0 {
			return err
		}
		good = true
		_, err = tx.ExecContext(ctx, `update gates set nonce=? where id=?`, text(strings.Join(slices.Delete(open, at, at+1), " ")), q.Gate)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("run store: %w", err)
	}
	return good, nil
}

// Outcome is what a question was settled with; ok is false for one that was not.
func (e *Engine) Outcome(ctx context.Context, question string) (outcome string, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var found sql.NullString
	err = e.store.Read.QueryRowContext(ctx, `select outcome from questions where id=?`, question).Scan(&found)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", false, fmt.Errorf("run store: %w", err)
	}
	return found.String, found.Valid, nil
}

// SeenSession tells when any process last noted that a session was used, zero for
// never, and whether it was ended.
func (e *Engine) SeenSession(ctx context.Context, session string) (seen time.Time, ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var at, end sql.NullInt64
	err = e.store.Read.QueryRowContext(ctx, `select seen, ended from sessions where id=?`, session).Scan(&at, &end)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, false, fmt.Errorf("run store: %w", err)
	}
	return stamp(at), end.Valid, nil
}

// SeeSessions notes when sessions were last used.
func (e *Engine) SeeSessions(ctx context.Context, used map[string]time.Time) error {
	return e.sessions(ctx, func(tx *sql.Tx) error {
		for _, id := range slices.Sorted(maps.Keys(used)) {
			if _, err := tx.ExecContext(ctx, `insert into sessions(id, seen) values(?,?)
				on conflict(id) do update set seen=excluded.seen where sessions.seen<excluded.seen`, id, used[id].UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
}

// EndSession ends a session in all processes.
func (e *Engine) EndSession(ctx context.Context, session string) error {
	return e.sessions(ctx, func(tx *sql.Tx) error {
		now := e.now().UnixMilli()
		_, err := tx.ExecContext(ctx, `insert into sessions(id, seen, ended) values(?,?,?)
			on conflict(id) do update set ended=excluded.ended where sessions.ended is null`, session, now, now)
		return err
	})
}

// CancelCall asks whichever process answers a request of a session to take it for
// cancelled by its client, and returns by which id SessionNews tells of that. done
// says that one has done so.
func (e *Engine) CancelCall(ctx context.Context, session, call, reason string, done bool) (id string, err error) {
	made, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	id = made.String()
	return id, e.sessions(ctx, func(tx *sql.Tx) error {
		now := e.now()
		ended := time.Time{}
		if done {
			ended = now
		}
		_, err := tx.ExecContext(ctx, `insert into cancels(id, session, call, reason, sent, done) values(?,?,?,?,?,?)`,
			id, session, call, reason, now.UnixMilli(), millis(ended))
		return err
	})
}

// CallCancelled notes that what CancelCall asked for is done.
func (e *Engine) CallCancelled(ctx context.Context, id string) error {
	return e.sessions(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update cancels set done=? where id=? and done is null`, e.now().UnixMilli(), id)
		return err
	})
}

// Cancelling reports whether a request of the session was cancelled since a time
// and no process has done it yet.
func (e *Engine) Cancelling(ctx context.Context, session string, since time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var n int64
	if err := e.store.Read.QueryRowContext(ctx, `select count(*) from cancels where session=? and done is null and sent>=?`, session, since.UnixMilli()).Scan(&n); err != nil {
		return false, fmt.Errorf("run store: %w", err)
	}
	return n > 0, nil
}

// ForgetSessions deletes what nobody asks for any more of sessions that were last
// used, or ended, before a time.
func (e *Engine) ForgetSessions(ctx context.Context, before time.Time) error {
	return e.sessions(ctx, func(tx *sql.Tx) error {
		cut := before.UnixMilli()
		for query, at := range map[string]int64{
			`delete from sessions where coalesce(ended, seen)<?`: cut,
			`delete from questions where sent<?`:                 cut,
			`delete from cancels where sent<?`:                   max(cut, e.now().Add(-cancelsKept).UnixMilli()),
		} {
			if _, err := tx.ExecContext(ctx, query, at); err != nil {
				return err
			}
		}
		return nil
	})
}

func (e *Engine) sessions(ctx context.Context, f func(tx *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.update(ctx, "", f); err != nil {
		return fmt.Errorf("run store: %w", err)
	}
	return nil
}

// SessionNews is what any process wrote lately of sessions.
type SessionNews struct {
	Ended   []string          // sessions
	Settled map[string]string // outcomes, by question
	Cancels []CallCancel
}

// A CallCancel is a request of a session that its client cancelled.
type CallCancel struct {
	ID            string // of the cancel
	Session, Call string
	Reason        string
	Sent          time.Time
}

// SessionNews tells what was written in the last minute, also what it told of
// before.
func (e *Engine) SessionNews(ctx context.Context) (SessionNews, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	news, err := e.sessionNews(ctx, e.now().Add(-newsReach).UnixMilli())
	if err != nil {
		return SessionNews{}, fmt.Errorf("run store: %w", err)
	}
	return news, nil
}

func (e *Engine) sessionNews(ctx context.Context, since int64) (SessionNews, error) {
	rows, err := e.store.Read.QueryContext(ctx, `select 1, id, '', '', '', ended from sessions where ended is not null and ended>=?
		union all select 2, id, outcome, '', '', settled from questions where settled is not null and settled>=?
		union all select 3, id, session, call, reason, sent from cancels where sent>=?`, since, since, since)
	if err != nil {
		return SessionNews{}, err
	}
	defer func() { _ = rows.Close() }()
	var news SessionNews
	for rows.Next() {
		var kind, at int64
		var c CallCancel
		if err := rows.Scan(&kind, &c.ID, &c.Session, &c.Call, &c.Reason, &at); err != nil {
			return SessionNews{}, err
		}
		switch kind {
		case 1:
			news.Ended = append(news.Ended, c.ID)
		case 2:
			if news.Settled == nil {
				news.Settled = map[string]string{}
			}
			news.Settled[c.ID] = c.Session
		case 3:
			c.Sent = time.UnixMilli(at)
			news.Cancels = append(news.Cancels, c)
		}
	}
	return news, rows.Err()
}
