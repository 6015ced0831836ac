package builtin

import (
	"runtime"
	"slices"
	"strings"
	"unicode"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// allowed tells whether the workflow allows a command line: argv equals an entry of
// allowedCommands, split at single spaces, element by element, or matches one of
// allowedCommandGlobs. Nothing is quoted, and an element that could be read as
// several, or as another than it looks, is allowed by neither.
func allowed(policy workflows.ToolPolicy, argv []string) bool {
	if slices.ContainsFunc(argv, unclear) {
		return false
	}
	return slices.ContainsFunc(policy.AllowedCommands, func(entry string) bool {
		return slices.Equal(strings.Split(entry, " "), argv)
	}) || slices.ContainsFunc(policy.AllowedCommandGlobs, func(entry string) bool {
		return matchArgv(strings.Split(entry, " "), argv)
	})
}

// unclear tells whether an element of a command line is empty or holds white space,
// control characters or what does not show.
func unclear(element string) bool {
	return element == "" || strings.ContainsFunc(element, unicode.IsSpace) || text.Check(element) != nil
}

// matchArgv matches a pattern's elements with those of a command line: as many, the
// first without wildcards, and an option only by an element that begins as one.
func matchArgv(pattern, argv []string) bool {
	if len(pattern) != len(argv) || isPattern(pattern[0]) || pattern[0] != argv[0] {
		return false
	}
	for i, element := range argv[1:] {
		p := pattern[1+i]
		if option := optionOf(element); option != "" && !strings.HasPrefix(p, option) || !matchName(p, element) {
			return false
		}
	}
	return true
}

// optionOf is how an element begins that a program takes for an option, or "".
func optionOf(element string) string {
	if first := element[:1]; first == "-" || first == "/" && runtime.GOOS == "windows" {
		return first
	}
	return ""
}
