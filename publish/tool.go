package publish

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/workflows"
)

// maxToolName is the longest name that clients neither cut nor refuse.
const maxToolName = 64

// A tool is one entry of a table, and never changes.
type tool struct {
	name     string
	workflow *Workflow // nil for a companion tool
	gated    bool      // a human gate is reachable
	call     toolFunc

	// What tools/list shows, by what a revision knows: the first one knows
	// neither annotations nor output schemas.
	first, annotated, structured json.RawMessage
}

// body is what tools/list shows of the tool to a session of that revision.
func (t *tool) body(version string) json.RawMessage {
	switch {
	case version >= mcp.ProtocolVersion20250618:
		return t.structured
	case version >= mcp.ProtocolVersion20250326:
		return t.annotated
	}
	return t.first
}

// describe fills the bodies. title, output and annotations may be empty.
func (t *tool) describe(title, description string, input, output json.RawMessage, annotations []workflows.Member) {
	name := workflows.Member{Key: "name", Value: quoted(t.name)}
	text := workflows.Member{Key: "description", Value: quoted(description)}
	in := workflows.Member{Key: "inputSchema", Value: input}
	hints := workflows.Member{Key: "annotations", Value: workflows.Object(annotations)}
	t.first = workflows.Object([]workflows.Member{name, text, in})
	t.annotated = workflows.Object([]workflows.Member{name, text, in, hints})
	all := []workflows.Member{name, {Key: "title", Value: quoted(title)}, text, in}
	if output != nil {
		all = append(all, workflows.Member{Key: "outputSchema", Value: output})
	}
	t.structured = workflows.Object(append(all, hints))
}

func (s *Server) workflowTool(w *Workflow) (*tool, error) {
	name, from := s.opt.Prefix+w.ID, "the prefix and the id make"
	if w.Tool != "" {
		name, from = w.Tool, "the tool setting is"
	}
	switch {
	case len(name) > maxToolName:
		return nil, fmt.Errorf("publish: workflow %q: %s a tool name of %d characters, at most %d are allowed: set [serve.workflow.%s] tool to a shorter one",
			w.ID, from, len(name), maxToolName, w.ID)
	case !validName(name):
		return nil, fmt.Errorf("publish: workflow %q: the tool name %q has characters outside A-Z, a-z, 0-9, _ and -", w.ID, name)
	}
	if missing := s.missingSecrets(w); len(missing) > 0 {
		return nil, fmt.Errorf("publish: workflow %q: nothing supplies the required secret input %s: set %s or %s_FILE, keep it with `relavium-serve secrets set input/%s/%s`, or do not publish it",
			w.ID, missing[0], w.SecretEnv(missing[0]), w.SecretEnv(missing[0]), w.ID, missing[0])
	}
	input, err := inputSchema(w.Workflow)
	if err != nil {
		return nil, fmt.Errorf("publish: workflow %q: input schema: %w", w.ID, err)
	}
	output, withheld := outputSchema(w.Workflow)
	for _, node := range withheld {
		s.log.Warn("output schema is not self-contained and is not published", "workflow", w.ID, "output", node)
	}
	r := reachOf(w.Workflow)
	title := w.Name
	if title == "" {
		title = w.ID
	}
	description := w.Description
	if description == "" {
		description = title + "."
	}
	t := &tool{name: name, workflow: w, gated: len(r.gates) > 0, call: s.call}
	t.describe(title, description+"\n\n"+r.sentence(), input, output, r.annotations())
	return t, nil
}

// sayPublished logs a tool of a workflow.
func (s *Server) sayPublished(t *tool) {
	r := reachOf(t.workflow.Workflow)
	s.log.Info("published", "workflow", t.workflow.ID, "tool", t.name, "gates", len(r.gates), "can", strings.Join(r.can(), "; "))
}

// missingSecrets lists the required secret inputs that nothing supplies. Only their
// presence is looked at.
func (s *Server) missingSecrets(w *Workflow) []string {
	var missing []string
	for i := range w.Inputs {
		in := &w.Inputs[i]
		if in.Type != workflows.TypeSecret || !in.Required {
			continue
		}
		name := w.SecretEnv(in.Name)
		if s.opt.HasEnv == nil || !s.opt.HasEnv(name) && !s.opt.HasEnv(name+"_FILE") {
			missing = append(missing, in.Name)
		}
	}
	return missing
}

func validName(name string) bool {
	for _, c := range name {
		if !alphanumeric(c) && c != '_' && c != '-' {
			return false
		}
	}
	return name != ""
}

func alphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// mappedName is what clients make of a name that they pass on to a model.
func mappedName(name string) string {
	return strings.Map(func(c rune) rune {
		if alphanumeric(c) {
			return c
		}
		return '_'
	}, name)
}

// warnOfLimits names limits of clients that a long list runs into.
func (s *Server) warnOfLimits(t *table) {
	switch n := len(t.order); {
	case n > 128:
		s.log.Warn("many tools are listed: some clients send at most 128 to a model and drop the rest, some at most 40", "tools", n)
	case n > 40:
		s.log.Warn("many tools are listed: some clients send at most 40 to a model and drop the rest", "tools", n)
	}
}

// closest is the tool listed to the caller whose name is most like a name that is
// none, or "".
func (s *Server) closest(x *exchange, name string) string {
	if len(name) > 2*maxToolName {
		return ""
	}
	best, least := "", len(name)/2+1
	for _, candidate := range x.table.order {
		if !x.shows(x.table.tools[candidate]) {
			continue
		}
		d := workflows.EditDistance(mappedName(strings.ToLower(name)), mappedName(strings.ToLower(candidate)))
		if bare, ok := strings.CutPrefix(candidate, s.opt.Prefix); ok {
			d = min(d, workflows.EditDistance(mappedName(strings.ToLower(name)), mappedName(strings.ToLower(bare))))
		}
		if d < least {
			best, least = candidate, d
		}
	}
	return best
}
