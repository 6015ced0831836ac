package main

import (
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
)

func (a *app) migrateCommand() *cobra.Command {
	var role string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the run store up to date",
		Long: `Bring the run store up to date: the database of --database or ` + databaseVariable + `,
else the file in RELAVIUM_HOME. Doing it again changes nothing.

Every command that opens a store does the same, if it may. In a database it often
may not, and should not: run migrate once for each new version, as the owner of
the database, and the service as a user who can change no table:

  CREATE ROLE flows LOGIN PASSWORD '…';
  relavium-serve migrate --database postgres://owner@db.example/flows --role flows
  relavium-serve serve --database postgres://flows@db.example/flows …

--role grants that user what the service needs and no more: it adds to the audit
log and reads it, but can neither change nor delete what is in it. Entries older
than 400 days then stay until the owner deletes them.

A store is only ever added to, so replicas of the version before go on meanwhile.
One that a newer version wrote is left alone: exit code 2.`,
		Example: "  relavium-serve migrate",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			if role != "" && at.shared == nil {
				return invalid("name the database with --database or "+databaseVariable, "--role: the run store is a file, which has no users")
			}
			place, err := at.storePlace()
			if err != nil {
				return err
			}
			found, now, err := engine.Migrate(cmd.Context(), place, role, at.log)
			if err != nil {
				return at.storeFault(cmd.Context(), err)
			}
			v := migrationView{Store: at.storeName(), Found: found, Schema: now, Role: role}
			return a.said(asJSON, v, "%s", v.text())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "the database user of the service, who gets what it needs")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

type migrationView struct {
	Store  string `json:"store"`
	Found  int    `json:"found"` // 0: it was empty
	Schema int    `json:"schema"`
	Role   string `json:"role,omitempty"`
}

func (v *migrationView) text() string {
	said := fmt.Sprintf("%s: schema %d → %d", v.Store, v.Found, v.Schema)
	switch v.Found {
	case 0:
		said = fmt.Sprintf("%s: schema %d made", v.Store, v.Schema)
	case v.Schema:
		said = fmt.Sprintf("%s: schema %d, up to date", v.Store, v.Schema)
	}
	if v.Role != "" {
		said += "; " + v.Role + " may serve with it"
	}
	return said
}
