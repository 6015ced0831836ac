package engine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Among the nonces of a gate stands at most one mark of the task of its run. It
// outlives them, and the gate's decision.
const (
	taskMark = "task:"
	taskShut = taskMark + "shut"
)

// A Showing is how the question about a gate stands in the task of its run. Its
// zero value is that of a gate which no task showed.
type Showing struct {
	Since time.Time // when it was first shown; zero means not yet
	Again bool      // it is asked once more, after an answer that was none
}

func (s Showing) mark() string {
	times, since := "1:", "0"
	if s.Again {
		times = "2:"
	}
	if !s.Since.IsZero() {
		since = strconv.FormatInt(s.Since.UnixMilli(), 10)
	}
	return taskMark + times + since
}

func showingOf(mark string) Showing {
	times, since, _ := strings.Cut(strings.TrimPrefix(mark, taskMark), ":")
	s := Showing{Again: times == "2"}
	if at, err := strconv.ParseInt(since, 10, 64); err == nil && at > 0 {
		s.Since = time.UnixMilli(at)
	}
	return s
}

// markOf is the mark among nonces, or "".
func markOf(nonces []string) string {
	if at := slices.IndexFunc(nonces, marks); at >= 0 {
		return nonces[at]
	}
	return ""
}

func marks(nonce string) bool { return strings.HasPrefix(nonce, taskMark) }

// trimmed drops the oldest nonces that are too many, but no mark.
func trimmed(nonces []string) []string {
	for len(nonces) > keepNonces {
		oldest := slices.IndexFunc(nonces, func(n string) bool { return !marks(n) })
		nonces = slices.Delete(nonces, oldest, oldest+1)
	}
	return nonces
}

// Shown tells how the questions about a run's gates stand in its task, by gate.
// open is false once the task asks no more.
func (e *Engine) Shown(ctx context.Context, run string) (shown map[string]Showing, open bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	shown, open, err = showings(ctx, e.store.Read, run)
	if err != nil {
		return nil, false, fmt.Errorf("run store: %w", err)
	}
	return shown, open, nil
}

type rower interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func showings(ctx context.Context, db rower, run string) (shown map[string]Showing, open bool, err error) {
	rows, err := db.QueryContext(ctx, `select id, nonce from gates where run=? and nonce is not null`, run)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = rows.Close() }()
	shown, open = map[string]Showing{}, true
	for rows.Next() {
		var gate, list string
		if err := rows.Scan(&gate, &list); err != nil {
			return nil, false, err
		}
		switch mark := markOf(strings.Fields(list)); mark {
		case "":
		case taskShut:
			open = false
		default:
			shown[gate] = showingOf(mark)
		}
	}
	return shown, open, rows.Err()
}

// Show records that the task of a run shows questions about gates at that time,
// and tells how they stand: those that it showed before, since when it did. open
// is false, and nothing is recorded, once the task asks no more.
func (e *Engine) Show(ctx context.Context, run string, at time.Time, gates ...string) (shown map[string]Showing, open bool, err error) {
	if shown, open, err = e.Shown(ctx, run); err != nil || !open {
		return nil, open, err
	}
	if !slices.ContainsFunc(gates, func(gate string) bool { return shown[gate].Since.IsZero() }) {
		return shown, open, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = e.update(ctx, run, func(tx *sql.Tx) error {
		var err error
		if shown, open, err = showings(ctx, tx, run); err != nil || !open {
			return err
		}
		for _, gate := range gates {
			was := shown[gate]
			if !was.Since.IsZero() {
				continue
			}
			now := Showing{Since: at, Again: was.Again}
			if ok, err := remark(ctx, tx, run, gate, was.mark(), now.mark()); err != nil || !ok {
				return err
			}
			shown[gate] = now
		}
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("run store: %w", err)
	}
	return shown, open, nil
}

// Reshow ends a question that the task of a run shows: it is asked once more if
// again is true, else the task asks no more, about no gate. It reports whether
// the question stood so; an answer to it counts only then.
func (e *Engine) Reshow(ctx context.Context, run, gate string, was Showing, again bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	mark := taskShut
	if again {
		mark = Showing{Again: true}.mark()
	}
	good := false
	err := e.update(ctx, run, func(tx *sql.Tx) error {
		var err error
		good, err = remark(ctx, tx, run, gate, was.mark(), mark)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("run store: %w", err)
	}
	return good, nil
}

// remark changes the mark of an open gate, if it is the one that is given; that
// of the zero Showing stands for none too.
func remark(ctx context.Context, tx *sql.Tx, run, gate, was, mark string) (bool, error) {
	var list string
	err := tx.QueryRowContext(ctx, `select coalesce(nonce, '') from gates where id=? and run=? and decision is null`, gate, run).Scan(&list)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	nonces := strings.Fields(list)
	found := markOf(nonces)
	if found != was && (found != "" || was != Showing{}.mark()) {
		return false, nil
	}
	nonces = append(slices.DeleteFunc(nonces, marks), mark)
	_, err = tx.ExecContext(ctx, `update gates set nonce=? where id=?`, strings.Join(trimmed(nonces), " "), gate)
	return err == nil, err
}
