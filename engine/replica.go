package engine

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine/durable"
	"github.com/relavium/relavium-serve/workflows"
)

// Where replicas share a database, a run goes on only in one that has what it needs.

// Needs is what a run asks of the process that runs it, or what a process has.
type Needs struct {
	// Consents are the digests of the servers that its agents use.
	Consents []string `json:"consents,omitempty"`
	// Secrets are the names of those that they read.
	Secrets []string `json:"secrets,omitempty"`
	// Files says that it reads, writes or runs something in a workspace.
	Files bool `json:"files,omitempty"`
	// Workspace names the tree that its files are in.
	Workspace string `json:"workspace,omitempty"`
}

func (n *Needs) column() any {
	if n == nil {
		return nil
	}
	raw, err := encode(n)
	if err != nil {
		return nil // it always has a JSON form
	}
	return string(raw)
}

// Without lists, for people, what n asks for and has does not offer.
func (n *Needs) Without(has Needs) []string {
	var out []string
	for _, digest := range n.Consents {
		if !slices.Contains(has.Consents, digest) {
			out = append(out, "consent to "+digest)
		}
	}
	for _, name := range n.Secrets {
		if !slices.Contains(has.Secrets, name) {
			out = append(out, "the secret "+name)
		}
	}
	if n.Files && n.Workspace != has.Workspace {
		out = append(out, "the workspace of its files")
	}
	return out
}

// defaultBlocked is how long after its lease ran out a run that no replica fits is
// shown as blocked.
const defaultBlocked = 30 * time.Second

func lacking(what []string) string {
	return "no replica that lives has " + strings.Join(what, ", ")
}

// needs is what a new run asks for; nil where one machine has everything.
func (e *Engine) needs(req StartRequest) *Needs {
	if !e.store.Shared() || e.opt.Needs == nil {
		return nil
	}
	n := e.opt.Needs(req.Project, req.Workflow)
	return &n
}

// lacks lists what the run needs and this process has not.
func (e *Engine) lacks(ctx context.Context, r *row) []string {
	if r.needs == nil || !e.store.Shared() || e.opt.Has == nil {
		return nil
	}
	return r.needs.Without(e.opt.Has(ctx, *r.needs))
}

// elsewhere reports whether a new run is left to another replica, which has what this
// one has not. Where none has, the caller finds out what is missing, by its own words.
func (e *Engine) elsewhere(ctx context.Context, req StartRequest, needs *Needs) (bool, error) {
	if needs == nil || e.opt.Has == nil || len(needs.Without(e.opt.Has(ctx, *needs))) == 0 {
		return false, nil
	}
	offers, err := e.store.Offers(ctx, req.Project.Key)
	if err != nil {
		return false, err
	}
	for _, raw := range offers {
		var has Needs
		if json.Unmarshal(raw, &has) == nil && len(needs.Without(has)) == 0 {
			return true, nil
		}
	}
	return false, nil
}

// offers is what this process says of itself.
func (e *Engine) offers(ctx context.Context) json.RawMessage {
	if e.opt.Offers == nil {
		return json.RawMessage("{}")
	}
	has := e.opt.Offers(ctx)
	raw, err := encode(&has)
	if err != nil {
		return json.RawMessage("{}") // it always has a JSON form
	}
	return raw
}

// Elsewhere reports whether a new run of the workflow would be left to another replica,
// which has what it needs and this process has not.
func (e *Engine) Elsewhere(ctx context.Context, p Project, w *workflows.Workflow) (bool, error) {
	req := StartRequest{Project: p, Workflow: w}
	return e.elsewhere(ctx, req, e.needs(req))
}

// executes is the executor of this process, or why there is none.
func (e *Engine) executes() (*durable.Executor, error) {
	if x := e.executor.Load(); x != nil {
		return x, nil
	}
	if !e.opt.Executor {
		return nil, errors.New("engine: this process executes nothing")
	}
	select {
	case <-e.closing:
		return nil, ErrClosed
	default:
		return nil, ErrCutOff
	}
}

// Ready reports whether this process can take runs now: nil, ErrCutOff or ErrClosed.
func (e *Engine) Ready() error {
	select {
	case <-e.closing:
		return ErrClosed
	default:
	}
	if e.opt.Executor && e.executor.Load() == nil {
		return ErrCutOff
	}
	return nil
}

func (e *Engine) resume(ref durable.Ref) error {
	me, err := e.executes()
	if err != nil {
		return err
	}
	return me.Resume([]durable.Ref{ref})
}

// launch makes this process an executor, under a new id.
func (e *Engine) launch(ctx context.Context) error {
	x, err := durable.Launch(ctx, e.store, durable.LaunchOptions{
		Projects: e.mine(), Run: e.segment, Offers: e.offers, Log: e.log,
		Lost: func() { e.lost <- struct{}{} },
	})
	if err != nil {
		return err
	}
	e.executor.Store(x)
	return nil
}

// heal waits to be cut off from the database. Then everything that runs here ends, in
// time for others to go on with it; and this process comes back under another id.
func (e *Engine) heal() {
	for {
		select {
		case <-e.closing:
			return
		case <-e.lost:
		}
		if x := e.executor.Swap(nil); x != nil {
			// First the runs end here: what they lose then is no failure of theirs.
			x.Interrupt()
			var beside sync.WaitGroup
			if e.opt.CutOff != nil {
				beside.Go(e.opt.CutOff)
			}
			if err := x.Close(e.store.Lease() / 4); err != nil {
				e.log.LogAttrs(e.base, slog.LevelDebug, "executor", errAttr(err))
			}
			beside.Wait()
		}
		for {
			if pause(e.base, e.store.Lease()/5) != nil {
				return
			}
			ctx, cancel := context.WithTimeout(e.base, patience)
			err := e.store.Write.PingContext(ctx)
			if err == nil {
				err = e.launch(ctx)
			}
			cancel()
			if err == nil {
				break
			}
			e.complain("database", err)
		}
		e.log.LogAttrs(e.base, slog.LevelInfo, "back at the database", slog.String("executor", e.me()))
		e.look()
	}
}
