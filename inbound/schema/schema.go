package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// How long the compiler or the validator may take. The bounds of an admitted schema
// keep both far below; the clock is for what they overlook. The compiler's is wide,
// since which tools there are may not hang on how busy a machine is.
const (
	compileTime  = 5 * time.Second
	validateTime = 250 * time.Millisecond
)

// maxLight bounds bytes of a schema times bytes of arguments: a few milliseconds at the
// worst.
const maxLight = 1 << 20

// A Schema is an admitted schema of a tool's arguments. It is safe for use by
// several goroutines.
type Schema struct {
	compiled *jsonschema.Schema
	shown    json.RawMessage
	limit    time.Duration
	tree     int // bytes, if every subschema is met once for a value at most; else 0

	abandoned atomic.Int32 // validations that went over the limit and have not ended yet
}

// Admit reads a server's schema for the arguments of a tool. What it does not admit
// is a *RefusedError; there is no Schema then.
func Admit(raw json.RawMessage) (*Schema, Report, error) {
	w, report, err := admit(raw)
	if err != nil {
		return nil, report, err
	}
	doc, ok := w.root.decoded().(map[string]any)
	if !ok {
		return nil, report, (&place{}).refuse(Root, "not an object")
	}
	s := &Schema{shown: w.shown(), limit: validateTime}
	made := make(chan *jsonschema.Schema, 1)
	err = guarded(compileTime, &s.abandoned, func() error {
		compiled, err := compile(doc, w.draft, w.patterns.compiled)
		made <- compiled
		return err
	})
	if err != nil {
		return nil, report, refusal(err)
	}
	s.compiled = <-made
	if len(w.refs) == 0 && len(w.patterns.compiled) == 0 {
		s.tree = report.Bytes
	}
	return s, report, nil
}

// light reports whether arguments of so many bytes are checked in far less time than
// it takes to watch over that: no reference multiplies the work, no pattern searches,
// and every value of theirs meets every subschema, or value of an enum, at most once.
func (s *Schema) light(arguments int) bool { return s.tree > 0 && s.tree*arguments <= maxLight }

// JSON is the schema as models are shown it: titles and descriptions cleaned, the
// type object written down where the server left it out, and all else as the
// server sent it, in its order. The caller may not change it.
func (s *Schema) JSON() json.RawMessage { return s.shown }

// shown writes the copy for models.
func (w *walker) shown() json.RawMessage {
	var b bytes.Buffer
	w.root.write(&b)
	if w.root.member("type") != nil {
		return b.Bytes()
	}
	rest := b.Bytes()[1:]
	out := []byte(`{"type":"object"`)
	if len(rest) > 1 {
		out = append(out, ',')
	}
	return append(out, rest...)
}

// compile compiles one document that may not load another.
func compile(doc map[string]any, d draft, patterns map[string]*regexp.Regexp) (*jsonschema.Schema, error) {
	const address = "tool:schema"
	// Both are known already; the address of the document is ours.
	delete(doc, "$schema")
	delete(doc, "$id")
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	switch d {
	case draft06:
		c.DefaultDraft(jsonschema.Draft6)
	case draft07:
		c.DefaultDraft(jsonschema.Draft7)
	case draft2019:
		c.DefaultDraft(jsonschema.Draft2019)
	case draft2020:
		c.DefaultDraft(jsonschema.Draft2020)
	}
	c.UseRegexpEngine(func(source string) (jsonschema.Regexp, error) {
		if re, ok := patterns[source]; ok {
			return matcher{re, source}, nil
		}
		return nil, errors.New("a pattern that was not admitted")
	})
	for name := range strings.FieldsSeq("date date-time time duration period email idn-email hostname idn-hostname ipv4 ipv6 " +
		"uri uri-reference iri iri-reference uri-template uuid json-pointer relative-json-pointer regex semver") {
		// Format is an annotation, also in the drafts where the validator asserts it.
		c.RegisterFormat(&jsonschema.Format{Name: name, Validate: func(any) error { return nil }})
	}
	if err := c.AddResource(address, doc); err != nil {
		return nil, err
	}
	return c.Compile(address)
}

type matcher struct {
	*regexp.Regexp

	source string
}

func (m matcher) String() string { return m.source }

type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errors.New("refers to another document") }

var (
	errOverrun = errors.New("the schema takes too long to evaluate")
	errPanic   = errors.New("the schema cannot be evaluated")
)

// guarded runs a part of the validator: a panic becomes an error, and after the
// limit it is left to end by itself, counted in abandoned while it has not.
func guarded(limit time.Duration, abandoned *atomic.Int32, run func() error) error {
	done := make(chan error, 1)
	var apart atomic.Bool // the first of the two has gone its way
	go func() {
		defer func() {
			if recover() != nil {
				done <- errPanic
			}
			if apart.Swap(true) {
				abandoned.Add(-1)
			}
		}()
		done <- run()
	}()
	clock := time.NewTimer(limit)
	defer clock.Stop()
	select {
	case err := <-done:
		return err
	case <-clock.C:
		select {
		case err := <-done: // on a busy machine both may have come by now
			return err
		default:
		}
		abandoned.Add(1)
		if apart.Swap(true) {
			abandoned.Add(-1) // it ended in the same instant
		}
		return errOverrun
	}
}

// recovered is guarded without a limit, for what is short.
func recovered(run func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return run()
}

// refusal says what a compiler's error means, without its text, which may quote
// the schema.
func refusal(err error) error {
	top := &place{}
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if v, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			first := violations(v)[0]
			at := top
			for _, name := range first.path {
				at = at.below(name)
			}
			return at.refuse(Shape, "not a JSON Schema ("+first.keyword+")")
		}
	}
	if errors.Is(err, errOverrun) {
		return top.refuse(Time, "takes too long to compile")
	}
	return top.refuse(Shape, "cannot be compiled")
}
