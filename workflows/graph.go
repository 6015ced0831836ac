package workflows

import (
	"container/heap"
	"slices"
	"strings"
)

// graph answers questions about the dependency graph of a workflow.
type graph struct {
	nodes []Node
	index map[string]int // of a node by its id
	order []string       // topological
	rank  map[string]int // place in order
	in    map[string][]Edge
	out   map[string][]Edge
}

func (g *graph) node(id string) (*Node, bool) {
	i, ok := g.index[id]
	if !ok {
		return nil, false
	}
	return &g.nodes[i], true
}

// linkEdges checks the authored edges, unites them with those that nodes and
// templates imply (format 1.14), and orders the result.
func (c *checker) linkEdges(d *draft) {
	g := &graph{
		nodes: d.workflow.Nodes,
		index: make(map[string]int, len(d.workflow.Nodes)),
		in:    make(map[string][]Edge),
		out:   make(map[string][]Edge),
	}
	for i := range g.nodes {
		g.index[g.nodes[i].ID] = i
	}
	b := &edgeBuilder{c: c, d: d, g: g, at: make(map[[2]string]int)}
	b.authored()
	b.materialised()
	b.data()
	d.workflow.Edges = b.edges
	for _, e := range b.edges {
		g.in[e.To] = append(g.in[e.To], e)
		g.out[e.From] = append(g.out[e.From], e)
	}
	g.sort()
	if len(g.order) < len(g.nodes) {
		c.reportCycles(d, g)
	}
	d.workflow.graph = g
}

// An edgeBuilder collects the edges of a graph, one for each pair of nodes.
type edgeBuilder struct {
	c     *checker
	d     *draft
	g     *graph
	edges []Edge
	at    map[[2]string]int // index in edges
	ids   []string          // of all nodes, once one is not known
	// handles are the branch targets of conditions by the text of their values.
	handles map[string]map[string]string
}

// branchTarget is the target of a condition's branch by the text of its value.
func (b *edgeBuilder) branchTarget(id string, spec *ConditionNode, handle string) (target string, ok bool) {
	targets, known := b.handles[id]
	if !known {
		targets = make(map[string]string, len(spec.Branches))
		for _, branch := range slices.Backward(spec.Branches) {
			if branch.When != nil {
				targets[string(branch.When)] = branch.Target // 7.0 is 7, and may be written either way
				targets[whenText(branch.When)] = branch.Target
			}
		}
		if b.handles == nil {
			b.handles = make(map[string]map[string]string)
		}
		b.handles[id] = targets
	}
	target, ok = targets[handle]
	return target, ok
}

// known reports an endpoint that is no node.
func (b *edgeBuilder) known(id string, n *item, where string) bool {
	if _, ok := b.g.index[id]; ok {
		return true
	}
	if id == "" || b.d.partialNodes {
		return false
	}
	if b.ids == nil {
		for i := range b.g.nodes {
			b.ids = append(b.ids, b.g.nodes[i].ID)
		}
	}
	remedy := ""
	if near := nearest(id, b.ids); near != "" {
		remedy = "did you mean " + shown(near) + "?"
	}
	b.c.add(n, "P66", where, "unknown_edge_target: no node "+shown(id), remedy)
	return false
}

// authored takes the edges of the file.
func (b *edgeBuilder) authored() {
	for i := range b.d.edges {
		s := &b.d.edges[i]
		okFrom := b.known(s.from, s.item.member("from"), s.where+".from")
		okTo := b.known(s.to, s.item.member("to"), s.where+".to")
		if !okFrom {
			continue
		}
		source, _ := b.g.node(s.from)
		if !b.checkSource(s, source, okTo) || !okTo {
			continue
		}
		e := Edge{From: s.from, To: s.to, Routed: s.hasHandle, Condition: s.condition, Label: s.label}
		key := [2]string{e.From, e.To}
		if j, twice := b.at[key]; twice {
			b.edges[j] = united(b.edges[j], e)
			continue
		}
		b.at[key] = len(b.edges)
		b.edges = append(b.edges, e)
	}
}

// united joins two edges of one pair: the target is live if one of them is.
func united(a, b Edge) Edge {
	switch {
	case a.Condition == b.Condition:
	case a.Condition == "" || b.Condition == "":
		a.Condition = ""
	default:
		a.Condition = "(" + a.Condition + "\n) || (" + b.Condition + "\n)"
	}
	if a.Label == "" {
		a.Label = b.Label
	}
	return a
}

// checkSource checks the handle and target of an authored edge against the type
// of the node it leaves (P67, P68, P69, P72).
func (b *edgeBuilder) checkSource(s *edgeSource, source *Node, okTo bool) bool {
	from, where := s.item.member("from"), s.where+".from"
	switch spec := source.Spec.(type) {
	case ConditionNode:
		if !s.hasHandle {
			b.c.add(from, "P68", where, "invalid_handle: a plain edge cannot leave condition "+shown(s.from),
				"name the branch, as in "+s.from+":true, or remove the edge: branches route by themselves")
			return false
		}
		target, ok := b.branchTarget(s.from, &spec, s.handle)
		switch {
		case !ok:
			b.c.add(from, "P67", where, "invalid_handle: condition "+shown(s.from)+" has no such branch", "use the value of a when")
		case okTo && target != "" && target != s.to:
			b.c.add(s.item.member("to"), "P72", s.where+".to", "invalid_handle: the branch leads to "+shown(target), "make them agree")
		default:
			return true
		}
		return false
	case ParallelNode:
		if !s.hasHandle && okTo && !slices.Contains(spec.Of, s.to) {
			b.c.add(s.item.member("to"), "P69", s.where+".to",
				shown(s.to)+" is not a member of parallel "+shown(s.from), "add it to parallel_of, or remove the edge")
			return false
		}
	case nil: // of an unknown type
		return true
	case InputNode, AgentNode, GateNode, TransformNode, MergeNode, OutputNode:
	}
	if s.hasHandle {
		b.c.add(from, "P67", where, "invalid_handle: node "+shown(s.from)+" is not a condition", "remove the part after the colon")
		return false
	}
	return true
}

// materialised adds the edges that conditions and parallels imply.
func (b *edgeBuilder) materialised() {
	for i := range b.g.nodes {
		n, source := &b.g.nodes[i], b.d.nodes[i]
		switch spec := n.Spec.(type) {
		case ConditionNode:
			branches := source.item.member("branches")
			for j, branch := range spec.Branches {
				b.implied(n.ID, branch.Target, true, entry(branches, j).member("target_node"),
					index(source.where+".branches", j)+".target_node")
			}
			b.implied(n.ID, spec.Default, true, source.item.member("default"), source.where+".default")
		case ParallelNode:
			members := source.item.member("parallel_of")
			for j, id := range spec.Of {
				b.implied(n.ID, id, false, entry(members, j), index(source.where+".parallel_of", j))
			}
		case InputNode, AgentNode, GateNode, TransformNode, MergeNode, OutputNode:
		}
	}
}

func entry(list *item, i int) *item {
	if list == nil || i >= len(list.items) {
		return &item{}
	}
	return list.items[i]
}

func (b *edgeBuilder) implied(from, to string, routed bool, n *item, where string) {
	if to == "" || !b.known(to, n, where) {
		return
	}
	key := [2]string{from, to}
	if j, ok := b.at[key]; ok {
		b.edges[j].Routed = b.edges[j].Routed || routed
		return
	}
	b.at[key] = len(b.edges)
	b.edges = append(b.edges, Edge{From: from, To: to, Routed: routed})
}

// data adds an edge for every output that a template refers to. Where a routing
// edge orders the two already, it adds none.
func (b *edgeBuilder) data() {
	for i := range b.g.nodes {
		n := &b.g.nodes[i]
		var refs []ref
		for _, s := range sinksOf(n) {
			refs = append(refs, s.refs...)
		}
		if spec, ok := n.Spec.(AgentNode); ok {
			if a, ok := b.d.workflow.Agent(spec.AgentRef); ok {
				refs = append(refs, b.c.promptRefs(a)...)
			}
		}
		for _, r := range refs {
			if r.kind != refOutput {
				continue
			}
			key := [2]string{r.name, n.ID}
			if _, ok := b.g.index[r.name]; !ok {
				continue
			}
			if _, ok := b.at[key]; ok {
				continue
			}
			b.at[key] = len(b.edges)
			b.edges = append(b.edges, Edge{From: r.name, To: n.ID, Data: true})
		}
	}
}

// sort puts the nodes in topological order, authored order breaking ties. Nodes
// on a cycle, and what depends on them, are left out.
func (g *graph) sort() {
	waiting := make(map[string]int, len(g.nodes))
	ready := &indexHeap{}
	for i := range g.nodes {
		id := g.nodes[i].ID
		if waiting[id] = len(g.in[id]); waiting[id] == 0 {
			heap.Push(ready, i)
		}
	}
	g.rank = make(map[string]int, len(g.nodes))
	for ready.Len() > 0 {
		i, _ := heap.Pop(ready).(int)
		id := g.nodes[i].ID
		g.rank[id] = len(g.order)
		g.order = append(g.order, id)
		for _, e := range g.out[id] {
			if waiting[e.To]--; waiting[e.To] == 0 {
				heap.Push(ready, g.index[e.To])
			}
		}
	}
}

// indexHeap yields the smallest index first.
type indexHeap []int

func (h indexHeap) Len() int           { return len(h) }
func (h indexHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h indexHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

func (h *indexHeap) Push(x any) {
	if i, ok := x.(int); ok {
		*h = append(*h, i)
	}
}

func (h *indexHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// reportCycles names the cycles of the nodes that were not sorted, some of them if
// they are many.
func (c *checker) reportCycles(d *draft, g *graph) {
	most := 20
	const (
		unseen = iota
		open
		done
	)
	state := make(map[string]int, len(g.nodes))
	type frame struct {
		id   string
		next int
	}
	for i := range g.nodes {
		if _, sorted := g.rank[g.nodes[i].ID]; sorted || state[g.nodes[i].ID] != unseen {
			continue
		}
		stack := []frame{{id: g.nodes[i].ID}}
		state[g.nodes[i].ID] = open
		for len(stack) > 0 && most > 0 {
			top := &stack[len(stack)-1]
			edges := g.out[top.id]
			if top.next == len(edges) {
				state[top.id] = done
				stack = stack[:len(stack)-1]
				continue
			}
			to := edges[top.next].To
			top.next++
			switch state[to] {
			case unseen:
				state[to] = open
				stack = append(stack, frame{id: to})
			case open:
				var path []string
				for j := len(stack) - 1; ; j-- {
					path = append(path, stack[j].id)
					if stack[j].id == to {
						break
					}
				}
				slices.Reverse(path)
				c.reportCycle(d, g, path)
				most--
			}
		}
	}
}

// reportCycle names a cycle, beginning with the node that stands first in the
// file. Long ones are cut in the middle.
func (c *checker) reportCycle(d *draft, g *graph, path []string) {
	first := 0
	for i, id := range path {
		if g.index[id] < g.index[path[first]] {
			first = i
		}
	}
	path = slices.Concat(path[first:], path[:first], path[first:first+1])
	const most = 20
	if len(path) > most {
		path = slices.Concat(path[:most-2], []string{"…"}, path[len(path)-1:])
	}
	source := d.nodes[g.index[path[0]]]
	c.add(source.item, "P70", source.where, "cycle: "+strings.Join(path, " -> "), "remove one of its edges or references")
}

// ancestorsOf returns every node from which id can be reached, in topological order.
func (g *graph) ancestorsOf(id string) []string {
	seen := map[string]bool{id: true}
	var out []string
	for queue := []string{id}; len(queue) > 0; queue = queue[1:] {
		for _, e := range g.in[queue[0]] {
			if !seen[e.From] {
				seen[e.From] = true
				out = append(out, e.From)
				queue = append(queue, e.From)
			}
		}
	}
	slices.SortFunc(out, func(a, b string) int { return g.rank[a] - g.rank[b] })
	return out
}

// mergeOrderOf returns the nodes with a routing edge into id: those that belong to
// the branches of its one parallel first, in parallel_of order, then the others
// as authored (format 1.12).
func (g *graph) mergeOrderOf(id string) []string {
	var sources []string
	for _, e := range g.in[id] {
		if !e.Data {
			sources = append(sources, e.From)
		}
	}
	branch := g.branchesOf(sources)
	slices.SortStableFunc(sources, func(a, b string) int { return branch[a] - branch[b] })
	return sources
}

// branchesOf numbers the sources of a merge by the branch of the one parallel that
// the merge joins. A source belongs to a branch when it is its first node or comes
// after it. A merge joins a parallel when it has sources of two of its branches,
// or, if there is no such parallel, when a member feeds it directly.
func (g *graph) branchesOf(sources []string) map[string]int {
	above := make(map[string]map[string]bool, len(sources))
	for _, s := range sources {
		above[s] = map[string]bool{s: true}
		for _, a := range g.ancestorsOf(s) {
			above[s][a] = true
		}
	}
	var joined, touched []map[string]int
	for i := range g.nodes {
		p, ok := g.nodes[i].Spec.(ParallelNode)
		if !ok {
			continue
		}
		branch, distinct, direct := make(map[string]int), make(map[int]bool), false
		for _, s := range sources {
			branch[s] = len(p.Of)
			for j, member := range p.Of {
				if above[s][member] {
					branch[s] = j
					distinct[j] = true
					direct = direct || member == s
					break
				}
			}
		}
		if len(distinct) > 1 {
			joined = append(joined, branch)
		} else if direct {
			touched = append(touched, branch)
		}
	}
	switch {
	case len(joined) == 1:
		return joined[0]
	case len(joined) == 0 && len(touched) == 1:
		return touched[0]
	}
	return nil
}

// HasGate tells whether a run can come to a human gate. Every node of a graph
// without cycles is reachable from one that nothing precedes, so it is enough
// that there is one.
func (w *Workflow) HasGate() bool {
	return slices.ContainsFunc(w.Nodes, func(n Node) bool {
		_, ok := n.Spec.(GateNode)
		return ok
	})
}
