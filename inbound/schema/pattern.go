package schema

import (
	"regexp"
	"regexp/syntax"

	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

const (
	maxPatterns     = 64
	maxPatternBytes = 512
	maxProgram      = 50_000 // steps of all patterns of one schema
)

// patterns are the regular expressions of one schema.
type patterns struct {
	compiled map[string]*regexp.Regexp
	count    int
	program  int
}

// add compiles one more pattern. It is read as JavaScript does; one that is none,
// but that RE2 reads (a flag, an anchor of another language), as RE2 does.
func (p *patterns) add(source string, at *place) error {
	p.count++
	switch {
	case p.count > maxPatterns:
		return at.refuse(Pattern, "more than 64 patterns")
	case len(source) > maxPatternBytes:
		return at.refuse(Pattern, "a pattern of more than 512 bytes")
	}
	if err := text.Check(source); err != nil {
		return at.refuse(Text, "a pattern "+err.Error())
	}
	if _, ok := p.compiled[source]; ok {
		return nil
	}
	translated, untranslated := workflows.TranslatePattern(source)
	if untranslated != nil {
		translated = source
	}
	tree, err := syntax.Parse(translated, syntax.Perl)
	if err != nil {
		if untranslated != nil {
			return at.refuse(Pattern, "RE2 cannot match it: "+untranslated.Error())
		}
		return at.refuse(Pattern, "RE2 cannot match it")
	}
	if p.program += size(tree); p.program > maxProgram {
		return at.refuse(Pattern, "repeats too much")
	}
	re, err := regexp.Compile(translated)
	if err != nil {
		return at.refuse(Pattern, "RE2 cannot match it")
	}
	p.compiled[source] = re
	return nil
}

// size estimates the steps of the program that an expression becomes, repetitions
// written out; it stops counting beyond the bound.
func size(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/16 // of a class, what matching it costs
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n = min(n+size(sub), maxProgram+1)
	}
	if re.Op == syntax.OpRepeat {
		n = min(n*max(re.Min, re.Max, 1), maxProgram+1)
	}
	return n
}
