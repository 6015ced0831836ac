package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relavium/relavium-serve/builtin"
	"github.com/relavium/relavium-serve/engine"
)

// closeGrace bounds the closing of the run store.
const closeGrace = 4 * time.Second

// openStore opens the run store of the home. As an executor it also continues
// the runs of the projects. The caller closes it with closeStore.
func (a *app) openStore(ctx context.Context, at *site, executor bool, projects ...string) (*engine.Engine, error) {
	if at.Database.URL != nil {
		return nil, unbuilt("a database other than the embedded one ([database] url, RELAVIUM_DATABASE_URL)")
	}
	store, err := prepareHome(at.place)
	if err != nil {
		return nil, err
	}
	closeAfter := at.Serve.CloseGrace.value(2 * time.Minute)
	if closeAfter == 0 {
		closeAfter = -1
	}
	opt := engine.Options{
		Path:        store,
		Executor:    executor,
		Projects:    projects,
		Durability:  *at.Database.Durability,
		ReadFile:    builtin.Reader{Private: a.private(at)}.ReadText,
		Clean:       plain,
		Keep:        atLeast(at.Runs.Keep.value(30 * 24 * time.Hour)),
		OrphanGrace: atLeast(at.Serve.OrphanGrace.value(10 * time.Minute)),
		CloseGrace:  closeAfter,
		JoinWindow:  atLeast(at.Serve.JoinWindow.value(10 * time.Minute)),
		Logger:      at.log,
	}
	var g *agents
	if executor {
		if g, err = a.newAgents(ctx, at); err != nil {
			return nil, err
		}
		g.options(ctx, &opt)
		if at.metrics != nil {
			opt.Observe = at.metrics.observe
		}
		opt.Tracer = at.tracer.spans()
		at.agents = g
	}
	eng, err := engine.Open(ctx, opt)
	if err != nil {
		err = fmt.Errorf("the run store: %w", err)
		if executor {
			err = errors.Join(err, g.stop(ctx))
		}
		return nil, err
	}
	if executor {
		at.store.Store(eng)
		if err := g.sweep(ctx, eng); err != nil {
			at.log.WarnContext(ctx, "folders of ended runs are left", "error", err)
		}
	}
	return eng, nil
}

// atLeast keeps a duration that was set to nothing from meaning the default.
func atLeast(d time.Duration) time.Duration { return max(d, time.Nanosecond) }

// closeStore closes the store within closeGrace, also when ctx is done, and adds
// what went wrong to err.
func closeStore(ctx context.Context, eng *engine.Engine, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if closeErr := eng.Close(ctx); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	return err
}

// withStore opens the store without an executor for the length of one command.
func (a *app) withStore(ctx context.Context, at *site, use func(*engine.Engine) error) error {
	eng, err := a.openStore(ctx, at, false)
	if err != nil {
		return err
	}
	return closeStore(ctx, eng, use(eng))
}
