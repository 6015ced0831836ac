package engine

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of a Decision, in bytes.
const (
	MaxComment = maxGateText
	MaxPayload = 256 << 10
)

// maxGateText bounds what a person sees at a gate, in bytes.
const maxGateText = 64 << 10

const gateColumns = `g.id, g.run, r.workflow, g.node, g.key, g.reason, g.type, g.message, g.assignee, g.opened, g.expires,
	g.timeout_action, g.effect, g.decision, g.payload, g.comment, g.decided, g.decided_by, g.via`

func scanGate(s scanner) (Gate, error) {
	var g Gate
	var opened int64
	var expires, decided sql.NullInt64
	var decision, payload, by, via sql.NullString
	err := s.Scan(&g.ID, &g.Run, &g.Workflow, &g.Node, &g.Key, &g.Reason, &g.Type, &g.Message, &g.Assignee, &opened, &expires,
		&g.TimeoutAction, &g.effect, &decision, &payload, &g.Comment, &decided, &by, &via)
	if err != nil {
		return Gate{}, err
	}
	g.Opened, g.Expires, g.Decided = time.UnixMilli(opened), stamp(expires), stamp(decided)
	g.Decision, g.DecidedBy, g.Via = decision.String, by.String, via.String
	if payload.Valid {
		g.Payload = json.RawMessage(payload.String)
	}
	return g, nil
}

// Gates lists gates, oldest first.
func (e *Engine) Gates(ctx context.Context, f GateFilter) ([]Gate, error) {
	query := `select ` + gateColumns + ` from gates g join runs r on r.id=g.run where 1=1`
	var args []any
	if f.Project != "" {
		query, args = query+` and r.project=?`, append(args, f.Project)
	}
	if f.Run != "" {
		query, args = query+` and g.run=?`, append(args, f.Run)
	}
	if f.Open {
		query += ` and g.decision is null and r.ended is null`
	}
	if f.After != "" {
		query += ` and (g.opened, g.id) > (select opened, id from gates where id=?)`
		args = append(args, f.After)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 200
	}
	rows, err := e.store.Read.QueryContext(ctx, query+` order by g.opened, g.id limit ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("run store: %w", err)
	}
	defer func() { _ = rows.Close() }()
	out := []Gate{}
	for rows.Next() {
		g, err := scanGate(rows)
		if err != nil {
			return nil, fmt.Errorf("run store: %w", err)
		}
		out = append(out, g)
	}
	return out, rows.Err()
}

// Gate returns one gate by its id.
func (e *Engine) Gate(ctx context.Context, id string) (Gate, error) {
	return readGate(ctx, e.store.Read, id)
}

func readGate(ctx context.Context, q querier, id string) (Gate, error) {
	g, err := scanGate(q.QueryRowContext(ctx, `select `+gateColumns+` from gates g join runs r on r.id=g.run where g.id=?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return Gate{}, ErrGateNotFound
	}
	if err != nil {
		return Gate{}, fmt.Errorf("run store: %w", err)
	}
	return g, nil
}

// Decide settles a gate, once, for whoever is first. The same decision again is
// a success that changes nothing; another one, or one after the expiry, is a
// *DecidedError. The decision is on disk when it returns.
func (e *Engine) Decide(ctx context.Context, gate string, d Decision) (Gate, error) {
	if err := d.check(); err != nil {
		return Gate{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	g, next, err := e.decide(ctx, gate, d, e.now())
	e.traceDecision(ctx, began, &g, err)
	if err != nil {
		return g, err
	}
	e.decided(ctx, g, next)
	return g, nil
}

func (d *Decision) check() error {
	switch {
	case d.By == "" || d.Via == "":
		return errors.New("engine: a decision needs By and Via")
	case len(d.Comment) > MaxComment:
		return fmt.Errorf("engine: the comment is longer than %d bytes", MaxComment)
	case len(d.Payload) > MaxPayload:
		return fmt.Errorf("engine: the payload is longer than %d bytes", MaxPayload)
	}
	if d.Payload != nil {
		payload, err := workflows.Compact(d.Payload)
		if err != nil {
			return fmt.Errorf("engine: payload: %w", err)
		}
		d.Payload = payload
	}
	return nil
}

// decide writes the decision and, where the run waits for it, that its next segment
// is due: that is next, or 0.
func (e *Engine) decide(ctx context.Context, gate string, d Decision, at time.Time) (out Gate, next int, err error) {
	known, err := readGate(ctx, e.store.Read, gate)
	if err != nil {
		return Gate{}, 0, err
	}
	err = e.updateFull(ctx, known.Run, func(tx *sql.Tx) error {
		next = 0
		g, err := readGate(ctx, tx, gate)
		if err != nil {
			return err
		}
		out = g
		if g.Decision == d.Decision && bytes.Equal(g.Payload, d.Payload) {
			return nil // said twice
		}
		if g.Decision != "" || d.Via != ViaTimeout && !g.Expires.IsZero() && !at.Before(g.Expires) {
			return &DecidedError{Gate: g}
		}
		if !fits(g.Type, d.Decision) {
			return fmt.Errorf("engine: a gate of type %s is not answered by %s", g.Type, d.Decision)
		}
		if g.Reason == ReasonUnknown && d.Decision == InputProvided && !slices.Contains(unknownAnswers(), string(d.Payload)) {
			return errors.New("the answer is repeat, skip or fail")
		}
		person := d.Via == ViaConsole || d.Via == ViaCLI || d.Via == ViaCLINonInteractive
		err = tx.QueryRowContext(ctx, `update runs set kept=case when ?=1 then 1 else kept end, seg=case state when 'waiting' then seg+1 else seg end,
			state=case state when 'waiting' then 'running' else state end where id=? and ended is null returning case when state='running' then seg else 0 end`,
			person, g.Run).Scan(&next)
		if errors.Is(err, sql.ErrNoRows) {
			return &DecidedError{Gate: g}
		}
		if err != nil {
			return err
		}
		out.Decision, out.Payload, out.Comment, out.DecidedBy, out.Via = d.Decision, d.Payload, d.Comment, d.By, d.Via
		out.Decided = time.UnixMilli(at.UnixMilli())
		_, err = tx.ExecContext(ctx, `update gates set decision=?, payload=?, comment=?, decided=?, decided_by=?, via=? where id=?`,
			d.Decision, text(string(d.Payload)), d.Comment, at.UnixMilli(), d.By, d.Via, gate)
		if err != nil {
			return err
		}
		digest := ""
		if err := tx.QueryRowContext(ctx, `select digest from runs where id=?`, g.Run).Scan(&digest); err != nil {
			return err
		}
		return putAudit(ctx, tx, AuditEntry{
			Time: at, Principal: Principal(d.By), Via: d.Via, Action: AuditGateDecided, Run: g.Run, Workflow: g.Workflow, Digest: digest,
			Decision: d.Decision, What: g.Node,
		})
	})
	return out, next, err
}

func fits(gateType, decision string) bool {
	if decision == InputProvided {
		return gateType == "input"
	}
	return decision == Approved || decision == Rejected
}

// decided hands a decision to the run: to its segment here, or by beginning the next one.
func (e *Engine) decided(ctx context.Context, g Gate, next int) {
	if x := e.live(g.Run); x != nil {
		x.hear(g)
		return
	}
	if next > 0 && e.executor.Load() != nil {
		if r, err := e.row(ctx, g.Run); err == nil && slices.Contains(e.mine(), r.project) && len(e.lacks(ctx, r)) == 0 {
			e.begin(ctx, g.Run, next)
			return
		}
	}
	e.look()
}

// hear takes in a decision of one of the open gates of this segment. The gate counts
// as open until the loop has settled it: a segment that closes first goes on with it
// in the next one.
func (x *execution) hear(g Gate) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.waiting[g.ID]; !ok {
		return
	}
	x.heard = append(x.heard, g)
	select {
	case x.bell <- struct{}{}:
	default:
	}
}

// settleHeard settles the gates that were decided meanwhile, each once.
func (x *execution) settleHeard() {
	x.mu.Lock()
	heard := x.heard
	x.heard = nil
	x.mu.Unlock()
	for _, g := range heard {
		if v := x.nodes[g.Node]; v.state == "waiting" && !x.ended() {
			x.settleGate(g.Node, v, g)
		}
	}
}

// openGate makes the gate durable and waits, or goes on with what was decided.
func (x *execution) openGate(ctx context.Context, id string, v *vertex, spec workflows.GateNode) error {
	g, ok := x.gates[id]
	switch {
	case !ok:
		return x.newGate(ctx, id, v, spec)
	case g.Decision != "":
		x.settleGate(id, v, g)
		return nil
	}
	return x.await(ctx, id, v, g)
}

func (x *execution) newGate(ctx context.Context, id string, v *vertex, spec workflows.GateNode) error {
	message, failure := x.render(ctx, id, "message_template", spec.Message)
	assignee := ""
	if failure == nil {
		assignee, failure = x.render(ctx, id, "assignee", spec.Assignee)
	}
	if failure == nil && (len(message) > maxGateText || len(assignee) > maxGateText) {
		failure = &RunError{Code: CodeValidation, Message: "the gate's text is longer than 64 KiB", Node: id}
	}
	if failure != nil {
		x.failNode(id, failure, 1)
		return nil
	}
	gateID, err := uuid.NewV7()
	if err != nil {
		return err
	}
	now := x.e.now()
	g := Gate{
		ID: gateID.String(), Run: x.row.id, Workflow: x.row.workflow, Node: id, Key: id, Type: spec.GateType,
		Message: x.e.opt.Clean(message), Assignee: x.e.opt.Clean(assignee), Opened: now, TimeoutAction: spec.TimeoutAction,
	}
	if spec.Timeout > 0 {
		g.Expires = now.Add(spec.Timeout)
	}
	if !x.row.deadline.IsZero() && (g.Expires.IsZero() || x.row.deadline.Before(g.Expires)) {
		g.Expires = x.row.deadline // the run ends then; nobody can answer later
	}
	paused := Event{Type: GatePaused, Node: id, Gate: g.ID, GateType: g.Type, Message: g.Message, Assignee: g.Assignee}
	if spec.Timeout > 0 {
		paused.TimeoutMS, paused.TimeoutAction = new(spec.Timeout.Milliseconds()), spec.TimeoutAction
	}
	if !g.Expires.IsZero() {
		expires := g.Expires.UTC()
		paused.Expires = &expires
	}
	v.state = "waiting"
	x.listen(g.ID, id)
	x.store(func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into gates(id, run, node, key, reason, type, message, assignee, opened, expires, timeout_action)
			values(?,?,?,?,'',?,?,?,?,?,?)`, g.ID, g.Run, g.Node, g.Key, g.Type, g.Message, g.Assignee, now.UnixMilli(), millis(g.Expires), g.TimeoutAction)
		if err != nil {
			return err
		}
		return putAudit(ctx, tx, x.opened(now, &g))
	}, Event{Type: NodeStarted, Node: id, NodeType: v.node.Type()}, paused)
	return nil
}

// opened is the audit entry of a gate that opens.
func (x *execution) opened(now time.Time, g *Gate) AuditEntry {
	a := x.row.audited(now, AuditGateOpened, "", "")
	a.What = g.Node
	return a
}

// await waits again for a gate that an earlier execution opened.
func (x *execution) await(ctx context.Context, id string, v *vertex, g Gate) error {
	v.state = "waiting"
	x.listen(g.ID, id)
	// It may have been decided between the reading and the listening.
	now, err := x.e.Gate(ctx, g.ID)
	if err != nil {
		return err
	}
	if now.Decision != "" {
		x.hear(now)
	}
	return nil
}

func (x *execution) listen(gate, node string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waiting[gate] = node
}

func (x *execution) openGates() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]string, 0, len(x.waiting))
	for id := range x.waiting {
		out = append(out, id)
	}
	return out
}

// settleGate completes a gate node with its decision; a rejecting time-out ends the run.
func (x *execution) settleGate(id string, v *vertex, g Gate) {
	x.mu.Lock()
	delete(x.waiting, g.ID)
	x.mu.Unlock()
	if !x.seen[GateResumed+" "+g.ID] {
		x.store(nil, Event{
			Type: GateResumed, Node: id, Gate: g.ID, Decision: g.Decision, DecidedBy: g.DecidedBy, Via: g.Via,
			Comment: g.Comment, Payload: g.Payload,
		})
	}
	if g.Via == ViaTimeout && g.Decision == Rejected {
		failure := &RunError{Code: CodeRunTimeout, Message: "nobody answered the gate in time", Node: id}
		v.state, v.reason = "failed", string(failure.Code)
		if !x.seen[NodeFailed+" "+id] {
			x.store(nil, Event{Type: NodeFailed, Node: id, Error: failure})
		}
		x.fail(failure)
		return
	}
	v.state, v.output, x.gates[id] = "completed", decisionOutput(g), g
	if !x.seen[NodeCompleted+" "+id] {
		took := g.Decided.Sub(g.Opened).Milliseconds()
		x.store(nil, Event{Type: NodeCompleted, Node: id, Output: v.output, Tokens: &Tokens{}, DurationMS: &took})
	}
	x.leave(id)
}

// decisionOutput is a gate's output: the decision object (format §3).
func decisionOutput(g Gate) json.RawMessage {
	members := []workflows.Member{{Key: "decision", Value: quote(g.Decision)}, {Key: "decidedBy", Value: quote(g.DecidedBy)}}
	if g.Payload != nil {
		members = append(members, workflows.Member{Key: "payload", Value: g.Payload})
	} else if g.Type == "input" {
		members = append(members, workflows.Member{Key: "payload", Value: json.RawMessage("null")})
	}
	if g.Comment != "" {
		members = append(members, workflows.Member{Key: "comment", Value: quote(g.Comment)})
	}
	return workflows.Object(members)
}

// begin starts the segment that the store says is next; one that another process
// began is left to it.
func (e *Engine) begin(ctx context.Context, run string, seg int) {
	me := e.executor.Load()
	if me == nil || e.live(run) != nil {
		return
	}
	if err := me.Start(durable.Ref{Run: run, K: seg}); err != nil {
		e.log.LogAttrs(ctx, levelOf(time.Second), "segment begins later", runAttr(run), errAttr(err))
	}
}
