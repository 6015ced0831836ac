package workflows

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree writes files below a new folder and returns its real path.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, src := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func simple(id string) string {
	return "schema_version: '1.0'\nworkflow:\n  id: " + id + "\n" + twoNodes
}

func agentDoc(id string) string {
	return "id: " + id + "\nprovider: openai\nmodel: m-1\nsystem_prompt: hi\n"
}

func asks(id, agent string) string {
	return "schema_version: '1.0'\nworkflow:\n  id: " + id + "\n  nodes: [{id: a, type: agent, agent_ref: " + agent + "}]\n  edges: []\n"
}

func summary(c *Catalog, base string) []string {
	out := []string{}
	below := func(path string) string { return shownPath(base, path) }
	for _, l := range c.Workflows {
		out = append(out, fmt.Sprintf("%s: %s of %s as %s", l.Workflow.ID, below(l.Path), below(l.Root), l.Workflow.File))
	}
	for _, b := range c.Broken {
		out = append(out, fmt.Sprintf("broken %q: %s: %s", b.ID, below(b.Path), b.Problems))
	}
	for _, w := range c.Warnings {
		out = append(out, "warning "+w.String())
	}
	return out
}

func TestLoad(t *testing.T) {
	t.Parallel()
	base := tree(t, map[string]string{
		"proj/.relavium/workflows/b.relavium.yaml": simple("bravo"),
		"proj/.relavium/deep/er/a.relavium.yaml":   simple("alpha"),
		"proj/.relavium/sniffed.yaml":              asks("sniffed", "ferry"),
		"proj/.relavium/agents/ferry.agent.yaml":   agentDoc("ferry"),
		"proj/.relavium/agents/heron.yaml":         agentDoc("heron"),
		"proj/.relavium/workflows/h.relavium.yaml": asks("uses-heron", "heron"),
		"proj/.relavium/other.yaml":                "kind: Deployment\n",
		"proj/.relavium/notes.yml":                 simple("not-yaml"),
		"proj/.relavium/bad.relavium.yaml":         "schema_version: '1.0'\nworkflow:\n  # why\n  id: 'broken-one' # id\n  nodes: [\n",
		"proj/.relavium/bad.agent.yaml":            "id: sick\nprovider: openai\n",
		"proj/.relavium/node_modules/x.yaml":       simple("never"),
		"proj/.relavium/.git/y.relavium.yaml":      simple("never-either"),
		"flows/c.relavium.yaml":                    simple("charlie"),
		"flows/plain.yaml":                         simple("not-by-name"),
		"flows/sub/d.relavium.yaml":                asks("delta", "wren"),
		"flows/sub/wren.agent.yaml":                agentDoc("wren"),
		"flows/own/.relavium/agents/z.agent.yaml":  agentDoc("zeta-agent"),
		"flows/own/e.relavium.yaml":                asks("echo", "zeta-agent"),
		"flows/own/f.relavium.yaml":                asks("foxtrot", "wren"),
	})
	got, err := Load([]Source{
		{Dir: filepath.Join(base, "proj", ".relavium"), Root: filepath.Join(base, "proj")},
		{Dir: filepath.Join(base, "flows"), Root: filepath.Join(base, "flows")},
	}, Options{})
	if err != nil {
		t.Fatalf("Load = %v, want a catalog", err)
	}
	want := []string{
		"alpha: proj/.relavium/deep/er/a.relavium.yaml of proj as .relavium/deep/er/a.relavium.yaml",
		"bravo: proj/.relavium/workflows/b.relavium.yaml of proj as .relavium/workflows/b.relavium.yaml",
		"charlie: flows/c.relavium.yaml of flows as c.relavium.yaml",
		"delta: flows/sub/d.relavium.yaml of flows as sub/d.relavium.yaml",
		"echo: flows/own/e.relavium.yaml of flows/own as e.relavium.yaml",
		"sniffed: proj/.relavium/sniffed.yaml of proj as .relavium/sniffed.yaml",
		"uses-heron: proj/.relavium/workflows/h.relavium.yaml of proj as .relavium/workflows/h.relavium.yaml",
		`broken "foxtrot": flows/own/f.relavium.yaml: f.relavium.yaml:4:43: workflow.nodes[0].agent_ref: dangling_ref: no agent "wren": declare it under workflow.agents or in an agent file`,
		"broken \"\": proj/.relavium/bad.agent.yaml: .relavium/bad.agent.yaml:1:1: model: missing key \"model\"\n" +
			`.relavium/bad.agent.yaml:1:1: system_prompt: missing key "system_prompt"`,
		`broken "broken-one": proj/.relavium/bad.relavium.yaml: .relavium/bad.relavium.yaml:5:3: a bracket without its other half, or a value is missing`,
	}
	if diff := cmp.Diff(want, summary(got, base)); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
}

func TestLoadRefusesIDsUsedTwice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{
			"two workflows",
			map[string]string{".relavium/a.relavium.yaml": simple("heron"), ".relavium/x/b.relavium.yaml": simple("heron")},
			`.relavium/x/b.relavium.yaml:3:7: workflow.id: id "heron" is used by .relavium/a.relavium.yaml too: give one of the two another id`,
		},
		{
			"a workflow and an agent",
			map[string]string{".relavium/a.relavium.yaml": simple("heron"), ".relavium/agents/b.agent.yaml": agentDoc("heron")},
			`.relavium/agents/b.agent.yaml:1:5: id: id "heron" is used by .relavium/a.relavium.yaml too: give one of the two another id`,
		},
		{
			"two agents",
			map[string]string{".relavium/a.agent.yaml": agentDoc("heron"), ".relavium/b.agent.yaml": agentDoc("heron"), ".relavium/c.relavium.yaml": simple("crake")},
			`.relavium/b.agent.yaml:1:5: id: id "heron" is used by .relavium/a.agent.yaml too: give one of the two another id`,
		},
	} {
		base := tree(t, tt.files)
		broken := filepath.Join(base, ".relavium", "broken.relavium.yaml")
		if err := os.WriteFile(broken, []byte("schema_version: ["), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load([]Source{{Dir: filepath.Join(base, ".relavium"), Root: base}}, Options{})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Load(%s) = %v, want %s", tt.name, err, tt.want)
		}
		if c == nil || len(c.Broken) != 1 || len(c.Workflows) == 0 {
			t.Errorf("Load(%s) = %v beside the error, want the workflows and the broken file", tt.name, c)
		}
		for name := range tt.files {
			if strings.HasSuffix(name, workflowSuffix) {
				if _, _, err := LoadFile(filepath.Join(base, name), Options{}); (err == nil) == (tt.name != "two workflows") {
					t.Errorf("LoadFile(%s of %s) = %v", name, tt.name, err)
				}
			}
		}
	}
}

// Two projects may each have an agent of one name.
func TestLoadKeepsProjectsApart(t *testing.T) {
	t.Parallel()
	base := tree(t, map[string]string{
		"a/.relavium/a.relavium.yaml": asks("alpha", "scribe"), "a/.relavium/s.agent.yaml": strings.Replace(agentDoc("scribe"), "m-1", "m-a", 1),
		"b/.relavium/b.relavium.yaml": asks("bravo", "scribe"), "b/.relavium/s.agent.yaml": strings.Replace(agentDoc("scribe"), "m-1", "m-b", 1),
	})
	c, err := Load([]Source{{Dir: base, Root: base}}, Options{})
	if err != nil || len(c.Workflows) != 2 {
		t.Fatalf("Load = %v, %v, want two workflows", c, err)
	}
	for i, want := range []string{"m-a", "m-b"} {
		if a, ok := c.Workflows[i].Workflow.Agent("scribe"); !ok || a.Model != want {
			t.Errorf("agent of %s = %v, want model %s", c.Workflows[i].Workflow.ID, a, want)
		}
	}
}

func TestLoadFollowsLinksToFiles(t *testing.T) {
	t.Parallel()
	base := tree(t, map[string]string{
		"real/.relavium/flows/a.relavium.yaml": simple("alpha"),
		"else/plain.txt":                       "",
	})
	for link, to := range map[string]string{
		"else/link.relavium.yaml":     "../real/.relavium/flows/a.relavium.yaml",
		"else/again.relavium.yaml":    "link.relavium.yaml",
		"else/dangling.relavium.yaml": "nowhere",
		"else/folder":                 "../real",
		"here":                        "else",
	} {
		if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
			t.Skip("no symbolic links here")
		}
	}
	c, err := Load([]Source{{Dir: filepath.Join(base, "here"), Root: filepath.Join(base, "else")}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"alpha: real/.relavium/flows/a.relavium.yaml of real as .relavium/flows/a.relavium.yaml",
		"warning dangling.relavium.yaml: is a link that leads nowhere",
	}
	if diff := cmp.Diff(want, summary(c, base)); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
}

// A pipe by the name of a workflow is not opened: that would wait for ever.
func TestLoadSkipsWhatIsNoFile(t *testing.T) {
	t.Parallel()
	base := tree(t, map[string]string{"a.relavium.yaml": simple("alpha")})
	if err := makePipe(filepath.Join(base, "pipe.relavium.yaml")); err != nil {
		t.Skipf("no pipe: %v", err)
	}
	if err := os.Mkdir(filepath.Join(base, "folder.relavium.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Load([]Source{{Dir: base, Root: base}}, Options{})
	if err != nil || len(c.Workflows) != 1 || len(c.Broken) != 0 {
		t.Errorf("Load = %v, %v, want one workflow", c, err)
	}
	if _, _, err := LoadFile(filepath.Join(base, "pipe.relavium.yaml"), Options{}); err == nil {
		t.Error("LoadFile(a pipe) = nil, want an error")
	}
}

func TestLoadReportsSources(t *testing.T) {
	t.Parallel()
	base := tree(t, map[string]string{"secret-path/x": ""})
	_, err := Load([]Source{{Dir: filepath.Join(base, "secret-path", "none"), Root: base}}, Options{})
	if err == nil || strings.Contains(err.Error(), base) || !strings.Contains(err.Error(), "none") {
		t.Errorf("Load of a folder that is not there = %v, want its name only", err)
	}
}

func TestLoadFile(t *testing.T) {
	t.Parallel()
	base := tree(t, map[string]string{
		"proj/.relavium/agents/ferry.agent.yaml": agentDoc("ferry"),
		"proj/.relavium/agents/sick.agent.yaml":  "id: sick\nprovider: openai\nmodel: m\n",
		"proj/.relavium/flows/broken.yaml":       "workflow: [",
		"proj/src/a.relavium.yaml":               asks("alpha", "ferry"),
		"proj/src/s.relavium.yaml":               asks("sickly", "sick"),
		"proj/src/ref.relavium.yaml": "schema_version: '1.0'\nworkflow:\n  id: ref\n  agents: [{$ref: ../.relavium/agents/ferry.agent.yaml}]\n" +
			"  nodes: [{id: a, type: agent, agent_ref: ferry}]\n  edges: []\n",
		"proj/src/out.relavium.yaml":    "schema_version: '1.0'\nworkflow:\n  id: out\n  agents: [{$ref: ../../loose/wren.agent.yaml}]\n" + twoNodes,
		"loose/b.relavium.yaml":         asks("bravo", "wren"),
		"loose/wren.agent.yaml":         agentDoc("wren"),
		"loose/sub/deeper.agent.yaml":   agentDoc("deeper"),
		"loose/c.relavium.yaml":         asks("charlie", "deeper"),
		"loose/warned.relavium.yaml":    strings.Replace(simple("warned"), "  nodes", "  version: one\n  nodes", 1),
		"loose/named-otherwise.txt":     simple("otherwise"),
		"loose/no-workflow.agent.yaml2": "",
	})
	at := func(name string) string { return filepath.Join(base, filepath.FromSlash(name)) }
	for _, tt := range []struct{ file, root, as string }{
		{"proj/src/a.relavium.yaml", "proj", "src/a.relavium.yaml"},
		{"proj/src/ref.relavium.yaml", "proj", "src/ref.relavium.yaml"},
		{"loose/b.relavium.yaml", "loose", "b.relavium.yaml"},
		{"loose/named-otherwise.txt", "loose", "named-otherwise.txt"},
	} {
		got, warnings, err := LoadFile(at(tt.file), Options{})
		if err != nil || len(warnings) > 0 {
			t.Errorf("LoadFile(%s) = %v, %v, want a workflow", tt.file, warnings, err)
			continue
		}
		if got.Root != at(tt.root) || got.Path != at(tt.file) || got.Workflow.File != tt.as {
			t.Errorf("LoadFile(%s) = root %s, path %s, file %s, want %s, %s, %s",
				tt.file, got.Root, got.Path, got.Workflow.File, at(tt.root), at(tt.file), tt.as)
		}
		checkRoundTrip(t, got.Workflow)
	}
	for file, want := range map[string]string{
		"proj/src/s.relavium.yaml": "src/s.relavium.yaml:4:43: workflow.nodes[0].agent_ref: dangling_ref: no agent \"sick\": declare it under workflow.agents or in an agent file\n" +
			".relavium/agents/sick.agent.yaml:1:1: system_prompt: missing key \"system_prompt\"",
		"proj/src/out.relavium.yaml": "src/out.relavium.yaml:4:19: workflow.agents[0].$ref: dangling_ref: the agent file cannot be read: the path is relative to the workflow file",
		"loose/c.relavium.yaml":      "c.relavium.yaml:4:43: workflow.nodes[0].agent_ref: dangling_ref: no agent \"deeper\": declare it under workflow.agents or in an agent file",
		"loose/none.relavium.yaml":   "none.relavium.yaml: no such file",
	} {
		_, _, err := LoadFile(at(file), Options{})
		if err == nil || err.Error() != want {
			t.Errorf("LoadFile(%s) = %v, want %s", file, err, want)
		}
	}
	_, warnings, err := LoadFile(at("loose/warned.relavium.yaml"), Options{})
	if err != nil || len(warnings) != 1 {
		t.Errorf("LoadFile(a file with a warning) = %v, %v, want one warning", warnings, err)
	}
}

func TestProjectRoot(t *testing.T) {
	base := tree(t, map[string]string{
		"home/.relavium/config.toml":           "",
		"home/.relavium/flows/a.relavium.yaml": "",
		"home/work/p/.relavium/w/b.yaml":       "",
		"home/work/p/sub/c.yaml":               "",
		"home/work/q/d.yaml":                   "",
		"home/work/q/.relavium":                "a file, not a folder",
		"home/loose.yaml":                      "",
		"elsewhere/state/.relavium/x.yaml":     "",
	})
	at := func(name string) string { return filepath.Join(base, filepath.FromSlash(name)) }
	t.Setenv("HOME", at("home"))
	t.Setenv("USERPROFILE", at("home"))
	if err := os.Symlink(at("home/work/p/sub/c.yaml"), at("home/work/q/link.yaml")); err != nil {
		t.Skip("no symbolic links here")
	}
	for _, tt := range []struct{ file, fallback, home, want string }{
		{"home/work/p/.relavium/w/b.yaml", "", "", "home/work/p"},
		{"home/work/p/sub/c.yaml", "home/work", "", "home/work/p"},
		{"home/work/q/d.yaml", "", "", "home/work/q"},
		{"home/work/q/d.yaml", "home/work", "", "home/work"},
		{"home/work/q/link.yaml", "home/work/q", "", "home/work/p"},
		{"home/.relavium/flows/a.relavium.yaml", "", "", "home/.relavium/flows"},
		{"home/.relavium/flows/a.relavium.yaml", "home/.relavium/flows", "", "home/.relavium/flows"},
		{"elsewhere/state/.relavium/x.yaml", "", "", "elsewhere/state"},
		{"elsewhere/state/.relavium/x.yaml", "", "elsewhere/state/.relavium", "elsewhere/state/.relavium"},
	} {
		fallback, home := tt.fallback, tt.home
		if fallback != "" {
			fallback = at(fallback)
		}
		if home != "" {
			home = at(home)
		}
		if got, err := ProjectRoot(at(tt.file), fallback, home); err != nil || got != at(tt.want) {
			t.Errorf("ProjectRoot(%s, %s, %s) = %s, %v, want %s", tt.file, tt.fallback, tt.home, got, err, at(tt.want))
		}
	}
	for _, tt := range []struct{ file, fallback string }{
		{at("home/loose.yaml"), ""},
		{at("home/work/q/d.yaml"), at("home")},
		{at("home/work/q/d.yaml"), filepath.VolumeName(base) + string(filepath.Separator)},
	} {
		if got, err := ProjectRoot(tt.file, tt.fallback, ""); !errors.Is(err, ErrRoot) {
			t.Errorf("ProjectRoot(%s, %s) = %s, %v, want ErrRoot", tt.file, tt.fallback, got, err)
		}
	}
	if _, err := ProjectRoot(at("none"), "", ""); err == nil || strings.Contains(err.Error(), base) {
		t.Errorf("ProjectRoot(a file that is not there) = %v, want an error without the path", err)
	}
	if _, err := Load([]Source{{Dir: at("home"), Root: at("home")}}, Options{}); !errors.Is(err, ErrRoot) {
		t.Errorf("Load of the home = %v, want ErrRoot", err)
	}
}

func TestTopLevelID(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		src, want string
		at        spot
	}{
		{"workflow:\n  id: a-b\n", "a-b", spot{2, 7}},
		{"workflow:\n  name: x\n  id:  \"a\" # why\n", "a", spot{3, 8}},
		{"workflow:\n\n  # c\n  agents:\n    - id: x\n  id: w", "w", spot{6, 7}},
		{"workflow:\n  agents:\n    - id: x\nid: y\n", "", spot{}},
		{"workflow: { id: broken, nodes: [ }\n", "broken", spot{1, 17}},
		{"workflow: {id: broken}\n", "broken", spot{1, 16}},
		{"id: x\nworkflow:\n", "", spot{}},
		{"workflow:\n  id: Not Kebab\n", "", spot{}},
		{"", "", spot{}},
	} {
		if got, at := topLevelID([]byte(tt.src), "workflow"); got != tt.want || at != tt.at {
			t.Errorf("topLevelID(%q) = %q at %v, want %q at %v", tt.src, got, at, tt.want, tt.at)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	src, err := os.ReadFile("testdata/good/ring-survey.relavium.yaml")
	if err != nil {
		b.Fatal(err)
	}
	base := b.TempDir()
	for i := range 100 {
		id := fmt.Sprintf("ring-survey-%d", i)
		name := filepath.Join(base, id+workflowSuffix)
		if err := os.WriteFile(name, []byte(strings.Replace(string(src), "id: ring-survey", "id: "+id, 1)), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		c, err := Load([]Source{{Dir: base, Root: base}}, Options{})
		if err != nil || len(c.Workflows) != 100 {
			b.Fatalf("Load = %v, want 100 workflows", err)
		}
	}
}
