package builtin

import (
	"path"
	"strings"
)

// isPattern tells whether a path has wildcards. Brackets and braces are none: they
// stand in names of files.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?") }

// fixedPart splits a pattern into the folder before its first wildcard and the rest.
func fixedPart(pattern string) (folder, rest string) {
	at := strings.LastIndex(pattern[:strings.IndexAny(pattern, "*?")], "/") + 1
	folder, rest = pattern[:at], pattern[at:]
	if folder == "" {
		folder = "."
		if after, ok := strings.CutPrefix(rest, ownFolder); ok {
			return ownFolder, after
		}
	}
	return folder, rest
}

// matchPath tells whether a pattern matches a whole path: * and ? inside one name,
// ** any number of names. It takes time of the product of both lengths at most.
func matchPath(pattern, name string) bool {
	patterns, names := strings.Split(path.Clean(pattern), "/"), strings.Split(name, "/")
	// matched[j] tells whether the patterns so far match the first j names.
	matched := make([]bool, len(names)+1)
	matched[0] = true
	for _, p := range patterns {
		next := make([]bool, len(names)+1)
		for j := range next {
			if p == "**" {
				next[j] = matched[j] || j > 0 && next[j-1]
			} else {
				next[j] = j > 0 && matched[j-1] && matchName(p, names[j-1])
			}
		}
		matched = next
	}
	return matched[len(names)]
}

// matchName tells whether a pattern matches a whole name: * is any text, ? any one
// character, and all else itself.
func matchName(pattern, name string) bool {
	p, n := []rune(pattern), []rune(name)
	i, j, star, mark := 0, 0, -1, 0
	for j < len(n) {
		switch {
		case i < len(p) && p[i] == '*':
			star, mark = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == n[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}
