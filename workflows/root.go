package workflows

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
)

// projectFolder marks the root of a project.
const projectFolder = ".relavium"

// ErrRoot is a project root that would put a whole machine or home in reach.
var ErrRoot = errors.New("project root is the file system's root or the user's home: keep workflows in a folder of their own project")

// ProjectRoot is the nearest ancestor of the file, links resolved, that holds a
// .relavium folder; else fallback, or the file's own folder where fallback is
// empty. home is RELAVIUM_HOME: neither it nor ~/.relavium marks a project. The
// root is an absolute real path. It fails with ErrRoot for /, a drive or the
// user's home.
func ProjectRoot(file, fallback, home string) (string, error) {
	target, err := realPath(file)
	if err != nil {
		return "", errors.New("file cannot be found")
	}
	root := projectAbove(filepath.Dir(target), home)
	if root == "" {
		if root = filepath.Dir(target); fallback != "" {
			if root, err = realPath(fallback); err != nil {
				return "", errors.New("project root cannot be found")
			}
		}
	}
	if filepath.Dir(root) == root || root == userHome() {
		return "", ErrRoot
	}
	return root, nil
}

// projectAbove is the nearest folder from dir upwards that marks a project, or "".
func projectAbove(dir, home string) string {
	var homes []string
	if h := userHome(); h != "" {
		homes = append(homes, filepath.Join(h, projectFolder))
	}
	if home != "" {
		homes = append(homes, home)
	}
	for i := range homes {
		if target, err := realPath(homes[i]); err == nil {
			homes[i] = target
		}
	}
	for {
		marker := filepath.Join(dir, projectFolder)
		if info, err := os.Stat(marker); err == nil && info.IsDir() {
			if target, err := realPath(marker); err == nil && !slices.Contains(homes, target) {
				return dir
			}
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// userHome is the real path of the user's home, or "".
func userHome() string {
	h, err := os.UserHomeDir()
	if err != nil || h == "" {
		return ""
	}
	if target, err := realPath(h); err == nil {
		return target
	}
	return h
}

func realPath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}
