package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/workflows"
)

// row is a run as the table has it.
type row struct {
	id, project, root, workflow, digest string
	principal                           Principal
	source, client                      string
	inputs, ctx                         json.RawMessage
	state                               State
	seg                                 int
	settled                             []settled
	epoch                               int64
	deadline, created, started, ended   time.Time
	holder                              string // executor of the process that holds the last call
	detached                            time.Time
	detachReason                        string
	kept                                bool
	cancelBy, cancelReason              string
	failure                             *RunError
	outputs                             json.RawMessage
	cost, reserved                      int64
	needs                               *Needs // nil: nothing is known of it
	trace                               string
	depth                               int // of our endpoints that called one another
	lastEvent                           int64
}

// settled is one node that a closed segment left behind: what the next one builds on.
type settled struct {
	Node     string          `json:"id"`
	State    string          `json:"s"` // completed, failed, skipped
	Output   json.RawMessage `json:"out,omitempty"`
	Selected []string        `json:"sel,omitzero"`
	Reason   string          `json:"r,omitempty"`
	Tokens   *Tokens         `json:"tok,omitempty"`
}

const runColumns = `id, project, root, workflow, digest, principal, source, client, inputs, ctx, state, seg, settled, epoch,
	deadline, created, started, ended, holder, detached, detach_reason, kept, cancel_by, cancel_reason, error, outputs, cost, reserved, last_event, needs, trace, depth`

type scanner interface{ Scan(dest ...any) error }

func scanRun(s scanner) (*row, error) {
	var (
		r                                       row
		inputs, ctx, rest                       string
		deadline, started, ended, detached      sql.NullInt64
		holder, detachReason                    sql.NullString
		cancelBy, cancelReason, failure, result sql.NullString
		needs, trace                            sql.NullString
		created                                 int64
	)
	err := s.Scan(&r.id, &r.project, &r.root, &r.workflow, &r.digest, &r.principal, &r.source, &r.client, &inputs, &ctx, &r.state,
		&r.seg, &rest, &r.epoch, &deadline, &created, &started, &ended, &holder, &detached, &detachReason, &r.kept, &cancelBy, &cancelReason,
		&failure, &result, &r.cost, &r.reserved, &r.lastEvent, &needs, &trace, &r.depth)
	if err != nil {
		return nil, err
	}
	r.inputs, r.ctx = json.RawMessage(inputs), json.RawMessage(ctx)
	r.deadline, r.started, r.ended, r.detached = stamp(deadline), stamp(started), stamp(ended), stamp(detached)
	r.created = time.UnixMilli(created)
	r.holder, r.detachReason, r.cancelBy, r.cancelReason = holder.String, detachReason.String, cancelBy.String, cancelReason.String
	if err := json.Unmarshal([]byte(rest), &r.settled); err != nil {
		return nil, fmt.Errorf("run store: settled nodes of run %s: %w", r.id, err)
	}
	r.trace = trace.String
	if needs.Valid {
		r.needs = new(Needs)
		if err := json.Unmarshal([]byte(needs.String), r.needs); err != nil {
			return nil, fmt.Errorf("run store: needs of run %s: %w", r.id, err)
		}
	}
	if failure.Valid {
		r.failure = new(RunError)
		if err := json.Unmarshal([]byte(failure.String), r.failure); err != nil {
			return nil, fmt.Errorf("run store: error of run %s: %w", r.id, err)
		}
	}
	if result.Valid {
		r.outputs = json.RawMessage(result.String)
	}
	return &r, nil
}

func (r *row) public() Run {
	out := Run{
		ID: r.id, Project: r.project, Root: r.root, Workflow: r.workflow, Digest: r.digest, Principal: r.principal,
		Source: r.source, Client: r.client, State: r.state, Error: r.failure, Outputs: r.outputs, Inputs: r.inputs,
		Cost: r.cost, Trace: r.trace, Depth: r.depth, Created: r.created, Started: r.started, Ended: r.ended, Deadline: r.deadline,
	}
	if r.state == Blocked && r.failure != nil {
		out.Reason, out.Error = r.failure.Message, nil
	}
	return out
}

func stamp(v sql.NullInt64) time.Time {
	if !v.Valid {
		return time.Time{}
	}
	return time.UnixMilli(v.Int64)
}

// millis is a time as a column value; the zero time is null.
func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// text is a string as a column value; the empty one is null.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (e *Engine) row(ctx context.Context, id string) (*row, error) {
	r, err := scanRun(e.store.Read.QueryRowContext(ctx, `select `+runColumns+` from runs where id=?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrRunNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	return r, nil
}

// update runs f in one transaction, perhaps together with others, again while the
// store is busy, until ctx ends. f must use nothing but tx. Updates of the same run,
// "" where it is of none, follow one another.
func (e *Engine) update(ctx context.Context, run string, f func(tx *sql.Tx) error) error {
	return e.persist(ctx, run, func() error { return e.store.Update(ctx, run, f) })
}

// updateFull is update whose commit waits for the disk.
func (e *Engine) updateFull(ctx context.Context, run string, f func(tx *sql.Tx) error) error {
	return e.persist(ctx, run, func() error { return e.store.UpdateFull(ctx, run, f) })
}

func (e *Engine) persist(ctx context.Context, run string, write func() error) error {
	wait := 10 * time.Millisecond
	for {
		err := write()
		if err == nil || !durable.Busy(err) {
			return err
		}
		e.log.LogAttrs(ctx, levelOf(wait), "run store is busy", slog.String("run", run), errAttr(err))
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// putEvents stores events that follow one another, as one row.
func putEvents(ctx context.Context, tx *sql.Tx, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	raw, err := encode(events)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `insert into events(run, n, count, json) values(?,?,?,?)`, events[0].Run, events[0].N, len(events), string(raw))
	return err
}

// getEvents reads a row of events.
func getEvents(run, raw string) ([]Event, error) {
	var out []Event
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		return nil, fmt.Errorf("run store: events of run %s: %w", run, err)
	}
	return out, nil
}

// Events returns the stored events of a run from sequence number from on.
func (e *Engine) Events(ctx context.Context, run string, from int64) ([]Event, error) {
	rows, err := e.store.Read.QueryContext(ctx, `select json from events where run=? and n+count>? order by n`, run, from)
	if err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var out []Event
	for rows.Next() {
		var raw string
		if err := rows.Scan(&raw); err != nil {
			return nil, fmt.Errorf("run store: %w", err)
		}
		events, err := getEvents(run, raw)
		if err != nil {
			return nil, err
		}
		skip := 0
		for skip < len(events) && events[skip].N < from {
			skip++
		}
		out = append(out, events[skip:]...)
	}
	return out, rows.Err()
}

// Runs lists runs, newest first.
func (e *Engine) Runs(ctx context.Context, f RunFilter) ([]Run, error) {
	var where []string
	var args []any
	add := func(clause string, v any) {
		where, args = append(where, clause), append(args, v)
	}
	if f.Project != "" {
		add("project=?", f.Project)
	}
	if f.Principal != "" {
		add("principal=?", string(f.Principal))
	}
	if f.Workflow != "" {
		add("workflow=?", f.Workflow)
	}
	if f.Before != "" {
		add("id<?", f.Before)
	}
	if len(f.States) > 0 {
		marks := make([]string, len(f.States))
		for i, s := range f.States {
			marks[i] = "?"
			if s == Parked {
				s = Running
			}
			args = append(args, string(s))
		}
		where = append(where, "state in ("+strings.Join(marks, ",")+")")
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 50
	}
	query := `select ` + runColumns + ` from runs`
	if len(where) > 0 {
		query += ` where ` + strings.Join(where, " and ")
	}
	rows, err := e.store.Read.QueryContext(ctx, query+` order by id desc limit ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	defer func() { _ = rows.Close() }()
	out := []Run{}
	for rows.Next() {
		r, err := scanRun(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, r.public())
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	return out, e.markParked(ctx, out)
}

// markParked shows as parked what is running with no process to run it.
func (e *Engine) markParked(ctx context.Context, runs []Run) error {
	alive := make(map[string]bool)
	for i := range runs {
		r := &runs[i]
		if r.State != Running {
			continue
		}
		live, known := alive[r.Project]
		if !known {
			var err error
			if live, err = e.Alive(ctx, r.Project); err != nil {
				return err
			}
			alive[r.Project] = live
		}
		if !live {
			r.State = Parked
			r.Reason = "no process executes runs of this project"
		}
	}
	return nil
}

// Definition returns the workflow that the run is pinned to.
func (e *Engine) Definition(ctx context.Context, run string) (*workflows.Workflow, error) {
	r, err := e.row(ctx, run)
	if err != nil {
		return nil, err
	}
	return e.definition(ctx, r.digest)
}

func (e *Engine) definition(ctx context.Context, digest string) (*workflows.Workflow, error) {
	e.mu.Lock()
	w := e.definitions[digest]
	e.mu.Unlock()
	if w != nil {
		return w, nil
	}
	var raw string
	if err := e.store.Read.QueryRowContext(ctx, `select json from definitions where digest=?`, digest).Scan(&raw); err != nil {
		return nil, fmt.Errorf("run store: definition %s: %w", digest, err)
	}
	w, err := e.opt.Load(json.RawMessage(raw))
	if err != nil {
		return nil, fmt.Errorf("definition %s: %w", digest, err)
	}
	e.remember(w)
	return w, nil
}

// keepDefinitions bounds the checked definitions kept in memory.
const keepDefinitions = 1024

func (e *Engine) remember(w *workflows.Workflow) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.definitions) >= keepDefinitions {
		clear(e.definitions)
	}
	e.definitions[w.Digest()] = w
}
