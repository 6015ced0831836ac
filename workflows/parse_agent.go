package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// An agentSource says where an agent of Workflow.Agents came from.
type agentSource struct {
	item  *item  // its map
	where string // its path in that file
	file  string
}

// agents reads format 1.8: inline agents and references to agent files.
func (c *checker) agents(d *draft, o *object) {
	entries, _ := o.list("agents")
	for i, n := range entries {
		where := index(o.at("agents"), i)
		if n.member("$ref") == nil {
			a := c.agent(n, where)
			if a.ID == "" {
				d.partialAgents = true
				continue
			}
			c.addAgent(d, a, agentSource{item: n, where: where, file: c.file}, n)
			continue
		}
		a, source := c.reference(n, where)
		if a == nil || a.ID == "" {
			d.partialAgents = true
			continue
		}
		d.external = append(d.external, externalAgent{ref: n.member("$ref").text, agent: a})
		c.addAgent(d, *a, source, n)
	}
}

// addAgent keeps an agent unless its id is taken; n is its entry in the workflow.
func (c *checker) addAgent(d *draft, a Agent, source agentSource, n *item) {
	for i := range d.workflow.Agents {
		if d.workflow.Agents[i].ID == a.ID {
			c.twice(n, "P30", source.where, "agent id "+shown(a.ID), d.agents[i].item.line)
			return
		}
	}
	d.workflow.Agents = append(d.workflow.Agents, a)
	d.agents = append(d.agents, source)
}

// reference reads the agent file that a $ref names; nil when it cannot be had.
func (c *checker) reference(n *item, where string) (*Agent, agentSource) {
	o := c.object(n, where)
	ref, ok := o.required("$ref", "P13")
	o.close()
	at := o.get("$ref")
	var none agentSource
	switch {
	case !ok:
		return nil, none
	case c.restored:
		doc := c.kept(ref, "")
		if doc == nil { // it was not read when the file was
			return nil, none
		}
		a := c.agent(doc, where)
		return &a, agentSource{item: doc, where: where, file: c.file}
	case path.IsAbs(ref) || strings.ContainsAny(ref, "\\:\x00"):
		c.add(at, "P13", o.at("$ref"), "want a path relative to the workflow file", "use / between folders")
		return nil, none
	case c.opt.ReadRef == nil:
		return nil, none
	}
	src, err := c.opt.ReadRef(ref)
	if err != nil {
		what := "dangling_ref: the agent file cannot be read"
		if errors.Is(err, fs.ErrNotExist) {
			what = "dangling_ref: no such agent file"
		}
		c.add(at, "P71", o.at("$ref"), what, "the path is relative to the workflow file")
		return nil, none
	}
	file := path.Join(path.Dir(c.file), ref)
	root, problems := decode(file, src)
	c.problems = append(c.problems, problems...)
	if root == nil {
		return nil, none
	}
	inner := &checker{file: file, opt: c.opt}
	a := inner.agentFile(root)
	c.problems = append(c.problems, inner.problems...)
	return a, agentSource{item: root, file: file}
}

// agentFile reads an agent file: the agent's own keys and, perhaps, a version.
func (c *checker) agentFile(root *item) *Agent {
	if v := root.member("schema_version"); v != nil {
		if v.kind != stringItem || v.text != "1.0" {
			c.add(v, "P10", "schema_version", "want the string '1.0'", "write schema_version: '1.0', with quotes")
		}
		rest := *root
		rest.keys, rest.items = nil, nil
		for i, k := range root.keys {
			if k.name != "schema_version" {
				rest.keys, rest.items = append(rest.keys, k), append(rest.items, root.items[i])
			}
		}
		root = &rest
	}
	a := c.agent(root, "")
	return &a
}

// agent reads format 2.1.
func (c *checker) agent(n *item, where string) Agent {
	o := c.object(n, where)
	var a Agent
	a.ID, _ = o.kebab("id", "P30")
	a.Name, _ = o.text("name")
	a.Description, _ = o.text("description")
	a.Model, _ = o.required("model", "P31")
	o.need("provider", "P31", "use one of "+strings.Join(providers(), ", "))
	a.Provider = o.word("provider", "P33", false, providers()...)
	a.SystemPrompt, _ = o.required("system_prompt", "P31")
	a.Temperature = o.within("temperature", "P32", 0, 2)
	a.MaxTokens = o.count("max_tokens", "P13")
	a.ReasoningEffort = o.word("reasoning_effort", "P34", false, "off", "low", "medium", "high", "max")
	a.InputSchema = o.raw("input_schema")
	a.OutputSchema = o.schema("output_schema")
	a.Tools = c.tools(o)
	a.Servers = c.servers(o)
	c.adviseTools(o, &a)
	a.Memory = c.memory(o)
	a.Retry = c.retry(o)
	a.Fallback = c.fallback(o)
	o.close()
	return a
}

func providers() []string { return []string{"anthropic", "openai", "gemini", "deepseek"} }

// schema is an output_schema that compiles, or nil.
func (o *object) schema(key string) json.RawMessage {
	raw := o.raw(key)
	if raw == nil {
		return nil
	}
	_, err := o.c.compile(raw)
	if bad, ok := errors.AsType[*schemaError](err); ok {
		o.c.add(o.get(key), "P13", o.at(key), strings.TrimPrefix(bad.at+": ", "#: ")+bad.what, bad.remedy)
		return nil
	}
	if err != nil {
		o.c.add(o.get(key), "P13", o.at(key), "schema cannot be used: "+err.Error(), "")
		return nil
	}
	return raw
}

// maxSchemas bounds the work that one file can cause.
const maxSchemas = 200

// compile compiles a schema once for a file.
func (c *checker) compile(raw json.RawMessage) (*compiledSchema, error) {
	if s, ok := c.compiled[string(raw)]; ok {
		return s, nil
	}
	if len(c.compiled) == maxSchemas {
		return nil, &schemaError{at: "#", what: fmt.Sprintf("more than %d different schemas in a file", maxSchemas), remedy: "share schemas"}
	}
	s, err := compileSchema(raw)
	if err != nil {
		return nil, err
	}
	if c.compiled == nil {
		c.compiled = make(map[string]*compiledSchema)
	}
	c.compiled[string(raw)] = s
	return s, nil
}

// tools reads a grant. Some tools of the format are not part of this version.
func (c *checker) tools(o *object) []string {
	entries, _ := o.list("tools")
	for i, n := range entries {
		if n.kind == mapItem {
			c.add(n, "P13", index(o.at("tools"), i), "want a tool id, got a map", "list plain ids such as read_file")
			return nil
		}
	}
	ids := o.texts("tools")
	for i, n := range entries {
		if slices.Contains(absentTools(), n.text) {
			c.add(n, "P61", index(o.at("tools"), i), "tool "+shown(n.text)+" is not part of this version", "remove it")
		}
	}
	return ids
}

// absentTools are tools of the format that this version does not have.
func absentTools() []string { return []string{"web_search", "read_clipboard", "notify", "read_media"} }

// memory is kept as written; no workflow node reads it (format 2.1).
func (c *checker) memory(o *object) json.RawMessage {
	n := o.get("memory")
	if n == nil {
		return nil
	}
	m := c.object(n, o.at("memory"))
	m.word("type", "P37", true, "none", "window", "summary")
	m.integer("window_size", "P37", 1, maxMillis)
	m.close()
	return n.json()
}

// retry reads format 2.3; nil when there is none.
func (c *checker) retry(o *object) *Retry {
	n := o.get("retry")
	if n == nil {
		return nil
	}
	r, out := c.object(n, o.at("retry")), &Retry{Base: time.Second}
	r.need("max", "P35", "")
	out.Max = r.count("max", "P35")
	out.Backoff = r.word("backoff", "P13", true, "linear", "exponential")
	if base := r.millis("backoff_ms", "P13"); base > 0 {
		out.Base = base
	}
	codes := []string{"provider_rate_limit", "provider_unavailable", "tool_failed", "sandbox_error"}
	if on := r.get("retry_on"); on != nil {
		out.On = r.texts("retry_on")
		if on.kind == listItem && len(on.items) == 0 {
			c.add(on, "P36", r.at("retry_on"), "retry_on is empty", "leave it out to retry on every retryable code")
		}
		for i, code := range on.items {
			if code.kind == stringItem && !slices.Contains(codes, code.text) {
				c.add(code, "P36", index(r.at("retry_on"), i), "not a retryable code", "use one of "+strings.Join(codes, ", "))
			}
		}
	}
	r.close()
	return out
}

func (c *checker) fallback(o *object) []Fallback {
	entries, _ := o.list("fallback_chain")
	var out []Fallback
	for i, n := range entries {
		f := c.object(n, index(o.at("fallback_chain"), i))
		var one Fallback
		one.Model, _ = f.required("model", "P38")
		one.Provider = f.word("provider", "P38", true, providers()...)
		one.MaxAttempts = 1
		if m := f.count("max_attempts", "P38"); m > 0 {
			one.MaxAttempts = m
		}
		f.close()
		out = append(out, one)
	}
	return out
}

// agentItem writes an agent back as the document it could have been read from.
func agentItem(a *Agent) *item {
	n := &item{kind: mapItem}
	text := func(key, s string) {
		if s != "" {
			n.set(key, textItem(s))
		}
	}
	raw := func(key string, v json.RawMessage) {
		if v == nil {
			return
		}
		if parsed, err := itemFromJSON(v); err == nil {
			n.set(key, parsed)
		}
	}
	text("id", a.ID)
	text("name", a.Name)
	text("description", a.Description)
	text("model", a.Model)
	text("provider", a.Provider)
	text("system_prompt", a.SystemPrompt)
	raw("temperature", json.RawMessage(a.Temperature))
	if a.MaxTokens > 0 {
		n.set("max_tokens", numberOf(int64(a.MaxTokens)))
	}
	text("reasoning_effort", a.ReasoningEffort)
	raw("input_schema", a.InputSchema)
	raw("output_schema", a.OutputSchema)
	if a.Tools != nil {
		n.set("tools", listOf(a.Tools, textItem))
	}
	if a.Servers != nil {
		n.set("mcp_servers", listOf(a.Servers, serverItem))
	}
	raw("memory", a.Memory)
	if a.Retry != nil {
		n.set("retry", retryItem(a.Retry))
	}
	if a.Fallback != nil {
		n.set("fallback_chain", listOf(a.Fallback, func(f Fallback) *item {
			one := &item{kind: mapItem}
			one.set("model", textItem(f.Model))
			one.set("provider", textItem(f.Provider))
			one.set("max_attempts", numberOf(int64(f.MaxAttempts)))
			return one
		}))
	}
	return n
}

func retryItem(r *Retry) *item {
	n := &item{kind: mapItem}
	n.set("max", numberOf(int64(r.Max)))
	n.set("backoff", textItem(r.Backoff))
	n.set("backoff_ms", numberOf(r.Base.Milliseconds()))
	if r.On != nil {
		n.set("retry_on", listOf(r.On, textItem))
	}
	return n
}
