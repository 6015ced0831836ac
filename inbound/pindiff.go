package inbound

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/inbound/text"
)

// maxDiffCells bounds the work of comparing two texts; beyond it one is shown whole
// after the other.
const maxDiffCells = 4 << 20

// Lines shows a change line by line: what went begins with "- ", what came with
// "+ ", and what stayed, as far as it is next to a change, with two blanks.
// Characters that do not show are escaped, so no difference is hidden.
func (c *ToolChange) Lines() []string {
	return diffLines(definitionLines(c.Before), definitionLines(c.After))
}

// Lines shows all that differs, for a person.
func (c *PinChange) Lines() []string {
	var out []string
	for i := range c.Changed {
		out = append(out, "changed  "+text.Quote(c.Changed[i].Name, 128))
		for _, line := range c.Changed[i].Lines() {
			out = append(out, "  "+line)
		}
	}
	for _, name := range c.Added {
		out = append(out, "new      "+text.Quote(name, 128))
	}
	for _, name := range c.Gone {
		out = append(out, "gone     "+text.Quote(name, 128))
	}
	if c.Reordered {
		out = append(out, "the tools are in another order")
	}
	return out
}

// definitionLines writes a definition for people: the description as text, the rest
// as indented JSON.
func definitionLines(definition []byte) []string {
	fields, ok := members(definition)
	if !ok {
		return nil
	}
	var lines []string
	for _, f := range fields {
		if description, isText := plainText(f.value); isText {
			lines = append(lines, f.key+":")
			for line := range strings.SplitSeq(description, "\n") {
				lines = append(lines, "  "+shownLine(line))
			}
			continue
		}
		var b bytes.Buffer
		if json.Indent(&b, f.value, "  ", "  ") != nil {
			continue
		}
		lines = append(lines, f.key+":")
		for line := range strings.SplitSeq("  "+b.String(), "\n") {
			lines = append(lines, shownLine(line))
		}
	}
	return lines
}

// shownLine is one line of whatever length, with what does not show escaped.
func shownLine(line string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(line, "\uFFFD") {
		if text.Check(string(r)) != nil {
			fmt.Fprintf(&b, `\u{%X}`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// diffLines compares by the longest common subsequence, with three lines around.
func diffLines(before, after []string) []string {
	const around = 3
	var marked []string
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	a, b := before[head:len(before)-tail], after[head:len(after)-tail]
	for _, line := range before[max(0, head-around):head] {
		marked = append(marked, "  "+line)
	}
	marked = append(marked, diffMiddle(a, b)...)
	for _, line := range before[len(before)-tail : len(before)-tail+min(around, tail)] {
		marked = append(marked, "  "+line)
	}
	return marked
}

func diffMiddle(a, b []string) []string {
	var out []string
	if len(a)*len(b) > maxDiffCells {
		for _, line := range a {
			out = append(out, "- "+line)
		}
		for _, line := range b {
			out = append(out, "+ "+line)
		}
		return out
	}
	// longest[i][j] is how many lines a[i:] and b[j:] have in common.
	longest := make([][]int32, len(a)+1)
	for i := range longest {
		longest[i] = make([]int32, len(b)+1)
	}
	for i := range slices.Backward(a) {
		for j := range slices.Backward(b) {
			if a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "  "+a[i])
			i++
			j++
		case j == len(b) || i < len(a) && longest[i+1][j] >= longest[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return out
}
