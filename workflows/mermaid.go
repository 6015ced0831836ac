package workflows

import (
	"strconv"
	"strings"
	"unicode"
)

// Mermaid draws the graph as a Mermaid flowchart: one shape for each node type, the
// arms of a condition with their values, data edges dotted. Authored text can show
// as text only.
func (w *Workflow) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart TD\n")
	names := make(map[string]string, len(w.Nodes))
	for i := range w.Nodes {
		n := &w.Nodes[i]
		name := "n" + strconv.Itoa(i)
		names[n.ID] = name
		text := n.ID
		if n.Label != "" {
			text = n.Label + " (" + n.ID + ")"
		}
		before, after := mermaidShape(n.Spec)
		b.WriteString("  " + name + before + mermaidText(text) + after + "\n")
	}
	for _, e := range w.Edges {
		from, okFrom := names[e.From]
		to, okTo := names[e.To]
		if !okFrom || !okTo {
			continue
		}
		arrow := " -->"
		if e.Data {
			arrow = " -.->"
		}
		if label := w.edgeText(e); label != "" {
			arrow += "|" + mermaidText(label) + "|"
		}
		b.WriteString("  " + from + arrow + " " + to + "\n")
	}
	return b.String()
}

// mermaidShape is what stands around the text of a node.
func mermaidShape(spec NodeSpec) (before, after string) {
	switch spec.(type) {
	case InputNode, OutputNode:
		return "([", "])"
	case GateNode:
		return "{{", "}}"
	case ConditionNode:
		return "{", "}"
	case TransformNode:
		return "[[", "]]"
	case ParallelNode:
		return "[/", `\]`
	case MergeNode:
		return `[\`, "/]"
	case AgentNode:
	}
	return "[", "]"
}

// edgeText is the label of an edge: the values of the arm, its condition, its
// authored label.
func (w *Workflow) edgeText(e Edge) string {
	var parts []string
	if e.Routed {
		parts = w.armText(e)
	}
	if e.Condition != "" {
		parts = append(parts, "if "+e.Condition)
	}
	if e.Label != "" {
		parts = append(parts, e.Label)
	}
	return strings.Join(parts, ", ")
}

// armText holds the values for which a condition takes the edge.
func (w *Workflow) armText(e Edge) []string {
	for i := range w.Nodes {
		condition, ok := w.Nodes[i].Spec.(ConditionNode)
		if !ok || w.Nodes[i].ID != e.From {
			continue
		}
		var parts []string
		for _, branch := range condition.Branches {
			if branch.Target == e.To {
				parts = append(parts, string(branch.When))
			}
		}
		if condition.Default == e.To {
			parts = append(parts, "default")
		}
		return parts
	}
	return nil
}

// mermaidText quotes text of at most 80 characters for a node or an edge. Everything
// but letters, digits and plain punctuation is written as an entity; what cannot be
// seen becomes a blank.
func mermaidText(text string) string {
	const limit = 80
	var b strings.Builder
	b.WriteByte('"')
	n := 0
	for _, r := range strings.Join(strings.Fields(text), " ") {
		if n == limit {
			b.WriteString("…")
			break
		}
		n++
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(" _-.,:()=!?/+'", r):
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteString("#" + strconv.Itoa(int(r)) + ";")
		default:
			b.WriteByte(' ')
		}
	}
	b.WriteByte('"')
	return b.String()
}
