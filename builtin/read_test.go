package builtin

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// workspace makes a workspace, beside it a folder that must never be read, and
// returns the workspace.
func workspace(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	root := filepath.Join(top, "work")
	for name, text := range map[string]string{
		"notes.txt":            "one, two",
		"docs/long name.md":    "# Heron",
		"docs/deep/leaf.txt":   "leaf",
		".env":                 "KEY=canary",
		".ssh/id":              "canary",
		"docs/.npmrc":          "canary",
		"home/serve.db":        "canary",
		"bytes.bin":            "\xff\xfe canary",
		"big.txt":              strings.Repeat("canary ", MaxText/7+1),
		"full.txt":             strings.Repeat("x", MaxText),
		"../outside/secret.md": "canary",
	} {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"inside.txt":    "docs/deep/leaf.txt",
		"in":            "docs/deep",
		"escape.md":     "../outside/secret.md",
		"absolute.md":   filepath.Join(top, "outside", "secret.md"),
		"out":           "../outside",
		"plain.txt":     ".env",
		"keys":          ".ssh",
		"loop":          "loop",
		"dangling.txt":  "nowhere.txt",
		"docs/up.txt":   "../notes.txt",
		"docs/innocent": "../home",
	} {
		if err := os.Symlink(filepath.FromSlash(target), filepath.Join(root, filepath.FromSlash(link))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(top, "outside", "secret.md"), filepath.Join(root, "hard.md")); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestReadText(t *testing.T) {
	t.Parallel()
	root := workspace(t)
	reader := Reader{Private: []string{filepath.Join(root, "home"), filepath.Join(root, "absent")}}
	tests := []struct {
		path, want string // want is the text
		reason     string // or what the error says
	}{
		{path: "notes.txt", want: "one, two"},
		{path: "docs/long name.md", want: "# Heron"},
		{path: "inside.txt", want: "leaf"},
		{path: "in/leaf.txt", want: "leaf"},
		{path: "docs/up.txt", want: "one, two"},
		{path: "full.txt", want: strings.Repeat("x", MaxText)},
		{path: "absent.txt", reason: "no such file"},
		{path: "dangling.txt", reason: "no such file"},
		{path: "", reason: ""},
		{path: "loop", reason: "cannot be read"},
		{path: "docs", reason: "not a regular file"},
		{path: ".", reason: ""},
		{path: "../outside/secret.md", reason: "not allowed"},
		{path: "docs/../../outside/secret.md", reason: "not allowed"},
		{path: filepath.Join(filepath.Dir(root), "outside", "secret.md"), reason: "not allowed"},
		{path: "escape.md", reason: "not inside the workspace"},
		{path: "absolute.md", reason: "not inside the workspace"},
		{path: "out/secret.md", reason: "not inside the workspace"},
		{path: ".env", reason: "not allowed"},
		{path: ".ssh/id", reason: "not allowed"},
		{path: "docs/.npmrc", reason: "not allowed"},
		{path: "plain.txt", reason: "not allowed"},
		{path: "keys/id", reason: "not allowed"},
		{path: "home/serve.db", reason: "not allowed"},
		{path: "docs/innocent/serve.db", reason: "not allowed"},
		{path: "hard.md", reason: "more than one hard link"},
		{path: "bytes.bin", reason: "not UTF-8"},
		{path: "big.txt", reason: "larger than 4194304 bytes"},
	}
	for _, test := range tests {
		t.Run(test.path, func(t *testing.T) {
			t.Parallel()
			got, err := reader.ReadText(root, test.path)
			if test.want != "" {
				if err != nil || string(got) != test.want {
					t.Fatalf("ReadText(%q) = %d bytes, %v, want %d bytes", test.path, len(got), err, len(test.want))
				}
				return
			}
			var refused *ReadError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.reason) {
				t.Fatalf("ReadText(%q) = %v, want a *ReadError with %q", test.path, err, test.reason)
			}
			if got != nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), filepath.Dir(root)) {
				t.Errorf("ReadText(%q) = %q, %v, want no text and no folder", test.path, got, err)
			}
		})
	}
}

func TestReadTextThroughLinkedRoot(t *testing.T) {
	t.Parallel()
	root := workspace(t)
	linked := filepath.Join(t.TempDir(), "linked")
	if err := os.Symlink(root, linked); err != nil {
		t.Fatal(err)
	}
	if got, err := (Reader{}).ReadText(linked, "in/leaf.txt"); err != nil || string(got) != "leaf" {
		t.Errorf("ReadText through a linked root = %q, %v, want leaf", got, err)
	}
	if _, err := (Reader{}).ReadText(filepath.Join(root, "absent"), "a.txt"); err == nil {
		t.Error("ReadText below a root that does not exist = nil error")
	}
}

// A name that turns into a link between the look and the open is refused.
func TestOpenBelowRefusesLinks(t *testing.T) {
	t.Parallel()
	root := workspace(t)
	for _, names := range [][]string{{"inside.txt"}, {"in", "leaf.txt"}, {"out", "secret.md"}, {"escape.md"}} {
		jail, err := os.OpenRoot(root)
		if err != nil {
			t.Fatal(err)
		}
		if file, err := openBelow(jail, names, nil); err == nil {
			t.Errorf("openBelow(%q) opened %s, want an error", names, file.Name())
		}
	}
}
