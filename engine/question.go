package engine

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
)

// keepNonces bounds the questions about one gate that may be open at once, one
// for each call that waits; the oldest goes first.
const keepNonces = 16

// Ask records that a question about gates, known by its nonce, left at that
// time. A gate that is decided, or unknown, takes none. The nonce is spent by
// Spend, or when keepNonces later questions about the same gate left.
func (e *Engine) Ask(ctx context.Context, nonce string, at time.Time, gates ...string) error {
	if nonce == "" || strings.ContainsAny(nonce, " \t\n") {
		return fmt.Errorf("engine: %q is no nonce", nonce)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := e.update(ctx, e.runOf(ctx, gates), func(tx *sql.Tx) error {
		for _, gate := range gates {
			open, decided, err := nonces(ctx, tx, gate)
			if err != nil {
				return err
			}
			if decided {
				continue
			}
			if err := putNonces(ctx, tx, gate, append(open, nonce), at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("run store: %w", err)
	}
	return nil
}

// Spend uses up a question's nonce at each of gates and returns those at which
// it was still good, which it is once. An answer counts only there.
func (e *Engine) Spend(ctx context.Context, nonce string, gates ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var good []string
	err := e.update(ctx, e.runOf(ctx, gates), func(tx *sql.Tx) error {
		good = nil
		for _, gate := range gates {
			open, decided, err := nonces(ctx, tx, gate)
			if err != nil {
				return err
			}
			at := slices.Index(open, nonce)
			if decided || at < 0 {
				continue
			}
			if _, err := tx.ExecContext(ctx, `update gates set nonce=? where id=?`,
				text(strings.Join(slices.Delete(open, at, at+1), " ")), gate); err != nil {
				return err
			}
			good = append(good, gate)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	return good, nil
}

// putNonces records the open questions of a gate, of which the last left at that time.
func putNonces(ctx context.Context, tx *sql.Tx, gate string, open []string, at time.Time) error {
	_, err := tx.ExecContext(ctx, `update gates set asked=?, nonce=? where id=? and decision is null`,
		at.UnixMilli(), strings.Join(trimmed(open), " "), gate)
	return err
}

// nonces are those of a gate's open questions, oldest first; an unknown gate
// reads like a decided one.
func nonces(ctx context.Context, tx *sql.Tx, gate string) (open []string, decided bool, err error) {
	rows, err := tx.QueryContext(ctx, `select coalesce(nonce, ''), decision is not null from gates where id=?`, gate)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = rows.Close() }()
	decided = true
	for rows.Next() {
		var list string
		if err := rows.Scan(&list, &decided); err != nil {
			return nil, false, err
		}
		open = strings.Fields(list)
	}
	return open, decided, rows.Err()
}

// runOf is the run of gates that a question is about, whose updates follow one
// another; "" where one writer sees to that.
func (e *Engine) runOf(ctx context.Context, gates []string) string {
	if !e.store.Shared() || len(gates) == 0 {
		return ""
	}
	g, err := e.Gate(ctx, gates[0])
	if err != nil {
		return ""
	}
	return g.Run
}
