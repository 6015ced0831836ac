package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/relavium/relavium-serve/engine"
)

//go:embed assets
var embedded embed.FS

// An asset is a file that pages load.
type asset struct {
	kind    string // Content-Type
	content []byte
}

type assets struct {
	pages   map[string]*template.Template
	files   map[string]asset
	version string // of files
}

// loadAssets parses the pages: each is the layout around a file of its own.
func loadAssets(prefix string) (*assets, error) {
	a := &assets{pages: make(map[string]*template.Template), files: make(map[string]asset)}
	sum := sha256.New()
	for _, one := range [][2]string{
		{"console.css", "text/css; charset=utf-8"}, {"console.js", "text/javascript; charset=utf-8"}, {"icon.svg", "image/svg+xml"},
	} {
		content, err := embedded.ReadFile("assets/" + one[0])
		if err != nil {
			return nil, err
		}
		a.files[one[0]] = asset{kind: one[1], content: content}
		_, _ = sum.Write(content) // never fails
	}
	a.version = hex.EncodeToString(sum.Sum(nil))[:12]
	words := template.FuncMap{
		"path": func(parts ...string) string {
			to := prefix
			for _, part := range parts {
				to += "/" + url.PathEscape(part)
			}
			if to == prefix {
				to += "/"
			}
			return to
		},
		"file":  func(name string) string { return prefix + "/assets/" + name + "?v=" + a.version },
		"brief": func(id string) string { return id[max(0, len(id)-8):] },
	}
	layout, err := template.New("layout.html").Funcs(words).ParseFS(embedded, "assets/layout.html", "assets/parts.html")
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(embedded, "assets/page-*.html")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		one, err := layout.Clone()
		if err == nil {
			one, err = one.ParseFS(embedded, name)
		}
		if err != nil {
			return nil, err
		}
		a.pages[strings.TrimSuffix(strings.TrimPrefix(name, "assets/page-"), ".html")] = one
	}
	return a, nil
}

func (c *Console) asset(w http.ResponseWriter, r *http.Request) {
	file, ok := c.assets.files[chi.URLParam(r, "name")]
	if !ok {
		c.notFound(w, r)
		return
	}
	w.Header().Set("Content-Type", file.kind)
	if r.URL.Query().Get("v") == c.assets.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	_, _ = w.Write(file.content)
}

// A page is what the layout shows.
type page struct {
	Title   string
	Here    string // the part of the console: inbox or runs
	Form    string // token of its forms
	Who     string // "" when nobody is logged in
	Out     bool   // they may log out
	Live    string // address of its stream of changes; "" for none
	Refresh int    // seconds, for browsers without the script; 0 means never
	View    any
}

// show writes one page, whole or not at all.
func (c *Console) show(w http.ResponseWriter, r *http.Request, status int, name string, p page) {
	var b bytes.Buffer
	if err := c.assets.pages[name].Execute(&b, p); err != nil {
		c.log.ErrorContext(r.Context(), "console: a page cannot be written", "page", name, "error", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b.Bytes())
	}
}

// page begins the page of somebody who is logged in.
func (s *session) page(here, title string, view any) page {
	return page{Title: title, Here: here, Form: s.form, Who: line(string(s.visitor.Principal), 60), Out: !s.byHeader, View: view}
}

type problemView struct {
	What, Remedy string
	Login        bool
}

// fail shows what went wrong and what to do about it.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, status int, what, remedy string) {
	p := page{Title: what, View: problemView{What: what, Remedy: remedy, Login: status == http.StatusUnauthorized}}
	if s := c.current(r); s != nil && c.host(r.Host) {
		p = s.page("", what, p.View)
	}
	c.show(w, r, status, "problem", p)
}

// broken shows that the store did not answer as it should, or what is not there.
func (c *Console) broken(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, engine.ErrRunNotFound):
		c.fail(w, r, http.StatusNotFound, "There is no such run", "It may be older than runs are kept.")
	case errors.Is(err, engine.ErrGateNotFound):
		c.fail(w, r, http.StatusNotFound, "There is no such gate", "Its run may be older than runs are kept.")
	default:
		c.log.ErrorContext(r.Context(), "console: the run store did not answer", "error", err)
		c.fail(w, r, http.StatusInternalServerError, "The run store did not answer", "The log of this process says why. Try again.")
	}
}

func (c *Console) notFound(w http.ResponseWriter, r *http.Request) {
	c.fail(w, r, http.StatusNotFound, "There is no such page", "The address may be mistyped.")
}

func (c *Console) notAllowed(w http.ResponseWriter, r *http.Request) {
	c.fail(w, r, http.StatusMethodNotAllowed, "That cannot be done here", "Open the page and use its buttons.")
}

// id is an id of the path, or "" for what cannot be one.
func id(r *http.Request, name string) string {
	v, err := url.PathUnescape(chi.URLParam(r, name))
	if err != nil || len(v) > 200 {
		return ""
	}
	return v
}

// live sends "change" whenever the stamp of a page is another than the one it was
// made with, until the request or the session ends.
func (c *Console) live(w http.ResponseWriter, r *http.Request, s *session, stamp func(ctx context.Context) (string, error)) {
	select {
	case c.streams <- struct{}{}:
		defer func() { <-c.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		c.fail(w, r, http.StatusServiceUnavailable, "Too many pages are open", "Close some of them.")
		return
	}
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Time{}) // the request is read; its deadline would end the stream
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	send := func(text string) bool {
		_ = stream.SetWriteDeadline(time.Now().Add(pageTimeout))
		if _, err := w.Write([]byte(text)); err != nil {
			return false
		}
		return stream.Flush() == nil
	}
	if !send("retry: 3000\n\n") {
		return
	}
	last := r.URL.Query().Get("since")
	tick := time.NewTicker(c.opt.Poll)
	defer tick.Stop()
	for silent := time.Duration(0); c.lasts(r, s); {
		now, err := stamp(r.Context())
		switch {
		case err != nil:
			return // the browser comes again
		case now != last:
			last, silent = now, 0
			if !send(fmt.Sprintf("event: change\ndata: %s\n\n", url.QueryEscape(now))) {
				return
			}
		case silent >= 15*time.Second:
			silent = 0
			if !send(": still here\n\n") {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
			silent += c.opt.Poll
		}
	}
}

// digest is a short stamp of what a page was made from.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}
