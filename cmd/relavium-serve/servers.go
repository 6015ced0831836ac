package main

import (
	"fmt"
	"net/url"
	"slices"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/egress"
)

// checkServers refuses registrations that cannot be meant, and a name that is
// registered twice, in one file or across files (format 5.2).
func checkServers(files []*configFile) error {
	var first []struct{ name, file string }
	for _, f := range files {
		for i := range f.settings.Servers {
			server := &f.settings.Servers[i]
			if what := serverFault(server); what != "" {
				return f.serverFault(i, "", "%s", what)
			}
			for _, seen := range first {
				if seen.name == server.Name {
					return f.serverFault(i, "rename or remove one of them", "the name %q is already registered in %s", server.Name, seen.file)
				}
			}
			first = append(first, struct{ name, file string }{server.Name, f.name})
		}
	}
	return nil
}

func serverFault(server *serverSettings) string {
	network := server.Transport != "stdio"
	switch {
	case !isName(server.Name, 1):
		return "name: expected 1 to 64 of A-Z, a-z, 0-9, _ and -"
	case !slices.Contains([]string{"stdio", "http", "websocket", "sse"}, server.Transport):
		return "transport: expected one of stdio, http, websocket, sse"
	case !network && server.Command == "":
		return "command is required with transport stdio"
	case !network && (server.URL != "" || server.AllowLocalEndpoint):
		return "url and allow_local_endpoint do not go with transport stdio"
	case network && server.URL == "":
		return "url is required with a network transport"
	case network && (server.Command != "" || server.Args != nil || server.Env != nil):
		return "command, args and env go with transport stdio only"
	case slices.ContainsFunc(append([]string{server.Command, server.URL}, server.Args...), consent.HoldsSecretRef):
		return "a secret is referred to outside env, where others could read it"
	case server.ConnectTimeoutMS != nil && (*server.ConnectTimeoutMS < 1 || *server.ConnectTimeoutMS > 600_000):
		return "connect_timeout_ms: expected 1 to 600000"
	}
	for name := range server.Env {
		if reason, denied := consent.EnvDenied(name); denied {
			return fmt.Sprintf("env: %q is refused: %s", name, reason)
		}
	}
	if network {
		if parsed, err := url.Parse(server.URL); err != nil || parsed.Host == "" {
			return "url: not an address"
		} else if parsed.User != nil {
			return "url: holds credentials"
		}
		if _, err := egress.ParseServer(server.Transport, server.URL, server.AllowLocalEndpoint); err != nil {
			return "url: " + err.Error()
		}
	}
	return ""
}

// serverFault names the registration by its place in the file.
func (f *configFile) serverFault(index int, hint, format string, args ...any) error {
	at := 0
	for _, key := range f.keys {
		if len(key.path) == 1 && key.path[0] == "mcp_servers" {
			if at == index {
				return (&configFile{name: f.name, keys: []keyLine{key}}).fault(key.path, hint, format, args...)
			}
			at++
		}
	}
	return f.fault([]string{"mcp_servers"}, hint, format, args...)
}
