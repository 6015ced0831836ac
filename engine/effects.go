package engine

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// States of an effect. One that may be repeated has no row until it is done.
const (
	effectStarted = "started"
	effectDone    = "done"
	effectSkipped = "skipped"
)

// A dispatch is one dispatch of an agent node: what was done in it, by this process
// and by those before.
type dispatch struct {
	x    *execution
	node string
	n    int // from 1

	mu     sync.Mutex
	rows   map[string]kept // by place within the dispatch
	broken bool            // the store failed an effect: nothing of the node is an outcome

	// Of calls over the budget, in the loop's hands: which was approved at a place, and
	// those whose approval is used up.
	under map[string]string
	paid  map[string]bool
}

// kept is what the store has of one effect.
type kept struct {
	name       string
	request    string
	repeatable bool
	state      string
	sent       time.Time
	result     json.RawMessage
	tokens     Tokens
	cost       int64
}

// place names an effect within its dispatch.
func place(path string, n int) string { return path + "/" + strconv.Itoa(n) }

// entered is the dispatch at which a node goes on: the latest of which something is
// kept, or the first.
func (x *execution) entered(ctx context.Context, node string) (*dispatch, error) {
	d := newDispatch(x, node, 1)
	if x.row.seg == 0 && !x.seg.Again {
		return d, nil
	}
	rows, err := x.e.store.Read.QueryContext(ctx, `select dispatch, path, n, name, request, repeatable, state, sent, result, tokens, cost from effects
		where run=?1 and node=?2 and dispatch>0 and dispatch=(select max(dispatch) from effects where run=?1 and node=?2)`, x.row.id, node)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var (
			k              kept
			path           string
			n              int
			sent           int64
			result, tokens sql.NullString
		)
		if err := rows.Scan(&d.n, &path, &n, &k.name, &k.request, &k.repeatable, &k.state, &sent, &result, &tokens, &k.cost); err != nil {
			return nil, err
		}
		k.sent = time.UnixMilli(sent)
		if result.Valid {
			k.result = json.RawMessage(result.String)
		}
		if tokens.Valid {
			if err := json.Unmarshal([]byte(tokens.String), &k.tokens); err != nil {
				return nil, fmt.Errorf("run store: tokens of an effect: %w", err)
			}
		}
		d.rows[place(path, n)] = k
	}
	return d, rows.Err()
}

// next is the dispatch after this one.
func (d *dispatch) next() *dispatch {
	return newDispatch(d.x, d.node, d.n+1)
}

func newDispatch(x *execution, node string, n int) *dispatch {
	return &dispatch{x: x, node: node, n: n, rows: make(map[string]kept), under: make(map[string]string), paid: make(map[string]bool)}
}

// bar names an effect of the dispatch that forbids another dispatch, or nothing.
func (d *dispatch) bar() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range slices.Sorted(maps.Keys(d.rows)) {
		if k := d.rows[at]; !k.repeatable {
			return k.name
		}
	}
	return ""
}

func (d *dispatch) get(at string) (kept, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.rows[at]
	return k, ok
}

func (d *dispatch) put(at string, k kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[at] = k
}

func (d *dispatch) drop(at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.rows, at)
}

// fault remembers that the store failed: what the runner makes of it is no outcome.
func (d *dispatch) fault(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = true
	return err
}

func (d *dispatch) isBroken() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.broken
}

// key is the idempotency key of an effect: run/node/dispatch/path/n.
func (d *dispatch) key(at string) string {
	return fmt.Sprintf("%s/%s/%d/%s", d.x.row.id, d.node, d.n, strings.TrimPrefix(at, "/"))
}

func (ef *Effect) digest() string {
	h := sha256.New()
	h.Write([]byte(ef.Kind + "\n"))
	h.Write(ef.Request)
	return hex.EncodeToString(h.Sum(nil))
}

// do is AgentCall.Do.
func (d *dispatch) do(ctx context.Context, ef Effect, perform Perform) (EffectResult, error) {
	x, at, request := d.x, place(ef.Path, ef.N), ef.digest()
	ef.Estimate = amount(ef.Estimate)
	k, known := d.get(at)
	switch {
	case known && k.request != request:
		return EffectResult{}, x.e.internal(ctx, x.row.id, d.node, fmt.Errorf("effect %s was another request before", d.key(at)))
	case known && k.state == effectDone:
		return EffectResult{Value: k.result, Tokens: k.tokens, Cost: k.cost, Replayed: true}, nil
	case known && k.state == effectSkipped:
		return EffectResult{}, ErrSkipped
	case known && !ef.Repeatable:
		if err := d.unknown(ctx, at, &ef, k); err != nil {
			return EffectResult{}, err
		}
	}
	if err := d.afford(at, &ef); err != nil {
		return EffectResult{}, err
	}
	if !ef.Repeatable {
		if err := d.begin(ctx, at, &ef, request); err != nil {
			return EffectResult{}, err
		}
		if me := x.e.executor.Load(); me == nil || !me.Fresh() {
			// It was not sent, and is not: but others, who may have the run by now, ask.
			return EffectResult{}, d.fault(errors.Join(ErrCutOff, d.forget(ctx, at, &ef)))
		}
	}
	for _, ev := range ef.Said {
		ev.Node = d.node
		x.tell(ev)
	}
	out, err := d.traced(ctx, at, &ef, perform)
	out.Cost = amount(out.Cost)
	if err != nil && errors.Is(err, ErrUnsent) && !ef.Repeatable {
		if err := d.forget(ctx, at, &ef); err != nil {
			return EffectResult{}, d.fault(err)
		}
	}
	if err == nil && len(out.Value) > maxOutput {
		err = &RunError{Code: CodeValidation, Message: "the result of " + ef.Name + " is larger than 4 MiB", Node: d.node}
	}
	if stored := d.settle(at, &ef, request, out, err == nil); stored != nil {
		return EffectResult{}, d.fault(stored)
	}
	return out, err
}

// inLoop runs f in the loop and returns what it waits for and why it refuses.
func (d *dispatch) inLoop(f func(ctx context.Context) (<-chan error, error)) error {
	type verdict struct {
		stored  <-chan error
		refusal error
	}
	told := make(chan verdict, 1)
	d.x.report(func(ctx context.Context) error {
		stored, refusal := f(ctx)
		told <- verdict{stored, refusal}
		return nil
	})
	var v verdict
	select {
	case v = <-told:
	case <-d.x.over:
		return d.fault(errTaken)
	}
	if v.stored == nil {
		return v.refusal
	}
	select {
	case err := <-v.stored:
		if err != nil {
			return d.fault(err)
		}
	case <-d.x.over:
		return d.fault(errTaken)
	}
	return v.refusal
}

// begin makes durable, on the disk, that an effect leaves which may not be repeated.
func (d *dispatch) begin(ctx context.Context, at string, ef *Effect, request string) error {
	x, now := d.x, d.x.e.now()
	err := x.e.updateFull(ctx, x.row.id, func(tx *sql.Tx) error {
		if err := x.stillMine(ctx, tx); err != nil {
			return err
		}
		if ef.Approval != "" {
			var used bool
			if err := tx.QueryRowContext(ctx, `select exists(select 1 from effects where approval=?1
				and not (run=?2 and node=?3 and dispatch=?4 and path=?5 and n=?6))`,
				ef.Approval, x.row.id, d.node, d.n, ef.Path, ef.N).Scan(&used); err != nil {
				return err
			}
			if used {
				return ErrApprovalUsed
			}
		}
		_, err := tx.ExecContext(ctx, `insert into effects(run, node, dispatch, path, n, kind, name, server, request, repeatable, approval, state, sent, epoch)
			values(?,?,?,?,?,?,?,?,?,0,?,'started',?,?) on conflict(run, node, dispatch, path, n) do update set state='started', sent=excluded.sent, epoch=excluded.epoch`,
			x.row.id, d.node, d.n, ef.Path, ef.N, ef.Kind, ef.Name, ef.Server, request, text(ef.Approval), now.UnixMilli(), x.row.epoch)
		return err
	})
	switch {
	case errors.Is(err, ErrApprovalUsed):
		return ErrApprovalUsed
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return d.fault(err)
	}
	d.put(at, kept{name: ef.Name, request: request, state: effectStarted, sent: now})
	return nil
}

// stillMine refuses a write where another execution has taken the run over.
func (x *execution) stillMine(ctx context.Context, tx *sql.Tx) error {
	var mine bool
	err := tx.QueryRowContext(ctx, `select exists(select 1 from runs where id=? and epoch=? and ended is null)`, x.row.id, x.row.epoch).Scan(&mine)
	if err != nil {
		return err
	}
	if !mine {
		return errTaken
	}
	return nil
}

// forget takes back that an effect left: it provably did not.
func (d *dispatch) forget(ctx context.Context, at string, ef *Effect) error {
	x := d.x
	err := x.e.update(context.WithoutCancel(ctx), x.row.id, func(tx *sql.Tx) error {
		if err := x.stillMine(ctx, tx); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `delete from effects where run=? and node=? and dispatch=? and path=? and n=? and state='started'`,
			x.row.id, d.node, d.n, ef.Path, ef.N)
		return err
	})
	if err == nil {
		d.drop(at)
	}
	return err
}

// settle stores what an effect led to, and its cost, and waits for that.
func (d *dispatch) settle(at string, ef *Effect, request string, out EffectResult, done bool) error {
	x := d.x
	reserved := int64(0)
	if x.wf.Budget != nil {
		reserved = ef.Estimate
	}
	if !done && out.Cost == 0 && len(out.Said) == 0 && reserved == 0 {
		return nil
	}
	tokens, err := encode(out.Tokens)
	if err != nil {
		return err
	}
	now := x.e.now().UnixMilli()
	err = d.inLoop(func(context.Context) (<-chan error, error) {
		x.cost = amount(x.cost + out.Cost)
		x.reserved = max(x.reserved-reserved, 0)
		spent, aside := x.cost, x.reserved // in full: a commit may be made and made again
		if out.Cost > 0 && !done {
			d.charged(at)
		}
		for i := range out.Said {
			ev := &out.Said[i]
			ev.Node = d.node
			if ev.Type == CostUpdated {
				ev.CumulativeCost = new(x.cost)
			}
		}
		return x.keep(func(ctx context.Context, tx *sql.Tx) error {
			if out.Cost != 0 || reserved != 0 {
				if _, err := tx.ExecContext(ctx, `update runs set cost=?, reserved=? where id=? and epoch=?`,
					spent, aside, x.row.id, x.row.epoch); err != nil {
					return err
				}
			}
			if !done {
				return nil
			}
			_, err := tx.ExecContext(ctx, `insert into effects(run, node, dispatch, path, n, kind, name, server, request, repeatable, approval, state, sent, result, tokens, cost, epoch)
				values(?,?,?,?,?,?,?,?,?,?,?,'done',?,?,?,?,?) on conflict(run, node, dispatch, path, n) do update set state='done', result=excluded.result, tokens=excluded.tokens,
				cost=excluded.cost, epoch=excluded.epoch`,
				x.row.id, d.node, d.n, ef.Path, ef.N, ef.Kind, ef.Name, ef.Server, request, ef.Repeatable, text(ef.Approval), now,
				string(out.Value), string(tokens), out.Cost, x.row.epoch)
			return err
		}, out.Said...), nil
	})
	if err == nil && done {
		d.put(at, kept{name: ef.Name, request: request, repeatable: ef.Repeatable, state: effectDone, result: out.Value, tokens: out.Tokens, cost: out.Cost})
	}
	return err
}

// prompt is the text of a node whose template reads files: rendered once, since
// the files may change before the node is entered again.
func (x *execution) prompt(ctx context.Context, id string, spec workflows.AgentNode) (string, <-chan error, *RunError) {
	if !spec.Prompt.ReadsFiles() {
		text, failure := x.render(ctx, id, "prompt_template", spec.Prompt)
		return text, nil, failure
	}
	var earlier string
	err := x.e.store.Read.QueryRowContext(ctx, `select result from effects where run=? and node=? and dispatch=0 and path='' and n=-1`, x.row.id, id).Scan(&earlier)
	if err == nil {
		return earlier, nil, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return "", nil, x.e.internal(ctx, x.row.id, id, err)
	}
	text, failure := x.render(ctx, id, "prompt_template", spec.Prompt)
	if failure != nil {
		return "", nil, failure
	}
	now := x.e.now().UnixMilli()
	return text, x.keep(func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into effects(run, node, dispatch, path, n, kind, name, request, repeatable, state, sent, result, epoch)
			values(?,?,0,'',-1,'prompt','prompt','',1,'done',?,?,?)`, x.row.id, id, now, text, x.row.epoch)
		return err
	}), nil
}

// approvals are the gates before a node, by its live routing edges, that a person
// approved, oldest first.
func (x *execution) approvals(id string) []string {
	before := make(map[string]bool)
	var walk func(id string)
	walk = func(id string) {
		for _, from := range x.feeders(id) {
			if !before[from] {
				before[from] = true
				walk(from)
			}
		}
	}
	walk(id)
	var out []string
	for _, at := range x.order {
		spec, ok := x.nodes[at].node.Spec.(workflows.GateNode)
		g := x.gates[at]
		if ok && before[at] && spec.GateType != "input" && g.Decision == Approved && g.Via != ViaTimeout {
			out = append(out, g.ID)
		}
	}
	return out
}
