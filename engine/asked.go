package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxGates bounds the gates of one run that are read at once; one opens at a time
// for each effect that waits.
const maxGates = 10_000

// maxShown bounds the arguments that a gate of the engine shows, in bytes.
const maxShown = 4 << 10

// maxAmount bounds amounts of money, of one call and of a run: 90 million dollars, in
// micro-cents. Whatever a provider claims to have used, sums of them do not overflow.
const maxAmount = 1 << 53

// amount is an amount within its bounds.
func amount(microcents int64) int64 { return min(max(microcents, 0), maxAmount) }

// unknownAnswers are what a person may answer at an outcome_unknown gate, as JSON.
func unknownAnswers() []string { return []string{`"repeat"`, `"skip"`, `"fail"`} }

// chargeReserved charges what calls that were under way at a crash had set aside.
func (x *execution) chargeReserved(ctx context.Context) error {
	if x.row.reserved == 0 {
		return nil
	}
	err := x.e.update(ctx, x.row.id, func(tx *sql.Tx) error {
		if err := x.stillMine(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `update runs set cost=case when cost+reserved>?1 then ?1 else cost+reserved end, reserved=0 where id=?2`, maxAmount, x.row.id)
		return err
	})
	if err != nil {
		return err
	}
	x.cost, x.row.reserved = amount(x.cost+x.row.reserved), 0
	return nil
}

// afford sets aside what an effect may cost, or lets the budget decide.
func (d *dispatch) afford(at string, ef *Effect) error {
	if d.x.wf.Budget == nil || ef.Estimate <= 0 {
		return nil
	}
	return d.inLoop(func(ctx context.Context) (<-chan error, error) { return d.x.reserve(ctx, d, at, ef) })
}

// reserve runs in the loop.
func (x *execution) reserve(ctx context.Context, d *dispatch, at string, ef *Effect) (<-chan error, error) {
	b := x.wf.Budget
	if spent := x.cost + x.reserved; spent+ef.Estimate > b.MaxCostMicrocents {
		switch b.OnExceed {
		case "warn":
			x.warn(ctx, spent)
		case "pause_for_approval":
			if stored, err := x.deferred(d, at, ef, spent); err != nil {
				return stored, err
			}
		default:
			return nil, x.exceeded(d.node, ef, spent)
		}
	}
	x.reserved += ef.Estimate
	aside := x.reserved
	return x.keep(func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `update runs set reserved=? where id=? and epoch=?`, aside, x.row.id, x.row.epoch)
		return err
	}), nil
}

func (x *execution) exceeded(node string, ef *Effect, spent int64) *RunError {
	return &RunError{Code: CodeBudgetExceeded, Node: node, Message: fmt.Sprintf("the run has spent %s of its budget of %s; the next call of %s may cost %s",
		dollars(spent), dollars(x.wf.Budget.MaxCostMicrocents), ef.Name, dollars(ef.Estimate))}
}

// dollars is an amount as people read it; a micro-cent is 1e-8 USD.
func dollars(microcents int64) string {
	s := fmt.Sprintf("%.8f", float64(microcents)/1e8)
	whole, fraction, _ := strings.Cut(s, ".")
	fraction = strings.TrimRight(fraction, "0")
	return "$" + whole + "." + fraction + strings.Repeat("0", max(0, 2-len(fraction)))
}

// warn says once per run that the budget is passed.
func (x *execution) warn(ctx context.Context, spent int64) {
	if x.warned {
		return
	}
	x.warned = true
	if x.row.seg > 0 || x.seg.Again {
		var said bool
		err := x.e.store.Read.QueryRowContext(ctx, `select exists(select 1 from events where run=? and instr(json, ?)>0)`,
			x.row.id, `"type":"`+BudgetWarning+`"`).Scan(&said)
		if err != nil || said {
			return
		}
	}
	limit := x.wf.Budget.MaxCostMicrocents
	x.store(nil, Event{Type: BudgetWarning, Spent: new(spent), Limit: new(limit), ThresholdPct: new(percent(spent, limit))})
}

func percent(spent, limit int64) int {
	if limit <= 0 {
		return 100
	}
	return int(min(100, max(0, math.Round(100*float64(spent)/float64(limit)))))
}

// deferred lets a call over the budget pass if a person approved it, or asks. At one
// place a chain of models may try several calls: an approval is that of its own call
// alone, and used up by a try that cost something.
func (x *execution) deferred(d *dispatch, at string, ef *Effect, spent int64) (<-chan error, error) {
	call := fmt.Sprintf("%s %s %d", d.place(at), ef.Name, ef.Estimate)
	g, ok := x.lastAsked(d.node, call, ReasonBudget)
	switch {
	case !ok || g.Decision == Approved && d.paid[call]:
		limit := x.wf.Budget.MaxCostMicrocents
		g = Gate{
			Reason: ReasonBudget, Type: "approval", effect: call,
			Message: fmt.Sprintf("The run has spent %s of its budget of %s, and the next call of %s at node %s may cost up to %s. "+
				"Approve lets this one call pass; reject ends the run.", dollars(spent), dollars(limit), ef.Name, d.node, dollars(ef.Estimate)),
		}
		return x.ask(d, at, g, Event{Type: BudgetPaused, Node: d.node, Spent: new(spent), Limit: new(limit)})
	case g.Decision == "":
		x.listen(g.ID, d.node)
		return nil, ErrParked
	}
	x.heardOf(g)
	if g.Decision != Approved {
		return nil, x.exceeded(d.node, ef, spent)
	}
	d.under[at] = call
	return nil, nil
}

// charged tells that a try at a place, which led to nothing, cost something. It runs
// in the loop.
func (d *dispatch) charged(at string) {
	if call, ok := d.under[at]; ok {
		d.paid[call] = true
	}
}

// unknown decides about an effect that was under way when its process died and that
// may not be repeated: it returns nil where a person said that it is to be repeated.
func (d *dispatch) unknown(ctx context.Context, at string, ef *Effect, k kept) error {
	x := d.x
	return d.inLoop(func(context.Context) (<-chan error, error) {
		g, ok := x.lastAsked(d.node, d.place(at), ReasonUnknown)
		switch {
		case !ok || g.Opened.Before(k.sent): // that one was about an earlier sending
			return x.ask(d, at, Gate{Reason: ReasonUnknown, Type: "input", effect: d.place(at), Message: unknownMessage(d.node, ef, k.sent)})
		case g.Decision == "":
			x.listen(g.ID, d.node)
			return nil, ErrParked
		}
		x.heardOf(g)
		switch {
		case g.Decision == InputProvided && string(g.Payload) == `"repeat"`:
			return nil, nil
		case g.Decision == InputProvided && string(g.Payload) == `"skip"`:
			k.state = effectSkipped
			d.put(at, k)
			return x.keep(func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `update effects set state='skipped', epoch=? where run=? and node=? and dispatch=? and path=? and n=?`,
					x.row.epoch, x.row.id, d.node, d.n, ef.Path, ef.N)
				return err
			}), ErrSkipped
		}
		return nil, &RunError{Code: CodeToolFailed, Node: d.node, Message: "the outcome of " + ef.Name + " is not known, and it is not to be repeated"}
	})
}

func unknownMessage(node string, ef *Effect, sent time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Node %s called %s", node, ef.Name)
	if ef.Server != "" {
		fmt.Fprintf(&b, " of the MCP server %s", ef.Server)
	}
	fmt.Fprintf(&b, " at %s, and the process died before the outcome was known. It may have happened or not.\n", sent.UTC().Format(time.RFC3339))
	if len(ef.Shown) > 0 {
		fmt.Fprintf(&b, "\nArguments: %s\n", clip(ef.Shown, maxShown))
	}
	if ef.Hints != "" {
		fmt.Fprintf(&b, "The server says of it: %s\n", ef.Hints)
	}
	b.WriteString("\nAnswer repeat (send it again under the same idempotency key), skip (go on; the model is told that the outcome is unknown) or fail (end the node).")
	return b.String()
}

// clip shortens JSON for people, at a character's border.
func clip(raw json.RawMessage, n int) string {
	if len(raw) <= n {
		return string(raw)
	}
	return strings.ToValidUTF8(string(raw[:n]), "") + fmt.Sprintf("… (%d bytes in all)", len(raw))
}

// lastAsked is the latest gate that the engine opened for an effect of the node.
func (x *execution) lastAsked(node, effect, reason string) (Gate, bool) {
	for _, g := range slices.Backward(x.asked[node]) {
		if g.effect == effect && g.Reason == reason {
			return g, true
		}
	}
	return Gate{}, false
}

// place names an effect among those of its node: dispatch/path/n.
func (d *dispatch) place(at string) string { return fmt.Sprintf("%d/%s", d.n, at) }

// ask opens a gate for an effect. The node is parked: it returns ErrParked, to be
// told once the gate is stored.
func (x *execution) ask(d *dispatch, at string, g Gate, first ...Event) (<-chan error, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	now := x.e.now()
	g.ID, g.Run, g.Workflow, g.Node = id.String(), x.row.id, x.row.workflow, d.node
	g.Key = d.node + "_" + g.Reason + "_" + strings.ReplaceAll(strings.Trim(at, "/"), "/", "_")
	g.Message, g.Opened, g.Expires = x.e.opt.Clean(g.Message), now, x.row.deadline
	paused := Event{Type: GatePaused, Node: g.Node, Gate: g.ID, GateType: g.Type, Message: g.Message, Reason: g.Reason}
	if !g.Expires.IsZero() {
		paused.Expires = new(g.Expires.UTC())
	}
	for i := range first {
		first[i].Gate = g.ID
	}
	x.asked[d.node] = append(x.asked[d.node], g)
	x.listen(g.ID, d.node)
	return x.keep(func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into gates(id, run, node, key, reason, type, message, assignee, opened, expires, timeout_action, effect)
			values(?,?,?,?,?,?,?,'',?,?,'',?)`, g.ID, g.Run, g.Node, g.Key, g.Reason, g.Type, g.Message, now.UnixMilli(), millis(g.Expires), g.effect)
		if err != nil {
			return err
		}
		return putAudit(ctx, tx, x.opened(now, &g))
	}, append(first, paused)...), ErrParked
}

// heardOf says that the run goes on from a gate that the engine opened.
func (x *execution) heardOf(g Gate) {
	if x.seen[GateResumed+" "+g.ID] {
		return
	}
	x.seen[GateResumed+" "+g.ID] = true
	x.store(nil, Event{
		Type: GateResumed, Node: g.Node, Gate: g.ID, Decision: g.Decision, DecidedBy: g.DecidedBy, Via: g.Via,
		Comment: g.Comment, Payload: g.Payload,
	})
}

// parked leaves an agent node to the segment after the decision.
func (x *execution) parked(id string, v *vertex) {
	v.state = "parked"
	x.partial = true // even where every gate of it is decided by now
	for _, g := range x.asked[id] {
		if g.Decision == "" {
			x.listen(g.ID, id)
		}
	}
}
