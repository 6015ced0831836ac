package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A checker reads the items of one file and collects what is wrong with them.
type checker struct {
	file     string
	opt      Options
	frozen   []*item // agents of a snapshot, which stand in for files and registry
	restored bool    // reading a snapshot
	problems Problems
	compiled map[string]*compiledSchema // by the schema's text
	prompts  map[string][]ref           // of agents, by id
}

func (c *checker) add(n *item, rule, where, what, remedy string) {
	c.problems = append(c.problems, Problem{
		File: c.file, Line: n.line, Col: n.col, Rule: rule, Class: classOf(rule), Where: where, What: what, Remedy: remedy,
	})
}

func (c *checker) warn(n *item, rule, where, what, remedy string) {
	c.problems = append(c.problems, Problem{
		File: c.file, Line: n.line, Col: n.col, Rule: rule, Class: ClassWarning, Where: where, What: what, Remedy: remedy,
	})
}

// failed tells whether an error was found, not a mere warning.
func (c *checker) failed() bool {
	return slices.ContainsFunc(c.problems, func(p Problem) bool { return p.Class != ClassWarning })
}

// wrongType reports an item of another kind, unless decoding refused it already.
func (c *checker) wrongType(n *item, where, want, remedy string) {
	if n.kind != badItem {
		c.add(n, "P13", where, "want "+want+", got "+n.kind.String(), remedy)
	}
}

// An object reads the keys of one strict map. Every key is asked for once, by name;
// close reports those that nobody asked for. An object of an item that is no map
// is empty and reports nothing more.
type object struct {
	c     *checker
	n     *item // nil when there is no map
	where string
	asked []string
}

func (c *checker) object(n *item, where string) *object {
	o := &object{c: c, where: where}
	switch {
	case n == nil:
	case n.kind == mapItem:
		o.n = n
	default:
		c.wrongType(n, where, "a map", "")
	}
	return o
}

// at is the path of a key of the object.
func (o *object) at(key string) string { return join(o.where, key) }

// get is the value of an optional key, or nil.
func (o *object) get(key string) *item {
	if !slices.Contains(o.asked, key) {
		o.asked = append(o.asked, key)
	}
	return o.n.member(key)
}

// need is the value of a required key; its absence is reported by the rule.
func (o *object) need(key, rule, remedy string) *item {
	n := o.get(key)
	if n == nil && o.n != nil {
		o.c.add(o.n, rule, o.at(key), "missing key "+shown(key), remedy)
	}
	return n
}

// close reports the keys that were not asked for.
func (o *object) close() { o.closeAs("P12") }

func (o *object) closeAs(rule string) {
	if o.n == nil {
		return
	}
	for _, k := range o.n.keys {
		if slices.Contains(o.asked, k.name) {
			continue
		}
		remedy := ""
		if k.name == "on_error" || k.name == "data_mapping" {
			remedy = "the name is reserved for a later version"
		} else if near := nearest(k.name, o.asked); near != "" {
			remedy = "did you mean " + shown(near) + "?"
		} else if len(o.asked) > 0 {
			remedy = "known keys: " + strings.Join(o.asked, ", ")
		}
		o.c.add(&item{line: k.line, col: k.col}, rule, o.at(k.name), "unknown key "+shown(k.name), remedy)
	}
}

// text is the value of an optional string key; ok is false when there is none.
func (o *object) text(key string) (s string, ok bool) {
	return o.c.text(o.get(key), o.at(key))
}

func (c *checker) text(n *item, where string) (s string, ok bool) {
	switch {
	case n == nil:
		return "", false
	case n.kind != stringItem:
		remedy := ""
		if n.kind == numberItem || n.kind == boolItem {
			remedy = "quote it"
		}
		c.wrongType(n, where, "a string", remedy)
		return "", false
	}
	return n.text, true
}

// required is the value of a required string key, which may not be empty.
func (o *object) required(key, rule string) (s string, ok bool) {
	n := o.need(key, rule, "")
	if s, ok = o.c.text(n, o.at(key)); ok && strings.TrimSpace(s) == "" {
		o.c.add(n, rule, o.at(key), shown(key)+" is empty", "")
		return "", false
	}
	return s, ok
}

// word is a string of a closed set; its absence is reported only if required.
func (o *object) word(key, rule string, required bool, words ...string) string {
	n := o.get(key)
	if required {
		n = o.need(key, rule, "use one of "+strings.Join(words, ", "))
	}
	s, ok := o.c.text(n, o.at(key))
	if ok && !slices.Contains(words, s) {
		o.c.add(n, rule, o.at(key), "unknown "+key, "use one of "+strings.Join(words, ", "))
		return ""
	}
	return s
}

func (o *object) boolean(key string) bool {
	n := o.get(key)
	if n == nil {
		return false
	}
	if n.kind != boolItem {
		o.c.wrongType(n, o.at(key), "true or false", "")
	}
	return n.text == "true"
}

// number is a number with its digits, or "".
func (o *object) number(key string) json.Number {
	n := o.get(key)
	if n == nil {
		return ""
	}
	if n.kind != numberItem {
		o.c.wrongType(n, o.at(key), "a number", unquote(n))
		return ""
	}
	return json.Number(n.text)
}

// within is a number between low and high, or "".
func (o *object) within(key, rule string, low, high float64) json.Number {
	number := o.number(key)
	if number == "" {
		return ""
	}
	if f, err := number.Float64(); err != nil || f < low || f > high {
		o.c.add(o.get(key), rule, o.at(key), fmt.Sprintf("want a number between %v and %v", low, high), "")
		return ""
	}
	return number
}

// integer is a whole number between low and high; ok is false when there is none.
func (o *object) integer(key, rule string, low, high int64) (v int64, ok bool) {
	number := o.number(key)
	if number == "" {
		return 0, false
	}
	v, whole := wholeNumber(string(number))
	if !whole || v < low || v > high {
		want := fmt.Sprintf("want a whole number between %d and %d", low, high)
		switch {
		case low == math.MinInt64:
			want = "want a whole number"
		case high >= maxMillis && low == 1, high == math.MaxInt32 && low == 1:
			want = "want a positive whole number"
		case high >= maxMillis || high == math.MaxInt32:
			want = fmt.Sprintf("want a whole number, %d or more", low)
		}
		o.c.add(o.get(key), rule, o.at(key), want, "")
		return 0, false
	}
	return v, true
}

// wholeNumber is the value of a JSON number that is whole, such as 3, 3.0 or 3e2.
func wholeNumber(literal string) (int64, bool) {
	if v, err := strconv.ParseInt(literal, 10, 64); err == nil {
		return v, true
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// maxMillis is as long as a time.Duration can be, roundly 285 years.
const maxMillis = 9_000_000_000_000

// millis is a positive duration in milliseconds, or 0.
func (o *object) millis(key, rule string) time.Duration {
	v, _ := o.integer(key, rule, 1, maxMillis)
	return time.Duration(v) * time.Millisecond
}

// count is a positive int, or 0.
func (o *object) count(key, rule string) int {
	v, _ := o.integer(key, rule, 1, math.MaxInt32)
	return int(v)
}

// list is the entries of a list; ok is false when there is no list.
func (o *object) list(key string) (entries []*item, ok bool) {
	return o.c.list(o.get(key), o.at(key))
}

func (c *checker) list(n *item, where string) (entries []*item, ok bool) {
	switch {
	case n == nil:
		return nil, false
	case n.kind != listItem:
		remedy := ""
		if n.kind == nullItem {
			remedy = "write [] for none"
		}
		c.wrongType(n, where, "a list", remedy)
		return nil, false
	}
	return n.items, true
}

// texts is a list of strings; nil when there is none, empty when it is empty.
func (o *object) texts(key string) []string {
	entries, ok := o.list(key)
	if !ok {
		return nil
	}
	out := make([]string, 0, len(entries))
	for i, n := range entries {
		if s, ok := o.c.text(n, index(o.at(key), i)); ok {
			out = append(out, s)
		}
	}
	return out
}

// raw is a free map as JSON, or nil.
func (o *object) raw(key string) json.RawMessage {
	n := o.get(key)
	if n == nil {
		return nil
	}
	if n.kind != mapItem {
		o.c.wrongType(n, o.at(key), "a map", "")
		return nil
	}
	return n.json()
}

// template is an optional template; nil when there is none or it is malformed.
func (o *object) template(key string) *Template {
	return o.c.template(o.get(key), o.at(key))
}

func (c *checker) template(n *item, where string) *Template {
	s, ok := c.text(n, where)
	if !ok {
		return nil
	}
	t, err := parseTemplate(s)
	if err != nil {
		what := "malformed template"
		if bad, ok := errors.AsType[*templateError](err); ok {
			what = fmt.Sprintf("malformed template at character %d: %s", 1+utf8.RuneCountInString(s[:min(bad.offset, len(s))]), bad.what)
		}
		c.add(n, "P63", where, what, "")
		return nil
	}
	return t
}

// field is a value that may be a template, or nil.
func (c *checker) field(n *item, where string) *Field {
	switch {
	case n == nil || n.kind == badItem:
		return nil
	case n.kind == stringItem && strings.Contains(n.text, "{{"):
		if t := c.template(n, where); t != nil {
			return &Field{Template: t}
		}
		return nil
	}
	return &Field{Literal: n.json()}
}

func unquote(n *item) string {
	if n.kind == stringItem {
		return "write it without quotes"
	}
	return ""
}

func index(where string, i int) string { return where + "[" + strconv.Itoa(i) + "]" }

// isKebab tells whether s is an id: lower-case letters and digits in groups that
// single hyphens join.
func isKebab(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' || strings.Contains(s, "--") {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

const kebabRemedy = "use lower-case letters, digits and single hyphens"

// kebab is a required id.
func (o *object) kebab(key, rule string) (string, bool) {
	n := o.need(key, rule, "")
	s, ok := o.c.text(n, o.at(key))
	if !ok {
		return "", false
	}
	if !isKebab(s) || len(s) > maxIDBytes {
		o.c.add(n, rule, o.at(key), shown(key)+" is not a kebab-case id", kebabRemedy)
		return "", false
	}
	return s, true
}

// maxIDBytes bounds an id, which becomes part of names and of file names.
const maxIDBytes = 128
