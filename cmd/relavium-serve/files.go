package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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
		Example: "  relavium-serve validate .relavium examples/workflows/deploy.relavium.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, paths []string) error {
			return a.validate(paths, asJSON)
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
	if f.Class == "warning" {
		return text + " (warning)"
	}
	return text
}

func (a *app) validate(paths []string, asJSON bool) error {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	files, err := at.filesBelow(paths)
	if err != nil {
		return err
	}
	found, faults := []finding{}, 0
	for _, file := range files {
		for _, one := range at.check(file) {
			found = append(found, one)
			if one.Class != "warning" {
				faults++
			}
		}
	}
	if asJSON {
		err = a.json(found)
	} else {
		err = a.printFindings(found, len(files), faults)
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
	_, err := fmt.Fprintf(a.stderr, "%s checked, %s\n", count(files, "file"), count(faults, "problem"))
	return err
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// filesBelow lists the workflow and agent files among paths and below folders,
// in the order of their names. A path that is named itself counts whatever its name.
func (at *site) filesBelow(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		full := path
		if !filepath.IsAbs(full) {
			full = filepath.Join(at.cwd, full)
		}
		about, err := os.Stat(full)
		if err != nil {
			return nil, invalid("", "%s: no such file or folder", path)
		}
		if !about.IsDir() {
			files = append(files, full)
			continue
		}
		err = filepath.WalkDir(full, func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if entry.Type().IsRegular() && (isWorkflow(name) || isAgent(name)) {
				files = append(files, name)
			}
			return nil
		})
		if err != nil {
			return nil, invalid("", "%s: cannot be read", path)
		}
	}
	if len(files) == 0 {
		return nil, invalid("workflow files end in .relavium.yaml, agent files in .agent.yaml", "no file to check")
	}
	return files, nil
}

func isWorkflow(name string) bool { return strings.HasSuffix(name, ".relavium.yaml") }

func isAgent(name string) bool { return strings.HasSuffix(name, ".agent.yaml") }

// check returns all problems and warnings of one file.
func (at *site) check(path string) []finding {
	shown := path
	if rel, err := filepath.Rel(at.cwd, path); err == nil && filepath.IsLocal(rel) {
		shown = filepath.ToSlash(rel)
	}
	var problems workflows.Problems
	var w *workflows.Workflow
	var err error
	if isAgent(path) {
		var src []byte
		if src, err = readSource(path); err == nil {
			_, problems, err = workflows.ParseAgent(shown, src, at.loaderOptions())
		}
	} else {
		var loaded workflows.Loaded
		loaded, problems, err = workflows.LoadFile(path, at.loaderOptions())
		w = loaded.Workflow
	}
	var all workflows.Problems
	if errors.As(err, &all) {
		problems = append(all, problems...)
	} else if err != nil {
		return []finding{{File: shown, Line: 1, Column: 1, Class: "validation", What: err.Error()}}
	}
	var found []finding
	for i := range problems {
		p := &problems[i]
		found = append(found, finding{shown, p.Line, p.Col, p.Rule, p.Class, p.Where, p.What, p.Remedy})
	}
	if err == nil && w != nil {
		found = append(found, checkExpressions(shown, w)...)
	}
	return found
}

// maxSource is the most bytes that are read of an agent file; the loader refuses
// what is larger than its own cap.
const maxSource = 8 << 20

func readSource(path string) ([]byte, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, errors.New("cannot be read")
	}
	src, err := io.ReadAll(io.LimitReader(file, maxSource))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, errors.New("cannot be read")
	}
	return src, nil
}

// checkExpressions warns of expressions that are not JavaScript. The engine finds
// them only when the node runs.
func checkExpressions(file string, w *workflows.Workflow) []finding {
	var found []finding
	warn := func(where, source string) {
		if source == "" {
			return
		}
		if err := expr.Compile(source); err != nil {
			found = append(found, finding{
				File: file, Line: 1, Column: 1, Class: "warning", Where: where,
				What: "the expression does not compile", Remedy: "correct it: the node fails with sandbox_error when it runs",
			})
		}
	}
	for i := range w.Nodes {
		where := fmt.Sprintf("workflow.nodes[%d]", i)
		switch node := w.Nodes[i].Spec.(type) {
		case workflows.ConditionNode:
			warn(where+".expression", node.Expression)
		case workflows.TransformNode:
			warn(where+".transform", node.Expression)
		case workflows.MergeNode:
			warn(where+".merge_fn", node.Expression)
		case workflows.InputNode, workflows.AgentNode, workflows.GateNode, workflows.ParallelNode, workflows.OutputNode:
		}
	}
	for i := range w.Edges {
		warn(fmt.Sprintf("edge %s -> %s: condition", w.Edges[i].From, w.Edges[i].To), w.Edges[i].Condition)
	}
	return found
}

func (a *app) graphCommand() *cobra.Command {
	var folders []string
	cmd := &cobra.Command{
		Use:     "graph ID|PATH",
		Short:   "Draw a workflow as a Mermaid flowchart",
		Example: "  relavium-serve graph .relavium/deploy.relavium.yaml > deploy.mmd",
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
