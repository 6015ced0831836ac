package workflows

import (
	"math/big"
	"strings"
)

// resolveScalar gives a plain scalar its meaning by the YAML 1.2 core schema
// (format 1.1): what is not null, a boolean or a number is a string. finite is
// false for .inf and .nan, which JSON cannot hold.
func resolveScalar(s string) (k itemKind, text string, finite bool) {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return nullItem, "", true
	case "true", "True", "TRUE":
		return boolItem, "true", true
	case "false", "False", "FALSE":
		return boolItem, "false", true
	case ".nan", ".NaN", ".NAN":
		return numberItem, "", false
	}
	if rest, ok := strings.CutPrefix(s, "0o"); ok && onlyDigits(rest, "01234567") {
		return numberItem, decimal(rest, 8), true
	}
	if rest, ok := strings.CutPrefix(s, "0x"); ok && onlyDigits(rest, "0123456789abcdefABCDEF") {
		return numberItem, decimal(rest, 16), true
	}
	sign, rest := "", s
	switch s[0] {
	case '-':
		sign, rest = "-", s[1:]
	case '+':
		rest = s[1:]
	}
	switch rest {
	case ".inf", ".Inf", ".INF":
		return numberItem, "", false
	}
	if literal, ok := decimalLiteral(rest); ok {
		return numberItem, sign + literal, true
	}
	return stringItem, s, true
}

// decimalLiteral turns an unsigned decimal scalar into a JSON number with the
// same digits: 0777 is 777, .5 is 0.5, 1. is 1.
func decimalLiteral(s string) (string, bool) {
	whole, rest := leadingDigits(s)
	fraction := ""
	if after, ok := strings.CutPrefix(rest, "."); ok {
		fraction, rest = leadingDigits(after)
	}
	if whole == "" && fraction == "" {
		return "", false
	}
	exponent := rest
	if rest != "" {
		if rest[0] != 'e' && rest[0] != 'E' {
			return "", false
		}
		digits := rest[1:]
		if digits != "" && (digits[0] == '+' || digits[0] == '-') {
			digits = digits[1:]
		}
		if !onlyDigits(digits, "0123456789") {
			return "", false
		}
	}
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if fraction != "" {
		whole += "." + fraction
	}
	return whole + exponent, true
}

func leadingDigits(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}

func onlyDigits(s, digits string) bool { return s != "" && strings.Trim(s, digits) == "" }

// decimal rewrites digits of another base. A number too long to be admitted
// anyway is left as it is, so that the bound on numbers refuses it.
func decimal(digits string, base int) string {
	if len(digits) > 4*maxNumberBytes {
		return digits
	}
	n, ok := new(big.Int).SetString(digits, base)
	if !ok {
		return digits
	}
	return n.String()
}
