package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/workflows"
)

func TestAllowed(t *testing.T) {
	t.Parallel()
	policy := workflows.ToolPolicy{
		AllowedCommands: []string{"go test ./...", "git", "make  all", " ls", "./ci/check --all", "", "echo \"a b\"", "tab\there"},
		AllowedCommandGlobs: []string{
			"go vet ./*", "npm run *", "rg -* src", "tool --out=* x", "c?t a", "* x", "ls ? b", "cat **/x", "n",
		},
	}
	for _, test := range []struct {
		argv []string
		want bool
	}{
		{[]string{"go", "test", "./..."}, true},
		{[]string{"git"}, true},
		{[]string{"./ci/check", "--all"}, true},
		{[]string{"git", "push"}, false},
		{[]string{"git push"}, false},
		{[]string{"go test ./..."}, false},
		{[]string{"go", "test ./..."}, false},
		{[]string{"go", "test"}, false},
		{[]string{"go", "test", "./...", ""}, false},
		{[]string{"go", "test", "./...", "-exec=sh"}, false},
		{[]string{"go", "", "test", "./..."}, false},
		{[]string{"Go", "test", "./..."}, false},
		{[]string{"GO", "TEST", "./..."}, false},
		{[]string{"/usr/bin/go", "test", "./..."}, false},
		{[]string{"./go", "test", "./..."}, false},
		{[]string{"go", "test", "./...\u202e"}, false},
		{[]string{"go", "test", "./...\x00"}, false},
		{[]string{"go", "test", "./...\n"}, false},
		{[]string{"go", "test", "./...\xff"}, false},
		{[]string{"go", "te\u200bst", "./..."}, false},
		{[]string{"go\u00a0test", "./..."}, false},
		{[]string{"make", "", "all"}, false}, // an empty element matches nothing
		{[]string{"make", "all"}, false},     // nor does another number of spaces
		{[]string{"", "ls"}, false},
		{[]string{"ls"}, false},
		{[]string{""}, false},
		{nil, false},
		{[]string{"echo", "\"a", "b\""}, true}, // nothing is quoted
		{[]string{"echo", "a b"}, false},
		{[]string{"tab\there"}, false},
		{[]string{"go", "vet", "./x"}, true},
		{[]string{"go", "vet", "./x/../../y"}, true}, // text is all that a pattern is about
		{[]string{"go", "vet", "x"}, false},
		{[]string{"go", "vet", "./x", "./y"}, false},
		{[]string{"npm", "run", "build"}, true},
		{[]string{"npm", "run", "-g"}, false}, // * is no option
		{[]string{"npm", "run", "--prefix=/x"}, false},
		{[]string{"npm", "run", "a b"}, false},
		{[]string{"npm", "run", ""}, false},
		{[]string{"npm", "install", "x"}, false},
		{[]string{"rg", "-n", "src"}, true},
		{[]string{"rg", "n", "src"}, false},
		{[]string{"tool", "--out=a/b", "x"}, true},
		{[]string{"tool", "--out=", "x"}, true},
		{[]string{"tool", "--ou", "x"}, false},
		{[]string{"cat", "a"}, false}, // the first element takes no wildcard
		{[]string{"c?t", "a"}, false},
		{[]string{"*", "x"}, false},
		{[]string{"rm", "x"}, false},
		{[]string{"ls", "é", "b"}, true},
		{[]string{"ls", "-", "b"}, false},
		{[]string{"cat", "a/b/x"}, true},
		{[]string{"n"}, true},
	} {
		if got := allowed(policy, test.argv); got != test.want {
			t.Errorf("allowed(%q) = %v, want %v", test.argv, got, test.want)
		}
	}
	if allowed(workflows.ToolPolicy{}, []string{"ls"}) {
		t.Error("allowed without a list = true")
	}
}

// What is allowed is, put together by single spaces, a line of the list, or differs
// from a pattern only where the pattern has wildcards.
func FuzzAllowed(f *testing.F) {
	f.Add("go test *", "go", "test", "x")
	f.Add("go -*", "go", "-x", "")
	f.Add("a  b", "a", "", "b")
	f.Add("a ? c", "a", "-", "c")
	f.Fuzz(func(t *testing.T, entry, a, b, c string) {
		argv := slices.DeleteFunc([]string{a, b, c}, func(s string) bool { return s == "\x00" })
		line := strings.Join(argv, " ")
		if allowed(workflows.ToolPolicy{AllowedCommands: []string{entry}}, argv) && (line != entry || len(strings.Fields(line)) != len(argv)) {
			t.Fatalf("%q allows %q", entry, argv)
		}
		if !allowed(workflows.ToolPolicy{AllowedCommandGlobs: []string{entry}}, argv) {
			return
		}
		pattern := strings.Split(entry, " ")
		if len(pattern) != len(argv) || pattern[0] != argv[0] || strings.ContainsAny(pattern[0], "*?") || len(strings.Fields(line)) != len(argv) {
			t.Fatalf("pattern %q allows %q", entry, argv)
		}
		for i := range argv {
			if strings.HasPrefix(argv[i], "-") && !strings.HasPrefix(pattern[i], "-") {
				t.Fatalf("pattern %q allows the option %q", entry, argv[i])
			}
			if !strings.ContainsAny(pattern[i], "*?") && pattern[i] != argv[i] {
				t.Fatalf("pattern %q allows %q", entry, argv)
			}
		}
	})
}

// newBench is a site that may run commands; its PATH has the folder of the program
// tool before the system's.
func newBench(t *testing.T, change func(*Options)) *site {
	t.Helper()
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "tool")); err != nil {
		t.Fatal(err)
	}
	table := child.NewTable(child.TableOptions{Ladder: child.Ladder{Stdin: time.Second, Term: time.Second, Kill: time.Minute}})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := table.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return newSite(t, func(o *Options) {
		o.Children = table
		o.Environ = []string{
			"PATH=" + strings.Join([]string{"relative", "", bin, os.Getenv("PATH")}, string(filepath.ListSeparator)),
			"HOME=" + o.Home, "LANG=C.UTF-8", "CANARY_TOKEN=canary", "GIT_DIR=/nowhere", "LD_PRELOAD=/nowhere.so", "RELAVIUM_ANTHROPIC_API_KEY=canary",
		}
		if change != nil {
			change(o)
		}
	})
}

func TestRunCommand(t *testing.T) {
	t.Parallel()
	s := newBench(t, nil)
	s.workflow.Tools.AllowedCommands = []string{
		"tool show a b", "tool fail", "tool flood", "tool controls", "absent x", "./ci/tool show", "out/evil", "../outside/evil", "ci/absent", s.root + "/ci/tool show", s.outside + "/evil",
		"ci/plain",
	}
	write(t, filepath.Join(s.outside, "evil"), "#!/bin/sh\necho canary")
	write(t, filepath.Join(s.root, "ci", "plain"), "#!/bin/sh\necho canary")
	if err := os.Chmod(filepath.Join(s.outside, "evil"), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := writeProgram(filepath.Join(s.root, "ci", "tool"), self); err != nil {
		t.Fatal(err)
	}
	run := func(words ...string) string {
		t.Helper()
		return s.outcome(t, s.request("run_command", map[string]any{"command": words[0], "args": words[1:]}))
	}
	type result struct {
		ExitCode       int
		Stdout, Stderr string
		DurationMS     int64 `json:"durationMs"`
	}
	parse := func(text string) (r result) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatalf("run_command = %.500q: %v", text, err)
		}
		return r
	}
	var seen struct {
		Args, Env []string
		Dir, Key  string
	}
	for _, words := range [][]string{{"tool", "show", "a", "b"}, {"./ci/tool", "show"}, {s.root + "/ci/tool", "show"}} {
		if err := json.Unmarshal([]byte(parse(run(words...)).Stdout), &seen); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(seen.Args, words[1:]) || seen.Dir != s.root || seen.Key != testRun+"/write/1//0" {
			t.Errorf("%q saw %+v, want its arguments, the workspace and the key", words, seen)
		}
		for _, name := range seen.Env {
			if _, denied := consent.EnvDenied(name); name == "CANARY_TOKEN" || denied && name != "PATH" && name != "HOME" && name != "RELAVIUM_IDEMPOTENCY_KEY" {
				t.Errorf("%q saw the variable %s", words, name)
			}
		}
	}
	if got := parse(run("tool", "fail")); got.ExitCode != 3 || !strings.HasPrefix(got.Stderr, "no \uFFFD good") {
		t.Errorf("tool fail = %+v", got)
	}
	flood := parse(run("tool", "flood"))
	if len(flood.Stdout) > maxOutput+100 || !strings.Contains(flood.Stdout, " bytes left out …\n") || !strings.HasSuffix(flood.Stdout, "the end") || !strings.HasPrefix(flood.Stdout, "0123") {
		t.Errorf("tool flood = %d bytes, want head and tail", len(flood.Stdout))
	}
	if got := run("tool", "controls"); len(got) > maxResult || !strings.Contains(got, "bytes left out") {
		t.Errorf("tool controls = %d bytes, %.100q", len(got), got)
	}
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{"tool"}, `denied: command_not_allowed: the workflow does not list the command "tool"`},
		{[]string{"tool show a b"}, `denied: command_not_allowed: `},
		{[]string{"tool", "show", "a b"}, `denied: command_not_allowed: the workflow does not list the command "tool" "show" "a b"`},
		{[]string{"tool", "show", "a", "b", "\u202e"}, `denied: command_not_allowed: the workflow does not list the command "tool" "show" "a" "b" "\u{202E}"`},
		{[]string{"sh", "-c", "echo"}, `denied: command_not_allowed: `},
		{[]string{"out/evil"}, `denied: command_not_allowed: the program "out/evil" is not inside the workspace`},
		{[]string{"../outside/evil"}, `denied: command_not_allowed: the program "../outside/evil" is not inside the workspace`},
		{[]string{"absent", "x"}, `tool_unavailable: no_program: there is no program "absent"`},
		{[]string{"ci/absent"}, `tool_unavailable: no_program: there is no program "ci/absent"`},
		{[]string{"ci/plain"}, `tool_unavailable: no_program: there is no program "ci/plain"`},
	} {
		if got := run(test.words...); !strings.HasPrefix(got, test.want) {
			t.Errorf("%q = %q, want %q", test.words, got, test.want)
		}
	}
	call := s.request("run_command", map[string]any{"command": s.outside + "/evil"})
	if _, err := s.tools.Call(t.Context(), call); err == nil || !strings.Contains(err.Error(), "not inside the workspace") {
		t.Errorf("run_command of a program outside = %v, want a denial", err)
	}
	admitted, err := s.tools.Check(t.Context(), s.request("run_command", `{"command":"tool","args":["fail"]}`))
	if err != nil || admitted.Repeatable || admitted.Approval || string(admitted.Shown) != `{"command":"tool","args":["fail"]}` {
		t.Errorf("Check = %+v, %v", admitted, err)
	}
	stranger := s.request("run_command", `{"command":"tool","args":["show","a","b"]}`)
	stranger.Principal = "oauth:https://id.example#ann"
	out := s.outcome(t, stranger)
	if err := json.Unmarshal([]byte(parse(out).Stdout), &seen); err != nil || seen.Dir != filepath.Join(s.home, "tmp", testRun) {
		t.Errorf("run_command of another principal ran in %q, %v, want the run's own folder", seen.Dir, err)
	}
}

// writeProgram writes a file that is to be executed while nothing is forked: a child that
// has not come to its own program yet would hold it open, and what is open for writing
// cannot be executed.
func writeProgram(path string, content []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, 0o700)
}

// exists waits until there is a file.
func exists(t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		if _, err := os.Stat(path); err == nil {
			return
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	t.Fatalf("%s does not appear", filepath.Base(path))
}

// A cancel ends the call at once, and the command soon; what a command leaves behind
// ends with it.
func TestRunCommandEnds(t *testing.T) {
	t.Parallel()
	s := newBench(t, nil)
	s.workflow.Tools.AllowedCommandGlobs = []string{"tool wait *", "tool leave *"}
	started := filepath.Join(s.root, "started")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	errs := make(chan error, 1)
	go func() {
		_, err := s.tools.Call(ctx, s.request("run_command", `{"command":"tool","args":["wait","started"]}`))
		errs <- err
	}()
	exists(t, started)
	cancel(errors.New("the run was cancelled"))
	var fault *workflows.ToolError
	if err := <-errs; !errors.As(err, &fault) || fault.Fault != workflows.ToolCancelled {
		t.Errorf("a cancelled run_command = %v, want %s", err, workflows.ToolCancelled)
	}
	if got := s.outcome(t, s.request("run_command", `{"command":"tool","args":["leave","left"]}`)); !strings.HasPrefix(got, `{"exitCode":0,`) {
		t.Errorf("tool leave = %q", got)
	}
	ctx, cancelWait := context.WithTimeout(t.Context(), time.Minute)
	defer cancelWait()
	if err := s.tools.opt.Children.Close(ctx); err != nil {
		t.Errorf("Close = %v", err)
	}
	if living := s.tools.opt.Children.Living(); len(living) > 0 {
		t.Errorf("Living = %+v, want none", living)
	}
}

func TestRunCommandDeadline(t *testing.T) {
	t.Parallel()
	s := newBench(t, nil)
	s.workflow.Tools.AllowedCommands = []string{"tool wait started"}
	s.tools.patience = time.Second
	_, err := s.tools.Call(t.Context(), s.request("run_command", `{"command":"tool","args":["wait","started"]}`))
	var fault *workflows.ToolError
	if !errors.As(err, &fault) || fault.Fault != workflows.ToolFailed || fault.Reason != "deadline" || fault.Limit != time.Second || fault.Retryable || fault.Elapsed < time.Second {
		t.Errorf("run_command of too long = %+v, want a deadline", err)
	}
}

// A program that cannot be executed did not run, so it may be tried again.
func TestRunCommandUnbegun(t *testing.T) {
	t.Parallel()
	s := newBench(t, nil)
	s.workflow.Tools.AllowedCommands = []string{"./broken"}
	if err := writeProgram(filepath.Join(s.root, "broken"), []byte("no program")); err != nil {
		t.Fatal(err)
	}
	_, err := s.tools.Call(t.Context(), s.request("run_command", `{"command":"./broken"}`))
	var fault *workflows.ToolError
	if !errors.As(err, &fault) || fault.Fault != workflows.ToolFailed || fault.Reason != "spawn" || !fault.Retryable {
		t.Errorf("run_command of no program = %v, want one that did not start", err)
	}
}

func TestWritten(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		out   child.Output
		limit int
		want  string
	}{
		{child.Output{Head: []byte("abc")}, 4, "abc"},
		{child.Output{Head: []byte("abc"), Tail: []byte("d")}, 4, "abcd"},
		{child.Output{Head: []byte("abcdef")}, 4, "ab\n… 2 bytes left out …\nef"},
		{child.Output{Head: []byte("abc"), Tail: []byte("def")}, 4, "ab\n… 2 bytes left out …\nef"},
		{child.Output{Head: []byte("ab"), Tail: []byte("ef"), Omitted: 7}, 4, "ab\n… 7 bytes left out …\nef"},
		{child.Output{Head: []byte("abc"), Tail: []byte("def"), Omitted: 7}, 4, "ab\n… 9 bytes left out …\nef"},
		{child.Output{Head: []byte("a\xff")}, 4, "a\uFFFD"},
	} {
		if got := written(test.out, test.limit); got != test.want {
			t.Errorf("written(%q, %q, %d; %d) = %q, want %q", test.out.Head, test.out.Tail, test.out.Omitted, test.limit, got, test.want)
		}
	}
}

func TestRunCommandUnavailable(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.workflow.Tools.AllowedCommands = []string{"tool"}
	if got := s.outcome(t, s.request("run_command", `{"command":"tool"}`)); got != "tool_unavailable: no_commands: commands cannot be started here" {
		t.Errorf("run_command without a table = %q", got)
	}
}
