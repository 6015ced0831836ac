package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// named finds what a workflow or a server of that name connects to. workflow is nil
// for a server.
func (at *site) named(name string, folders []string) (workflow *workflows.Workflow, targets []target, err error) {
	loaded, err := at.find(name, folders)
	if err == nil {
		return loaded.Workflow, targetsOf(&loaded), nil
	}
	t, serverErr := at.server(name, folders)
	if serverErr == nil {
		return nil, []target{*t}, nil
	}
	if f, ok := errors.AsType[*fault](serverErr); ok {
		return nil, nil, &fault{code: f.code, err: errors.Join(err, serverErr), hint: f.hint}
	}
	return nil, nil, errors.Join(err, serverErr)
}

// grantNamed asks for consent to the programs of a workflow or server that are not
// granted.
func (a *app) grantNamed(ctx context.Context, name string, folders []string, asJSON bool) error {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	at.spawning.asJSON = asJSON
	_, targets, err := at.named(name, folders)
	if err != nil {
		return err
	}
	store, err := consent.Open(at.home, nil)
	if err != nil {
		return err
	}
	return a.withHost(ctx, at, false, func(host *inbound.Host) error {
		missing, err := a.unapproved(ctx, host, targets)
		if err != nil {
			return err
		}
		if len(missing.Servers) == 0 {
			return a.said(asJSON, []string{}, "nothing of %s needs consent that is not granted", oneLine(name, 80))
		}
		if unmet := a.conditions(at).Unmet(); len(unmet) > 0 {
			a.showUnapproved(missing, "only for one process of run or serve")
			return invalid("run it on a terminal; where there is none, relavium-serve consent grant --digest DIGEST < server.json",
				"nobody can be asked for consent to %s: %s", digestsOf(missing), strings.Join(unmet, ", "))
		}
		return a.grantEach(ctx, at, store, missing)
	})
}

func digestsOf(missing *inbound.UnapprovedError) string {
	digests := make([]string, 0, len(missing.Servers))
	for i := range missing.Servers {
		digests = append(digests, missing.Servers[i].Digest)
	}
	return strings.Join(digests, ", ")
}

// unapproved lists the programs of all targets that nobody approved, each once.
func (a *app) unapproved(ctx context.Context, host *inbound.Host, targets []target) (*inbound.UnapprovedError, error) {
	all := &inbound.UnapprovedError{}
	seen := map[string]struct{}{}
	for i := range targets {
		err := host.CheckRun(ctx, targets[i].workflow, targets[i].root)
		missing, ok := errors.AsType[*inbound.UnapprovedError](err)
		if err != nil && !ok {
			return nil, a.startFault(&targets[i], err)
		}
		if !ok {
			continue
		}
		for _, u := range missing.Servers {
			if _, twice := seen[u.Digest]; !twice {
				seen[u.Digest] = struct{}{}
				all.Servers = append(all.Servers, u)
			}
		}
	}
	return all, nil
}

// grantEach asks about one program after the other; each yes is recorded at once.
func (a *app) grantEach(ctx context.Context, at *site, store *consent.Store, missing *inbound.UnapprovedError) error {
	var refused []string
	for i := range missing.Servers {
		u := &missing.Servers[i]
		if u.Cause != nil {
			return consentFault(u.Cause)
		}
		question := consent.Question{Server: u.Server, Declaration: u.Declaration, Clean: text.Clean}
		yes, err := question.Ask(&typed{ctx: ctx, a: a}, a.stderr, a.conditions(at))
		if err != nil {
			return consentFault(err)
		}
		if !yes {
			refused = append(refused, u.Digest)
			continue
		}
		if err := makeHome(at.place); err != nil {
			return err
		}
		if _, err := store.Grant(ctx, &u.Declaration); err != nil {
			return consentFault(err)
		}
		_, _ = fmt.Fprintf(a.stderr, "%s is granted: %s\n", u.Digest, oneLine(u.Declaration.Command, 200))
	}
	if len(refused) > 0 {
		return &fault{code: exitFailed, err: fmt.Errorf("not granted: %s", strings.Join(refused, ", "))}
	}
	return nil
}
