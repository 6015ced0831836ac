package workflows

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Bounds of a file (format 1.1).
const (
	maxFileBytes = 1 << 20
	maxDepth     = 60      // levels of a document; a snapshot adds two
	maxItems     = 100_000 // values of a document
)

// decode reads one YAML document of the profile of format 1.1. The item is nil
// when the file cannot be read at all; the problems are in file order. No
// problem repeats text of the file beyond plain words that are keys.
func decode(file string, src []byte) (*item, Problems) {
	d := &decoder{file: file}
	if len(src) > maxFileBytes {
		d.add("P01", 1, 1, "", "file is larger than 1 MiB", "split it, or read long texts with read_file")
		return nil, d.problems
	}
	src, ok := d.text(src)
	if !ok {
		return nil, d.problems
	}
	root := d.document(src)
	if root == nil {
		return nil, d.problems
	}
	d.src = src
	n := d.item(root, nil, 0)
	if d.overflow {
		return nil, d.problems
	}
	return n, d.problems
}

// decoder holds the state of one decode.
type decoder struct {
	file     string
	problems Problems
	count    int
	overflow bool
	restore  *strings.Replacer // nil unless the file holds a rare line separator

	src            []byte // what the parser saw
	line, col, off int    // cursor in src: 0-based line and column, and the byte
}

func (d *decoder) add(rule string, line, col int, where, what, remedy string) {
	d.problems = append(d.problems, Problem{
		File: d.file, Line: line, Col: col, Rule: rule, Class: classOf(rule), Where: where, What: what, Remedy: remedy,
	})
}

// text checks the encoding and returns the bytes as the parser may see them: no
// byte order mark, no version directive (it changes nothing, format 1.1).
func (d *decoder) text(src []byte) ([]byte, bool) {
	const remedy = "save it as UTF-8"
	if bytes.HasPrefix(src, []byte{0xFE, 0xFF}) || bytes.HasPrefix(src, []byte{0xFF, 0xFE}) {
		d.add("P02", 1, 1, "", "file is UTF-16", remedy)
		return nil, false
	}
	src = bytes.TrimPrefix(src, []byte("\uFEFF"))
	for i := 0; i < len(src); {
		r, size := utf8.DecodeRune(src[i:])
		what := ""
		switch {
		case r == 0 && i < 4:
			what = "file is UTF-16 or UTF-32"
		case r == utf8.RuneError && size == 1:
			what = "byte is not UTF-8, as in a Latin-1 file"
		case isControl(r):
			line, col := position(src, i)
			d.add("P02", line, col, "", "control character in the file", "escape it in double quotes")
			return nil, false
		}
		if what != "" {
			line, col := position(src, i)
			d.add("P02", line, col, "", what, remedy)
			return nil, false
		}
		i += size
	}
	return d.separators(withoutDirective(src)), true
}

// isControl tells whether YAML forbids a character.
func isControl(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7F && r < 0xA0 && r != 0x85 || r == 0xFFFE || r == 0xFFFF
}

// withoutDirective turns a %YAML line before the document into a comment.
func withoutDirective(src []byte) []byte {
	for off := 0; off < len(src); {
		line := src[off:]
		if i := bytes.IndexByte(line, '\n'); i >= 0 {
			line = line[:i+1]
		}
		switch text := bytes.TrimSpace(line); {
		case bytes.HasPrefix(line, []byte("%YAML ")):
			src = bytes.Clone(src)
			src[off] = '#'
			return src
		case len(text) > 0 && text[0] != '#' && text[0] != '%':
			return src
		}
		off += len(line)
	}
	return src
}

// separators hides U+0085, U+2028 and U+2029, which break lines in YAML 1.1, as
// the parser has it, but not in 1.2.
func (d *decoder) separators(src []byte) []byte {
	const rare, first, last = "\u0085\u2028\u2029", 0xE000, 0xF8FF
	if !bytes.ContainsAny(src, rare) {
		return src
	}
	var hide, restore []string
	stand := rune(first)
	for _, r := range rare {
		for stand <= last && bytes.ContainsRune(src, stand) {
			stand++
		}
		if stand > last {
			return src
		}
		hide = append(hide, string(r), string(stand))
		restore = append(restore, string(stand), string(r))
		stand++
	}
	d.restore = strings.NewReplacer(restore...)
	return []byte(strings.NewReplacer(hide...).Replace(string(src)))
}

func (d *decoder) restored(s string) string {
	if d.restore == nil {
		return s
	}
	return d.restore.Replace(s)
}

// document parses src, which must hold exactly one document.
func (d *decoder) document(src []byte) *yaml.Node {
	docs, err := parseDocuments(src)
	switch {
	case err != nil:
		d.syntax(src, err)
		return nil
	case len(docs) == 0 || len(docs[0].Content) == 0 || isEmpty(docs[0].Content[0]):
		d.add("P09", 1, 1, "", "file holds no document", "")
		return nil
	case len(docs) > 1:
		d.add("P08", docs[1].Line, docs[1].Column, "", "file holds a second document", "keep one document a file")
		return nil
	}
	return docs[0].Content[0]
}

func isEmpty(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value == "" && n.Anchor == ""
}

// parseDocuments returns the first document and, if there is one, the second.
func parseDocuments(src []byte) (docs []*yaml.Node, err error) {
	defer func() {
		if recover() != nil {
			docs, err = nil, errors.New("panic")
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(src))
	for len(docs) < 2 {
		var n yaml.Node
		if err := dec.Decode(&n); errors.Is(err, io.EOF) {
			return docs, nil
		} else if err != nil {
			return nil, err
		}
		docs = append(docs, &n)
	}
	return docs, nil
}

// syntax reports why the parser gave up, in words of our own.
func (d *decoder) syntax(src []byte, err error) {
	text, line := splitLine(err.Error())
	if line = preciseLine(src, text, line); line == 0 {
		line = 1
	}
	rows := bytes.Split(src, []byte("\n"))
	line = min(line, len(rows))
	// The parser may be a line late about a tab.
	for _, l := range []int{line - 1, line, line + 1} {
		if l < 1 || l > len(rows) {
			continue
		}
		row := rows[l-1]
		indent := row[:len(row)-len(bytes.TrimLeft(row, " \t"))]
		if i := bytes.IndexByte(indent, '\t'); i >= 0 && len(bytes.TrimSpace(row)) > 0 &&
			(strings.Contains(text, "cannot start any token") || strings.Contains(text, "tab character")) {
			d.add("P02", l, i+1, "", "tab used for indentation", "indent with spaces")
			return
		}
	}
	row := rows[line-1]
	col := 1 + len(row) - len(bytes.TrimLeft(row, " \t"))
	rule, what, remedy := explain(text)
	d.add(rule, line, col, "", what, remedy)
}

// splitLine takes "yaml: line 3: text" apart; line is 0 when there is none.
func splitLine(message string) (text string, line int) {
	text = strings.TrimPrefix(message, "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, err := fmt.Sscanf(rest, "%d:", &line); err == nil {
			_, text, _ = strings.Cut(rest, ": ")
		}
	}
	return text, line
}

// preciseLine finds the line whose reading makes the parser fail: it names the
// line where the surrounding block began. A parser reads from left to right, so
// the shortest run of lines that fails alike ends with the line we look for.
func preciseLine(src []byte, text string, line int) int {
	const most = 64 << 10
	if len(src) > most {
		return line
	}
	var ends []int
	for i, c := range src {
		if c == '\n' || i == len(src)-1 {
			ends = append(ends, i+1)
		}
	}
	low, high := 1, len(ends)
	for low < high {
		mid := (low + high) / 2
		_, err := parseDocuments(src[:ends[mid-1]])
		if err != nil {
			if got, _ := splitLine(err.Error()); got == text {
				high = mid
				continue
			}
		}
		low = mid + 1
	}
	return high
}

// explain puts the parser's message in fixed words, since it may quote the file.
func explain(message string) (rule, what, remedy string) {
	for _, known := range [][4]string{
		{"unknown anchor", "P03", "alias is not allowed", "write the value out"},
		{"found undefined tag handle", "P07", "tag is not allowed", "remove it"},
		{"exceeded max depth", "P02", "values are nested too deeply", ""},
		{"cannot start any token", "P02", "character cannot start a value", "quote the text"},
		{"mapping values are not allowed", "P02", "a second colon, or wrong indentation", "quote text that holds a colon"},
		{"did not find expected key", "P02", "expected a key: wrong indentation or a missing quote", ""},
		{"did not find expected '-' indicator", "P02", "expected a list entry: wrong indentation", ""},
		{"could not find expected ':'", "P02", "a key without a colon", ""},
		{"did not find expected ',' or '}'", "P02", "expected a comma or }", "quote text between braces that holds ? : , [ ] { or }"},
		{"did not find expected ',' or ']'", "P02", "expected a comma or ]", "quote text between brackets that holds ? : , [ ] { or }"},
		{"unexpected end of stream", "P02", "text in quotes has no end", ""},
		{"unexpected document indicator", "P02", "text in quotes has no end", ""},
		{"unknown escape character", "P02", "unknown escape in double quotes", "double the backslash, or use single quotes"},
		{"invalid Unicode character escape", "P02", "escape is no Unicode character", ""},
		{"did not find expected hexdecimal", "P02", "escape lacks hexadecimal digits", ""},
		{"did not find expected node content", "P02", "a bracket without its other half, or a value is missing", ""},
		{"did not find expected comment or line break", "P02", "text after the sign of a block text", ""},
		{"did not find expected tag URI", "P07", "tag is not allowed", "remove it"},
		{"alphabetic or numeric character", "P03", "alias or anchor is not allowed", "quote text that begins with * or &"},
		{"block sequence entries are not allowed", "P02", "a list entry is not allowed here: wrong indentation", ""},
		{"while scanning a block scalar", "P02", "block text is wrongly indented", ""},
		{"found a tab character", "P02", "tab used for indentation", "indent with spaces"},
		{"directive", "P02", "wrong directive", "remove it"},
		{"did not find expected <document start>", "P02", "text after the end of the document", ""},
	} {
		if strings.Contains(message, known[0]) {
			return known[1], known[2], known[3]
		}
	}
	return "P02", "not valid YAML", ""
}

// position is the 1-based line and column, in code points, of a byte.
func position(src []byte, off int) (line, col int) {
	before := src[:off]
	start := bytes.LastIndexByte(before, '\n') + 1
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[start:])
}

// A place is a path in the document, put in words only when it is needed.
type place struct {
	up    *place
	key   string
	index int // of an entry of a list
	list  bool
}

func (p *place) String() string {
	switch {
	case p == nil:
		return ""
	case p.list:
		return index(p.up.String(), p.index)
	}
	return join(p.up.String(), p.key)
}

// item turns a parsed node into an item; where is its path in the document.
func (d *decoder) item(n *yaml.Node, where *place, depth int) *item {
	out := &item{kind: badItem, line: n.Line, col: n.Column}
	d.count++
	switch {
	case d.overflow:
		return out
	case depth > maxDepth:
		d.add("P02", n.Line, n.Column, "", "values are nested too deeply", "")
		d.overflow = true
		return out
	case d.count > maxItems:
		d.add("P01", n.Line, n.Column, "", "file holds more than 100,000 values", "")
		d.overflow = true
		return out
	case n.Kind == yaml.AliasNode:
		d.add("P03", n.Line, n.Column, where.String(), "alias is not allowed", "write the value out")
		return out
	}
	if n.Anchor != "" {
		d.add("P03", n.Line, n.Column, where.String(), "anchor is not allowed", "remove it")
	}
	if n.Style&yaml.TaggedStyle != 0 || n.Anchor == "" && d.startsWith(n, '!') {
		d.add("P07", n.Line, n.Column, where.String(), "tag is not allowed", "remove it")
		return out
	}
	switch n.Kind {
	case yaml.ScalarNode:
		d.scalar(n, out, where)
	case yaml.SequenceNode:
		out.kind = listItem
		out.items = make([]*item, 0, len(n.Content))
		for i, v := range n.Content {
			out.items = append(out.items, d.item(v, &place{up: where, index: i, list: true}, depth+1))
		}
	case yaml.MappingNode:
		d.mapping(n, out, where, depth)
	case yaml.DocumentNode, yaml.AliasNode:
	}
	return out
}

func (d *decoder) scalar(n *yaml.Node, out *item, where *place) {
	const quoted = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if n.Style&quoted != 0 {
		out.kind, out.text = stringItem, d.restored(n.Value)
		return
	}
	k, text, finite := resolveScalar(n.Value)
	switch {
	case !finite:
		d.add("P13", n.Line, n.Column, where.String(), "number is not finite", "")
	case k == numberItem && checkNumber(text) != "":
		d.add("P13", n.Line, n.Column, where.String(), checkNumber(text), "quote it to keep it as text")
	default:
		out.kind, out.text = k, d.restored(text)
	}
}

func (d *decoder) mapping(n *yaml.Node, out *item, where *place, depth int) {
	out.kind = mapItem
	size := len(n.Content) / 2
	out.keys = make([]itemKey, 0, size)
	out.items = make([]*item, 0, size)
	first := make(map[string]int, size)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		key, ok := d.key(k, where)
		if !ok {
			continue
		}
		path := &place{up: where, key: key.name}
		if line, twice := first[key.name]; twice {
			d.add("P05", key.line, key.col, path.String(),
				fmt.Sprintf("duplicate key %s on lines %d and %d", shown(key.name), line, key.line), "keep one")
			continue
		}
		first[key.name] = key.line
		out.keys = append(out.keys, key)
		out.items = append(out.items, d.item(n.Content[i+1], path, depth+1))
	}
}

// key reads the key of a map; keys are strings whatever they look like.
func (d *decoder) key(k *yaml.Node, where *place) (itemKey, bool) {
	key := itemKey{name: d.restored(k.Value), line: k.Line, col: k.Column}
	switch {
	case k.Kind == yaml.AliasNode:
		d.add("P03", k.Line, k.Column, where.String(), "alias is not allowed", "write the key out")
	case k.Kind != yaml.ScalarNode:
		d.add("P06", k.Line, k.Column, where.String(), "key is not a scalar", "use a plain word as key")
	case k.Anchor != "":
		d.add("P03", k.Line, k.Column, where.String(), "anchor is not allowed", "remove it")
	case k.Style == 0 && k.Value == "<<":
		d.add("P04", k.Line, k.Column, where.String(), "merge key is not allowed", "write the keys out")
	case k.Style&yaml.TaggedStyle != 0 || d.startsWith(k, '!'):
		d.add("P07", k.Line, k.Column, where.String(), "tag is not allowed", "remove it")
	default:
		return key, true
	}
	return key, false
}

// startsWith tells whether the source has c where the node begins. The parser
// drops the non-specific tag "!", so only the source shows it. Nodes come in file
// order, hence the cursor only moves forward.
func (d *decoder) startsWith(n *yaml.Node, c byte) bool {
	if n.Kind == yaml.ScalarNode && n.Style == 0 && n.Value == "" {
		return false
	}
	for d.line < n.Line-1 {
		i := bytes.IndexByte(d.src[d.off:], '\n')
		if i < 0 {
			return false
		}
		d.line, d.col, d.off = d.line+1, 0, d.off+i+1
	}
	for d.line == n.Line-1 && d.col < n.Column-1 && d.off < len(d.src) {
		_, size := utf8.DecodeRune(d.src[d.off:])
		d.col, d.off = d.col+1, d.off+size
	}
	return d.line == n.Line-1 && d.col == n.Column-1 && d.off < len(d.src) && d.src[d.off] == c
}

// join is the path of a key below where.
func join(where, key string) string {
	if !isPlain(key) {
		key = "…"
	}
	if where == "" {
		return key
	}
	return where + "." + key
}
