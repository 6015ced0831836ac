package engine

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/workflows"
)

// patience bounds how long a call waits for a store that others hold.
const patience = 15 * time.Second

// keyLife is how long an idempotency key joins (decided: 24 h).
const keyLife = 24 * time.Hour

// Start makes a run durable and begins it, or names the run that the request
// joins. Errors: *KeyConflictError, *RunError with code validation (context
// values that cannot be resolved; no run exists then), ErrClosed.
func (e *Engine) Start(ctx context.Context, req StartRequest) (Started, error) {
	me, err := e.executes()
	if err != nil {
		return Started{}, err
	}
	select {
	case <-e.closing:
		return Started{}, ErrClosed
	default:
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	args, err := digest(req.Arguments)
	if err != nil {
		return Started{}, fmt.Errorf("engine: arguments: %w", err)
	}
	if len(req.Workflow.Context) > 0 || e.opt.Attend != nil {
		// A run to join needs nothing of its own; only a new one reads files and connects.
		if found, err := e.join(ctx, e.store.Read, req, args); err != nil || found.Run != "" {
			return found, err
		}
	}
	values, err := resolveContext(req, e.opt.ReadFile)
	if err != nil {
		return Started{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Started{}, err
	}
	needs := e.needs(req)
	elsewhere, err := e.elsewhere(ctx, req, needs)
	if err != nil {
		return Started{}, err
	}
	leave := func(bool) {}
	if !elsewhere {
		if leave, err = e.attendNew(caller, req, id.String()); err != nil {
			if now, gone := e.executes(); gone != nil || now != me {
				err = ErrCutOff // what was attended to went with the executor
			}
			return Started{}, err
		}
	}
	made := false
	defer func() { leave(!made) }() // the first segment attends by itself
	if caller.Err() != nil {
		return Started{}, context.Cause(caller)
	}
	// From here on a cancel comes too late to be clear: it is for the run.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(caller), patience)
	defer cancel()
	now := e.now()
	out := Started{Run: id.String(), Since: now}
	again := false
	err = e.update(ctx, lockOf(req, out.Run), func(tx *sql.Tx) error {
		if again { // the store may have kept it and not said so
			var made bool
			if err := tx.QueryRowContext(ctx, `select exists(select 1 from runs where id=?)`, out.Run).Scan(&made); err != nil || made {
				return err
			}
		}
		again = true
		found, err := e.join(ctx, tx, req, args)
		if err != nil {
			return err
		}
		if found.Run != "" {
			out = found
			return nil
		}
		return e.insertRun(ctx, tx, req, out.Run, args, values, needs, now)
	})
	if err != nil || out.Joined {
		return out, err
	}
	made = !elsewhere
	e.remember(req.Workflow)
	if elsewhere {
		e.log.LogAttrs(ctx, slog.LevelInfo, "left to another replica", runAttr(out.Run))
		return out, nil
	}
	e.expect(&row{
		id: out.Run, project: req.Project.Key, root: req.Project.Root, workflow: req.Workflow.ID, digest: req.Workflow.Digest(),
		principal: req.Principal, source: req.Source, client: req.Client, inputs: req.Arguments, ctx: values, state: Running,
		deadline: deadlineOf(req.Workflow, now), created: time.UnixMilli(now.UnixMilli()), started: now, holder: e.holderFor(req.Source),
		kept: req.Source == "cli", lastEvent: -1, needs: needs, trace: req.Trace, depth: req.Depth,
	})
	if err := me.Start(durable.Ref{Run: out.Run}); err != nil {
		// The run is durable: the janitor begins it, or the next process does.
		e.log.LogAttrs(ctx, levelOf(time.Second), "run begins later", runAttr(out.Run), errAttr(err))
		e.look()
	}
	return out, nil
}

// holderFor is who holds the call of a new run: nobody does for the command line.
func (e *Engine) holderFor(source string) string {
	if source == "cli" {
		return ""
	}
	return e.me()
}

func deadlineOf(w *workflows.Workflow, created time.Time) time.Time {
	if w.Timeout <= 0 {
		return time.Time{}
	}
	return created.Add(w.Timeout)
}

// fresh is a run that Start has just made: its first segment need not read what is
// known, and its first call finds all its events here.
type fresh struct {
	row    *row
	stream *stream // held for the first call
	since  time.Time
}

// keepFresh is how long the first call may take to attach.
const keepFresh = 10 * time.Second

func (e *Engine) expect(r *row) {
	s := e.stream(r.id, 0)
	e.mu.Lock()
	e.fresh[r.id] = &fresh{row: r, stream: s, since: e.now()}
	e.mu.Unlock()
}

// begun is the row of a segment that begins.
func (e *Engine) begun(ctx context.Context, seg *durable.Segment) (*row, error) {
	if seg.K == 0 && !seg.Again {
		e.mu.Lock()
		f := e.fresh[seg.Run]
		e.mu.Unlock()
		if f != nil {
			own := *f.row
			return &own, nil
		}
	}
	return e.row(ctx, seg.Run)
}

// first gives the hold on a fresh run's stream to its first call.
func (e *Engine) first(run string, p Principal) *stream {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.fresh[run]
	if f == nil || p != "" && p != f.row.principal {
		return nil
	}
	delete(e.fresh, run)
	return f.stream
}

// dropFresh lets go of runs that no call attached to.
func (e *Engine) dropFresh(now time.Time) {
	e.mu.Lock()
	var old []*stream
	for run, f := range e.fresh {
		if now.Sub(f.since) > keepFresh {
			delete(e.fresh, run)
			old = append(old, f.stream)
		}
	}
	e.mu.Unlock()
	for _, s := range old {
		e.release(s)
	}
}

func digest(value json.RawMessage) (string, error) {
	canonical, err := workflows.Canonical(value)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// join finds the run that answers the request without a new one: by its key, or,
// for a call without key, one that lost its caller.
func (e *Engine) join(ctx context.Context, q querier, req StartRequest, args string) (Started, error) {
	var id, argsDigest string
	var created int64
	var row *sql.Row
	now := e.now()
	switch {
	case req.IdempotencyKey != "":
		row = q.QueryRowContext(ctx, `select id, args_digest, created from runs
			where project=? and workflow=? and principal=? and idem_key=? and created>?`,
			req.Project.Key, req.Workflow.ID, string(req.Principal), req.IdempotencyKey, now.Add(-keyLife).UnixMilli())
	case req.Join:
		row = q.QueryRowContext(ctx, `select id, args_digest, created from runs
			where project=? and workflow=? and principal=? and args_digest=? and digest=? and detached>=?
			and (state in ('running','waiting') or (state='completed' and claimed is null))
			order by detached desc limit 1`,
			req.Project.Key, req.Workflow.ID, string(req.Principal), args, req.Workflow.Digest(), now.Add(-e.opt.JoinWindow).UnixMilli())
	default:
		return Started{}, nil
	}
	switch err := row.Scan(&id, &argsDigest, &created); {
	case errors.Is(err, sql.ErrNoRows):
		return Started{}, nil
	case err != nil:
		return Started{}, fmt.Errorf("run store: %w", err)
	case argsDigest != args:
		return Started{}, &KeyConflictError{Run: id}
	}
	return Started{Run: id, Joined: true, Since: time.UnixMilli(created)}, nil
}

// lockOf names what two first calls must not make at the same time.
func lockOf(req StartRequest, run string) string {
	switch {
	case req.IdempotencyKey != "":
		return strings.Join([]string{"key", req.Project.Key, req.Workflow.ID, string(req.Principal), req.IdempotencyKey}, "\x1f")
	case req.Join:
		return strings.Join([]string{"join", req.Project.Key, req.Workflow.ID, string(req.Principal)}, "\x1f")
	}
	return run
}

func (e *Engine) insertRun(ctx context.Context, tx *sql.Tx, req StartRequest, id, args string, values json.RawMessage, needs *Needs, now time.Time) error {
	w := req.Workflow
	if _, err := tx.ExecContext(ctx, `insert into definitions(digest, json) values(?,?) on conflict(digest) do nothing`,
		w.Digest(), string(w.Snapshot())); err != nil {
		return err
	}
	if req.IdempotencyKey != "" {
		// A key older than its life may still stand in a row that the janitor has not reached.
		if _, err := tx.ExecContext(ctx, `update runs set idem_key=null where project=? and workflow=? and principal=? and idem_key=?`,
			req.Project.Key, w.ID, string(req.Principal), req.IdempotencyKey); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, `insert into runs(id, project, root, workflow, digest, principal, source, client, idem_key, args_digest,
		inputs, ctx, state, deadline, created, started, holder, kept, needs, trace, depth) values(?,?,?,?,?,?,?,?,?,?,?,?,'running',?,?,?,?,?,?,?,?)`,
		id, req.Project.Key, req.Project.Root, w.ID, w.Digest(), string(req.Principal), req.Source, req.Client, text(req.IdempotencyKey), args,
		string(req.Arguments), string(values), millis(deadlineOf(w, now)), now.UnixMilli(), now.UnixMilli(), text(e.holderFor(req.Source)), req.Source == "cli", needs.column(), text(req.Trace), req.Depth)
	if err != nil {
		return err
	}
	return putAudit(ctx, tx, AuditEntry{
		Time: now, Principal: req.Principal, Via: req.Source, Action: AuditRunStarted, Run: id, Workflow: w.ID, Digest: w.Digest(),
	})
}

// resolveContext evaluates the workflow's context once, in declared order: each
// entry sees the inputs and the entries before it. A tainted entry keeps its
// reference only. [variables] of the config stand below.
func resolveContext(req StartRequest, readFile func(root, path string) ([]byte, error)) (json.RawMessage, error) {
	inputs, err := workflows.Members(req.Arguments)
	if err != nil {
		return nil, fmt.Errorf("engine: arguments: %w", err)
	}
	var entries []workflows.Member
	for _, name := range slices.Sorted(maps.Keys(req.Variables)) {
		if !slices.ContainsFunc(req.Workflow.Context, func(c workflows.ContextEntry) bool { return c.Key == name }) {
			entries = append(entries, workflows.Member{Key: name, Value: quote(req.Variables[name])})
		}
	}
	scope := workflows.Scope{
		Inputs: lookup(inputs),
		ReadFile: func(path string) ([]byte, error) {
			if readFile == nil {
				return nil, errors.New("no file can be read here")
			}
			return readFile(req.Project.Root, path)
		},
	}
	for _, c := range req.Workflow.Context {
		value := c.Value.Literal
		if t := c.Value.Template; t != nil && c.Tainted {
			value = workflows.Object([]workflows.Member{{Key: "secret", Value: json.RawMessage("true")}, {Key: "ref", Value: quote("ctx:" + c.Key)}})
		} else if t != nil {
			scope.Ctx = lookup(entries)
			rendered, err := t.Render(scope)
			if err != nil {
				return nil, &RunError{Code: CodeValidation, Message: fmt.Sprintf("context %q: %s", c.Key, err)}
			}
			value = quote(rendered)
		}
		entries = append(entries, workflows.Member{Key: c.Key, Value: value})
	}
	return workflows.Object(entries), nil
}

func lookup(members []workflows.Member) func(string) (json.RawMessage, bool) {
	return func(name string) (json.RawMessage, bool) {
		for i := range members {
			if members[i].Key == name {
				return members[i].Value, true
			}
		}
		return nil, false
	}
}

// quote writes a string as JSON.
func quote(s string) json.RawMessage {
	raw, err := encode(s)
	if err != nil {
		return json.RawMessage(`""`) // a string always has a JSON form
	}
	return raw
}
