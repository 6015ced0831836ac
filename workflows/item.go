package workflows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// itemKind is what an item is.
type itemKind int

const (
	nullItem itemKind = iota
	boolItem
	numberItem
	stringItem
	listItem
	mapItem
	// badItem was refused while decoding; whoever meets it stays silent.
	badItem
)

func (k itemKind) String() string {
	switch k {
	case nullItem:
		return "null"
	case boolItem:
		return "a boolean"
	case numberItem:
		return "a number"
	case stringItem:
		return "a string"
	case listItem:
		return "a list"
	case mapItem:
		return "a map"
	case badItem:
		return "nothing usable"
	}
	return "nothing"
}

// An item is one value of a document, whether it came from YAML or from a
// snapshot. Members keep their written order, numbers their digits.
type item struct {
	kind      itemKind
	line, col int    // 1-based; 0 in a snapshot
	text      string // the string, the number's JSON literal, "true" or "false"
	keys      []itemKey
	items     []*item // of a list, or the values that go with keys
}

// An itemKey is a key of a map and where it stands.
type itemKey struct {
	name      string
	line, col int
}

// member is the value of a key, or nil.
func (n *item) member(name string) *item {
	if n == nil || n.kind != mapItem {
		return nil
	}
	for i := range n.keys {
		if n.keys[i].name == name {
			return n.items[i]
		}
	}
	return nil
}

// json is the item as compact JSON.
func (n *item) json() json.RawMessage { return n.append(nil) }

func (n *item) append(out []byte) []byte {
	switch n.kind {
	case nullItem, badItem:
		return append(out, "null"...)
	case boolItem, numberItem:
		return append(out, n.text...)
	case stringItem:
		return appendString(out, n.text)
	case listItem:
		out = append(out, '[')
		for i, v := range n.items {
			if i > 0 {
				out = append(out, ',')
			}
			out = v.append(out)
		}
		return append(out, ']')
	case mapItem:
		out = append(out, '{')
		for i, v := range n.items {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendString(out, n.keys[i].name), ':')
			out = v.append(out)
		}
		return append(out, '}')
	}
	return out
}

// Constructors of items that stand nowhere in a file.

func textItem(s string) *item { return &item{kind: stringItem, text: s} }

func listOf[T any](values []T, of func(T) *item) *item {
	n := &item{kind: listItem}
	for _, v := range values {
		n.items = append(n.items, of(v))
	}
	return n
}

func (n *item) set(name string, value *item) {
	n.keys = append(n.keys, itemKey{name: name})
	n.items = append(n.items, value)
}

var errSnapshot = errors.New("snapshot is not a workflow definition")

// itemFromJSON reads a JSON text that this package wrote.
func itemFromJSON(src json.RawMessage) (*item, error) {
	dec := json.NewDecoder(bytes.NewReader(src))
	dec.UseNumber()
	n, err := readItem(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errSnapshot
	}
	return n, nil
}

func readItem(dec *json.Decoder, depth int) (*item, error) {
	if depth > maxDepth+2 {
		return nil, errSnapshot
	}
	token, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("%w: not JSON", errSnapshot)
	}
	switch t := token.(type) {
	case nil:
		return &item{kind: nullItem}, nil
	case bool:
		if t {
			return &item{kind: boolItem, text: "true"}, nil
		}
		return &item{kind: boolItem, text: "false"}, nil
	case json.Number:
		return &item{kind: numberItem, text: t.String()}, nil
	case string:
		return textItem(t), nil
	case json.Delim:
		return readComposite(dec, t, depth)
	}
	return nil, errSnapshot
}

func readComposite(dec *json.Decoder, open json.Delim, depth int) (*item, error) {
	n := &item{kind: listItem}
	if open == '{' {
		n.kind = mapItem
	}
	for dec.More() {
		if n.kind == mapItem {
			token, err := dec.Token()
			if err != nil {
				return nil, fmt.Errorf("%w: not JSON", errSnapshot)
			}
			name, ok := token.(string)
			if !ok {
				return nil, errSnapshot
			}
			n.keys = append(n.keys, itemKey{name: name})
		}
		v, err := readItem(dec, depth+1)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, v)
	}
	if _, err := dec.Token(); err != nil { // the closing delimiter
		return nil, fmt.Errorf("%w: not JSON", errSnapshot)
	}
	return n, nil
}
