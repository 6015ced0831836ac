package workflows

// An Expression is one JavaScript expression of a file and where it stands.
type Expression struct {
	Where     string // workflow.nodes[2].transform
	Line, Col int    // 1-based, Col in code points; 0 in a snapshot
	Source    string
}

// Expressions are the expressions of the file: those of its nodes, then those of
// its edges, each in authored order. The loader does not compile them.
func (w *Workflow) Expressions() []Expression { return w.expressions }

// expressions finds what Workflow.Expressions returns.
func (d *draft) expressions() []Expression {
	var found []Expression
	add := func(n *item, where, key string) {
		if v := n.member(key); v != nil && v.text != "" {
			found = append(found, Expression{Where: join(where, key), Line: v.line, Col: v.col, Source: v.text})
		}
	}
	for i, n := range d.nodes {
		switch spec := d.workflow.Nodes[i].Spec.(type) {
		case ConditionNode:
			add(n.item, n.where, "expression")
		case TransformNode:
			add(n.item, n.where, "transform")
		case MergeNode:
			if spec.Expression != "" {
				add(n.item, n.where, "merge_fn")
			}
		case InputNode, AgentNode, GateNode, ParallelNode, OutputNode:
		}
	}
	for _, e := range d.edges {
		add(e.item, e.where, "condition")
	}
	return found
}
