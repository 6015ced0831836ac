package workflows

import "slices"

// A ModelUse is one model that a node may ask.
type ModelUse struct {
	Node     string
	Agent    string
	Provider string
	Model    string
	Primary  bool // asked first; false for an entry of the fallback chain
}

// Models lists the models that the agent nodes may ask, node by node as authored,
// each in the order in which they are tried. A node whose agent is not known is left
// out.
func (w *Workflow) Models() []ModelUse {
	var uses []ModelUse
	for i := range w.Nodes {
		spec, a, ok := w.agentOf(i)
		if !ok {
			continue
		}
		model := a.Model
		if spec.Model != "" {
			model = spec.Model
		}
		uses = append(uses, ModelUse{w.Nodes[i].ID, a.ID, a.Provider, model, true})
		for _, f := range a.Fallback {
			uses = append(uses, ModelUse{w.Nodes[i].ID, a.ID, f.Provider, f.Model, false})
		}
	}
	return uses
}

// SecretRefs lists the secrets that the workflow's own servers refer to, each once,
// in the order of the file. Those of registered servers are the registration's.
func (w *Workflow) SecretRefs() []string {
	var names []string
	for i := range w.Agents {
		for _, s := range w.Agents[i].Servers {
			for _, v := range s.Env {
				names = appendNew(names, SecretRefs(v.Value)...)
			}
		}
	}
	return names
}

// SecretRefs lists the names in the {{secrets.NAME}} references of a text, each once.
func SecretRefs(text string) []string {
	var names []string
	for _, r := range refsOf(text) {
		if r.kind == refSecrets {
			names = appendNew(names, r.name)
		}
	}
	return names
}

func appendNew(list []string, more ...string) []string {
	for _, one := range more {
		if !slices.Contains(list, one) {
			list = append(list, one)
		}
	}
	return list
}

// secretEnv is the variable of a secret that servers refer to (format 7).
func secretEnv(name string) string { return "RELAVIUM_MCP_" + envName(name) }
