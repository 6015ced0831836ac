package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// What a workflow, a caller or a model wrote is text, wherever it shows.
func TestInert(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	const attack = `</pre></textarea><script>alert(1)</script><img src=x onerror=alert(2)>"'--><svg onload=alert(3)> javascript:alert(4)`
	const hidden = "a\u202eb\u2066c\u200bd\x1b[31me\x00f"
	text, err := json.Marshal(attack + hidden)
	if err != nil {
		t.Fatal(err)
	}
	run, gate := d.start(flow{
		name: `<i id=label>` + hidden, message: attack + hidden, assign: `<u onclick=alert(5)>`,
		value: "(" + string(text) + ")",
	})
	pages := []*answer{d.page("/"), d.page("/gates/" + gate.ID), d.page("/runs/" + run), d.page("/runs")}
	a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}, "comment": {attack + hidden}})
	if a.status != http.StatusSeeOther {
		t.Fatalf("approve = %d, want 303", a.status)
	}
	d.ended(run)
	pages = append(pages, d.page("/gates/"+gate.ID), d.page("/runs/"+run), d.page("/runs/"+run+"/cancel"), d.page("/runs?workflow="+url.QueryEscape(attack)),
		d.get(d.newBrowser(), "/login?next="+url.QueryEscape(`/"><script>alert(6)</script>`)), d.get(d.browser, "/runs/"+url.PathEscape(attack)))
	for i, page := range pages {
		page.lacks("<script>alert", "<img", "<i id=label", "<u onclick", "onload=alert(3)>\n", "\u202e", "\u2066", "\u200b", "\x1b", "\x00")
		if n := strings.Count(page.body, "<script"); n != 1 {
			t.Errorf("page %d has %d scripts, want its own", i, n)
		}
		if m := regexp.MustCompile(`\s(style|on[a-z]+)=("|')`).FindString(page.body); m != "" {
			t.Errorf("page %d has an attribute %q: the policy forbids it", i, m)
		}
	}
	pages[1].has("&lt;script&gt;alert(1)&lt;/script&gt;")
	file := d.page("/runs/" + run + "/outputs/plan")
	if got := file.header.Get("Content-Type"); got != "text/plain; charset=utf-8" || !strings.HasPrefix(file.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("an output is served as %q, want plain text to keep", got)
	}
}

func TestRunPage(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, gate := d.start(flow{message: "Go on with the plan?"})
	page := d.page("/runs/" + run)
	page.has("heron", run, "Decide", "/gates/"+gate.ID, "<svg class=\"flow fits\"", "The plan", "Go on with the plan?",
		"waits for a person", "run started", "2 of 5", "Cancel…", `class="node n-waiting"`, `class="node n-completed"`, `class="node n-pending"`)
	if a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}}); a.status != http.StatusSeeOther {
		t.Fatalf("approve = %d, want 303", a.status)
	}
	d.ended(run)
	page = d.page("/runs/" + run)
	page.has("run completed", "approved", "5 of 5", "<h2>Output</h2>", "&#34;decision&#34;: &#34;approved&#34;")
	page.lacks("Cancel…", "Decide</a>", "http-equiv")
	for _, path := range []string{"/runs/0198", "/runs/" + strings.Repeat("x", 300), "/runs/" + run + "/outputs/nothing", "/runs/%00"} {
		if a := d.get(d.browser, path); a.status != http.StatusNotFound {
			t.Errorf("GET %s = %d, want 404", path, a.status)
		}
	}
}

func TestHugeOutput(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, gate := d.start(flow{value: "'é'.repeat(30000)"})
	page := d.page("/runs/" + run)
	page.has("Only the beginning is shown")
	if len(page.body) > 200<<10 {
		t.Errorf("the page has %d bytes, want at most 200 KiB", len(page.body))
	}
	if got := len(d.page("/runs/" + run + "/outputs/plan").body); got != 60_000 {
		t.Errorf("the whole output has %d bytes, want 60000", got)
	}
	d.page("/gates/" + gate.ID).has("Only the beginning is shown")
}

func TestCancel(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, gate := d.start(flow{bare: true})
	d.page("/runs/"+run+"/cancel").has("Cancel this run?", "heron is waiting")
	if r, err := d.engine.Run(t.Context(), run, ""); err != nil || r.State != engine.Waiting {
		t.Fatalf("looking at the question made the run %v, %v", r, err)
	}
	a := d.send("/runs/"+run+"/cancel", url.Values{})
	if a.status != http.StatusSeeOther {
		t.Fatalf("cancel = %d, want 303:\n%s", a.status, a.body)
	}
	if r := d.ended(run); r.State != engine.Cancelled {
		t.Errorf("the run is %s, want cancelled", r.State)
	}
	d.page(a.header.Get("Location")).has("run cancelled")
	d.page("/runs/" + run + "/cancel").has("The run has ended")
	d.page("/gates/" + gate.ID).has("The run has ended: cancelled")
	page := d.page("/runs/" + run)
	page.has("not decided", "not reached")
	page.lacks("· waiting", ">pending", ">waiting")
	if a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}}); a.status != http.StatusConflict {
		t.Errorf("approve after the cancel = %d, want 409", a.status)
	}
	d.page("/").lacks(gate.ID)
	if a := d.send("/runs/0198/cancel", url.Values{}); a.status != http.StatusNotFound {
		t.Errorf("cancel of no run = %d, want 404", a.status)
	}
}

func TestRuns(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.page("/runs").has("No runs.")
	w := flow{bare: true}.parse(t)
	var ids []string
	for range runsPerPage + 3 {
		started, err := d.engine.Start(t.Context(), engine.StartRequest{
			Workflow: w, Project: engine.Project{Key: projectKey}, Principal: engine.Local, Arguments: json.RawMessage(`{}`), Source: "mcp", Client: "<b>client",
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, started.Run)
	}
	if err := d.engine.Cancel(t.Context(), ids[0], "local", engine.ViaCLI, "test"); err != nil {
		t.Fatal(err)
	}
	d.ended(ids[0])
	page := d.page("/runs?workflow=heron")
	page.has(ids[len(ids)-1], ids[3], "by &lt;b&gt;client", "before="+ids[3], "workflow=heron")
	page.lacks(ids[2])
	older := d.page("/runs?workflow=heron&before=" + ids[3])
	older.has(ids[2], ids[0])
	older.lacks(ids[3]+`"`, "Older")
	d.page("/runs?state=cancelled").has(ids[0])
	d.page("/runs?state=cancelled").lacks(ids[1])
	d.page("/runs?workflow=stork").has("None matches the filter.")
	d.page("/runs?state=nonsense").has(ids[len(ids)-1])
}

// An open page is told of a change as it happens, and of one that came between
// the page and its stream.
func TestLive(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	before := d.page("/")
	_, gate := d.start(flow{bare: true})
	d.hears(before, nil) // already other than the page
	another := func() { d.start(flow{bare: true}) }
	d.hears(d.page("/"), another)
	d.hears(d.page("/runs"), another)
	decide := func() {
		if _, err := d.engine.Decide(t.Context(), gate.ID, engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}); err != nil {
			t.Error(err)
		}
	}
	d.hears(d.page("/gates/"+gate.ID), decide)
	var run string
	run, gate = d.start(flow{bare: true})
	d.hears(d.page("/runs/"+run), decide)
}

// hears opens the stream of a page, does something and waits for the change.
func (d *desk) hears(page *answer, do func()) {
	d.t.Helper()
	m := regexp.MustCompile(`data-live="([^"]+)"`).FindStringSubmatch(page.body)
	if m == nil {
		d.t.Fatalf("the page has no stream:\n%s", page.body)
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.server.URL+strings.ReplaceAll(m[1], "&amp;", "&"), http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	res, err := d.browser.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" {
		d.t.Fatalf("GET %s = %d %s, want an event stream", m[1], res.StatusCode, got)
	}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		switch {
		case strings.HasPrefix(lines.Text(), "retry:") && do != nil:
			do()
		case lines.Text() == "event: change":
			return
		}
	}
	d.t.Errorf("%s ended without a change: %v", m[1], lines.Err())
}

// A stream ends with its session.
func TestLiveLogout(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	m := regexp.MustCompile(`data-live="([^"]+)"`).FindStringSubmatch(d.page("/").body)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.server.URL+strings.ReplaceAll(m[1], "&amp;", "&"), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := d.browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if a := d.send("/logout", url.Values{}); a.status != http.StatusSeeOther {
		t.Fatalf("logout = %d, want 303", a.status)
	}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if lines.Text() == "event: change" {
			t.Error("the stream told of a change, want its end")
		}
	}
}

// Below a prefix every address of every page begins with it.
func TestPrefix(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(o *Options) { o.Prefix = "/console" })
	run, gate := d.start(flow{bare: true})
	for _, path := range []string{"", "/", "/runs", "/runs/" + run, "/gates/" + gate.ID, "/runs/" + run + "/cancel"} {
		page := d.page(path)
		for _, m := range regexp.MustCompile(`(?:href|action|src|data-live)="([^"]*)"`).FindAllStringSubmatch(page.body, -1) {
			if to := m[1]; !strings.HasPrefix(to, "/console/") && !strings.HasPrefix(to, "#") && !strings.HasPrefix(to, "?") {
				t.Errorf("page %q leads to %q", path, to)
			}
		}
	}
	if a := d.send("/gates/"+gate.ID, url.Values{"decision": {"approve"}}); a.header.Get("Location") != "/console/gates/"+gate.ID+"?sent=1" {
		t.Errorf("after the decision = %d to %q", a.status, a.header.Get("Location"))
	}
	if a := d.get(d.newBrowser(), "/gates/x"); a.header.Get("Location") != "/console/login?next=%2Fconsole%2Fgates%2Fx" {
		t.Errorf("a stranger is sent to %q", a.header.Get("Location"))
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- d.console.Serve(ctx, l) }()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/login", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if a := d.do(d.newBrowser(), req); a.status != http.StatusOK {
		t.Errorf("GET /login = %d, want 200", a.status)
	}
	cancel()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	case <-time.After(patience):
		t.Fatal("Serve does not end")
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	var nodes, edges strings.Builder
	for i := range 12 {
		fmt.Fprintf(&nodes, "    - { id: n%d, type: transform, transform: '1' }\n", i)
		fmt.Fprintf(&edges, "    - { from: start, to: n%d }\n    - { from: n%d, to: end }\n", i, i)
	}
	src := "schema_version: '1.0'\nworkflow:\n  id: wide\n  version: '0.1.0'\n  name: wide\n  description: d\n  trigger: { type: manual }\n  nodes:\n" +
		"    - { id: start, type: input }\n" + nodes.String() +
		"    - { id: end, type: merge, merge_strategy: concat }\n    - { id: out, type: output, output_format: json }\n  edges:\n" + edges.String() +
		"    - { from: end, to: out }\n    - { from: start, to: out }\n"
	w, _, err := workflows.Parse("wide.relavium.yaml", []byte(src), workflows.Options{})
	if err != nil {
		t.Fatal(err)
	}
	states := make([]engine.NodeState, len(w.Nodes))
	for i := range w.Nodes {
		states[i] = engine.NodeState{ID: w.Nodes[i].ID, Type: w.Nodes[i].Type(), State: "pending"}
	}
	d := draw(w, states, false)
	if d == nil || len(d.Boxes) != len(w.Nodes) || len(d.Lines) != len(w.Edges) {
		t.Fatalf("draw = %+v, want every node and edge", d)
	}
	type at struct{ x, y float64 }
	var seen []at
	for _, b := range d.Boxes {
		var p at
		if _, err := fmt.Sscan(b.X, &p.x); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(b.Y, &p.y); err != nil {
			t.Fatal(err)
		}
		for _, q := range seen {
			if p.y == q.y && p.x < q.x+boxWidth && q.x < p.x+boxWidth {
				t.Errorf("boxes at %v and %v overlap", p, q)
			}
		}
		if p.x < 0 || p.y < 0 {
			t.Errorf("a box is at %v, outside", p)
		}
		seen = append(seen, p)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain": "plain", "a\r\nb\tc": "a\nb\tc", "é\xffx": "é\uFFFDx", "\u202eabc": "abc", "x\x1b[0m": "x [0m", "a\u2028b": "a b",
		strings.Repeat("é", 40): strings.Repeat("é", 32) + "…",
	} {
		if got := clean(in, 64); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[time.Duration]string{
		30 * time.Millisecond: "30 ms", 1500 * time.Millisecond: "1.5 s", 42 * time.Second: "42 s", 61 * time.Second: "1 min 1 s",
		59 * time.Minute: "59 min", 200 * time.Minute: "3 h 20 min", 49 * time.Hour: "2 d 1 h", -time.Second: "0 s",
	} {
		if got := span(in); got != want {
			t.Errorf("span(%v) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[int64]string{0: "", 12345678: "$0.1235", 250_000_000: "$2.50", 42: "$0.00000042"} {
		if got := dollars(in); got != want {
			t.Errorf("dollars(%d) = %q, want %q", in, got, want)
		}
	}
}
