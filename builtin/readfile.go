package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of what one read_file returns.
const (
	maxRead  = 1 << 20 // bytes of text
	maxFiles = 50      // that a pattern may match
	maxPath  = 4096
	maxLines = 10_000_000
)

func (t *Tools) readFile() *tool {
	return &tool{
		id: "read_file",
		about: "Reads a UTF-8 text file of the workspace. Paths are relative to the workspace, with / between names, and may not leave it; " +
			"files that may hold credentials are refused, and a refused path ends the run. " +
			"A path with * or ? reads all files that match (** stands for any folders). " +
			"A path that begins with run: is one of this run's own folder, where long results are kept. " +
			"Returns content, mimeType, sizeBytes and lastModified; of a part of a file also where it is.",
		params: []param{
			{name: "path", schema: `{"type":"string"}`, about: "file to read, such as docs/guide.md", required: true},
			{name: "startLine", schema: `{"type":"integer","minimum":1}`, about: "first line to return, from 1; the whole file if absent"},
			{name: "lineCount", schema: `{"type":"integer","minimum":1}`, about: "how many lines to return at most"},
			{name: "startByte", schema: `{"type":"integer","minimum":1}`, about: "first byte to return, from 1, instead of startLine: for long lines"},
			{name: "byteCount", schema: `{"type":"integer","minimum":1}`, about: "how many bytes to return at most"},
		},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			name := a.text("path", maxPath)
			part := part{
				line: a.count("startLine", maxLines), lines: a.count("lineCount", maxLines),
				byte: a.count("startByte", maxLines), bytes: a.count("byteCount", maxLines),
			}
			if a.err != nil {
				return plan{}, a.err
			}
			out := plan{Admission: workflows.Admission{Repeatable: true}}
			if isPattern(name) {
				if len(name) > maxPattern {
					return out, incorrect("a pattern is of at most %d bytes", maxPattern)
				}
				if err := checkPath(strings.TrimPrefix(name, ownFolder)); err != nil {
					return out, err
				}
				if part.some() {
					return out, incorrect("a part is read of one file, not of a pattern")
				}
				out.perform = func(ctx context.Context) (json.RawMessage, error) { return t.readMatches(ctx, c, name) }
				return out, nil
			}
			if part.line+part.lines > 0 && part.byte+part.bytes > 0 {
				return out, incorrect("a part is of lines or of bytes")
			}
			p, err := t.find(c, name)
			out.perform = func(context.Context) (json.RawMessage, error) {
				read, err := p.read()
				if err != nil {
					return nil, err
				}
				return read.result(part)
			}
			return out, err
		},
	}
}

// A part is a range of lines or of bytes, both from 1; the zero value is the whole file.
type part struct{ line, lines, byte, bytes int }

func (p part) some() bool { return p != part{} }

// A contents is a file that was read.
type contents struct {
	shown    string
	text     []byte
	modified time.Time
}

// read reads the file at the place.
func (p *place) read() (*contents, error) {
	if len(p.names) == 0 {
		return nil, report("not a regular file")
	}
	jail, err := p.open(nil)
	if err != nil {
		return nil, err
	}
	file, err := openBelow(jail, p.names, p.floor)
	if err != nil {
		return nil, told(err)
	}
	about, err := file.Stat()
	var text []byte
	if err == nil {
		text, err = readAll(file)
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		if _, ok := errors.AsType[*ReadError](err); !ok {
			err = readFault(err)
		}
		return nil, told(err)
	}
	return &contents{shown: p.shown, text: text, modified: about.ModTime()}, nil
}

func (f *contents) fields(text []byte) []field {
	return []field{
		{"content", string(text)}, {"mimeType", mimeType(f.shown)}, {"sizeBytes", len(f.text)}, {"lastModified", stamp(f.modified)},
	}
}

func (f *contents) result(part part) (json.RawMessage, error) {
	text := f.text
	var more []field
	switch {
	case part.byte+part.bytes > 0:
		var first int
		if text, first = cutBytes(f.text, part.byte, part.bytes); first > max(len(f.text), 1) {
			return nil, report(fmt.Sprintf("the file has %d bytes", len(f.text)))
		}
		more = []field{{"startByte", first}}
	case part.some():
		first, lines := max(part.line, 1), 0
		if text, lines = cutLines(f.text, first, part.lines); first > max(lines, 1) {
			return nil, report(fmt.Sprintf("the file has %d lines", lines))
		}
		more = []field{{"startLine", first}, {"totalLines", lines}}
	}
	if len(text) > maxRead {
		return nil, report(fmt.Sprintf("the text is larger than %d bytes; read it in parts with lineCount or byteCount", maxRead))
	}
	return object(append(f.fields(text), more...)...)
}

// cutLines returns count lines (all if it is 0) from line first on, and how many
// lines there are.
func cutLines(text []byte, first, count int) (cut []byte, lines int) {
	for line := range strings.Lines(string(text)) {
		if lines++; lines >= first && (count == 0 || lines-first < count) {
			cut = append(cut, line...)
		}
	}
	return cut, lines
}

// cutBytes returns at most count bytes (all if it is 0), but one character at least, from the
// first one on that begins at byte start, which is counted from 1, or after it.
func cutBytes(text []byte, start, count int) (cut []byte, first int) {
	from := max(start, 1) - 1
	for from < len(text) && !utf8.RuneStart(text[from]) {
		from++
	}
	if from >= len(text) {
		return nil, max(start, from+1)
	}
	to := len(text)
	if count > 0 && from+count < to {
		for to = from + count; to > from && !utf8.RuneStart(text[to]); {
			to--
		}
		if to == from { // one character is more than was asked for, and less is none
			_, size := utf8.DecodeRune(text[from:])
			to += size
		}
	}
	return text[from:to], from + 1
}

// readMatches reads the files that a pattern matches.
func (t *Tools) readMatches(ctx context.Context, c *workflows.ToolCall, pattern string) (json.RawMessage, error) {
	folder, rest := fixedPart(pattern)
	p, err := t.find(c, folder)
	if err != nil {
		return nil, err
	}
	l := listing{glob: rest, whole: true, depth: maxDepth}
	if err := l.walk(ctx, p); err != nil {
		return nil, err
	}
	total := 0
	files := []json.RawMessage{}
	for _, e := range l.entries {
		if e.Type != "file" {
			continue
		}
		if len(files) == maxFiles {
			return nil, report(fmt.Sprintf("the pattern matches more than %d files", maxFiles))
		}
		one, err := t.find(c, p.below(e.Name))
		var read *contents
		if err == nil {
			read, err = one.read()
		}
		if said, ok := errors.AsType[report](err); ok { // one file that is no text does not hide the others
			note, err := object(field{"path", p.below(e.Name)}, field{"error", string(said)})
			if err != nil {
				return nil, err
			}
			files = append(files, note)
			continue
		}
		if err != nil {
			return nil, err
		}
		if total += len(read.text); total > maxRead {
			return nil, report(fmt.Sprintf("the files are larger than %d bytes together; read them one by one", maxRead))
		}
		entry, err := object(append([]field{{"path", read.shown}}, read.fields(read.text)...)...)
		if err != nil {
			return nil, err
		}
		files = append(files, entry)
	}
	if len(files) == 0 {
		return nil, report("no file matches the pattern")
	}
	return object(field{"files", files}, field{"truncated", l.truncated})
}

func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// mimeType is the media type of a text file by its name.
func mimeType(name string) string {
	ext := strings.ToLower(path.Ext(name))
	switch {
	case ext == ".json":
		return "application/json"
	case slices.Contains([]string{".yaml", ".yml"}, ext):
		return "application/yaml"
	case ext == ".toml":
		return "application/toml"
	case ext == ".xml":
		return "application/xml"
	case ext == ".svg":
		return "image/svg+xml"
	case ext == ".md":
		return "text/markdown"
	case slices.Contains([]string{".html", ".htm"}, ext):
		return "text/html"
	case slices.Contains([]string{".js", ".mjs", ".cjs"}, ext):
		return "text/javascript"
	case ext == ".css", ext == ".csv":
		return "text/" + ext[1:]
	default:
		return "text/plain"
	}
}
