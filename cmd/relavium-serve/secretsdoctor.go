package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/secrets"
	"github.com/relavium/relavium-serve/workflows"
)

func (a *app) secretsDoctorCommand() *cobra.Command {
	var asJSON bool
	var folders []string
	cmd := &cobra.Command{
		Use:   "doctor [NAME]",
		Short: "Show which source answers for a secret, or what is wrong with those that are needed",
		Long: `Show which source answers for a secret, or what is wrong with those that are needed.

With a name every source says whether it has a value, in the order in which they are
asked. Without one, all that the workflows and servers of the project refer to are
looked up, and names that share a variable are pointed out. Exit code 2 means that
something is missing. No value is shown.`,
		Example: "  relavium-serve secrets doctor provider/openai\n  relavium-serve secrets doctor --workflows examples/workflows",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				at, name, err := a.secretNamed(args[0])
				if err != nil {
					return err
				}
				return a.explainSecret(cmd.Context(), at, name, asJSON)
			}
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			return a.examineSecrets(cmd.Context(), at, folders, asJSON)
		},
	}
	workflowFlag(cmd, &folders)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// An explanation is what every source says to one name.
type explanation struct {
	Name    string           `json:"name"`
	Source  secrets.Source   `json:"source,omitempty"` // that answers; "" if none
	Sources []explainedEntry `json:"sources"`
}

type explainedEntry struct {
	Source secrets.Source `json:"source"`
	Where  string         `json:"where"`
	State  secrets.State  `json:"state"`
	Detail string         `json:"detail,omitempty"`
}

func (a *app) explainSecret(ctx context.Context, at *site, name secrets.Name, asJSON bool) error {
	answers, err := at.secrets.Explain(ctx, name)
	if err != nil {
		return err
	}
	shown := explanation{Name: name.String()}
	rows := make([][]string, len(answers))
	for i, answer := range answers {
		shown.Sources = append(shown.Sources, explainedEntry(answer))
		rows[i] = []string{answer.Where, string(answer.State), answer.Detail}
		if answer.State == secrets.Answers {
			shown.Source = answer.Source
		}
	}
	if asJSON {
		err = a.json(shown)
	} else {
		err = a.table([]string{"SOURCE", "STATE", "WHY"}, rows)
	}
	if err != nil {
		return err
	}
	_, err = at.secrets.Source(ctx, name)
	return secretFault(err)
}

// A diagnosis is what is wrong with the secrets that are needed.
type diagnosis struct {
	Secrets []secretRow `json:"secrets"`
	Clashes []string    `json:"clashes"`
}

func (a *app) examineSecrets(ctx context.Context, at *site, folders []string, asJSON bool) error {
	needed, err := at.secretsNeeded(folders)
	if err != nil {
		return err
	}
	found := diagnosis{Clashes: []string{}}
	names := slices.SortedFunc(maps.Keys(needed), func(x, y secrets.Name) int { return strings.Compare(x.String(), y.String()) })
	for _, clash := range secrets.Clashes(names) {
		found.Clashes = append(found.Clashes, clash.String())
	}
	if found.Secrets, err = a.secretRows(ctx, at, folders); err != nil {
		return err
	}
	faults := len(found.Clashes)
	for i := range found.Secrets {
		if found.Secrets[i].err != nil {
			faults++
		}
	}
	if asJSON {
		err = a.json(found)
	} else {
		err = a.printDiagnosis(&found)
	}
	if err == nil && faults > 0 {
		return silent(exitFault)
	}
	return err
}

func (a *app) printDiagnosis(found *diagnosis) error {
	if err := a.printSecrets(found.Secrets); err != nil {
		return err
	}
	for i := range found.Secrets {
		if err := found.Secrets[i].err; err != nil {
			_, _ = fmt.Fprintf(a.stderr, "%s\n", plain(err.Error()))
		}
	}
	for _, clash := range found.Clashes {
		_, _ = fmt.Fprintf(a.stderr, "%s; rename one of them\n", plain(clash))
	}
	if len(found.Secrets) == 0 {
		_, err := io.WriteString(a.stderr, "no secret is kept, and none is needed\n")
		return err
	}
	return nil
}

// secretsNeeded are the secrets that the workflows of the project and of the folders
// refer to, and those of the registered servers, each with what refers to it. Files
// that do not load are passed over.
func (at *site) secretsNeeded(folders []string) (map[secrets.Name][]string, error) {
	sources, err := at.sources(folders)
	if err != nil {
		return nil, err
	}
	opt := at.loaderOptions()
	catalog, err := workflows.Load(sources, opt)
	if catalog == nil {
		return nil, &fault{code: exitFault, err: err}
	}
	needed := make(map[secrets.Name][]string)
	for i := range catalog.Workflows {
		w := catalog.Workflows[i].Workflow
		for _, name := range at.secretsOf(w) {
			needed[name] = append(needed[name], "workflow "+w.ID)
		}
	}
	for i := range at.Servers {
		for _, name := range at.secretsOfServer(&at.Servers[i]) {
			needed[name] = append(needed[name], "server "+at.Servers[i].Name)
		}
	}
	return needed, nil
}

// secretsOf are the secrets that a workflow names by itself: its secret inputs, the
// keys of its agents' first providers and what its own servers refer to.
func (at *site) secretsOf(w *workflows.Workflow) []secrets.Name {
	var names []secrets.Name
	add := func(r secrets.Resolver, id string) {
		if name, err := r.Name(id); err == nil && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i := range w.Inputs {
		if w.Inputs[i].Type == workflows.TypeSecret {
			add(at.secrets.Inputs(w.ID), w.Inputs[i].Name)
		}
	}
	for _, use := range w.Models() {
		if use.Primary && !at.keyless(use.Provider) {
			add(at.secrets.ProviderKeys(), use.Provider)
		}
	}
	for _, id := range w.SecretRefs() {
		add(at.secrets.MCPSecrets(), id)
	}
	return names
}

func (at *site) secretsOfServer(server *serverSettings) []secrets.Name {
	var names []secrets.Name
	for _, key := range slices.Sorted(maps.Keys(server.Env)) {
		for _, id := range workflows.SecretRefs(server.Env[key]) {
			if name, err := at.secrets.MCPSecrets().Name(id); err == nil && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// keyless reports whether a provider is a local endpoint, which is also asked
// without a key.
func (at *site) keyless(provider string) bool {
	set := at.provider(provider)
	return set != nil && set.AllowLocalEndpoint != nil && *set.AllowLocalEndpoint
}

// provider is what is configured for a provider, nil for one that there is not.
func (at *site) provider(name string) *providerSettings { return providerOf(at.settings, name) }

func providerOf(set *settings, name string) *providerSettings {
	switch name {
	case "anthropic":
		return &set.Providers.Anthropic
	case "openai":
		return &set.Providers.OpenAI
	case "gemini":
		return &set.Providers.Gemini
	case "deepseek":
		return &set.Providers.DeepSeek
	}
	return nil
}
