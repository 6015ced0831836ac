package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish/access"
)

func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Make, list and revoke the tokens by which callers of a server are known",
		"  relavium-serve token create ci --scope relavium:run:review-diff --expires 90d\n  relavium-serve token list",
		a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var scopes []string
	var expires string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a token and print it, this once",
		Long: "Make a token and print it, this once: only its SHA-256 is kept.\n\n" +
			"Runs that are started with it belong to token:NAME. Scopes: " + access.ScopeRun + " (start every\n" +
			"published workflow), " + access.ScopeRunOne + "ID (that one), " + access.ScopeGate + " and " + access.ScopeGateOne + "ID (decide gates in\n" +
			"the console), " + access.ScopeOps + " (read all runs, and metrics).",
		Example: "  relavium-serve token create review-bot --scope relavium:run:review-diff --expires 90d\n  relavium-serve token create lead --scope relavium:run --scope relavium:gate",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			now := time.Now()
			var until time.Time
			if expires != "" {
				if until, err = expiry(expires, now); err != nil {
					return err
				}
			}
			return a.withStore(cmd.Context(), at, func(eng *engine.Engine) error {
				token, secret, err := access.Create(cmd.Context(), at.tokens(), args[0], scopes, until, now)
				if err != nil {
					return tokenFault(args[0], err)
				}
				if err := recordToken(cmd.Context(), eng, "token.created", &token); err != nil {
					_, undo := access.Revoke(cmd.Context(), at.tokens(), token.ID, now)
					return errors.Join(err, undo)
				}
				return a.printNew(&token, secret, asJSON)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&scopes, "scope", nil, "what it allows (repeatable)")
	flags.StringVar(&expires, "expires", "", "when it ends: a duration such as 90d, or a date such as 2027-06-30 (default never)")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// expiry reads a duration from now or a date, whose day is the last.
func expiry(text string, now time.Time) (time.Time, error) {
	var d duration
	if d.UnmarshalText([]byte(text)) == nil && d > 0 {
		return now.Add(time.Duration(d)), nil
	}
	if day, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return day.AddDate(0, 0, 1), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	return time.Time{}, invalid("", "--expires: expected a duration such as 90d or 12h, or a date such as 2027-06-30")
}

func tokenFault(name string, err error) error {
	_, scope := errors.AsType[*access.ScopeError](err)
	switch {
	case errors.Is(err, access.ErrNameTaken):
		return invalid("revoke it first, or choose another name: relavium-serve token list", "token %q: %w", name, err)
	case errors.Is(err, access.ErrNoScope):
		return invalid("add --scope "+access.ScopeRun, "token %q: %w", name, err)
	case errors.Is(err, access.ErrExpired):
		return invalid("", "--expires: %w", err)
	case errors.Is(err, access.ErrName), errors.Is(err, access.ErrTooMany), scope:
		return invalid("", "token %q: %w", oneLine(name, 80), err)
	case errors.Is(err, access.ErrUnknownToken):
		return invalid("relavium-serve token list", "no token %q", oneLine(name, 80))
	}
	return fmt.Errorf("the tokens: %w", err)
}

// tokenView is a token as it is shown: without anything of the secret.
type tokenView struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Scopes  []string  `json:"scopes"`
	State   string    `json:"state"` // live, expired, revoked
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"`
	Revoked time.Time `json:"revoked,omitzero"`
	Used    time.Time `json:"used,omitzero"`
	Token   string    `json:"token,omitempty"` // when it is new
}

func viewToken(t *access.Token, now time.Time) tokenView {
	v := tokenView{ID: t.ID, Name: t.Name, Scopes: t.Scopes, State: "live", Created: t.Created, Expires: t.Expires, Revoked: t.Revoked, Used: t.Used}
	switch {
	case !t.Revoked.IsZero():
		v.State = "revoked"
	case !t.Live(now):
		v.State = "expired"
	}
	return v
}

// printNew shows a new token: alone on the standard output, so that it can be
// piped to where it is kept, with words for a person beside it.
func (a *app) printNew(t *access.Token, secret string, asJSON bool) error {
	if asJSON {
		v := viewToken(t, t.Created)
		v.Token = secret
		return a.json(v)
	}
	ends := "never ends"
	if !t.Expires.IsZero() {
		ends = "ends " + t.Expires.Local().Format(time.DateTime)
	}
	if _, err := fmt.Fprintf(a.stderr, "token %s of token:%s: %s; %s. It is shown this once.\n", t.ID, t.Name, strings.Join(t.Scopes, " "), ends); err != nil {
		return err
	}
	_, err := io.WriteString(a.stdout, secret+"\n")
	return err
}

func (a *app) tokenListCommand() *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, without what is secret of them",
		Example: "  relavium-serve token list --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			tokens, err := a.allTokens(cmd.Context(), at)
			if err != nil {
				return err
			}
			views, now := []tokenView{}, time.Now()
			for i := range tokens {
				if v := viewToken(&tokens[i], now); all || v.State == "live" {
					views = append(views, v)
				}
			}
			if asJSON {
				return a.json(views)
			}
			rows := make([][]string, len(views))
			for i := range views {
				v := &views[i]
				rows[i] = []string{v.ID, v.Name, v.State, strings.Join(v.Scopes, " "), stampOf(v.Created), stampOf(v.Expires), stampOf(v.Used)}
			}
			return a.table([]string{"ID", "NAME", "STATE", "SCOPES", "CREATED", "EXPIRES", "LAST USED"}, rows)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "those that ended too")
	flags.BoolVar(&asJSON, "json", false, "print one JSON array")
	return cmd
}

func stampOf(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke ID",
		Short: "End a token, for every server of the home or database within 5 seconds",
		Long: "End a token, for every server of the home or database within 5 seconds: what it has open ends.\n" +
			"Its runs go on; they belong to token:NAME, and a new token of that name continues them.",
		Example: "  relavium-serve token revoke ID",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := a.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			token, err := a.revokeToken(cmd.Context(), at, args[0])
			if token.ID == "" {
				return err
			}
			v := viewToken(&token, time.Now())
			return errors.Join(a.said(asJSON, v, "token %s (%s) is revoked", v.ID, v.Name), err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the token as one JSON object")
	return cmd
}

// allTokens reads the tokens, wherever they are kept.
func (a *app) allTokens(ctx context.Context, at *site) (tokens []access.Token, err error) {
	read := func(*engine.Engine) (err error) {
		if tokens, err = at.tokens().Tokens(ctx); err != nil {
			return fmt.Errorf("the tokens: %w", err)
		}
		return nil
	}
	if at.shared != nil {
		err = a.withStore(ctx, at, read)
	} else {
		err = read(nil)
	}
	return tokens, err
}

// revokeToken ends a token and records that. A token that is returned is revoked,
// whatever became of the entry.
func (a *app) revokeToken(ctx context.Context, at *site, id string) (token access.Token, err error) {
	revoke := func() (err error) {
		if token, err = access.Revoke(ctx, at.tokens(), id, time.Now()); err != nil {
			return tokenFault(id, err)
		}
		return nil
	}
	if at.shared == nil {
		if homeless(at.place) {
			return token, tokenFault(id, access.ErrUnknownToken)
		}
		if err := revoke(); err != nil {
			return token, err
		}
	}
	err = a.withStore(ctx, at, func(eng *engine.Engine) error {
		if at.shared != nil {
			if err := revoke(); err != nil {
				return err
			}
		}
		return recordToken(ctx, eng, "token.revoked", &token)
	})
	return token, err
}

// recordToken writes to the audit log what was done with a token.
func recordToken(ctx context.Context, eng *engine.Engine, action string, t *access.Token) error {
	return eng.Record(ctx, engine.AuditEntry{
		Principal: engine.Local, Via: engine.ViaCLI, Action: action, What: t.Name + " (" + t.ID + "): " + strings.Join(t.Scopes, " "),
	})
}

// homeless reports whether there is no home yet, and so nothing in it.
func homeless(p place) bool {
	_, err := os.Stat(p.home)
	return errors.Is(err, fs.ErrNotExist)
}
