package builtin

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newRepository is a site whose workspace is a git repository with one commit.
func newRepository(t *testing.T) *site {
	t.Helper()
	s := newBench(t, func(o *Options) { o.Author = Identity{Name: "Heron Bot", Email: "heron@example.org"} })
	s.git(t, s.root, "init", "-q", "-b", "main")
	s.git(t, s.root, "add", "notes.txt", "docs/long name.md")
	s.git(t, s.root, "commit", "-q", "-m", "first")
	return s
}

// git runs git as a person would.
func (s *site) git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.org", "GIT_COMMITTER_NAME=Ann", "GIT_COMMITTER_EMAIL=ann@example.org")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (s *site) status(t *testing.T, subcommand string) string {
	t.Helper()
	got := s.outcome(t, s.request("git_status", map[string]any{"subcommand": subcommand}))
	var out struct{ Output string }
	if !strings.HasPrefix(got, "{") {
		return got
	}
	if err := json.Unmarshal([]byte(got), &out); err != nil {
		t.Fatal(err)
	}
	return out.Output
}

func (s *site) commit(t *testing.T, approval string, args any) string {
	t.Helper()
	c := s.request("git_commit", args)
	c.Approval = approval
	return s.outcome(t, c)
}

func TestGitStatus(t *testing.T) {
	t.Parallel()
	s := newRepository(t)
	s.git(t, s.root, "add", "-f", ".env", ".ssh/id", "home/serve.db")
	s.git(t, s.root, "commit", "-q", "-m", "second\n\nwith a body")
	for _, path := range []string{"notes.txt", ".env", ".ssh/id", "home/serve.db"} {
		write(t, filepath.Join(s.root, path), "changed canary of "+path+"\n")
	}
	write(t, filepath.Join(s.root, "notes.txt"), "three\n")
	write(t, filepath.Join(s.root, "größe.txt"), "3")
	if got := s.status(t, "status"); !strings.Contains(got, "?? größe.txt\n") || !strings.HasPrefix(got, "## main\n") || !strings.Contains(got, " M notes.txt\n") || !strings.Contains(got, "?? plain.txt\n") {
		t.Errorf("git_status status = %q", got)
	}
	if got := s.status(t, "log"); !strings.Contains(got, "Author: Ann <ann@example.org>") || !strings.Contains(got, "    with a body") || strings.Count(got, "commit ") != 2 {
		t.Errorf("git_status log = %q", got)
	}
	if got := s.status(t, "diff"); !strings.Contains(got, "-one, two") || !strings.Contains(got, "+three") || strings.Contains(got, "canary") {
		t.Errorf("git_status diff = %q, want the change of notes.txt alone", got)
	}
	for _, subcommand := range []string{"push", "log --all", "", "STATUS"} {
		if got := s.status(t, subcommand); got != `incorrect: argument "subcommand": want status, log or diff` {
			t.Errorf("git_status %q = %q", subcommand, got)
		}
	}
	left, err := filepath.Glob(filepath.Join(s.home, "tmp", "*"))
	if more, _ := filepath.Glob(filepath.Join(s.home, "tmp", ".*")); err != nil || len(left)+len(more) > 0 {
		t.Errorf("git_status left %q, %q, %v", left, more, err)
	}
}

func TestGitStatusWithoutCommits(t *testing.T) {
	t.Parallel()
	s := newBench(t, nil)
	if got := s.status(t, "status"); !strings.HasPrefix(got, "error: git failed with exit code 128: fatal: not a git repository") {
		t.Errorf("git_status outside a repository = %q", got)
	}
	s.git(t, s.root, "init", "-q", "-b", "main")
	s.git(t, s.root, "add", "notes.txt")
	if got := s.status(t, "diff"); !strings.Contains(got, "+one, two") {
		t.Errorf("git_status diff before the first commit = %q", got)
	}
	if got := s.status(t, "log"); !strings.HasPrefix(got, "error: git failed with exit code 128: fatal: your current branch") {
		t.Errorf("git_status log before the first commit = %q", got)
	}
}

// Nothing that a repository's configuration or files name is ever executed.
func TestGitExecutesNothing(t *testing.T) {
	t.Parallel()
	trap := func(s *site) string {
		path := filepath.Join(s.outside, "trap")
		script := fmt.Sprintf("#!/bin/sh\necho ran >> %q\ncat\n", filepath.Join(s.outside, "ran"))
		write(t, path, script)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		key     string // set to the trap
		refused string // the key that the refusal names; "" means that git goes on
	}{
		{"core.fsmonitor", ""},
		{"core.pager", ""},
		{"pager.diff", ""},
		{"pager.status", ""},
		{"core.editor", ""},
		{"core.sshCommand", ""},
		{"core.askPass", ""},
		{"diff.external", ""},
		{"gpg.program", ""},
		{"gpg.ssh.program", ""},
		{"credential.helper", ""},
		{"alias.status", ""},
		{"alias.commit", ""},
		{"sequence.editor", ""},
		{"filter.x.clean", "filter.x.clean"},
		{"Filter.x.Smudge", "filter.x.smudge"},
		{"filter.a b.process", "filter.a b.process"},
		{"diff.x.command", "diff.x.command"},
		{"diff.x.textconv", "diff.x.textconv"},
		{"merge.x.driver", "merge.x.driver"},
	} {
		t.Run(test.key, func(t *testing.T) {
			t.Parallel()
			s := newRepository(t)
			path := trap(s)
			s.git(t, s.root, "config", test.key, path)
			s.git(t, s.root, "config", "commit.gpgSign", "true")
			s.git(t, s.root, "config", "log.showSignature", "true")
			write(t, filepath.Join(s.root, ".gitattributes"), "* filter=x diff=x merge=x\n")
			for _, hook := range []string{"pre-commit", "commit-msg", "prepare-commit-msg", "post-commit", "post-index-change", "fsmonitor-watchman", "reference-transaction", "pre-auto-gc"} {
				if err := os.Symlink(path, filepath.Join(s.root, ".git", "hooks", hook)); err != nil {
					t.Fatal(err)
				}
			}
			write(t, filepath.Join(s.root, "notes.txt"), "three\n")
			outcomes := []string{
				s.status(t, "status"), s.status(t, "diff"), s.status(t, "log"), s.commit(t, "gate-1", `{"message":"x","paths":["notes.txt"]}`),
			}
			for i, got := range outcomes {
				want := ""
				if test.refused != "" {
					want = fmt.Sprintf("denied: repository_not_allowed: the repository's configuration defines a driver that git would run: %q", test.refused)
				}
				if test.refused != "" && got != want || test.refused == "" && (strings.HasPrefix(got, "denied") || strings.HasPrefix(got, "error")) {
					t.Errorf("call %d = %q, want %q", i, got, want)
				}
			}
			if ran, err := os.ReadFile(filepath.Join(s.outside, "ran")); err == nil {
				t.Errorf("the trap ran: %s", ran)
			}
		})
	}
}

func TestGitRefusesRepositories(t *testing.T) {
	t.Parallel()
	s := newRepository(t)
	included := filepath.Join(s.outside, "more.config")
	write(t, included, "[filter \"lfs\"]\n\tclean = true\n")
	s.git(t, s.root, "config", "include.path", included)
	if got := s.status(t, "status"); got != `denied: repository_not_allowed: the repository's configuration defines a driver that git would run: "filter.lfs.clean"` {
		t.Errorf("git_status with an included driver = %q", got)
	}
	s.git(t, s.root, "config", "--unset", "include.path")
	if got := s.status(t, "status"); !strings.HasPrefix(got, "## main") {
		t.Errorf("git_status = %q", got)
	}
	s.git(t, s.root, "config", "core.worktree", s.outside)
	if got := s.status(t, "status"); !strings.HasPrefix(got, "denied: repository_not_allowed: ") && !strings.HasPrefix(got, "error: git failed") {
		t.Errorf("git_status with core.worktree = %q", got)
	}
	// A bare repository among the files is none that git may be run in.
	bare := newBench(t, nil)
	bare.git(t, bare.root, "init", "-q", "--bare", ".")
	if got := bare.status(t, "status"); !strings.HasPrefix(got, "error: git failed") {
		t.Errorf("git_status in a bare repository = %q", got)
	}
}

func TestGitCommit(t *testing.T) {
	t.Parallel()
	s := newRepository(t)
	write(t, filepath.Join(s.root, "notes.txt"), "three\n")
	write(t, filepath.Join(s.root, "docs/long name.md"), "# Egret\n")
	admitted, err := s.tools.Check(t.Context(), s.request("git_commit", `{"message":"x"}`))
	if err != nil || !admitted.Approval || admitted.Repeatable {
		t.Errorf("Check(git_commit) = %+v, %v, want one that needs an approval", admitted, err)
	}
	if got := s.commit(t, "", `{"message":"x"}`); !strings.HasPrefix(got, "denied: gate_required: ") {
		t.Errorf("git_commit without an approval = %q", got)
	}
	if got := s.commit(t, "g", `{"message":"x"}`); !strings.HasPrefix(got, "error: git failed with exit code 1: ") {
		t.Errorf("git_commit of nothing = %q", got)
	}
	for _, args := range []string{
		`{"message":"x","paths":["../outside/secret.md"]}`, `{"message":"x","paths":["/etc/passwd"]}`, `{"message":"x","paths":[".env"]}`,
	} {
		if got := s.commit(t, "g", args); !strings.HasPrefix(got, "denied: path_not_allowed: ") {
			t.Errorf("git_commit %s = %q", args, got)
		}
	}
	for _, args := range []string{
		`{"message":"x","paths":[":(top)notes.txt"]}`, `{"message":"x","paths":[":/"]}`, `{"message":"x","paths":["*.txt"]}`, `{"message":"x","paths":["plain.txt"]}`,
		`{"message":"x","paths":["--amend"]}`, `{"message":"x","paths":["--all"]}`,
	} {
		if got := s.commit(t, "g", args); !strings.HasPrefix(got, "error: git failed with exit code 1: error: pathspec ") {
			t.Errorf("git_commit %s = %q", args, got)
		}
	}
	for _, args := range []string{`{"message":""}`, `{"message":" \n "}`, `{"message":"a\u0000b"}`} {
		if got := s.commit(t, "g", args); got != `incorrect: argument "message": want a text` {
			t.Errorf("git_commit %s = %q", args, got)
		}
	}
	got := s.commit(t, "g", `{"message":"# third\n\n--amend\nScissors: no","paths":["notes.txt"]}`)
	if !strings.HasPrefix(got, `{"commit":"`) || len(got) != len(`{"commit":""}`)+40 {
		t.Fatalf("git_commit = %q", got)
	}
	if said := s.git(t, s.root, "log", "-1", "--format=%an <%ae> %cn <%ce>%n%B"); said != "Heron Bot <heron@example.org> Heron Bot <heron@example.org>\n# third\n\n--amend\nScissors: no\n\n" {
		t.Errorf("the commit is %q", said)
	}
	if left := s.git(t, s.root, "status", "--short", "-uno"); left != " M \"docs/long name.md\"\n" {
		t.Errorf("after the commit there is %q, want the other change", left)
	}
	s.git(t, s.root, "add", "docs/long name.md")
	if got := s.commit(t, "g", `{"message":"staged"}`); !strings.HasPrefix(got, `{"commit":"`) {
		t.Errorf("git_commit of what is staged = %q", got)
	}
	if n := strings.TrimSpace(s.git(t, s.root, "rev-list", "--count", "HEAD")); n != "3" {
		t.Errorf("there are %s commits, want 3", n)
	}
}

func TestGitUnavailable(t *testing.T) {
	t.Parallel()
	s := newBench(t, nil)
	s.git(t, s.root, "init", "-q")
	if got := s.commit(t, "g", `{"message":"x"}`); got != "tool_unavailable: no_author: config.toml names no author of commits" {
		t.Errorf("git_commit without an author = %q", got)
	}
	s.tools.opt.Environ = nil
	if got := s.status(t, "status"); got != "tool_unavailable: no_program: git is not installed" {
		t.Errorf("git_status without git = %q", got)
	}
}
