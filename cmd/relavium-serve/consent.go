package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/consent"
)

func (a *app) consentCommand() *cobra.Command {
	cmd := group("consent", "List, show, give and take back consent to local MCP servers",
		"  relavium-serve consent list\n  relavium-serve consent digest < examples/consent/server.json",
		a.consentListCommand(), a.consentShowCommand(), a.consentGrantCommand(), a.consentRevokeCommand(), a.consentDigestCommand())
	cmd.Long = `List, show, give and take back consent to local MCP servers.

A server that runs on this machine as a child process is started only if you have
consented to exactly that program, its arguments, its variables and its folder. A
digest names them together. Grants are kept in mcp-consent.ndjson in
RELAVIUM_HOME; no value of a variable is.

A declaration is one JSON object on the standard input:

  {"transport": "stdio", "command": "/usr/bin/npx", "args": ["-y", "x@1.2.3"],
   "env": {"TOKEN": "{{secrets.x}}"}, "cwd": "/home/me/project"}

command and cwd are absolute paths: the program as it is found on PATH, and the
folder it is started in. args and env may be left out.`
	return cmd
}

func (a *app) consentListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what is granted, oldest first",
		Example: "  relavium-serve consent list --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			grants, err := a.grants(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return a.json(grants)
			}
			rows := make([][]string, len(grants))
			for i := range grants {
				g := &grants[i]
				rows[i] = []string{
					g.Digest, g.Granted.UTC().Format(time.RFC3339), oneLine(g.Command, 200),
					oneLine(strings.Join(g.Args, " "), 100), oneLine(g.Cwd, 200),
				}
			}
			return a.table([]string{"DIGEST", "GRANTED", "COMMAND", "ARGUMENTS", "FOLDER"}, rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func (a *app) consentShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show DIGEST",
		Short:   "Show what one grant is for",
		Example: "  relavium-serve consent show DIGEST",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.checkDigest(args[0]); err != nil {
				return err
			}
			grants, err := a.grants(cmd.Context())
			if err != nil {
				return err
			}
			for i := range grants {
				if grants[i].Digest != args[0] {
					continue
				}
				if asJSON {
					return a.json(grants[i])
				}
				return a.printGrant(&grants[i])
			}
			return consentFault(&consent.NotGrantedError{Digest: args[0]})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

func (a *app) printGrant(g *consent.Grant) error {
	var b strings.Builder
	field := func(name, value string) {
		fmt.Fprintf(&b, "%-10s %s\n", name, oneLine(value, 5000))
	}
	field("digest", g.Digest)
	field("granted", g.Granted.Local().Format(time.DateTime))
	field("command", g.Command)
	for _, arg := range g.Args {
		field("argument", arg)
	}
	for _, name := range g.EnvNames {
		field("variable", name)
	}
	field("folder", g.Cwd)
	_, err := io.WriteString(a.stdout, b.String())
	return err
}

func (a *app) consentGrantCommand() *cobra.Command {
	var digest string
	var folders []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "grant WORKFLOW|SERVER | grant --digest DIGEST",
		Short: "Consent to the programs of a workflow or server, or to a declaration on the standard input",
		Long: `Consent to the programs of a workflow or server, or to a declaration.

With a name, each program that is not granted yet is shown whole: its path,
arguments, folder, and each variable with its text or the name of its secret. A
person at the terminal types yes to allow it.

Where nobody can be asked, the declaration is read from the standard input and its
digest must be the one given with --digest: review the declaration, let "consent
digest" print its digest, and pass that on.`,
		Example: "  relavium-serve consent grant SERVER\n" +
			"  relavium-serve consent grant --digest v1:966e77f5a00a880a5b2fcd427784d18c9649870f9b7c2c7c9184112419e3c5b3 < examples/consent/server.json",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.entered = true
			switch {
			case len(args) == 1 && digest != "":
				return invalid("relavium-serve consent grant --help", "--digest is for a declaration on the standard input, not for a name")
			case len(args) == 1:
				return a.grantNamed(cmd.Context(), args[0], folders, asJSON)
			}
			if digest == "" {
				return invalid("relavium-serve consent digest < server.json", "grant needs the name of a workflow or server, or --digest, the digest of the declaration you have reviewed")
			}
			if err := a.checkDigest(digest); err != nil {
				return err
			}
			d, err := a.declaration()
			if err != nil {
				return err
			}
			return a.grant(cmd.Context(), &d, digest, asJSON)
		},
	}
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that the declaration must have")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the grant's digest as one JSON object")
	workflowFlag(cmd, &folders)
	return cmd
}

func (a *app) grant(ctx context.Context, d *consent.Declaration, digest string, asJSON bool) error {
	found, err := d.Digest()
	if err != nil {
		return invalid("", "declaration: %w", err)
	}
	if found != digest {
		return invalid("relavium-serve consent digest < server.json",
			"the declaration is another one: its digest is %s, --digest says %s", found, digest)
	}
	if err := d.Validate(); err != nil {
		return invalid("", "declaration: %w", err)
	}
	at, store, err := a.consents()
	if err != nil {
		return err
	}
	if err := makeHome(at.place); err != nil {
		return err
	}
	if _, err := store.Grant(ctx, d); err != nil {
		return consentFault(err)
	}
	for _, warning := range d.Warnings() {
		_, _ = fmt.Fprintf(a.stderr, "warning: %s\n", oneLine(warning, 2000))
	}
	return a.said(asJSON, map[string]string{"digest": digest}, "%s is granted: %s", digest, oneLine(d.Command, 200))
}

func (a *app) consentDigestCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "digest",
		Short:   "Print the digest of the declaration on the standard input",
		Example: "  relavium-serve consent digest < examples/consent/server.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			a.entered = true
			d, err := a.declaration()
			if err != nil {
				return err
			}
			digest, err := d.Digest()
			if err != nil {
				return invalid("", "declaration: %w", err)
			}
			_, err = io.WriteString(a.stdout, digest+"\n")
			return err
		},
	}
}

// declaration reads the declaration on the standard input.
func (a *app) declaration() (consent.Declaration, error) {
	src, err := io.ReadAll(io.LimitReader(a.stdin, consent.MaxDeclarationBytes+1))
	if err != nil {
		return consent.Declaration{}, fmt.Errorf("reading the standard input: %w", err)
	}
	d, err := consent.ParseDeclaration(src)
	if err != nil {
		return consent.Declaration{}, invalid("relavium-serve consent --help", "declaration: %w", err)
	}
	return d, nil
}

func (a *app) checkDigest(text string) error {
	a.entered = true
	if !consent.IsDigest(text) {
		return invalid("relavium-serve consent list", "%q: not a digest, expected v1: and 64 lower-case hex digits", oneLine(text, 80))
	}
	return nil
}

// consents opens the grants of the home.
func (a *app) consents() (*site, *consent.Store, error) {
	at, err := a.open(slog.LevelWarn)
	if err != nil {
		return nil, nil, err
	}
	store, err := consent.Open(at.home, nil)
	return at, store, err
}

func (a *app) grants(ctx context.Context) ([]consent.Grant, error) {
	_, store, err := a.consents()
	if err != nil {
		return nil, err
	}
	grants, err := store.Grants(ctx)
	return grants, consentFault(err)
}

// consentFault makes an error of the store a fault with its remedy.
func consentFault(err error) error {
	if _, ok := errors.AsType[*consent.FoldError](err); ok {
		return invalid("move mcp-consent.ndjson out of RELAVIUM_HOME and grant anew what you still want", "%w", err)
	}
	if _, ok := errors.AsType[*consent.UnsafeError](err); ok {
		return invalid("others may have written there: make sure of what is granted, then correct it", "%w", err)
	}
	if _, ok := errors.AsType[*consent.NotGrantedError](err); ok {
		return invalid("relavium-serve consent list", "%w", err)
	}
	return err
}
