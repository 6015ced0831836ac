package workflows

import (
	"math/big"
	"net/mail"
	"net/url"
	"slices"
	"strings"
	"time"
)

// An inputProblem is one thing wrong with a declared input.
type inputProblem struct {
	field   string // below the input: "type", "default", "validation.min"
	rule    string
	what    string
	remedy  string
	warning bool
}

// checkInput finds what is wrong with a declared input by itself: its type, the
// keys of its validation (P22), bounds (P23), pattern and format (P24), and a
// literal default of another type (P25). Templates are not looked at. It warns of
// a literal default that the validation refuses: a run needs a value then.
func checkInput(in *Input) []inputProblem {
	var c inputChecker
	if !slices.Contains(inputTypes(), in.Type) {
		c.add("type", "P21", "unknown type", "use one of "+strings.Join(inputTypes(), ", "))
		return c.problems
	}
	v := &in.Validation
	c.keys(in)
	c.bounds(v)
	if v.Format != "" && !slices.Contains(formats(), v.Format) {
		c.add("validation.format", "P24", "unknown format", "use one of "+strings.Join(formats(), ", "))
	}
	if v.Pattern != "" {
		if _, err := compilePattern(v.Pattern); err != nil {
			c.add("validation.pattern", "P24", "the pattern cannot be used: "+err.Error(),
				"write it without look-around, back-references and flags")
		}
	}
	c.enum(in)
	c.literalDefault(in)
	return c.problems
}

func inputTypes() []string {
	return []string{TypeString, TypeNumber, TypeBoolean, TypeFilePath, TypeCodeDiff, TypeSecret}
}

type inputChecker struct{ problems []inputProblem }

func (c *inputChecker) add(field, rule, what, remedy string) {
	c.problems = append(c.problems, inputProblem{field: field, rule: rule, what: what, remedy: remedy})
}

// validationKeys are the keys of a validation that a type allows.
func validationKeys(inputType string) []string {
	switch inputType {
	case TypeNumber:
		return []string{"min", "max", "enum"}
	case TypeBoolean:
		return nil
	default:
		return []string{"format", "pattern", "enum", "min_length", "max_length"}
	}
}

func (c *inputChecker) keys(in *Input) {
	v := &in.Validation
	set := []struct {
		key   string
		isSet bool
	}{
		{"min", v.Min != ""},
		{"max", v.Max != ""},
		{"enum", v.Enum != nil},
		{"format", v.Format != ""},
		{"pattern", v.Pattern != ""},
		{"min_length", v.MinLength != nil},
		{"max_length", v.MaxLength != nil},
	}
	allowed := validationKeys(in.Type)
	remedy := "remove it; a " + in.Type + " has no validation"
	if len(allowed) > 0 {
		remedy = "a " + in.Type + " allows " + strings.Join(allowed, ", ")
	}
	for _, k := range set {
		if k.isSet && !slices.Contains(allowed, k.key) {
			c.add("validation."+k.key, "P22", k.key+" is not allowed for the type "+in.Type, remedy)
		}
	}
}

func (c *inputChecker) bounds(v *Validation) {
	if v.Min != "" && v.Max != "" {
		low, okLow := new(big.Rat).SetString(string(v.Min))
		high, okHigh := new(big.Rat).SetString(string(v.Max))
		if okLow && okHigh && low.Cmp(high) > 0 {
			c.add("validation.min", "P23", "min is above max", "swap them")
		}
	}
	for _, l := range []struct {
		field string
		value *int
	}{{"min_length", v.MinLength}, {"max_length", v.MaxLength}} {
		if l.value != nil && *l.value < 0 {
			c.add("validation."+l.field, "P13", l.field+" is below 0", "use 0 or more")
		}
	}
	if v.MinLength != nil && v.MaxLength != nil && *v.MinLength > *v.MaxLength {
		c.add("validation.min_length", "P23", "min_length is above max_length", "swap them")
	}
}

func (c *inputChecker) enum(in *Input) {
	if in.Validation.Enum != nil && len(in.Validation.Enum) == 0 {
		c.add("validation.enum", "P13", "the enum is empty", "list at least one value")
	}
	for _, one := range in.Validation.Enum {
		if kindOf(one) != in.jsonType() {
			c.add("validation.enum", "P13", "the enum holds a value that is not "+article(in.jsonType()),
				"list values of the input's type; quote text")
			return
		}
	}
}

func (c *inputChecker) literalDefault(in *Input) {
	if in.Default == nil || in.Default.Template != nil {
		return
	}
	literal := in.Default.Literal
	switch kind := kindOf(literal); {
	case in.Type == TypeSecret:
		c.add("default", "P25", "a secret input has a default", "remove it; the value comes from the secret store")
	case kind == "null":
		c.add("default", "P25", "the default is null", "leave default out")
	case kind != in.jsonType():
		c.add("default", "P25", "the default is "+article(kind)+", the input "+article(in.jsonType()), defaultRemedy(in.jsonType()))
	case in.Type == TypeFilePath:
		text, _ := stringValue(literal)
		if err := CheckPath(text); err != nil {
			c.add("default", "P25", err.Error(), "name a file below the project root")
		}
	}
	if len(c.problems) == 0 && in.check(literal) != "" {
		c.problems = append(c.problems, inputProblem{
			field: "default", rule: "P25", warning: true,
			what: "the default does not pass the validation, so every run has to be given a value", remedy: "choose one that passes, or leave default out",
		})
	}
}

func defaultRemedy(jsonType string) string {
	if jsonType == "string" {
		return "quote it"
	}
	return "write " + article(jsonType) + " without quotes"
}

func formats() []string { return []string{"email", "uri", "url", "uuid", "date", "date-time"} }

// hasFormat tells whether text is in one of the formats.
func hasFormat(text, format string) bool {
	switch format {
	case "email":
		a, err := mail.ParseAddress(text)
		return err == nil && a.Name == "" && a.Address == text
	case "uri", "url":
		u, err := url.Parse(text)
		return err == nil && u.IsAbs() && isURIText(text) && (format == "uri" || u.Host != "")
	case "uuid":
		return isUUID(text)
	case "date":
		_, err := time.Parse(time.DateOnly, text)
		return err == nil
	case "date-time":
		_, err := time.Parse(time.RFC3339, strings.ToUpper(text))
		return err == nil && len(text) >= len("2006-01-02T15:04:05Z") && !strings.Contains(text, ",")
	default:
		return false
	}
}

// isURIText tells whether text has only the characters of RFC 3986.
func isURIText(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			return false
		}
	}
	return true
}

func isUUID(text string) bool {
	if len(text) != 36 {
		return false
	}
	for i := range len(text) {
		allowed := "0123456789abcdefABCDEF"
		if i == 8 || i == 13 || i == 18 || i == 23 {
			allowed = "-"
		}
		if strings.IndexByte(allowed, text[i]) < 0 {
			return false
		}
	}
	return true
}
