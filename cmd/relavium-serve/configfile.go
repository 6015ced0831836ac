package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxConfig is the most bytes of one configuration file.
const maxConfig = 1 << 20

// A configFile is one file of the configuration, decoded, with the lines of its
// keys.
type configFile struct {
	name     string // how messages call it: config.toml, workspace.toml, project.toml
	settings settings
	keys     []keyLine
}

// A keyLine says where a key stands.
type keyLine struct {
	path []string
	line int
}

// line is where a key, or the first key below it, stands; 0 if nowhere.
func (f *configFile) line(path ...string) int {
	for _, key := range f.keys {
		if hasPrefix(key.path, path) {
			return key.line
		}
	}
	return 0
}

// fault names file, line and key.
func (f *configFile) fault(path []string, hint, format string, args ...any) error {
	where := f.name
	if line := f.line(path...); line > 0 {
		where = fmt.Sprintf("%s:%d", f.name, line)
	}
	return invalid(hint, "%s: %s: %s", where, dotted(path), fmt.Sprintf(format, args...))
}

// readConfig reads one configuration file; an absent one is nil. A link is
// refused unless follow is set, as for a file that the person named.
func readConfig(path, name string, follow bool) (*configFile, error) {
	look := os.Lstat
	if follow {
		look = os.Stat
	}
	seen, err := look(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !follow:
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, invalid("", "%s: no such file", name)
	case err != nil:
		return nil, invalid("", "%s: cannot be read", name)
	case !seen.Mode().IsRegular():
		return nil, invalid("put the file itself there, not a link to it", "%s: not a regular file", name)
	}
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, invalid("", "%s: cannot be read", name)
	}
	src, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, invalid("", "%s: cannot be read", name)
	}
	if len(src) > maxConfig {
		return nil, invalid("", "%s: larger than %d bytes", name, maxConfig)
	}
	return parseConfig(name, src)
}

// parseConfig decodes a configuration file strictly. Errors name file, line and
// key and never repeat a value.
func parseConfig(name string, src []byte) (*configFile, error) {
	f := &configFile{name: name}
	if err := toml.Unmarshal(src, &f.settings); err != nil {
		return nil, decodeFault(name, err)
	}
	f.keys = keyLines(src)
	var faults []error
	var last []string
	for _, key := range f.keys {
		_, known := typeAt(key.path)
		if known == len(key.path) || foreign(key.path) || (last != nil && hasPrefix(key.path, last)) {
			continue
		}
		last = key.path[:known+1]
		faults = append(faults, fmt.Errorf("%s:%d: unknown key %s: %s", name, key.line, dotted(last), nearest(last)))
	}
	if len(faults) > 0 {
		return nil, &fault{code: exitFault, err: errors.Join(faults...)}
	}
	return f, nil
}

func decodeFault(name string, err error) error {
	var wrong *toml.DecodeError
	if !errors.As(err, &wrong) {
		return invalid("", "%s: not valid TOML 1.0", name)
	}
	line, column := wrong.Position()
	if key := []string(wrong.Key()); len(key) > 0 {
		if want, ok := expected(key); ok {
			return invalid("", "%s:%d:%d: %s: expected %s", name, line, column, dotted(key), want)
		}
	}
	return invalid("", "%s:%d:%d: not valid TOML 1.0", name, line, column)
}

// foreign reports whether a key belongs to another surface that shares the home.
func foreign(path []string) bool {
	switch path[0] {
	case "preferences", "chat", "update_channel":
		return true
	case "defaults":
		return len(path) > 1 && strings.HasPrefix(path[1], "media_")
	}
	return strings.HasPrefix(path[0], "media_")
}

// keyLines lists the keys of a valid document in written order.
func keyLines(src []byte) []keyLine {
	var parser unstable.Parser
	parser.Reset(src)
	var keys []keyLine
	var table []string
	for parser.NextExpression() {
		expression := parser.Expression()
		switch expression.Kind { //nolint:exhaustive // the kinds of an expression
		case unstable.Table, unstable.ArrayTable:
			path, line := keyOf(&parser, expression)
			table = path
			keys = append(keys, keyLine{path, line})
		case unstable.KeyValue:
			keys = appendKeyValue(keys, &parser, expression, table)
		}
	}
	return keys
}

func appendKeyValue(keys []keyLine, parser *unstable.Parser, node *unstable.Node, table []string) []keyLine {
	path, line := keyOf(parser, node)
	path = append(append([]string(nil), table...), path...)
	keys = append(keys, keyLine{path, line})
	return appendValue(keys, parser, node.Value(), path)
}

// appendValue adds the keys of inline tables.
func appendValue(keys []keyLine, parser *unstable.Parser, value *unstable.Node, path []string) []keyLine {
	if value == nil || (value.Kind != unstable.InlineTable && value.Kind != unstable.Array) {
		return keys
	}
	children := value.Children()
	for children.Next() {
		if child := children.Node(); child.Kind == unstable.KeyValue {
			keys = appendKeyValue(keys, parser, child, path)
		} else {
			keys = appendValue(keys, parser, child, path)
		}
	}
	return keys
}

func keyOf(parser *unstable.Parser, node *unstable.Node) (path []string, line int) {
	parts := node.Key()
	for parts.Next() {
		part := parts.Node()
		if len(path) == 0 {
			line = parser.Shape(part.Raw).Start.Line
		}
		path = append(path, string(part.Data))
	}
	return path, line
}

func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && reflect.DeepEqual(path[:len(prefix)], prefix)
}

// dotted writes a key as TOML does.
func dotted(path []string) string {
	parts := make([]string, len(path))
	for i, part := range path {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			part = fmt.Sprintf("%q", part)
		}
		parts[i] = part
	}
	return strings.Join(parts, ".")
}
