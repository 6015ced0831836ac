package transport

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// A guard refuses what a web page of somebody else may send: "Servers MUST
// validate the Origin header on all incoming connections to prevent DNS
// rebinding attacks" (MCP, Streamable HTTP). The name by which the server was
// reached is checked as well, since a rebinding page may send no Origin.
type guard struct {
	hosts   []string // lower case, name or name:port
	origins []string // lower case
}

func newGuard(hosts, origins []string) *guard {
	g := &guard{}
	for _, h := range hosts {
		g.hosts = append(g.hosts, strings.ToLower(h))
	}
	for _, o := range origins {
		g.origins = append(g.origins, strings.ToLower(strings.TrimSuffix(o, "/")))
	}
	return g
}

func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if len(g.origins) > 0 {
			w.Header().Add("Vary", "Origin")
		}
		origins := r.Header.Values("Origin")
		switch {
		case !g.host(r.Host):
			say(w, http.StatusForbidden, "forbidden: this Host is not allowed")
			return
		case len(origins) > 1, len(origins) == 1 && !g.origin(origins[0]):
			say(w, http.StatusForbidden, "forbidden: this Origin is not allowed")
			return
		}
		if len(origins) == 1 && g.listed(origins[0]) {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", origins[0])
			h.Set("Access-Control-Expose-Headers", "Mcp-Session-Id, WWW-Authenticate, MCP-Protocol-Version")
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
				h.Set("Access-Control-Allow-Headers", allowHeaders(r.Header.Get("Access-Control-Request-Headers")))
				h.Set("Access-Control-Max-Age", "600")
				h.Add("Vary", "Access-Control-Request-Headers")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// allowHeaders are the request headers of the protocol, and those that carry a
// tool's parameters if they are asked for.
func allowHeaders(asked string) string {
	allowed := []string{
		"Accept", "Authorization", "Content-Type", "Last-Event-ID",
		"MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id",
	}
	for name := range strings.SplitSeq(asked, ",") {
		name = strings.TrimSpace(name)
		if len(allowed) < 64 && strings.HasPrefix(strings.ToLower(name), "mcp-param-") && token(name) {
			allowed = append(allowed, name)
		}
	}
	return strings.Join(allowed, ", ")
}

func token(name string) bool {
	return len(name) <= 128 && !strings.ContainsFunc(name, func(c rune) bool {
		return c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

// host reports whether the server may be called by this name.
func (g *guard) host(value string) bool {
	value = strings.ToLower(value)
	name, ok := hostname(value)
	return ok && (loopback(name) || slices.Contains(g.hosts, name) || slices.Contains(g.hosts, value))
}

// origin reports whether a page of this origin may call. The origin "null" is
// that of anybody's sandboxed page.
func (g *guard) origin(value string) bool {
	if g.listed(value) {
		return true
	}
	u, err := url.Parse(value)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil &&
		u.Path == "" && u.RawQuery == "" && u.Fragment == "" && loopback(strings.ToLower(u.Hostname()))
}

func (g *guard) listed(origin string) bool {
	return slices.Contains(g.origins, strings.ToLower(origin))
}

// hostname is a Host header without its port and brackets.
func hostname(value string) (name string, ok bool) {
	rest := ""
	if v6, found := strings.CutPrefix(value, "["); found {
		if name, rest, found = strings.Cut(v6, "]"); !found {
			return "", false
		}
	} else {
		name, rest = value, ""
		if i := strings.IndexByte(value, ':'); i >= 0 {
			name, rest = value[:i], value[i:]
		}
	}
	if rest != "" {
		port, found := strings.CutPrefix(rest, ":")
		if !found || strings.ContainsFunc(port, func(c rune) bool { return c < '0' || c > '9' }) {
			return "", false
		}
	}
	return name, name != ""
}

func loopback(name string) bool {
	if name == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Zone() == "" && a.IsLoopback()
}
