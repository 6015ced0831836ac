package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine/expr"
	"github.com/relavium/relavium-serve/workflows"
)

func (a *app) validateCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "validate PATH...",
		Short:   "Check workflow and agent files and report every problem",
		Example: "  relavium-serve validate examples/workflows",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			return a.validate(cmd.Context(), paths, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the problems as one JSON array")
	return cmd
}

// A finding is a problem as validate shows it.
type finding struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Rule   string `json:"rule,omitempty"`
	Class  string `json:"class"`
	Where  string `json:"where,omitempty"`
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

func (f *finding) String() string {
	parts := []string{fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)}
	for _, part := range []string{f.Where, f.What, f.Remedy} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	text := strings.Join(parts, ": ")
	if f.Class == workflows.ClassWarning {
		return text + " (warning)"
	}
	return text
}

func (a *app) validate(ctx context.Context, paths []string, asJSON bool) error {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	found, files := []finding{}, 0
	opt := at.advised(ctx, at.loaderOptions())
	for _, path := range paths {
		more, n, err := at.check(path, opt)
		if err != nil {
			return err
		}
		found, files = append(found, more...), files+n
	}
	faults := 0
	for i := range found {
		if found[i].Class != workflows.ClassWarning {
			faults++
		}
	}
	if asJSON {
		err = a.json(found)
	} else {
		err = a.printFindings(found, files, faults)
	}
	if err == nil && faults > 0 {
		return silent(exitFault)
	}
	return err
}

func (a *app) printFindings(found []finding, files, faults int) error {
	for i := range found {
		if _, err := io.WriteString(a.stdout, plain(found[i].String())+"\n"); err != nil {
			return err
		}
	}
	outcome := count(faults, "problem")
	if warnings := len(found) - faults; warnings > 0 {
		outcome += ", " + count(warnings, "warning")
	}
	_, err := fmt.Fprintf(a.stderr, "%s checked, %s\n", count(files, "file"), outcome)
	return err
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// check returns all problems and warnings of a file, or of every workflow and
// agent file below a folder, and how many files it looked at.
func (at *site) check(path string, opt workflows.Options) (found []finding, files int, err error) {
	full := path
	if !filepath.IsAbs(full) {
		full = filepath.Join(at.cwd, full)
	}
	about, err := os.Stat(full)
	switch {
	case err != nil:
		return nil, 0, invalid("", "%s: no such file or folder", path)
	case about.IsDir():
		return at.checkFolder(full, opt)
	case strings.HasSuffix(full, ".agent.yaml"):
		found, err = at.checkAgent(full, opt)
	default:
		found, err = at.checkWorkflow(full, opt)
	}
	return found, 1, err
}

func (at *site) checkFolder(folder string, opt workflows.Options) (found []finding, files int, err error) {
	catalog, err := workflows.Load([]workflows.Source{{Dir: folder, Root: folder}}, opt)
	twice, several := errors.AsType[workflows.Problems](err)
	if err != nil && !several {
		return nil, 0, &fault{code: exitFault, err: err}
	}
	paths := make(map[string]string) // by name in messages
	for _, broken := range catalog.Broken {
		found = append(found, at.findings(broken.Path, broken.Problems)...)
	}
	var late []finding
	for _, loaded := range catalog.Workflows {
		paths[loaded.Workflow.File] = loaded.Path
		late = append(late, checkExpressions(at.shown(loaded.Path, loaded.Workflow.File), loaded.Workflow)...)
	}
	for i := range twice {
		found = append(found, at.findings(paths[twice[i].File], twice[i:i+1])...)
	}
	for i := range catalog.Warnings {
		warning := catalog.Warnings[i : i+1]
		found = append(found, at.findings(paths[warning[0].File], warning)...)
	}
	return append(found, late...), len(catalog.Workflows) + catalog.Agents + len(catalog.Broken), nil
}

func (at *site) checkAgent(path string, opt workflows.Options) ([]finding, error) {
	src, err := readSource(path)
	if err != nil {
		return nil, invalid("", "%s: cannot be read", filepath.Base(path))
	}
	_, warnings, err := workflows.ParseAgent(at.shown(path, filepath.Base(path)), src, opt)
	return at.outcomes(path, warnings, err)
}

func (at *site) checkWorkflow(path string, opt workflows.Options) ([]finding, error) {
	loaded, warnings, err := workflows.LoadFile(path, opt)
	found, err := at.outcomes(path, warnings, err)
	if err == nil && loaded.Workflow != nil {
		found = append(found, checkExpressions(at.shown(path, loaded.Workflow.File), loaded.Workflow)...)
	}
	return found, err
}

// outcomes are the findings of one file; an error that is no problem of the file
// stays one.
func (at *site) outcomes(path string, warnings workflows.Problems, err error) ([]finding, error) {
	problems, refused := errors.AsType[workflows.Problems](err)
	if err != nil && !refused {
		return nil, &fault{code: exitFault, err: err}
	}
	return append(at.findings(path, problems), at.findings(path, warnings)...), nil
}

func (at *site) findings(path string, problems workflows.Problems) []finding {
	var found []finding
	for i := range problems {
		p := &problems[i]
		found = append(found, finding{at.shown(path, p.File), p.Line, p.Col, p.Rule, p.Class, p.Where, p.What, p.Remedy})
	}
	return found
}

// shown is a file as seen from the working directory, if it is below it; else as
// the loader calls it.
func (at *site) shown(path, file string) string {
	rel, err := filepath.Rel(realPath(at.cwd), realPath(path))
	if path == "" || err != nil || !filepath.IsLocal(rel) || filepath.Base(rel) != filepath.Base(file) {
		return file
	}
	return filepath.ToSlash(rel)
}

// maxSource is the most bytes that are read of an agent file; the loader refuses
// what is larger than its own cap.
const maxSource = 8 << 20

func readSource(path string) ([]byte, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	src, err := io.ReadAll(io.LimitReader(file, maxSource))
	return src, errors.Join(err, file.Close())
}

// checkExpressions warns of expressions that are not JavaScript. The engine finds
// them only when the node runs.
func checkExpressions(file string, w *workflows.Workflow) []finding {
	var found []finding
	for _, e := range w.Expressions() {
		if expr.Compile(e.Source) == nil {
			continue
		}
		found = append(found, finding{
			File: file, Line: e.Line, Column: e.Col, Class: workflows.ClassWarning, Where: e.Where,
			What: "the expression does not compile", Remedy: "correct it: the node fails with sandbox_error when it runs",
		})
	}
	return found
}

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "schema workflow|agent|config",
		Short:     "Print the JSON Schema of a kind of file, for editors",
		Example:   "  relavium-serve schema workflow > relavium.schema.json",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"workflow", "agent", "config"},
		RunE: func(_ *cobra.Command, args []string) error {
			a.entered = true
			schema, err := workflows.Schema(args[0])
			if err != nil {
				return err
			}
			return a.json(json.RawMessage(schema))
		},
	}
}

func (a *app) graphCommand() *cobra.Command {
	var folders []string
	cmd := &cobra.Command{
		Use:     "graph ID|PATH",
		Short:   "Draw a workflow as a Mermaid flowchart",
		Example: "  relavium-serve graph examples/workflows/deploy.relavium.yaml > deploy.mmd",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			loaded, err := at.find(args[0], folders)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.stdout, strings.TrimRight(loaded.Workflow.Mermaid(), "\n")+"\n")
			return err
		},
	}
	workflowFlag(cmd, &folders)
	return cmd
}

func workflowFlag(cmd *cobra.Command, folders *[]string) {
	cmd.Flags().StringArrayVar(folders, "workflows", nil, "look for workflow files in this folder too (repeatable)")
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this build",
		Example: "  relavium-serve version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			a.entered = true
			v := readVersion()
			if asJSON {
				return a.json(v)
			}
			_, err := fmt.Fprintf(a.stdout, "relavium-serve %s %s\n", v.Version, v.Go)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// A version names a build.
type version struct {
	Version  string `json:"version"` // of the module, or "devel"
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes
	Go       string `json:"go"`
}

func readVersion() version {
	v := version{Version: "devel", Go: "unknown"}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Go = build.GoVersion
	if build.Main.Version != "" && build.Main.Version != "(devel)" {
		v.Version = build.Main.Version
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			v.Revision = setting.Value
		case "vcs.modified":
			v.Modified = setting.Value == "true"
		}
	}
	return v
}
