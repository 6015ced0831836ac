package consent

import (
	"io/fs"
	"path/filepath"
	"strings"
)

// hasSeparator is true for a drive-relative path (C:x) too: it is no word.
func hasSeparator(command string) bool { return strings.ContainsAny(command, `/\:`) }

// candidates are the files that a path may name: itself if it ends in an extension
// of PATHEXT, else with each of them in turn.
func candidates(path string, getenv func(string) string) []string {
	list := getenv("PATHEXT")
	if list == "" {
		list = ".COM;.EXE;.BAT;.CMD"
	}
	var found []string
	for _, ext := range strings.Split(strings.ToLower(list), ";") {
		if !strings.HasPrefix(ext, ".") || len(ext) < 2 {
			continue
		}
		if strings.EqualFold(filepath.Ext(path), ext) {
			return []string{path}
		}
		found = append(found, path+ext)
	}
	return found
}

// executable is true: the extension has decided.
func executable(fs.FileInfo) bool { return true }
