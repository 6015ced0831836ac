package consent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// A ResolveError says why a command names no program. Its text holds no path that
// was not authored.
type ResolveError struct {
	Command string // as authored
	Reason  string
}

func (e *ResolveError) Error() string {
	command := e.Command
	if len(command) > 200 {
		command = strings.ToValidUTF8(command[:200], "") + "…"
	}
	return string(appendQuoted([]byte("command "), command)) + ": " + e.Reason
}

// Resolve returns the absolute path of the program that a command names: a word is
// looked for in the folders of PATH, a relative path starts at cwd, which must be
// absolute. The program is a regular file that may be executed; links are followed
// to check that and kept in the path, so that an update behind a link asks nobody
// again. Folders of PATH that are not absolute are skipped. On Windows PATHEXT
// completes the name.
//
// getenv is the environment of this process, never a declared one. The error is a
// *ResolveError.
func Resolve(command, cwd string, getenv func(string) string) (string, error) {
	fail := func(reason string) (string, error) {
		return "", &ResolveError{Command: command, Reason: reason}
	}
	switch {
	case command == "" || strings.ContainsRune(command, 0):
		return fail("not a program's name or path")
	case !utf8.ValidString(command):
		return fail(ErrNoFaithfulForm.Error())
	case filepath.IsAbs(command):
		return resolvePath(command, filepath.Clean(command), getenv)
	case hasSeparator(command):
		if !filepath.IsAbs(cwd) {
			return fail("its folder is not absolute")
		}
		return resolvePath(command, filepath.Join(cwd, command), getenv)
	case command == "." || command == "..":
		return fail("a folder, not a program")
	}
	for _, dir := range filepath.SplitList(getenv("PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		for _, candidate := range candidates(filepath.Join(dir, command), getenv) {
			if reason := notExecutable(candidate); reason == "" && utf8.ValidString(candidate) {
				return candidate, nil
			}
		}
	}
	return fail("no such program in the folders of PATH" + spaceHint(command))
}

// spaceHint is for a command line where a program is wanted.
func spaceHint(command string) string {
	if strings.ContainsAny(command, " \t") {
		return "; a command is one program, spaces included: put arguments in args"
	}
	return ""
}

func resolvePath(command, path string, getenv func(string) string) (string, error) {
	reason := ""
	for _, candidate := range candidates(path, getenv) {
		if reason = notExecutable(candidate); reason == "" {
			return candidate, nil
		}
	}
	return "", &ResolveError{Command: command, Reason: reason + spaceHint(command)}
}

// notExecutable says why the file at path is no program; "" means that it is one.
func notExecutable(path string) string {
	about, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case err != nil:
		return "cannot be looked at"
	case !about.Mode().IsRegular():
		return "not a regular file"
	case !executable(about):
		return "may not be executed"
	}
	return ""
}

// batchUnsafe reports whether a batch file would be given arguments in which
// cmd.exe sees more than text.
func batchUnsafe(command string, args []string) bool {
	switch strings.ToLower(filepath.Ext(command)) {
	case ".bat", ".cmd":
		for _, arg := range args {
			if strings.ContainsAny(arg, "\"&|<>^%!()\r\n") {
				return true
			}
		}
	}
	return false
}
