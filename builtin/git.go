package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound/child"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of the git tools.
const (
	maxGit       = time.Minute
	maxGitConfig = 1 << 20
	maxMessage   = 64 << 10
	maxPathspecs = 256
	commitsInLog = "50"
)

func (t *Tools) gitStatus() *tool {
	return &tool{
		id: "git_status",
		about: "Shows the state of the git repository of the workspace, without changing it: status (branch, changed and untracked files, in short form), " +
			"log (the last 50 commits that touch the workspace) or diff (all changes of tracked files since the last commit, staged or not). " +
			"Files that may hold credentials are left out of a diff. Returns output.",
		params: []param{{
			name: "subcommand", schema: `{"type":"string","enum":["status","log","diff"]}`, about: "what to show", required: true,
		}},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			subcommand := a.text("subcommand", 16)
			if a.err == nil && !slices.Contains([]string{"status", "log", "diff"}, subcommand) {
				a.wrong("subcommand", "status, log or diff")
			}
			if a.err != nil {
				return plan{}, a.err
			}
			if err := t.gitReady(); err != nil {
				return plan{}, err
			}
			return plan{
				Admission: workflows.Admission{Repeatable: true},
				perform:   func(ctx context.Context) (json.RawMessage, error) { return t.inspect(ctx, c, subcommand) },
			}, nil
		},
	}
}

func (t *Tools) gitCommit() *tool {
	return &tool{
		id: "git_commit",
		about: "Makes one commit in the git repository of the workspace. Without paths it commits what is staged; with paths it commits those files as they are now, which must be tracked. " +
			"It never stages a new file, and runs no hooks. A person must have approved it at a gate before this node, and each approval is for one commit. Returns the commit's id.",
		params: []param{
			{name: "message", schema: `{"type":"string","minLength":1}`, about: "the commit's message: a subject line, and after an empty line more", required: true},
			{name: "paths", schema: `{"type":"array","items":{"type":"string"}}`, about: "tracked files or folders of the workspace to commit; what is staged if absent"},
		},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			message, paths := a.text("message", maxMessage), a.texts("paths", maxPathspecs)
			if a.err == nil && (strings.TrimSpace(message) == "" || strings.ContainsRune(message, 0)) {
				a.wrong("message", "a text")
			}
			if a.err != nil {
				return plan{}, a.err
			}
			for _, path := range paths {
				if err := checkPath(path); err != nil {
					return plan{}, err
				}
			}
			if err := t.gitReady(); err != nil {
				return plan{}, err
			}
			if who := t.opt.Author; who.Name == "" || who.Email == "" || strings.ContainsAny(who.Name+who.Email, "<>\n\x00") {
				return plan{}, unavailable("no_author", "config.toml names no author of commits", nil)
			}
			return plan{
				Admission: workflows.Admission{Approval: true},
				perform: func(ctx context.Context) (json.RawMessage, error) {
					if c.Approval == "" {
						return nil, denied(reasonGate, "a commit needs an approval by a person at a gate before this node; each approval is for one commit")
					}
					return t.commit(ctx, c, message, paths)
				},
			}, nil
		},
	}
}

// gitReady tells whether git can be run at all.
func (t *Tools) gitReady() error {
	if t.opt.Children == nil {
		return unavailable("no_commands", "commands cannot be started here", nil)
	}
	if _, err := consent.Resolve("git", t.home, t.getenv); err != nil {
		return unavailable("no_program", "git is not installed", err)
	}
	return nil
}

// A repository is one that git may be run in: nothing of its configuration names a
// program that git would start.
type repository struct {
	t     *Tools
	root  string // of the workspace, real
	hooks string // an empty folder
}

// withRepository checks the repository of the workspace and hands it to use.
func (t *Tools) withRepository(ctx context.Context, c *workflows.ToolCall, use func(*repository) (json.RawMessage, error)) (out json.RawMessage, err error) {
	root, err := filepath.EvalSymlinks(c.Root)
	if err != nil {
		return nil, failed("workspace", "the workspace cannot be opened", err)
	}
	temp := filepath.Join(t.home, tempFolder)
	if err := os.Mkdir(temp, 0o700); err != nil && !os.IsExist(err) {
		return nil, failed("run_folder", "the folder of runs cannot be made", err)
	}
	hooks, err := os.MkdirTemp(temp, hooksPrefix)
	if err != nil {
		return nil, failed("run_folder", "an empty folder cannot be made", err)
	}
	defer func() {
		if removeErr := os.Remove(hooks); err == nil && removeErr != nil { // it must have stayed empty
			err = failed("run_folder", "the folder for hooks did not stay empty", removeErr)
		}
	}()
	r := &repository{t: t, root: root, hooks: hooks}
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	return use(r)
}

// run runs git with arguments, hardened: nothing that the repository's configuration
// names is executed, nothing is fetched, nobody is asked.
func (r *repository) run(ctx context.Context, stdin string, args ...string) (*child.Result, error) {
	path, err := consent.Resolve("git", r.root, r.t.getenv)
	if err != nil {
		return nil, unavailable("no_program", "git is not installed", err)
	}
	hardened := []string{"--no-pager"}
	for _, setting := range []string{
		"core.fsmonitor=false", "core.hooksPath=" + r.hooks, "core.pager=cat", "diff.external=", "core.sshCommand=false",
		"protocol.allow=never", "commit.gpgSign=false", "log.showSignature=false", "core.editor=false", "core.askPass=", "credential.helper=",
		"core.attributesFile=" + os.DevNull, "safe.bareRepository=explicit", "submodule.recurse=false", "core.quotePath=false", "gc.auto=0", "maintenance.auto=false",
		"i18n.commitEncoding=UTF-8", "i18n.logOutputEncoding=UTF-8",
	} {
		hardened = append(hardened, "-c", setting)
	}
	var own []child.Variable
	for name, value := range map[string]string{
		"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.DevNull, "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
		"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ASKPASS": "", "LC_ALL": "C",
		"GIT_AUTHOR_NAME": r.t.opt.Author.Name, "GIT_AUTHOR_EMAIL": r.t.opt.Author.Email,
		"GIT_COMMITTER_NAME": r.t.opt.Author.Name, "GIT_COMMITTER_EMAIL": r.t.opt.Author.Email,
	} {
		own = append(own, child.Variable{Name: name, Value: []byte(value)})
	}
	return r.t.start(ctx, child.Spec{Path: path, Args: append(hardened, args...), Dir: r.root},
		child.Bounds{Stdin: []byte(stdin), Timeout: maxGit, Stdout: maxGitConfig, Stderr: 16 << 10}, own...)
}

// ask is run for output that is needed whole. git's own complaint is a report.
func (r *repository) ask(ctx context.Context, args ...string) (string, error) {
	out, err := r.run(ctx, "", args...)
	if err != nil {
		return "", err
	}
	if out.Exit.Code != 0 {
		return "", r.complaint(out)
	}
	if out.Stdout.Omitted > 0 {
		return "", report("git says more than can be read")
	}
	return string(out.Stdout.Head) + string(out.Stdout.Tail), nil
}

// complaint is what git said of its failure, without where the workspace is.
func (r *repository) complaint(out *child.Result) error {
	said := strings.TrimSpace(written(out.Stderr, 2<<10) + "\n" + written(out.Stdout, 2<<10))
	said = strings.NewReplacer(r.root, ".", r.t.home, "~").Replace(said)
	return report(fmt.Sprintf("git failed with exit code %d: %s", out.Exit.Code, text.Cut(text.Clean(said), 4<<10)))
}

// check refuses a workspace that is in no repository, and a repository whose
// configuration defines filter, diff or merge drivers: git runs those.
func (r *repository) check(ctx context.Context) error {
	top, err := r.ask(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	if at, err := filepath.EvalSymlinks(filepath.FromSlash(strings.TrimRight(top, "\r\n"))); err != nil || !below(r.root, at) {
		return denied(reasonRepository, "the repository keeps its files somewhere else (core.worktree)")
	}
	list, err := r.ask(ctx, "config", "--list", "--includes", "--show-scope", "--name-only", "-z")
	if err != nil {
		return err
	}
	fields := strings.Split(list, "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		scope, key := fields[i], fields[i+1]
		if scope != "command" && namesDriver(key) {
			return denied(reasonRepository, "the repository's configuration defines a driver that git would run: %s", text.Quote(key, 100))
		}
	}
	return nil
}

// namesDriver tells whether a key is one of filter.*, diff.* or merge.* with a name
// in between.
func namesDriver(key string) bool {
	section, rest, _ := strings.Cut(key, ".")
	switch strings.ToLower(section) {
	case "filter", "diff", "merge":
		return strings.Contains(rest, ".")
	}
	return false
}

// inspect runs one of the commands that only look.
func (t *Tools) inspect(ctx context.Context, c *workflows.ToolCall, subcommand string) (json.RawMessage, error) {
	return t.withRepository(ctx, c, func(r *repository) (json.RawMessage, error) {
		var args []string
		switch subcommand {
		case "status":
			args = []string{"status", "--short", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty", "--", "."}
		case "log":
			args = []string{
				"log", "--no-color", "--no-ext-diff", "--no-textconv", "--no-show-signature", "--no-mailmap", "--no-patch",
				"--format=medium", "--date=iso-strict", "-n", commitsInLog, "--", ".",
			}
		case "diff":
			args = []string{"diff", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--no-relative"}
			head, err := r.run(ctx, "", "rev-parse", "--verify", "--quiet", "HEAD")
			if err != nil {
				return nil, err
			}
			if head.Exit.Code == 0 {
				args = append(args, "HEAD")
			} else {
				args = append(args, "--cached") // nothing is committed yet
			}
			args = append(append(args, "--", "."), r.withoutFloor()...)
		}
		out, err := r.run(ctx, "", args...)
		if err != nil {
			return nil, err
		}
		if out.Exit.Code != 0 {
			return nil, r.complaint(out)
		}
		return object(field{"subcommand", subcommand}, field{"output", written(out.Stdout, maxOutput)})
	})
}

// withoutFloor are the pathspecs that leave out of a diff what is never read.
func (r *repository) withoutFloor() []string {
	var specs []string
	for _, name := range []string{
		".ssh", ".relavium", ".aws", ".kube", ".azure", ".env", ".env.*", ".envrc", ".gitconfig", ".git-credentials", ".netrc", ".npmrc", ".pypirc",
		".pgpass", ".dockercfg", ".docker/config.json", ".config/git/credentials", ".config/gcloud",
	} {
		specs = append(specs, ":(exclude,icase,glob)**/"+name, ":(exclude,icase,glob)**/"+name+"/**")
	}
	for _, private := range append([]string{r.t.home}, r.t.opt.Private...) {
		target, err := filepath.EvalSymlinks(private)
		if err != nil || !below(target, r.root) {
			continue
		}
		if rel, err := filepath.Rel(r.root, target); err == nil && rel != "." {
			specs = append(specs, ":(exclude,literal)"+filepath.ToSlash(rel))
		}
	}
	return specs
}

// commit makes the commit.
func (t *Tools) commit(ctx context.Context, c *workflows.ToolCall, message string, paths []string) (json.RawMessage, error) {
	return t.withRepository(ctx, c, func(r *repository) (json.RawMessage, error) {
		args := []string{
			"--literal-pathspecs", "commit", "--quiet", "--no-verify", "--no-gpg-sign", "--no-status", "--no-edit", "--cleanup=whitespace", "-F", "-",
		}
		if len(paths) > 0 {
			args = append(append(args, "--"), paths...)
		}
		out, err := r.run(ctx, message, args...)
		if err != nil {
			return nil, err
		}
		if out.Exit.Code != 0 {
			return nil, r.complaint(out)
		}
		id, err := r.ask(ctx, "rev-parse", "HEAD")
		if err != nil {
			return nil, failed("git", "the commit was made, and its id cannot be told", err)
		}
		return object(field{"commit", strings.TrimSpace(id)})
	})
}
