package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Classes of problems (format 1.1). The first four are errors.
const (
	ClassSyntax     = "syntax"
	ClassValidation = "validation"
	ClassSecretLeak = "secret_leak"
	ClassGraph      = "graph"
	ClassWarning    = "warning"
)

// A Problem is one thing wrong with a file. No field of it holds a value of the
// file: names of keys, nodes and agents are all it says.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`   // 1-based; 0 in a snapshot
	Col    int    `json:"column"` // 1-based, in code points
	Rule   string `json:"rule"`   // P01 to P75
	Class  string `json:"class"`  // one of the Class constants
	Where  string `json:"where"`  // workflow.nodes[2].branches[0].when
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

// String is "file:line:col: where: what: remedy", without the parts that are empty.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Col)
	}
	for _, part := range []string{p.Where, p.What, p.Remedy} {
		if part == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	return b.String()
}

// Problems are all problems of a file, in file order; as an error each is a line
// "file:line:col: where: what: remedy".
type Problems []Problem //nolint:errname // a list of problems, which is an error too

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// split parts errors from warnings, each in file order and bounded. Problems of the
// file itself come before those of the files it refers to.
func (p Problems) split(file string) (errs, warnings Problems) {
	rank := func(q Problem) int {
		if q.File == file {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(rank(a), rank(b)),
			strings.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Col, b.Col),
		)
	})
	for _, q := range p {
		if q.Class == ClassWarning {
			warnings = append(warnings, q)
		} else {
			errs = append(errs, q)
		}
	}
	return errs.bounded(), warnings.bounded()
}

// maxProblems is how many problems of a file are told apart.
const maxProblems = 100

// bounded replaces what is over maxProblems by one problem that counts it.
func (p Problems) bounded() Problems {
	if len(p) <= maxProblems {
		return p
	}
	more := p[maxProblems]
	more.Where, more.What, more.Remedy = "", fmt.Sprintf("%d more problems from here", len(p)-maxProblems), ""
	return append(p[:maxProblems:maxProblems], more)
}

// classOf is the class of an error by its rule.
func classOf(rule string) string {
	switch {
	case rule <= "P09":
		return ClassSyntax
	case rule == "P29" || rule == "P60":
		return ClassSecretLeak
	case rule >= "P66" && rule <= "P72":
		return ClassGraph
	}
	return ClassValidation
}

// nearest is the candidate that a misspelt word most likely meant, or "".
func nearest(word string, candidates []string) string {
	if len(word) > 64 || len(candidates) > 500 {
		return ""
	}
	best, distance := "", 3
	for _, c := range candidates {
		if d := EditDistance(strings.ToLower(word), strings.ToLower(c)); d < distance && d*2 < max(len(word), 2) {
			best, distance = c, d
		}
	}
	return best
}

// EditDistance counts insertions, deletions, replacements and swaps of neighbours
// between two words, of which at most 64 bytes are looked at.
func EditDistance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// shown quotes a name for a message; a name that is not a plain word is left out,
// because it may be anything the file holds.
func shown(name string) string {
	if !isPlain(name) {
		return "…"
	}
	return `"` + name + `"`
}

// isPlain tells whether a name is a word that a message may repeat.
func isPlain(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return !isNameRune(r) && r != '.' && r != '$' && r != ':'
	})
}

func isNameRune(r rune) bool {
	return r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}
