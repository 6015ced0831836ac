package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait for something that has to happen.
const patience = 60 * time.Second

// anyAnswer lets a test answer gates from a command line without a terminal.
const anyAnswer = `[gates]
accept = ["elicitation", "cli", "cli-noninteractive"]
min_human_ms = 0
`

// An installation is one RELAVIUM_HOME and the folder that its projects stand in.
type installation struct {
	home, dir string
	env       []string // beyond what every process has
}

func install(tb testing.TB, config string) installation {
	tb.Helper()
	dir := tb.TempDir()
	in := installation{home: filepath.Join(dir, "home"), dir: dir}
	if err := os.Mkdir(in.home, 0o700); err != nil {
		tb.Fatal(err)
	}
	write(tb, filepath.Join(in.home, "config.toml"), config)
	return in
}

// A project is a folder with workflow files that uses an installation.
type project struct {
	installation
	dir string
}

// project makes a project whose workflow files are given by name, as in
// "deploy" for .relavium/workflows/deploy.relavium.yaml.
func (in installation) project(tb testing.TB, name string, workflows map[string]string) project {
	tb.Helper()
	p := project{installation: in, dir: filepath.Join(in.dir, name)}
	if err := os.MkdirAll(filepath.Join(p.dir, ".relavium", "workflows"), 0o700); err != nil {
		tb.Fatal(err)
	}
	for id, text := range workflows {
		write(tb, p.file(id), text)
	}
	return p
}

func (p project) file(id string) string {
	return filepath.Join(p.dir, ".relavium", "workflows", id+".relavium.yaml")
}

// command is the binary in the project's folder with an environment of its own:
// nothing of the machine's reaches it but PATH.
func (p project) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = p.dir
	cmd.Env = p.environment()
	return cmd
}

func (p project) environment() []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.home, "USERPROFILE=" + p.home,
		"RELAVIUM_HOME=" + p.home, "NO_COLOR=1", "LANG=C.UTF-8",
		"SystemRoot=" + os.Getenv("SystemRoot"), "TMPDIR=" + os.TempDir(), "TEMP=" + os.TempDir(),
	}, p.env...)
}

// cli runs one command to its end and returns what it printed and its exit code.
func (p project) cli(tb testing.TB, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	cmd := p.command(ctx, args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else if err != nil {
		tb.Errorf("relavium-serve %s: %v", strings.Join(args, " "), err)
		code = -1
	}
	return out.String(), diag.String(), code
}

// ok is cli for a command that must exit 0.
func (p project) ok(tb testing.TB, args ...string) string {
	tb.Helper()
	stdout, stderr, code := p.cli(tb, args...)
	if code != 0 {
		tb.Fatalf("relavium-serve %s: exit %d, want 0\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// A run is what runs list --json and runs show --json print of one run.
type run struct {
	ID       string          `json:"id"`
	Project  string          `json:"project"`
	Workflow string          `json:"workflow"`
	State    string          `json:"state"`
	Reason   string          `json:"reason"`
	Outputs  json.RawMessage `json:"outputs"`
}

// runs lists the project's own runs, newest first.
func (p project) runs(tb testing.TB) []run {
	tb.Helper()
	var list []run
	decode(tb, []byte(p.ok(tb, "runs", "list", "--here", "--limit", "1000", "--json")), &list)
	for i := range list {
		list[i].Outputs = compact(tb, list[i].Outputs)
	}
	return list
}

func (p project) show(tb testing.TB, id string) run {
	tb.Helper()
	var r run
	decode(tb, []byte(p.ok(tb, "runs", "show", id, "--json")), &r)
	r.Outputs = compact(tb, r.Outputs)
	return r
}

// await polls a run until it is in one of the states.
func (p project) await(tb testing.TB, id string, states ...string) run {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		r := p.show(tb, id)
		if slices.Contains(states, r.State) {
			return r
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			tb.Fatalf("run %s is %q (%s), want one of %q", id, r.State, r.Reason, states)
		}
	}
}

// approve answers the run's one open gate from a command line off a terminal.
func (p project) approve(tb testing.TB, id string) {
	tb.Helper()
	p.ok(tb, "gate", "approve", id, "--yes", "--comment", "by a test")
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// compact drops the indentation that a person reads by.
func compact(tb testing.TB, raw json.RawMessage) json.RawMessage {
	tb.Helper()
	if len(raw) == 0 {
		return raw
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func decode(tb testing.TB, raw []byte, v any) {
	tb.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		tb.Fatalf("not JSON: %v\n%s", err, raw)
	}
}
