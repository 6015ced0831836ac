package workflows

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// document reads the two top-level keys (format 1.2).
func (c *checker) document(root *item) *draft {
	top := c.object(root, "")
	version := top.need("schema_version", "P10", "write schema_version: '1.0'")
	if version != nil && version.kind != badItem && (version.kind != stringItem || version.text != "1.0") {
		c.add(version, "P10", "schema_version", "want the string '1.0'", "write schema_version: '1.0', with quotes")
	}
	d := &draft{workflow: &Workflow{File: c.file}}
	c.workflow(d, top.need("workflow", "P11", ""))
	top.close()
	return d
}

// workflow reads the workflow object (format 1.3).
func (c *checker) workflow(d *draft, n *item) {
	w, o := d.workflow, c.object(n, "workflow")
	w.ID, _ = o.kebab("id", "P14")
	w.Version, _ = o.text("version")
	if w.Version != "" && !isSemver(w.Version) {
		c.warn(o.get("version"), "P13", o.at("version"), "not a semantic version", "write it like 1.2.3")
	}
	w.Name, _ = o.text("name")
	w.Description, _ = o.text("description")
	w.Tags = o.texts("tags")
	w.Metadata = o.raw("metadata")
	w.Trigger = c.trigger(o.get("trigger"), o.at("trigger"))
	c.inputs(d, o)
	c.context(d, o)
	c.agents(d, o)
	w.Tools = c.toolPolicy(o.get("tools"), o.at("tools"))
	w.Budget = c.budget(o.get("budget"), o.at("budget"))
	w.Timeout = o.millis("timeout_ms", "P13")
	w.MaxParallel = o.count("max_parallel", "P13")
	c.nodes(d, o)
	c.edges(d, o)
	o.close()
}

func isSemver(v string) bool {
	v, _, _ = strings.Cut(v, "+")
	v, _, _ = strings.Cut(v, "-")
	parts := strings.Split(v, ".")
	for _, p := range parts {
		if !onlyDigits(p, "0123456789") || len(p) > 1 && p[0] == '0' {
			return false
		}
	}
	return len(parts) == 3
}

// trigger reads format 1.4. A companion belongs to one type only.
func (c *checker) trigger(n *item, where string) Trigger {
	t := Trigger{Type: "manual"}
	if n == nil {
		return t
	}
	o := c.object(n, where)
	if s := o.word("type", "P17", false, "manual", "webhook", "schedule", "file_change", "mcp_call"); s != "" {
		t.Type = s
	} else if o.get("type") != nil {
		t.Type = ""
	}
	for _, companion := range []string{"webhook", "schedule", "file_change"} {
		v := o.get(companion)
		switch {
		case v != nil && t.Type != "" && t.Type != companion:
			c.add(v, "P18", o.at(companion), companion+" belongs to the trigger of that type", "remove it, or set type: "+companion)
		case v == nil && t.Type == companion:
			o.need(companion, "P18", "")
		}
	}
	switch t.Type {
	case "webhook":
		hook := c.object(o.get("webhook"), o.at("webhook"))
		t.Path, _ = hook.required("path", "P18")
		t.SecretEnv, _ = hook.text("secret_env")
		hook.close()
	case "schedule":
		t.Schedule, _ = o.text("schedule")
	case "file_change":
		change := c.object(o.get("file_change"), o.at("file_change"))
		t.Glob, _ = change.required("glob", "P18")
		t.DebounceMS, _ = change.integer("debounce_ms", "P18", 0, maxMillis)
		change.close()
	}
	o.close()
	return t
}

// inputs reads format 1.5.
func (c *checker) inputs(d *draft, o *object) {
	entries, _ := o.list("inputs")
	first := make(map[string]int)
	for i, n := range entries {
		in := c.input(n, index(o.at("inputs"), i))
		d.workflow.Inputs = append(d.workflow.Inputs, in)
		d.inputs = append(d.inputs, n)
		if in.Name == "" {
			continue
		}
		if line, twice := first[in.Name]; twice {
			c.twice(n.member("name"), "P20", index(o.at("inputs"), i)+".name", "input "+shown(in.Name), line)
			continue
		}
		first[in.Name] = n.member("name").line
	}
}

// twice reports a name that was given before, on the line.
func (c *checker) twice(n *item, rule, where, what string, line int) {
	at := ""
	switch line {
	case 0:
	case n.line:
		at = fmt.Sprintf(" on line %d", line)
	default:
		at = fmt.Sprintf(" on lines %d and %d", line, n.line)
	}
	c.add(n, rule, where, "duplicate "+what+at, "keep one, or change it")
}

// name is a required name of the charset that a template can refer to.
func (o *object) name(key, rule string) string {
	n := o.need(key, rule, "")
	s, ok := o.c.text(n, o.at(key))
	if !ok {
		return ""
	}
	if s == "" || len(s) > maxIDBytes || strings.ContainsFunc(s, func(r rune) bool { return !isNameRune(r) }) {
		o.c.add(n, rule, o.at(key), "no template could refer to this name", "use letters, digits, - and _")
		return ""
	}
	return s
}

func (c *checker) input(n *item, where string) Input {
	o := c.object(n, where)
	in := Input{Name: o.name("name", "P19")}
	kind, typed := o.required("type", "P21")
	in.Type = kind
	in.Required = o.boolean("required")
	in.Default = c.field(o.get("default"), o.at("default"))
	in.Description, _ = o.text("description")
	rules := o.get("validation")
	if rules != nil {
		in.Validation = c.validation(rules, o.at("validation"))
	}
	o.close()
	if !typed {
		return in
	}
	for _, bad := range checkInput(&in) {
		at, spot := n, bad.field
		for spot != "" {
			key, rest, _ := strings.Cut(spot, ".")
			if v := at.member(key); v != nil {
				at = v
			}
			spot = rest
		}
		report := c.add
		if bad.warning {
			report = c.warn
		}
		report(at, bad.rule, where+"."+bad.field, bad.what, bad.remedy)
	}
	return in
}

func (c *checker) validation(n *item, where string) Validation {
	o := c.object(n, where)
	v := Validation{Min: o.number("min"), Max: o.number("max")}
	if entries, ok := o.list("enum"); ok {
		v.Enum = make([]json.RawMessage, 0, len(entries))
		for _, e := range entries {
			v.Enum = append(v.Enum, e.json())
		}
	}
	v.Format, _ = o.text("format")
	v.Pattern, _ = o.text("pattern")
	for key, to := range map[string]**int{"min_length": &v.MinLength, "max_length": &v.MaxLength} {
		if length, ok := o.integer(key, "P13", 0, math.MaxInt32); ok {
			n := int(length)
			*to = &n
		}
	}
	o.close()
	return v
}

// context reads format 1.6.
func (c *checker) context(d *draft, o *object) {
	entries, _ := o.list("context")
	first := make(map[string]int)
	for i, n := range entries {
		where := index(o.at("context"), i)
		e := c.object(n, where)
		entry := ContextEntry{Key: e.name("key", "P26")}
		value := e.need("value", "P13", "")
		if value != nil {
			switch value.kind {
			case stringItem, numberItem, boolItem, badItem:
				if f := c.field(value, e.at("value")); f != nil {
					entry.Value = *f
				}
			case nullItem, listItem, mapItem:
				c.wrongType(value, e.at("value"), "a string, a number or a boolean", "")
			}
		}
		e.close()
		d.workflow.Context = append(d.workflow.Context, entry)
		d.context = append(d.context, n)
		if entry.Key == "" {
			continue
		}
		if line, twice := first[entry.Key]; twice {
			c.twice(n.member("key"), "P27", where+".key", "context key "+shown(entry.Key), line)
			continue
		}
		first[entry.Key] = n.member("key").line
	}
}

// toolPolicy reads format 1.9.
func (c *checker) toolPolicy(n *item, where string) ToolPolicy {
	o := c.object(n, where)
	p := ToolPolicy{
		AllowedCommands:     o.texts("allowedCommands"),
		AllowedCommandGlobs: o.texts("allowedCommandGlobs"),
		AllowedDomains:      o.texts("allowedDomains"),
	}
	c.adviseGlobs(o, p.AllowedCommandGlobs)
	o.close()
	return p
}

// budget reads format 1.10. A cap of zero or less means none.
func (c *checker) budget(n *item, where string) *Budget {
	if n == nil {
		return nil
	}
	o := c.object(n, where)
	b := &Budget{OnExceed: "fail"}
	o.need("max_cost_microcents", "P13", "")
	b.MaxCostMicrocents, _ = o.integer("max_cost_microcents", "P13", math.MinInt64, math.MaxInt64)
	if s := o.word("on_exceed", "P13", false, "fail", "pause_for_approval", "warn"); s != "" {
		b.OnExceed = s
	}
	o.close()
	return b
}
