package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/inbound"
	"github.com/relavium/relavium-serve/secrets"
	"github.com/relavium/relavium-serve/workflows"
)

// secretsLooked is how long it is believed that a secret is there or is not: some are in
// a keychain, and replicas say every few seconds what they have.
const secretsLooked = 30 * time.Second

// fit says what runs need of the replica that runs them, and what this one has.
type fit struct {
	at        *site
	host      *inbound.Host
	granted   func(ctx context.Context, digest string) error
	workspace string
	now       func() time.Time

	mu      sync.Mutex
	secrets map[string]lookedUp
}

type lookedUp struct {
	there bool
	at    time.Time
}

func newFit(at *site, host *inbound.Host, granted func(context.Context, string) error) *fit {
	return &fit{at: at, host: host, granted: granted, workspace: at.workspace(), now: time.Now, secrets: make(map[string]lookedUp)}
}

// workspace names the tree that runs here work in: by [serve] workspace_id where the
// operator has mounted the same one everywhere, else by this machine and home, so that
// no other replica goes on with runs that work in it.
func (at *site) workspace() string {
	if id := at.Serve.WorkspaceID; id != nil {
		return *id
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // the home tells it apart from most
	}
	sum := sha256.Sum256([]byte(host + "\x00" + realPath(at.home)))
	return "of " + hex.EncodeToString(sum[:])[:16]
}

// needs is engine.Options.Needs. A server that this replica cannot tell, such as one
// whose registration it lacks, is found missing when the run starts.
func (f *fit) needs(p engine.Project, w *workflows.Workflow) engine.Needs {
	needs := engine.Needs{Secrets: f.secretsOf(w), Files: usesFiles(w)}
	for i := range w.Agents {
		for j := range w.Agents[i].Servers {
			id, err := f.host.Identify(&w.Agents[i].Servers[j], p.Root)
			if err == nil && id.Digest != "" && !slices.Contains(needs.Consents, id.Digest) {
				needs.Consents = append(needs.Consents, id.Digest)
			}
		}
	}
	slices.Sort(needs.Consents)
	if needs.Files {
		needs.Workspace = f.workspace
	}
	return needs
}

// secretsOf are the names of the secrets that a run reads while it goes: not its
// inputs, which are of its beginning.
func (f *fit) secretsOf(w *workflows.Workflow) []string {
	names := make(map[string]bool)
	for _, name := range f.at.secretsOf(w) {
		if text := name.String(); !strings.HasPrefix(text, "input/") {
			names[text] = true
		}
	}
	current := f.at.current()
	for i := range w.Agents {
		for _, ref := range w.Agents[i].Servers {
			at := slices.IndexFunc(current.Servers, func(s serverSettings) bool { return ref.Ref != "" && s.Name == ref.Ref })
			if at < 0 {
				continue
			}
			for _, name := range f.at.secretsOfServer(&current.Servers[at]) {
				names[name.String()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// usesFiles reports whether runs read, write or run something in a workspace.
func usesFiles(w *workflows.Workflow) bool {
	reads := (*workflows.Template).ReadsFiles
	works := func(tools []string) bool {
		return slices.ContainsFunc(tools, func(tool string) bool {
			switch tool {
			case "read_file", "write_file", "list_directory", "run_command", "git_status", "git_commit":
				return true
			}
			return false
		})
	}
	for i := range w.Context {
		if reads(w.Context[i].Value.Template) {
			return true
		}
	}
	for i := range w.Agents {
		if works(w.Agents[i].Tools) {
			return true
		}
	}
	for i := range w.Nodes {
		switch spec := w.Nodes[i].Spec.(type) {
		case workflows.GateNode:
			if reads(spec.Message) || reads(spec.Assignee) {
				return true
			}
		case workflows.OutputNode:
			if spec.SaveTo != nil {
				return true
			}
		case workflows.AgentNode:
			if reads(spec.Prompt) || works(spec.Tools) {
				return true
			}
		case workflows.InputNode, workflows.ConditionNode, workflows.TransformNode, workflows.ParallelNode, workflows.MergeNode:
			// pure
		}
	}
	return false
}

// has is engine.Options.Has: what of the needs this replica has. Grants are read anew.
func (f *fit) has(ctx context.Context, needs engine.Needs) engine.Needs {
	out := engine.Needs{Files: true, Workspace: f.workspace}
	for _, digest := range needs.Consents {
		if slices.Contains(f.at.spawning.allowed, digest) || f.granted(ctx, digest) == nil {
			out.Consents = append(out.Consents, digest)
		}
	}
	for _, name := range needs.Secrets {
		if f.there(ctx, name) {
			out.Secrets = append(out.Secrets, name)
		}
	}
	return out
}

// there reports whether a secret has a value here, as it was not long ago.
func (f *fit) there(ctx context.Context, name string) bool {
	now := f.now()
	f.mu.Lock()
	seen, known := f.secrets[name]
	f.mu.Unlock()
	if known && now.Sub(seen.at) < secretsLooked {
		return seen.there
	}
	parsed, err := secrets.ParseName(name)
	if err != nil {
		return false
	}
	provider, key := strings.CutPrefix(name, "provider/")
	if key && f.at.keyless(provider) {
		return true
	}
	_, err = f.at.secrets.Source(ctx, parsed)
	if err != nil && ctx.Err() != nil {
		return known && seen.there
	}
	f.mu.Lock()
	f.secrets[name] = lookedUp{err == nil, now}
	f.mu.Unlock()
	return err == nil
}

// offers is engine.Options.Offers: what this replica has of all that the workflows need
// which are loaded here.
func (f *fit) offers(ctx context.Context) engine.Needs {
	var all engine.Needs
	for _, loaded := range f.at.known.list() {
		needs := f.needs(f.at.projectOf(loaded.Root), loaded.Workflow)
		all.Consents = append(all.Consents, needs.Consents...)
		all.Secrets = append(all.Secrets, needs.Secrets...)
	}
	for _, list := range []*[]string{&all.Consents, &all.Secrets} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return f.has(ctx, all)
}
