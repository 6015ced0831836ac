package access

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// MetadataURL is where clients find what MetadataHandler serves: the path of the
// resource behind the well-known one (RFC 9728 3.1).
func (a *Access) MetadataURL() string {
	u, err := url.Parse(a.opt.Resource)
	if err != nil || a.opt.Resource == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host + resourcePlace + strings.TrimSuffix(u.EscapedPath(), "/")
}

// Metadata answers GET and HEAD of the protected resource's metadata, at the
// well-known path alone and with the resource's own path behind it; nil where
// tokens are static, since no authorization server makes them.
func (a *Access) Metadata() http.Handler {
	if a.jwt == nil {
		return nil
	}
	body, err := json.Marshal(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
		Methods  []string `json:"bearer_methods_supported"`
		Name     string   `json:"resource_name"`
	}{a.opt.Resource, []string{a.opt.Issuer}, []string{ScopeRun, ScopeGate, ScopeOps}, []string{"header"}, "relavium-serve"})
	if err != nil {
		return nil
	}
	own := ""
	if u, err := url.Parse(a.MetadataURL()); err == nil {
		own = u.EscapedPath()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimSuffix(r.URL.EscapedPath(), "/")
		// A proxy may serve the resource below a path of its own.
		if path != resourcePlace && path != own && path != resourcePlace+"/mcp" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "max-age=300")
		w.Header().Set("Access-Control-Allow-Origin", "*") // it is public, and asked for by pages
		_, _ = w.Write(body)
	})
}
