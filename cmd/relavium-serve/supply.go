package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/models"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/secrets"
	"github.com/relavium/relavium-serve/workflows"
)

// unknownModel reports whether a provider's catalog lacks a model, and what may be
// meant. Another address than the provider's own may have any.
func (at *site) unknownModel(provider, model string) (near []string, unknown bool) {
	if set := at.provider(provider); set == nil || set.BaseURL != nil {
		return nil, false
	}
	near = models.Near(provider, model)
	return near, near != nil
}

// pricer tells whether the price of a model is known, by the table or by [prices].
func (at *site) pricer() func(provider, model string) bool {
	table := sync.OnceValue(func() *models.Models {
		m, err := models.New(models.Options{
			Key:    func(context.Context, string) (string, error) { return "", nil },
			Prices: at.priceList(),
		})
		if err != nil {
			return nil
		}
		return m
	})
	return func(provider, model string) bool {
		m := table()
		if m == nil {
			return false
		}
		_, ok := m.Price(provider, model)
		return ok
	}
}

// advised adds what costs a look at the secrets: a warning where a provider has no
// key (P74). Each provider is looked up once.
func (at *site) advised(ctx context.Context, opt workflows.Options) workflows.Options {
	remedies := make(map[string]string)
	opt.MissingKey = func(provider string) (remedy string, missing bool) {
		remedy, looked := remedies[provider]
		if !looked {
			remedy = at.missingKey(ctx, provider)
			remedies[provider] = remedy
		}
		return remedy, remedy != ""
	}
	return opt
}

// missingKey says how to supply the key of a provider, or "" if it needs none.
func (at *site) missingKey(ctx context.Context, provider string) string {
	_, err := at.keySource(ctx, provider)
	if missing, ok := errors.AsType[*secrets.NotFoundError](err); ok {
		return missing.Remedy()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// keySource is the source of a provider's key; "" without error where none is needed.
func (at *site) keySource(ctx context.Context, provider string) (secrets.Source, error) {
	source, err := at.secrets.ProviderKeys().Has(ctx, provider)
	if _, missing := errors.AsType[*secrets.NotFoundError](err); missing && at.keyless(provider) {
		return "", nil
	}
	return source, err
}

// A keyError says that a workflow cannot start for want of a provider's key.
type keyError struct {
	provider string
	variable string
	err      error // of the lookup
}

func (e *keyError) Error() string {
	return "no key for the model provider " + e.provider + ": set " + e.variable + " where the server runs"
}

func (e *keyError) Unwrap() error { return e.err }

// keysSupplied refuses a workflow whose agents ask a provider first that has no key
// here (P74). The error tells no more than a caller may know.
func (at *site) keysSupplied(ctx context.Context, w *workflows.Workflow) error {
	for _, use := range w.Models() {
		if !use.Primary {
			continue
		}
		if _, err := at.keySource(ctx, use.Provider); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &keyError{use.Provider, models.KeyVariable(use.Provider), err}
		}
	}
	return nil
}

// refuse is publish.Options.Refuse.
func (at *site) refuse(ctx context.Context, w *workflows.Workflow) error {
	err := at.keysSupplied(ctx, w)
	if missing, ok := errors.AsType[*keyError](err); ok {
		if at.runsElsewhere(ctx, w) {
			return nil
		}
		at.log.WarnContext(ctx, "a call was refused", "workflow", w.ID, "why", missing.err)
		return &engine.RunError{Code: engine.CodeProviderAuth, Message: missing.Error()}
	}
	return err
}

// runsElsewhere reports whether another replica has what the workflow needs, and would
// run it.
func (at *site) runsElsewhere(ctx context.Context, w *workflows.Workflow) bool {
	eng := at.store.Load()
	if at.shared == nil || eng == nil {
		return false
	}
	for _, loaded := range at.known.list() {
		if loaded.Workflow.Digest() == w.Digest() {
			elsewhere, err := eng.Elsewhere(ctx, at.projectOf(loaded.Root), w)
			return elsewhere && err == nil
		}
	}
	return false
}

// secretsSupplied refuses a workflow whose required secret inputs nothing supplies.
// Only their presence is looked at, never their value.
func (at *site) secretsSupplied(ctx context.Context, w *workflows.Workflow) error {
	for i := range w.Inputs {
		input := &w.Inputs[i]
		if input.Type != workflows.TypeSecret || !input.Required {
			continue
		}
		_, err := at.secrets.Inputs(w.ID).Has(ctx, input.Name)
		if missing, ok := errors.AsType[*secrets.NotFoundError](err); ok {
			return invalid(missing.Remedy(), "workflow %q: nothing supplies the secret input %q", w.ID, input.Name)
		}
		if err != nil {
			return secretFault(err)
		}
	}
	return nil
}

// secretSource reports of the variables that are named after secret inputs whether
// these have a value, from whatever source.
func (at *site) secretSource(ctx context.Context, listed []publish.Workflow) func(variable string) bool {
	type input struct{ workflow, name string }
	inputs := make(map[string]input)
	for i := range listed {
		for _, in := range listed[i].Inputs {
			if in.Type == workflows.TypeSecret {
				inputs[listed[i].SecretEnv(in.Name)] = input{listed[i].ID, in.Name}
			}
		}
	}
	return func(variable string) bool {
		in, ok := inputs[variable]
		if !ok {
			return false
		}
		_, err := at.secrets.Inputs(in.workflow).Has(ctx, in.name)
		if refused, ok := errors.AsType[*secrets.RefusedError](err); ok {
			at.log.WarnContext(ctx, "a secret input has no value that can be used", "workflow", in.workflow, "input", in.name, "why", refused)
		}
		return err == nil
	}
}

// distinctSecrets refuses secrets of published workflows and registered servers that
// one variable would supply.
func (at *site) distinctSecrets(listed []publish.Workflow) error {
	var names []secrets.Name
	for i := range listed {
		names = append(names, at.secretsOf(listed[i].Workflow)...)
	}
	for i := range at.Servers {
		names = append(names, at.secretsOfServer(&at.Servers[i])...)
	}
	slices.SortFunc(names, func(x, y secrets.Name) int { return strings.Compare(x.String(), y.String()) })
	for _, clash := range secrets.Clashes(names) {
		return invalid("rename one of them", "secrets: %s", clash)
	}
	return nil
}
