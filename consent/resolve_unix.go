//go:build unix

package consent

import (
	"io/fs"
	"strings"
)

func hasSeparator(command string) bool { return strings.ContainsRune(command, '/') }

// candidates are the files that a path may name.
func candidates(path string, _ func(string) string) []string { return []string{path} }

func executable(about fs.FileInfo) bool { return about.Mode().Perm()&0o111 != 0 }
