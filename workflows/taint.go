package workflows

import (
	"fmt"
	"slices"
)

// taint knows which names a secret can flow out of (format 1.15).
type taint struct {
	inputs, context map[string]bool
}

// checkTaint marks what a secret reaches and reports the sinks among it (P60).
func (c *checker) checkTaint(d *draft) {
	w := d.workflow
	t := taint{inputs: make(map[string]bool), context: make(map[string]bool)}
	type name struct{ kind, name string }
	readers := make(map[name][]name) // who refers to it
	var reached []name
	reads := func(who name, refs []ref) {
		for _, r := range refs {
			if r.kind == refSecrets {
				reached = append(reached, who)
				continue
			}
			what := name{r.kind, r.name}
			readers[what] = append(readers[what], who)
		}
	}
	for i := range w.Inputs {
		in := &w.Inputs[i]
		if in.Type == TypeSecret {
			reached = append(reached, name{refInputs, in.Name})
		}
		reads(name{refInputs, in.Name}, fieldRefs(in.Default))
	}
	for i := range w.Context {
		reads(name{refCtx, w.Context[i].Key}, fieldRefs(&w.Context[i].Value))
	}
	for ; len(reached) > 0; reached = reached[1:] {
		known := t.inputs
		if reached[0].kind == refCtx {
			known = t.context
		}
		if !known[reached[0].name] {
			known[reached[0].name] = true
			reached = append(reached, readers[reached[0]]...)
		}
	}
	for i := range w.Context {
		w.Context[i].Tainted = t.context[w.Context[i].Key]
	}
	c.checkSinks(d, t)
}

func fieldRefs(f *Field) []ref {
	if f == nil || f.Template == nil {
		return nil
	}
	return f.Template.refs()
}

func (t taint) reaches(refs []ref) bool {
	for _, r := range refs {
		switch r.kind {
		case refSecrets:
			return true
		case refInputs:
			if t.inputs[r.name] {
				return true
			}
		case refCtx:
			if t.context[r.name] {
				return true
			}
		}
	}
	return false
}

// checkSinks reports every text a secret must not reach.
func (c *checker) checkSinks(d *draft, t taint) {
	const remedy = "no part of a workflow may show a secret"
	for i, source := range d.agents {
		a := &d.workflow.Agents[i]
		if !t.reaches(c.promptRefs(a)) {
			continue
		}
		at, where := source.item, source.where
		if v := at.member("system_prompt"); v != nil {
			at, where = v, join(where, "system_prompt")
		}
		c.problems = append(c.problems, Problem{
			File: source.file, Line: at.line, Col: at.col, Rule: "P60", Class: classOf("P60"),
			Where: where, What: fmt.Sprintf("secret_interpolation: agent %s, system_prompt", shown(a.ID)), Remedy: remedy,
		})
	}
	for i := range d.workflow.Nodes {
		source := d.nodes[i]
		for _, s := range sinksOf(&d.workflow.Nodes[i]) {
			if t.reaches(s.refs) {
				c.add(source.item.member(s.key), "P60", source.where+"."+s.key,
					fmt.Sprintf("secret_interpolation: node %s, %s", shown(d.workflow.Nodes[i].ID), s.key), remedy)
			}
		}
	}
}

// A sink is a template or scanned text of a node, with what it refers to.
type sink struct {
	key  string
	refs []ref
}

// sinksOf lists the texts of a node that create data edges and may not show
// secrets (format 1.14, 1.15).
func sinksOf(n *Node) []sink {
	of := func(key string, t *Template) sink {
		if t == nil {
			return sink{key: key}
		}
		return sink{key: key, refs: t.refs()}
	}
	switch spec := n.Spec.(type) {
	case AgentNode:
		return []sink{of("prompt_template", spec.Prompt), {key: "system_prompt_append", refs: refsOf(spec.SystemPromptAppend)}}
	case GateNode:
		return []sink{of("assignee", spec.Assignee), of("message_template", spec.Message)}
	case InputNode, ConditionNode, TransformNode, ParallelNode, MergeNode, OutputNode:
	}
	return nil
}

// checkReferences reports references that a place does not allow, and warns of
// those that can only be unresolved.
func (c *checker) checkReferences(d *draft) {
	w := d.workflow
	names := declared{inputs: make(map[string]int), context: make(map[string]int)}
	for i := range w.Inputs {
		names.inputs[w.Inputs[i].Name] = i
		n := d.inputs[i].member("default")
		c.checkEarly(n, "workflow.inputs", i, "default", fieldRefs(w.Inputs[i].Default))
	}
	for i := range w.Context {
		names.context[w.Context[i].Key] = i
	}
	for i := range w.Context {
		n := d.context[i].member("value")
		refs := fieldRefs(&w.Context[i].Value)
		c.checkEarly(n, "workflow.context", i, "value", refs)
		where := index("workflow.context", i) + ".value"
		c.checkNames(names, n, where, refs)
		for _, r := range refs {
			if at, ok := names.context[r.name]; ok && r.kind == refCtx && at >= i {
				c.warn(n, "P63", where, "ctx."+r.name+" is declared later", "declare it first")
			}
		}
	}
	for i := range w.Nodes {
		for _, s := range sinksOf(&w.Nodes[i]) {
			c.checkNames(names, d.nodes[i].item.member(s.key), d.nodes[i].where+"."+s.key, s.refs)
		}
	}
}

// declared are the places of inputs and context entries by their names.
type declared struct{ inputs, context map[string]int }

// checkEarly reports what a value that is computed before the first node cannot
// refer to.
func (c *checker) checkEarly(n *item, list string, i int, key string, refs []ref) {
	where := index(list, i) + "." + key
	for _, r := range refs {
		switch r.kind {
		case refOutput:
			c.add(n, "P28", where, "no node has an output yet when this is computed", "refer to it from a node")
		case refSecrets:
			c.add(n, "P29", where, "secret_interpolation: secrets can be referred to from a server's env only", "")
		}
	}
}

// checkNames warns of inputs and context entries that are not declared. They are
// no error, and a default filter may stand in for them.
func (c *checker) checkNames(names declared, n *item, where string, refs []ref) {
	for _, r := range refs {
		if slices.Contains(r.filters, "default") {
			continue
		}
		known := true
		switch r.kind {
		case refInputs:
			_, known = names.inputs[r.name]
		case refCtx:
			_, known = names.context[r.name]
		}
		if !known {
			c.warn(n, "P63", where, r.kind+"."+r.name+" is not declared", "")
		}
	}
}
