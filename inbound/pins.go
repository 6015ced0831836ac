package inbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// The files of the pins in the home folder.
const (
	pinFile = "mcp-pins.ndjson"
	pinLock = "mcp-pins.lock"
)

const maxPinBytes = 32 << 20

// A PinMode says what follows when a server's tools are not those that were seen
// first.
type PinMode string

// The modes. PinAsk withholds new tools and refuses changed ones until a person
// approves; PinWarn says so and goes on; PinOff looks at nothing.
const (
	PinAsk  PinMode = "ask"
	PinWarn PinMode = "warn"
	PinOff  PinMode = "off"
)

// PinOptions are what pins work with. The zero value asks nobody, so it refuses.
type PinOptions struct {
	Mode PinMode // "" is PinAsk
	// Ask shows a person what changed and reports whether the new tools are approved. It
	// is called under PinAsk only, for a changed tool only, and one at a time. Nil
	// approves nothing.
	Ask func(ctx context.Context, change *PinChange) (bool, error)
	Log *slog.Logger // required
	Now func() time.Time
	// Store keeps the pins; nil keeps them in a file of the home folder.
	Store PinStore
}

// A PinStore keeps one document. It is safe for concurrent use, also by other
// processes; consent.OwnFile is one.
type PinStore interface {
	// Read returns the document, at most limit bytes, or nil if there is none.
	Read(ctx context.Context, limit int) ([]byte, error)
	// Replace puts what change makes of the document in its place; meanwhile nobody else
	// changes it. An error of change is returned, and nothing is replaced.
	Replace(ctx context.Context, limit int, change func(old []byte) ([]byte, error)) error
}

// Pins are the definitions of tools as they were when a server was first used or its
// tools last approved, in one document. A server is known by its
// program's digest or by its transport and exact URL. Where that cannot be read
// nothing counts as seen first. It is safe for use by several goroutines, and other
// processes may use the same folder.
type Pins struct {
	opt    PinOptions
	store  PinStore
	asking sync.Mutex
}

// OpenPins returns the pins in the home folder, an absolute path. Nothing is made
// before the first use of a server.
func OpenPins(home string, opt PinOptions) (*Pins, error) {
	switch {
	case !filepath.IsAbs(home):
		return nil, errors.New("inbound: the home folder is not an absolute path")
	case opt.Log == nil:
		return nil, errors.New("inbound: PinOptions.Log is required")
	}
	switch opt.Mode {
	case "":
		opt.Mode = PinAsk
	case PinAsk, PinWarn, PinOff:
	default:
		return nil, fmt.Errorf("inbound: pin mode %q is not ask, warn or off", opt.Mode)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Store == nil {
		opt.Store = consent.OwnFile{Home: home, Name: pinFile, LockName: pinLock}
	}
	return &Pins{opt: opt, store: opt.Store}, nil
}

// A Pin is what is kept of one server.
type Pin struct {
	Key    string // as PinKey makes it
	Server string // the id or ref that it had then
	Pinned time.Time
	Tools  []PinnedTool // in the server's order
}

// A PinnedTool is one tool as it was.
type PinnedTool struct {
	Name       string
	Digest     string
	Definition []byte // canonical JSON, as DiscoveredTool has it
}

// PinKey names a server beyond one run: by the digest of its program, else by its
// transport and exact URL.
func PinKey(id Identity) string {
	if id.Digest != "" {
		return id.Digest
	}
	return id.Transport + " " + id.URL
}

// A PinChange is how a server's tools differ from those that are pinned. Names are
// the server's own, for comparing; show them escaped.
type PinChange struct {
	Server    string
	Key       string
	Digest    string // of the set as it is now
	Changed   []ToolChange
	Added     []string
	Gone      []string
	Reordered bool
}

// A ToolChange is one tool whose definition is not the pinned one. Both are
// canonical JSON.
type ToolChange struct {
	Name          string
	Before, After []byte
}

// None tells whether nothing differs.
func (c *PinChange) None() bool {
	return len(c.Changed) == 0 && len(c.Added) == 0 && len(c.Gone) == 0 && !c.Reordered
}

// A PinChangedError says that a server's tools are not as they were approved.
type PinChangedError struct{ Change PinChange }

func (e *PinChangedError) Error() string {
	changed := make([]string, 0, len(e.Change.Changed))
	for i := range e.Change.Changed {
		changed = append(changed, e.Change.Changed[i].Name)
	}
	return "the definition of " + quoteNames(changed) + " is not the approved one; a person at the serving machine can see the difference by mcp pin show " +
		text.Escape(e.Change.Server, 128) + " and approve it"
}

// quoteNames lists names safely, the first ones if they are many.
func quoteNames(names []string) string {
	const some = 10
	shown := make([]string, 0, some)
	for _, name := range names[:min(len(names), some)] {
		shown = append(shown, text.Quote(name, 64))
	}
	list := strings.Join(shown, ", ")
	if more := len(names) - some; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// Check compares what a server offers with what is pinned, and pins it at the first
// use. Under PinAsk it takes new tools out of found, with a reason in found.Dropped,
// and a changed tool is an error unless a person approves: a *workflows.ToolError
// of the fault tool_denied with a *PinChangedError in its tree. Pins that cannot be
// read or written are such an error too. Tools that are gone or in another order
// are told in found.Notes.
func (p *Pins) Check(ctx context.Context, id Identity, found *Discovered) error {
	if p.opt.Mode == PinOff {
		return nil
	}
	change, err := p.first(ctx, id, found)
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && p.opt.Mode == PinWarn:
		p.opt.Log.WarnContext(ctx, "mcp definitions are not compared", "server", id.Server, "error", err)
		return nil
	case err != nil:
		return p.denied(id, "its pinned definitions cannot be used: "+err.Error(), err)
	case change == nil || change.None():
		return nil
	}
	p.tell(ctx, change, found)
	if p.opt.Mode == PinWarn {
		return nil
	}
	if len(change.Changed) > 0 {
		return p.ask(ctx, id, change, found)
	}
	withhold(found, change.Added)
	return nil
}

// tell says what differs.
func (p *Pins) tell(ctx context.Context, change *PinChange, found *Discovered) {
	note := func(what string, names []string) {
		if len(names) > 0 {
			found.Notes = append(found.Notes, what+": "+quoteNames(names))
		}
	}
	var changed []string
	for i := range change.Changed {
		changed = append(changed, change.Changed[i].Name)
	}
	note("changed since they were approved", changed)
	note("new since the tools were approved", change.Added)
	note("gone since the tools were approved", change.Gone)
	if change.Reordered {
		found.Notes = append(found.Notes, "the tools are in another order than approved")
	}
	p.opt.Log.WarnContext(ctx, "mcp definitions differ from the pinned ones", "server", change.Server,
		"changed", quoteNames(changed), "new", quoteNames(change.Added), "gone", quoteNames(change.Gone), "reordered", change.Reordered)
}

// ask lets a person decide about changed tools; what is approved is pinned, new
// tools with it.
func (p *Pins) ask(ctx context.Context, id Identity, change *PinChange, found *Discovered) error {
	refused := p.denied(id, (&PinChangedError{Change: *change}).Error(), &PinChangedError{Change: *change})
	if p.opt.Ask == nil {
		return refused
	}
	p.asking.Lock()
	defer p.asking.Unlock()
	yes, err := p.opt.Ask(ctx, change)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil || !yes:
		return refused
	}
	if err := p.Approve(ctx, id, found); err != nil {
		return p.denied(id, "its definitions cannot be pinned: "+err.Error(), err)
	}
	return nil
}

func (p *Pins) denied(id Identity, message string, err error) error {
	return &workflows.ToolError{Fault: workflows.ToolDenied, Reason: ReasonPin, Server: id.Server, Message: message, Err: err}
}

// withhold takes tools out of what was found.
func withhold(found *Discovered, names []string) {
	if len(names) == 0 {
		return
	}
	kept := make([]DiscoveredTool, 0, len(found.Tools))
	for i := range found.Tools {
		t := &found.Tools[i]
		if !slices.Contains(names, t.Name) {
			kept = append(kept, *t)
			continue
		}
		found.Dropped = append(found.Dropped, DroppedTool{
			Name: text.Escape(t.Name, 128), Reason: DropNew, Detail: "new since the tools of the server were approved; mcp pin approve lets it in", Bytes: t.Bytes,
		})
	}
	found.Tools = kept
}

// first compares, or pins what was found if nothing is pinned for the server; then
// there is no change to tell of. A server without tools is not pinned: nothing was
// seen of it.
func (p *Pins) first(ctx context.Context, id Identity, found *Discovered) (*PinChange, error) {
	pin, err := p.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if pin == nil && len(found.Tools) > 0 {
		err := p.replace(ctx, func(pins *pinSet) {
			if pin = pins.get(PinKey(id)); pin == nil {
				pins.put(p.pin(id, found))
			}
		})
		if err != nil {
			return nil, err
		}
		if pin == nil {
			p.opt.Log.InfoContext(ctx, "mcp definitions pinned at first use", "server", id.Server, "tools", len(found.Tools), "digest", found.Digest())
		}
	}
	if pin == nil {
		return nil, nil
	}
	return pin.compare(id, found), nil
}

func (p *Pins) pin(id Identity, found *Discovered) *Pin {
	pin := &Pin{Key: PinKey(id), Server: id.Server, Pinned: p.opt.Now().UTC()}
	for i := range found.Tools {
		t := &found.Tools[i]
		pin.Tools = append(pin.Tools, PinnedTool{Name: t.Name, Digest: t.Digest, Definition: t.Definition})
	}
	return pin
}

// Get returns what is pinned for a server, or nil.
func (p *Pins) Get(ctx context.Context, id Identity) (*Pin, error) {
	pins, err := p.read(ctx)
	if err != nil {
		return nil, err
	}
	return pins.get(PinKey(id)), nil
}

// Compare returns how what was found differs from what is pinned, or nil if nothing
// is pinned for the server. It records nothing and leaves found as it is.
func (p *Pins) Compare(ctx context.Context, id Identity, found *Discovered) (*PinChange, error) {
	pin, err := p.Get(ctx, id)
	if pin == nil || err != nil {
		return nil, err
	}
	return pin.compare(id, found), nil
}

// Approve pins what was found, in the place of what was pinned, and returns once that
// is on the disk.
func (p *Pins) Approve(ctx context.Context, id Identity, found *Discovered) error {
	err := p.replace(ctx, func(pins *pinSet) { pins.put(p.pin(id, found)) })
	if err == nil {
		p.opt.Log.InfoContext(ctx, "mcp definitions approved", "server", id.Server, "tools", len(found.Tools), "digest", found.Digest())
	}
	return err
}

// Reset forgets what is pinned for a server, so that its next use is a first one. It
// reports whether there was something to forget.
func (p *Pins) Reset(ctx context.Context, id Identity) (bool, error) {
	there := false
	err := p.replace(ctx, func(pins *pinSet) { there = pins.remove(PinKey(id)) })
	return there && err == nil, err
}

// compare finds what differs.
func (pin *Pin) compare(id Identity, found *Discovered) *PinChange {
	change := &PinChange{Server: id.Server, Key: pin.Key, Digest: found.Digest()}
	before := map[string]*PinnedTool{}
	for i := range pin.Tools {
		before[pin.Tools[i].Name] = &pin.Tools[i]
	}
	var common []string // in the order that they have now
	for i := range found.Tools {
		t := &found.Tools[i]
		old, ok := before[t.Name]
		if !ok {
			change.Added = append(change.Added, t.Name)
			continue
		}
		common = append(common, t.Name)
		if old.Digest != t.Digest {
			change.Changed = append(change.Changed, ToolChange{Name: t.Name, Before: old.Definition, After: t.Definition})
		}
		delete(before, t.Name)
	}
	at := 0
	for i := range pin.Tools {
		switch _, gone := before[pin.Tools[i].Name]; {
		case gone:
			change.Gone = append(change.Gone, pin.Tools[i].Name)
		case at < len(common) && common[at] != pin.Tools[i].Name:
			change.Reordered = true
			at++
		default:
			at++
		}
	}
	return change
}
