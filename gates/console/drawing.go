package console

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// Sizes of a drawing, in CSS pixels.
const (
	boxWidth  = 168.0
	boxHeight = 52.0
	boxGap    = 18.0
	layerGap  = 46.0
	laneWidth = 20.0 // that an edge takes up where it passes a layer
	margin    = 12.0
	maxLabel  = 14 // characters
)

// A larger graph is listed only.
const (
	maxShrunk     = 780.0
	maxDrawnNodes = 200
	maxDrawnEdges = 600
	maxDrawnLanes = 4000
)

// A drawing is the graph of a run as SVG shows it.
type drawing struct {
	Width, Height string
	Fits          bool // it may be made smaller to fit without being too small to read
	Boxes         []box
	Lines         []wire
	Alt           string // what a reader who cannot see it hears
}

// A box is one node.
type box struct {
	Anchor       string
	X, Y         string
	TextX, SignX string
	NameY, NoteY string
	Name, Note   string
	Full         string
	Sign, State  string
}

// A wire is one edge.
type wire struct {
	Path           string
	State          string // live, dead or open
	Data           bool
	Label          string
	Full           string // the label, whole
	LabelX, LabelY string
	LabelWidth     string
	LabelLeft      string
	LabelTop       string
}

func (w *wire) rank() int {
	if w.State == "live" {
		return 1
	}
	return 0
}

// A spot is what takes up room in a layer: a node, or an edge on its way.
type spot struct {
	node  int // in authored order; -1 for an edge on its way
	layer int
	x     float64 // of the centre
	in    []*spot
	out   []*spot
}

func (s *spot) width() float64 {
	if s.node < 0 {
		return laneWidth
	}
	return boxWidth
}

// draw lays the graph out in layers, from its inputs down. It is nil for a graph
// that is too large to be of use as a picture.
func draw(w *workflows.Workflow, states []engine.NodeState, ended bool) *drawing {
	edges := drawnEdges(w)
	if len(w.Nodes) == 0 || len(w.Nodes) > maxDrawnNodes || len(edges) > maxDrawnEdges || len(states) != len(w.Nodes) {
		return nil
	}
	layers, routes := layered(w, edges)
	if layers == nil {
		return nil
	}
	settle(layers)
	right := 0.0
	for _, layer := range layers {
		last := layer[len(layer)-1]
		right = max(right, last.x+last.width()/2)
	}
	d := &drawing{
		Width:  number(right + margin),
		Fits:   right < maxShrunk,
		Height: number(2*margin + float64(len(layers))*(boxHeight+layerGap) - layerGap),
		Alt:    fmt.Sprintf("The graph of the workflow with %d steps; the list below has the same in words.", len(w.Nodes)),
	}
	for i, e := range edges {
		d.Lines = append(d.Lines, drawWire(w, e, routes[i], states))
	}
	slices.SortStableFunc(d.Lines, func(a, b wire) int { // taken ones on top of the others
		return cmp.Compare(a.rank(), b.rank())
	})
	for _, layer := range layers {
		for _, s := range layer {
			if s.node >= 0 {
				d.Boxes = append(d.Boxes, drawBox(&w.Nodes[s.node], &states[s.node], ended, s))
			}
		}
	}
	slices.SortFunc(d.Boxes, func(a, b box) int { return strings.Compare(a.Anchor, b.Anchor) })
	return d
}

// drawnEdges leaves out a data edge that says no more than the others do.
func drawnEdges(w *workflows.Workflow) []workflows.Edge {
	return slices.DeleteFunc(slices.Clone(w.Edges), func(e workflows.Edge) bool {
		return e.Data && slices.ContainsFunc(w.In(e.To), func(other workflows.Edge) bool {
			return other.From != e.From && slices.Contains(w.Ancestors(other.From), e.From)
		})
	})
}

// layered gives each node the layer below its lowest predecessor, and each edge a
// spot in every layer that it passes.
func layered(w *workflows.Workflow, edges []workflows.Edge) (layers [][]*spot, routes [][]*spot) {
	depth := make(map[string]int, len(w.Nodes))
	deepest := 0
	for _, id := range w.Topological() {
		for _, e := range w.In(id) {
			depth[id] = max(depth[id], depth[e.From]+1)
		}
		deepest = max(deepest, depth[id])
	}
	layers = make([][]*spot, deepest+1)
	place := func(node, layer int) *spot {
		s := &spot{node: node, layer: layer}
		layers[layer] = append(layers[layer], s)
		return s
	}
	at := make(map[string]*spot, len(w.Nodes))
	for i := range w.Nodes {
		at[w.Nodes[i].ID] = place(i, depth[w.Nodes[i].ID])
	}
	lanes := 0
	for _, e := range edges {
		route := []*spot{at[e.From]}
		for layer := depth[e.From] + 1; layer < depth[e.To]; layer++ {
			if lanes++; lanes > maxDrawnLanes {
				return nil, nil
			}
			route = append(route, place(-1, layer))
		}
		route = append(route, at[e.To])
		for i := 1; i < len(route); i++ {
			route[i-1].out = append(route[i-1].out, route[i])
			route[i].in = append(route[i].in, route[i-1])
		}
		routes = append(routes, route)
	}
	return layers, routes
}

// settle orders every layer by where its neighbours are, and moves it there as
// far as nothing overlaps.
func settle(layers [][]*spot) {
	for _, layer := range layers {
		spread(layer, make([]float64, len(layer)))
	}
	above := func(s *spot) []*spot { return s.in }
	below := func(s *spot) []*spot { return s.out }
	for round := range 8 {
		for i := range layers {
			towards(layers[i], above, round < 6)
		}
		for i := range slices.Backward(layers) {
			towards(layers[i], below, round < 6)
		}
	}
	for i := range layers {
		towards(layers[i], above, false)
	}
	left := layers[0][0].x
	for _, layer := range layers {
		left = min(left, layer[0].x-layer[0].width()/2)
	}
	for _, layer := range layers {
		for _, s := range layer {
			s.x += margin - left
		}
	}
}

// towards moves a layer to the middle of its neighbours, in their order if it may
// be ordered anew.
func towards(layer []*spot, neighbours func(*spot) []*spot, order bool) {
	want := make(map[*spot]float64, len(layer))
	for _, s := range layer {
		want[s] = s.x
		if near := neighbours(s); len(near) > 0 {
			sum := 0.0
			for _, n := range near {
				sum += n.x
			}
			want[s] = sum / float64(len(near))
		}
	}
	if order {
		slices.SortStableFunc(layer, func(a, b *spot) int {
			switch {
			case want[a] < want[b]:
				return -1
			case want[a] > want[b]:
				return 1
			}
			return 0
		})
	}
	at := make([]float64, len(layer))
	for i, s := range layer {
		at[i] = want[s]
	}
	spread(layer, at)
}

// spread puts a layer where it is wanted, pushing apart what would overlap: the
// middle between pushing all to the right and all to the left.
func spread(layer []*spot, want []float64) {
	right, left := slices.Clone(want), slices.Clone(want)
	apart := func(i int) float64 { return (layer[i].width()+layer[i+1].width())/2 + boxGap }
	for i := 1; i < len(layer); i++ {
		right[i] = max(right[i], right[i-1]+apart(i-1))
	}
	for i := len(layer) - 2; i >= 0; i-- {
		left[i] = min(left[i], left[i+1]-apart(i))
	}
	for i, s := range layer {
		s.x = (right[i] + left[i]) / 2
	}
}

func (s *spot) top() float64 { return margin + float64(s.layer)*(boxHeight+layerGap) }

func number(f float64) string {
	return strings.TrimSuffix(strings.TrimSuffix(fmt.Sprintf("%.1f", f), "0"), ".")
}

func drawBox(n *workflows.Node, state *engine.NodeState, ended bool, s *spot) box {
	name := n.Label
	if name == "" {
		name = n.ID
	}
	left, top := s.x-boxWidth/2, s.top()
	return box{
		Anchor: fmt.Sprintf("step-%d", s.node), X: number(left), Y: number(top),
		SignX: number(left + 16), TextX: number(left + 30), NameY: number(top + 22), NoteY: number(top + 39),
		Name: line(name, 17), Note: typeWord(n.Type()) + " · " + stateWord(state.State, ended),
		Full: line(name, 200) + " (" + typeWord(n.Type()) + "): " + stateWord(state.State, ended),
		Sign: sign(stateClass(state.State, ended)), State: stateClass(state.State, ended),
	}
}

// stateWord is the state of a node for people: nothing waits in a run that has ended.
func stateWord(state string, ended bool) string {
	if ended {
		switch state {
		case "pending":
			return "not reached"
		case "running":
			return "not finished"
		case "waiting":
			return "not decided"
		}
	}
	return state
}

// stateClass is the state that a node looks like.
func stateClass(state string, ended bool) string {
	if stateWord(state, ended) != state {
		return "pending"
	}
	return state
}

// sign is a state as one character, so that colour is not all there is.
func sign(state string) string {
	switch state {
	case "completed":
		return "✓"
	case "failed":
		return "✕"
	case "waiting":
		return "?"
	case "running":
		return "▸"
	case "skipped", "cancelled":
		return "–"
	}
	return "·"
}

// drawWire draws an edge from the foot of its source, through the layers that it
// passes, to the head of its target.
func drawWire(w *workflows.Workflow, e workflows.Edge, route []*spot, states []engine.NodeState) wire {
	first, last := route[0], route[len(route)-1]
	out := wire{Data: e.Data, State: "open", Full: line(edgeLabel(w, e), 200)}
	out.Label = line(out.Full, maxLabel)
	from, to := states[first.node].State, states[last.node].State
	switch {
	case to == "skipped" || from == "skipped":
		out.State = "dead"
	case from == "completed" && to != "pending":
		out.State = "live"
	}
	var b strings.Builder
	x, y := first.x, first.top()+boxHeight
	fmt.Fprintf(&b, "M%s %s", number(x), number(y))
	for _, s := range route[1:] {
		top := s.top()
		middle := y + (top-y)/2
		fmt.Fprintf(&b, "C%s %s %s %s %s %s", number(x), number(middle), number(s.x), number(middle), number(s.x), number(top-1))
		x, y = s.x, top
		if s.node < 0 {
			y = top + boxHeight
			fmt.Fprintf(&b, "L%s %s", number(x), number(y))
		}
	}
	out.Path = b.String()
	if out.Label != "" {
		wide := 7*float64(utf8.RuneCountInString(out.Label)) + 12
		// Where the first bend is at t = 0.6: there the edges of one node are apart.
		lx, ly := first.x+0.648*(route[1].x-first.x), first.top()+boxHeight+0.576*layerGap
		out.LabelX, out.LabelY = number(lx), number(ly+4)
		out.LabelWidth, out.LabelLeft, out.LabelTop = number(wide), number(lx-wide/2), number(ly-9)
	}
	return out
}

// edgeLabel is for which values a condition takes the edge, or the edge's own
// condition or label.
func edgeLabel(w *workflows.Workflow, e workflows.Edge) string {
	if e.Routed {
		var parts []string
		if n, ok := w.Node(e.From); ok {
			if spec, ok := n.Spec.(workflows.ConditionNode); ok {
				for _, branch := range spec.Branches {
					if branch.Target == e.To {
						parts = append(parts, string(branch.When))
					}
				}
				if spec.Default == e.To {
					parts = append(parts, "default")
				}
			}
		}
		return strings.Join(parts, ", ")
	}
	if e.Label != "" {
		return e.Label
	}
	return e.Condition
}
