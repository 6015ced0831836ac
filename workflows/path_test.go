package workflows

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckPath(t *testing.T) {
	t.Parallel()
	good := []string{
		"a", "a/b.txt", "./a", "a//b", "a/./b/", ".", "..a/b", "a..", "...", "dir/..hidden", "~/a", "c", "1:x",
		".github/workflows/ci.yml", ".config/app.toml", ".docker/daemon.json", ".gitignore", "git/config", "env", ".environment",
		"src/env.go", ".gitattributes", "sub/.docker", ".git/HEAD", "näh/é", "a b", "docker/config.json", ".config/gitk/credentials",
	}
	for _, path := range good {
		if err := CheckPath(path); err != nil {
			t.Errorf("CheckPath(%q) = %v, want none", path, err)
		}
	}
	const floor = " may hold credentials and are never read"
	bad := []struct{ path, want string }{
		{"", "the path is empty"},
		{strings.Repeat("a", 4097), "the path is over 4096 bytes"},
		{"a\x00b", "the path holds a NUL"},
		{"/etc/passwd", "the path is absolute"},
		{"//host/share", "the path is a network path"},
		{`\\host\share`, "the path is a network path"},
		{`\\?\C:\x`, "the path is a network path"},
		{`C:\x`, "the path names a drive"},
		{"c:/x", "the path names a drive"},
		{"c:x", "the path names a drive"},
		{`a\b`, "the path has a backslash; use /"},
		{`\a`, "the path has a backslash; use /"},
		{"..", "the path leaves its folder with .."},
		{"../a", "the path leaves its folder with .."},
		{"a/../../b", "the path leaves its folder with .."},
		{"a/..", "the path leaves its folder with .."},
		{".env", "files like .env" + floor},
		{"a/.ENV", "files like .env" + floor},
		{".env/x", "files like .env" + floor},
		{".env.local", "files like .env.*" + floor},
		{".Env.production/x", "files like .env.*" + floor},
		{".env ", "files like .env" + floor},
		{".env.", "files like .env" + floor},
		{".env::$DATA", "files like .env" + floor},
		{"home/.ſſh/id", "files like .ssh" + floor},
		{".ssh", "files like .ssh" + floor},
		{"x/.ssh/id_ed25519", "files like .ssh" + floor},
		{".relavium/workflows/a.yaml", "files like .relavium" + floor},
		{".aws/credentials", "files like .aws" + floor},
		{".\u212Aube/config", "files like .kube" + floor},
		{".config/gcloud/x", "files like .config/gcloud" + floor},
		{".config/./gcloud", "files like .config/gcloud" + floor},
		{".azure/x", "files like .azure" + floor},
		{"a/.docker/config.json", "files like .docker/config.json" + floor},
		{".git/config", "files like .git/config" + floor},
		{"sub/.GIT//Config", "files like .git/config" + floor},
		{".config/git/credentials", "files like .config/git/credentials" + floor},
		{".gitconfig", "files like .gitconfig" + floor},
		{".git-credentials", "files like .git-credentials" + floor},
		{".netrc", "files like .netrc" + floor},
		{".npmrc", "files like .npmrc" + floor},
		{".pypirc", "files like .pypirc" + floor},
		{".pgpass", "files like .pgpass" + floor},
		{".envrc", "files like .envrc" + floor},
		{".dockercfg", "files like .dockercfg" + floor},
	}
	for _, tt := range bad {
		err := CheckPath(tt.path)
		if _, ok := errors.AsType[*PathError](err); !ok || err.Error() != tt.want {
			t.Errorf("CheckPath(%.40q) = %v, want %s", tt.path, err, tt.want)
		}
	}
}
