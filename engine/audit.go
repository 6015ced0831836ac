package engine

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// keepAudit is how long entries of the audit log are kept.
const keepAudit = 400 * 24 * time.Hour

// The actions of the audit log that the engine records itself; others are recorded
// by whoever does them, with Record.
const (
	AuditRunStarted  = "run.started"
	AuditRunEnded    = "run.ended"    // Decision is the run's state
	AuditRunCancel   = "run.cancel"   // somebody asked for the end of a run
	AuditGateOpened  = "gate.opened"  // What is the gate's node
	AuditGateDecided = "gate.decided" // What is the gate's node
)

// An AuditEntry says who did what. It holds no value: no input, output or comment.
type AuditEntry struct {
	ID        int64     `json:"id"` // rises with time
	Time      time.Time `json:"time"`
	Principal Principal `json:"principal"`
	Via       string    `json:"via,omitempty"` // mcp, cli, console, elicitation, timeout, ...
	Action    string    `json:"action"`
	Run       string    `json:"run,omitempty"`
	Workflow  string    `json:"workflow,omitempty"`
	Digest    string    `json:"definition,omitempty"` // of the run's definition
	Consent   string    `json:"consent,omitempty"`    // digest of a program
	Decision  string    `json:"decision,omitempty"`
	What      string    `json:"what,omitempty"` // node, server or token that it is about
}

// AuditFilter narrows Audit; zero fields do not filter.
type AuditFilter struct {
	Since  time.Time
	Run    string
	Before int64 // page on from this id, exclusive
	Limit  int   // 0 means 100
}

// Audit lists the audit log, newest first.
func (e *Engine) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	query, args := `select id, at, principal, via, action, run, workflow, digest, consent, decision, what from audit where at>=?`, []any{f.Since.UnixMilli()}
	if f.Since.IsZero() {
		args[0] = 0
	}
	if f.Run != "" {
		query, args = query+` and run=?`, append(args, f.Run)
	}
	if f.Before > 0 {
		query, args = query+` and id<?`, append(args, f.Before)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := e.store.Read.QueryContext(ctx, query+` order by id desc limit ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	defer func() { _ = rows.Close() }()
	out := []AuditEntry{}
	for rows.Next() {
		var a AuditEntry
		var at int64
		if err := rows.Scan(&a.ID, &at, &a.Principal, &a.Via, &a.Action, &a.Run, &a.Workflow, &a.Digest, &a.Consent, &a.Decision, &a.What); err != nil {
			return nil, fmt.Errorf("run store: %w", err)
		}
		a.Time = time.UnixMilli(at).UTC()
		out = append(out, a)
	}
	return out, rows.Err()
}

// Record adds an entry to the audit log; ID is given here, and Time where it is zero.
func (e *Engine) Record(ctx context.Context, a AuditEntry) error {
	if a.Time.IsZero() {
		a.Time = e.now()
	}
	return e.update(ctx, "", func(tx *sql.Tx) error { return putAudit(ctx, tx, a) })
}

func putAudit(ctx context.Context, tx *sql.Tx, a AuditEntry) error {
	_, err := tx.ExecContext(ctx, `insert into audit(at, principal, via, action, run, workflow, digest, consent, decision, what) values(?,?,?,?,?,?,?,?,?,?)`,
		a.Time.UnixMilli(), string(a.Principal), a.Via, a.Action, a.Run, a.Workflow, a.Digest, a.Consent, a.Decision, a.What)
	return err
}

// audited is an entry about a run.
func (r *row) audited(at time.Time, action, via, decision string) AuditEntry {
	return AuditEntry{
		Time: at, Principal: r.principal, Via: via, Action: action, Run: r.id, Workflow: r.workflow, Digest: r.digest, Decision: decision,
	}
}
