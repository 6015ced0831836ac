package workflows

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	transportStdio     = "stdio"
	transportHTTP      = "http"
	transportSSE       = "sse"
	transportWebsocket = "websocket"
)

// servers reads the mcp_servers of an agent (format 2.5).
func (c *checker) servers(o *object) []ServerRef {
	entries, ok := o.list("mcp_servers")
	if !ok {
		return nil
	}
	out := make([]ServerRef, 0, len(entries))
	first := make(map[string]int)
	for i, n := range entries {
		where := index(o.at("mcp_servers"), i)
		var s ServerRef
		if n.member("ref") != nil {
			s = c.serverByName(n, where)
		} else {
			s = c.server(n, where)
		}
		out = append(out, s)
		name := s.Ref
		if name == "" {
			name = s.ID
		}
		if line, twice := first[name]; twice && name != "" {
			c.twice(n, "P46", where, "server "+shown(name), line)
			continue
		}
		first[name] = n.line
	}
	return out
}

// serverByName reads a reference to a registration, which allows one more key.
func (c *checker) serverByName(n *item, where string) ServerRef {
	o := c.object(n, where)
	var s ServerRef
	var ok bool
	if s.Ref, ok = o.required("ref", "P40"); ok && c.opt.Servers != nil && !slices.Contains(c.opt.Servers, s.Ref) {
		remedy := "register it under [[mcp_servers]]"
		if near := nearest(s.Ref, c.opt.Servers); near != "" {
			remedy = "did you mean " + shown(near) + "?"
		}
		c.add(o.get("ref"), "P75", o.at("ref"), "no server "+shown(s.Ref)+" is registered", remedy)
	}
	s.ToolsAllowlist = o.texts("tools_allowlist")
	for _, key := range []string{
		"id", "transport", "command", "args", "env", "url", "allow_local_endpoint", "connect_timeout_ms",
	} {
		if v := o.get(key); v != nil {
			c.add(v, "P39", o.at(key), shown(key)+" is not allowed beside ref", "remove it; the registration holds it")
		}
	}
	o.close()
	return s
}

// server reads an inline server.
func (c *checker) server(n *item, where string) ServerRef {
	o := c.object(n, where)
	var s ServerRef
	if n.kind == mapItem && o.get("id") == nil && o.get("transport") == nil {
		o.get("ref")
		c.add(n, "P40", where, "neither ref nor an inline server", "give ref, or id and transport")
	} else {
		s.ID, _ = o.kebab("id", "P40")
		o.need("transport", "P40", "")
		s.Transport = o.word("transport", "P43", false, transportStdio, transportHTTP, transportWebsocket, transportSSE)
	}
	s.ToolsAllowlist = o.texts("tools_allowlist")
	s.ConnectTimeout = 0
	if v, ok := o.integer("connect_timeout_ms", "P47", 1, 600_000); ok {
		s.ConnectTimeout = time.Duration(v) * time.Millisecond
	}
	stdio, network := []string{"command", "args", "env"}, []string{"url", "allow_local_endpoint"}
	switch s.Transport {
	case "":
		for _, key := range append(stdio, network...) {
			o.get(key)
		}
	case transportStdio:
		o.misplaced(network, "on a stdio server")
		c.stdio(o, &s)
	default:
		o.misplaced(stdio, "on a network server")
		c.network(o, &s)
	}
	o.close()
	return s
}

func (o *object) misplaced(keys []string, on string) {
	for _, key := range keys {
		if v := o.get(key); v != nil {
			o.c.add(v, "P42", o.at(key), shown(key)+" is not allowed "+on, "remove it")
		}
	}
}

func (c *checker) stdio(o *object, s *ServerRef) {
	s.Command, _ = o.required("command", "P41")
	s.Args = o.texts("args")
	c.secretless(o.get("command"), o.at("command"))
	if n := o.get("args"); n != nil && n.kind == listItem {
		for i, arg := range n.items {
			c.secretless(arg, index(o.at("args"), i))
		}
	}
	if strings.ContainsAny(s.Command, " \t") && len(s.Args) == 0 {
		c.warn(o.get("command"), "P41", o.at("command"), "the command is one program, spaces included", "put arguments in args")
	}
	n := o.get("env")
	if n == nil {
		return
	}
	if n.kind != mapItem {
		c.wrongType(n, o.at("env"), "a map", "")
		return
	}
	for i, k := range n.keys {
		where, at := join(o.at("env"), k.name), &item{line: k.line, col: k.col}
		if c.opt.EnvDenied != nil {
			if reason, denied := c.opt.EnvDenied(k.name); denied {
				c.add(at, "P48", where, "environment variable "+shown(k.name)+" may not be set: "+reason, "remove it")
			}
		}
		value, ok := c.text(n.items[i], where)
		if !ok {
			continue
		}
		s.Env = append(s.Env, EnvVar{Name: k.name, Value: value})
		if t := c.template(n.items[i], where); t != nil {
			for _, r := range t.refs() {
				if r.kind != refSecrets {
					c.add(n.items[i], "P63", where, "only secrets can be referred to here", "write {{secrets.NAME}}")
				}
			}
		}
	}
}

// secretless refuses a secret in what is not env: arguments and addresses are for all
// to read.
func (c *checker) secretless(n *item, where string) {
	if n == nil || n.kind != stringItem {
		return
	}
	t, err := parseTemplate(n.text)
	if err == nil && slices.ContainsFunc(t.refs(), func(r ref) bool { return r.kind == refSecrets }) {
		c.add(n, "P63", where, "a secret cannot be referred to here, where others could read it", "env of a stdio server takes it")
	}
}

// network checks what can be seen in the words of a URL; whether its host may be
// reached is for the caller's CheckURL.
func (c *checker) network(o *object, s *ServerRef) {
	s.URL, _ = o.required("url", "P41")
	s.AllowLocalEndpoint = o.boolean("allow_local_endpoint")
	if s.Transport == transportWebsocket && !s.AllowLocalEndpoint {
		c.add(o.get("transport"), "P49", o.at("transport"), "websocket is for local servers with allow_local_endpoint", "use transport: http")
	}
	if s.URL == "" {
		return
	}
	at, where := o.get("url"), o.at("url")
	c.secretless(at, where)
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" {
		c.add(at, "P44", where, "not a URL with scheme and host", "")
		return
	}
	schemes := []string{"https", "http"}
	if s.Transport == transportWebsocket {
		schemes = []string{"wss", "ws"}
	}
	if !slices.Contains(schemes, u.Scheme) {
		c.add(at, "P44", where, "wrong scheme for transport "+s.Transport, "use "+strings.Join(schemes, " or "))
		return
	}
	if u.User != nil {
		c.add(at, "P45", where, "credentials inside a URL are not allowed", "remove them")
		return
	}
	if c.opt.CheckURL != nil && (s.Transport != transportWebsocket || s.AllowLocalEndpoint) {
		if err := c.opt.CheckURL(s.URL, s.AllowLocalEndpoint); err != nil {
			c.add(at, "P44", where, err.Error(), "")
		}
	}
}

func serverItem(s ServerRef) *item {
	n := &item{kind: mapItem}
	text := func(key, v string) {
		if v != "" {
			n.set(key, textItem(v))
		}
	}
	text("ref", s.Ref)
	text("id", s.ID)
	text("transport", s.Transport)
	text("command", s.Command)
	if s.Args != nil {
		n.set("args", listOf(s.Args, textItem))
	}
	if s.Env != nil {
		env := &item{kind: mapItem}
		for _, v := range s.Env {
			env.set(v.Name, textItem(v.Value))
		}
		n.set("env", env)
	}
	text("url", s.URL)
	if s.AllowLocalEndpoint {
		n.set("allow_local_endpoint", &item{kind: boolItem, text: "true"})
	}
	if s.ConnectTimeout > 0 {
		n.set("connect_timeout_ms", numberOf(s.ConnectTimeout.Milliseconds()))
	}
	if s.ToolsAllowlist != nil {
		n.set("tools_allowlist", listOf(s.ToolsAllowlist, textItem))
	}
	return n
}

func numberOf(v int64) *item { return &item{kind: numberItem, text: strconv.FormatInt(v, 10)} }
