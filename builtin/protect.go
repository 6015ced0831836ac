package builtin

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/relavium/relavium-serve/workflows"
)

// fold is a name as a file system that ignores case, and what cannot be seen,
// compares it.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return unicode.ToLower(least)
	}, strings.TrimRight(name, ". "))
}

// onWriteFloor names what of a path is never written (format 6.3), or "".
func onWriteFloor(names []string) string {
	for i, name := range names {
		last := i == len(names)-1
		switch f := fold(name); f {
		case ".git", ".relavium", ".ssh":
			return f
		case ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile",
			".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout",
			".inputrc", ".xprofile", ".xsession", ".xsessionrc", ".xinitrc", "config.fish":
			if last {
				return f
			}
		default:
			if last && (strings.HasSuffix(f, ".relavium.yaml") || strings.HasSuffix(f, ".agent.yaml")) {
				return "*" + f[strings.LastIndex(strings.TrimSuffix(f, ".yaml"), "."):]
			}
		}
	}
	return ""
}

// startsPrograms tells whether a name is one of those in which programs look, in the
// folder where they are started, for what to run.
func startsPrograms(name string) bool {
	switch fold(name) {
	case "makefile", "gnumakefile", "package.json", ".npmrc", "node_modules":
		return true
	}
	return false
}

// A shield is what a write may not touch.
type shield struct {
	whole   []string // absolute paths of files, and of folders with all that is in them
	files   []string // absolute paths of files alone
	besides []string // folders in which what starts programs is not written
	found   []fs.FileInfo
}

// shield gathers what no agent may write: the loaded files, what their commands name,
// and, beside both, what programs run without being told to.
func (t *Tools) shield(c *workflows.ToolCall, own string) *shield {
	s := &shield{besides: []string{c.Root, own}}
	if t.opt.Protected != nil {
		s.whole = t.opt.Protected()
	}
	loaded := []workflows.Loaded{{Workflow: c.Workflow, Root: c.Root}}
	if t.opt.Loaded != nil {
		loaded = append(loaded, t.opt.Loaded()...)
	}
	for _, l := range loaded {
		bases := []string{l.Root, own}
		if l.Path != "" {
			s.files = append(s.files, l.Path)
			bases = append(bases, filepath.Dir(l.Path))
		}
		for _, word := range named(l.Workflow) {
			for _, base := range bases {
				s.files = append(s.files, absolute(base, word))
			}
		}
	}
	slices.Sort(s.files)
	s.files = slices.Compact(s.files)
	for _, list := range []*[]string{&s.whole, &s.files} {
		for _, p := range slices.Clone(*list) {
			s.besides = append(s.besides, filepath.Dir(p))
			if about, err := os.Stat(p); err == nil {
				if list == &s.whole || !about.IsDir() {
					s.found = append(s.found, about)
				}
				if about.IsDir() {
					s.besides = append(s.besides, p)
				}
			}
			if target, err := filepath.EvalSymlinks(p); err == nil && target != p {
				*list = append(*list, target)
				s.besides = append(s.besides, filepath.Dir(target))
			}
		}
	}
	for _, dir := range filepath.SplitList(t.getenv("PATH")) {
		if target, err := filepath.EvalSymlinks(dir); err == nil && filepath.IsAbs(dir) {
			s.files = append(s.files, filepath.Join(target, "*"))
		}
	}
	return s
}

func absolute(base, word string) string {
	if filepath.IsAbs(word) {
		return filepath.Clean(word)
	}
	return filepath.Join(base, word)
}

// named lists the words of a workflow's commands that may name a file: those of its
// allowedCommands and of the stdio servers of its agents.
func named(w *workflows.Workflow) []string {
	if w == nil {
		return nil
	}
	var words []string
	add := func(argv []string) {
		for i, word := range argv {
			if i == 0 && !strings.ContainsAny(word, `/\`) {
				continue // looked for in PATH
			}
			if _, value, ok := strings.Cut(word, "="); ok {
				words = append(words, value)
			}
			words = append(words, word)
		}
	}
	for _, entry := range slices.Concat(w.Tools.AllowedCommands, w.Tools.AllowedCommandGlobs) {
		add(strings.Split(entry, " "))
	}
	for i := range w.Agents {
		for _, server := range w.Agents[i].Servers {
			if server.Command != "" {
				add(append([]string{server.Command}, server.Args...))
			}
		}
	}
	return slices.DeleteFunc(words, func(w string) bool {
		clean := filepath.Clean(w)
		return w == "" || clean == "." || strings.ContainsAny(w, "*?\x00")
	})
}

// refuses says why the place may not be written, or "". seen is what is there now,
// nil for nothing.
func (s *shield) refuses(p *place, written string, seen fs.FileInfo) string {
	at := p.path()
	for _, names := range [][]string{p.names, strings.Split(written, "/")} {
		if name := onWriteFloor(names); name != "" {
			return "files like " + name + " are never written"
		}
	}
	if seen != nil && isOneOf(seen, s.found) {
		return "the file decides about later runs"
	}
	for _, whole := range s.whole {
		if under(at, whole) {
			return "the file decides about later runs"
		}
	}
	for _, file := range s.files {
		if dir, isDir := strings.CutSuffix(file, string(filepath.Separator)+"*"); isDir && fold(filepath.Dir(at)) == fold(dir) {
			return "programs are looked for in this folder"
		}
		if folded(at) == folded(file) {
			return "the file is one that a command or a workflow is made of"
		}
	}
	for i, name := range p.names {
		dir := filepath.Join(append([]string{p.jail}, p.names[:i]...)...)
		if startsPrograms(name) && slices.ContainsFunc(s.besides, func(b string) bool { return folded(b) == folded(dir) }) {
			return "files like " + fold(name) + " decide what programs run"
		}
	}
	return ""
}

// folded is a path as a file system that ignores case compares it.
func folded(path string) string {
	names := strings.Split(filepath.Clean(path), string(filepath.Separator))
	for i := range names {
		names[i] = fold(names[i])
	}
	return strings.Join(names, "/")
}

// under tells whether a path is the folder or in it, without regard to case.
func under(path, folder string) bool {
	path, folder = folded(path), folded(folder)
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}
