package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// escapes are paths that no tool may follow, as denials.
func escapes(s *site) []string {
	return []string{
		"../outside/secret.md", "docs/../../outside/secret.md", "..", "/etc/passwd", "//host/share/x", `\\host\share\x`, `..\outside\secret.md`,
		`C:\secret.md`, "c:/secret.md", "C:secret.md", filepath.Join(s.outside, "secret.md"), filepath.Join(s.root, "notes.txt"),
		"out/secret.md", "escape.md", "absolute.md", "hard.md",
		".env", ".ENV", ".env.local", ".ssh/id", ".SSH/id", "docs/.npmrc", "docs/.NpmRc", "plain.txt", "keys/id", "home/serve.db", "docs/innocent/serve.db",
		".git/config", ".config/gcloud/x", ".kube/config", ".azure/token", ".relavium/home/serve.db", ".ſsh/id", ".env:x", ".env.",
		"run:../../serve.db", "run:../other/x", "run:/etc/passwd", "run:.env",
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	write(t, filepath.Join(s.root, "lines.txt"), "a\nb\nc\nd")
	write(t, filepath.Join(s.root, "part.txt"), "aéüb")
	long := strings.Repeat("x/", maxPath/2)
	for path, want := range map[string]string{
		`notes.txt`:                    `{"content":"one, two","mimeType":"text/plain","sizeBytes":8,"lastModified":"2`,
		`./docs//long name.md`:         `{"content":"# Heron","mimeType":"text/markdown","sizeBytes":7,`,
		`inside.txt`:                   `{"content":"leaf"`,
		`in/leaf.txt`:                  `{"content":"leaf"`,
		`docs`:                         `error: not a regular file`,
		`.`:                            `error: not a regular file`,
		`absent.txt`:                   `error: no such file in the workspace`,
		`dangling.txt`:                 `error: no such file in the workspace`,
		`bytes.bin`:                    `error: the file is not UTF-8 text`,
		`big.txt`:                      `error: the file is larger than 4194304 bytes`,
		`full.txt`:                     `error: the text is larger than 1048576 bytes; read it in parts`,
		``:                             `incorrect: the path is empty`,
		"a\x00b":                       `incorrect: the path holds a NUL`,
		`docs/../notes.txt`:            `incorrect: the path leaves its folder with ..`,
		`docs\notes.txt`:               `incorrect: the path has a backslash; use /`,
		`run:`:                         `error: not a regular file`,
		`run:absent.txt`:               `error: no such file in the workspace`,
		`docs/*.md`:                    `{"files":[{"path":"docs/long name.md","content":"# Heron"`,
		`docs/**/*.txt`:                `{"files":[{"path":"docs/deep/leaf.txt","content":"leaf"`,
		strings.Repeat("*x", 200):      `incorrect: a pattern is of at most 256 bytes`,
		`no*.nothing`:                  `error: no file matches the pattern`,
		`bytes.*`:                      `{"files":[{"path":"bytes.bin","error":"the file is not UTF-8 text"}],"truncated":false}`,
		`.e*`:                          `error: no file matches the pattern`,
		`docs/innocent/*`:              `denied: path_not_allowed: the path is not allowed in this workspace`,
		`../outside/*`:                 `denied: path_not_allowed: the path leaves the workspace`,
		`out/*`:                        `denied: path_not_allowed: the file is not inside the workspace`,
		strings.Repeat("x", maxPath+1): `incorrect: argument "path": want at most 4096 bytes`,
		long:                           `error: `,
	} {
		got := s.outcome(t, s.request("read_file", map[string]any{"path": path}))
		if !strings.HasPrefix(got, want) {
			t.Errorf("read_file %.80q = %.200q, want %q", path, got, want)
		}
	}
	for _, path := range escapes(s) {
		if got := s.outcome(t, s.request("read_file", map[string]any{"path": path})); !strings.HasPrefix(got, "denied: path_not_allowed: ") {
			t.Errorf("read_file %q = %.200q, want a denial", path, got)
		}
	}
	for args, want := range map[string]string{
		`{"path":"lines.txt","startLine":2,"lineCount":2}`: `{"content":"b\nc\n","mimeType":"text/plain","sizeBytes":7,`,
		`{"path":"lines.txt","startLine":4}`:               `{"content":"d",`,
		`{"path":"lines.txt","lineCount":1}`:               `{"content":"a\n",`,
		`{"path":"lines.txt","startLine":5}`:               `error: the file has 4 lines`,
		`{"path":"lines.*","startLine":1}`:                 `incorrect: a part is read of one file`,
		`{"path":"lines.txt","startLine":1,"byteCount":1}`: `incorrect: a part is of lines or of bytes`,
		`{"path":"part.txt","startByte":1,"byteCount":2}`:  `{"content":"a","mimeType":"text/plain","sizeBytes":6,`,
		`{"path":"part.txt","startByte":3,"byteCount":2}`:  `{"content":"ü",`,
		`{"path":"part.txt","startByte":2,"byteCount":1}`:  `{"content":"é",`,
		`{"path":"part.txt","startByte":4}`:                `{"content":"üb",`,
		`{"path":"part.txt","byteCount":9}`:                `{"content":"aéüb",`,
		`{"path":"part.txt","startByte":7}`:                `error: the file has 6 bytes`,
	} {
		got := s.outcome(t, s.request("read_file", args))
		if !strings.HasPrefix(got, want) || got[0] == '{' && !strings.HasSuffix(got, `"totalLines":4}`) && !strings.Contains(got, `"startByte":`) {
			t.Errorf("read_file %s = %q, want %q", args, got, want)
		}
	}
}

// TestReadFileMarkup reads what a model should see as it is in the file: it costs
// tokens, and is compared with what the model writes.
func TestReadFileMarkup(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	write(t, filepath.Join(s.root, "page.html"), "<a href='?x&y'>ß</a>\n")
	res, err := s.tools.Call(t.Context(), s.request("read_file", map[string]any{"path": "page.html"}))
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"content":"<a href='?x&y'>ß</a>\n",`; !strings.HasPrefix(res.Text, want) {
		t.Errorf("result = %s, want it to begin with %s", res.Text, want)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// snapshot is every file below dir, with text and mode.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		about, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, about.Mode())
		if about.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %.100q", len(text), text)
		}
		b.WriteByte('\n')
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if err := os.Chmod(filepath.Join(s.root, "docs/deep/leaf.txt"), 0o755); err != nil {
		t.Fatal(err)
	}
	text := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(s.root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, test := range []struct{ args, want, path, text string }{
		{`{"path":"new.txt","content":"é1"}`, `{"path":"new.txt","bytesWritten":3}`, "new.txt", "é1"},
		{`{"path":"new.txt","content":"2"}`, `{"path":"new.txt","bytesWritten":1}`, "new.txt", "2"},
		{`{"path":"new.txt","content":"3","append":true}`, `{"path":"new.txt","bytesWritten":1}`, "new.txt", "23"},
		{`{"path":"log.txt","content":"x","append":true}`, `{"path":"log.txt","bytesWritten":1}`, "log.txt", "x"},
		{`{"path":"docs/deep/leaf.txt","content":"new"}`, `{"path":"docs/deep/leaf.txt","bytesWritten":3}`, "docs/deep/leaf.txt", "new"},
		{`{"path":"in/other.txt","content":"through"}`, `{"path":"in/other.txt","bytesWritten":7}`, "docs/deep/other.txt", "through"},
		{`{"path":"x/y/z.txt","content":"deep"}`, `error: a folder of the path does not exist; say createDirs to make it`, "", ""},
		{`{"path":"x/y/z.txt","content":"deep","createDirs":true}`, `{"path":"x/y/z.txt","bytesWritten":4}`, "x/y/z.txt", "deep"},
		{`{"path":"in/n/z.txt","content":"deep","createDirs":true}`, `{"path":"in/n/z.txt","bytesWritten":4}`, "docs/deep/n/z.txt", "deep"},
		{`{"path":"docs","content":"x"}`, `error: the path names a folder`, "", ""},
		{`{"path":".","content":"x"}`, `error: the path names a folder`, "", ""},
		{`{"path":"docs/","content":"x"}`, `error: the path ends in a slash`, "", ""},
		{`{"path":"notes.txt/x","content":"x"}`, `error: the file cannot be read`, "", ""},
		{`{"path":"","content":"x"}`, `incorrect: the path is empty`, "", ""},
		{`{"path":"a\u202etxt.exe","content":"x"}`, `incorrect: the path holds characters that do not show`, "", ""},
		{`{"path":"a\nb","content":"x"}`, `incorrect: the path holds characters that do not show`, "", ""},
		{`{"path":"dangling.txt","content":"x"}`, `denied: path_not_allowed: the file is a link`, "", ""},
		{`{"path":"inside.txt","content":"x"}`, `denied: path_not_allowed: the file is a link`, "", ""},
		{`{"path":"hard.md","content":"x"}`, `denied: path_not_allowed: the file has more than one hard link`, "", ""},
		{`{"path":"hard.md","content":"x","append":true}`, `denied: path_not_allowed: the file has more than one hard link`, "", ""},
	} {
		got := s.outcome(t, s.request("write_file", test.args))
		if !strings.HasPrefix(got, test.want) {
			// outcome calls only once, so what is appended is appended once.
			t.Errorf("write_file %s = %q, want %q", test.args, got, test.want)
		} else if test.path != "" && text(test.path) != test.text {
			t.Errorf("write_file %s: %s holds %q, want %q", test.args, test.path, text(test.path), test.text)
		}
	}
	about, err := os.Stat(filepath.Join(s.root, "docs/deep/leaf.txt"))
	if err != nil || about.Mode().Perm() != 0o755 {
		t.Errorf("mode after write_file = %v, %v, want the mode before", about.Mode(), err)
	}
	write(t, filepath.Join(s.root, ".git", "config"), "canary")
	if err := os.Symlink(".git", filepath.Join(s.root, "plumbing")); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, filepath.Dir(s.root))
	for _, path := range append(escapes(s), "plumbing/hooks/pre-commit", "plumbing/x",
		".git/hooks/pre-commit", ".GIT/hooks/x", "sub/.git", ".relavium/project.toml", ".ssh/authorized_keys", ".bashrc", "docs/.ZSHENV", ".profile",
		"package.json", "PACKAGE.JSON", "Makefile", "GNUmakefile", "node_modules/x/index.js", "Node_Modules/x.js", "new.relavium.yaml", "docs/a.agent.yaml", "a.AGENT.yaml",
	) {
		for _, more := range []string{"", `,"append":true`} {
			args, _ := json.Marshal(path)
			got := s.outcome(t, s.request("write_file", `{"createDirs":true,"content":"x","path":`+string(args)+more+`}`))
			if !strings.HasPrefix(got, "denied: path_not_allowed: ") {
				t.Errorf("write_file %q = %q, want a denial", path, got)
			}
		}
	}
	if after := snapshot(t, filepath.Dir(s.root)); after != before {
		t.Errorf("refused writes changed something:\n%s\nwas\n%s", after, before)
	}
}

// What decides about later runs is not written, by whatever name.
func TestWriteFileProtected(t *testing.T) {
	t.Parallel()
	var root, flows, home string
	s := newSite(t, func(o *Options) {
		home = o.Home
		o.Protected = func() []string {
			return []string{flows, filepath.Join(home, "config.toml"), filepath.Join(root, "conf", "extra.toml")}
		}
		o.Loaded = func() []workflows.Loaded {
			return []workflows.Loaded{{
				Path: filepath.Join(root, "ci", "release.yaml"), Root: root,
				Workflow: &workflows.Workflow{ID: "release", Tools: workflows.ToolPolicy{AllowedCommandGlobs: []string{"python3 ci/publish.py *", "tool --config=ci/tool.toml"}}},
			}}
		}
	})
	root, flows = s.root, filepath.Join(s.root, "flows")
	s.workflow.Tools.AllowedCommands = []string{"node scripts/build.js", "./ci/check --all", "npm test"}
	s.workflow.Agents = []workflows.Agent{{ID: "a", Servers: []workflows.ServerRef{{ID: "s", Transport: "stdio", Command: "uvx", Args: []string{"srv", "servers/db.py"}}}}}
	for _, path := range []string{"flows/a.txt", "scripts/build.js", "ci/check", "ci/publish.py", "ci/tool.toml", "conf/extra.toml", "ci/release.yaml", "servers/db.py"} {
		write(t, filepath.Join(s.root, path), "was")
	}
	if err := os.Symlink("scripts", filepath.Join(s.root, "alias")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"flows/a.txt", "flows/new.txt", "FLOWS/new.txt", "flows/deeper/x.txt", "scripts/build.js", "alias/build.js", "Scripts/BUILD.js", "ci/check", "ci/publish.py", "ci/tool.toml",
		"conf/extra.toml", "ci/release.yaml", "servers/db.py", "test", "scripts/package.json", "alias/package.json", "ci/Makefile", "scripts/node_modules/a/b.js", "flows",
	} {
		got := s.outcome(t, s.request("write_file", map[string]any{"path": path, "content": "x", "createDirs": true}))
		if !strings.HasPrefix(got, "denied: path_not_allowed: ") && got != "error: the path names a folder" {
			t.Errorf("write_file %q = %q, want a denial", path, got)
		}
	}
	for _, path := range []string{"scripts/other.js", "ci/notes.md", "tests/package.json", "test.txt", "test2/a.js"} {
		got := s.outcome(t, s.request("write_file", map[string]any{"path": path, "content": "x", "createDirs": true}))
		if !strings.HasPrefix(got, `{"path":`) {
			t.Errorf("write_file %q = %q, want it written", path, got)
		}
	}
}

// Runs of other principals write to their own folder, and to nothing of the project.
func TestWriteFileOfStrangers(t *testing.T) {
	t.Parallel()
	allowed := false
	s := newSite(t, func(o *Options) {
		o.ProjectWrites = func(root, workflow string) bool { return allowed && root != "" && workflow == "tidy" }
	})
	s.workflow.Tools.AllowedCommands = []string{"node build.js"}
	before := snapshot(t, s.root)
	ask := func(tool string, args any) string {
		t.Helper()
		c := s.request(tool, args)
		c.Principal = "token:ann"
		return s.outcome(t, c)
	}
	for _, step := range []struct{ tool, args, want string }{
		{"read_file", `{"path":"run:a.txt"}`, "error: no such file in the workspace"},
		{"list_directory", `{"path":"run:"}`, "error: no such file in the workspace"},
		{"write_file", `{"path":"docs/new.txt","content":"mine","createDirs":true}`, `{"path":"run:docs/new.txt","bytesWritten":4}`},
		{"write_file", `{"path":"notes.txt","content":"mine"}`, `{"path":"run:notes.txt","bytesWritten":4}`},
		{"write_file", `{"path":"run:b.txt","content":"mine"}`, `{"path":"run:b.txt","bytesWritten":4}`},
		{"write_file", `{"path":"package.json","content":"{}"}`, "denied: path_not_allowed: files like package.json"},
		{"write_file", `{"path":"build.js","content":"x"}`, "denied: path_not_allowed: the file is one that a command"},
		{"write_file", `{"path":"../x","content":"x"}`, "denied: path_not_allowed: "},
		{"read_file", `{"path":"run:docs/new.txt"}`, `{"content":"mine"`},
		{"read_file", `{"path":"run:*.txt"}`, `{"files":[{"path":"run:b.txt","content":"mine"`},
		{"read_file", `{"path":"notes.txt"}`, `{"content":"one, two"`},
		{"list_directory", `{"path":"run:"}`, `{"entries":[{"name":"b.txt","type":"file","sizeBytes":4,`},
	} {
		if got := ask(step.tool, step.args); !strings.HasPrefix(got, step.want) {
			t.Errorf("%s %s = %q, want %q", step.tool, step.args, got, step.want)
		}
	}
	if after := snapshot(t, s.root); after != before {
		t.Errorf("the workspace changed:\n%s\nwas\n%s", after, before)
	}
	allowed = true
	if got := ask("write_file", `{"path":"mine.txt","content":"mine"}`); got != `{"path":"mine.txt","bytesWritten":4}` {
		t.Errorf("write_file with writes = project = %q", got)
	}
}

func TestListDirectory(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	write(t, filepath.Join(s.root, ".git", "objects", "aa", "bb"), "x")
	names := func(args string) string {
		t.Helper()
		got := s.outcome(t, s.request("list_directory", args))
		var out struct {
			Entries   []entry
			Truncated bool
		}
		if err := json.Unmarshal([]byte(got), &out); err != nil {
			return got
		}
		var b []string
		for _, e := range out.Entries {
			b = append(b, e.Name+" "+e.Type)
		}
		if out.Truncated {
			b = append(b, "…")
		}
		return strings.Join(b, ", ")
	}
	for args, want := range map[string]string{
		`{"path":"."}`:     ".git directory, absolute.md link, big.txt file, bytes.bin file, dangling.txt link, docs directory, escape.md link, full.txt file, hard.md file, in link, inside.txt link, keys link, loop link, notes.txt file, out link, plain.txt link",
		`{"glob":"*.bin"}`: "bytes.bin file",
		`{"path":"docs"}`:  "deep directory, innocent link, long name.md file, up.txt link",
		`{"path":"in"}`:    "leaf.txt file",
		`{"path":".","recursive":true,"glob":"*.txt"}`:   "big.txt file, dangling.txt link, docs/deep/leaf.txt file, docs/up.txt link, full.txt file, inside.txt link, notes.txt file, plain.txt link",
		`{"path":".","recursive":true,"glob":".git/**"}`: ".git directory",
		`{"path":".","recursive":true,"glob":"docs/*"}`:  "docs/deep directory, docs/innocent link, docs/long name.md file, docs/up.txt link",
		`{"path":"notes.txt"}`:                           "error: the file cannot be read",
		`{"path":"absent"}`:                              "error: no such file in the workspace",
		`{"path":"out"}`:                                 "denied: path_not_allowed: the file is not inside the workspace",
		`{"path":"home"}`:                                "denied: path_not_allowed: the path is not allowed in this workspace",
		`{"path":".ssh"}`:                                "denied: path_not_allowed: files like .ssh may hold credentials and are never read",
		`{"path":".."}`:                                  "denied: path_not_allowed: the path leaves the workspace; paths are relative to it",
	} {
		if got := names(args); got != want {
			t.Errorf("list_directory %s = %q, want %q", args, got, want)
		}
	}
}

func TestListDirectoryBounds(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for i := range maxListed + 10 {
		write(t, filepath.Join(s.root, "many", fmt.Sprintf("f%05d", i)), "")
	}
	deep := filepath.Join(s.root, "deep", strings.Repeat("d/", maxDepth+3))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"many", "deep"} {
		var out struct {
			Entries   []entry
			Truncated bool
		}
		got := s.outcome(t, s.request("list_directory", map[string]any{"path": dir, "recursive": true}))
		if err := json.Unmarshal([]byte(got), &out); err != nil || !out.Truncated || len(out.Entries) > maxListed {
			t.Errorf("list_directory %s = %d entries, truncated %v, %v, want a part", dir, len(out.Entries), out.Truncated, err)
		}
	}
}

// A folder on the way that turns into a link out, again and again, leads nowhere.
func TestSwappedFolders(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	write(t, filepath.Join(s.root, "swap", "secret.md"), "harmless")
	before := snapshot(t, s.outside)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		swap, aside := filepath.Join(s.root, "swap"), filepath.Join(s.root, "aside")
		for {
			select {
			case <-done:
				return
			default:
			}
			// The tools may make a folder where there is none for a moment.
			for _, step := range []func() error{
				func() error { return os.Rename(swap, aside) },
				func() error { return os.Symlink(s.outside, swap) },
				func() error { return os.Remove(swap) },
				func() error { return os.Rename(aside, swap) },
			} {
				for err := step(); err != nil; err = step() {
					_ = os.RemoveAll(swap) // a tool may be filling it
				}
			}
		}
	})
	var read, refused int
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		for _, call := range []*workflows.ToolCall{
			s.request("read_file", `{"path":"swap/secret.md"}`),
			s.request("write_file", `{"path":"swap/new.md","content":"x"}`),
			s.request("write_file", `{"path":"swap/secret.md","content":"harmless","append":true}`),
			s.request("write_file", `{"path":"swap/n/new.md","content":"x","createDirs":true}`),
			s.request("list_directory", `{"path":"swap","recursive":true}`),
		} {
			out, err := s.tools.Call(t.Context(), call)
			if strings.Contains(out.Text, "canary") {
				t.Fatalf("%s %s = %q", call.Tool, call.Arguments, out.Text)
			}
			if err != nil || out.IsError {
				refused++
			} else {
				read++
			}
		}
	}
	close(done)
	wg.Wait()
	if after := snapshot(t, s.outside); after != before {
		t.Errorf("the folder outside changed:\n%s\nwas\n%s", after, before)
	}
	t.Logf("%d calls went through, %d did not", read, refused)
}

func TestRunFolders(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	path, err := s.tools.Spill(testRun, "write/1//3", []byte("a\nb\n"))
	if err != nil || path != "run:spill/write-1--3" {
		t.Fatalf("Spill = %q, %v", path, err)
	}
	if got := s.outcome(t, s.request("read_file", map[string]any{"path": path, "startLine": 2})); !strings.HasPrefix(got, `{"content":"b\n"`) {
		t.Errorf("read_file %s = %q", path, got)
	}
	for _, name := range []string{"", "../../x", "..", ".hidden", strings.Repeat("long", 100), "ü/\x00"} {
		at, err := s.tools.Spill(testRun, name, []byte("x"))
		if err != nil {
			t.Errorf("Spill(%q) = %v", name, err)
		} else if got := s.outcome(t, s.request("read_file", map[string]any{"path": at})); !strings.HasPrefix(got, `{"content":"x"`) {
			t.Errorf("Spill(%q) = %q, which reads %q", name, at, got)
		}
	}
	folder, err := s.tools.Folder(testRun)
	if err != nil {
		t.Fatal(err)
	}
	for dir := folder; dir != filepath.Dir(filepath.Dir(folder)); dir = filepath.Dir(dir) {
		if about, err := os.Stat(dir); err != nil || about.Mode().Perm() != 0o700 {
			t.Errorf("mode of %s = %v, %v, want 0700", filepath.Base(dir), about.Mode(), err)
		}
	}
	for _, run := range []string{"", "..", "../x", "a/b", ".", strings.Repeat("a", 65), "a b"} {
		if _, err := s.tools.Folder(run); err == nil {
			t.Errorf("Folder(%q) = nil error", run)
		}
		if err := s.tools.Remove(run); err == nil {
			t.Errorf("Remove(%q) = nil error", run)
		}
	}
	for _, run := range []string{"one", "two"} {
		if _, err := s.tools.Spill(run, "x", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.tools.Sweep(func(run string) bool { return run == "one" }); err != nil {
		t.Errorf("Sweep = %v", err)
	}
	if err := s.tools.Remove("one"); err != nil {
		t.Errorf("Remove = %v", err)
	}
	if err := s.tools.Remove("one"); err != nil {
		t.Errorf("Remove again = %v", err)
	}
	left, err := os.ReadDir(filepath.Dir(folder))
	if err != nil || len(left) != 0 {
		t.Errorf("after Sweep and Remove there is %v, %v", left, err)
	}
	// A link in the place of a run's folder is not followed.
	if err := os.Symlink(s.outside, filepath.Join(filepath.Dir(folder), "linked")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.tools.Spill("linked", "x", []byte("x")); err == nil {
		t.Error("Spill into a link = nil error")
	}
	before := snapshot(t, s.outside)
	if err := errors.Join(s.tools.Remove("linked"), s.tools.Sweep(func(string) bool { return false })); err != nil {
		t.Errorf("Remove of a link = %v", err)
	}
	if after := snapshot(t, s.outside); after != before {
		t.Error("Remove of a link removed what it leads to")
	}
}

func TestMatchPath(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.go", "a.go", true},
		{"*.go", "a/b.go", false},
		{"**/*.go", "a.go", true},
		{"**/*.go", "a/b/c.go", true},
		{"a/**", "a/b/c", true},
		{"a/**/c", "a/c", true},
		{"a/**/c", "a/b/b/c", true},
		{"a/?/c", "a/é/c", true},
		{"a/?/c", "a/bb/c", false},
		{"a[b]", "a[b]", true},
		{"a[b]", "ab", false},
		{"", "", false},
		{strings.Repeat("*a", 2000), strings.Repeat("a", 2000) + "b", false},
		{strings.Repeat("**/", 1000) + "x", strings.Repeat("a/", 1000) + "y", false},
	} {
		if got := matchPath(test.pattern, test.name); got != test.want {
			t.Errorf("matchPath(%.40q, %.40q) = %v, want %v", test.pattern, test.name, got, test.want)
		}
	}
}

// No path makes a tool read or change what lies outside or on the floor.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"notes.txt", "../outside/secret.md", "in/leaf.txt", "docs/innocent/serve.db", ".env", "run:x", "run:../x", `..\x`, "docs/../..", "out", "*", "**/secret.md", "run:**", ".ſsh/id"} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	top := f.TempDir()
	var s *site
	f.Fuzz(func(t *testing.T, path string, add bool) {
		if s == nil {
			s = newSite(t, nil)
			s.root = filepath.Join(top, "work")
			if err := os.Rename(filepath.Dir(s.outside), filepath.Join(top, "all")); err != nil {
				t.Fatal(err)
			}
			s.root, s.outside = filepath.Join(top, "all", "work"), filepath.Join(top, "all", "outside")
			s.tools.opt.Private = []string{filepath.Join(s.root, "home")}
			s.home = filepath.Join(top, "home")
			if err := os.Mkdir(s.home, 0o700); err != nil {
				t.Fatal(err)
			}
			s.tools.home = s.home
		}
		before := snapshot(t, s.outside)
		for _, call := range []*workflows.ToolCall{
			s.request("read_file", map[string]any{"path": path}),
			s.request("list_directory", map[string]any{"path": path, "recursive": true}),
			s.request("write_file", map[string]any{"path": path, "content": "x", "append": add, "createDirs": true}),
		} {
			out, err := s.tools.Call(t.Context(), call)
			var fault *workflows.ToolError
			if err != nil && !errors.As(err, &fault) {
				t.Fatalf("%s %q = %v, want a *workflows.ToolError", call.Tool, path, err)
			}
			if strings.Contains(out.Text, "canary") || err != nil && strings.Contains(err.Error(), top) {
				t.Fatalf("%s %q = %.300q, %v", call.Tool, path, out.Text, err)
			}
		}
		if after := snapshot(t, s.outside); after != before {
			t.Fatalf("%q changed the folder outside", path)
		}
		for _, floor := range []string{".env", ".ssh/id", "docs/.npmrc", "home/serve.db"} {
			if text, err := os.ReadFile(filepath.Join(s.root, floor)); err != nil || !strings.Contains(string(text), "canary") {
				t.Fatalf("%q changed %s: %q, %v", path, floor, text, err)
			}
		}
	})
}
