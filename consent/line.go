package consent

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// Bounds of a line. The reader takes longer ones than the writer makes, since
// other programs write the same file.
const (
	maxReadLine  = 1 << 20
	maxWriteLine = 64 << 10
	maxText      = 4 << 10 // bytes of one text kept for the prompt
	maxList      = 64      // arguments or names kept for the prompt
)

// A Grant is a consent that was given on this machine. Only Digest decides; the
// rest is kept to show what was granted, cut to bounds.
type Grant struct {
	Digest   string    `json:"digest"`
	Command  string    `json:"command"`
	Args     []string  `json:"args"`
	EnvNames []string  `json:"envNames"` // sorted; values are never kept
	Cwd      string    `json:"cwd"`
	Granted  time.Time `json:"grantedAt"`
}

// An entry is one line of the store: a grant, or the digest that it revokes.
type entry struct {
	grant   *Grant
	revokes string
}

// parseLine reads one line, which must have exactly the members of one of the two
// shapes: what another version means by one more cannot be known.
func parseLine(line []byte) (entry, error) {
	if len(line) > maxReadLine {
		return entry{}, fmt.Errorf("more than %d bytes", maxReadLine)
	}
	o, err := parseObject(line)
	if err != nil {
		return entry{}, err
	}
	var version json.RawMessage
	if o.take("v", &version, "1"); o.err == nil && string(version) != "1" {
		return entry{}, errors.New("v: written by another version, expected 1")
	}
	if o.has("revokes") {
		e := entry{revokes: o.digest("revokes")}
		o.time("revokedAt")
		return e, o.done()
	}
	g := &Grant{
		Digest: o.digest("digest"), Command: o.text("command"), Args: o.texts("args"),
		EnvNames: o.texts("envNames"), Cwd: o.text("cwd"), Granted: o.time("grantedAt"),
	}
	return entry{grant: g}, o.done()
}

func (o *object) digest(name string) string {
	text := o.text(name)
	if o.err == nil && !IsDigest(text) {
		o.missing(name, "a digest of "+digestPrefix)
	}
	return text
}

func (o *object) time(name string) time.Time {
	at, err := time.Parse(time.RFC3339, o.text(name))
	if err != nil {
		o.missing(name, "a time by RFC 3339")
	}
	return at
}

// grantLine is the line of a grant, without its end.
func grantLine(digest string, d *Declaration, at time.Time) []byte {
	args, names := cutAll(d.Args), cutAll(slices.Sorted(maps.Keys(d.Env)))
	for {
		line := append([]byte(`{"v":1,"digest":`), '"')
		line = append(append(line, digest...), `","command":`...)
		line = append(appendQuoted(line, cut(d.Command)), `,"args":`...)
		line = append(appendList(line, args), `,"envNames":`...)
		line = append(appendList(line, names), `,"cwd":`...)
		line = append(appendQuoted(line, cut(d.Cwd)), `,"grantedAt":`...)
		line = append(appendQuoted(line, stamp(at)), '}')
		// Escapes may write a character in six, so the command and the folder take at
		// most 48 KiB: without the lists every line fits.
		switch {
		case len(line) <= maxWriteLine:
			return line
		case len(args) > 0:
			args = args[:len(args)-1]
		default:
			names = names[:max(0, len(names)-1)]
		}
	}
}

// revocationLine is the line of a revocation, without its end.
func revocationLine(digest string, at time.Time) []byte {
	line := append([]byte(`{"v":1,"revokes":"`), digest...)
	line = append(line, `","revokedAt":`...)
	return append(appendQuoted(line, stamp(at)), '}')
}

// stamp writes a time as ECMAScript's toISOString does.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }

func appendList(line []byte, texts []string) []byte {
	line = append(line, '[')
	for i, text := range texts {
		if i > 0 {
			line = append(line, ',')
		}
		line = appendQuoted(line, text)
	}
	return append(line, ']')
}

func cutAll(texts []string) []string {
	kept := make([]string, 0, min(len(texts), maxList))
	for _, text := range texts[:min(len(texts), maxList)] {
		kept = append(kept, cut(text))
	}
	return kept
}

// cut keeps at most maxText bytes of a text, whole characters, marked where it ends.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	end := maxText - len("…")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
