package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/workflows"
)

// A reloader lets a server follow the files that it was started from. What does
// not load, or reaches further than before, changes nothing: the last good version
// stays, and the log says why.
type reloader struct {
	app    *app
	start  *site // what needs a restart stays as it was then
	at     *site // in effect
	flags  *serveFlags
	entry  *entrance
	server *publish.Server
	eng    *engine.Engine
	inputs *secretInputs

	listed []publish.Workflow
	reach  map[string][]string // kinds, by workflow, of what was published last
	said   map[string]bool     // what the log was told at the last look
	again  map[string]bool     // the same of the look under way
}

// begin follows the files, which were like before when they were loaded, until end
// is called.
func (r *reloader) begin(ctx context.Context, before look) (end func()) {
	r.reach = make(map[string][]string)
	for i := range r.listed {
		r.reach[r.listed[i].ID] = r.at.kinds(r.listed[i].Workflow)
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { r.follow(ctx, before) })
	return func() {
		cancel()
		following.Wait()
	}
}

// reload looks at all files anew.
func (r *reloader) reload(ctx context.Context) {
	r.again = make(map[string]bool)
	defer func() { r.said = r.again }()
	next := r.configured(ctx)
	catalog, err := next.loadWith(r.flags.folders, next.advised(ctx, next.loaderOptions()))
	if err != nil {
		r.warn(ctx, "the workflow files stay as they were loaded last", "why", oneFault(err))
		return
	}
	for i := range catalog.Broken {
		for _, p := range catalog.Broken[i].Problems {
			r.warn(ctx, "a workflow file does not load; what it published stays as it was",
				"file", p.File, "line", p.Line, "where", p.Where, "what", p.What, "remedy", p.Remedy)
		}
	}
	r.keepServers(ctx, next)
	list, ok := r.choose(ctx, next, catalog)
	if !ok {
		return
	}
	r.take(ctx, next, list)
}

// configured is the site as the files say now, as far as that takes effect without
// a restart.
func (r *reloader) configured(ctx context.Context) *site {
	next := *r.at
	fresh, err := r.app.loadSettings(r.start.place, r.app.config, r.start.root)
	if err != nil {
		r.warn(ctx, "the configuration stays as it was", "why", oneFault(err))
		return &next
	}
	if r.flags.publish != nil {
		fresh.Serve.Publish = r.flags.publish
	}
	if keys := differing(r.start.settings, fresh); len(keys) > 0 {
		r.warn(ctx, "what changed here takes effect at the next start of the server", "keys", strings.Join(keys, ", "))
	}
	effective := *r.start.settings
	effective.Serve.Publish = fresh.Serve.Publish
	effective.Serve.Workflow = fresh.Serve.Workflow
	effective.Serve.Limits = fresh.Serve.Limits
	effective.Servers = fresh.Servers
	effective.Prices = fresh.Prices
	next.settings = &effective
	return &next
}

// keepServers refuses registrations with which something that is published would
// reach further.
func (r *reloader) keepServers(ctx context.Context, next *site) {
	if reflect.DeepEqual(next.Servers, r.at.Servers) {
		return
	}
	for i := range r.listed {
		w := &r.listed[i]
		if wider := beyond(next.kinds(w.Workflow), r.reach[w.ID]); len(wider) > 0 {
			r.warn(ctx, "mcp_servers stay as they were: with the new ones a workflow would reach further; restart the server if that is meant",
				"workflow", w.ID, "reach", strings.Join(wider, ", "))
			next.Servers = r.at.Servers
			return
		}
	}
}

// choose picks the version of each workflow to publish; ok is false where the list
// stays as it is.
func (r *reloader) choose(ctx context.Context, next *site, catalog *workflows.Catalog) (list []publish.Workflow, ok bool) {
	loaded := make(map[string]*workflows.Loaded, len(catalog.Workflows))
	for i := range catalog.Workflows {
		loaded[catalog.Workflows[i].Workflow.ID] = &catalog.Workflows[i]
	}
	before := make(map[string]*publish.Workflow, len(r.listed))
	for i := range r.listed {
		w := &r.listed[i]
		if before[w.ID] = w; loaded[w.ID] == nil && !broken(catalog, w) {
			delete(before, w.ID)
		}
	}
	refused := false
	for _, id := range next.wanted(catalog, before) {
		w, why := r.version(ctx, next, loaded[id], before[id])
		switch {
		case w != nil:
			list = append(list, *w)
		case why != nil:
			refused = true
			r.warn(ctx, "a workflow is not published", "workflow", id, "why", oneFault(why))
		default:
			r.warn(ctx, "a workflow that is to be published is not loaded", "workflow", id)
		}
	}
	if len(list) == 0 && len(r.listed) > 0 && len(next.Serve.Publish) > 0 && !refused {
		r.warn(ctx, "nothing that is to be published loads; everything stays as it was")
		return nil, false
	}
	if err := next.distinctSecrets(list); err != nil {
		r.warn(ctx, "everything stays as it was", "why", oneFault(err))
		return nil, false
	}
	return list, true
}

// wanted is the publish list, in its order; before are the workflows that were
// published and whose files are there.
func (at *site) wanted(catalog *workflows.Catalog, before map[string]*publish.Workflow) []string {
	var ids []string
	add := func(id string) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range at.Serve.Publish {
		if id != everyMCPCall {
			add(id)
		}
	}
	if !slices.Contains(at.Serve.Publish, everyMCPCall) {
		return ids
	}
	for i := range catalog.Workflows {
		if w := catalog.Workflows[i].Workflow; w.Trigger.Type == "mcp_call" {
			add(w.ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if !slices.ContainsFunc(catalog.Workflows, func(l workflows.Loaded) bool { return l.Workflow.ID == id }) {
			add(id) // its file is broken now
		}
	}
	return ids
}

// version is the workflow as it loaded now, or as it was published before where
// that one may not be; nil with the reason where neither may.
func (r *reloader) version(ctx context.Context, next *site, now *workflows.Loaded, before *publish.Workflow) (*publish.Workflow, error) {
	var why error
	if now != nil {
		w := now.Workflow
		known, seen := r.reach[w.ID]
		wider := beyond(next.kinds(w), known)
		if !seen || len(wider) == 0 {
			published, err := r.admitted(ctx, next, now)
			if err == nil {
				return published, nil
			}
			why = err
			if before != nil && before.Digest() != w.Digest() {
				r.warn(ctx, "a workflow stays as it was", "workflow", w.ID, "why", oneFault(err))
			}
		} else {
			r.warn(ctx, "a workflow reaches further than before and stays as it was; restart the server if that is meant",
				"workflow", w.ID, "file", w.File, "reach", strings.Join(wider, ", "))
			why = errors.New("it reaches further than when it was published last")
		}
		if before != nil && before.Digest() == w.Digest() {
			return nil, why // it is the version before
		}
	}
	if before == nil {
		return nil, why
	}
	return r.admitted(ctx, next, &workflows.Loaded{Workflow: before.Workflow, Root: before.Project.Root})
}

// admitted is a workflow that passes every check of a start.
func (r *reloader) admitted(ctx context.Context, next *site, loaded *workflows.Loaded) (*publish.Workflow, error) {
	quietly := *next
	quietly.log = slog.New(warnings{next.log.Handler()})
	w, err := quietly.publishable(loaded, r.entry)
	if err == nil {
		err = quietly.secretsSupplied(ctx, w.Workflow)
	}
	return &w, err
}

// take puts everything in effect.
func (r *reloader) take(ctx context.Context, next *site, list []publish.Workflow) {
	g := next.agents
	if err := g.host.Register(next.registrations()); err != nil {
		r.warn(ctx, "everything stays as it was", "why", err)
		return
	}
	for i := range list {
		if err := r.eng.Adopt(list[i].Project.Key); err != nil {
			r.warn(ctx, "runs of a project cannot be executed", "why", err)
			return
		}
	}
	r.inputs.set(next.secretSource(ctx, slices.Concat(r.listed, list)))
	if err := r.server.Replace(list); err != nil {
		r.warn(ctx, "the published list stays as it was", "why", oneFault(err))
		list = r.listed
	}
	g.models.SetPrices(next.priceList())
	r.server.Limit(next.limits())
	next.known.use(next.settings)
	changed := r.changed(list)
	for i := range list {
		r.reach[list[i].ID] = next.kinds(list[i].Workflow)
	}
	r.at, r.listed = next, list
	if err := r.app.checkServing(ctx, next, changed, false); err != nil {
		return // the server is stopping
	}
	r.start.log.InfoContext(ctx, "reloaded", "workflows", len(list), "new or edited", len(changed))
}

// changed are the workflows of a list that are new in it, or edited.
func (r *reloader) changed(list []publish.Workflow) []publish.Workflow {
	var out []publish.Workflow
	for i := range list {
		w := &list[i]
		if !slices.ContainsFunc(r.listed, func(was publish.Workflow) bool { return was.ID == w.ID && was.Digest() == w.Digest() }) {
			out = append(out, *w)
		}
	}
	return out
}

// warn logs what the last look did not find already.
func (r *reloader) warn(ctx context.Context, what string, args ...any) {
	record := []string{what}
	for _, arg := range args {
		switch arg := arg.(type) {
		case string:
			record = append(record, arg)
		case int:
			record = append(record, strconv.Itoa(arg))
		case error:
			record = append(record, arg.Error())
		}
	}
	key := strings.Join(record, "\x00")
	if !r.said[key] && !r.again[key] {
		r.start.log.WarnContext(ctx, what, args...) //nolint:sloglint // the callers' texts are constant
	}
	r.again[key] = true
}

// kinds are the reach of a workflow.
func (at *site) kinds(w *workflows.Workflow) []string {
	return publish.Kinds(publish.Touches(w, at.surroundings()))
}

// beyond lists what of some is not in all.
func beyond(some, all []string) []string {
	return slices.DeleteFunc(slices.Clone(some), func(one string) bool { return slices.Contains(all, one) })
}

// broken reports whether the file of a workflow is there and did not load.
func broken(catalog *workflows.Catalog, w *publish.Workflow) bool {
	path := filepath.Join(w.Project.Root, filepath.FromSlash(w.File))
	return slices.ContainsFunc(catalog.Broken, func(b workflows.Broken) bool { return b.ID == w.ID || b.Path == path })
}

// oneFault is an error with its remedy.
func oneFault(err error) string {
	if f, ok := errors.AsType[*fault](err); ok && f.hint != "" {
		return err.Error() + ": " + f.hint
	}
	return err.Error()
}

// differing lists the settings that are not the same and need a restart.
func differing(old, fresh *settings) []string {
	var keys []string
	compare(reflect.ValueOf(*old), reflect.ValueOf(*fresh), nil, &keys)
	return keys
}

func compare(old, fresh reflect.Value, path []string, keys *[]string) {
	if old.Kind() == reflect.Struct {
		for i := range old.NumField() {
			key := old.Type().Field(i).Tag.Get("toml")
			if key == "" || len(path) == 0 && foreign([]string{key}) {
				continue
			}
			compare(old.Field(i), fresh.Field(i), append(slices.Clone(path), key), keys)
		}
		return
	}
	if !reloads(path) && !reflect.DeepEqual(old.Interface(), fresh.Interface()) {
		*keys = append(*keys, dotted(path))
	}
}

// reloads reports whether a setting takes effect without a restart.
func reloads(path []string) bool {
	switch path[0] {
	case "mcp_servers", "prices":
		return true
	case "serve":
		return slices.Contains([]string{"publish", "workflow", "limits"}, path[1])
	}
	return false
}

// secretInputs reports which secret inputs of published workflows have a value.
type secretInputs struct {
	source atomic.Pointer[func(variable string) bool]
}

func (s *secretInputs) set(source func(variable string) bool) { s.source.Store(&source) }

func (s *secretInputs) has(variable string) bool { return (*s.source.Load())(variable) }

// warnings leaves out what is below a warning.
type warnings struct{ slog.Handler }

// Enabled is of slog.Handler.
func (h warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}
