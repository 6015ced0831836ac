package inbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/workflows"
)

func pinsIn(t *testing.T, home string, opt PinOptions) *Pins {
	t.Helper()
	opt.Log = slog.New(slog.DiscardHandler)
	opt.Now = func() time.Time { return time.Unix(1_800_000_000, 0) }
	p, err := OpenPins(home, opt)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// offers is what a server lists whose tools are name=description.
func offers(t *testing.T, tools ...string) *Discovered {
	t.Helper()
	list := make([]string, 0, len(tools))
	for _, tool := range tools {
		name, description, _ := strings.Cut(tool, "=")
		list = append(list, fmt.Sprintf(`{"name":%q,"description":%q,"inputSchema":{"type":"object"}}`, name, description))
	}
	d := walk(t, newDiscovery("s", "s", nil), onePage(list...))
	return &d
}

var pinned = Identity{Server: "s", Transport: "http", URL: "https://x.example/mcp"}

func TestPinsCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode    PinMode
		now     []string
		tools   []string
		dropped []string
		notes   []string
		changed []string // that the error names; nil is no error
	}{
		"same":      {PinAsk, []string{"a=1", "b=2", "c=3"}, []string{"a", "b", "c"}, nil, nil, nil},
		"reordered": {PinAsk, []string{"b=2", "a=1", "c=3"}, []string{"b", "a", "c"}, nil, []string{"the tools are in another order than approved"}, nil},
		"gone":      {PinAsk, []string{"a=1", "c=3"}, []string{"a", "c"}, nil, []string{`gone since the tools were approved: "b"`}, nil},
		"new": {
			PinAsk,
			[]string{"a=1", "x=9", "b=2", "c=3"},
			[]string{"a", "b", "c"},
			[]string{"x=not_approved"},
			[]string{`new since the tools were approved: "x"`},
			nil,
		},
		"changed": {
			PinAsk,
			[]string{"a=1", "b=two", "c=3", "x=9"},
			[]string{"a", "b", "c", "x"},
			nil,
			[]string{`changed since they were approved: "b"`, `new since the tools were approved: "x"`},
			[]string{"b"},
		},
		"warn": {
			PinWarn,
			[]string{"a=1", "b=two", "x=9"},
			[]string{"a", "b", "x"},
			nil,
			[]string{`changed since they were approved: "b"`, `new since the tools were approved: "x"`, `gone since the tools were approved: "c"`},
			nil,
		},
		"off":  {PinOff, []string{"b=two"}, []string{"b"}, nil, nil, nil},
		"none": {PinAsk, nil, nil, nil, []string{`gone since the tools were approved: "a", "b", "c"`}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := filepath.Join(t.TempDir(), "home")
			if err := pinsIn(t, home, PinOptions{}).Check(t.Context(), pinned, offers(t, "a=1", "b=2", "c=3")); err != nil {
				t.Fatalf("first use: %v", err)
			}
			path := filepath.Join(home, pinFile)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found := offers(t, c.now...)
			err = pinsIn(t, home, PinOptions{Mode: c.mode}).Check(t.Context(), pinned, found)
			if c.changed == nil != (err == nil) {
				t.Errorf("Check = %v, want an error %t", err, c.changed != nil)
			}
			if c.changed != nil {
				changed, ok := errors.AsType[*PinChangedError](err)
				fault, isFault := errors.AsType[*workflows.ToolError](err)
				if !ok || !isFault || fault.Fault != workflows.ToolDenied || fault.Reason != ReasonPin || len(changed.Change.Changed) != 1 || changed.Change.Changed[0].Name != c.changed[0] {
					t.Errorf("Check = %v, want a change of %v", err, c.changed)
				}
			}
			if diff := cmp.Diff(c.tools, names(*found)); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.dropped, reasons(*found)); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, found.Notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the pins changed, %v", err)
			}
		})
	}
}

func TestPinsAsk(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "home")
	if err := pinsIn(t, home, PinOptions{}).Check(t.Context(), pinned, offers(t, "a=1")); err != nil {
		t.Fatal(err)
	}
	asked := 0
	answer := func(yes bool, err error) PinOptions {
		return PinOptions{Ask: func(_ context.Context, change *PinChange) (bool, error) {
			asked++
			if change.Server != "s" || len(change.Changed) != 1 || !cmp.Equal(change.Added, []string{"b"}) {
				t.Errorf("asked about %+v", change)
			}
			return yes, err
		}}
	}
	for _, opt := range []PinOptions{answer(false, nil), answer(true, errors.New("the terminal went"))} {
		if err := pinsIn(t, home, opt).Check(t.Context(), pinned, offers(t, "a=one", "b=2")); err == nil {
			t.Error("Check after no = nil, want an error")
		}
	}
	found := offers(t, "a=one", "b=2")
	if err := pinsIn(t, home, answer(true, nil)).Check(t.Context(), pinned, found); err != nil || len(found.Tools) != 2 {
		t.Errorf("Check after yes = %v, %d tools, want nil and 2", err, len(found.Tools))
	}
	if err := pinsIn(t, home, answer(false, nil)).Check(t.Context(), pinned, offers(t, "a=one", "b=2")); err != nil || asked != 3 {
		t.Errorf("Check of what is approved = %v, asked %d times, want nil and 3", err, asked)
	}
}

func TestPinsApproveAndReset(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "home")
	p := pinsIn(t, home, PinOptions{})
	other := Identity{Server: "other", Transport: "stdio", Digest: "v1:00"}
	if change, err := p.Compare(t.Context(), pinned, offers(t, "a=1")); change != nil || err != nil {
		t.Errorf("Compare before all = %v, %v, want nil", change, err)
	}
	for _, id := range []Identity{pinned, other} {
		if err := p.Check(t.Context(), id, offers(t, "a=1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Check(t.Context(), Identity{Server: "none", Digest: "v1:01"}, offers(t)); err != nil {
		t.Fatal(err)
	}
	if pin, err := p.Get(t.Context(), Identity{Digest: "v1:01"}); pin != nil || err != nil {
		t.Errorf("pin of a server without tools = %+v, %v, want nil", pin, err)
	}
	now := offers(t, "a=one")
	if err := p.Approve(t.Context(), pinned, now); err != nil {
		t.Fatal(err)
	}
	want := &Pin{Key: "http https://x.example/mcp", Server: "s", Pinned: time.Unix(1_800_000_000, 0).UTC(), Tools: []PinnedTool{
		{Name: "a", Digest: now.Tools[0].Digest, Definition: now.Tools[0].Definition},
	}}
	if pin, err := p.Get(t.Context(), pinned); err != nil || !cmp.Equal(pin, want) {
		t.Errorf("pin (-want +got), %v:\n%s", err, cmp.Diff(want, pin))
	}
	if there, err := p.Reset(t.Context(), pinned); !there || err != nil {
		t.Errorf("Reset = %t, %v, want true", there, err)
	}
	if there, err := p.Reset(t.Context(), pinned); there || err != nil {
		t.Errorf("second Reset = %t, %v, want false", there, err)
	}
	if change, err := p.Compare(t.Context(), other, offers(t, "a=1")); err != nil || change == nil || !change.None() {
		t.Errorf("Compare of the other = %+v, %v, want no change", change, err)
	}
	// The exact URL and the transport are the server's name.
	for _, id := range []Identity{{Transport: "sse", URL: pinned.URL}, {Transport: "http", URL: pinned.URL + "/"}} {
		if PinKey(id) == PinKey(pinned) {
			t.Errorf("PinKey(%+v) is that of %+v", id, pinned)
		}
	}
}

// Whatever is cut off the file: a changed tool is refused, unless no line is left of
// its server, which nobody can see. Under warn it goes on.
func TestPinsPrefixes(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "home")
	p := pinsIn(t, home, PinOptions{})
	path := filepath.Join(home, pinFile)
	for _, id := range []Identity{{Digest: "v1:00", Server: "first"}, pinned} {
		if err := p.Check(t.Context(), id, offers(t, "a=1", "b=2")); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	firstLine := bytes.IndexByte(whole, '\n') + 1
	for end := range whole {
		if end == 0 || end == firstLine {
			continue
		}
		if err := os.WriteFile(path, whole[:end], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(t.Context(), pinned, offers(t, "a=changed")); err == nil {
			t.Fatalf("Check with %d of %d bytes = nil, want an error", end, len(whole))
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole[:end]) {
			t.Fatalf("the pins changed at %d bytes, %v", end, err)
		}
	}
	if err := pinsIn(t, home, PinOptions{Mode: PinWarn}).Check(t.Context(), pinned, offers(t, "a=changed")); err != nil {
		t.Errorf("Check under warn = %v, want nil", err)
	}
}

func TestPinsBadLines(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "home")
	p := pinsIn(t, home, PinOptions{})
	path := filepath.Join(home, pinFile)
	if err := p.Check(t.Context(), pinned, offers(t, "a=1")); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, want := range map[string]string{
		"\n":                        "invalid JSON",
		"{}\n":                      "v is missing",
		string(good) + string(good): "mcp-pins.ndjson:2: a server that stands above already",
		strings.Replace(string(good), `"v":1`, `"v":2`, 1):                         "written by another version",
		strings.Replace(string(good), `"v":1`, `"v":1,"v":1`, 1):                   "repeated key",
		strings.Replace(string(good), `"v":1`, `"v":1,"w":1`, 1):                   `unknown member "w"`,
		strings.Replace(string(good), `"description":"1"`, `"description":"2"`, 1): "the digest is not that of the definition",
		strings.Replace(string(good), `"name":"a"`, `"name":7`, 1):                 "name and digest: expected texts",
		strings.Replace(string(good), `"pinnedAt":"2`, `"pinnedAt":"x`, 1):         "a time by RFC 3339",
	} {
		if err := os.WriteFile(path, []byte(what), 0o600); err != nil {
			t.Fatal(err)
		}
		err := p.Check(t.Context(), pinned, offers(t, "a=1"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), home) {
			t.Errorf("Check with %.60q = %v, want %q", what, err, want)
		}
		if err := p.Approve(t.Context(), pinned, offers(t, "a=1")); err == nil {
			t.Errorf("Approve with %.60q = nil, want an error", what)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	for what, spoil := range map[string]func() error{
		"mode":  func() error { return os.Chmod(path, 0o644) },
		"link":  func() error { return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path)) },
		"names": func() error { return os.Link(path, path+"2") },
		"home":  func() error { return os.Chmod(home, 0o755) },
	} {
		if err := errors.Join(os.Chmod(home, 0o700), os.RemoveAll(path), os.RemoveAll(path+"2"), os.WriteFile(path, good, 0o600), spoil()); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(t.Context(), pinned, offers(t, "a=1")); err == nil {
			t.Errorf("Check with a spoiled %s = nil, want an error", what)
		}
	}
}

// First uses side by side, in one process and through several stores: none is lost.
func TestPinsSideBySide(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "home")
	const writers, each = 6, 10
	var wg sync.WaitGroup
	for w := range writers {
		p := pinsIn(t, home, PinOptions{})
		wg.Go(func() {
			for i := range each {
				id := Identity{Server: "s", Digest: fmt.Sprintf("v1:%d-%d", w, i)}
				if err := p.Check(t.Context(), id, offers(t, "a=1")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	set, err := pinsIn(t, home, PinOptions{}).read(t.Context())
	if err != nil || len(set.pins) != writers*each {
		t.Errorf("%d pins, %v, want %d", len(set.pins), err, writers*each)
	}
}

func TestPinLines(t *testing.T) {
	t.Parallel()
	before := walk(t, newDiscovery("s", "s", nil), onePage(`{"name":"a","description":"one\ntwo\nthree","inputSchema":{"properties":{"x":{"type":"string"}}}}`))
	after := walk(t, newDiscovery("s", "s", nil), onePage(`{"name":"a","description":"one\ntwo\u200b \u001b[31mit\nthree","inputSchema":{"properties":{"x":{"type":"number"}}}}`))
	change := PinChange{
		Changed: []ToolChange{{Name: "a", Before: before.Tools[0].Definition, After: after.Tools[0].Definition}},
		Added:   []string{"n\u202e"}, Gone: []string{"g"}, Reordered: true,
	}
	want := []string{
		`changed  "a"`,
		`    description:`,
		`      one`,
		`  -   two`,
		`  +   two\u{200B} \u{1B}[31mit`,
		`      three`,
		`    inputSchema:`,
		`      {`,
		`        "properties": {`,
		`          "x": {`,
		`  -         "type": "string"`,
		`  +         "type": "number"`,
		`          }`,
		`        }`,
		`      }`,
		`new      "n\u{202E}"`,
		`gone     "g"`,
		`the tools are in another order`,
	}
	if diff := cmp.Diff(want, change.Lines()); diff != "" {
		t.Errorf("Lines (-want +got):\n%s", diff)
	}
}

func TestOpenPins(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		home string
		opt  PinOptions
	}{{"home", PinOptions{Log: log}}, {t.TempDir(), PinOptions{}}, {t.TempDir(), PinOptions{Log: log, Mode: "maybe"}}} {
		if _, err := OpenPins(c.home, c.opt); err == nil {
			t.Errorf("OpenPins(%q, %+v) = nil, want an error", c.home, c.opt)
		}
	}
}
