package child

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/consent"
)

const (
	// maxValueBytes is what one variable may take on Linux (MAX_ARG_STRLEN), name
	// included.
	maxValueBytes = 128 << 10
	maxEnvBytes   = 1 << 20
)

// A Variable is a name and its value. The value may be a secret: it is bytes so that it
// can be cleared.
type Variable struct {
	Name  string
	Value []byte
}

// Variables are the sources of a child's environment. A later source wins: Declared over
// Host, Own over Declared.
type Variables struct {
	// Host is this process's environment as os.Environ gives it. Only what every program
	// needs is taken from it: where programs and the home are, language and time zone,
	// the folder for temporary files.
	Host []string
	// Pass names proxy and CA variables of Host that the user lets children have.
	Pass []string
	// Declared is what a server's declaration asks for.
	Declared []Variable
	// Own is what this product sets for a program that it knows. No rule refuses it.
	Own []Variable
}

// An Environment is complete: a child gets nothing else. It holds values that may be
// secrets and prints none. The zero value is empty.
type Environment struct{ entries [][]byte }

// An EnvironmentError says which variable a child may not have, and why. It never holds
// a value.
type EnvironmentError struct{ Name, Reason string }

func (e *EnvironmentError) Error() string {
	return fmt.Sprintf("environment: %q: %s", e.Name, e.Reason)
}

// NewEnvironment makes a child's environment. A declared name on the denylist is an
// error, an *EnvironmentError as all others: it was to be refused when its file was read.
// The values are copied.
func NewEnvironment(v Variables) (Environment, error) {
	var env Environment
	for _, entry := range v.Host {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || strings.ContainsRune(value, 0) || !isBase(name) && !isPassed(name, v.Pass) {
			continue
		}
		if sameName(name, "PATH") {
			value = absoluteOnly(value)
		}
		if value != "" && len(entry) <= maxValueBytes {
			env.set(name, []byte(value))
		}
	}
	for _, name := range v.Pass {
		if !isProxyOrCA(name) {
			return env.refused(name, "no proxy or CA variable")
		}
	}
	for _, declared := range v.Declared {
		if reason, denied := consent.EnvDenied(declared.Name); denied {
			return env.refused(declared.Name, reason)
		}
	}
	for _, variable := range slices.Concat(v.Declared, v.Own) {
		switch {
		case variable.Name == "" || strings.ContainsAny(variable.Name, "=\x00"):
			return env.refused(variable.Name, "not a variable name")
		case bytes.IndexByte(variable.Value, 0) >= 0:
			return env.refused(variable.Name, "its value holds a NUL")
		case len(variable.Name)+len(variable.Value)+2 > maxValueBytes:
			return env.refused(variable.Name, fmt.Sprintf("over %d bytes", maxValueBytes))
		}
		env.set(variable.Name, variable.Value)
	}
	total := 0
	for _, entry := range env.entries {
		if total += len(entry) + 1; total > maxEnvBytes {
			name, _, _ := bytes.Cut(entry, []byte("="))
			return env.refused(string(name), fmt.Sprintf("all variables together are over %d bytes", maxEnvBytes))
		}
	}
	return env, nil
}

func (e *Environment) refused(name, reason string) (Environment, error) {
	e.clear()
	return Environment{}, &EnvironmentError{Name: name[:min(len(name), 128)], Reason: reason}
}

// Names lists the variables, in the order in which a child sees them.
func (e Environment) Names() []string {
	names := make([]string, 0, len(e.entries))
	for _, entry := range e.entries {
		name, _, _ := bytes.Cut(entry, []byte("="))
		names = append(names, string(name))
	}
	return names
}

// String names no value.
func (e Environment) String() string { return fmt.Sprintf("%d variables", len(e.entries)) }

// GoString names no value.
func (e Environment) GoString() string { return "child.Environment(" + e.String() + ")" }

func (e *Environment) set(name string, value []byte) {
	entry := slices.Concat([]byte(name), []byte("="), value)
	for i, old := range e.entries {
		if was, _, _ := bytes.Cut(old, []byte("=")); sameName(string(was), name) {
			clear(old)
			e.entries[i] = entry
			return
		}
	}
	e.entries = append(e.entries, entry)
}

// clear overwrites the values.
func (e *Environment) clear() {
	for _, entry := range e.entries {
		clear(entry)
	}
	e.entries = nil
}

// sameName compares as the system does.
func sameName(a, b string) bool {
	if runtime.GOOS == "windows" {
		return strings.EqualFold(a, b)
	}
	return a == b
}

// isBase reports whether every child gets the variable if the host has it.
func isBase(name string) bool {
	if runtime.GOOS == "windows" {
		switch strings.ToUpper(name) {
		case "PATH", "PATHEXT", "SYSTEMROOT", "WINDIR", "COMSPEC", "TEMP", "TMP", "APPDATA", "LOCALAPPDATA",
			"USERPROFILE", "USERNAME", "HOMEDRIVE", "HOMEPATH", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)",
			"PROGRAMW6432", "LANG", "TZ":
			return true
		}
		return false
	}
	switch name {
	case "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR":
		return true
	}
	return strings.HasPrefix(name, "LC_")
}

func isPassed(name string, pass []string) bool {
	return isProxyOrCA(name) && slices.ContainsFunc(pass, func(p string) bool { return sameName(p, name) })
}

func isProxyOrCA(name string) bool {
	switch strings.ToUpper(name) {
	case "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE":
		return true
	}
	return false
}

// absoluteOnly drops the folders of a PATH that depend on where a program stands.
func absoluteOnly(path string) string {
	dirs := slices.DeleteFunc(filepath.SplitList(path), func(dir string) bool { return !filepath.IsAbs(dir) })
	return strings.Join(dirs, string(filepath.ListSeparator))
}
