package workflows

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A Source is one place to look for workflow files.
type Source struct {
	Dir  string // searched recursively
	Root string // the project root of files below it that have none of their own
}

// A Loaded is one workflow file that loaded, with its project root.
type Loaded struct {
	Workflow *Workflow
	Root     string // absolute real path
	Path     string // absolute path of the file
}

// A Catalog is what the sources hold. A file that did not load is in Broken and
// keeps nothing else from loading.
type Catalog struct {
	Workflows []Loaded // by id
	Broken    []Broken // by path
	Agents    int      // agent files that loaded
	Warnings  Problems
}

// Broken is a file that did not load. ID is its workflow id where that much
// could be read, else "".
type Broken struct {
	Path     string
	ID       string
	Problems Problems
}

// Load reads every workflow and agent file of the sources: *.relavium.yaml and
// *.agent.yaml, and below a .relavium folder every *.yaml that is one of the two
// by its content. A workflow also sees the agents in the .relavium folder of its
// project. The error is for what concerns no single file: a source that cannot be
// read, a project root that is / or the user's home, or, as Problems beside the
// catalog, an id used twice.
func Load(sources []Source, opt Options) (*Catalog, error) {
	l := newLoader(opt)
	for _, s := range sources {
		if err := l.source(s); err != nil {
			return nil, err
		}
	}
	return l.catalog(), l.unique()
}

// LoadFile reads one workflow file and the agents of its project: those of the
// .relavium folder of its root or, where there is none, those beside the file.
// The error is a Problems if the file did not load. Warnings are returned in
// either case.
func LoadFile(file string, opt Options) (Loaded, Problems, error) {
	target, err := realPath(file)
	if err != nil {
		return Loaded{}, nil, fmt.Errorf("%s: no such file", filepath.Base(file))
	}
	root, err := ProjectRoot(target, "", opt.Home)
	if err != nil {
		return Loaded{}, nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	l := newLoader(opt)
	p, err := l.project(root)
	if err != nil {
		return Loaded{}, nil, err
	}
	if !p.marked {
		beside, err := filepath.Glob(filepath.Join(filepath.Dir(target), "*"+agentSuffix))
		if err == nil {
			for _, name := range beside {
				l.read(p, found{path: name, shown: shownPath(root, name), kind: agentFile})
			}
		}
	}
	f := found{path: target, shown: shownPath(root, target), kind: workflowFile}
	l.read(p, f)
	if len(p.pending) == 0 { // it could not be read
		return Loaded{}, nil, l.broken[len(l.broken)-1].Problems
	}
	w, warnings, err := l.parse(p, p.pending[0])
	problems, refused := errors.AsType[Problems](err)
	if refused {
		return Loaded{}, warnings, append(problems, l.causes(problems, p)...)
	}
	l.keep(p, p.pending[0], w)
	return l.loaded[0], warnings, l.unique()
}

// A loader reads the files of sources, project by project.
type loader struct {
	opt      Options
	search   search
	done     int // files of the search that were read
	bytes    int
	projects map[string]*project // by root
	order    []*project
	loaded   []Loaded
	ids      map[string]spot // of loaded, by path
	broken   []Broken
	warnings Problems
}

// A spot is where something stands in a file: 1-based, col in code points.
type spot struct{ line, col int }

func newLoader(opt Options) *loader {
	return &loader{opt: opt, projects: make(map[string]*project), ids: make(map[string]spot)}
}

// keep takes a workflow that loaded.
func (l *loader) keep(p *project, f pendingFile, w *Workflow) {
	_, l.ids[f.path] = topLevelID(f.src, "workflow")
	l.loaded = append(l.loaded, Loaded{Workflow: w, Root: p.root, Path: f.path})
}

// A project is a root and what was found for it.
type project struct {
	root    string
	marked  bool // it has a .relavium folder
	agents  []registeredAgent
	pending []pendingFile
}

type registeredAgent struct {
	agent    *Agent
	file     string // slash-separated, below the root
	id       spot   // of its id
	problems Problems
}

// A pendingFile is a workflow file that waits until the agents are known.
type pendingFile struct {
	found
	src []byte
}

// source reads the files below one source.
func (l *loader) source(s Source) error {
	if err := l.search.folder(s.Dir); err != nil {
		return err
	}
	for ; l.done < len(l.search.files); l.done++ {
		f := l.search.files[l.done]
		root, err := ProjectRoot(f.path, s.Root, l.opt.Home)
		if err != nil {
			return fmt.Errorf("%s: %w", f.shown, err)
		}
		p, err := l.project(root)
		if err != nil {
			return err
		}
		l.read(p, f)
		if l.bytes > maxTotal {
			return fmt.Errorf("workflow and agent files hold more than %d MiB", maxTotal>>20)
		}
	}
	return nil
}

// project is the project of a root; the first call reads its own agents.
func (l *loader) project(root string) (*project, error) {
	if p := l.projects[root]; p != nil {
		return p, nil
	}
	p := &project{root: root}
	l.projects[root] = p
	l.order = append(l.order, p)
	private := filepath.Join(root, projectFolder)
	if p.marked = projectAbove(root, l.opt.Home) == root; !p.marked {
		return p, nil
	}
	var own search
	if err := own.folder(private); err != nil {
		return nil, err
	}
	for _, f := range own.files {
		if f.kind != workflowFile && !l.search.seen[f.path] {
			before := len(p.pending)
			l.read(p, f)
			p.pending = p.pending[:before] // its workflows were not asked for
		}
	}
	return p, nil
}

// read reads one file: an agent is checked at once, a workflow waits.
func (l *loader) read(p *project, f found) {
	f.shown = shownPath(p.root, f.path)
	src, err := readFileAt(f.path)
	l.bytes += len(src)
	if err != nil {
		l.broken = append(l.broken, Broken{Path: f.path, Problems: Problems{{
			File: f.shown, Rule: "P02", Class: ClassSyntax, What: err.Error(),
		}}})
		return
	}
	if f.kind == unknownFile {
		f.kind = kindByContent(src)
	}
	switch f.kind {
	case workflowFile:
		p.pending = append(p.pending, pendingFile{found: f, src: src})
	case agentFile:
		l.agent(p, f, src)
	case notOurs, unknownFile:
	}
}

func readFileAt(name string) ([]byte, error) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() { //nolint:gosec // a file that the caller's folders hold
		return nil, errUnreadable
	}
	f, err := os.Open(name) //nolint:gosec // a file that the caller's folders hold
	if err != nil {
		return nil, errUnreadable
	}
	src, err := readBounded(f)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		return nil, errUnreadable
	}
	return src, err
}

func (l *loader) agent(p *project, f found, src []byte) {
	for _, known := range p.agents {
		if known.file == f.shown {
			return
		}
	}
	id, at := topLevelID(src, "")
	a, warnings, err := ParseAgent(f.shown, src, l.opt)
	if problems, refused := errors.AsType[Problems](err); refused {
		l.broken = append(l.broken, Broken{Path: f.path, Problems: problems})
		p.agents = append(p.agents, registeredAgent{agent: &Agent{ID: id}, file: f.shown, problems: problems})
		return
	}
	l.warnings = append(l.warnings, warnings...)
	p.agents = append(p.agents, registeredAgent{agent: a, file: f.shown, id: at})
}

// parse checks a workflow file against the agents of its project.
func (l *loader) parse(p *project, f pendingFile) (*Workflow, Problems, error) {
	opt := l.opt
	opt.Registry = func(id string) (*Agent, bool) {
		for _, r := range p.agents {
			if r.agent.ID == id && r.problems == nil {
				return r.agent, true
			}
		}
		if l.opt.Registry != nil {
			return l.opt.Registry(id)
		}
		return nil, false
	}
	if opt.ReadRef == nil {
		opt.ReadRef = func(ref string) ([]byte, error) { return readRef(p.root, f.shown, ref) }
	}
	return Parse(f.shown, f.src, opt)
}

// readRef reads an agent file that a workflow names, jailed to the root.
func readRef(root, file, ref string) ([]byte, error) {
	jail, err := os.OpenRoot(root)
	if err != nil {
		return nil, errUnreadable
	}
	defer func() { _ = jail.Close() }()
	name := filepath.FromSlash(path.Join(path.Dir(file), ref))
	info, err := jail.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fs.ErrNotExist
	case err != nil || !info.Mode().IsRegular():
		return nil, errUnreadable
	}
	f, err := jail.Open(name)
	if err != nil {
		return nil, errUnreadable
	}
	src, err := readBounded(f)
	return src, errors.Join(err, f.Close())
}

// causes are the problems of agent files that left a workflow without its agent.
func (l *loader) causes(problems Problems, p *project) Problems {
	var out Problems
	for _, r := range p.agents {
		missing := `no agent "` + r.agent.ID + `"`
		if r.problems != nil && slices.ContainsFunc(problems, func(q Problem) bool { return strings.HasSuffix(q.What, missing) }) {
			out = append(out, r.problems...)
		}
	}
	return out
}

// catalog checks all workflows that were found.
func (l *loader) catalog() *Catalog {
	agents := 0
	for _, p := range l.order {
		for i := range p.agents {
			if len(p.agents[i].problems) == 0 {
				agents++
			}
		}
		for _, f := range p.pending {
			w, warnings, err := l.parse(p, f)
			if problems, refused := errors.AsType[Problems](err); refused {
				id, _ := topLevelID(f.src, "workflow")
				l.broken = append(l.broken, Broken{Path: f.path, ID: id, Problems: problems})
				continue
			}
			l.warnings = append(l.warnings, warnings...)
			l.keep(p, f, w)
		}
	}
	slices.SortFunc(l.loaded, func(a, b Loaded) int { return strings.Compare(a.Workflow.ID, b.Workflow.ID) })
	slices.SortFunc(l.broken, func(a, b Broken) int { return strings.Compare(a.Path, b.Path) })
	return &Catalog{
		Workflows: l.loaded,
		Broken:    l.broken,
		Agents:    agents,
		Warnings:  append(l.search.warnings, l.warnings...),
	}
}

// unique refuses an id that two files use: workflows among all sources, agents
// and workflows within a project.
func (l *loader) unique() error {
	type use struct {
		id, file, rule, where string
		at                    spot
	}
	var twice Problems
	clash := func(first, again use) {
		twice = append(twice, Problem{
			File: again.file, Line: again.at.line, Col: again.at.col, Rule: again.rule, Class: ClassValidation, Where: again.where,
			What: fmt.Sprintf("id %q is used by %s too", again.id, first.file), Remedy: "give one of the two another id",
		})
	}
	workflows := make(map[string]use)
	byRoot := make(map[string]map[string]use)
	all := slices.Clone(l.loaded)
	slices.SortFunc(all, func(a, b Loaded) int { return cmp.Or(strings.Compare(a.Root, b.Root), strings.Compare(a.Path, b.Path)) })
	for _, one := range all {
		u := use{one.Workflow.ID, one.Workflow.File, "P14", "workflow.id", l.ids[one.Path]}
		if first, ok := workflows[u.id]; ok {
			clash(first, u)
			continue
		}
		workflows[u.id] = u
		if byRoot[one.Root] == nil {
			byRoot[one.Root] = make(map[string]use)
		}
		byRoot[one.Root][u.id] = u
	}
	for _, p := range l.order {
		ids := byRoot[p.root]
		if ids == nil {
			ids = make(map[string]use)
		}
		agents := slices.Clone(p.agents)
		slices.SortFunc(agents, func(a, b registeredAgent) int { return strings.Compare(a.file, b.file) })
		for _, r := range agents {
			if r.problems != nil {
				continue
			}
			u := use{r.agent.ID, r.file, "P30", "id", r.id}
			if first, ok := ids[u.id]; ok {
				clash(first, u)
				continue
			}
			ids[u.id] = u
		}
	}
	if twice == nil {
		return nil
	}
	return twice
}

// kindByContent tells a workflow from an agent by its top-level keys. A file of
// neither kind is not ours; one that is not YAML is taken for what it looks like.
func kindByContent(src []byte) fileKind {
	has := func(key string) bool {
		return bytes.HasPrefix(src, []byte(key)) || bytes.Contains(src, []byte("\n"+key))
	}
	switch {
	case has("workflow:") || has("schema_version:") && !has("system_prompt:"):
		return workflowFile
	case has("id:") && (has("system_prompt:") || has("provider:") || has("model:")):
		return agentFile
	}
	return notOurs
}

// topLevelID finds the id of a file that may not be YAML, and where it stands: the
// first "id:" of the block below the parent key, or at the left margin if parent is
// empty.
func topLevelID(src []byte, parent string) (id string, at spot) {
	inside, indent, number := parent == "", 0, 0
	for line := range bytes.Lines(src) {
		number++
		text := strings.TrimRight(string(line), " \t\r\n")
		body := strings.TrimLeft(text, " ")
		switch {
		case body == "" || body[0] == '#':
			continue
		case !inside:
			inside = strings.HasPrefix(text, parent+":")
			if before, after, found := strings.Cut(text, "{"); inside && found {
				after, _, _ = strings.Cut(after, ",")
				return idIn(after, spot{number, len([]rune(before)) + 2})
			}
			indent = -1
			continue
		case indent < 0:
			indent = len(text) - len(body)
		}
		if indent == 0 && parent != "" {
			return "", spot{}
		}
		if len(text)-len(body) == indent && strings.HasPrefix(body, "id:") {
			return idIn(body, spot{number, indent + 1})
		}
	}
	return "", spot{}
}

// idIn is the value of "id: value" and where it stands, if it is an id; at is where
// the text does.
func idIn(text string, at spot) (string, spot) {
	body := strings.TrimLeft(text, " \t")
	value, ok := strings.CutPrefix(body, "id:")
	if !ok {
		return "", spot{}
	}
	at.col += len(text) - len(strings.TrimLeft(value, " \t"))
	value, _, _ = strings.Cut(value, " #")
	value = strings.Trim(strings.TrimSpace(value), " '\"}")
	if !isKebab(value) || len(value) > maxIDBytes {
		return "", spot{}
	}
	return value, at
}
