package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/secrets"
)

// A place is where a command works.
type place struct {
	home     string // RELAVIUM_HOME, else ~/.relavium: configuration and store of this user
	userHome string
	cwd      string
	root     string // the project root found from cwd; "" if there is none
}

// findPlace resolves the home and the project root of cwd ("" means the working
// directory of the process).
func (s *shell) findPlace(cwd string) (place, error) {
	var p place
	p.userHome = s.env["HOME"]
	if runtime.GOOS == "windows" {
		p.userHome = s.env["USERPROFILE"]
	}
	home := s.env["RELAVIUM_HOME"]
	if home == "" {
		if p.userHome == "" {
			return place{}, invalid("set RELAVIUM_HOME to a folder of your own", "neither RELAVIUM_HOME nor HOME is set")
		}
		home = filepath.Join(p.userHome, ".relavium")
	}
	var err error
	if p.home, err = filepath.Abs(home); err != nil {
		return place{}, invalid("", "the working directory cannot be found")
	}
	if cwd == "" {
		cwd = "."
	}
	if p.cwd, err = filepath.Abs(cwd); err != nil {
		return place{}, invalid("", "the working directory cannot be found")
	}
	if about, err := os.Stat(p.cwd); err != nil || !about.IsDir() {
		return place{}, invalid("", "--cwd: no such folder")
	}
	p.root, err = p.rootAbove(p.cwd)
	return p, err
}

// rootAbove is the real path of the nearest folder from dir up that holds a
// .relavium folder which is not a home; "" if there is none.
func (p *place) rootAbove(dir string) (string, error) {
	realDir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", invalid("", "the folder cannot be read")
	}
	homes := []string{realPath(p.home), realPath(filepath.Join(p.userHome, ".relavium"))}
	for at := realDir; ; at = filepath.Dir(at) {
		marker := filepath.Join(at, ".relavium")
		if about, err := os.Stat(marker); err == nil && about.IsDir() {
			if found := realPath(marker); found != homes[0] && found != homes[1] {
				return at, p.checkRoot(at)
			}
		}
		if filepath.Dir(at) == at {
			return "", nil
		}
	}
}

// checkRoot refuses a project root that would put a whole machine or home in reach.
func (p *place) checkRoot(root string) error {
	if filepath.Dir(root) == root || (p.userHome != "" && root == realPath(p.userHome)) {
		return invalid("keep workflows in a folder of their own project", "the project root would be the file system's root or your home folder")
	}
	return nil
}

// realPath follows links as far as the path exists.
func realPath(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	return filepath.Clean(path)
}

// loadSettings merges the configuration: built in, then config.toml (or the file
// that --config names), workspace.toml, project.toml of the root, and the
// environment. Flags come last, by each command.
func (s *shell) loadSettings(p place, configFlag, root string) (*settings, error) {
	user, err := readConfig(filepath.Join(p.home, "config.toml"), "config.toml", false)
	if configFlag != "" {
		user, err = readConfig(configFlag, filepath.Base(configFlag), true)
	}
	if err != nil {
		return nil, err
	}
	merged := builtinSettings()
	var files []*configFile
	if user != nil {
		if err := checkValues(user); err != nil {
			return nil, err
		}
		merged = overlay(merged, user.settings)
		files = append(files, user)
	}
	own := merged
	for _, name := range []string{"workspace.toml", "project.toml"} {
		if root == "" {
			break
		}
		f, err := readConfig(filepath.Join(root, ".relavium", name), name, false)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		if err := checkValues(f); err != nil {
			return nil, err
		}
		if err := checkProject(f, &own); err != nil {
			return nil, err
		}
		for i := range f.settings.Servers {
			f.settings.Servers[i].project = realPath(root)
		}
		merged = overlay(merged, f.settings)
		files = append(files, f)
	}
	if err := checkServers(files); err != nil {
		return nil, err
	}
	if err := s.overlayEnv(&merged); err != nil {
		return nil, err
	}
	return &merged, checkProviders(&merged)
}

// overlayEnv puts the environment above the files.
func (s *shell) overlayEnv(merged *settings) error {
	for name, provider := range map[string]*providerSettings{
		"ANTHROPIC": &merged.Providers.Anthropic, "OPENAI": &merged.Providers.OpenAI,
		"GEMINI": &merged.Providers.Gemini, "DEEPSEEK": &merged.Providers.DeepSeek,
	} {
		if base := s.env["RELAVIUM_"+name+"_BASE_URL"]; base != "" {
			provider.BaseURL = &base
		}
		switch local := s.env["RELAVIUM_"+name+"_ALLOW_LOCAL_ENDPOINT"]; local {
		case "":
		case "true", "1", "false", "0":
			provider.AllowLocalEndpoint = new(local == "true" || local == "1")
		default:
			return invalid("", "RELAVIUM_%s_ALLOW_LOCAL_ENDPOINT: expected true or false", name)
		}
	}
	return nil
}

// checkProviders refuses addresses of providers that would not be connected to,
// whichever layer they come from. Names are looked up when they are used.
func checkProviders(merged *settings) error {
	for _, name := range secrets.Providers() {
		set := providerOf(merged, name)
		if set.BaseURL == nil {
			continue
		}
		local := set.AllowLocalEndpoint != nil && *set.AllowLocalEndpoint
		if err := egress.CheckURL(*set.BaseURL, local); err != nil {
			hint := "a provider of your own machine or network needs allow_local_endpoint = true beside it"
			if local {
				hint = ""
			}
			return invalid(hint, "providers.%s.base_url: %w", name, err)
		}
	}
	return nil
}

// prepareHome makes the home and returns the path of the store in it, whose file
// it creates.
func prepareHome(p place) (store string, err error) {
	if err := makeHome(p); err != nil {
		return "", err
	}
	store = filepath.Join(p.home, "serve.db")
	return store, privateFile(store)
}

// makeHome makes the home if there is none and keeps it private to the user.
func makeHome(p place) error {
	if filepath.Dir(p.home) == p.home {
		return homeFault("is the file system's root")
	}
	if err := os.MkdirAll(filepath.Dir(p.home), 0o755); err != nil { //nolint:gosec // parents of the home are the user's own choice
		return homeFault("cannot be made")
	}
	if err := os.Mkdir(p.home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return homeFault("cannot be made")
	}
	about, err := os.Lstat(p.home)
	if err != nil || !about.IsDir() {
		return homeFault("is a link or no folder")
	}
	if runtime.GOOS != "windows" && about.Mode().Perm()&0o077 != 0 && realPath(p.home) != realPath(p.userHome) {
		if err := os.Chmod(p.home, 0o700); err != nil { //nolint:gosec // a folder needs its search bit
			return homeFault("is open to others and cannot be closed")
		}
	}
	return nil
}

func homeFault(what string) error {
	return invalid("set RELAVIUM_HOME to a folder of your own", "the home folder %s", what)
}

// privateFile creates a file of the home if it is absent, and keeps it readable
// by the user alone. Links are refused.
func privateFile(path string) error {
	name := filepath.Base(path)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // a fixed name in the home
	if err == nil {
		return file.Close()
	}
	about, err := os.Lstat(path)
	if err != nil || !about.Mode().IsRegular() {
		return invalid("", "%s: not a regular file", name)
	}
	if runtime.GOOS != "windows" && about.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o600); err != nil {
			return invalid("", "%s: open to others and cannot be closed", name)
		}
	}
	return nil
}
