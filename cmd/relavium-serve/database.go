package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/relavium/relavium-serve/engine"
)

const (
	databaseVariable = "RELAVIUM_DATABASE_URL"
	// maxDatabaseURL is the most bytes of the URL of a database.
	maxDatabaseURL = 4 << 10
	databaseHelp   = "keep runs in this PostgreSQL database, postgres://USER@HOST/NAME; one with a password belongs into " + databaseVariable
)

// A database is where runs are kept that replicas share.
type database struct {
	url  string
	from string // the flag, variable or key that has it
}

// databaseFlag gives a command and those below it --database.
func (a *app) databaseFlag(cmd *cobra.Command) *cobra.Command {
	cmd.PersistentFlags().StringVar(&a.database, "database", "", databaseHelp)
	return cmd
}

// sharedStore is the database of the invocation, or nil for the file in the home:
// --database, else RELAVIUM_DATABASE_URL or the file that RELAVIUM_DATABASE_URL_FILE
// names, else [database] url. Errors hold nothing of the URL.
func (a *app) sharedStore(p place, set *settings) (*database, error) {
	d := &database{a.database, "--database"}
	for _, name := range []string{databaseVariable, databaseVariable + "_FILE"} {
		if d.url != "" || a.env[name] == "" {
			continue
		}
		d.url, d.from = a.env[name], name
		if name != databaseVariable {
			var err error
			if d.url, err = databaseFile(a.env[name]); err != nil {
				return nil, err
			}
		}
	}
	if d.url == "" && set.Database.URL != nil {
		d.url, d.from = *set.Database.URL, "database.url in config.toml"
		if d.url == "" {
			return nil, d.malformed()
		}
	}
	if d.url == "" {
		return nil, nil
	}
	u, err := url.Parse(d.url)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || len(d.url) > maxDatabaseURL {
		return nil, d.malformed()
	}
	passwords := passwordsOf(u)
	for _, password := range passwords {
		a.scrubber.LearnText(databaseVariable, password)
	}
	switch {
	case len(passwords) > 0 && d.from == "--database":
		return nil, invalid("set "+databaseVariable+" to the URL, or take the password out and name a password file with PGPASSFILE",
			"--database: a URL with a password would be in the list of processes and in the shell's history")
	case len(passwords) > 0 && strings.HasPrefix(d.from, "database.url") && openToOthers(cmp.Or(a.config, filepath.Join(p.home, "config.toml"))):
		return nil, invalid("chmod 600 config.toml, or set "+databaseVariable,
			"database.url in config.toml: the URL has a password, and others may read the file")
	}
	return d, nil
}

func (d *database) malformed() error {
	return invalid("such as postgres://flows@db.example:5432/flows", "%s: expected the URL of a PostgreSQL database", d.from)
}

// passwordsOf are the secrets that a URL holds.
func passwordsOf(u *url.URL) []string {
	var out []string
	if password, ok := u.User.Password(); ok && password != "" {
		out = append(out, password)
	}
	for _, name := range []string{"password", "sslpassword"} {
		if password := u.Query().Get(name); password != "" {
			out = append(out, password)
		}
	}
	return out
}

// databaseFile reads a URL from a file, such as a mounted secret.
func databaseFile(path string) (string, error) {
	unread := func(why string) error {
		return invalid("", "%s_FILE: %s", databaseVariable, why)
	}
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return "", unread("no such file, or it cannot be read")
	}
	about, err := file.Stat()
	if err != nil || !about.Mode().IsRegular() {
		return "", errors.Join(unread("not a regular file"), file.Close())
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxDatabaseURL+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return "", unread("cannot be read")
	}
	text := strings.TrimSpace(string(raw))
	if text == "" || len(raw) > maxDatabaseURL || !utf8.ValidString(text) {
		return "", unread("holds no URL")
	}
	return text, nil
}

// place is the database for people: host and name, nothing else of the URL.
func (d *database) place() string {
	u, err := url.Parse(d.url)
	if err != nil {
		return "the database"
	}
	host := cmp.Or(u.Host, u.Query().Get("host"), "localhost")
	return strings.TrimSuffix(host+"/"+strings.TrimPrefix(u.Path, "/"), "/")
}

// fault says what is wrong with the database, and what can be done.
func (d *database) fault(ctx context.Context, err error) error {
	said := &storeError{what: "the database at " + d.place(), err: err}
	var newer *engine.SchemaError
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &newer):
		return &fault{code: exitFault, err: said, hint: "start the version that wrote it, or a newer one"}
	case errors.Is(err, engine.ErrMigrate):
		return &fault{code: exitFault, err: said, hint: "relavium-serve migrate --role SERVICE, with " + databaseVariable + " of a user that may change tables"}
	}
	return &fault{code: exitFailed, err: said, hint: "see that the server runs, and that user, password and database in " + d.from + " are right"}
}

// A storeError is what the engine says of the run store, with its place.
type storeError struct {
	what string
	err  error
}

func (e *storeError) Error() string {
	said := strings.TrimPrefix(e.err.Error(), "run store: ")
	return e.what + ": " + strings.TrimPrefix(said, "engine: ")
}

func (e *storeError) Unwrap() error { return e.err }

// openToOthers reports whether others may read a file.
func openToOthers(path string) bool {
	about, err := os.Stat(path)
	return err == nil && runtime.GOOS != "windows" && about.Mode().Perm()&0o077 != 0
}
