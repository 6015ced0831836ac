package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/relavium/relavium-serve/workflows"
)

// typeAt is the type of the setting at path, with the path's known part: below a
// map any key is known.
func typeAt(path []string) (at reflect.Type, known int) {
	at = reflect.TypeFor[settings]()
	for i, name := range path {
		next, ok := childType(at, name)
		if !ok {
			return at, i
		}
		at = next
	}
	return at, len(path)
}

// childType is the type one key below at.
func childType(at reflect.Type, name string) (reflect.Type, bool) {
	at = element(at)
	switch at.Kind() { //nolint:exhaustive // only tables have keys
	case reflect.Map:
		return at.Elem(), true
	case reflect.Struct:
		for field := range at.Fields() {
			if field.Tag.Get("toml") == name {
				return field.Type, true
			}
		}
	}
	return nil, false
}

// element strips pointers and the list around a table.
func element(at reflect.Type) reflect.Type {
	for at.Kind() == reflect.Pointer || (at.Kind() == reflect.Slice && at.Elem().Kind() == reflect.Struct) {
		at = at.Elem()
	}
	return at
}

// expected says in words what a key holds; it is false for a key that is not one.
func expected(path []string) (string, bool) {
	at, known := typeAt(path)
	if known < len(path) {
		return "", false
	}
	for at.Kind() == reflect.Pointer {
		at = at.Elem()
	}
	if at == reflect.TypeFor[duration]() {
		return `a duration such as "10m", "36h" or "30d"`, true
	}
	switch at.Kind() { //nolint:exhaustive // the kinds that settings use
	case reflect.String:
		return "text", true
	case reflect.Bool:
		return "true or false", true
	case reflect.Int64:
		return "a whole number", true
	case reflect.Slice:
		if at.Elem().Kind() == reflect.Struct {
			return "[[tables]]", true
		}
		return "a list of texts", true
	case reflect.Struct, reflect.Map:
		return "a table", true
	}
	return "", false
}

// nearest names the known key that is most like an unknown one.
func nearest(path []string) string {
	at, known := typeAt(path)
	if known == len(path) {
		known--
	}
	wanted, parent := path[known], path[:known]
	if elsewhere := findKey(reflect.TypeFor[settings](), nil, wanted); elsewhere != nil {
		return "did you mean " + dotted(elsewhere) + "?"
	}
	best, distance := "", 1<<30
	for _, name := range keysOf(element(at)) {
		if d := workflows.EditDistance(wanted, name); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return fmt.Sprintf("%s holds no keys", dotted(parent))
	}
	if distance > max(2, len(wanted)/2) {
		return "known keys are " + strings.Join(keysOf(element(at)), ", ")
	}
	return "the nearest known key is " + dotted(append(append([]string(nil), parent...), best))
}

func keysOf(table reflect.Type) []string {
	var names []string
	if table.Kind() == reflect.Struct {
		for field := range table.Fields() {
			if name := field.Tag.Get("toml"); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// findKey looks for a key of that name in the tables that have a fixed place.
func findKey(table reflect.Type, at []string, name string) []string {
	for field := range table.Fields() {
		key := field.Tag.Get("toml")
		path := append(append([]string(nil), at...), key)
		if key == name {
			return path
		}
		if field.Type.Kind() == reflect.Struct {
			if found := findKey(field.Type, path, name); found != nil {
				return found
			}
		}
	}
	return nil
}

// closest is the candidate most like the word, or "" if none is near.
func closest(word string, candidates []string) string {
	best, distance := "", max(2, len(word)/3)+1
	for _, candidate := range candidates {
		if d := workflows.EditDistance(strings.ToLower(word), strings.ToLower(candidate)); d < distance {
			best, distance = candidate, d
		}
	}
	return best
}
