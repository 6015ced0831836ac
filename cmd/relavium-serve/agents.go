package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/builtin"
	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/models"
	"github.com/relavium/relavium-serve/workflows"
)

// agents are what agent nodes of this process run on: models, tools, and the
// processes that tools start.
type agents struct {
	runner   *agent.Runner
	models   *models.Models
	tools    *builtin.Tools
	children *child.Table
	host     *inbound.Host
	attend   *attendances
	fit      *fit
	unwatch  func() // ends the look-out for revocations
}

// newAgents makes them. Nothing is connected to and nothing started before an agent
// asks for it. The caller stops them.
func (a *app) newAgents(ctx context.Context, at *site) (*agents, error) {
	g := &agents{children: child.NewTable(child.TableOptions{Children: at.maxChildren()})}
	var err error
	g.models, err = models.New(models.Options{
		Providers: at.Providers.addresses(),
		Key:       at.providerKey,
		Prices:    at.priceList(),
		Log:       at.log,
	})
	if err != nil {
		return nil, &fault{code: exitFault, err: err, hint: "set [providers.<name>] in config.toml"}
	}
	g.tools, err = builtin.New(builtin.Options{
		Home:          at.home,
		Private:       a.secretFiles(at),
		Protected:     at.protected,
		Loaded:        at.known.list,
		ProjectWrites: at.projectWrites,
		Author:        builtin.Identity{Name: value(at.Git.Name), Email: value(at.Git.Email)},
		Children:      g.children,
		Environ:       a.environ(),
		Logger:        at.log,
	})
	if err != nil {
		return nil, fmt.Errorf("tools of agents: %w", err)
	}
	if g.host, err = a.newHost(at, g.children); err != nil {
		return nil, err
	}
	g.attend = &attendances{a: a, at: at, host: g.host, runs: make(map[string]*attendance)}
	g.runner = agent.New(agent.Options{
		Models:            g.models,
		Builtin:           g.tools,
		Servers:           g.host,
		Clean:             text.Clean,
		Scrub:             a.scrubber.String,
		ScrubStream:       func() func(piece string, last bool) string { return a.scrubber.Stream().Piece },
		Spill:             g.tools.Spill,
		MaxTokensEstimate: int(value(at.Defaults.MaxTokensEstimate)),
		Logger:            at.log,
	})
	grants, err := consent.Open(at.home, nil)
	if err != nil {
		return nil, err
	}
	g.fit = newFit(at, g.host, grants.Check)
	revoked := &revocations{
		home: at.home, granted: grants.Check, allowed: at.spawning.allowed, children: g.children, host: g.host, log: at.log,
		told: make(map[string]time.Time),
	}
	g.unwatch = revoked.watch(ctx, time.Second)
	return g, nil
}

// options are what the engine needs of them.
func (g *agents) options(ctx context.Context, at *site, opt *engine.Options) {
	ctx = context.WithoutCancel(ctx)
	opt.Agent = g.runner
	opt.Attend = g.attend.attend
	opt.Ended = func(run string) {
		_ = g.tools.Remove(run) // what is left is swept at the next start
		g.attend.ended(ctx, run)
	}
	opt.Stopped = g.stop
	if at.shared != nil {
		opt.Needs, opt.Has, opt.Offers = g.fit.needs, g.fit.has, g.fit.offers
		opt.CutOff = func() { g.attend.cutOff(ctx) }
	}
}

// stop ends what agents started, once no run needs it.
func (g *agents) stop(ctx context.Context) error {
	g.unwatch()
	g.attend.wait()
	err := errors.Join(g.host.Shutdown(ctx), g.children.Close(ctx))
	g.models.CloseIdle()
	return err
}

// sweep removes the folders of runs that have ended.
func (g *agents) sweep(ctx context.Context, eng *engine.Engine) error {
	return g.tools.Sweep(func(run string) bool {
		r, err := eng.Run(ctx, run, "")
		if err != nil {
			return !errors.Is(err, engine.ErrRunNotFound)
		}
		return !r.State.Terminal()
	})
}

// providerKey is the key of a model provider, looked up each time it is needed.
func (at *site) providerKey(ctx context.Context, provider string) (string, error) {
	secret, err := at.secrets.ProviderKeys().Resolve(ctx, provider)
	if err != nil {
		return "", err
	}
	return secret.Reveal(), nil
}

// addresses are where the providers are reached that are not at their own address.
func (p *providersSettings) addresses() map[string]models.Provider {
	out := make(map[string]models.Provider)
	for name, set := range map[string]*providerSettings{
		models.Anthropic: &p.Anthropic, models.OpenAI: &p.OpenAI, models.Gemini: &p.Gemini, models.DeepSeek: &p.DeepSeek,
	} {
		if set.BaseURL != nil || set.AllowLocalEndpoint != nil {
			out[name] = models.Provider{BaseURL: value(set.BaseURL), AllowLocalEndpoint: value(set.AllowLocalEndpoint)}
		}
	}
	return out
}

// priceList are the prices that the configuration adds to the table.
func (at *site) priceList() map[string]agent.Price {
	out := make(map[string]agent.Price, len(at.Prices))
	for model, p := range at.Prices {
		out[model] = agent.Price{
			Input: value(p.Input), Output: value(p.Output), CacheRead: value(p.CacheRead), CacheWrite: value(p.CacheWrite),
		}
	}
	return out
}

func (at *site) maxChildren() int { return int(value(at.Host.MaxChildren)) }

// projectWrites tells whether runs of other principals write to the project.
func (at *site) projectWrites(_, workflow string) bool {
	return value(at.current().Serve.Workflow[workflow].Writes) == "project"
}

// protected are files and folders that no agent writes, beside those of loaded workflows.
func (at *site) protected() []string { return at.known.folders() }

// private is what nobody reads by a path: the home and what holds secrets elsewhere.
func (a *app) private(at *site) []string { return append([]string{at.home}, a.secretFiles(at)...) }

// secretFiles are files that hold secrets, wherever they are. The tools of agents keep
// the home by themselves, but for the one folder in it that a run has.
func (a *app) secretFiles(at *site) []string {
	var out []string
	for _, path := range []string{value(at.Secrets.AgeFile), value(at.Secrets.AgeIdentity), value(at.Gates.KeyFile), value(at.Serve.TLSKey)} {
		if filepath.IsAbs(path) { // a relative one is below the home
			out = append(out, path)
		}
	}
	for name, path := range a.env {
		if strings.HasPrefix(name, "RELAVIUM_") && strings.HasSuffix(name, "_FILE") && filepath.IsAbs(path) {
			out = append(out, path)
		}
	}
	if dir := a.env["CREDENTIALS_DIRECTORY"]; filepath.IsAbs(dir) {
		out = append(out, dir)
	}
	slices.Sort(out)
	return out
}

// value is what a setting is set to, or its zero.
func value[T any](setting *T) T {
	if setting == nil {
		var zero T
		return zero
	}
	return *setting
}

// environ is the environment of this process.
func (s *shell) environ() []string {
	out := make([]string, 0, len(s.env))
	for _, name := range slices.Sorted(maps.Keys(s.env)) {
		out = append(out, name+"="+s.env[name])
	}
	return out
}

// known is what was loaded from files in this process.
type known struct {
	mu       sync.Mutex
	loaded   []workflows.Loaded
	dirs     []string
	settings *settings // in effect, once they were reloaded
}

// maxKnown bounds the versions of workflows that are remembered.
const maxKnown = 2048

func (k *known) add(list []workflows.Loaded, dirs ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range list {
		same := func(l workflows.Loaded) bool {
			return l.Path == list[i].Path && l.Workflow.Digest() == list[i].Workflow.Digest()
		}
		if !slices.ContainsFunc(k.loaded, same) {
			k.loaded = append(k.loaded, list[i])
		}
	}
	if most := max(maxKnown, len(list)); len(k.loaded) > most {
		k.loaded = slices.Delete(k.loaded, 0, len(k.loaded)-most)
	}
	for _, dir := range dirs {
		if !slices.Contains(k.dirs, dir) {
			k.dirs = append(k.dirs, dir)
		}
	}
}

// use makes settings those in effect.
func (k *known) use(s *settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settings = s
}

// current are the settings in effect, which may have been reloaded since.
func (at *site) current() *settings {
	at.known.mu.Lock()
	defer at.known.mu.Unlock()
	return cmp.Or(at.known.settings, at.settings)
}

func (k *known) list() []workflows.Loaded {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.loaded)
}

func (k *known) folders() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.dirs)
}
