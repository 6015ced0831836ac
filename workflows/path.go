package workflows

import (
	"strings"
	"unicode"
)

const maxPathBytes = 4096

// A PathError says why a workspace-relative path is refused. It does not quote the
// path.
type PathError struct{ What string }

func (e *PathError) Error() string { return e.What }

// CheckPath refuses a workspace-relative path that is absolute, escapes the
// workspace, or names a file on the confidentiality floor (format 6.3). It looks
// at the words only, in the same way on every platform; the reader jails the real
// path again. The error is a *PathError.
func CheckPath(path string) error {
	switch {
	case path == "":
		return &PathError{"the path is empty"}
	case len(path) > maxPathBytes:
		return &PathError{"the path is over 4096 bytes"}
	case strings.ContainsRune(path, 0):
		return &PathError{"the path holds a NUL"}
	case strings.HasPrefix(path, `\\`) || strings.HasPrefix(path, "//"):
		return &PathError{"the path is a network path"}
	case strings.HasPrefix(path, "/"):
		return &PathError{"the path is absolute"}
	case len(path) >= 2 && path[1] == ':' && isLetter(path[0]):
		return &PathError{"the path names a drive"}
	case strings.Contains(path, `\`):
		return &PathError{"the path has a backslash; use /"}
	}
	var segments []string
	for segment := range strings.SplitSeq(path, "/") {
		switch segment {
		case "", ".":
		case "..":
			return &PathError{"the path leaves its folder with .."}
		default:
			segments = append(segments, foldSegment(segment))
		}
	}
	if name := onFloor(segments); name != "" {
		return &PathError{"files like " + name + " may hold credentials and are never read"}
	}
	return nil
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// foldSegment is a segment as a file system that ignores case would compare it:
// folded, without a stream name, without trailing dots and blanks.
func foldSegment(segment string) string {
	segment, _, _ = strings.Cut(segment, ":")
	return strings.Map(foldRune, strings.TrimRight(segment, ". "))
}

// foldRune is the lower-case ASCII letter that a character folds to, or else the
// smallest of the characters that are equal to it without case.
func foldRune(r rune) rune {
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	return unicode.ToLower(least)
}

// onFloor names the entry of the confidentiality floor that the path meets, or "".
func onFloor(segments []string) string {
	for i, s := range segments {
		switch s {
		case ".ssh", ".relavium", ".aws", ".kube", ".azure",
			".env", ".envrc", ".gitconfig", ".git-credentials", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".dockercfg":
			return s
		}
		if strings.HasPrefix(s, ".env.") {
			return ".env.*"
		}
		rest := strings.Join(segments[i:], "/")
		for _, entry := range []string{".docker/config.json", ".git/config", ".config/git/credentials", ".config/gcloud"} {
			if rest == entry || strings.HasPrefix(rest, entry+"/") {
				return entry
			}
		}
	}
	return ""
}
