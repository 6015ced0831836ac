package inbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// A PinFileError says which line of the pins cannot be read. No pin counts then,
// and no server counts as new: what was changed in the file cannot be known.
type PinFileError struct {
	Line   int // from 1
	Reason string
}

func (e *PinFileError) Error() string {
	return pinFile + ":" + strconv.Itoa(e.Line) + ": " + e.Reason + "; remove the file to pin what is seen next"
}

// A pinSet is what the file holds, in its order: one line for each server.
type pinSet struct{ pins []*Pin }

func (s *pinSet) get(key string) *Pin {
	for _, pin := range s.pins {
		if pin.Key == key {
			return pin
		}
	}
	return nil
}

func (s *pinSet) put(pin *Pin) {
	for i := range s.pins {
		if s.pins[i].Key == pin.Key {
			s.pins[i] = pin
			return
		}
	}
	s.pins = append(s.pins, pin)
}

func (s *pinSet) remove(key string) bool {
	before := len(s.pins)
	s.pins = slices.DeleteFunc(s.pins, func(pin *Pin) bool { return pin.Key == key })
	return len(s.pins) < before
}

func (p *Pins) read(ctx context.Context) (*pinSet, error) {
	data, err := p.store.Read(ctx, maxPinBytes)
	if err != nil {
		return nil, err
	}
	return parsePins(data)
}

// replace changes what the file holds. A file that cannot be read is left as it is.
func (p *Pins) replace(ctx context.Context, change func(*pinSet)) error {
	return p.store.Replace(ctx, maxPinBytes, func(old []byte) ([]byte, error) {
		pins, err := parsePins(old)
		if err != nil {
			return nil, err
		}
		change(pins)
		var b bytes.Buffer
		for _, pin := range pins.pins {
			pin.write(&b)
		}
		return b.Bytes(), nil
	})
}

// parsePins reads all lines. Each must be whole, its own line's end included: the
// file is only ever replaced, never appended to.
func parsePins(data []byte) (*pinSet, error) {
	pins := &pinSet{}
	for number := 1; len(data) > 0; number++ {
		line, rest, ended := bytes.Cut(data, []byte{'\n'})
		pin, err := parsePin(line)
		switch {
		case !ended:
			err = errors.New("the line has no end")
		case err == nil && pins.get(pin.Key) != nil:
			err = errors.New("a server that stands above already")
		}
		if err != nil {
			return nil, &PinFileError{Line: number, Reason: err.Error()}
		}
		pins.pins = append(pins.pins, pin)
		data = rest
	}
	return pins, nil
}

// exactly reads an object that has these members in any order and no other.
func exactly(object json.RawMessage, names ...string) (map[string]json.RawMessage, error) {
	fields, err := workflows.Members(object)
	if err != nil {
		return nil, err
	}
	m := make(map[string]json.RawMessage, len(fields))
	for _, f := range fields {
		if !slices.Contains(names, f.Key) {
			return nil, fmt.Errorf("unknown member %.80q", f.Key)
		}
		m[f.Key] = f.Value
	}
	for _, name := range names {
		if _, ok := m[name]; !ok {
			return nil, errors.New(name + " is missing")
		}
	}
	return m, nil
}

func parsePin(line []byte) (*Pin, error) {
	m, err := exactly(line, "v", "key", "server", "pinnedAt", "tools")
	if err != nil {
		return nil, err
	}
	if string(m["v"]) != "1" {
		return nil, errors.New("v: written by another version, expected 1")
	}
	pin := &Pin{}
	var at string
	for _, f := range []struct {
		name string
		into *string
	}{{"key", &pin.Key}, {"server", &pin.Server}, {"pinnedAt", &at}} {
		var ok bool
		if *f.into, ok = plainText(m[f.name]); !ok || *f.into == "" {
			return nil, errors.New(f.name + ": expected a text")
		}
	}
	if pin.Pinned, err = time.Parse(time.RFC3339, at); err != nil {
		return nil, errors.New("pinnedAt: expected a time by RFC 3339")
	}
	tools, ok := elements(m["tools"])
	if !ok {
		return nil, errors.New("tools: expected a list")
	}
	seen := map[string]struct{}{}
	for i, raw := range tools {
		tool, err := parsePinnedTool(raw)
		if err != nil {
			return nil, fmt.Errorf("tool %d: %w", i+1, err)
		}
		if _, twice := seen[tool.Name]; twice {
			return nil, fmt.Errorf("tool %d: stands above already", i+1)
		}
		seen[tool.Name] = struct{}{}
		pin.Tools = append(pin.Tools, tool)
	}
	return pin, nil
}

// parsePinnedTool reads a tool, whose digest must be that of its definition.
func parsePinnedTool(raw json.RawMessage) (PinnedTool, error) {
	m, err := exactly(raw, "name", "digest", "definition")
	if err != nil {
		return PinnedTool{}, err
	}
	tool := PinnedTool{Definition: m["definition"]}
	name, okName := plainText(m["name"])
	digest, okDigest := plainText(m["digest"])
	if !okName || !okDigest {
		return PinnedTool{}, errors.New("name and digest: expected texts")
	}
	if digestOf(tool.Definition) != digest {
		return PinnedTool{}, errors.New("the digest is not that of the definition")
	}
	tool.Name, tool.Digest = name, digest
	return tool, nil
}

// write writes the line of a pin.
func (pin *Pin) write(b *bytes.Buffer) {
	tools := []byte{'['}
	for i := range pin.Tools {
		if i > 0 {
			tools = append(tools, ',')
		}
		t := &pin.Tools[i]
		tools = append(tools, workflows.Object([]workflows.Member{
			{Key: "name", Value: quotedJSON(t.Name)}, {Key: "digest", Value: quotedJSON(t.Digest)}, {Key: "definition", Value: t.Definition},
		})...)
	}
	b.Write(workflows.Object([]workflows.Member{
		{Key: "v", Value: json.RawMessage("1")},
		{Key: "key", Value: quotedJSON(pin.Key)},
		{Key: "server", Value: quotedJSON(pin.Server)},
		{Key: "pinnedAt", Value: quotedJSON(pin.Pinned.Format(time.RFC3339))},
		{Key: "tools", Value: append(tools, ']')},
	}))
	b.WriteByte('\n')
}

// quotedJSON is the JSON of a text.
func quotedJSON(s string) json.RawMessage {
	raw, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`) // a string has always a form
	}
	return raw
}
