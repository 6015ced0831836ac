package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// A table is what is published at one time, and never changes: a request keeps
// the one that it began with, whatever is published since.
type table struct {
	workflows []Workflow
	tools     map[string]*tool
	order     []string // names of tools, sorted
	mcp       *server.MCPServer

	// projects are those that are served or were since the start, and latest the
	// workflows, by project and id, as they were published last: runs outlive the
	// tools that started them.
	projects map[string]bool
	latest   map[place]*Workflow
}

// A place is where a workflow is at home.
type place struct{ project, id string }

// Replace publishes a list of workflows in place of the one before. Calls that are
// under way go on with what they began with, and runs keep the definition that
// they started with. Sessions of the revisions before 2026-07-28 and open
// subscriptions are told once, if anything that is published has changed. The
// error lists, as that of New does, every workflow that cannot be published; then
// everything stays as it was.
func (s *Server) Replace(list []Workflow) error {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	old := s.table.Load()
	t, err := s.newTable(list, old)
	if err != nil {
		return err
	}
	s.table.Store(t)
	if !t.equal(old) {
		s.announce()
	}
	return nil
}

// newTable makes the table of workflows and companion tools. old is the table
// before it, or nil.
func (s *Server) newTable(list []Workflow, old *table) (*table, error) {
	t := &table{
		workflows: slices.Clone(list),
		tools:     map[string]*tool{},
		projects:  map[string]bool{},
		latest:    map[place]*Workflow{},
	}
	if old != nil {
		maps.Copy(t.projects, old.projects)
		maps.Copy(t.latest, old.latest)
	}
	if err := s.buildTools(t, old); err != nil {
		return nil, err
	}
	t.mcp = server.NewMCPServer(s.info.Name, s.info.Version, s.can...)
	s.register(t)
	s.warnOfLimits(t)
	return t, nil
}

// buildTools fills the table.
func (s *Server) buildTools(t, old *table) error {
	var problems []error
	mapped := map[string]string{} // mapped name to whose it is
	for _, name := range companionNames() {
		mapped[mappedName(name)] = "the companion tool " + name
	}
	for i := range t.workflows {
		w := &t.workflows[i]
		made, err := s.workflowTool(w)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if owner, taken := mapped[mappedName(made.name)]; taken {
			problems = append(problems, fmt.Errorf("publish: workflow %q: the tool name %q reads like that of %s: set [serve.workflow.%s] tool to another name",
				w.ID, made.name, owner, w.ID))
			continue
		}
		mapped[mappedName(made.name)] = fmt.Sprintf("workflow %q", w.ID)
		t.tools[made.name] = made
		t.projects[w.Project.Key] = true
		t.latest[place{w.Project.Key, w.ID}] = w
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	// Where there were workflows the companions stay for their runs, unlisted.
	if len(t.projects) > 0 && !s.opt.NoRunTools {
		for _, c := range s.companions() {
			t.tools[c.name] = c
		}
	}
	t.order = slices.Sorted(maps.Keys(t.tools))
	for _, name := range t.order {
		if made := t.tools[name]; made.workflow != nil && (old == nil || !made.equal(old.tools[name])) {
			s.sayPublished(made)
		}
	}
	return nil
}

// register hands the table to its dispatcher. What tools/list shows comes from
// the table, not from there.
func (s *Server) register(t *table) {
	list := make([]server.ServerTool, 0, len(t.order))
	for _, name := range t.order {
		list = append(list, server.ServerTool{
			Tool:    mcp.Tool{Name: name, RawInputSchema: json.RawMessage(`{"type":"object"}`)},
			Handler: s.callTool,
		})
	}
	if len(list) > 0 {
		t.mcp.AddTools(list...)
	}
	s.registerResources(t.mcp)
}

// published is the workflow of a run as it was published last, for its settings,
// or nil.
func (t *table) published(project, id string) *Workflow { return t.latest[place{project, id}] }

// equal reports whether nothing differs that a client could see or call.
func (t *table) equal(old *table) bool {
	return len(t.workflows) == len(old.workflows) && maps.EqualFunc(t.tools, old.tools, (*tool).equal)
}

// equal reports whether a tool is the same to a client, and runs the same.
func (t *tool) equal(other *tool) bool {
	if other == nil || t.name != other.name || string(t.structured) != string(other.structured) || (t.workflow == nil) != (other.workflow == nil) {
		return false
	}
	w, was := t.workflow, other.workflow
	return w == nil || w.Digest() == was.Digest() && w.Project == was.Project && slices.Equal(w.VisibleTo, was.VisibleTo) &&
		(w.VisibleTo == nil) == (was.VisibleTo == nil)
}

// announce tells that the list of tools has changed.
func (s *Server) announce() {
	s.notices.Say(mcp.MethodNotificationToolsListChanged, json.RawMessage(`{}`))
	s.listening.Range(func(key, _ any) bool {
		l, ok := key.(*session)
		if filter, active := l.SubscriptionFilter(); !ok || !active || !filter.ToolsListChanged {
			return true
		}
		select {
		case l.notifications <- listChanged():
		default: // it has as many before it, which the client has not taken yet
		}
		return true
	})
}

func listChanged() mcp.JSONRPCNotification {
	return mcp.JSONRPCNotification{
		JSONRPC: mcp.JSONRPC_VERSION, Notification: mcp.Notification{Method: mcp.MethodNotificationToolsListChanged},
	}
}
