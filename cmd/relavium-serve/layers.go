package main

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/engine"
)

// builtinSettings are the settings where no file says otherwise.
func builtinSettings() settings {
	var s settings
	s.Serve.Transport = new("stdio")
	s.Serve.Listen = new("127.0.0.1:7411")
	s.Serve.ToolPrefix = new("relavium_")
	s.Serve.Tasks = new("auto")
	s.Gates.Accept = []string{engine.ViaElicitation, engine.ViaConsole, engine.ViaCLI}
	s.Gates.MinHumanMS = new(int64(500))
	s.Serve.Limits.CallsPerMinute, s.Serve.Limits.Concurrent, s.Serve.Limits.Runs = new(int64(60)), new(int64(10)), new(int64(64))
	s.Database.Durability = new("normal")
	s.Defaults.FSScope = new("sandboxed")
	return s
}

// accept lists the channels that may decide a gate of the workflow.
func (s *settings) accept(workflow string) []string {
	narrowed := s.Serve.Workflow[workflow].Accept
	if narrowed == nil {
		return s.Gates.Accept
	}
	return slices.DeleteFunc(slices.Clone(s.Gates.Accept), func(via string) bool { return !slices.Contains(narrowed, via) })
}

// overlay returns base with every setting of over that is set. Servers add up.
func overlay(base, over settings) settings {
	servers := slices.Concat(base.Servers, over.Servers)
	merged := mergeValue(reflect.ValueOf(base), reflect.ValueOf(over)).Interface().(settings) //nolint:errcheck,forcetypeassert // merging keeps the type
	merged.Servers = servers
	return merged
}

func mergeValue(base, over reflect.Value) reflect.Value {
	switch over.Kind() { //nolint:exhaustive // the kinds that settings use
	case reflect.Struct:
		merged := reflect.New(over.Type()).Elem()
		for i := range over.NumField() {
			merged.Field(i).Set(mergeValue(base.Field(i), over.Field(i)))
		}
		return merged
	case reflect.Map:
		if base.Len() == 0 {
			return over
		}
		merged := reflect.MakeMap(over.Type())
		for key, value := range base.Seq2() {
			merged.SetMapIndex(key, value)
		}
		for key, value := range over.Seq2() {
			if old := base.MapIndex(key); old.IsValid() {
				value = mergeValue(old, value)
			}
			merged.SetMapIndex(key, value)
		}
		return merged
	case reflect.Pointer, reflect.Slice, reflect.Interface:
		if over.IsNil() {
			return base
		}
	}
	return over
}

// checkProject refuses what a file that arrives with a clone may not set, or may
// only tighten; base is what the user's own configuration says.
func checkProject(f *configFile, base *settings) error {
	for _, key := range f.keys {
		if len(key.path) > 1 && !projectKey(key.path) || len(key.path) == 1 && !projectTable(key.path[0]) {
			return f.fault(key.path, "set it in config.toml of RELAVIUM_HOME (default ~/.relavium)", "may only be set in config.toml, not in a file of the project")
		}
	}
	if err := checkProjectGates(f, base); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(f.settings.Serve.Workflow)) {
		if err := checkProjectWorkflow(f, base, id); err != nil {
			return err
		}
	}
	if scope := f.settings.Defaults.FSScope; scope != nil && scopeWidth(*scope) > scopeWidth(*base.Defaults.FSScope) {
		return f.loosens("defaults", "fs_scope")
	}
	return nil
}

func projectTable(name string) bool {
	switch name {
	case "serve", "gates", "mcp_servers", "variables", "defaults":
		return true
	}
	return foreign([]string{name})
}

func projectKey(path []string) bool {
	switch path[0] {
	case "serve":
		return slices.Contains([]string{"publish", "tool_prefix", "orphan_grace", "handover", "workflow"}, path[1])
	case "gates":
		return path[1] != "key_file"
	case "mcp_servers", "variables", "defaults":
		return true
	}
	return foreign(path)
}

// loosens says that a project file tried to widen a setting.
func (f *configFile) loosens(path ...string) error {
	return f.fault(path, "set it in config.toml of RELAVIUM_HOME (default ~/.relavium)", "a file of the project may only tighten this; config.toml and the defaults say less")
}

func checkProjectGates(f *configFile, base *settings) error {
	gates := f.settings.Gates
	if !subset(gates.Accept, base.Gates.Accept) {
		return f.loosens("gates", "accept")
	}
	if gates.MinHumanMS != nil && *gates.MinHumanMS < *base.Gates.MinHumanMS {
		return f.loosens("gates", "min_human_ms")
	}
	return nil
}

func checkProjectWorkflow(f *configFile, base *settings, id string) error {
	set, was := f.settings.Serve.Workflow[id], base.Serve.Workflow[id]
	floor := *base.Gates.MinHumanMS
	if was.MinHumanMS != nil {
		floor = max(floor, *was.MinHumanMS)
	}
	switch {
	case set.ApproverNotRequester != nil && !*set.ApproverNotRequester && was.ApproverNotRequester != nil && *was.ApproverNotRequester:
		return f.loosens("serve", "workflow", id, "approver_not_requester")
	case was.VisibleTo != nil && !subset(set.VisibleTo, was.VisibleTo):
		return f.loosens("serve", "workflow", id, "visible_to")
	case !subset(set.Reach, was.Reach):
		return f.loosens("serve", "workflow", id, "reach")
	case set.Writes != nil && *set.Writes == "project" && (was.Writes == nil || *was.Writes != "project"):
		return f.loosens("serve", "workflow", id, "writes")
	case !subset(set.Accept, base.accept(id)):
		return f.loosens("serve", "workflow", id, "accept")
	case set.MinHumanMS != nil && *set.MinHumanMS < floor:
		return f.loosens("serve", "workflow", id, "min_human_ms")
	}
	return nil
}

func subset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(one string) bool { return !slices.Contains(all, one) })
}

func scopeWidth(scope string) int {
	return slices.Index([]string{"sandboxed", "project", "full"}, scope)
}

// checkValues refuses values that no setting has, in one file.
func checkValues(f *configFile) error {
	s := &f.settings
	words := []struct {
		path  string
		value *string
		known []string
	}{
		{"serve.transport", s.Serve.Transport, []string{"stdio", "http", "websocket"}},
		{"serve.tasks", s.Serve.Tasks, []string{"auto", "always", "never"}},
		{"database.durability", s.Database.Durability, []string{"normal", "full"}},
		{"host.pin", s.Host.Pin, []string{"ask", "warn", "off"}},
		{"defaults.fs_scope", s.Defaults.FSScope, []string{"sandboxed", "project", "full"}},
	}
	for _, word := range words {
		if word.value != nil && !slices.Contains(word.known, *word.value) {
			return f.fault(strings.Split(word.path, "."), "", "expected one of %s", strings.Join(word.known, ", "))
		}
	}
	names := []struct {
		path  string
		value *string
		least int
	}{
		{"serve.tool_prefix", s.Serve.ToolPrefix, 0},
		{"serve.workspace_id", s.Serve.WorkspaceID, 1},
	}
	for _, name := range names {
		if name.value != nil && !isName(*name.value, name.least) {
			return f.fault(strings.Split(name.path, "."), "", "expected %d to 64 of A-Z, a-z, 0-9, _ and -", name.least)
		}
	}
	numbers := []struct {
		path  string
		value *int64
		least int64
	}{
		{"gates.min_human_ms", s.Gates.MinHumanMS, 0},
		{"serve.limits.calls_per_minute", s.Serve.Limits.CallsPerMinute, 0},
		{"serve.limits.concurrent", s.Serve.Limits.Concurrent, 0},
		{"serve.limits.runs", s.Serve.Limits.Runs, 0},
		{"serve.limits.cost_per_day_microcents", s.Serve.Limits.CostPerDayMicrocents, 0},
		{"host.max_children", s.Host.MaxChildren, 1},
	}
	for _, number := range numbers {
		if number.value != nil && *number.value < number.least {
			return f.fault(strings.Split(number.path, "."), "", "expected %d or more", number.least)
		}
	}
	if err := checkAccept(f, s.Gates.Accept, "gates", "accept"); err != nil {
		return err
	}
	if err := checkPrices(f); err != nil {
		return err
	}
	for _, tool := range s.Host.Repeatable {
		if !strings.HasPrefix(tool, "mcp_") || !isName(tool, 1) {
			return f.fault([]string{"host", "repeatable"}, "", "expected tools of MCP servers by the names that agents use, such as mcp_github_search")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Serve.Workflow)) {
		if err := checkWorkflowValues(f, id); err != nil {
			return err
		}
	}
	return nil
}

// checkPrices refuses prices that would make a budget count wrong.
func checkPrices(f *configFile) error {
	for _, model := range slices.Sorted(maps.Keys(f.settings.Prices)) {
		p := f.settings.Prices[model]
		if p.Input == nil || p.Output == nil {
			return f.fault([]string{"prices", model}, "", "input and output are required, in micro-cents per million tokens")
		}
		for key, value := range map[string]*int64{"input": p.Input, "output": p.Output, "cache_read": p.CacheRead, "cache_write": p.CacheWrite} {
			if value != nil && *value < 0 {
				return f.fault([]string{"prices", model, key}, "", "expected 0 or more")
			}
		}
	}
	return nil
}

func checkAccept(f *configFile, accept []string, path ...string) error {
	known := []string{engine.ViaElicitation, engine.ViaConsole, engine.ViaCLI, engine.ViaCLINonInteractive}
	if !subset(accept, known) {
		return f.fault(path, "", "expected a list of %s", strings.Join(known, ", "))
	}
	return nil
}

func checkWorkflowValues(f *configFile, id string) error {
	set := f.settings.Serve.Workflow[id]
	at := func(key ...string) []string { return append([]string{"serve", "workflow", id}, key...) }
	if err := checkAccept(f, set.Accept, at("accept")...); err != nil {
		return err
	}
	reaches := []string{"files", "write", "commands", "local", "spawn"}
	switch {
	case set.Tool != nil && !isName(*set.Tool, 1):
		return f.fault(at("tool"), "", "expected 1 to 64 of A-Z, a-z, 0-9, _ and -")
	case set.Writes != nil && *set.Writes != "project" && *set.Writes != "run":
		return f.fault(at("writes"), "", "expected project or run")
	case !subset(set.Reach, reaches):
		return f.fault(at("reach"), "", "expected a list of %s", strings.Join(reaches, ", "))
	case set.MinHumanMS != nil && *set.MinHumanMS < 0:
		return f.fault(at("min_human_ms"), "", "expected 0 or more")
	}
	for _, node := range slices.Sorted(maps.Keys(set.Gate)) {
		for key, name := range map[string]*string{"key": set.Gate[node].Key, "field": set.Gate[node].Field} {
			if name != nil && !isName(*name, 1) {
				return f.fault(at("gate", node, key), "", "expected 1 to 64 of A-Z, a-z, 0-9, _ and -")
			}
		}
	}
	return nil
}

func isName(text string, least int) bool {
	return len(text) >= least && len(text) <= 64 &&
		strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}
