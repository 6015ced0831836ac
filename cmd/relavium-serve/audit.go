package main

import (
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
)

func (a *app) auditCommand() *cobra.Command {
	var filter engine.AuditFilter
	var since string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List who did what, newest first",
		Long: `List who started, cancelled and decided what, and which programs were started
by whose consent, newest first. No input, output or comment is in it. Entries are
kept for 400 days.`,
		Example: "  relavium-serve audit --since 24h\n  relavium-serve audit --json --limit 20",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			if filter.Limit < 1 {
				return invalid("", "--limit: expected 1 or more")
			}
			if since != "" {
				var d duration
				if d.UnmarshalText([]byte(since)) != nil || d <= 0 {
					return invalid("relavium-serve audit --since 7d", "--since: expected a duration such as 24h or 7d")
				}
				filter.Since = time.Now().Add(-time.Duration(d))
			}
			return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
				entries, err := eng.Audit(cmd.Context(), filter)
				if err != nil {
					return err
				}
				if asJSON {
					return a.json(entries)
				}
				rows := make([][]string, len(entries))
				for i := range entries {
					e := &entries[i]
					what := e.What
					if e.Consent != "" {
						what += " " + e.Consent
					}
					rows[i] = []string{
						e.Time.Format(time.RFC3339), oneLine(string(e.Principal), 60), e.Via, e.Action, oneLine(e.Workflow, 40),
						e.Run, oneLine(what, 90), e.Decision,
					}
				}
				return a.table([]string{"TIME", "WHO", "VIA", "ACTION", "WORKFLOW", "RUN", "WHAT", "DECISION"}, rows)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&filter.Run, "run", "", "only of this run")
	f.StringVar(&since, "since", "", "only of the last while, such as 24h or 7d")
	f.IntVar(&filter.Limit, "limit", 100, "at most this many")
	f.BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}
