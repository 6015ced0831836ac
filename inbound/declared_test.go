package inbound

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/workflows"
)

// A program starts in the project of the file that declares it; one of the user's own
// starts in a folder of its own.
func TestFolderOfAServer(t *testing.T) {
	project, run := t.TempDir(), t.TempDir()
	registered := workflows.ServerRef{Transport: "stdio", Command: "/bin/sh"}
	w := newWorld(t, nil, func(o *Options) {
		o.Registrations = []Registration{{Name: "mine", Server: registered}, {Name: "shared", Server: registered, Project: project}}
	})
	for name, want := range map[string]string{"mine": filepath.Join(w.opt.Home, "servers", "mine"), "shared": project} {
		d, err := w.declare(&workflows.ServerRef{Ref: name}, run)
		if err != nil || d.program.Cwd != want || d.name != name {
			t.Errorf("declare(%s) = %+v, %v, want cwd %s", name, d, err, want)
		}
	}
	d, err := w.declare(&workflows.ServerRef{ID: "inline", Transport: "stdio", Command: "/bin/sh"}, run)
	if err != nil || d.program.Cwd != run {
		t.Errorf("declare(inline) = %+v, %v, want cwd %s", d, err, run)
	}
	mine, err := w.declare(&workflows.ServerRef{Ref: "mine"}, run)
	if err != nil {
		t.Fatal(err)
	}
	if err := mine.prepare(); err != nil {
		t.Errorf("prepare() = %v", err)
	}
	if about, err := os.Stat(mine.own); err != nil || about.Mode().Perm() != 0o700 {
		t.Errorf("its folder: %v, %v, want 0700", about, err)
	}
	other := &declared{own: filepath.Join(w.opt.Home, "servers", "link")}
	if err := os.Symlink(project, other.own); err != nil {
		t.Fatal(err)
	}
	if err := other.prepare(); err == nil {
		t.Error("a link was taken for the folder")
	}
}

func TestBadDeclarations(t *testing.T) {
	w := newWorld(t, nil, nil)
	for name, test := range map[string]struct {
		ref    workflows.ServerRef
		reason string
	}{
		"unknown ref":      {workflows.ServerRef{Ref: "nobody"}, ReasonDeclaration},
		"no such command":  {workflows.ServerRef{ID: "s", Transport: "stdio", Command: "no-such-command-at-all"}, ReasonSpawn},
		"denied variable":  {workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh", Env: []workflows.EnvVar{{Name: "LD_PRELOAD", Value: "x"}}}, ReasonDeclaration},
		"variable twice":   {workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh", Env: []workflows.EnvVar{{Name: "A", Value: "x"}, {Name: "A", Value: "y"}}}, ReasonDeclaration},
		"secret in args":   {workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh", Args: []string{"{{secrets.a}}"}}, ReasonDeclaration},
		"private address":  {workflows.ServerRef{ID: "s", Transport: "http", URL: "https://10.0.0.1/"}, ReasonEgress},
		"metadata":         {workflows.ServerRef{ID: "s", Transport: "http", URL: "http://169.254.169.254/", AllowLocalEndpoint: true}, ReasonEgress},
		"remote websocket": {workflows.ServerRef{ID: "s", Transport: "websocket", URL: "wss://x.example/"}, ReasonEgress},
	} {
		t.Run(name, func(t *testing.T) {
			wantFault(t, w.open(t, flow(test.ref)), workflows.ToolUnavailable, test.reason, false)
		})
	}
	w.shutdown(t)
}

// All programs without consent are told of at once, before any starts.
func TestConsentOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, s := newServer(), newServer()
		var granted []string
		w := newWorld(t, map[string]*server{"good": good, "a": s, "b": s}, func(o *Options) {
			o.Granted = func(_ context.Context, digest string) error {
				if slices.Contains(granted, digest) {
					return nil
				}
				return &consent.NotGrantedError{Digest: digest, Cause: errors.New("line 3")}
			}
		})
		f, root := flow(stdioRef("good"), stdioRef("a"), stdioRef("b")), t.TempDir()
		open := func() error { return w.Open(t.Context(), Run{ID: "r", Workflow: f, Root: root}) }
		d, err := w.declare(&f.Agents[0].Servers[0], root)
		if err != nil {
			t.Fatal(err)
		}
		granted = []string{d.digest}
		for _, err := range []error{open(), w.CheckRun(t.Context(), f, root)} {
			fault := wantFault(t, err, workflows.ToolDenied, ReasonConsent, false)
			missing, ok := errors.AsType[*UnapprovedError](err)
			if !ok || len(missing.Servers) != 2 || missing.Servers[0].Server != "a" || missing.Servers[1].Server != "b" {
				t.Fatalf("error = %v, want a and b", err)
			}
			for _, u := range missing.Servers {
				if !strings.Contains(fault.Message, u.Digest) || u.Cause == nil || u.Declaration.Command != "/bin/sh" {
					t.Errorf("unapproved = %+v in %q", u, fault.Message)
				}
			}
			if strings.Contains(fault.Message, root) || strings.Contains(fault.Message, "/bin/sh") {
				t.Errorf("message = %q holds a path", fault.Message)
			}
		}
		if n := len(good.log()) + len(s.log()); n != 0 {
			t.Errorf("servers got %d messages, want none", n)
		}
		// A person is asked for what is missing, and what they record counts.
		var asked []string
		w.opt.Ask = func(_ context.Context, u Unapproved) error {
			asked = append(asked, u.Server)
			if u.Server == "b" {
				return errors.New("no")
			}
			granted = append(granted, u.Digest)
			return nil
		}
		err = open()
		if missing, ok := errors.AsType[*UnapprovedError](err); !ok || len(missing.Servers) != 1 || missing.Servers[0].Server != "b" {
			t.Errorf("error = %v, want b alone", err)
		}
		// And a digest may be allowed for the process.
		w.opt.Allowed = []string{missingDigest(err)}
		if err := open(); err != nil {
			t.Errorf("Open() = %v", err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		w.shutdown(t)
	})
}

func missingDigest(err error) string {
	missing, ok := errors.AsType[*UnapprovedError](err)
	if !ok {
		return ""
	}
	return missing.Servers[0].Digest
}

func TestMissingSecret(t *testing.T) {
	w := newWorld(t, nil, func(o *Options) {
		o.Secret = func(context.Context, string) ([]byte, error) { return nil, errors.New("not in /home/x/keys") }
	})
	ref := helperRef(t, "s", "polite")
	ref.Env = append(ref.Env, workflows.EnvVar{Name: "TOKEN", Value: "{{secrets.github}}"})
	f := wantFault(t, w.open(t, flow(ref)), workflows.ToolUnavailable, ReasonSecret, false)
	if !strings.Contains(f.Message, `"github"`) || strings.Contains(f.Message, "/home") {
		t.Errorf("message = %q, want the secret's name and no path", f.Message)
	}
	if n := len(w.children.Living()); n != 0 {
		t.Errorf("%d children live, want none", n)
	}
	w.shutdown(t)
}

// Each agent has its own list; of two tools of one name the later is dropped; routing is
// by table, whatever the names look like.
func TestTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tool := func(name string) string { return `{"name":"` + name + `","inputSchema":{"type":"object"}}` }
		one, two := newServer(), newServer()
		one.pages = []string{`{"tools":[` + tool("b_c") + `,` + tool("d") + `,` + tool("e") + `]}`}
		two.pages = []string{`{"tools":[` + tool("c") + `,` + tool("x") + `]}`}
		called := func(which string) func(c *serving, m message) bool {
			return func(c *serving, m message) bool {
				if m.method == "tools/call" {
					c.reply(m.id, `{"content":[{"type":"text","text":"`+which+` `+textOf(member(m.params, "name"))+`"}]}`)
				}
				return m.method == "tools/call"
			}
		}
		one.answer, two.answer = called("one"), called("two")
		w := newWorld(t, map[string]*server{"a": one, "a_b": two}, func(o *Options) { o.Repeatable = []string{"mcp_a_d"} })
		narrow := stdioRef("a")
		narrow.ToolsAllowlist = []string{"d", "gone"}
		none := stdioRef("a")
		none.ToolsAllowlist = []string{}
		f := flow(stdioRef("a"), stdioRef("a_b"))
		f.Agents = append(f.Agents, workflows.Agent{ID: "narrow", Servers: []workflows.ServerRef{narrow}}, workflows.Agent{ID: "none", Servers: []workflows.ServerRef{none}})
		f.Nodes = append(f.Nodes, workflows.Node{ID: "m", Spec: workflows.AgentNode{AgentRef: "narrow"}}, workflows.Node{ID: "o", Spec: workflows.AgentNode{AgentRef: "none"}})
		w.mustOpen(t, f)
		for i, want := range [][]string{{"mcp_a_b_c", "mcp_a_d", "mcp_a_e", "mcp_a_b_x"}, {"mcp_a_d"}, nil} {
			var got []string
			for _, tool := range w.Tools("r", &f.Agents[i]) {
				got = append(got, tool.ID)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("tools of %s (-want +got):\n%s", f.Agents[i].ID, diff)
			}
		}
		call := func(agent int, id string) (workflows.ToolResult, error) {
			return w.Call(t.Context(), &workflows.ToolCall{Run: "r", Agent: &f.Agents[agent], Tool: id, Arguments: []byte(`{}`)})
		}
		for id, want := range map[string]string{"mcp_a_b_c": "one b_c", "mcp_a_b_x": "two x"} {
			if got, err := call(0, id); err != nil || got.Text != want {
				t.Errorf("Call(%s) = %v, %v, want %q", id, got, err, want)
			}
		}
		for _, id := range []string{"mcp_a_e", "mcp_a_b_x", "", "MCP_A_D", "d"} {
			_, err := call(1, id)
			wantFault(t, err, workflows.ToolIncorrect, ReasonUnknownTool, false)
		}
		if id, ok := w.Resolve("r", &f.Agents[0], "a_b", "x"); !ok || id != "mcp_a_b_x" {
			t.Errorf("Resolve(a_b, x) = %q, %t", id, ok)
		}
		for _, pair := range [][2]string{{"a_b", "c"}, {"a", "x"}, {"a_b", "mcp_a_b_x"}, {"nobody", "x"}} {
			if id, ok := w.Resolve("r", &f.Agents[0], pair[0], pair[1]); ok {
				t.Errorf("Resolve(%q) = %q, want none", pair, id)
			}
		}
		for id, want := range map[string]bool{"mcp_a_d": true, "mcp_a_e": false} {
			got, err := w.Check(t.Context(), &workflows.ToolCall{Run: "r", Agent: &f.Agents[0], Tool: id, Arguments: []byte(`{"a":1}`)})
			if err != nil || got.Repeatable != want || got.Approval || string(got.Shown) != `{"a":1}` {
				t.Errorf("Check(%s) = %+v, %v, want repeatable %t", id, got, err, want)
			}
		}
		dropped := map[string][]string{}
		for _, r := range w.Reports("r") {
			for _, d := range r.Dropped {
				dropped[r.Server] = append(dropped[r.Server], d.Name+" "+d.Reason)
			}
		}
		want := map[string][]string{
			"a":   {"b_c " + DropAllowlist, "e " + DropAllowlist, "gone " + DropAbsent, "b_c " + DropAllowlist, "d " + DropAllowlist, "e " + DropAllowlist},
			"a_b": {"c " + DropCollision},
		}
		if diff := cmp.Diff(want, dropped); diff != "" {
			t.Errorf("dropped (-want +got):\n%s", diff)
		}
		for reason, n := range map[string]int{DropCollision: 1, DropAbsent: 1} {
			if got := w.logs.count("reason=" + reason); got != n {
				t.Errorf("%s is logged %d times, want %d", reason, got, n)
			}
		}
		w.shutdown(t)
	})
}

// Arguments are validated before anything is sent, and sent as they are (case I14).
func TestArguments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.pages = []string{`{"tools":[{"name":"t","inputSchema":{"type":"object","required":["a"],"properties":{` +
			`"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":["string","null"]}},"additionalProperties":false}}]}`}
		s.answer = func(c *serving, m message) bool {
			if m.method == "tools/call" {
				text, _ := marshal(string(member(m.params, "arguments")))
				c.reply(m.id, `{"content":[{"type":"text","text":`+string(text)+`}]}`)
			}
			return m.method == "tools/call"
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		for args, fits := range map[string]bool{
			`{"a":1}`: true, `{"a":1,"c":null}`: true, `{"a":1,"b":""}`: true, `{"a":1.0,"b":"<&> \u00e9"}`: true,
			`{"a":1,"b":null}`: false, `{}`: false, ``: false, `{"a":"1"}`: false, `{"a":1,"x":1}`: false, `[]`: false, `{"a":1`: false,
			`{"a":1,"a":2}`: false, `null`: false, `{"a":1e400000000}`: false,
		} {
			call := &workflows.ToolCall{Run: "r", Agent: &f.Agents[0], Tool: "mcp_s_t", Arguments: []byte(args)}
			before := s.count("tools/call")
			got, err := w.Call(t.Context(), call)
			_, checked := w.Check(t.Context(), call)
			if fits {
				if err != nil || checked != nil || got.Text != args {
					t.Errorf("Call(%s) = %q, %v, %v, want the same arguments", args, got.Text, err, checked)
				}
				continue
			}
			wantFault(t, err, workflows.ToolIncorrect, ReasonArguments, false)
			wantFault(t, checked, workflows.ToolIncorrect, ReasonArguments, false)
			if s.count("tools/call") != before {
				t.Errorf("Call(%s) was sent", args)
			}
		}
		w.shutdown(t)
	})
}

// What a server answers a call with, beside a result.
func TestErrorAnswers(t *testing.T) {
	long := strings.Repeat("<secret> ", 2000)
	tests := []struct {
		name, answer string
		fault        workflows.ToolFault
		reason       string
		says         string
	}{
		{"invalid parameters", `"error":{"code":-32602,"message":"no such tool"}`, workflows.ToolIncorrect, ReasonRejected, "no such tool"},
		{"internal", `"error":{"code":-32603,"message":"boom"}`, workflows.ToolFailed, ReasonRPC, "-32603"},
		{"long", `"error":{"code":-1,"message":"` + long + `"}`, workflows.ToolFailed, ReasonRPC, "[gone]"},
		{"control characters", `"error":{"code":-1,"message":"a\u001b[31mb\u202ec\n\nd"}`, workflows.ToolFailed, ReasonRPC, `"abc d"`},
		{"a code that is a text", `"error":{"code":"x"}`, workflows.ToolFailed, ReasonResult, ""},
		{"an error that is a text", `"error":"x"`, workflows.ToolFailed, ReasonResult, ""},
		{"no result", `"result":null`, workflows.ToolFailed, ReasonResult, ""},
		{"a list", `"result":[]`, workflows.ToolFailed, ReasonResult, ""},
		{"input required", `"result":{"resultType":"input_required"}`, workflows.ToolFailed, ReasonInput, ""},
		{"a text over the bound", `"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", maxResultText+1) + `"}]}`, workflows.ToolFailed, ReasonTooLarge, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.answer = func(c *serving, m message) bool {
					if m.method == "tools/call" {
						c.send("%s", `{"jsonrpc":"2.0","id":`+string(m.id)+`,`+test.answer+`}`)
					}
					return m.method == "tools/call"
				}
				w := newWorld(t, map[string]*server{"s": s}, func(o *Options) {
					o.Scrub = func(s string) string { return strings.ReplaceAll(s, "<secret>", "[gone]") }
				})
				f := flow(stdioRef("s"))
				w.mustOpen(t, f)
				_, err := w.say(t.Context(), f, "s", "x")
				if fault := wantFault(t, err, test.fault, test.reason, false); !strings.Contains(fault.Message, test.says) || strings.Contains(fault.Message, "<secret>") {
					t.Errorf("message = %.200q, want %q in it", fault.Message, test.says)
				}
				w.shutdown(t)
			})
		})
	}
}

// Lies in every field of what comes before a call are told of, or are no tools.
func TestLies(t *testing.T) {
	tests := []struct {
		method, answer string
		reason         string // or empty if it comes up
		tools          int
	}{
		{"initialize", `"result":{}`, ReasonHandshake, 0},
		{"initialize", `"result":null`, ReasonHandshake, 0},
		{"initialize", `"result":[1]`, ReasonHandshake, 0},
		{"initialize", `"result":{"protocolVersion":5}`, ReasonHandshake, 0},
		{"initialize", `"result":{"protocolVersion":"2026-07-28"}`, ReasonHandshake, 0},
		{"initialize", `"result":{"protocolVersion":"9999-01-01"}`, ReasonHandshake, 0},
		{"initialize", `"result":{"ProtocolVersion":"2025-11-25"}`, ReasonHandshake, 0},
		{"initialize", `"error":{"code":-32000,"message":"no"}`, ReasonHandshake, 0},
		{"initialize", `"error":5`, ReasonHandshake, 0},
		{"initialize", `"result":{"protocolVersion":"2024-11-05","capabilities":"all","serverInfo":[],"instructions":{}}`, "", 1},
		{"initialize", `"result":{"protocolVersion":"2025-03-26","serverInfo":{"name":"` + strings.Repeat("n", 10_000) + `","version":"\u001b[31m"}}`, "", 1},
		{"server/discover", `"result":[]`, "", 1}, // the earlier handshake is tried
		{"server/discover", `"result":{"supportedVersions":["2025-11-25","9999-01-01"],"capabilities":{}}`, "", 1},
		{"server/discover", `"result":{"capabilities":5,"_meta":7}`, "", 1},
		{"server/discover", `"error":{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}`, "", 1},
		{"server/discover", `"error":{"code":-32022,"message":"","data":{"supported":"2026-07-28"}}`, "", 1},
		{"tools/list", `"result":{}`, ReasonDiscovery, 0},
		{"tools/list", `"result":{"tools":{}}`, ReasonDiscovery, 0},
		{"tools/list", `"result":{"tools":[],"nextCursor":5}`, ReasonDiscovery, 0},
		{"tools/list", `"result":{"tools":[],"tools":[]}`, ReasonDiscovery, 0},
		{"tools/list", `"error":{"code":-32603,"message":"no"}`, ReasonDiscovery, 0},
		{"tools/list", `"error":{"code":-32601,"message":"no"}`, ReasonDiscovery, 0}, // it declared tools
		{"tools/list", `"result":{"tools":[]}`, "", 0},
		{"tools/list", `"result":{"tools":[1,"a",null,[],{},{"name":5},{"name":""},{"name":"a"},{"name":"b","inputSchema":[]},` +
			`{"name":"c","inputSchema":{"type":"string"}},{"name":"d\n","inputSchema":{"type":"object"}},{"Name":"e","inputSchema":{"type":"object"}},` +
			`{"name":"f","inputSchema":{"type":"object"},"annotations":5,"icons":"x","_meta":1,"title":[],"execution":5},` +
			`{"name":"g","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}},` + echoTool + `]}`, "", 2},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.answer[:min(len(test.answer), 60)], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				s.answer = func(c *serving, m message) bool {
					if m.method == test.method {
						c.send("%s", `{"jsonrpc":"2.0","id":`+string(m.id)+`,`+test.answer+`}`)
					}
					return m.method == test.method
				}
				w := newWorld(t, map[string]*server{"s": s}, nil)
				f := flow(stdioRef("s"))
				err := w.open(t, f)
				if test.reason != "" {
					wantFault(t, err, workflows.ToolUnavailable, test.reason, false)
				} else if err != nil {
					t.Errorf("Open() = %v", err)
				}
				if n := len(w.Tools("r", &f.Agents[0])); n != test.tools {
					t.Errorf("%d tools, want %d", n, test.tools)
				}
				for _, r := range w.Reports("r") {
					if len(r.Name) > maxNamed+len("…") || strings.Contains(r.Version, "\x1b") {
						t.Errorf("report = %q %q, want them bounded and clean", r.Name, r.Version)
					}
				}
				w.shutdown(t)
			})
		})
	}
}

// Walks that would not end, end (cases I02, I03).
func TestEndlessWalks(t *testing.T) {
	big := strings.Repeat("d", 4000)
	for name, test := range map[string]struct {
		page  func(n int) string // the nth, from 0
		tools int
		pages int // at most
	}{
		"the same page":   {func(int) string { return `{"tools":[` + echoTool + `],"nextCursor":"same"}` }, 1, 2},
		"the same cursor": {func(n int) string { return `{"tools":[` + named(n, "") + `],"nextCursor":"same"}` }, 2, 2},
		"endless cursors": {func(n int) string {
			return `{"tools":[` + named(n, "") + `],"nextCursor":"` + named(n, "")[9:14] + `"}`
		}, 256, 256},
		"large tools": {func(n int) string {
			return `{"tools":[` + named(n, big) + `],"nextCursor":"` + named(n, "")[9:14] + `"}`
		}, 250, 261},
		"empty and onward": {func(n int) string {
			return `{"tools":[],"nextCursor":"` + named(n, "")[9:14] + `","x":` + named(n, "") + `}`
		}, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				n := 0
				s.answer = func(c *serving, m message) bool {
					if m.method == "tools/list" {
						c.reply(m.id, test.page(n))
						n++
					}
					return m.method == "tools/list"
				}
				w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
				w.mustOpen(t, f)
				tools := w.Tools("r", &f.Agents[0])
				if len(tools) < test.tools || len(tools) > 256 || s.count("tools/list") > test.pages {
					t.Errorf("%d tools in %d pages, want %d in at most %d", len(tools), s.count("tools/list"), test.tools, test.pages)
				}
				if notes := w.Reports("r")[0].Notes; len(notes) != 1 {
					t.Errorf("notes = %q, want one", notes)
				}
				w.shutdown(t)
			})
		})
	}
}

func named(n int, description string) string {
	name := string([]byte{'t', 'a' + byte(n/676%26), 'a' + byte(n/26%26), 'a' + byte(n%26), 'x'})
	return `{"name":"` + name + `","description":"` + description + `","inputSchema":{"type":"object"}}`
}
