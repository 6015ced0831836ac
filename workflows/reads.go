package workflows

import "slices"

// ReadsGiven reports whether rendering the template, which is one of w, reads a
// file whose path comes from an input or from what a node yielded: not one that
// the workflow or the configuration fixes. A nil Template reads none.
func (w *Workflow) ReadsGiven(t *Template) bool {
	if t == nil {
		return false
	}
	return slices.ContainsFunc(t.refs(), func(r ref) bool {
		return slices.Contains(r.filters, filterReadFile) && w.given(r, len(w.Context))
	})
}

// given reports whether a reference depends on an input or an output; only the
// first entries of the context are looked at, since one refers to earlier ones.
func (w *Workflow) given(r ref, entries int) bool {
	switch r.kind {
	case refInputs, refOutput:
		return true
	case refCtx:
		for i := range w.Context[:entries] {
			if w.Context[i].Key == r.name {
				return slices.ContainsFunc(fieldRefs(&w.Context[i].Value), func(inner ref) bool { return w.given(inner, i) })
			}
		}
	}
	return false
}

// Outputs lists the nodes whose outputs the template shows, each once, in the
// order of the text. A nil Template shows none.
func (t *Template) Outputs() []string {
	var nodes []string
	if t == nil {
		return nil
	}
	for _, r := range t.refs() {
		if r.kind == refOutput && !slices.Contains(nodes, r.name) {
			nodes = append(nodes, r.name)
		}
	}
	return nodes
}
