package main

import (
	"context"
	"errors"
	"time"

	"github.com/relavium/relavium-serve/builtin"
	"github.com/relavium/relavium-serve/engine"
)

// closeGrace bounds the closing of the run store.
const closeGrace = 4 * time.Second

// openStore opens the run store of the home. As an executor it also continues
// the runs of the projects. The caller closes it with closeStore.
func (a *app) openStore(ctx context.Context, at *site, executor bool, projects ...string) (*engine.Engine, error) {
	store, err := at.storePlace()
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
		g.options(ctx, at, &opt)
		if at.metrics != nil {
			opt.Observe = at.metrics.observe
		}
		opt.Tracer = at.tracer.spans()
		at.agents = g
	}
	eng, err := engine.Open(ctx, opt)
	if err != nil {
		err = at.storeFault(ctx, err)
		if executor {
			err = errors.Join(err, g.stop(ctx))
		}
		return nil, err
	}
	at.opened.set(eng)
	if executor {
		at.store.Store(eng)
		if err := g.sweep(ctx, eng); err != nil {
			at.log.WarnContext(ctx, "folders of ended runs are left", "error", err)
		}
	}
	return eng, nil
}

// storePlace is where runs are kept: the database, or the file of the home, which is
// made.
func (at *site) storePlace() (string, error) {
	if at.shared != nil {
		return at.shared.url, makeHome(at.place)
	}
	return prepareHome(at.place)
}

// storeName is the run store for people.
func (at *site) storeName() string {
	if at.shared != nil {
		return at.shared.place()
	}
	return "serve.db in RELAVIUM_HOME"
}

// storeFault says what is wrong with the run store.
func (at *site) storeFault(ctx context.Context, err error) error {
	if at.shared != nil {
		return at.shared.fault(ctx, err)
	}
	return &storeError{what: "the run store", err: err}
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
