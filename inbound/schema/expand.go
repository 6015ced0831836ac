package schema

import "slices"

// A slot is a step of the path from the root of the instance down to where a
// subschema applies.
type slot struct {
	above *slot
	name  string
	depth int
}

func (s *slot) below(name string) *slot {
	if s == nil {
		return &slot{name: name, depth: 1}
	}
	return &slot{above: s, name: name, depth: s.depth + 1}
}

// after is the path from above down to s.
func (s *slot) after(above *slot) []*slot {
	var path []*slot
	for at := s; at != above; at = at.above {
		path = append(path, at)
	}
	slices.Reverse(path)
	return path
}

// expand walks the schema as a validator would. A schema may recur below itself by
// one path for each child of the instance: two would double the work at every
// level.
func (w *walker) expand(n *node, at *slot) error {
	if w.expanded++; w.expanded > maxExpansion {
		return n.at.refuse(Expansion, "more than 20000 subschemas once every $ref is followed")
	}
	n.open, n.slot, n.again = true, at, nil
	defer func() { n.open = false }()
	for _, e := range n.edges {
		below := at
		if e.slot != inPlace {
			below = at.below(e.slot)
		}
		if !e.to.open {
			if err := w.expand(e.to, below); err != nil {
				return err
			}
			continue
		}
		path := below.after(e.to.slot)
		if len(path) == 0 {
			return n.at.refuse(Reference, "leads back to itself")
		}
		if w.recursTwice(e.to, path) {
			return n.at.refuse(Recursion, "recurs twice in one place")
		}
		if w.compared += len(path); w.compared > maxCompared {
			return n.at.refuse(Recursion, "recurs by too many paths")
		}
		e.to.again = append(e.to.again, path)
	}
	return nil
}

// recursTwice tells whether one more path of recursion could lead to a child that
// the others lead to already, also when one of them is walked several times. It
// is true as well when there are too many paths to tell.
func (w *walker) recursTwice(n *node, path []*slot) bool {
	for _, other := range n.again {
		short, long := other, path
		if len(short) > len(long) {
			short, long = long, short
		}
		if !w.overlap(short, long) {
			continue
		}
		rest := long[len(short):]
		if len(rest) == 0 || w.overlap(path[:1], rest) {
			return true
		}
		for _, p := range n.again {
			if w.overlap(p[:1], rest) {
				return true
			}
		}
	}
	return w.compared > maxCompared
}

// overlap tells whether the steps of short can be the first steps of long.
func (w *walker) overlap(short, long []*slot) bool {
	if w.compared > maxCompared {
		return false
	}
	for i := range short {
		w.compared++
		if !sameChild(short[i].name, long[i].name) {
			return false
		}
	}
	return true
}

// sameChild tells whether two slots can name the same child.
func sameChild(a, b string) bool {
	return a == b || a[0] == b[0] && (a[1] == '*' || b[1] == '*')
}
