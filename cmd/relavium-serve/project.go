package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

// projectOf names the project of a root: serve.workspace_id, else the first 32
// hex digits of SHA-256 of the root's real path.
func (at *site) projectOf(root string) engine.Project {
	if id := at.Serve.WorkspaceID; id != nil {
		return engine.Project{Key: *id, Root: root}
	}
	sum := sha256.Sum256([]byte(root))
	return engine.Project{Key: hex.EncodeToString(sum[:])[:32], Root: root}
}

// sources are the folders to look for workflows in: .relavium of the project,
// then the folders of --workflows that are not below an earlier one.
func (at *site) sources(folders []string) ([]workflows.Source, error) {
	var sources []workflows.Source
	if at.root != "" {
		sources = append(sources, workflows.Source{Dir: filepath.Join(at.root, ".relavium"), Root: at.root})
	}
	for _, folder := range folders {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(at.cwd, folder)
		}
		about, err := os.Stat(folder)
		if err != nil || !about.IsDir() {
			return nil, invalid("", "--workflows %s: no such folder", filepath.Base(folder))
		}
		folder = realPath(folder)
		if slices.ContainsFunc(sources, func(s workflows.Source) bool { return within(folder, s.Dir) }) {
			continue
		}
		sources = append(sources, workflows.Source{Dir: folder, Root: folder})
	}
	return sources, nil
}

func within(path, folder string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}

// loaderOptions are what the loader cannot know by itself.
func (at *site) loaderOptions() workflows.Options {
	servers, stdio := []string{}, []string{}
	for i := range at.Servers {
		servers = append(servers, at.Servers[i].Name)
		if at.Servers[i].Transport == "stdio" {
			stdio = append(stdio, at.Servers[i].Name)
		}
	}
	return workflows.Options{
		EnvDenied:    consent.EnvDenied,
		CheckURL:     egress.CheckURL,
		Servers:      servers,
		StdioServers: stdio,
		UnknownModel: at.unknownModel,
		Priced:       at.pricer(),
		Home:         at.home,
	}
}

// load reads every workflow of the project and of the folders.
func (at *site) load(folders []string) (*workflows.Catalog, error) {
	return at.loadWith(folders, at.loaderOptions())
}

func (at *site) loadWith(folders []string, opt workflows.Options) (*workflows.Catalog, error) {
	sources, err := at.sources(folders)
	if err != nil {
		return nil, err
	}
	catalog, err := workflows.Load(sources, opt)
	if err != nil {
		return nil, &fault{code: exitFault, err: err}
	}
	at.known.add(catalog.Workflows)
	for i := range sources {
		at.known.add(nil, sources[i].Dir)
	}
	return catalog, nil
}

// find is the workflow that a command names by id or by path.
func (at *site) find(name string, folders []string) (workflows.Loaded, error) {
	if strings.ContainsAny(name, `/\`) || strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") {
		return at.findFile(name)
	}
	catalog, err := at.load(folders)
	if err != nil {
		return workflows.Loaded{}, err
	}
	for _, loaded := range catalog.Workflows {
		if loaded.Workflow.ID == name {
			return loaded, nil
		}
	}
	for _, broken := range catalog.Broken {
		if broken.ID == name {
			return workflows.Loaded{}, &fault{code: exitFault, err: broken.Problems}
		}
	}
	return workflows.Loaded{}, at.notLoaded(name, catalog, folders)
}

func (at *site) findFile(path string) (workflows.Loaded, error) {
	full := path
	if !filepath.IsAbs(full) {
		full = filepath.Join(at.cwd, full)
	}
	if about, err := os.Stat(full); err != nil || about.IsDir() {
		return workflows.Loaded{}, invalid("", "%s: no such file", path)
	}
	loaded, _, err := workflows.LoadFile(full, at.loaderOptions())
	if err != nil {
		return workflows.Loaded{}, &fault{code: exitFault, err: err}
	}
	at.known.add([]workflows.Loaded{loaded})
	return loaded, nil
}

// notLoaded says that no workflow has the id, what is wrong with the files that
// may be it, and what to do.
func (at *site) notLoaded(id string, catalog *workflows.Catalog, folders []string) *fault {
	faults := []error{fmt.Errorf("no workflow %q is loaded", id)}
	for _, b := range catalog.Broken {
		if b.ID == "" && !strings.HasSuffix(b.Path, ".agent.yaml") {
			faults = append(faults, b.Problems)
		}
	}
	ids := make([]string, len(catalog.Workflows))
	for i := range catalog.Workflows {
		ids[i] = catalog.Workflows[i].Workflow.ID
	}
	hint := "keep workflows in .relavium/ of the project, or name their folder with --workflows DIR"
	if near := closest(id, ids); near != "" {
		hint = "did you mean " + near + "?"
	} else if len(ids) > 0 && (at.root != "" || len(folders) > 0) {
		hint = "loaded are: " + strings.Join(ids[:min(len(ids), 20)], ", ")
	}
	return &fault{code: exitFault, err: errors.Join(faults...), hint: hint}
}
