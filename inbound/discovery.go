package inbound

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/relavium/relavium-serve/inbound/schema"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of what a server lists. Names and descriptions count as UTF-8, schemas as
// canonical JSON.
const (
	maxTools       = 256     // admitted
	maxReceived    = 4096    // looked at
	maxPayload     = 1 << 20 // bytes of names, descriptions and schemas, of dropped tools too
	maxDescription = 8 << 10 // bytes, once cleaned
	maxPages       = 1000
	maxCursor      = 8 << 10
	maxReported    = 1000 // dropped tools that are told one by one
)

// Why a tool is dropped. A schema that is not admitted has its own reason, a
// schema.Reason.
const (
	DropNotJSON     = "tool_not_json" // not strict JSON: a name twice, a lone surrogate, too deep
	DropInvalid     = "tool_invalid"  // not a tool
	DropName        = "tool_name"     // not a name that models can call
	DropCollision   = "name_collision"
	DropDescription = "description_size"
	DropPayload     = "discovery_size" // 1 MiB is spent
	DropCount       = "too_many_tools" // 256 are admitted
	DropTask        = "task_required"
	DropNew         = "not_approved"    // new since the definitions were pinned
	DropAllowlist   = "not_allowlisted" // for one agent
	DropAbsent      = "not_offered"     // an allowlist names it
)

// Discovered is what a server offers, judged.
type Discovered struct {
	Tools    []DiscoveredTool // admitted, in declaration order
	Dropped  []DroppedTool    // in declaration order, at most the first 1000
	Notes    []string         // what else a person should know of the listing; safe to show
	Bytes    int              // of names, descriptions and schemas of all tools that were received
	Pages    int
	Received int
}

// A DiscoveredTool is one tool that may be called.
type DiscoveredTool struct {
	workflows.Tool

	Title      string         // cleaned, on one line; for people
	Schema     *schema.Schema // what arguments are checked against
	Definition []byte         // canonical JSON of its name, description, inputSchema, outputSchema and annotations as sent
	Digest     string         // "sha256:" and the SHA-256 of Definition in hex
	Bytes      int
	Ignored    []string // keywords of its schema that are not enforced
}

// A DroppedTool is one tool that agents do not get. All of it is safe to show.
type DroppedTool struct {
	Name   string // escaped and cut
	Reason string
	Detail string
	Bytes  int
}

// Digest names the set of tools whatever their order: it changes when a tool is
// there, is not, or is another.
func (d *Discovered) Digest() string { return setDigest(d.Tools) }

func setDigest(tools []DiscoveredTool) string {
	lines := make([]string, 0, len(tools))
	for i := range tools {
		lines = append(lines, tools[i].Digest+" "+tools[i].Name+"\n")
	}
	slices.Sort(lines)
	return digestOf([]byte(strings.Join(lines, "")))
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// errPage is why a page of tools/list cannot be used. It quotes nothing of it.
var errPage = errors.New("a page of tools/list is not as the protocol says")

// A discovery is the walk over the pages of one server's tools/list. Tools are
// judged in declaration order, so the same listing yields the same tools.
type discovery struct {
	server  string
	segment string // of tool names
	known   *admissions
	found   Discovered
	taken   map[string]struct{} // namespaced names
	cursors map[string]struct{}
	pages   map[[sha256.Size]byte]struct{}
	spent   bool // the payload is
	untold  int  // dropped tools beyond maxReported
	unread  int  // tools beyond maxReceived
}

// newDiscovery begins a walk. known may be nil.
func newDiscovery(server, segment string, known *admissions) *discovery {
	return &discovery{
		server: server, segment: segment, known: known,
		taken: map[string]struct{}{}, cursors: map[string]struct{}{}, pages: map[[sha256.Size]byte]struct{}{},
	}
}

// page takes in one result of tools/list. While more is true the page at next is
// wanted. The error says that the listing cannot be used.
func (d *discovery) page(result json.RawMessage) (next string, more bool, err error) {
	if !json.Valid(result) {
		return "", false, fmt.Errorf("%w: not JSON", errPage)
	}
	listed, cursor, err := splitPage(result)
	if err != nil {
		return "", false, err
	}
	d.found.Pages++
	digest := sha256.Sum256(listed)
	if _, again := d.pages[digest]; again {
		d.note("page %d is one that was sent before: the walk ends", d.found.Pages)
		return "", false, nil
	}
	d.pages[digest] = struct{}{}
	if err := d.tools(listed); err != nil {
		return "", false, err
	}
	if cursor == "" {
		return "", false, nil
	}
	return cursor, d.goesOn(cursor), nil
}

// tools takes in the tools of a page, some at a time, so that a page of very many
// costs no more memory than one of few.
func (d *discovery) tools(listed json.RawMessage) error {
	const some = 64
	candidates := make([]candidate, 0, some)
	settle := func() {
		d.judge(candidates)
		for i := range candidates {
			d.take(&candidates[i])
		}
		clear(candidates)
		candidates = candidates[:0]
	}
	ok := eachElement(listed, func(raw json.RawMessage) {
		if d.found.Received == maxReceived {
			d.unread++
			return
		}
		candidates = append(candidates, d.read(raw))
		if len(candidates) == some {
			settle()
		}
	})
	settle()
	if !ok {
		return fmt.Errorf("%w: tools is not a list", errPage)
	}
	return nil
}

// eachElement visits the elements of a JSON array, which must be valid JSON. It is
// false if the value is no array.
func eachElement(value []byte, visit func(json.RawMessage)) bool {
	i := space(value, 0)
	if i >= len(value) || value[i] != '[' {
		return false
	}
	for i = space(value, i+1); i < len(value) && value[i] != ']'; {
		start := i
		i = skip(value, i)
		visit(json.RawMessage(value[start:i:i]))
		if i = space(value, i); i < len(value) && value[i] == ',' {
			i = space(value, i+1)
		}
	}
	return true
}

// pick finds members of a JSON object, which must be valid JSON, by their exact
// names; twice is one of them that stands there more than once. Other members cost
// nothing. ok is false if the value is no object.
func pick(value []byte, names ...string) (found map[string]json.RawMessage, twice string, ok bool) {
	i := space(value, 0)
	if i >= len(value) || value[i] != '{' {
		return nil, "", false
	}
	found = make(map[string]json.RawMessage, len(names))
	for i = space(value, i+1); i < len(value) && value[i] == '"'; {
		start := i
		i = skip(value, i)
		name := pickedName(value[start:i], names)
		i = space(value, space(value, i)+1) // behind the colon
		start = i
		i = skip(value, i)
		if name != "" {
			if _, there := found[name]; there {
				twice = name
			}
			found[name] = json.RawMessage(value[start:i:i])
		}
		if i = space(value, i); i < len(value) && value[i] == ',' {
			i = space(value, i+1)
		}
	}
	return found, twice, true
}

// pickedName is the one of the names that a JSON string holds, or "".
func pickedName(quoted []byte, names []string) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		for _, name := range names {
			if string(quoted[1:len(quoted)-1]) == name {
				return name
			}
		}
		return ""
	}
	var name string
	if len(quoted) > 200 || json.Unmarshal(quoted, &name) != nil || !slices.Contains(names, name) {
		return ""
	}
	return name
}

// splitPage reads the members of a page that matter: by their exact names, each
// once.
func splitPage(result json.RawMessage) (listed json.RawMessage, cursor string, err error) {
	fields, twice, ok := pick(result, "tools", "nextCursor")
	switch {
	case !ok:
		return nil, "", fmt.Errorf("%w: not an object", errPage)
	case twice != "":
		return nil, "", fmt.Errorf("%w: %s twice", errPage, twice)
	case fields["tools"] == nil:
		return nil, "", fmt.Errorf("%w: no tools", errPage)
	}
	listed = fields["tools"]
	next := fields["nextCursor"]
	if next != nil && string(next) != "null" {
		if next[0] != '"' || !utf8.Valid(next) || json.Unmarshal(next, &cursor) != nil {
			return nil, "", fmt.Errorf("%w: nextCursor is not a text", errPage)
		}
	}
	return listed, cursor, nil
}

// goesOn tells whether the page at the cursor is worth asking for.
func (d *discovery) goesOn(cursor string) bool {
	_, seen := d.cursors[cursor]
	d.cursors[cursor] = struct{}{}
	switch {
	case seen:
		d.note("page %d names a cursor that was named before: the walk ends", d.found.Pages)
	case len(cursor) > maxCursor:
		d.note("page %d names a cursor of more than 8 KiB: the walk ends", d.found.Pages)
	case d.spent:
		d.note("1 MiB of definitions is spent: the pages after page %d are not asked for", d.found.Pages)
	case len(d.found.Tools) == maxTools:
		d.note("256 tools are admitted: the pages after page %d are not asked for", d.found.Pages)
	case d.unread > 0:
	case d.found.Pages == maxPages:
		d.note("more than 1000 pages: the walk ends")
	default:
		return true
	}
	return false
}

func (d *discovery) note(format string, args ...any) {
	d.found.Notes = append(d.found.Notes, fmt.Sprintf(format, args...))
}

// finish ends the walk.
func (d *discovery) finish() Discovered {
	if d.untold > 0 {
		d.note("%d more tools are dropped", d.untold)
	}
	if d.unread > 0 {
		d.note("more than 4096 tools are listed: %d are not looked at", d.unread)
	}
	return d.found
}

// A candidate is a tool on its way to be admitted or dropped.
type candidate struct {
	definition

	id      string // namespaced name
	tool    DiscoveredTool
	refused *DroppedTool // why it is dropped; nil while it is not
}

// read reads one tool and spends what it costs.
func (d *discovery) read(raw json.RawMessage) candidate {
	d.found.Received++
	def, refused := readDefinition(raw)
	d.found.Bytes += def.bytes
	c := candidate{definition: def, id: "mcp_" + d.segment + "_" + def.name, refused: refused}
	if c.refused == nil && !callable(c.id) {
		c.refused = dropped(DropName, strconv.Quote("mcp_"+d.segment+"_")+" and its name are not 1 to 64 of A-Z, a-z, 0-9, _ and -")
	}
	switch _, taken := d.taken[c.id]; {
	case d.spent || d.found.Bytes > maxPayload:
		d.spent = true
		c.refused = dropped(DropPayload, "the definitions of the server are more than 1 MiB with it")
	case c.refused == nil && taken:
		c.refused = dropped(DropCollision, "an earlier tool has the name "+c.id)
	}
	if def.name != "" {
		d.taken[c.id] = struct{}{} // a dropped tool's name does not become another's
	}
	return c
}

// judge admits what it can, all schemas side by side: they are most of the work.
func (d *discovery) judge(candidates []candidate) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(candidates)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(candidates)); i = next.Add(1) - 1 {
				if c := &candidates[i]; c.refused == nil {
					c.tool, c.refused = c.admit(d.known, d.server, c.id)
				}
			}
		})
	}
	wg.Wait()
}

// take puts a candidate where it belongs.
func (d *discovery) take(c *candidate) {
	if c.refused == nil && len(d.found.Tools) == maxTools {
		c.refused = dropped(DropCount, "256 tools are admitted before it")
	}
	switch {
	case c.refused == nil:
		d.found.Tools = append(d.found.Tools, c.tool)
	case len(d.found.Dropped) == maxReported:
		d.untold++
	default:
		c.refused.Name, c.refused.Bytes = text.Escape(c.name, 128), c.bytes
		d.found.Dropped = append(d.found.Dropped, *c.refused)
	}
}

func dropped(reason, detail string) *DroppedTool {
	return &DroppedTool{Reason: reason, Detail: detail}
}

// callable tells whether models can call a tool by that name: all providers take
// these characters and this length.
func callable(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
