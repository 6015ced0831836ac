package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/secrets"
)

// openSecrets is where this place finds and keeps secrets. Nothing is read before
// one is asked for.
func (s *shell) openSecrets(p place, set *settings) (*secrets.Store, error) {
	opt := secrets.Options{
		Home:     p.home,
		Getenv:   func(name string) string { return s.env[name] },
		Scrubber: s.scrubber,
	}
	if path := set.Secrets.AgeFile; path != nil {
		opt.AgeFile = *path
	}
	if path := set.Secrets.AgeIdentity; path != nil {
		opt.AgeIdentity = *path
	}
	if in, ok := s.stdin.(*os.File); ok && isTerminal(in) {
		opt.Passphrase = func(ctx context.Context) ([]byte, error) { return s.typePassphrase(ctx, in) }
	}
	return secrets.Open(opt)
}

func (s *shell) typePassphrase(ctx context.Context, in *os.File) ([]byte, error) {
	out, done, ok := s.screen()
	if !ok {
		return nil, errNotTyped
	}
	defer done()
	return typeHidden(ctx, in, out, "passphrase of the age file: ")
}

func (a *app) secretsCommand() *cobra.Command {
	cmd := group("secrets", "Keep and find the keys that workflows, providers and servers need",
		"  relavium-serve secrets set provider/openai\n  relavium-serve secrets doctor",
		a.secretsSetCommand(), a.secretsListCommand(), a.secretsDeleteCommand(), a.secretsDoctorCommand())
	cmd.Long = `Keep and find the keys that workflows, providers and servers need.

A secret has a name that says what it is for:

  provider/openai          the key of a model provider: anthropic, openai, gemini, deepseek
  mcp/github_token         what {{secrets.github_token}} of an MCP server's env refers to
  input/deploy/api_token   the secret input api_token of the workflow deploy

Its value is looked for in this order, and the first that has one answers:

  1. the keychain of the system (on Linux: of the desktop session)
  2. a variable: RELAVIUM_OPENAI_API_KEY, RELAVIUM_MCP_GITHUB_TOKEN,
     RELAVIUM_INPUT_DEPLOY_API_TOKEN
  3. a file that the variable with _FILE appended names, then a systemd credential
     called like the secret with dots: mcp.github_token
  4. secrets.age in RELAVIUM_HOME: a JSON object of names and values, encrypted with
     age to the key in age.key, or with a passphrase that is asked for on a terminal
     ([secrets] age_file, age_identity in config.toml name others)

Values are never shown, and never taken from the command line, where others can read
them. They have 8 bytes at least.`
	return cmd
}

func (a *app) secretsSetCommand() *cobra.Command {
	var where string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Keep a value: typed unseen on the terminal, or from the standard input",
		Long: `Keep a value: typed unseen on the terminal, or from the standard input, without
the line break at its end.

It goes to the keychain if there is one, else to the age file, which the first value
makes together with its key; the answer says where it is. A keychain takes 2048
bytes, the age file 64 KiB.

The age file keeps a value from whoever sees a copy of it. It does not keep it from
who can read your files here: the key lies beside it.`,
		Example: "  relavium-serve secrets set provider/openai\n  relavium-serve secrets set mcp/github_token --store age < token.txt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, name, err := a.secretNamed(args[0])
			if err != nil {
				return err
			}
			source, err := storeFlag(where)
			if err != nil {
				return err
			}
			value, err := a.valueOf(cmd.Context(), name)
			if err != nil {
				return err
			}
			defer clear(value)
			if err := makeHome(at.place); err != nil {
				return err
			}
			kept, err := at.secrets.Set(cmd.Context(), name, value, source)
			if err != nil {
				return secretFault(err)
			}
			return a.saidSet(cmd.Context(), at, name, kept, asJSON)
		},
	}
	cmd.Flags().StringVar(&where, "store", "", "keychain or age (default: the keychain if there is one)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the name and where it is kept as one JSON object")
	return cmd
}

func storeFlag(word string) (secrets.Source, error) {
	switch word {
	case "":
		return "", nil
	case "keychain":
		return secrets.Keychain, nil
	case "age":
		return secrets.AgeFile, nil
	}
	return "", invalid("", "--store: expected keychain or age")
}

// secretNamed opens the place and reads the name of a secret.
func (a *app) secretNamed(text string) (*site, secrets.Name, error) {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return nil, secrets.Name{}, err
	}
	name, err := secrets.ParseName(text)
	if err != nil {
		return nil, name, invalid("relavium-serve secrets --help", "%w", err)
	}
	return at, name, nil
}

// valueOf reads a value from the terminal or the standard input.
func (a *app) valueOf(ctx context.Context, name secrets.Name) ([]byte, error) {
	if in, ok := a.stdin.(*os.File); ok && isTerminal(in) {
		out, done, ok := a.screen()
		if !ok {
			return nil, invalid("", "there is no terminal to ask on")
		}
		defer done()
		value, err := typeHidden(ctx, in, out, "value of "+name.String()+" (not shown): ")
		if errors.Is(err, errNotTyped) {
			return nil, invalid("", "%w: %s is as it was", err, name)
		}
		return value, err
	}
	value, err := io.ReadAll(io.LimitReader(a.stdin, secrets.MaxBytes+3))
	if err != nil {
		return nil, fmt.Errorf("reading the standard input: %w", err)
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r")), nil
}

func (a *app) saidSet(ctx context.Context, at *site, name secrets.Name, kept secrets.Source, asJSON bool) error {
	answers, err := at.secrets.Source(ctx, name)
	if err == nil && answers != kept && !asJSON {
		_, _ = fmt.Fprintf(a.stderr, "note: %s is looked up in the %s first, which has another value\n", name, answers)
	}
	return a.said(asJSON, map[string]string{"name": name.String(), "store": string(kept)}, "%s is kept in the %s%s", name, kept, whereabouts(kept))
}

// whereabouts explains the age file to who did not choose it.
func whereabouts(kept secrets.Source) string {
	if kept == secrets.AgeFile {
		return " (secrets.age in RELAVIUM_HOME, or [secrets] age_file)"
	}
	return ""
}

// A secretRow is a secret as list shows it.
type secretRow struct {
	Name     string         `json:"name"`
	Source   secrets.Source `json:"source,omitempty"` // "" if nothing answers
	Fault    string         `json:"fault,omitempty"`
	NeededBy []string       `json:"neededBy,omitempty"`
	err      error
}

func (a *app) secretsListCommand() *cobra.Command {
	var asJSON bool
	var folders []string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the secrets that there are, or that workflows need, and which source answers",
		Long: `List the secrets that there are, or that workflows need, and which source answers.

These are the names in the keychain (those that "secrets set" put there) and in the
age file, the keys of providers and what the workflows and servers of the project
refer to. No value is shown.`,
		Example: "  relavium-serve secrets list\n  relavium-serve secrets list --workflows examples/workflows --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			list, err := a.secretRows(cmd.Context(), at, folders)
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(list)
			}
			return a.printSecrets(list)
		},
	}
	workflowFlag(cmd, &folders)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func (a *app) printSecrets(list []secretRow) error {
	rows := make([][]string, len(list))
	for i := range list {
		row := &list[i]
		source := string(row.Source)
		switch {
		case row.Fault != "":
			source = "refused"
		case source == "":
			source = "missing"
		}
		rows[i] = []string{row.Name, source, oneLine(strings.Join(row.NeededBy, ", "), 200)}
	}
	return a.table([]string{"NAME", "SOURCE", "NEEDED BY"}, rows)
}

// secretRows looks up every secret that is kept or needed, sorted by name.
func (a *app) secretRows(ctx context.Context, at *site, folders []string) ([]secretRow, error) {
	kept, err := at.secrets.Kept(ctx)
	if err != nil {
		_, _ = fmt.Fprintf(a.stderr, "relavium-serve: %s\n", plain(err.Error()))
	}
	needed, err := at.secretsNeeded(folders)
	if err != nil {
		return nil, err
	}
	for _, name := range kept {
		needed[name] = append([]string(nil), needed[name]...)
	}
	for _, provider := range secrets.Providers() {
		if name, err := at.secrets.ProviderKeys().Name(provider); err == nil {
			needed[name] = append([]string(nil), needed[name]...)
		}
	}
	rows := []secretRow{}
	for name, by := range needed {
		source, err := at.secrets.Source(ctx, name)
		row := secretRow{Name: name.String(), Source: source, NeededBy: by, err: err}
		_, missing := errors.AsType[*secrets.NotFoundError](err)
		switch {
		case missing && len(by) == 0 && !slices.Contains(kept, name):
			continue
		case missing, err == nil:
		case ctx.Err() != nil:
			return nil, err
		default:
			row.Fault = err.Error()
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(x, y secretRow) int { return strings.Compare(x.Name, y.Name) })
	return rows, nil
}

func (a *app) secretsDeleteCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "delete NAME",
		Short:   "Remove a secret from the keychain and the age file",
		Example: "  relavium-serve secrets delete mcp/github_token",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, name, err := a.secretNamed(args[0])
			if err != nil {
				return err
			}
			if err := makeHome(at.place); err != nil {
				return err
			}
			from, err := at.secrets.Delete(cmd.Context(), name)
			for _, source := range from {
				_, _ = fmt.Fprintf(a.stderr, "%s is deleted from the %s\n", name, source)
			}
			if err != nil {
				return secretFault(err)
			}
			still, err := at.secrets.Source(cmd.Context(), name)
			if len(from) == 0 {
				hint := "relavium-serve secrets list"
				if err == nil {
					hint = "relavium-serve secrets doctor " + name.String() + " shows what supplies it"
				}
				return invalid(hint, "%s is neither in the keychain nor in the age file", name)
			}
			if err == nil {
				_, _ = fmt.Fprintf(a.stderr, "note: the %s still supplies it\n", still)
			}
			if asJSON {
				return a.json(map[string]any{"name": name.String(), "deletedFrom": from})
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was deleted as one JSON object")
	return cmd
}

// secretFault makes an error about a secret a fault with its remedy.
func secretFault(err error) error {
	if missing, ok := errors.AsType[*secrets.NotFoundError](err); ok {
		return invalid(missing.Remedy(), "%w", err)
	}
	if refused, ok := errors.AsType[*secrets.RefusedError](err); ok {
		hint := "relavium-serve secrets doctor " + refused.Name.String()
		if refused.Source == secrets.Keychain {
			hint = "unlock the keychain, or use the age file: relavium-serve secrets set " + refused.Name.String() + " --store age"
		}
		if refused.Where == "" {
			hint = "relavium-serve secrets set --help"
		}
		return invalid(hint, "%w", err)
	}
	return err
}
