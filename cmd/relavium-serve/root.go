package main

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/secrets"
)

// An app is one invocation: the shell around it and the flags that every command has.
type app struct {
	*shell
	config   string    // --config
	cwd      string    // --cwd
	logFlag  string    // --log-level
	database string    // --database
	entered  bool      // a command's own code has begun; errors before it are the invocation's
	reading  sync.Once // starts the reader of readLine
	readLine <-chan string
}

// run executes one command line and returns its exit code. stdout may belong to
// a protocol: nothing but a command's own result is written there.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, environ []string) int {
	a := &app{shell: newShell(stdin, stdout, stderr, environ)}
	root := a.command() //nolint:contextcheck // commands take the context from cobra
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !a.entered {
		err = usageFault(cmd, err)
	}
	return report(a.scrubber.Writer(stderr), err, slices.Contains(args, "--json"))
}

// usageFault makes an error of the flag parser a fault of the invocation. The hint
// shows the arguments of a command that has some.
func usageFault(cmd *cobra.Command, err error) error {
	hint := cmd.CommandPath() + " --help"
	if _, arguments, has := strings.Cut(cmd.Use, " "); has {
		hint = cmd.CommandPath() + " " + arguments + "; see " + hint
	}
	return invalid(hint, "%w", err)
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "relavium-serve",
		Short:         "Publish workflow files as MCP tools and run them durably",
		Example:       "  relavium-serve serve --workflows examples/workflows --publish release-notes\n  relavium-serve run release-notes --workflows examples/workflows --input version=1.4.0",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.Version = readVersion().Version // adds --version
	root.SetVersionTemplate("relavium-serve {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.config, "config", "", "read this file instead of config.toml in RELAVIUM_HOME")
	flags.StringVar(&a.cwd, "cwd", "", "look for the project from this folder (default: the working directory)")
	flags.StringVar(&a.logFlag, "log-level", "", "debug, info, warn or error (default: RELAVIUM_LOG, else info for servers, warn for the rest)")
	root.AddCommand(
		a.databaseFlag(a.serveCommand()), a.databaseFlag(a.runCommand()), a.databaseFlag(a.runsCommand()), a.databaseFlag(a.gateCommand()),
		a.databaseFlag(a.consoleCommand()), a.databaseFlag(a.mcpCommand()), a.consentCommand(), a.databaseFlag(a.tokenCommand()), a.secretsCommand(),
		a.databaseFlag(a.auditCommand()), a.databaseFlag(a.migrateCommand()), a.healthCommand(),
		a.validateCommand(), a.schemaCommand(), a.graphCommand(), a.versionCommand(),
	)
	return root
}

// group is a command that only holds others: alone it shows its help, and a word
// it does not know is a fault.
func group(use, short, example string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	cmd.AddCommand(commands...)
	return cmd
}

// A site is where a command works and what is configured there.
type site struct {
	place
	*settings
	log     *slog.Logger
	secrets *secrets.Store
	known   *known
	shared  *database    // nil: runs are kept in a file of the home
	opened  *openedStore // what documents are read from, once it is open

	spawning spawning
	agents   *agents                        // of a process that executes runs
	metrics  *metrics                       // nil counts nothing
	tracer   *tracer                        // nil traces nothing
	store    *atomic.Pointer[engine.Engine] // once it is open, of a process that executes runs
}

// open resolves place and settings for a command whose logs are shown from
// fallback up.
func (a *app) open(fallback slog.Level) (*site, error) {
	a.entered = true
	level, err := a.logLevel(a.logFlag, fallback)
	if err != nil {
		return nil, err
	}
	p, err := a.findPlace(a.cwd)
	if err != nil {
		return nil, err
	}
	merged, err := a.loadSettings(p, a.config, p.root)
	if err != nil {
		return nil, err
	}
	kept, err := a.openSecrets(p, merged)
	if err != nil {
		return nil, err
	}
	shared, err := a.sharedStore(p, merged)
	if err != nil {
		return nil, err
	}
	loaded := new(known)
	if a.config != "" {
		if path, err := filepath.Abs(a.config); err == nil {
			loaded.add(nil, path)
		}
	}
	return &site{place: p, settings: merged, log: a.logger(level), secrets: kept, known: loaded, shared: shared, opened: newOpenedStore(), spawning: spawning{ask: new(atomic.Bool)}, store: new(atomic.Pointer[engine.Engine])}, nil
}
