package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const listChanged = "notifications/tools/list_changed"

// patience bounds every wait for something that has to happen.
const patience = 60 * time.Second

// A serving is `serve` over stdio with the project and home of a test, and its
// client.
type serving struct {
	t     *testing.T
	dir   string // of the project
	home  string
	in    io.Writer
	lines chan string
	log   *logged
	heard int // how often the list was said to have changed
}

// logged collects a log that is written while it is read.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func says(id, text string) string {
	return fmt.Sprintf(`schema_version: '1.0'
workflow:
  id: %s
  version: '0.1.0'
  name: %s
  trigger: { type: mcp_call }
  inputs: []
  nodes:
    - { id: start, type: input }
    - { id: say, type: transform, transform: '%q' }
    - { id: result, type: output }
  edges:
    - { from: start, to: say }
    - { from: say, to: result }
`, id, id, text)
}

// write replaces a file of the project as editors do.
func (s *serving) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.dir, ".relavium", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path+"~", []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		s.t.Fatal(err)
	}
}

func serveProject(t *testing.T, files map[string]string, args ...string) *serving {
	t.Helper()
	user := t.TempDir()
	s := &serving{t: t, dir: t.TempDir(), home: filepath.Join(user, ".relavium"), lines: make(chan string, 256), log: &logged{}}
	for name, content := range files {
		s.write(name, content)
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s.in = inW
	code := make(chan int, 1)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		code <- run(ctx, append([]string{"serve", "--cwd", s.dir}, args...), inR, outW, s.log,
			[]string{"HOME=" + user, "RELAVIUM_HOME=" + s.home, "PATH=" + os.Getenv("PATH")})
		outW.Close()
	}()
	go func() {
		defer close(s.lines)
		for r := bufio.NewScanner(outR); r.Scan(); {
			s.lines <- r.Text()
		}
	}()
	t.Cleanup(func() {
		inW.Close()
		select {
		case got := <-code:
			if got != 0 {
				t.Errorf("serve = exit %d, want 0\n%s", got, s.log)
			}
		case <-time.After(patience):
			t.Errorf("serve does not end\n%s", s.log)
		}
		stop()
		outR.Close()
	})
	s.ask(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"0"}}}`)
	fmt.Fprintln(s.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return s
}

// next is the next line of the server.
func (s *serving) next() string {
	s.t.Helper()
	select {
	case line, ok := <-s.lines:
		if !ok {
			s.t.Fatalf("the server ended\n%s", s.log)
		}
		if strings.Contains(line, listChanged) {
			s.heard++
		}
		return line
	case <-time.After(patience):
		s.t.Fatalf("the server says nothing\n%s", s.log)
	}
	return ""
}

// ask sends a request with the id 1 and returns its answer.
func (s *serving) ask(request string) string {
	s.t.Helper()
	fmt.Fprintln(s.in, request)
	for {
		if line := s.next(); strings.Contains(line, `"id":1`) {
			return line
		}
	}
}

// changed waits until the list is said to have changed, once more and no more.
func (s *serving) changed() {
	s.t.Helper()
	for s.heard == 0 {
		s.next()
	}
	s.tools()
	if s.heard != 1 {
		s.t.Errorf("the list changed %d times, want once", s.heard)
	}
	s.heard = 0
}

// logs waits until the log has all the words in one line.
func (s *serving) logs(words ...string) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		for line := range strings.SplitSeq(s.log.String(), "\n") {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return
			}
		}
		<-tick.C
	}
	s.t.Fatalf("the log has no line with %q:\n%s", words, s.log)
}

func (s *serving) tools() []string {
	s.t.Helper()
	var m struct {
		Result struct{ Tools []struct{ Name string } }
	}
	line := s.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		s.t.Fatal(err)
	}
	names := []string{}
	for _, tool := range m.Result.Tools {
		if !strings.HasPrefix(tool.Name, "relavium_run_") {
			names = append(names, tool.Name)
		}
	}
	return names
}

func (s *serving) wants(what string, tools ...string) {
	s.t.Helper()
	if got := s.tools(); !slices.Equal(got, tools) {
		s.t.Errorf("%s: tools = %v, want %v\n%s", what, got, tools, s.log)
	}
	if s.heard > 0 {
		s.t.Errorf("%s: the list is said to have changed", what)
		s.heard = 0
	}
}

func (s *serving) yields(what, tool, want string) {
	s.t.Helper()
	if got := s.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `"}}`); !strings.Contains(got, want) {
		s.t.Errorf("%s: %s = %s, want %s", what, tool, got, want)
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	const writes = "    - { id: result, type: output, save_to: out/x.txt }"
	s := serveProject(t, map[string]string{"one.relavium.yaml": says("one", "first")}, "--publish", "@mcp_call")
	s.yields("at the start", "relavium_one", "first")

	s.write("one.relavium.yaml", says("one", "second"))
	s.changed()
	s.yields("edited", "relavium_one", "second")

	s.write("one.relavium.yaml", strings.Replace(says("one", "third"), "type: transform", "type: turned", 1))
	s.logs("level=WARN", "does not load", "file=.relavium/one.relavium.yaml", "line=10", "unknown type", "remedy=")
	s.wants("broken", "relavium_one")
	s.yields("broken", "relavium_one", "second")

	s.write("sub/two.relavium.yaml", says("two", "more")) // beside the broken one, in a new folder
	s.changed()
	s.wants("one more", "relavium_one", "relavium_two")

	s.write("one.relavium.yaml", says("one", "fourth"))
	s.changed()
	s.yields("mended", "relavium_one", "fourth")

	s.write("two.relavium.yaml", says("two", "clash"))
	s.logs("level=WARN", "stay as they were loaded last", "two")
	s.wants("an id used twice", "relavium_one", "relavium_two")
	if err := os.Remove(filepath.Join(s.dir, ".relavium", "two.relavium.yaml")); err != nil {
		t.Fatal(err)
	}

	wide := strings.Replace(says("one", "fifth"), "    - { id: result, type: output }", writes, 1)
	s.write("one.relavium.yaml", wide)
	s.logs("level=WARN", "reaches further", "workflow=one", "reach=write")
	s.wants("wider", "relavium_one", "relavium_two")
	s.yields("wider", "relavium_one", "fourth")

	if err := os.Remove(filepath.Join(s.dir, ".relavium", "sub", "two.relavium.yaml")); err != nil {
		t.Fatal(err)
	}
	s.changed()
	s.wants("one less", "relavium_one")

	// A file that comes back reaches no further than it did before it went.
	s.write("two.relavium.yaml", says("two", "back"))
	s.changed()
	if err := os.Remove(filepath.Join(s.dir, ".relavium", "one.relavium.yaml")); err != nil {
		t.Fatal(err)
	}
	s.changed()
	s.wants("gone", "relavium_two")
	s.write("one.relavium.yaml", wide)
	s.logs("level=WARN", "is not published", "workflow=one", "reaches further")
	s.wants("back with more", "relavium_two")

	if err := os.RemoveAll(filepath.Join(s.dir, ".relavium", "one.relavium.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.dir, ".relavium", "two.relavium.yaml")); err != nil {
		t.Fatal(err)
	}
	s.logs("level=WARN", "nothing that is to be published loads")
	s.yields("nothing left", "relavium_two", "back")
}

func TestReloadConfiguration(t *testing.T) {
	t.Parallel()
	s := serveProject(t, map[string]string{
		"one.relavium.yaml": says("one", "1"), "two.relavium.yaml": says("two", "2"),
		"project.toml": "[serve]\npublish = [\"one\"]\n",
	})
	s.wants("at the start", "relavium_one")

	s.write("project.toml", "[serve]\npublish = [\"one\", \"two\"]\n[serve.workflow.two]\ntool = \"second\"\n")
	s.changed()
	s.wants("published", "relavium_one", "second")

	s.write("project.toml", "[serve]\npublish = [\"one\", \"two\"\n")
	s.logs("level=WARN", "configuration stays as it was", "project.toml:2")
	s.wants("broken", "relavium_one", "second")

	s.write("project.toml", "[serve]\npublish = [\"one\"]\ntool_prefix = \"x_\"\n[gates]\nmin_human_ms = 900\n")
	s.logs("level=WARN", "next start", "serve.tool_prefix, gates.min_human_ms")
	s.changed()
	s.wants("what needs a restart", "relavium_one")

	config := "[serve.limits]\nruns = 0\n[prices.\"my-model\"]\ninput = 1\noutput = 1\n[database]\ndurability = \"full\"\n"
	if err := os.WriteFile(filepath.Join(s.home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s.logs("level=WARN", "next start", "database.durability")
	if log := s.log.String(); strings.Contains(log, "serve.limits") || strings.Contains(log, "prices") {
		t.Errorf("limits and prices are said to need a restart:\n%s", log)
	}

	// Rules that would stop a start take the tool away: the old ones must not hold on.
	s.write("project.toml", "[serve]\npublish = [\"one\", \"two\"]\n")
	s.changed()
	s.wants("both", "relavium_one", "relavium_two")
	s.write("project.toml", "[serve]\npublish = []\n")
	s.changed()
	s.wants("none")
}

// A registration with which a published workflow would start a program waits for a
// restart; one that only goes elsewhere does not.
func TestReloadServers(t *testing.T) {
	t.Parallel()
	const flow = `schema_version: "1.0"
workflow:
  id: flow
  name: Flow
  trigger: {type: mcp_call}
  agents:
    - id: helper
      model: claude-sonnet-4-6
      provider: anthropic
      system_prompt: Help.
      mcp_servers:
        - ref: there
  nodes:
    - {id: in, type: input}
    - {id: ask, type: agent, agent_ref: helper, prompt_template: Say hi.}
    - {id: out, type: output}
  edges:
    - {from: in, to: ask}
    - {from: ask, to: out}
`
	server := func(how string) string {
		return "[serve]\npublish = [\"flow\"]\n[[mcp_servers]]\nname = \"there\"\n" + how
	}
	s := serveProject(t, map[string]string{
		"flow.relavium.yaml": flow,
		"project.toml":       server("transport = \"http\"\nurl = \"https://one.example/mcp\"\n"),
	})
	s.wants("at the start", "relavium_flow")
	s.write("project.toml", server("transport = \"http\"\nurl = \"https://two.example/mcp\"\n"))
	s.logs("level=INFO", "msg=reloaded")
	s.write("project.toml", server("transport = \"stdio\"\ncommand = \"/bin/cat\"\n"))
	s.logs("level=WARN", "mcp_servers stay as they were", "workflow=flow", "reach=spawn")
	s.wants("with a program", "relavium_flow")
	if strings.Contains(s.log.String(), "/bin/cat") {
		t.Errorf("the program is taken into account:\n%s", s.log)
	}
}
